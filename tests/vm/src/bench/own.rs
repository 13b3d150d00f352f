//! Lodestore's driver under a closed loop, polled.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lode_block::{BlockDevice, Completion, Operation};
use lode_nvme::{QueueOptions, QueueStats};
use lode_units::{Clock, Random, SeededRandom};
use lode_vfio::PciAddress;

use super::turns::Sample;
use crate::rig::{Queue, Rig, request};

/// A queue pair of a controller behind VFIO.
pub(super) struct Own {
    rig: Rig,
    queue: Queue,
    completions: Vec<Completion>,
    blocks: u64,
}

impl Own {
    pub(super) fn start(address: PciAddress) -> Result<Self> {
        let mut rig = Rig::start(address)?;
        let queue = rig.queue(1, QueueOptions::default())?;
        let geometry = queue.geometry();
        ensure!(geometry.block_size.bytes() == 4096, "{geometry:?}");
        Ok(Self {
            blocks: geometry.block_count,
            rig,
            queue,
            completions: Vec::with_capacity(DEPTH_MAX),
        })
    }

    pub(super) fn uses_shadow_doorbells(&self) -> bool {
        self.rig
            .controller
            .identity()
            .is_some_and(|identity| identity.uses_shadow_doorbells)
    }

    /// Reads `operations` blocks at random places, `depth` at a time. One turn of the loop takes
    /// what has completed, and replaces it with one doorbell.
    pub(super) fn run(&mut self, depth: usize, operations: u64) -> Result<Sample> {
        ensure!(depth <= DEPTH_MAX, "a buffer for each read in flight");
        let mut random = SeededRandom::new(1);
        let before = self.queue.stats();
        let start = self.rig.clock.now();
        let (mut submitted, mut completed) = (0, 0);
        let mut waited = Duration::ZERO;
        for index in 0..depth {
            self.submit(index, random.below(self.blocks))?;
            submitted += 1;
        }
        self.queue.kick();
        let mut now = self.rig.clock.now();
        while completed < submitted {
            if self.queue.poll(now, &mut self.completions) == 0 {
                let next = self.rig.clock.now();
                waited += next.saturating_duration_since(now);
                now = next;
                continue;
            }
            while let Some(done) = self.completions.pop() {
                done.result?;
                completed += 1;
                if submitted < operations {
                    self.submit(usize::try_from(done.tag.0)?, random.below(self.blocks))?;
                    submitted += 1;
                }
            }
            self.queue.kick();
            now = self.rig.clock.now();
        }
        let elapsed = now.saturating_duration_since(start);
        // Once in a while the controller is looked at, as its owner would.
        self.rig.controller.poll(now);
        Ok(Sample {
            operations: submitted,
            elapsed,
            doorbells: doorbells(&self.queue.stats()) - doorbells(&before),
            waited,
        })
    }

    pub(super) fn close(self) -> Result<()> {
        drop(self.queue);
        self.rig.close()
    }

    #[inline]
    fn submit(&mut self, index: usize, lba: u64) -> Result<()> {
        let mut read = request(Operation::Read, (lba, 1), self.rig.span(index * 4096, 4096));
        read.tag.0 = index as u64;
        self.queue
            .submit(read)
            .map_err(|rejected| anyhow!("{:?}", rejected.reason))
    }
}

fn doorbells(stats: &QueueStats) -> u64 {
    stats.submission_doorbells + stats.completion_doorbells
}

const DEPTH_MAX: usize = 64;
const _: () = assert!(DEPTH_MAX * 4096 <= crate::rig::DATA_BYTES);
