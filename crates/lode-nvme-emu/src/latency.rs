//! How long commands take, in the time that is passed in.

use std::time::Duration;

use lode_nvme_spec::NvmOpcode;
use lode_units::{Instant, Random, SeededRandom};

/// A model of a device's speed. Each command of the NVM set is held back until its time has
/// come; data move when it is over, as the worst of real devices do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Every read, compare and verify takes at least this long.
    pub read: Duration,
    /// Every write, write-zeroes and deallocate takes at least this long.
    pub write: Duration,
    /// Every flush takes at least this long.
    pub flush: Duration,
    /// Up to this much more, drawn for each command.
    pub jitter: Duration,
    /// The data of all commands together move at most this fast; 0 is no limit.
    pub bytes_per_second: u64,
    /// Where the draws begin.
    pub seed: u64,
}

impl Latency {
    /// Commands complete at once.
    pub const NONE: Self = Self {
        read: Duration::ZERO,
        write: Duration::ZERO,
        flush: Duration::ZERO,
        jitter: Duration::ZERO,
        bytes_per_second: 0,
        seed: 0,
    };

    /// Every command takes `duration`.
    #[must_use]
    pub const fn fixed(duration: Duration) -> Self {
        Self {
            read: duration,
            write: duration,
            flush: duration,
            ..Self::NONE
        }
    }

    /// Whether any command is held back.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::NONE
            }
    }
}

/// The model at work: shared by all queues, since they share the device.
#[derive(Debug)]
pub(crate) struct LatencyModel {
    latency: Latency,
    random: SeededRandom,
    /// When the data path is free again.
    busy_until: Instant,
}

impl LatencyModel {
    pub(crate) const fn new(latency: Latency) -> Self {
        Self {
            latency,
            random: SeededRandom::new(latency.seed),
            busy_until: Instant::ZERO,
        }
    }

    /// When a command that came at `now` and moves `length` bytes is due.
    pub(crate) fn due(&mut self, opcode: NvmOpcode, length: u64, now: Instant) -> Instant {
        let own = match opcode {
            NvmOpcode::Read | NvmOpcode::Compare | NvmOpcode::Verify => self.latency.read,
            NvmOpcode::Flush => self.latency.flush,
            NvmOpcode::Write
            | NvmOpcode::WriteZeroes
            | NvmOpcode::DatasetManagement
            | NvmOpcode::WriteUncorrectable
            | NvmOpcode::Copy
            | NvmOpcode::Other(_) => self.latency.write,
        };
        let jitter_ns = u64::try_from(self.latency.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = match jitter_ns {
            0 => 0,
            bound => self.random.below(bound),
        };
        let start = self.transfer_end(length, now);
        start + own + Duration::from_nanos(jitter)
    }

    /// When the data have moved, one command after the other.
    fn transfer_end(&mut self, length: u64, now: Instant) -> Instant {
        if self.latency.bytes_per_second == 0 {
            return now;
        }
        let wide = u128::from(length) * 1_000_000_000 / u128::from(self.latency.bytes_per_second);
        let transfer = Duration::from_nanos(u64::try_from(wide).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(now) + transfer;
        self.busy_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_lines_commands_up_and_a_latency_does_not() {
        let mut model = LatencyModel::new(Latency {
            bytes_per_second: 1_000_000_000,
            ..Latency::fixed(Duration::from_nanos(100))
        });
        let first = model.due(NvmOpcode::Read, 1000, Instant::ZERO);
        let second = model.due(NvmOpcode::Read, 1000, Instant::ZERO);
        assert_eq!((first.as_nanos(), second.as_nanos()), (1100, 2100));
        let later = model.due(NvmOpcode::Flush, 0, Instant::from_nanos(10_000));
        assert_eq!(later.as_nanos(), 10_100);
    }

    #[test]
    fn jitter_repeats_with_its_seed_and_stays_below_its_bound() {
        let latency = Latency {
            jitter: Duration::from_nanos(50),
            seed: 7,
            ..Latency::NONE
        };
        let (mut first, mut second) = (LatencyModel::new(latency), LatencyModel::new(latency));
        for _ in 0..100 {
            let due = first.due(NvmOpcode::Write, 512, Instant::ZERO);
            assert_eq!(due, second.due(NvmOpcode::Write, 512, Instant::ZERO));
            assert!(due.as_nanos() < 50);
        }
    }
}
