//! Records of the journal that cannot be applied now, because metadata that they need cannot be
//! read: each checkpoint writes them into the journal again, so that an import that can read
//! more applies them in their order. Nothing that was durable is given up for a block that may
//! come back.

use crate::core::{ApplyFault, Core};
use crate::format::record::{RECORD_BYTES_MAX, Record};
use crate::space::Run;
use crate::types::Ticket;

/// Bytes of records that a journal block certainly takes, whatever the cuts between changes.
const BLOCK_RECORDS_MIN: usize = 4000 - RECORD_BYTES_MAX;
/// Of the blocks of the ring, this part may be taken by records that are kept.
const RING_PART: u64 = 4;

/// The records kept.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    records: Vec<Record>,
    bytes: usize,
    /// Blocks of the pool that they map, busy so that nobody else takes them.
    set_aside: u64,
    /// The change as which the last of them was recorded again.
    recorded_as: Ticket,
}

impl Kept {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Blocks of the pool that wait for them.
    pub(crate) fn set_aside(&self) -> u64 {
        self.set_aside
    }

    /// Blocks of the ring that recording them again may take.
    fn journal_blocks(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let blocks = self.bytes.div_ceil(BLOCK_RECORDS_MIN) + 1;
        u64::try_from(blocks).expect("records in memory")
    }
}

impl Core {
    /// Keeps a record for later. Its volume, where it is known, is closed until then: a part of
    /// its map would show a state that is older than what was durable.
    pub(crate) fn keep(&mut self, record: &Record) -> Result<(), ApplyFault> {
        match *record {
            Record::Map {
                physical, count, ..
            } => {
                let run = Run {
                    start: physical,
                    count,
                };
                match self.ensure_space(physical) {
                    // Nothing is handed out there anyway.
                    Ok(()) | Err(ApplyFault::Unreadable(_)) => {}
                    Err(fault) => return Err(fault),
                }
                let set_aside = self.space.set_aside(&self.geometry, run);
                self.kept.set_aside += set_aside.map_err(|_conflict| ApplyFault::Conflict)?;
                self.close_volume(record);
            }
            Record::Unmap { .. } | Record::Remove { .. } => self.close_volume(record),
            Record::Create { volume, .. } => {
                self.next_object = self.next_object.max(volume.get() + 1);
            }
            Record::Request(_)
            | Record::Resize { .. }
            | Record::Delete { .. }
            | Record::TrimEnd { .. }
            | Record::Limit { .. } => {}
        }
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        self.kept.bytes += bytes.len();
        self.kept.records.push(record.clone());
        Ok(())
    }

    fn close_volume(&mut self, record: &Record) {
        if let Some(volume) = self.catalog.any_mut(record.volume()) {
            volume.is_closed = true;
        }
    }

    /// Whether a record of the journal must be kept although nothing that it needs is missing:
    /// the table of volumes is damaged and does not have its own, or would give its name to a
    /// second one; or what freed its blocks is kept itself.
    pub(crate) fn has_to_wait(&self, record: &Record, is_table_damaged: bool) -> bool {
        if is_table_damaged && (matches!(record, Record::Create { .. }) || self.is_unknown(record))
        {
            return true;
        }
        match *record {
            Record::Map {
                physical, count, ..
            } if !self.kept.is_empty() => {
                let run = Run {
                    start: physical,
                    count,
                };
                !self.space.is_clear(&self.geometry, run)
            }
            _ => false,
        }
    }

    /// Whether the ring, with `used` of its blocks taken, has room to record what is kept again.
    pub(crate) fn can_keep(&self, used: u64) -> bool {
        let (needed, capacity) = (self.kept.journal_blocks(), self.geometry.journal_blocks);
        needed <= capacity / RING_PART && used + needed <= capacity
    }

    /// The journal leaves room for what is kept from now on.
    pub(crate) fn reserve_kept(&mut self) {
        let blocks = self.kept.journal_blocks();
        self.journal.reserve(blocks);
    }

    /// Records what is kept again, behind the checkpoint that is being cut; gives the change that
    /// has to be durable before the checkpoint counts.
    pub(crate) fn record_kept(&mut self) -> Ticket {
        for record in &self.kept.records {
            let record = std::slice::from_ref(record);
            self.kept.recorded_as = self.journal.append(&self.geometry, record, &[], 0);
        }
        self.journal.want_commit();
        self.journal.recorded()
    }

    /// Whether the last checkpoint holds every change but those that are kept.
    pub(crate) fn is_checkpointed(&self) -> bool {
        let journal = &self.journal;
        let holds_all = if self.kept.is_empty() {
            journal.tail() == journal.head()
        } else {
            journal.recorded() == self.kept.recorded_as
        };
        holds_all && journal.is_settled() && self.store.dirty() == 0
    }

    /// Whether a record is about a volume that is not known.
    fn is_unknown(&self, record: &Record) -> bool {
        self.catalog.any(record.volume()).is_none()
    }
}
