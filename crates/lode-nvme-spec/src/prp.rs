//! Physical region pages (Base 2.0 §4.1.1).

/// The size of one entry of a PRP list.
pub const ENTRY_BYTES: u32 = 8;

/// The smallest memory page of any controller (CAP.MPSMIN = 0): 4096 bytes.
pub const PAGE_SHIFT_MIN: u32 = 12;

/// The alignment that the first entry's offset must have.
pub const OFFSET_ALIGNMENT: u32 = 4;

/// How many entries one list page of `page_bytes` holds; where a list goes on in a further page
/// the last of them is the pointer to it.
#[must_use]
pub const fn entries_per_page(page_bytes: u32) -> u32 {
    page_bytes / ENTRY_BYTES
}
