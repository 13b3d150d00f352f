//! The judge: whether a request may end as it did, and what follows from it.

use lode_block::Durability;
use lode_engine::{Completion, ControlError, ControlReply, DataCompletion, IoError, VolumeStatus};
use lode_extent::ExtentError;

use crate::content;
use crate::model::{Blocks, Life, When};
use crate::oracle::{BlockHistory, Outcome};
use crate::pending::{Kind, Pending};
use crate::world::{Harm, Phase, World};

impl World {
    /// Takes the end of a request.
    pub(crate) fn judge(&mut self, completion: Completion) -> Result<(), String> {
        self.tick += 1;
        match completion {
            Completion::Data(done) => self.judge_data(done),
            Completion::Control { token, result } => {
                let pending = self.take(token.0)?;
                let mark = token.0 << 8 | u64::from(result.is_err());
                self.history
                    .note(mark, || format!("{} ended: {result:?}", token.0));
                self.judge_control(token.0, &pending, *result)
                    .map_err(|error| format!("{} {pending:?}: {error}", token.0))
            }
        }
    }

    fn take(&mut self, token: u64) -> Result<Pending, String> {
        self.pending
            .remove(&token)
            .ok_or_else(|| format!("request {token} ended twice"))
    }

    fn judge_data(&mut self, done: DataCompletion) -> Result<(), String> {
        let token = done.token.0;
        let pending = self.take(token)?;
        let mark = token << 8 | u64::from(done.result.is_err()) | 2;
        self.history
            .note(mark, || format!("{token} ended: {:?}", done.result));
        let mut data = Vec::new();
        if let Some(buffer) = done.buffer {
            buffer.append_to(0, self.bytes_read(&pending), &mut data);
            self.machine.buffers.give_back(buffer);
        }
        self.tally.failures += u64::from(done.result.is_err());
        if pending.generation != self.volumes[pending.volume].generation {
            return Ok(());
        }
        self.conclude(token, &pending, &done.result, &data)
            .map_err(|error| format!("{token} {pending:?}: {error}"))
    }

    /// How many bytes of its buffer a request has filled that anybody looks at.
    fn bytes_read(&self, pending: &Pending) -> usize {
        let volume = &self.volumes[pending.volume];
        match &pending.kind {
            Kind::Read { blocks, .. } if pending.generation == volume.generation => {
                blocks.len() * volume.block_bytes
            }
            _ => 0,
        }
    }

    fn conclude(
        &mut self,
        token: u64,
        pending: &Pending,
        result: &Result<Durability, IoError>,
        data: &[u8],
    ) -> Result<(), String> {
        let outcome = match result {
            Ok(Durability::None) => Outcome::Done,
            Ok(Durability::Data | Durability::Full) => Outcome::Durable,
            Err(_) => Outcome::Failed,
        };
        if let (Err(IoError::Mismatch { offset_bytes }), Kind::Compare { blocks, expected }) =
            (result, &pending.kind)
        {
            return self.mismatched(token, pending, *offset_bytes, blocks, expected);
        }
        if let Err(error) = result {
            self.tolerate(pending, error)?;
        }
        let when = self.when();
        match &pending.kind {
            Kind::Read { blocks, settles } if result.is_ok() => {
                self.compare_blocks(pending, blocks, data)?;
                if *settles {
                    self.settle(pending, blocks, data)?;
                }
            }
            Kind::Change { blocks } | Kind::Discard { blocks } => {
                self.volumes[pending.volume].end(blocks, token, outcome, when);
            }
            Kind::Compare { blocks, expected } => {
                if result.is_ok() {
                    self.matched(pending, blocks, expected)?;
                }
                self.volumes[pending.volume].end(blocks, token, outcome, when);
            }
            Kind::Flush if result.is_ok() => {
                let volume = &mut self.volumes[pending.volume];
                let blocks = volume.blocks.iter_mut();
                blocks.for_each(|block| block.flushed(pending.begun));
            }
            Kind::Read { .. } | Kind::Flush => {}
            Kind::Create | Kind::Resize { .. } | Kind::Delete | Kind::Open => {
                return Err("a control request ended as a data request".to_owned());
            }
        }
        Ok(())
    }

    fn when(&self) -> When {
        let begun = self.pending.values().map(|pending| pending.begun);
        When {
            now: self.tick,
            horizon: begun.min().unwrap_or(self.tick),
        }
    }

    /// Whether a request may fail so.
    fn tolerate(&mut self, pending: &Pending, error: &IoError) -> Result<(), String> {
        let volume = &self.volumes[pending.volume];
        let is_expected = match error {
            IoError::UnknownVolume => volume.life != Life::Present,
            IoError::FlushFailed | IoError::PoolUnavailable | IoError::Damaged => {
                self.boot.is_spoilt = true;
                self.boot.harm == Harm::Failure
            }
            IoError::OutOfRange { .. } => pending.is_overtaken,
            IoError::Device { .. } => self.boot.harm == Harm::Failure,
            // The pool takes no space where the map of it cannot be read.
            IoError::NoSpace => self.is_space_unreadable(),
            _ => false,
        };
        if !is_expected {
            return Err(format!("failed without a reason: {error}"));
        }
        // What could not be surveyed is surveyed after the next boot.
        self.boot.is_spoilt |= self.boot.phase == Phase::Surveying;
        Ok(())
    }

    /// Whether there is space that the pool cannot use, or was at the last poll.
    fn is_space_unreadable(&self) -> bool {
        self.boot.is_space_unreadable || self.machine.pool_usage().unreadable_bytes > 0
    }

    fn compare_blocks(
        &mut self,
        pending: &Pending,
        blocks: &Blocks,
        data: &[u8],
    ) -> Result<(), String> {
        let volume = &self.volumes[pending.volume];
        for (block, bytes) in blocks.clone().zip(data.chunks(volume.block_bytes)) {
            self.tally.blocks_compared += 1;
            let Some(history) = volume.blocks.get(block) else {
                break;
            };
            let found = content::value(bytes, volume.place(block))
                .map_err(|what| format!("block {block}: {what}"))?;
            if !volume.may_read(block, found, pending.begun) {
                return Err(format!("block {block} holds {found}, not of {history:?}"));
            }
        }
        Ok(())
    }

    /// What was found after a boot is what there is.
    fn settle(&mut self, pending: &Pending, blocks: &Blocks, data: &[u8]) -> Result<(), String> {
        let (tick, volume) = (self.tick, &mut self.volumes[pending.volume]);
        for (block, bytes) in blocks.clone().zip(data.chunks(volume.block_bytes)) {
            let found = content::value(bytes, volume.place(block))?;
            if let Some(history) = volume.blocks.get_mut(block)
                && history.is_idle_since(pending.begun)
            {
                history.found(found, tick);
            }
        }
        Ok(())
    }

    fn matched(&self, pending: &Pending, blocks: &Blocks, expected: &[u64]) -> Result<(), String> {
        let volume = &self.volumes[pending.volume];
        for (block, value) in blocks.clone().zip(expected) {
            let Some(history) = volume.blocks.get(block) else {
                break;
            };
            if !volume.may_read(block, *value, pending.begun) {
                return Err(format!(
                    "block {block} was found equal to {value}, not of {history:?}"
                ));
            }
        }
        Ok(())
    }

    fn mismatched(
        &mut self,
        token: u64,
        pending: &Pending,
        offset_bytes: u64,
        blocks: &Blocks,
        expected: &[u64],
    ) -> Result<(), String> {
        let volume = &mut self.volumes[pending.volume];
        let end = blocks.end.min(volume.blocks.len());
        for history in volume.blocks.iter_mut().take(end).skip(blocks.start) {
            history.withdraw(token);
        }
        if volume.life == Life::Absent {
            // The end of a deletion was told on another core before this one was.
            return Ok(());
        }
        let offset = usize::try_from(offset_bytes).expect("a small volume");
        let block = offset / volume.block_bytes;
        let position = block.checked_sub(blocks.start);
        let expected = position.and_then(|position| expected.get(position));
        if pending.is_overtaken && volume.blocks.len() <= block {
            return Ok(());
        }
        let Some(expected) = expected.filter(|_| block < volume.blocks.len()) else {
            return Err(format!("the mismatch at {offset} lies elsewhere"));
        };
        if volume.may_differ(block, *expected, pending.begun) {
            Ok(())
        } else {
            Err(format!("block {block} was found unequal to {expected}"))
        }
    }

    fn judge_control(
        &mut self,
        token: u64,
        pending: &Pending,
        result: Result<ControlReply, ControlError>,
    ) -> Result<(), String> {
        let when = self.when();
        let is_kept = self.is_expected_of(pending, &result)?;
        let volume = &mut self.volumes[pending.volume];
        match (&pending.kind, result) {
            (Kind::Create, Ok(ControlReply::Volume(status))) => {
                volume.life = Life::Present;
                volume.handle = Some(status.handle);
                Ok(())
            }
            (Kind::Delete, Ok(ControlReply::Done)) => {
                volume.vanish();
                Ok(())
            }
            (Kind::Resize { blocks, .. }, Ok(ControlReply::Volume(_))) => {
                volume.set_size(*blocks, when);
                Ok(())
            }
            (Kind::Resize { zeroed, .. }, Err(_)) => {
                volume.end(zeroed, token, Outcome::Failed, when);
                if is_kept {
                    volume.resize = None;
                }
                Ok(())
            }
            (Kind::Create | Kind::Delete, Err(_)) => Ok(()),
            // The part of the table that may have the volume cannot be read: it is looked for
            // after the next boot.
            (Kind::Open, Err(ControlError::Pool(ExtentError::MetadataDamaged { .. }))) => Ok(()),
            (Kind::Open, Ok(ControlReply::Volume(status))) => self.found(pending.volume, &status),
            (Kind::Open, Err(ControlError::UnknownVolume { .. })) => match volume.life {
                Life::Present => Err("the volume is lost".to_owned()),
                Life::Absent | Life::Creating | Life::Deleting => {
                    volume.vanish();
                    Ok(())
                }
            },
            (_, other) => Err(format!("unexpected answer {other:?}")),
        }
    }

    /// Whether a control request that failed has certainly changed nothing; an error when it had
    /// no reason to fail.
    fn is_expected_of(
        &mut self,
        pending: &Pending,
        result: &Result<ControlReply, ControlError>,
    ) -> Result<bool, String> {
        let Err(error) = result else {
            return Ok(false);
        };
        match error {
            ControlError::UnknownVolume { .. } if matches!(pending.kind, Kind::Open) => Ok(true),
            ControlError::Pool(ExtentError::TrimPending { .. })
                if matches!(pending.kind, Kind::Resize { .. }) =>
            {
                Ok(true)
            }
            ControlError::Io(_) | ControlError::Pool(_) if self.boot.harm == Harm::Failure => {
                self.boot.is_spoilt = true;
                Ok(false)
            }
            _ => Err(format!("failed without a reason: {error}")),
        }
    }

    /// A volume was found after a boot.
    fn found(&mut self, index: usize, status: &VolumeStatus) -> Result<(), String> {
        let when = self.when();
        let volume = &mut self.volumes[index];
        if volume.life == Life::Absent {
            return Err("a deleted volume is back".to_owned());
        }
        volume.life = Life::Present;
        // Only what is found right after a power cut is on the media.
        let settles = volume.handle.replace(status.handle).is_none();
        let info = &status.info;
        let sizes = [Some(volume.blocks.len()), volume.resize];
        let mut sizes = sizes.into_iter().flatten();
        let size = sizes.find(|size| volume.bytes(*size) == info.size_bytes);
        let Some(size) = size else {
            return Err(format!("the volume has {} bytes", info.size_bytes));
        };
        volume.set_size(size, when);
        volume.forget_requests();
        self.read_all(index, settles)
    }
}

impl BlockHistory {
    /// The block holds `value`, and nothing will bring anything else back.
    fn found(&mut self, value: u64, now: u64) {
        *self = Self::settled(value, now);
    }
}
