//! Bounds of the API that are not bounds of storage, and the message that advertises all.

use lode_units::{BlockSize, limits};

use crate::v1::Limits;

/// The largest gRPC message that either side decodes, in bytes: twice the longest data, so that a
/// request that is somewhat too long is still read and refused under its own name.
pub const MESSAGE_LENGTH_MAX_BYTES: usize = 2 * IO_LENGTH_MAX_BYTES + (64 << 10);

/// The longest single read or write, in bytes.
pub const IO_LENGTH_MAX_BYTES: usize = 1 << 20;

/// The most items on one page of a listing.
pub const PAGE_SIZE_MAX: u32 = 1000;

const _: () = assert!(IO_LENGTH_MAX_BYTES as u64 == limits::IO_LENGTH_MAX_BYTES);

impl Limits {
    /// The bounds that this build was made with.
    ///
    /// # Panics
    /// Never: the bounds are constants that fit their fields.
    #[must_use]
    pub fn of_this_build() -> Self {
        Self {
            io_length_max_bytes: limits::IO_LENGTH_MAX_BYTES,
            range_length_max_bytes: limits::RANGE_LENGTH_MAX_BYTES,
            message_length_max_bytes: MESSAGE_LENGTH_MAX_BYTES as u64,
            stream_credits_max: small(limits::STREAM_REQUESTS_MAX),
            name_length_max_bytes: small(limits::NAME_LENGTH_MAX_BYTES),
            request_id_length_max_bytes: small(limits::REQUEST_ID_LENGTH_MAX_BYTES),
            volume_size_max_bytes: limits::VOLUME_SIZE_MAX_BYTES,
            block_sizes_bytes: vec![BlockSize::B512.bytes(), BlockSize::B4096.bytes()],
            pool_devices_max: small(limits::POOL_DEVICES_MAX),
            page_size_max: PAGE_SIZE_MAX,
            compare_length_max_bytes: limits::COMPARE_LENGTH_MAX_BYTES,
        }
    }
}

fn small(bound: usize) -> u32 {
    u32::try_from(bound).expect("a bound that fits 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advertised_limits_hold_the_longest_requests() {
        let limits = Limits::of_this_build();
        assert!(limits.message_length_max_bytes > 2 * limits.io_length_max_bytes);
        assert!(2 * limits.compare_length_max_bytes <= limits.io_length_max_bytes);
        assert_eq!(limits.block_sizes_bytes, [512, 4096]);
        assert_eq!(limits.stream_credits_max, 256);
    }
}
