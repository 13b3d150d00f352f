//! Why the gateway did not take something.

/// Why a request was refused before it reached the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefuseReason {
    /// As many requests are under way as the core has room for; try again later.
    #[error("the core has {requests_max} requests under way, its limit")]
    Full {
        /// The limit.
        requests_max: usize,
    },
    /// The core is stopping and takes no more.
    #[error("the core is stopping")]
    Stopping,
}

/// Why there will be no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// No buffer of the core is as long.
    #[error("{length_bytes} bytes exceed the longest buffer of {length_max_bytes}")]
    TooLong {
        /// What was asked for.
        length_bytes: usize,
        /// The longest there is.
        length_max_bytes: usize,
    },
    /// As many wait for a buffer as may; try again later.
    #[error("{waiting_max} wait for a buffer already")]
    TooManyWaiting {
        /// The limit.
        waiting_max: usize,
    },
}
