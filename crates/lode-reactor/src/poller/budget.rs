//! How long a core polls in vain before it sleeps.

use std::time::Duration;

/// The time for which polling in vain is expected to pay.
///
/// A wake-up costs some tens of microseconds. A sleep that ends sooner than that was a loss, so
/// that the next one begins later; one that outlasts the polling before it would have paid
/// earlier, so that the next one does begin earlier. Between the two nothing is learned.
#[derive(Debug)]
pub(super) struct Budget {
    least: Duration,
    most: Duration,
    present: Duration,
}

impl Budget {
    /// Begins with `least`, below which it never falls.
    pub(super) fn new(least: Duration) -> Self {
        Self {
            least,
            most: least.max(BUDGET_MAX),
            present: least,
        }
    }

    /// How long to poll in vain before the next sleep.
    pub(super) const fn present(&self) -> Duration {
        self.present
    }

    /// A sleep has ended after `span`.
    pub(super) fn slept(&mut self, span: Duration) {
        let wanted = match span {
            short if short < SLEEP_PAYS => self.present.saturating_mul(2),
            long if long > self.present => self.present / 2,
            _ => return,
        };
        self.present = wanted.clamp(self.least, self.most);
    }
}

/// Polling longer than this for the sake of one completion is never worth it.
const BUDGET_MAX: Duration = Duration::from_millis(1);
/// What a wake-up costs at the most, on a machine with processors to spare.
const SLEEP_PAYS: Duration = Duration::from_micros(100);

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn short_sleeps_make_the_core_poll_longer_and_long_ones_take_it_back() {
        let mut budget = Budget::new(micros(200));
        let mut seen = Vec::new();
        for span in [50, 50, 50, 50, 500, 5000, 5000, 5000, 5000] {
            budget.slept(micros(span));
            seen.push(budget.present().as_micros());
        }
        assert_eq!(seen, [400, 800, 1000, 1000, 1000, 500, 250, 200, 200]);
    }

    #[test]
    fn a_budget_that_is_asked_for_is_kept_to_however_long_or_short() {
        let mut patient = Budget::new(Duration::from_secs(1));
        patient.slept(micros(1));
        assert_eq!(patient.present(), Duration::from_secs(1));
        let mut hasty = Budget::new(Duration::ZERO);
        hasty.slept(micros(1));
        assert_eq!(hasty.present(), Duration::ZERO);
    }
}
