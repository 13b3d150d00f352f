//! Commands of the NVM command set (NVM Command Set 1.0 §3), checked, and executed at once where
//! nothing has to be waited for.

mod file;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lode_nvme_spec::command::{BlockCommand, BlockFlags, DatasetManagement, DatasetRange};
use lode_nvme_spec::{DataPointer, GenericStatus, MediaStatus, NvmOpcode, Status, SubmissionEntry};
use lode_units::NamespaceId;

pub(crate) use file::FileTask;

use crate::backing::{MediaError, Reach, Space};
use crate::batch::{Batch, Outcome};
use crate::namespace::{BlockRange, NAMESPACE_ID_MAX, Namespace};
use crate::prp::{PrpError, Transfer};

/// A command that names a range of blocks, checked against its namespace.
pub(crate) struct Checked<'n> {
    pub(crate) namespace: &'n Namespace,
    pub(crate) range: BlockRange,
    pub(crate) flags: BlockFlags,
    pub(crate) length: usize,
}

impl Batch<'_> {
    /// Executes an I/O command, or says that it needs a file ring.
    pub(crate) fn execute_io(&mut self, entry: &SubmissionEntry) -> Outcome {
        match self.try_execute_io(entry) {
            Ok(outcome) => outcome,
            Err(status) => status.into(),
        }
    }

    fn try_execute_io(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        if entry.uses_sgl() || entry.is_fused() {
            return Err(refused(GenericStatus::InvalidField));
        }
        let opcode = NvmOpcode::from_raw(entry.opcode);
        self.check_supported(opcode)?;
        if opcode == NvmOpcode::Flush {
            return self.flush(entry.namespace_id());
        }
        let namespaces = self.namespaces;
        let namespace = namespace_of(namespaces.active(entry.namespace_id()), entry)?;
        if namespace.wants_ring() {
            return Ok(Outcome::File);
        }
        if opcode == NvmOpcode::DatasetManagement {
            return self.deallocate(entry, namespace);
        }
        let checked = self.check_blocks(entry, namespace)?;
        let outcome = match opcode {
            NvmOpcode::Read => {
                let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
                namespace.read(checked.range, &mut transfer)
            }
            NvmOpcode::Write => {
                let reach = self.reach(checked.flags);
                let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
                namespace.write(checked.range, &mut transfer, reach)
            }
            NvmOpcode::Compare => {
                let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
                let is_equal = namespace
                    .compare(checked.range, &mut transfer)
                    .map_err(|error| media_status(opcode, error))?;
                return is_equal
                    .then_some(Status::SUCCESS.into())
                    .ok_or(MediaStatus::CompareFailure.into());
            }
            NvmOpcode::WriteZeroes => {
                let space = space_of(checked.flags);
                namespace.zero(checked.range, space, self.reach(checked.flags))
            }
            NvmOpcode::Verify => namespace.verify(checked.range),
            NvmOpcode::Flush
            | NvmOpcode::DatasetManagement
            | NvmOpcode::WriteUncorrectable
            | NvmOpcode::Copy
            | NvmOpcode::Other(_) => return Err(refused(GenericStatus::InvalidOpcode)),
        };
        match outcome {
            Ok(()) => Ok(Status::SUCCESS.into()),
            Err(error) => Err(media_status(opcode, error)),
        }
    }

    fn check_supported(&self, opcode: NvmOpcode) -> Result<(), Status> {
        let commands = self.shared.options.commands;
        let is_supported = match opcode {
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Flush => true,
            NvmOpcode::Compare => commands.compare,
            NvmOpcode::WriteZeroes => commands.write_zeroes,
            NvmOpcode::DatasetManagement => commands.dataset_management,
            NvmOpcode::Verify => commands.verify,
            NvmOpcode::WriteUncorrectable | NvmOpcode::Copy | NvmOpcode::Other(_) => false,
        };
        is_supported
            .then_some(())
            .ok_or(refused(GenericStatus::InvalidOpcode))
    }

    /// Checks range and length of a command that names blocks.
    fn check_blocks<'n>(
        &self,
        entry: &SubmissionEntry,
        namespace: &'n Namespace,
    ) -> Result<Checked<'n>, Status> {
        let command = BlockCommand::decode(entry);
        let range = namespace
            .range(command.lba.get(), command.block_count.into())
            .ok_or(refused(GenericStatus::LbaOutOfRange))?;
        let (_position, bytes) = namespace.bytes(range);
        let moves_data = matches!(
            command.opcode,
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare
        );
        if moves_data && bytes > u64::from(self.shared.options.transfer_max_bytes()) {
            return Err(refused(GenericStatus::InvalidField));
        }
        Ok(Checked {
            namespace,
            range,
            flags: command.flags,
            length: usize::try_from(bytes).map_err(|_error| GenericStatus::InternalError)?,
        })
    }

    /// Finds a command's data in the host's memory.
    pub(crate) fn transfer(
        &mut self,
        pointer: DataPointer,
        length: usize,
    ) -> Result<Transfer<'_>, Status> {
        let queue = &mut *self.queue;
        queue
            .segments
            .resolve(self.dma, &mut queue.data_hint, pointer, self.page, length)
            .map_err(transfer_status)?;
        Ok(Transfer::new(self.dma, &queue.segments))
    }

    /// How far a write has to come: FUA, or the volatile write cache switched off.
    fn reach(&self, flags: BlockFlags) -> Reach {
        let is_cached = self.shared.is_write_cache_enabled.load(Ordering::Relaxed);
        if flags.contains(BlockFlags::FORCE_UNIT_ACCESS) || !is_cached {
            Reach::Stable
        } else {
            Reach::Cache
        }
    }

    /// Flush (Base 2.0 §7.1), of one namespace or of all.
    fn flush(&mut self, id: NamespaceId) -> Result<Outcome, Status> {
        if id == BROADCAST {
            if self.namespaces.iter().any(|each| each.wants_ring()) {
                return Ok(Outcome::File);
            }
            for namespace in self.namespaces.iter() {
                flush_now(namespace)?;
            }
            return Ok(Status::SUCCESS.into());
        }
        let namespace = self.namespaces.active(id);
        let namespace = namespace.ok_or_else(|| inactive(id))?;
        if namespace.wants_ring() {
            return Ok(Outcome::File);
        }
        flush_now(namespace)?;
        Ok(Status::SUCCESS.into())
    }

    fn deallocate(
        &mut self,
        entry: &SubmissionEntry,
        namespace: &Arc<Namespace>,
    ) -> Result<Outcome, Status> {
        let command = DatasetManagement::decode(entry);
        self.check_dataset(entry, namespace)?;
        if !command.deallocates || !namespace.media().can_release() {
            return Ok(Status::SUCCESS.into());
        }
        for index in 0..command.range_count {
            if let Some(range) = self.dataset_range(entry, namespace, index)? {
                namespace
                    .zero(range, Space::Release, Reach::Cache)
                    .map_err(|error| media_status(NvmOpcode::DatasetManagement, error))?;
            }
        }
        Ok(Status::SUCCESS.into())
    }

    /// Checks every range before any takes effect.
    fn check_dataset(
        &mut self,
        entry: &SubmissionEntry,
        namespace: &Arc<Namespace>,
    ) -> Result<(), Status> {
        let command = DatasetManagement::decode(entry);
        for index in 0..command.range_count {
            self.dataset_range(entry, namespace, index)?;
        }
        Ok(())
    }

    /// One range of a Dataset Management command, or `None` when it is empty.
    fn dataset_range(
        &mut self,
        entry: &SubmissionEntry,
        namespace: &Arc<Namespace>,
        index: u16,
    ) -> Result<Option<BlockRange>, Status> {
        let count = DatasetManagement::decode(entry).range_count;
        let length = usize::from(count) * size_of::<DatasetRange>();
        let mut transfer = self.transfer(entry.data_pointer, length)?;
        transfer.skip(usize::from(index) * size_of::<DatasetRange>());
        let range: DatasetRange = transfer.read();
        let checked = namespace
            .range(range.lba.get(), range.block_count.get().into())
            .ok_or(refused(GenericStatus::LbaOutOfRange))?;
        Ok((checked.count > 0).then_some(checked))
    }
}

/// The namespace of a command, or why there is none.
fn namespace_of<'a>(
    namespace: Option<&'a Arc<Namespace>>,
    entry: &SubmissionEntry,
) -> Result<&'a Arc<Namespace>, Status> {
    namespace.ok_or_else(|| inactive(entry.namespace_id()))
}

/// The status for a namespace identifier that is not active (Base 2.0 §3.2.1.2).
pub(crate) fn inactive(id: NamespaceId) -> Status {
    if id.get() == 0 || id.get() > NAMESPACE_ID_MAX {
        refused(GenericStatus::InvalidNamespaceOrFormat)
    } else {
        refused(GenericStatus::InvalidField)
    }
}

/// A fault of the host's: the same command would fail again.
pub(crate) fn refused(code: GenericStatus) -> Status {
    Status::from(code).with_no_retry()
}

pub(crate) fn transfer_status(error: PrpError) -> Status {
    match error {
        PrpError::Offset => refused(GenericStatus::InvalidPrpOffset),
        PrpError::Fault => GenericStatus::DataTransferError.into(),
    }
}

fn flush_now(namespace: &Namespace) -> Result<(), Status> {
    namespace
        .flush()
        .map_err(|error| media_status(NvmOpcode::Flush, error))
}

fn space_of(flags: BlockFlags) -> Space {
    if flags.contains(BlockFlags::DEALLOCATE) {
        Space::Release
    } else {
        Space::Keep
    }
}

/// What a failure of the media means for the command that met it.
fn media_status(opcode: NvmOpcode, error: MediaError) -> Status {
    match (error, opcode) {
        (MediaError::NoSpace, _) => GenericStatus::CapacityExceeded.into(),
        (MediaError::Failed, NvmOpcode::Read | NvmOpcode::Compare | NvmOpcode::Verify) => {
            MediaStatus::UnrecoveredRead.into()
        }
        (MediaError::Failed, NvmOpcode::Write | NvmOpcode::WriteZeroes | NvmOpcode::Flush) => {
            MediaStatus::WriteFault.into()
        }
        (MediaError::Failed | MediaError::Unsupported, _) => GenericStatus::InternalError.into(),
    }
}

const BROADCAST: NamespaceId = NamespaceId::new(u32::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_capacity_exceeded_and_a_broken_one_a_media_error() {
        let write = media_status(NvmOpcode::Write, MediaError::NoSpace);
        assert_eq!(write, GenericStatus::CapacityExceeded.into());
        let zeroes = media_status(NvmOpcode::WriteZeroes, MediaError::NoSpace);
        assert_eq!(zeroes, GenericStatus::CapacityExceeded.into());
        let read = media_status(NvmOpcode::Read, MediaError::Failed);
        assert_eq!(read, MediaStatus::UnrecoveredRead.into());
        let flush = media_status(NvmOpcode::Flush, MediaError::Failed);
        assert_eq!(flush, MediaStatus::WriteFault.into());
    }
}
