//! A piece of DMA memory with one owner, and the plain address range that a command carries.

use lode_units::Iova;

use crate::memory::mapping::DmaMemory;

/// An address range as a device sees it: plain numbers, no ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaSpan {
    /// Where the range begins.
    pub iova: Iova,
    /// How long it is, in bytes.
    pub length_bytes: u32,
}

impl DmaSpan {
    /// The span of a command that moves no data.
    pub const EMPTY: Self = Self {
        iova: Iova::new(0),
        length_bytes: 0,
    };

    /// The part of `length_bytes` bytes that begins `offset` bytes in.
    ///
    /// # Panics
    /// When the part does not lie inside the span.
    #[inline]
    #[must_use]
    pub const fn part(self, offset: u32, length_bytes: u32) -> Self {
        let end = offset as u64 + length_bytes as u64;
        assert!(
            end <= self.length_bytes as u64,
            "a part lies inside its span"
        );
        Self {
            iova: Iova::new(self.iova.get() + offset as u64),
            length_bytes,
        }
    }
}

/// A piece of DMA memory with one owner: the unit that buffer pools lend and requests carry.
///
/// Whoever holds it may copy in and out. While a command that names its span is in flight, the
/// holder keeps it and leaves it alone.
#[derive(Debug)]
pub struct DmaBuffer {
    memory: DmaMemory,
    offset: usize,
    length_bytes: usize,
}

impl DmaBuffer {
    /// Cuts `memory` into as many buffers of `length_bytes` as fit.
    ///
    /// # Panics
    /// When `length_bytes` is 0 or exceeds `u32::MAX`.
    #[must_use]
    pub fn cut(memory: &DmaMemory, length_bytes: usize) -> Vec<Self> {
        assert!(
            length_bytes > 0 && u32::try_from(length_bytes).is_ok(),
            "a buffer's length"
        );
        (0..memory.length_bytes() / length_bytes)
            .map(|index| Self {
                memory: memory.clone(),
                offset: index * length_bytes,
                length_bytes,
            })
            .collect()
    }

    /// The whole buffer as a device sees it.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "cut() bounds the length by u32::MAX, and an offset lies inside the memory"
    )]
    #[inline]
    pub fn span(&self) -> DmaSpan {
        DmaSpan {
            iova: Iova::new(self.memory.iova().get() + self.offset as u64),
            length_bytes: self.length_bytes as u32,
        }
    }

    /// The length in bytes.
    #[inline]
    #[must_use]
    pub const fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Copies `source` in at `offset`.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn copy_from_slice(&self, offset: usize, source: &[u8]) {
        self.check(offset, source.len());
        self.memory.copy_from_slice(self.offset + offset, source);
    }

    /// Copies out from `offset` until `target` is full.
    ///
    /// # Panics
    /// When the buffer ends first.
    pub fn copy_to_slice(&self, offset: usize, target: &mut [u8]) {
        self.check(offset, target.len());
        self.memory.copy_to_slice(self.offset + offset, target);
    }

    /// Copies out `length_bytes` from `offset` to the end of `target`, growing it.
    ///
    /// # Panics
    /// When the buffer ends first.
    pub fn append_to(&self, offset: usize, length_bytes: usize, target: &mut Vec<u8>) {
        self.check(offset, length_bytes);
        self.memory
            .append_to(self.offset + offset, length_bytes, target);
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// When the range does not lie inside the buffer.
    pub fn fill_zero(&self, offset: usize, length_bytes: usize) {
        self.check(offset, length_bytes);
        self.memory.fill_zero(self.offset + offset, length_bytes);
    }

    /// Whether the bytes from `offset` equal `expected`.
    ///
    /// # Panics
    /// When the range does not lie inside the buffer.
    #[must_use]
    pub fn equals(&self, offset: usize, expected: &[u8]) -> bool {
        self.check(offset, expected.len());
        self.memory.equals(self.offset + offset, expected)
    }

    fn check(&self, offset: usize, length_bytes: usize) {
        let end = offset.checked_add(length_bytes);
        assert!(
            end.is_some_and(|end| end <= self.length_bytes),
            "{length_bytes} bytes at {offset} lie inside a buffer of {}",
            self.length_bytes
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{IovaSpace, PagePreference};

    fn buffers(length_bytes: usize) -> Vec<DmaBuffer> {
        let memory = IovaSpace::new()
            .allocate(16384, PagePreference::Ordinary)
            .expect("memory");
        DmaBuffer::cut(&memory, length_bytes)
    }

    #[test]
    fn buffers_cut_from_one_memory_do_not_overlap() {
        let buffers = buffers(4096);
        assert_eq!(buffers.len(), 4);
        for (index, buffer) in buffers.iter().enumerate() {
            buffer.copy_from_slice(0, &[u8::try_from(index).expect("few") + 1; 4096]);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.equals(0, &[u8::try_from(index).expect("few") + 1; 4096]));
        }
        assert_eq!(
            buffers[1].span().iova.get() - buffers[0].span().iova.get(),
            4096
        );
    }

    #[test]
    fn bytes_come_back_as_written() {
        let buffer = &buffers(8192)[1];
        buffer.copy_from_slice(10, b"lodestore");
        let mut out = Vec::new();
        buffer.append_to(9, 11, &mut out);
        assert_eq!(out, b"\0lodestore\0");
        buffer.fill_zero(12, 2);
        let mut target = [0; 9];
        buffer.copy_to_slice(10, &mut target);
        assert_eq!(&target, b"lo\0\0store");
    }

    #[test]
    #[should_panic(expected = "lie inside a buffer")]
    fn access_past_the_end_of_a_buffer_is_refused_although_the_memory_goes_on() {
        buffers(4096)[0].copy_from_slice(4095, b"ab");
    }

    #[test]
    #[should_panic(expected = "a part lies inside its span")]
    fn a_part_outside_its_span_is_refused() {
        let _part = buffers(4096)[0].span().part(4000, 97);
    }
}
