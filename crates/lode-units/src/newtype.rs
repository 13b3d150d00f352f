//! One type for each address space, count and identifier.

use std::fmt;

/// Defines a transparent integer newtype with checked arithmetic left to the caller.
macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a raw value.
            #[must_use]
            pub const fn new(value: $inner) -> Self {
                Self(value)
            }

            /// The raw value.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

newtype! {
    /// A logical block address of a namespace, in that namespace's own blocks
    /// (NVM Command Set 1.0 §2.1.1).
    Lba(u64)
}
newtype! {
    /// A number of logical blocks, in the blocks of whatever device or volume it speaks of.
    BlockCount(u64)
}
newtype! {
    /// An I/O virtual address: what a controller puts on the bus. Never a pointer.
    Iova(u64)
}
newtype! {
    /// An NVMe queue identifier; 0 is the admin queue (NVMe Base 2.0 §3.3).
    QueueId(u16)
}
newtype! {
    /// An NVMe command identifier, unique among the outstanding commands of one submission
    /// queue (NVMe Base 2.0 §3.3.3.1).
    CommandId(u16)
}
newtype! {
    /// An NVMe namespace identifier; 0 and 0xFFFF_FFFF never name a single namespace
    /// (NVMe Base 2.0 §3.2.1.2).
    NamespaceId(u32)
}
newtype! {
    /// A core of this daemon, counted from 0 in the order of its configuration (not the
    /// operating system's processor number).
    CoreId(u16)
}
newtype! {
    /// A device of a pool, counted from 0 in the pool's own order.
    DeviceIndex(u16)
}

impl Lba {
    /// The address `count` blocks further on, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, count: BlockCount) -> Option<Self> {
        match self.0.checked_add(count.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Iova {
    /// The address `bytes` further on, or `None` past the end of the address space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl CoreId {
    /// The position in a table with one entry for each core.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl DeviceIndex {
    /// The position in a table with one entry for each device of the pool.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_sum_past_the_end_is_none() {
        assert_eq!(Lba::new(u64::MAX).checked_add(BlockCount::new(1)), None);
        assert_eq!(Iova::new(u64::MAX).checked_add(1), None);
        assert_eq!(
            Lba::new(7).checked_add(BlockCount::new(3)),
            Some(Lba::new(10))
        );
    }
}
