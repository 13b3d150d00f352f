//! The address spaces and identifiers of a pool.

use std::fmt;

use crate::error::ExtentError;
use lode_units::limits::REQUEST_ID_LENGTH_MAX_BYTES;

/// Defines a transparent 64-bit identifier or address.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw value.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The raw value.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }
    };
}

word! {
    /// A 4 KiB block of the pool: the pool's devices laid end to end, in pool order.
    PoolBlock
}
word! {
    /// A 4 KiB unit of a volume, counted from its start.
    LogicalBlock
}
word! {
    /// A volume of a pool. Never used again after the volume is deleted.
    VolumeId
}
word! {
    /// A recorded change, counted from the pool's creation: a change survives a power cut once
    /// [`Pool::durable`](crate::Pool::durable) has reached its ticket.
    Ticket
}
word! {
    /// One outstanding metadata operation of one pool.
    IoId
}

impl PoolBlock {
    /// The block `count` further on.
    pub(crate) const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl LogicalBlock {
    /// The unit `count` further on.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// The name a client gives to one mutation, so that a retry of it is recognised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(String);

impl RequestId {
    /// A request id of 1 to [`REQUEST_ID_LENGTH_MAX_BYTES`] bytes of UTF-8.
    ///
    /// # Errors
    /// [`ExtentError::InvalidRequestId`] when it is empty or longer.
    pub fn new(text: &str) -> Result<Self, ExtentError> {
        if text.is_empty() || text.len() > REQUEST_ID_LENGTH_MAX_BYTES {
            return Err(ExtentError::InvalidRequestId {
                length_bytes: text.len(),
            });
        }
        Ok(Self(text.to_owned()))
    }

    /// The text as the client gave it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
