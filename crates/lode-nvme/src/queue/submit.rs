//! From a request to an entry of the submission ring.

use lode_block::{BlockDevice, Operation, RejectReason, Rejected, Request, WriteCache};
use lode_bus::{Bus, DmaSpan};
use lode_nvme_spec::command::{BlockCommand, BlockFlags, DatasetManagement, DatasetRange, flush};
use lode_nvme_spec::prp::OFFSET_ALIGNMENT;
use lode_nvme_spec::{DataPointer, NvmOpcode, SubmissionEntry};
use lode_units::{Instant, NamespaceId};
use zerocopy::little_endian::{U32, U64};

use super::NamespaceQueue;
use super::follow::Mode;
use super::slot::{Slot, SlotPhase};
use crate::namespace::Namespace;
use crate::prp::PrpLists;

/// Checks requests against a namespace and encodes them as commands.
#[derive(Debug)]
pub(super) struct Encoder {
    lists: PrpLists,
    namespace: NamespaceId,
    block_shift: u32,
    block_count: u64,
    transfer_max_bytes: u32,
    range_max_blocks: u32,
    write_through: BlockFlags,
    write_zeroes: BlockFlags,
    can_write_through: bool,
    can_write_zeroes: bool,
    can_deallocate: bool,
    can_compare: bool,
}

impl Encoder {
    pub(super) fn new(namespace: &Namespace, lists: PrpLists) -> Self {
        let geometry = &namespace.geometry;
        let has_cache = geometry.write_cache == WriteCache::Volatile;
        let may_deallocate =
            namespace.write_zeroes_deallocates && namespace.deallocated_reads_zeros;
        let flags = |condition: bool, flag| {
            if condition { flag } else { BlockFlags::empty() }
        };
        Self {
            lists,
            namespace: namespace.id,
            block_shift: geometry.block_size.shift(),
            block_count: geometry.block_count,
            transfer_max_bytes: geometry.transfer_max_bytes,
            range_max_blocks: geometry.range_max_blocks,
            // Without a cache in use every write reaches the media by itself.
            write_through: flags(has_cache, BlockFlags::FORCE_UNIT_ACCESS),
            write_zeroes: flags(may_deallocate, BlockFlags::DEALLOCATE),
            can_write_through: !has_cache || geometry.supports_write_through,
            can_write_zeroes: geometry.supports_write_zeroes,
            can_deallocate: geometry.supports_deallocate,
            can_compare: geometry.supports_compare,
        }
    }

    /// Whether the rules of [`Request`] are kept and the namespace can do it.
    #[inline]
    fn accepts(&self, request: &Request) -> bool {
        match request.operation {
            Operation::Read | Operation::Write => self.is_transfer(request),
            Operation::WriteThrough => self.can_write_through && self.is_transfer(request),
            Operation::Compare => self.can_compare && self.is_transfer(request),
            Operation::WriteZeroes => self.can_write_zeroes && self.is_range(request),
            Operation::Deallocate => self.can_deallocate && self.is_range(request),
            Operation::Flush => request.block_count == 0 && request.data.length_bytes == 0,
        }
    }

    #[inline]
    fn is_transfer(&self, request: &Request) -> bool {
        let length = u64::from(request.block_count) << self.block_shift;
        let DmaSpan { iova, length_bytes } = request.data;
        self.is_inside(request)
            && length == u64::from(length_bytes)
            && length_bytes <= self.transfer_max_bytes
            && iova.get().is_multiple_of(u64::from(OFFSET_ALIGNMENT))
            && iova.checked_add(length).is_some()
    }

    fn is_range(&self, request: &Request) -> bool {
        self.is_inside(request)
            && request.block_count <= self.range_max_blocks
            && request.data.length_bytes == 0
    }

    #[inline]
    fn is_inside(&self, request: &Request) -> bool {
        let count = u64::from(request.block_count);
        let end = request.lba.get().checked_add(count);
        count > 0 && end.is_some_and(|end| end <= self.block_count)
    }

    /// The command for an accepted `request` in `slot`.
    #[inline]
    fn encode(&self, request: &Request, slot: usize) -> SubmissionEntry {
        let none = BlockFlags::empty();
        match request.operation {
            Operation::Read => self.transfer(NvmOpcode::Read, request, none, slot),
            Operation::Write => self.transfer(NvmOpcode::Write, request, none, slot),
            Operation::WriteThrough => {
                self.transfer(NvmOpcode::Write, request, self.write_through, slot)
            }
            Operation::Compare => self.transfer(NvmOpcode::Compare, request, none, slot),
            Operation::WriteZeroes => {
                self.block(NvmOpcode::WriteZeroes, request, self.write_zeroes)
            }
            Operation::Deallocate => self.deallocate(request, slot),
            Operation::Flush => flush(self.namespace),
        }
    }

    #[inline]
    fn transfer(
        &self,
        opcode: NvmOpcode,
        request: &Request,
        flags: BlockFlags,
        slot: usize,
    ) -> SubmissionEntry {
        self.block(opcode, request, flags)
            .with_data(self.lists.describe(slot, request.data))
    }

    #[inline]
    fn block(&self, opcode: NvmOpcode, request: &Request, flags: BlockFlags) -> SubmissionEntry {
        BlockCommand {
            opcode,
            namespace: self.namespace,
            lba: request.lba,
            block_count: request.block_count,
            flags,
        }
        .encode()
    }

    /// Dataset Management of one range, which lies where the slot's list would.
    fn deallocate(&self, request: &Request, slot: usize) -> SubmissionEntry {
        let range = DatasetRange {
            context_attributes: U32::ZERO,
            block_count: U32::new(request.block_count),
            lba: U64::new(request.lba.get()),
        };
        let iova = self.lists.write_scratch(slot, &range);
        DatasetManagement {
            namespace: self.namespace,
            range_count: 1,
            deallocates: true,
        }
        .encode()
        .with_data(DataPointer::one_page(iova))
    }
}

impl<B: Bus> NamespaceQueue<B> {
    #[inline]
    pub(super) fn take(&mut self, request: Request) -> Result<(), Rejected> {
        if self.shared.view() != self.seen {
            self.follow_early();
        }
        let reason = match self.mode {
            Mode::Gone => Some(RejectReason::Gone),
            Mode::Draining => Some(RejectReason::Full),
            Mode::Live | Mode::Waiting | Mode::Quarantined { .. } => None,
        };
        if let Some(reason) = reason {
            return Err(Rejected { request, reason });
        }
        if !self.encoder.accepts(&request) {
            let reason = RejectReason::Invalid;
            return Err(Rejected { request, reason });
        }
        let Some(slot) = self.free.pop() else {
            let reason = RejectReason::Full;
            return Err(Rejected { request, reason });
        };
        if self.free.len() + 1 == self.slots.len() {
            // The queue was idle: the next poll, which knows the time, sets the deadline.
            self.first = Some(slot);
            self.scan_at = Instant::ZERO;
        }
        self.enqueue(&request, usize::from(slot));
        Ok(())
    }

    #[inline]
    fn enqueue(&mut self, request: &Request, index: usize) {
        let slot = &mut self.slots[index];
        slot.id = self.ids.next(slot.id);
        slot.tag = request.tag;
        slot.operation = request.operation;
        slot.phase = SlotPhase::InFlight;
        slot.deadline = Slot::UNSTAMPED;
        let entry = self.encoder.encode(request, index);
        self.submission.push(&entry.with_command_id(slot.id));
        self.stats.submitted += 1;
        let is_write_through =
            request.operation == Operation::WriteThrough && !self.encoder.write_through.is_empty();
        self.stats.fua_writes += u64::from(is_write_through);
    }

    /// Tells the controller of `tail`, and before that of what was taken from the completion
    /// ring if it could otherwise find no room there for what it is given.
    #[inline]
    pub(super) fn show(&mut self, tail: u32) {
        if self.in_flight() + self.untold >= self.ring_entries() {
            self.tell_taken();
        }
        self.shown = tail;
        let is_written = self.submission_doorbell.ring(&self.registers, tail);
        self.stats.submission_doorbells += u64::from(is_written);
    }
}
