//! The power cut: what sits in caches and what is in flight is kept, lost or torn.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lode_bus::DmaMemory;
use lode_nvme_spec::command::BlockCommand;
use lode_nvme_spec::{NvmOpcode, SubmissionEntry};
use lode_units::{Lba, NamespaceId};

use crate::backing;
use crate::controller::{EmulatedController, Shared};
use crate::dma::{DmaTable, Hint};
use crate::error::EmulatorError;
use crate::namespace::{BlockRange, Namespace, NamespaceTable};
use crate::outstanding::State;
use crate::prp::{Segments, Transfer};
use crate::queues::SubmissionQueue;

/// A version of a block that is not safely on the media when the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedBlock {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The block.
    pub lba: Lba,
    /// Which write command of this namespace it belongs to, in order: blocks of one write share
    /// it.
    pub write: u64,
    /// Whether the command had not completed. It is then newer than every version in the cache,
    /// and may have been a write-through.
    pub is_in_flight: bool,
}

/// What a power cut does to a version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It had reached the media.
    Keep,
    /// It is gone.
    Lose,
}

/// The data of a write that was fetched and held back, by a latency or a fault rule.
struct InFlight {
    namespace: Arc<Namespace>,
    range: BlockRange,
    data: DmaMemory,
}

impl EmulatedController {
    /// Cuts the power and gives it back: every command vanishes, DMA mappings and registers are
    /// as after power-on. Of each version of a block in a modelled cache, oldest first, and then
    /// of each block of a write in flight, `choose` says whether it had reached the media. Blocks
    /// until no file operation is in flight.
    ///
    /// A write is in flight only while a latency or a fault rule holds it back; without either,
    /// every fetched write has completed.
    ///
    /// # Errors
    /// When a block that is kept cannot be put onto its media, or memory is refused.
    pub fn power_cut(
        &self,
        choose: &mut dyn FnMut(UnflushedBlock) -> Fate,
    ) -> Result<(), EmulatorError> {
        self.shared.is_running.store(false, Ordering::Release);
        let in_flight = self.shared.writes_in_flight()?;
        self.shared.reset_function();
        self.shared.dma.update(DmaTable::clear);
        for namespace in self.shared.namespaces.read().iter() {
            namespace
                .cut_power(choose)
                .map_err(|_error| lost(namespace))?;
        }
        for (number, write) in (1..).zip(&in_flight) {
            write.cut_power(number, choose)?;
        }
        Ok(())
    }
}

impl InFlight {
    /// `number` counts from the last write that the namespace's cache has seen.
    fn cut_power(
        &self,
        number: u64,
        choose: &mut dyn FnMut(UnflushedBlock) -> Fate,
    ) -> Result<(), EmulatorError> {
        let namespace = &self.namespace;
        let block = usize::try_from(namespace.block_size().bytes()).expect("at most 64 KiB");
        let blocks = self.range.first..self.range.first + self.range.count;
        for (index, lba) in blocks.enumerate() {
            let version = UnflushedBlock {
                namespace: namespace.id(),
                lba: Lba::new(lba),
                write: namespace.write_count() + number,
                is_in_flight: true,
            };
            if choose(version) == Fate::Keep {
                let position = lba << namespace.block_size().shift();
                namespace
                    .media()
                    .write(position, &self.data, index * block, block)
                    .map_err(|_error| lost(namespace))?;
            }
        }
        Ok(())
    }
}

impl Shared {
    /// The writes that were fetched and have not been executed, with their data.
    fn writes_in_flight(&self) -> Result<Vec<InFlight>, EmulatorError> {
        let dma = self.dma.read();
        let namespaces = self.namespaces.read();
        let page = 1 << (12 + u32::from(self.registers.configuration().page_size));
        let mut found = Vec::new();
        for (id, slot) in self.queues.iter() {
            let guard = slot.lock_submission();
            let queue = guard.as_ref().filter(|_| id.get() != 0);
            for entry in queue.into_iter().flat_map(held_back) {
                found.extend(in_flight(&entry, &dma, &namespaces, page)?);
            }
        }
        Ok(found)
    }
}

/// The commands of a queue that wait for their time or for ever.
fn held_back(queue: &SubmissionQueue) -> impl Iterator<Item = SubmissionEntry> {
    let outstanding = &queue.outstanding;
    (0..outstanding.count())
        .filter_map(|position| outstanding.at(position))
        .filter(|(_index, state)| matches!(state, State::Delayed(_) | State::Hung))
        .map(|(index, _state)| outstanding.command(index).entry)
}

/// A write with its data; `None` for any other command, and for one that would have failed.
fn in_flight(
    entry: &SubmissionEntry,
    dma: &DmaTable,
    namespaces: &NamespaceTable,
    page: u64,
) -> Result<Option<InFlight>, EmulatorError> {
    let command = BlockCommand::decode(entry);
    let has_data = match command.opcode {
        NvmOpcode::Write => true,
        NvmOpcode::WriteZeroes => false,
        NvmOpcode::Flush
        | NvmOpcode::Read
        | NvmOpcode::WriteUncorrectable
        | NvmOpcode::Compare
        | NvmOpcode::DatasetManagement
        | NvmOpcode::Verify
        | NvmOpcode::Copy
        | NvmOpcode::Other(_) => return Ok(None),
    };
    let Some(namespace) = namespaces.active(command.namespace) else {
        return Ok(None);
    };
    let range = namespace.range(command.lba.get(), command.block_count.into());
    let Some(range) = range else {
        return Ok(None);
    };
    let (_position, length) = namespace.bytes(range);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let data = backing::staging(length)?;
    if has_data {
        let mut segments = Segments::for_transfers_of(length);
        let mut hint = Hint::default();
        let resolved = segments.resolve(dma, &mut hint, entry.data_pointer, page, length);
        if resolved.is_err() {
            return Ok(None);
        }
        Transfer::new(dma, &segments).copy_out(&data, 0, length);
    }
    Ok(Some(InFlight {
        namespace: Arc::clone(namespace),
        range,
        data,
    }))
}

fn lost(namespace: &Namespace) -> EmulatorError {
    EmulatorError::PowerCut {
        namespace: namespace.id(),
    }
}
