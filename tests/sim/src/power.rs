//! The power cut: what of each write had reached the media, and what has to be there afterwards.

use lode_engine::Completion;
use lode_nvme_emu::{Fate, UnflushedBlock};
use lode_units::{BlockSize, Random, SeededRandom};

use crate::machine::{Machine, MachineSpec, pick};
use crate::offline;
use crate::world::{Phase, World};

impl World {
    /// Cuts the power, checks what is left, and boots again.
    pub(crate) fn crash(&mut self) -> Result<(), String> {
        self.tick += 1;
        self.count_crash();
        self.has_leaked |= self.machine.pool_usage().leaked_bytes > 0;
        let mut random = SeededRandom::new(self.random.next_u64());
        let odds = [0, 20, 50, 80, 100][pick(&mut random, 5)];
        let shift = BlockSize::B4096.shift() - self.block_size.shift();
        let bench = self.machine.bench.clone();
        let mut last = None;
        let mut choose = |device: usize, block: UnflushedBlock| {
            let unit = block.lba.get() >> shift;
            let part = (device, block.write, unit);
            let fate = match last {
                // A unit of a client's data is not torn: a volume's blocks rely on that. One of
                // metadata may be: its checksum tells.
                Some((known, fate)) if known == part && !bench.is_metadata(device, unit) => fate,
                _ if random.below(100) < odds => Fate::Keep,
                _ => Fate::Lose,
            };
            last = Some((part, fate));
            fate
        };
        let left = self
            .machine
            .cut_power(self.now, self.pending.len(), &mut choose);
        let left = left.map_err(|what| format!("{what}: {:?}", self.pending))?;
        self.history.note(1, || {
            format!("power cut: {odds} of 100 kept; {:?}", self.boot.phase)
        });
        self.end_all(left)?;
        if self.has_pool {
            self.check_offline()?;
        }
        let now = self.tick;
        for volume in &mut self.volumes {
            volume.handle = None;
            volume.blocks.iter_mut().for_each(|one| one.cut_power(now));
        }
        self.machine = Machine::new(MachineSpec {
            media: self.media.clone(),
            block_size: self.block_size,
            defect: self.defect,
            seed: self.random.next_u64(),
            makes_pool: !self.has_pool,
        });
        Ok(())
    }

    fn count_crash(&mut self) {
        self.tally.crashes += 1;
        let is_recovering = matches!(self.boot.phase, Phase::Starting | Phase::Surveying);
        if is_recovering {
            self.tally.crashes_in_recovery += 1;
            self.tally.crashes_in_recovery_again += u64::from(self.was_recovering);
        }
        self.was_recovering = is_recovering;
    }

    /// Checks all metadata. The pool says when it cannot give blocks back that nothing refers to;
    /// they stay taken when it is cut off meanwhile, which nothing but a repair mends. Only then
    /// that alone is let pass.
    fn check_offline(&self) -> Result<(), String> {
        match offline::check(&self.media, &self.specs) {
            Err(offline::Fault::Leak) if self.has_leaked => Ok(()),
            other => other.map_err(|fault| fault.to_string()),
        }
    }

    /// What ends after the power was cut tells nobody anything, but ends exactly once.
    fn end_all(&mut self, completions: Vec<Completion>) -> Result<(), String> {
        for completion in completions {
            let token = match &completion {
                Completion::Data(done) => done.token,
                Completion::Control { token, .. } => *token,
            };
            if self.pending.remove(&token.0).is_none() {
                return Err(format!("request {} ended twice", token.0));
            }
            if let Completion::Data(done) = completion
                && let Some(buffer) = done.buffer
            {
                self.machine.buffers.give_back(buffer);
            }
        }
        if let Some(token) = self.pending.keys().next() {
            return Err(format!("request {token} never ended"));
        }
        if self.machine.buffers.lent() > 0 {
            return Err("a buffer was lost".to_owned());
        }
        Ok(())
    }
}
