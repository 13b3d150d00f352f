//! Waiting for a condition that nobody signals, with a deadline.

use std::fmt;
use std::time::Duration;

use lode_units::{Clock, MonotonicClock};

/// How long between two looks.
const INTERVAL: Duration = Duration::from_millis(2);

/// The condition did not come true in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// How long was waited.
    pub limit: Duration,
}

impl fmt::Display for Timeout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "nothing happened within {:?}", self.limit)
    }
}

/// Looks until `look` finds something, for `limit` at most. Blocks the thread.
///
/// # Errors
/// [`Timeout`] when nothing was found.
#[expect(
    clippy::disallowed_methods,
    reason = "a file or a process' end signals nobody; the loop has a deadline"
)]
pub fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T, Timeout> {
    let clock = MonotonicClock::new();
    let end = clock.now() + limit;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if clock.now() >= end {
            return Err(Timeout { limit });
        }
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_was_found_or_at_its_limit() {
        let mut looks = 0;
        let found = until(Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some("x")
        });
        assert_eq!(found, Ok("x"));
        let limit = Duration::from_millis(1);
        assert_eq!(until(limit, || None::<()>), Err(Timeout { limit }));
    }
}
