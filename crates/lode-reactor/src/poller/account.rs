//! Where a core's time goes.

use std::sync::Arc;
use std::time::Duration;

use lode_units::Instant;

use crate::stats::CoreStats;

/// Attributes the time between two turns to the first of them: that includes the tasks which ran
/// in between, and those of a useful turn ran because of it.
pub(super) struct Account {
    stats: Arc<CoreStats>,
    last: Instant,
    was_useful: bool,
}

impl Account {
    pub(super) fn new(stats: Arc<CoreStats>, now: Instant) -> Self {
        Self {
            stats,
            last: now,
            was_useful: false,
        }
    }

    /// A turn began at `now` and was useful or not.
    pub(super) fn turn(&mut self, now: Instant, is_useful: bool) {
        self.close(now);
        self.was_useful = is_useful;
        self.stats.polls.increment();
        self.stats.polls_useful.add(u64::from(is_useful));
    }

    /// The poller slept.
    pub(super) fn slept(&mut self, from: Instant, until: Instant) {
        self.close(from);
        self.stats.asleep_nanoseconds.add(between(from, until));
        self.last = until;
        self.was_useful = false;
    }

    fn close(&mut self, now: Instant) {
        let span = between(self.last, now);
        if self.was_useful {
            self.stats.busy_nanoseconds.add(span);
        } else {
            self.stats.idle_nanoseconds.add(span);
        }
        self.last = now;
    }
}

fn between(from: Instant, until: Instant) -> u64 {
    let span: Duration = until.saturating_duration_since(from);
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_idle_and_asleep_time_add_up_to_the_time_passed() {
        let stats = Arc::new(CoreStats::default());
        let at = Instant::from_nanos;
        let mut account = Account::new(Arc::clone(&stats), at(100));
        account.turn(at(110), true);
        account.turn(at(150), false);
        account.slept(at(155), at(400));
        account.turn(at(402), true);
        account.turn(at(500), false);
        assert_eq!(stats.idle_nanoseconds.read(), 10 + 5 + 2);
        assert_eq!(stats.busy_nanoseconds.read(), 40 + 98);
        assert_eq!(stats.asleep_nanoseconds.read(), 245);
        assert_eq!(stats.polls.read(), 4);
        assert_eq!(stats.polls_useful.read(), 2);
    }
}
