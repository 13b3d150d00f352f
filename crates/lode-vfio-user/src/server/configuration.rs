//! The configuration space that the controller is shown with (PCI Local Bus 3.0 §6), and the BAR
//! of its interrupt table.

/// The bytes of the two regions.
#[derive(Debug)]
pub(super) struct Configuration {
    space: [u8; SPACE_BYTES],
    /// Which bits the client may change.
    writable: [u8; SPACE_BYTES],
    /// MSI-X table and pending bits: kept for clients that look there, without effect.
    table: Vec<u8>,
}

impl Configuration {
    /// For a controller with `vector_count` vectors behind a BAR 0 of `region_bytes`.
    pub(super) fn new(vector_count: u16, region_bytes: u64) -> Self {
        let table_bytes = (usize::from(vector_count) * VECTOR_BYTES).next_multiple_of(PAGE_BYTES);
        let table = vec![0; (table_bytes + PAGE_BYTES).next_power_of_two()];
        let mut this = Self {
            space: [0; SPACE_BYTES],
            writable: [0; SPACE_BYTES],
            table,
        };
        let size = |bytes: u64| bytes.wrapping_neg().to_le_bytes();
        this.put(0x00, &VENDOR_AND_DEVICE);
        this.put(0x06, &STATUS_HAS_CAPABILITIES);
        this.put(0x08, &[1, 0x02, 0x08, 0x01]);
        this.put(0x10, &[BAR_64_BITS]);
        this.put(0x2C, &VENDOR_AND_DEVICE);
        this.put(0x34, &[MSIX_AT]);
        let last = vector_count.saturating_sub(1).to_le_bytes();
        let [p0, p1, p2, p3, ..] = (table_bytes as u64).to_le_bytes();
        this.put(usize::from(MSIX_AT), &[0x11, 0, last[0], last[1]]);
        this.put(usize::from(MSIX_AT) + 4, &[TABLE_BAR, 0, 0, 0]);
        this.put(usize::from(MSIX_AT) + 8, &[p0 | TABLE_BAR, p1, p2, p3]);
        this.allow(0x04, &COMMAND_BITS);
        this.allow(0x0C, &[0xFF]);
        this.allow(0x10, &size(region_bytes));
        this.allow(0x20, &size(this.table.len() as u64)[..4]);
        this.allow(0x3C, &[0xFF]);
        this.allow(usize::from(MSIX_AT) + 3, &[MSIX_ENABLE_AND_MASK]);
        this
    }

    /// The length of the configuration space.
    pub(super) const fn space_bytes(&self) -> u64 {
        SPACE_BYTES as u64
    }

    /// The length of BAR 4.
    pub(super) const fn table_bytes(&self) -> u64 {
        self.table.len() as u64
    }

    /// The configuration space.
    pub(super) const fn space(&self) -> &[u8] {
        &self.space
    }

    /// BAR 4.
    pub(super) fn table(&self) -> &[u8] {
        &self.table
    }

    /// BAR 4, for writing.
    pub(super) fn table_mut(&mut self) -> &mut [u8] {
        &mut self.table
    }

    /// Writes what may be written; false when the range lies outside.
    pub(super) fn write_space(&mut self, offset: usize, data: &[u8]) -> bool {
        let range = offset..offset.saturating_add(data.len());
        let (Some(space), Some(writable)) =
            (self.space.get_mut(range.clone()), self.writable.get(range))
        else {
            return false;
        };
        for ((held, mask), byte) in space.iter_mut().zip(writable).zip(data) {
            *held = (*held & !mask) | (byte & mask);
        }
        true
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self.space[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, offset: usize, bits: &[u8]) {
        self.writable[offset..offset + bits.len()].copy_from_slice(bits);
    }
}

const SPACE_BYTES: usize = 256;
const PAGE_BYTES: usize = 4096;
const VECTOR_BYTES: usize = 16;
/// Numbers of no vendor: this controller is in no list of quirks.
const VENDOR_AND_DEVICE: [u8; 4] = [0x4C, 0x4F, 0x01, 0x00];
const STATUS_HAS_CAPABILITIES: [u8; 2] = [0x10, 0];
const BAR_64_BITS: u8 = 0x04;
const MSIX_AT: u8 = 0x40;
const TABLE_BAR: u8 = 4;
const MSIX_ENABLE_AND_MASK: u8 = 0xC0;
/// I/O, memory, bus master; interrupt disable.
const COMMAND_BITS: [u8; 2] = [0x07, 0x04];

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration() -> Configuration {
        Configuration::new(65, 0x2000)
    }

    #[test]
    fn it_shows_an_nvme_controller_with_its_vectors_in_bar_4() {
        let shown = configuration();
        assert_eq!(shown.space()[9..12], [0x02, 0x08, 0x01]);
        let at = usize::from(shown.space()[0x34]);
        assert_eq!(shown.space()[at], 0x11);
        assert_eq!(shown.space()[at + 2..at + 4], [64, 0]);
        assert_eq!(shown.space()[at + 4] & 7, 4);
        assert_eq!(shown.table_bytes(), 0x2000);
    }

    #[test]
    fn only_writable_bits_change() {
        let mut shown = configuration();
        assert!(shown.write_space(0, &[0xFF; SPACE_BYTES]));
        assert_eq!(shown.space()[..4], VENDOR_AND_DEVICE);
        assert_eq!(shown.space()[4..6], COMMAND_BITS);
        // What all ones leave in a BAR is its size.
        assert_eq!(shown.space()[0x10..0x14], [0x04, 0xE0, 0xFF, 0xFF]);
        assert!(!shown.write_space(SPACE_BYTES - 1, &[0; 2]));
        assert!(!shown.write_space(usize::MAX, &[0; 2]));
    }
}
