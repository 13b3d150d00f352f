//! Bit fields of registers and command words.

/// The byte whose lowest bit is bit `low` of `value`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the bits above the field are meant to be dropped"
)]
pub(crate) const fn byte_at(value: u64, low: u32) -> u8 {
    (value >> low) as u8
}

/// The 16-bit word whose lowest bit is bit `low` of `value`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the bits above the field are meant to be dropped"
)]
pub(crate) const fn word_at(value: u64, low: u32) -> u16 {
    (value >> low) as u16
}

/// The 32-bit word whose lowest bit is bit `low` of `value`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the bits above the field are meant to be dropped"
)]
pub(crate) const fn dword_at(value: u64, low: u32) -> u32 {
    (value >> low) as u32
}

/// The field of `width` bits (at most 8) whose lowest bit is bit `low` of `value`.
pub(crate) const fn field(value: u64, low: u32, width: u32) -> u8 {
    byte_at(value, low) & byte_at((1 << width) - 1, 0)
}

/// Whether bit `index` of `value` is set.
pub(crate) const fn bit(value: u64, index: u32) -> bool {
    (value >> index) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_where_they_lie() {
        assert_eq!(byte_at(0x1234_5678, 8), 0x56);
        assert_eq!(word_at(0x1234_5678, 16), 0x1234);
        assert_eq!(dword_at(0x1122_3344_5566_7788, 32), 0x1122_3344);
        assert_eq!(field(0b1011_0100, 2, 3), 0b101);
        assert_eq!(field(0xABCD, 8, 8), 0xAB);
        assert!(bit(1 << 63, 63) && !bit(1 << 63, 62));
    }
}
