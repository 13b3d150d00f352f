//! How a core ended.

use std::any::Any;

/// How a core ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreExit {
    /// Everything under way had ended.
    Stopped,
    /// The grace was over before everything under way had ended.
    GraceOver {
        /// Requests at the gateway that were not answered.
        requests: usize,
        /// What the host still had in flight.
        in_flight: usize,
    },
    /// The host, the poller or a call panicked: the shard is lost.
    Panicked {
        /// The panic's message.
        message: String,
    },
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
