//! Namespaces: from Identify to what the layers above may rely on.

use std::fmt;

use lode_block::{Geometry, WriteCache};
use lode_nvme_spec::command::BlockCommand;
use lode_nvme_spec::identify::{
    ControllerFeatures, IdentifyController, IdentifyNamespace, IdentifyNvmController,
};
use lode_units::limits::IO_LENGTH_MAX_BYTES;
use lode_units::{BlockSize, NamespaceId};

use crate::options::Quirks;

/// A namespace that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier on this controller.
    pub id: NamespaceId,
    /// What it promises. The queue depth is that of a queue of default options.
    pub geometry: Geometry,
    /// Whether it refuses writes.
    pub is_write_protected: bool,
    /// Whether deallocated blocks read as zeros (DLFEAT).
    pub deallocated_reads_zeros: bool,
    /// Whether Write Zeroes may deallocate (DLFEAT).
    pub write_zeroes_deallocates: bool,
    /// NGUID; all zero when there is none.
    pub nguid: [u8; 16],
    /// EUI-64; all zero when there is none.
    pub eui64: [u8; 8],
}

/// What a queue relies on of its namespace for as long as it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) namespace: NamespaceId,
    block_size: BlockSize,
    block_count: u64,
    nguid: [u8; 16],
    eui64: [u8; 8],
}

impl Claim {
    pub(crate) const fn on(namespace: &Namespace) -> Self {
        Self {
            namespace: namespace.id,
            block_size: namespace.geometry.block_size,
            block_count: namespace.geometry.block_count,
            nguid: namespace.nguid,
            eui64: namespace.eui64,
        }
    }

    /// Whether `found` is the namespace that it was: not formatted otherwise, not shrunk, not made
    /// anew under the same identifier.
    pub(crate) fn holds_for(&self, found: &Namespace) -> bool {
        found.id == self.namespace
            && found.geometry.block_size == self.block_size
            && found.geometry.block_count >= self.block_count
            && found.nguid == self.nguid
            && found.eui64 == self.eui64
    }
}

/// Why a namespace cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// Its LBA format carries metadata, which nothing here would protect or keep.
    Metadata {
        /// Bytes of metadata for each block.
        bytes: u16,
    },
    /// End-to-end protection information is in use.
    Protection,
    /// Its blocks are no size that is served.
    BlockSize {
        /// The base-two logarithm of the size.
        shift: u8,
    },
    /// It names an LBA format that it does not have.
    Format,
    /// A single block is longer than the longest transfer.
    BlockBeyondTransfer,
    /// Identify failed.
    Identify {
        /// The status of the command.
        status: u16,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata { bytes } => write!(formatter, "{bytes} bytes of metadata per block"),
            Self::Protection => formatter.write_str("protection information is in use"),
            Self::BlockSize { shift } => write!(formatter, "blocks of 2^{shift} bytes"),
            Self::Format => formatter.write_str("no such LBA format"),
            Self::BlockBeyondTransfer => formatter.write_str("blocks longer than a transfer"),
            Self::Identify { status } => write!(formatter, "identify failed: {status:#05x}"),
        }
    }
}

/// What a controller offers to each of its namespaces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) transfer_max_bytes: u32,
    pub(crate) queue_depth_max: u32,
    pub(crate) write_cache: WriteCache,
    pub(crate) features: ControllerFeatures,
    pub(crate) quirks: Quirks,
    pub(crate) limits: Limits,
}

/// Limits of commands that move no data, in blocks where they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of one Write Zeroes; `None` for no limit.
    pub(crate) write_zeroes_bytes: Option<u64>,
    /// Blocks of one Dataset Management range; `None` for no limit.
    pub(crate) dataset_blocks: Option<u32>,
}

impl Limits {
    /// The limits of a controller that does not tell: Write Zeroes is held to the longest
    /// transfer, which early controllers applied to it too.
    pub(crate) fn untold(transfer_max_bytes: u32) -> Self {
        Self {
            write_zeroes_bytes: Some(u64::from(transfer_max_bytes)),
            dataset_blocks: None,
        }
    }

    /// The limits that `identify` tells.
    pub(crate) fn told(identify: &IdentifyNvmController, page_min_shift: u32) -> Self {
        let write_zeroes = u32::from(identify.write_zeroes_size_max);
        let range = identify.dataset_range_blocks_max.get();
        let total = identify.dataset_blocks_max.get();
        let total = u32::try_from(total).unwrap_or(u32::MAX);
        Self {
            write_zeroes_bytes: (write_zeroes > 0).then(|| {
                1_u64
                    .checked_shl(write_zeroes + page_min_shift)
                    .unwrap_or(u64::MAX)
            }),
            dataset_blocks: [range, total].into_iter().filter(|limit| *limit > 0).min(),
        }
    }
}

/// The longest transfer of a controller in bytes: its MDTS, and never more than one request of
/// this program may ask for.
pub(crate) fn transfer_max_bytes(identify: &IdentifyController, page_min_shift: u32) -> u32 {
    let limit = u32::try_from(IO_LENGTH_MAX_BYTES).expect("the limit is one mebibyte");
    match u32::from(identify.transfer_size_max) {
        0 => limit,
        shift => 1_u64
            .checked_shl(shift + page_min_shift)
            .and_then(|bytes| u32::try_from(bytes).ok())
            .map_or(limit, |bytes| bytes.min(limit)),
    }
}

impl Offer {
    /// What `identify` of namespace `id` comes to; `None` for one that is not there.
    pub(crate) fn namespace(
        &self,
        id: NamespaceId,
        identify: &IdentifyNamespace,
    ) -> Option<Result<Namespace, Refusal>> {
        let block_count = identify.size.get();
        if block_count == 0 {
            return None;
        }
        let block_size = match self.block_size(identify) {
            Ok(block_size) => block_size,
            Err(refusal) => return Some(Err(refusal)),
        };
        let deallocated = identify.deallocate_features & IdentifyNamespace::DEALLOCATED_READ_MASK;
        Some(Ok(Namespace {
            id,
            geometry: self.geometry(block_size, block_count),
            is_write_protected: identify.is_write_protected(),
            deallocated_reads_zeros: deallocated == IdentifyNamespace::DEALLOCATED_READS_ZEROS,
            write_zeroes_deallocates: identify.deallocate_features
                & IdentifyNamespace::WRITE_ZEROES_DEALLOCATES
                != 0,
            nguid: identify.nguid,
            eui64: identify.eui64,
        }))
    }

    fn block_size(&self, identify: &IdentifyNamespace) -> Result<BlockSize, Refusal> {
        let format = identify.lba_format().ok_or(Refusal::Format)?;
        if identify.protection_settings & 0b111 != 0 {
            return Err(Refusal::Protection);
        }
        let metadata = format.metadata_bytes.get();
        if metadata != 0 {
            return Err(Refusal::Metadata { bytes: metadata });
        }
        let shift = format.block_shift;
        let bytes = 1_u64.checked_shl(u32::from(shift)).unwrap_or(0);
        let block_size = BlockSize::new(bytes).map_err(|_| Refusal::BlockSize { shift })?;
        if block_size.bytes() > self.transfer_max_bytes {
            return Err(Refusal::BlockBeyondTransfer);
        }
        Ok(block_size)
    }

    fn geometry(&self, block_size: BlockSize, block_count: u64) -> Geometry {
        let offers =
            |feature, quirk| self.features.contains(feature) && !self.quirks.contains(quirk);
        let supports_write_zeroes =
            offers(ControllerFeatures::WRITE_ZEROES, Quirks::NO_WRITE_ZEROES);
        let supports_deallocate = offers(
            ControllerFeatures::DATASET_MANAGEMENT,
            Quirks::NO_DEALLOCATE,
        );
        Geometry {
            block_size,
            block_count,
            transfer_max_bytes: self.transfer_max_bytes,
            range_max_blocks: self.range_max_blocks(
                block_size,
                supports_write_zeroes,
                supports_deallocate,
            ),
            queue_depth_max: self.queue_depth_max,
            write_cache: self.write_cache,
            supports_write_through: !self.quirks.contains(Quirks::NO_FUA),
            supports_write_zeroes,
            supports_deallocate,
            supports_compare: self.features.contains(ControllerFeatures::COMPARE),
        }
    }

    /// The bound that holds for Write Zeroes and Deallocate alike.
    fn range_max_blocks(&self, block_size: BlockSize, zeroes: bool, deallocate: bool) -> u32 {
        let mut blocks = u32::MAX;
        if zeroes {
            let limit = self.limits.write_zeroes_bytes.unwrap_or(u64::MAX);
            let limit = u32::try_from(block_size.blocks_in(limit)).unwrap_or(u32::MAX);
            blocks = limit.min(BlockCommand::BLOCK_COUNT_MAX);
        }
        if deallocate {
            blocks = blocks.min(self.limits.dataset_blocks.unwrap_or(u32::MAX));
        }
        if zeroes || deallocate {
            blocks.max(1)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;
    use zerocopy::little_endian::{U16, U32, U64};

    use super::*;

    fn offer() -> Offer {
        Offer {
            transfer_max_bytes: 1 << 20,
            queue_depth_max: 255,
            write_cache: WriteCache::Volatile,
            features: ControllerFeatures::all(),
            quirks: Quirks::empty(),
            limits: Limits::default(),
        }
    }

    fn identify(block_shift: u8, size: u64) -> IdentifyNamespace {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.size = U64::new(size);
        identify.lba_formats[0].block_shift = block_shift;
        identify
    }

    fn namespace(identify: &IdentifyNamespace) -> Result<Namespace, Refusal> {
        offer()
            .namespace(NamespaceId::new(1), identify)
            .expect("it is there")
    }

    #[test]
    fn any_block_size_and_more_than_32_bits_of_blocks_are_served() {
        for shift in 9..=16_u8 {
            let found = namespace(&identify(shift, 1 << 40)).expect("it can be used");
            assert_eq!(found.geometry.block_size.shift(), u32::from(shift));
            assert_eq!(found.geometry.block_count, 1 << 40);
            assert_eq!(found.geometry.range_max_blocks, 65536);
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_its_reason() {
        for shift in [0, 8, 17, 63, 64, 255] {
            assert_eq!(
                namespace(&identify(shift, 1)),
                Err(Refusal::BlockSize { shift })
            );
        }
        let mut with_metadata = identify(9, 1);
        with_metadata.lba_formats[0].metadata_bytes = U16::new(8);
        assert_eq!(
            namespace(&with_metadata),
            Err(Refusal::Metadata { bytes: 8 })
        );
        let mut protected = identify(9, 1);
        protected.protection_settings = 1;
        assert_eq!(namespace(&protected), Err(Refusal::Protection));
        let mut odd = identify(9, 1);
        odd.formatted_lba_size = 5;
        assert_eq!(namespace(&odd), Err(Refusal::Format));
        let absent = offer().namespace(NamespaceId::new(1), &identify(9, 0));
        assert_eq!(absent, None);
    }

    #[test]
    fn a_block_longer_than_the_longest_transfer_is_refused() {
        let mut offer = offer();
        offer.transfer_max_bytes = 8192;
        let found = offer.namespace(NamespaceId::new(1), &identify(14, 1));
        assert_eq!(found, Some(Err(Refusal::BlockBeyondTransfer)));
    }

    #[test]
    fn quirks_take_away_what_identify_offers() {
        let mut offer = offer();
        offer.quirks = Quirks::NO_FUA | Quirks::NO_DEALLOCATE;
        let found = offer
            .namespace(NamespaceId::new(1), &identify(9, 1))
            .expect("it is there")
            .expect("it can be used");
        assert!(!found.geometry.supports_write_through);
        assert!(!found.geometry.supports_deallocate);
        assert!(found.geometry.supports_write_zeroes);
    }

    #[test]
    fn the_longest_transfer_follows_mdts_up_to_the_programs_own_limit() {
        let mut identify = IdentifyController::new_zeroed();
        for (mdts, expected) in [
            (0, 1 << 20),
            (1, 8192),
            (5, 131_072),
            (8, 1 << 20),
            (9, 1 << 20),
            (255, 1 << 20),
        ] {
            identify.transfer_size_max = mdts;
            assert_eq!(transfer_max_bytes(&identify, 12), expected, "{mdts}");
        }
        identify.transfer_size_max = 1;
        assert_eq!(transfer_max_bytes(&identify, 16), 131_072);
    }

    #[test]
    fn told_limits_bound_the_ranges() {
        let mut identify_nvm = IdentifyNvmController::new_zeroed();
        identify_nvm.write_zeroes_size_max = 3;
        identify_nvm.dataset_range_blocks_max = U32::new(50);
        let mut offer = offer();
        offer.limits = Limits::told(&identify_nvm, 12);
        let range = |offer: &Offer| {
            offer
                .namespace(NamespaceId::new(1), &identify(9, 1000))
                .expect("it is there")
                .expect("it can be used")
                .geometry
                .range_max_blocks
        };
        assert_eq!(range(&offer), 50);
        identify_nvm.dataset_range_blocks_max = U32::ZERO;
        offer.limits = Limits::told(&identify_nvm, 12);
        assert_eq!(range(&offer), 64);
        identify_nvm.write_zeroes_size_max = 200;
        offer.limits = Limits::told(&identify_nvm, 12);
        assert_eq!(range(&offer), 65536);
    }
}
