//! Where the blocks of a pool lie, for whoever moves data away from the pool's own machine.

use lode_units::DeviceIndex;

use crate::types::PoolBlock;

/// Where the blocks of a pool lie. Constant while the pool's devices are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolLayout {
    spans: Vec<Span>,
}

/// The blocks of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    count: u64,
    device: DeviceIndex,
}

impl PoolLayout {
    /// A layout of devices, each with its first block of the pool and how many it holds.
    pub(crate) fn new(devices: impl Iterator<Item = (DeviceIndex, u64, u64)>) -> Self {
        let spans = devices.map(|(device, first, count)| Span {
            first,
            count,
            device,
        });
        Self {
            spans: spans.collect(),
        }
    }

    /// The device, by its position in the caller's list, and its 4 KiB block that hold a block of
    /// the pool; `None` for a block that the pool does not have.
    #[must_use]
    #[inline]
    pub fn locate(&self, block: PoolBlock) -> Option<(DeviceIndex, u64)> {
        self.spans.iter().find_map(|span| {
            let offset = block.get().checked_sub(span.first)?;
            (offset < span.count).then_some((span.device, offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lies_on_the_device_whose_span_holds_it() {
        let (near, far) = (DeviceIndex::new(1), DeviceIndex::new(0));
        let layout = PoolLayout::new([(near, 0, 100), (far, 100, 50)].into_iter());
        assert_eq!(layout.locate(PoolBlock::new(99)), Some((near, 99)));
        assert_eq!(layout.locate(PoolBlock::new(100)), Some((far, 0)));
        assert_eq!(layout.locate(PoolBlock::new(150)), None);
    }
}
