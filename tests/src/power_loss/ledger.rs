//! What each block of a volume may hold after a power cut.
//!
//! Each write to a block has a sequence number, greater than all before, and at most one is in
//! flight on a block. A block may hold any content issued since the last one that was
//! acknowledged as durable, sector by sector; nothing older and nothing else.

use super::stamp::{self, BLOCK_BYTES, SECTOR_BYTES, Sector};

/// What a write puts into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Stamp,
    Zeros,
}

/// Why a write must be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Proof {
    /// Its own answer said so.
    #[default]
    Answered,
    /// A later flush was acknowledged.
    Flushed,
    /// It had survived an earlier power cut.
    Survived,
}

#[derive(Clone, Debug, Default)]
struct Block {
    /// The newest write that was issued; 0 when none was.
    issued: u64,
    /// The newest write that was answered.
    answered: u64,
    /// The newest write that was acknowledged as durable, or seen after a power cut.
    durable: u64,
    proof: Proof,
    /// Which of the writes since then wrote zeros.
    zeros: Vec<u64>,
    is_busy: bool,
}

/// The blocks of one volume.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    blocks: Vec<Block>,
    last_sequence: u64,
    durable_count: u64,
}

/// What was answered when a flush was sent: what the flush covers.
#[derive(Clone, Debug)]
pub(super) struct Covered(Vec<u64>);

impl Ledger {
    pub(super) fn new(block_count: usize) -> Self {
        Self {
            blocks: vec![Block::default(); block_count],
            last_sequence: 0,
            durable_count: 0,
        }
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// How many blocks' contents were acknowledged as durable so far.
    pub(super) fn durable_count(&self) -> u64 {
        self.durable_count
    }

    /// Notes a write to the blocks from `start`; its sequence number, or nothing when one of them
    /// has a write in flight.
    pub(super) fn issue(&mut self, start: usize, count: usize, content: Content) -> Option<u64> {
        let blocks = self.blocks.get_mut(start..start + count)?;
        if blocks.iter().any(|block| block.is_busy) {
            return None;
        }
        self.last_sequence += 1;
        for block in blocks {
            block.issued = self.last_sequence;
            block.is_busy = true;
            if content == Content::Zeros {
                block.zeros.push(self.last_sequence);
            }
        }
        Some(self.last_sequence)
    }

    /// Notes that the write `sequence` was answered.
    pub(super) fn answer(&mut self, start: usize, count: usize, sequence: u64, is_durable: bool) {
        for block in self.blocks.iter_mut().skip(start).take(count) {
            assert_eq!(block.issued, sequence, "one write in flight on a block");
            block.is_busy = false;
            block.answered = sequence;
            if is_durable {
                self.durable_count += block.raise(sequence, Proof::Answered);
            }
        }
    }

    /// What a flush that is sent now covers.
    pub(super) fn covered(&self) -> Covered {
        Covered(self.blocks.iter().map(|block| block.answered).collect())
    }

    /// Notes that a flush was acknowledged.
    pub(super) fn flushed(&mut self, covered: &Covered) {
        for (block, sequence) in self.blocks.iter_mut().zip(&covered.0) {
            self.durable_count += block.raise(*sequence, Proof::Flushed);
        }
    }

    /// Compares a volume's content after a power cut with what it may be, and takes it as the
    /// state from which the next one starts. One sentence for each block that lost something.
    pub(super) fn judge(&mut self, content: &[u8]) -> Vec<String> {
        assert_eq!(content.len(), self.blocks.len() * BLOCK_BYTES);
        let mut losses = Vec::new();
        for (index, (block, bytes)) in
            (0..).zip(self.blocks.iter_mut().zip(content.chunks(BLOCK_BYTES)))
        {
            if let Some(loss) = block.judge(index, bytes) {
                losses.push(loss);
            }
        }
        losses
    }
}

impl Block {
    /// Raises the durable write to `sequence`; 1 when that is news, otherwise 0.
    fn raise(&mut self, sequence: u64, proof: Proof) -> u64 {
        if sequence <= self.durable {
            return 0;
        }
        self.durable = sequence;
        self.proof = proof;
        self.zeros.retain(|zeros| *zeros >= sequence);
        1
    }

    fn judge(&mut self, index: u64, bytes: &[u8]) -> Option<String> {
        let (mut oldest, mut newest) = (u64::MAX, 0);
        for (sector, bytes) in (0..).zip(bytes.chunks(SECTOR_BYTES)) {
            let found = stamp::read(index, sector, bytes);
            match self.sequence_of(found) {
                Some(sequence) => {
                    oldest = oldest.min(sequence);
                    newest = newest.max(sequence);
                }
                None => {
                    return Some(format!(
                        "block {index}, sector {sector}: {found:?}, but {self:?}"
                    ));
                }
            }
        }
        self.is_busy = false;
        if oldest > self.durable {
            self.durable = oldest;
            self.proof = Proof::Survived;
        }
        // What was lost was allowed to be, and does not come back.
        self.answered = oldest;
        self.issued = newest;
        self.zeros.retain(|zeros| (oldest..=newest).contains(zeros));
        None
    }

    /// The write that a sector's content is legally of.
    fn sequence_of(&self, found: Sector) -> Option<u64> {
        match found {
            Sector::Zeros if self.durable == 0 => Some(self.zeros.last().copied().unwrap_or(0)),
            Sector::Zeros => self.zeros.last().copied(),
            Sector::Written(sequence) => {
                let is_legal = (self.durable..=self.issued).contains(&sequence);
                (is_legal && !self.zeros.contains(&sequence)).then_some(sequence)
            }
            Sector::Garbage => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(ledger: &mut Ledger, is_durable: bool) -> u64 {
        let sequence = ledger
            .issue(0, 1, Content::Stamp)
            .expect("the block is free");
        ledger.answer(0, 1, sequence, is_durable);
        sequence
    }

    #[test]
    fn a_durable_write_must_be_there_and_an_issued_one_may() {
        let mut ledger = Ledger::new(1);
        let first = written(&mut ledger, true);
        let second = written(&mut ledger, false);
        let third = ledger
            .issue(0, 1, Content::Stamp)
            .expect("the block is free");
        for legal in [first, second, third] {
            assert!(ledger.clone().judge(&stamp::block(0, legal)).is_empty());
        }
        assert_eq!(ledger.clone().judge(&stamp::block(0, third + 1)).len(), 1);
        assert_eq!(ledger.clone().judge(&[0; BLOCK_BYTES]).len(), 1);
    }

    #[test]
    fn a_flush_makes_durable_what_was_answered_when_it_was_sent() {
        let mut ledger = Ledger::new(1);
        let first = written(&mut ledger, false);
        let covered = ledger.covered();
        let second = written(&mut ledger, false);
        ledger.flushed(&covered);
        assert!(ledger.clone().judge(&stamp::block(0, first)).is_empty());
        assert!(ledger.clone().judge(&stamp::block(0, second)).is_empty());
        assert_eq!(ledger.clone().judge(&[0; BLOCK_BYTES]).len(), 1);
        ledger.flushed(&ledger.covered());
        assert_eq!(ledger.judge(&stamp::block(0, first)).len(), 1);
    }

    #[test]
    fn zeros_are_legal_only_where_they_were_written_or_nothing_was() {
        let mut ledger = Ledger::new(1);
        assert!(ledger.clone().judge(&[0; BLOCK_BYTES]).is_empty());
        let data = written(&mut ledger, true);
        let zeros = ledger
            .issue(0, 1, Content::Zeros)
            .expect("the block is free");
        ledger.answer(0, 1, zeros, true);
        assert!(ledger.clone().judge(&[0; BLOCK_BYTES]).is_empty());
        assert_eq!(ledger.clone().judge(&stamp::block(0, data)).len(), 1);
    }

    #[test]
    fn what_was_seen_after_one_cut_must_not_go_back_after_the_next() {
        let mut ledger = Ledger::new(1);
        let first = written(&mut ledger, false);
        let second = written(&mut ledger, false);
        assert!(ledger.judge(&stamp::block(0, second)).is_empty());
        assert_eq!(ledger.judge(&stamp::block(0, first)).len(), 1);
    }

    #[test]
    fn what_one_cut_took_is_not_covered_by_a_later_flush_and_does_not_come_back() {
        let mut ledger = Ledger::new(1);
        let lost = written(&mut ledger, false);
        assert!(ledger.judge(&[0; BLOCK_BYTES]).is_empty());
        ledger.flushed(&ledger.covered());
        assert!(ledger.clone().judge(&[0; BLOCK_BYTES]).is_empty());
        assert_eq!(ledger.judge(&stamp::block(0, lost)).len(), 1);
    }

    #[test]
    fn a_block_with_a_write_in_flight_takes_no_other() {
        let mut ledger = Ledger::new(2);
        assert!(ledger.issue(0, 2, Content::Stamp).is_some());
        assert!(ledger.issue(1, 1, Content::Stamp).is_none());
        assert!(
            ledger.issue(1, 2, Content::Stamp).is_none(),
            "beyond the end"
        );
    }
}
