//! What an IOMMU can translate, as the kernel tells it (`VFIO_IOMMU_GET_INFO`).

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use vfio_bindings::bindings::vfio::{
    VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
};

use crate::syscall;

/// The reach of an IOMMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IommuReach {
    /// The I/O virtual addresses that can be mapped; empty when the kernel does not tell.
    pub(crate) ranges: Vec<RangeInclusive<u64>>,
    /// How many more mappings the kernel takes; `None` when it does not tell.
    pub(crate) mappings_available: Option<u32>,
    /// The smallest page that can be mapped, in bytes.
    pub(crate) page_bytes: u64,
}

impl IommuReach {
    /// Reads the structure with the capabilities behind it. What does not fit is left out.
    fn parse(words: &[u32]) -> Self {
        let flags = word(words, FLAGS).unwrap_or(0);
        let page_sizes = (flags & VFIO_IOMMU_INFO_PGSIZES != 0)
            .then(|| double(words, PAGE_SIZES))
            .flatten()
            .unwrap_or(0);
        let mut reach = Self {
            ranges: Vec::new(),
            mappings_available: None,
            page_bytes: if page_sizes == 0 {
                DEFAULT_PAGE_BYTES
            } else {
                1 << page_sizes.trailing_zeros()
            },
        };
        if flags & VFIO_IOMMU_INFO_CAPS == 0 {
            return reach;
        }
        let mut offset = word(words, CAPABILITY_OFFSET).unwrap_or(0);
        for _ in 0..CAPABILITIES_MAX {
            let at = words_of(offset);
            let (true, Some(id), Some(next)) =
                (at >= HEADER_WORDS, word(words, at), word(words, at + 1))
            else {
                break;
            };
            match id & 0xFFFF {
                VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => reach.ranges = ranges(words, at),
                CAPABILITY_DMA_AVAILABLE => reach.mappings_available = word(words, at + 2),
                _ => {}
            }
            offset = next;
        }
        reach
    }

    /// Whether all of `length_bytes` from `iova` on can be mapped.
    pub(crate) fn holds(&self, iova: u64, length_bytes: u64) -> bool {
        let Some(last) = length_bytes
            .checked_sub(1)
            .and_then(|rest| iova.checked_add(rest))
        else {
            return false;
        };
        self.ranges.is_empty()
            || self
                .ranges
                .iter()
                .any(|range| range.contains(&iova) && range.contains(&last))
    }
}

/// Asks the kernel what the IOMMU of a container can translate. Enters it at most twice.
///
/// # Errors
/// When the container has no IOMMU yet, or tells more than is plausible.
pub(crate) fn reach(container: BorrowedFd<'_>) -> io::Result<IommuReach> {
    let mut buffer = vec![0_u32; FIRST_WORDS];
    syscall::iommu_info(container, &mut buffer)?;
    let told = words_of(buffer[0]);
    if told > WORDS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if told > buffer.len() {
        buffer = vec![0; told];
        syscall::iommu_info(container, &mut buffer)?;
    }
    Ok(IommuReach::parse(&buffer))
}

fn ranges(words: &[u32], at: usize) -> Vec<RangeInclusive<u64>> {
    let count = word(words, at + 2).map_or(0, |count| count.min(RANGES_MAX));
    (0..count)
        .map_while(|index| {
            let start = at + RANGES + 4 * usize::try_from(index).ok()?;
            Some(double(words, start)?..=double(words, start + 2)?)
        })
        .collect()
}

fn word(words: &[u32], index: usize) -> Option<u32> {
    words.get(index).copied()
}

/// A native 64-bit value in two 32-bit words.
fn double(words: &[u32], index: usize) -> Option<u64> {
    let (first, second) = (word(words, index)?, word(words, index + 1)?);
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    Some(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
}

fn words_of(length_bytes: u32) -> usize {
    usize::try_from(length_bytes.div_ceil(4)).unwrap_or(usize::MAX)
}

/// Offsets in words: `vfio_iommu_type1_info` is argsz, flags, page sizes (64), capability offset.
const FLAGS: usize = 1;
const PAGE_SIZES: usize = 2;
const CAPABILITY_OFFSET: usize = 4;
/// The structure's own length; a capability never begins inside it.
const HEADER_WORDS: usize = 5;
/// In words from a capability of ranges: header (2), count, reserved, then pairs of 64 bits.
const RANGES: usize = 4;
/// `VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL`.
const CAPABILITY_DMA_AVAILABLE: u32 = 3;
const DEFAULT_PAGE_BYTES: u64 = 4096;
const FIRST_WORDS: usize = 128;
/// More than any kernel tells: a bound for what is allocated on its word.
const WORDS_MAX: usize = 1 << 16;
const CAPABILITIES_MAX: usize = 16;
const RANGES_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(value: u64) -> [u32; 2] {
        let bytes = value.to_ne_bytes();
        [0, 4].map(|at| {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes of eight"))
        })
    }

    /// Two ranges around the interrupt window, then 65,535 mappings.
    fn told() -> Vec<u32> {
        let mut words = vec![0, 3];
        words.extend(pair(0x4020_1000));
        words.extend([24, 0]);
        words.extend([1 | 1 << 16, 24 + 48, 2, 0]);
        for value in [0, 0xFEDF_FFFF, 0xFEF0_0000, (1 << 39) - 1] {
            words.extend(pair(value));
        }
        words.extend([3 | 1 << 16, 0, 65535]);
        words
    }

    #[test]
    fn ranges_pages_and_the_number_of_mappings_are_read() {
        let reach = IommuReach::parse(&told());
        assert_eq!(reach.ranges, [0..=0xFEDF_FFFF, 0xFEF0_0000..=(1 << 39) - 1]);
        assert_eq!(reach.mappings_available, Some(65535));
        assert_eq!(reach.page_bytes, 4096);
    }

    #[test]
    fn a_range_must_lie_inside_one_window() {
        let reach = IommuReach::parse(&told());
        assert!(reach.holds(0x20_0000, 0x20_0000));
        assert!(reach.holds(0xFEDF_F000, 0x1000));
        assert!(!reach.holds(0xFEDF_F000, 0x1001));
        assert!(!reach.holds(0xFEE0_0000, 0x1000));
        assert!(reach.holds((1 << 39) - 4096, 4096));
        assert!(!reach.holds((1 << 39) - 4096, 4097));
        assert!(!reach.holds(u64::MAX, 2));
        assert!(!reach.holds(0x1000, 0));
    }

    #[test]
    fn a_kernel_that_tells_no_ranges_leaves_the_choice() {
        let reach = IommuReach::parse(&[24, 1, 4096, 0, 0, 0]);
        assert!(reach.holds(1 << 50, 4096));
        assert!(!reach.holds(u64::MAX, 2));
    }

    #[test]
    fn a_cut_or_circular_answer_is_read_without_a_panic() {
        let whole = told();
        for length in 0..whole.len() {
            let reach = IommuReach::parse(&whole[..length]);
            assert!(reach.ranges.len() <= 2);
        }
        let mut circular = told();
        circular[7] = 24;
        assert_eq!(IommuReach::parse(&circular).ranges.len(), 2);
        let mut inside = told();
        inside[4] = 8;
        assert!(IommuReach::parse(&inside).ranges.is_empty());
    }
}
