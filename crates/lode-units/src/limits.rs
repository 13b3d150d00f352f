//! The bounds of everything that is counted, and the relations between them.

/// The smallest unit of pool space, in bytes: every extent is a whole number of these.
pub const ALLOCATION_UNIT_BYTES: u64 = 4096;

/// The longest single read or write that a client may ask for, in bytes.
pub const IO_LENGTH_MAX_BYTES: u64 = 1 << 20;

/// The longest compare-and-write that a client may ask for, in bytes: what is compared and what is
/// written share one buffer.
pub const COMPARE_LENGTH_MAX_BYTES: u64 = IO_LENGTH_MAX_BYTES / 2;

/// The longest discard or write-zeroes that one request may cover, in bytes (1 TiB).
pub const RANGE_LENGTH_MAX_BYTES: u64 = 1 << 40;

/// The largest volume, in bytes (64 TiB).
pub const VOLUME_SIZE_MAX_BYTES: u64 = 1 << 46;

/// The longest name of a pool or volume, in bytes of UTF-8.
pub const NAME_LENGTH_MAX_BYTES: usize = 255;

/// The longest request id of a retried mutation, in bytes of UTF-8.
pub const REQUEST_ID_LENGTH_MAX_BYTES: usize = 64;

/// The most devices that one pool may span.
pub const POOL_DEVICES_MAX: usize = 16;

/// The most requests that one core has in flight across all clients.
pub const CORE_REQUESTS_MAX: usize = 4096;

/// The most cores of one daemon.
pub const CORES_MAX: usize = 64;

/// The most requests that one stream may have in flight: the credits it starts with.
pub const STREAM_REQUESTS_MAX: usize = 256;

const _: () = assert!(COMPARE_LENGTH_MAX_BYTES.is_multiple_of(ALLOCATION_UNIT_BYTES));
const _: () = assert!(IO_LENGTH_MAX_BYTES.is_multiple_of(ALLOCATION_UNIT_BYTES));
const _: () = assert!(IO_LENGTH_MAX_BYTES <= RANGE_LENGTH_MAX_BYTES);
const _: () = assert!(RANGE_LENGTH_MAX_BYTES <= VOLUME_SIZE_MAX_BYTES);
const _: () = assert!(STREAM_REQUESTS_MAX <= CORE_REQUESTS_MAX);
const _: () = assert!(CORE_REQUESTS_MAX <= 1 << 16, "a slot index fits 16 bits");
const _: () = assert!(CORES_MAX <= 64, "a set of cores fits 64 bits");
