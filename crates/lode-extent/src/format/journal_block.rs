//! Blocks of the journal ring: a transaction's bytes, cut into blocks.

use std::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::block::{
    Block, BlockFault, BlockKind, HEADER_BYTES, Header, PAYLOAD_BYTES, empty_block, open, seal,
};
use crate::types::Ticket;

/// Bytes of records that one journal block carries.
pub(crate) const JOURNAL_BLOCK_RECORD_BYTES: usize = PAYLOAD_BYTES - size_of::<RawJournal>();
/// The most blocks of one transaction.
pub(crate) const TRANSACTION_BLOCKS_MAX: u32 = 32;
/// The most record bytes of one transaction.
pub(crate) const TRANSACTION_BYTES_MAX: usize = 32 * JOURNAL_BLOCK_RECORD_BYTES;

/// One block of a transaction, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalBlock {
    /// Its number since the pool was made: it lies at this number modulo the ring's size.
    pub(crate) sequence: u64,
    /// Which start of the pool wrote it.
    pub(crate) incarnation: u64,
    /// Number of the transaction's first block.
    pub(crate) first_sequence: u64,
    /// Blocks of the transaction.
    pub(crate) blocks: u32,
    /// The last change in the transaction.
    pub(crate) ticket: Ticket,
    /// Its part of the records.
    pub(crate) records: Vec<u8>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawJournal {
    first_sequence: U64,
    ticket: U64,
    blocks: U32,
    reserved: [u8; 12],
}

const _: () = assert!(size_of::<RawJournal>() == 32);
const _: () = assert!(JOURNAL_BLOCK_RECORD_BYTES == 4000);

/// Blocks that a transaction of `bytes` record bytes takes.
pub(crate) fn transaction_blocks(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(JOURNAL_BLOCK_RECORD_BYTES)).expect("a short transaction")
}

/// The blocks of the transaction that carries `records`, from block `first_sequence` on;
/// `address` gives the pool block of each.
pub(crate) fn encode_transaction(
    records: &[u8],
    first_sequence: u64,
    ticket: Ticket,
    incarnation: u64,
    pool: u64,
    address: impl Fn(u64) -> u64,
) -> Vec<Box<Block>> {
    let blocks = transaction_blocks(records.len());
    assert!(
        (1..=u64::from(TRANSACTION_BLOCKS_MAX)).contains(&blocks),
        "a transaction has 1 to {TRANSACTION_BLOCKS_MAX} blocks, not {blocks}"
    );
    let raw = RawJournal {
        first_sequence: U64::new(first_sequence),
        ticket: U64::new(ticket.get()),
        blocks: U32::new(u32::try_from(blocks).expect("at most 32")),
        reserved: [0; 12],
    };
    let start = HEADER_BYTES + size_of::<RawJournal>();
    (first_sequence..)
        .zip(records.chunks(JOURNAL_BLOCK_RECORD_BYTES))
        .map(|(sequence, part)| {
            let mut block = empty_block();
            block[HEADER_BYTES..start].copy_from_slice(raw.as_bytes());
            block[start..start + part.len()].copy_from_slice(part);
            let header = Header {
                kind: BlockKind::Journal,
                address: address(sequence),
                generation: incarnation,
                pool,
                owner: sequence,
                count: u32::try_from(part.len()).expect("at most a block"),
                level: 0,
            };
            seal(&mut block, &header);
            block
        })
        .collect()
}

/// The journal block in `block`, which was read at pool block `address` of pool `pool`.
pub(crate) fn decode(block: &Block, address: u64, pool: u64) -> Result<JournalBlock, BlockFault> {
    let header = open(block)?;
    if header.kind != BlockKind::Journal || header.address != address || header.pool != pool {
        return Err(BlockFault::Foreign);
    }
    let (raw, records) = RawJournal::ref_from_prefix(&block[HEADER_BYTES..])
        .expect("a block holds the journal's header");
    let used = usize::try_from(header.count).map_err(|_large| BlockFault::Contents)?;
    let records = records.get(..used).ok_or(BlockFault::Contents)?;
    let blocks = raw.blocks.get();
    let first = raw.first_sequence.get();
    let index = header.owner.checked_sub(first);
    if raw.reserved != [0; 12]
        || !(1..=TRANSACTION_BLOCKS_MAX).contains(&blocks)
        || index.is_none_or(|index| index >= u64::from(blocks))
    {
        return Err(BlockFault::Contents);
    }
    Ok(JournalBlock {
        sequence: header.owner,
        incarnation: header.generation,
        first_sequence: first,
        blocks,
        ticket: Ticket::new(raw.ticket.get()),
        records: records.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_transaction_reads_back_as_written(
            records in proptest::collection::vec(any::<u8>(), 1..20_000),
            first in 0..1_u64 << 40,
        ) {
            let blocks = encode_transaction(&records, first, Ticket::new(9), 4, 7, |s| s + 3);
            let mut read = Vec::new();
            for (index, block) in (0..).zip(&blocks) {
                let block = decode(block, first + index + 3, 7).expect("a written block");
                prop_assert_eq!(block.sequence, first + index);
                prop_assert_eq!(block.first_sequence, first);
                prop_assert_eq!(u64::from(block.blocks), transaction_blocks(records.len()));
                prop_assert_eq!((block.ticket, block.incarnation), (Ticket::new(9), 4));
                read.extend_from_slice(&block.records);
            }
            prop_assert_eq!(read, records);
        }
    }

    #[test]
    fn a_block_of_another_place_or_pool_is_refused() {
        let block = &encode_transaction(&[1], 5, Ticket::new(1), 1, 7, |s| s)[0];
        assert!(decode(block, 5, 7).is_ok());
        assert_eq!(decode(block, 6, 7), Err(BlockFault::Foreign));
        assert_eq!(decode(block, 5, 8), Err(BlockFault::Foreign));
    }
}
