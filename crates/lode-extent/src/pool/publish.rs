//! Writing a superblock: everything before it on the medium, then its copies, then those too.
//!
//! ```text
//! FlushBefore ──► Copies ──► FlushAfter ──► published
//! ```

use crate::error::{ExtentError, IoFailure, IoOperation};
use crate::format::geometry::SUPERBLOCK_SLOTS;
use crate::format::superblock::{Superblock, copies};
use crate::io_queue::{InFlight, Purpose};
use crate::pool::{Pool, device_index};

/// What happens once a superblock is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishReason {
    /// A new pool is ready.
    Format,
    /// An imported pool is ready.
    Start,
    /// A checkpoint is complete.
    Checkpoint,
    /// The pool is closed.
    Export,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    FlushBefore,
    Copies,
    FlushAfter,
}

/// A superblock on its way.
#[derive(Debug)]
pub(crate) struct Publish {
    reason: PublishReason,
    step: Step,
    superblock: Superblock,
    outstanding: usize,
    /// Copies that were written, by the caller's position of the device.
    written: Vec<u32>,
    failed: u64,
}

impl Pool {
    /// Begins to make `superblock` the pool's newest: it gets the next sequence number.
    pub(super) fn begin_publish(&mut self, mut superblock: Superblock, reason: PublishReason) {
        assert!(self.publish.is_none(), "one superblock at a time");
        let core = self.core_mut();
        superblock.sequence = core.superblock.sequence + 1;
        // What has come into use since the superblock was drafted is in the journal already.
        superblock.features_incompat |= core.superblock.features_incompat;
        core.superblock = superblock.clone();
        let mut outstanding = 0;
        if !self.is_publish_early() {
            outstanding = self.io.flush_caches(&self.devices, Purpose::PublishFlush);
        }
        self.publish = Some(Publish {
            reason,
            step: Step::FlushBefore,
            superblock,
            outstanding,
            written: vec![0; self.devices.len()],
            failed: 0,
        });
        self.advance_publish();
    }

    pub(super) fn publish_flushed(&mut self, io: InFlight, outcome: Result<(), IoFailure>) {
        if let Err(failure) = outcome {
            self.fail_io(io, failure);
        }
        self.publish_ended();
    }

    pub(super) fn publish_copied(&mut self, io: InFlight, outcome: Result<(), IoFailure>) {
        let Some(publish) = self.publish.as_mut() else {
            return;
        };
        match outcome {
            Ok(()) => publish.written[io.device] += 1,
            Err(_failure) => publish.failed += 1,
        }
        self.publish_ended();
    }

    fn publish_ended(&mut self) {
        if let Some(publish) = self.publish.as_mut() {
            publish.outstanding -= 1;
            self.advance_publish();
        }
    }

    fn advance_publish(&mut self) {
        while let Some(publish) = self.publish.as_mut()
            && publish.outstanding == 0
            && !matches!(self.state, crate::volume::PoolState::Failed(_))
        {
            match publish.step {
                Step::FlushBefore => {
                    publish.step = Step::Copies;
                    self.write_copies();
                }
                Step::Copies => {
                    publish.step = Step::FlushAfter;
                    self.settle_copies();
                }
                Step::FlushAfter => {
                    let reason = publish.reason;
                    self.publish = None;
                    self.published(reason);
                    return;
                }
            }
        }
    }

    fn write_copies(&mut self) {
        let publish = self.publish.as_mut().expect("a superblock is on its way");
        let mut superblock = publish.superblock.clone();
        let (sequence, mut asked) = (superblock.sequence, 0);
        for (index, &position) in (0..).zip(&self.caller_position) {
            superblock.device_index = index;
            let blocks = superblock.devices[usize::from(index)].blocks;
            let device = self.devices[position];
            let force_unit_access = device.has_volatile_cache && device.supports_fua;
            // A new pool fills both slots, so that no copy of an older pool is left.
            let slots = match publish.reason {
                PublishReason::Format => SUPERBLOCK_SLOTS,
                PublishReason::Start | PublishReason::Checkpoint | PublishReason::Export => 1,
            };
            for address in (sequence..sequence + slots).flat_map(|slot| copies(blocks, slot)) {
                let data: Box<[u8]> = superblock.encode(address);
                let purpose = Purpose::PublishCopy;
                self.io
                    .write(position, address, data, force_unit_access, purpose);
                asked += 1;
            }
        }
        publish.outstanding = asked;
    }

    /// All copies have ended: one on each device is enough, the device's other one may be bad.
    fn settle_copies(&mut self) {
        let publish = self.publish.as_mut().expect("a superblock is on its way");
        if let Some(position) = publish.written.iter().position(|&copies| copies == 0) {
            let block = publish.superblock.sequence % SUPERBLOCK_SLOTS;
            self.fail(ExtentError::Io {
                operation: IoOperation::Write,
                device: device_index(position),
                block,
                source: IoFailure::Media,
            });
            return;
        }
        self.counters.superblock_copies_failed += publish.failed;
        for (position, device) in self.devices.iter().enumerate() {
            if device.has_volatile_cache && !device.supports_fua {
                self.io.flush(position, Purpose::PublishFlush);
                publish.outstanding += 1;
            }
        }
    }

    fn published(&mut self, reason: PublishReason) {
        match reason {
            PublishReason::Format | PublishReason::Start => self.started(),
            PublishReason::Checkpoint => self.checkpoint_published(),
            PublishReason::Export => self.exported(),
        }
    }
}
