//! The figures of a volume, on one core.

use std::sync::Arc;

use lode_stats::{Counter, Histogram};

use super::route;
use crate::classify::{REASON_NAMES, Reasons};
use crate::request::DataOperation;
use crate::throttle::Throttle;

/// The names of the operations, in the order of [`VolumeStats::operations`].
pub const OPERATION_NAMES: [&str; 6] = [
    "read",
    "write",
    "compare_and_write",
    "write_zeroes",
    "discard",
    "flush",
];

/// The figures of one volume.
#[derive(Debug)]
pub struct VolumeStats {
    /// The pool's name.
    pub pool: String,
    /// The volume's name.
    pub volume: String,
    /// By operation, in the order of [`OPERATION_NAMES`].
    pub operations: [OperationStats; OPERATION_NAMES.len()],
    /// Requests completed on the poller that found them done.
    pub completions_inline: Counter,
    /// Requests completed by the deferred stage, in the order of [`REASON_NAMES`].
    pub completions_deferred: [Counter; REASON_NAMES.len()],
    /// Write commands forced to the media.
    pub write_through_commands: Counter,
    /// Flush commands of the groups that a request of this volume opened: over all volumes they
    /// add up to those of the shard.
    pub flushes: Counter,
    /// Requests that waited for a flush group, whoever opened it.
    pub flush_waiters: Counter,
    /// How long those waited that the volume's limits kept waiting; each is one of them.
    pub throttle_wait: Histogram,
    throttle: Arc<Throttle>,
}

/// The figures of one operation on one volume.
#[derive(Debug, Default)]
pub struct OperationStats {
    /// From submission to completion.
    pub latency: Histogram,
    /// Bytes of those that succeeded.
    pub bytes: Counter,
    /// Those that failed.
    pub errors: Counter,
}

impl VolumeStats {
    /// No figures yet, for a volume whose limits `throttle` carries out.
    #[must_use]
    pub fn new(pool: &str, volume: &str, throttle: Arc<Throttle>) -> Self {
        Self {
            pool: pool.to_owned(),
            volume: volume.to_owned(),
            operations: std::array::from_fn(|_| OperationStats::default()),
            completions_inline: Counter::new(),
            completions_deferred: [const { Counter::new() }; REASON_NAMES.len()],
            write_through_commands: Counter::new(),
            flushes: Counter::new(),
            flush_waiters: Counter::new(),
            throttle_wait: Histogram::new(),
            throttle,
        }
    }

    /// The volume's limits as they are carried out.
    #[must_use]
    pub const fn throttle(&self) -> &Arc<Throttle> {
        &self.throttle
    }

    /// Records the end of a request and its route.
    #[inline]
    pub(crate) fn record(
        &self,
        operation: DataOperation,
        latency_nanoseconds: u64,
        length_bytes: u64,
        succeeded: bool,
        reasons: Reasons,
    ) {
        route(
            &self.completions_inline,
            &self.completions_deferred,
            reasons,
        )
        .increment();
        let figures = &self.operations[position(operation)];
        figures.latency.record_nanoseconds(latency_nanoseconds);
        if succeeded {
            figures.bytes.add(length_bytes);
        } else {
            figures.errors.increment();
        }
    }
}

const fn position(operation: DataOperation) -> usize {
    match operation {
        DataOperation::Read => 0,
        DataOperation::Write => 1,
        DataOperation::CompareAndWrite => 2,
        DataOperation::WriteZeroes => 3,
        DataOperation::Discard => 4,
        DataOperation::Flush => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_figures_of_its_own() {
        let stats = VolumeStats::new("pool", "volume", Arc::default());
        stats.record(DataOperation::Flush, 1000, 0, true, Reasons::FLUSH);
        stats.record(DataOperation::Read, 1000, 4096, true, Reasons::empty());
        stats.record(DataOperation::Read, 1000, 4096, false, Reasons::ERROR);
        assert_eq!(stats.operations[0].bytes.read(), 4096);
        assert_eq!(stats.operations[0].errors.read(), 1);
        assert_eq!(stats.operations[5].latency.snapshot().count(), 1);
        assert_eq!(stats.completions_inline.read(), 1);
        let deferred = stats.completions_deferred.iter().map(Counter::read);
        assert_eq!(deferred.sum::<u64>(), 2);
    }
}
