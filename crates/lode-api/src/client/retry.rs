//! Retries of calls that are safe to repeat: bounded in number and in time.

use std::future::Future;
use std::time::Duration;

use lode_units::{Random, SystemRandom};

use super::failure::{ClientError, Failure};

/// How often and how fast a repeatable call is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How many tries in all, the first included; 1 means no retry.
    pub attempts_max: u32,
    /// The longest pause before the first retry; each later one may be twice as long.
    pub backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 4,
            backoff: Duration::from_millis(100),
        }
    }
}

impl RetryPolicy {
    /// Runs `attempt` until it succeeds, fails for good, or was tried often enough.
    pub(crate) async fn run<T, F, Fut>(&self, mut attempt: F) -> Result<T, ClientError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, tonic::Status>>,
    {
        let mut tried = 0;
        loop {
            let failure = match attempt().await {
                Ok(value) => return Ok(value),
                Err(status) => Failure::from(status),
            };
            tried += 1;
            if tried >= self.attempts_max || !failure.is_transient() {
                return Err(failure.into());
            }
            tokio::time::sleep(self.pause(tried)).await;
        }
    }

    /// A pause chosen at random up to the bound, so that clients that failed together do not
    /// come back together.
    fn pause(&self, tried: u32) -> Duration {
        let bound = self
            .backoff
            .saturating_mul(1_u32.checked_shl(tried - 1).unwrap_or(u32::MAX));
        let bound_ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(SystemRandom.below(bound_ns))
    }
}

/// A request id that no other client draws: 128 random bits as hexadecimal digits.
pub(crate) fn new_request_id() -> String {
    let mut random = SystemRandom;
    format!("{:016x}{:016x}", random.next_u64(), random.next_u64())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonic::Status;

    use super::*;
    use crate::v1::{ErrorDetail, ErrorReason};

    async fn tries(reason: ErrorReason, succeed_at: u32) -> (u32, bool) {
        let policy = RetryPolicy {
            attempts_max: 3,
            backoff: Duration::ZERO,
        };
        let count = Cell::new(0);
        let outcome = policy
            .run(|| async {
                count.set(count.get() + 1);
                if count.get() == succeed_at {
                    Ok::<_, Status>(())
                } else {
                    Err(ErrorDetail::new(reason).into_status("no"))
                }
            })
            .await;
        (count.get(), outcome.is_ok())
    }

    #[tokio::test]
    async fn a_transient_failure_is_retried_up_to_the_bound() {
        assert_eq!(tries(ErrorReason::DeviceReset, 2).await, (2, true));
        assert_eq!(tries(ErrorReason::DeviceReset, 9).await, (3, false));
    }

    #[tokio::test]
    async fn a_final_failure_is_not_retried() {
        assert_eq!(tries(ErrorReason::VolumeExists, 2).await, (1, false));
    }

    #[test]
    fn a_pause_stays_below_its_doubling_bound() {
        let policy = RetryPolicy {
            attempts_max: 9,
            backoff: Duration::from_millis(1),
        };
        for tried in 1..=8 {
            let bound = Duration::from_millis(1 << (tried - 1));
            assert!((0..50).all(|_| policy.pause(tried) < bound));
        }
    }

    #[test]
    fn request_ids_differ_and_keep_to_the_limit() {
        let first = new_request_id();
        assert_ne!(first, new_request_id());
        assert!(first.len() <= lode_units::limits::REQUEST_ID_LENGTH_MAX_BYTES);
    }
}
