//! Where the data of a command on a file go: the host's memory, or a bounce buffer.

use lode_bus::DmaMemory;
use lode_nvme_spec::{GenericStatus, Status, SubmissionEntry};

use super::{FileTask, index};
use crate::backing::{Access, FileData, FileRing};
use crate::batch::Batch;
use crate::bounce::{Bounce, BounceBuffers};
use crate::io::Checked;
use crate::prp::Transfer;
use crate::queues::FileWork;

impl Batch<'_> {
    /// Where the rest of a read or write goes: the host's memory, or a bounce buffer. `None` when
    /// one is needed and none is free.
    pub(super) fn place_data(
        &mut self,
        entry: &SubmissionEntry,
        checked: &Checked<'_>,
        task: &mut FileTask,
    ) -> Result<Option<FileData>, Status> {
        let (position, length) = checked.namespace.bytes(checked.range);
        let moved = index(task.moved)?;
        let left = index(length)? - moved;
        let position = position + task.moved;
        if task.bounce.is_none() {
            let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
            let access = checked.namespace.media().access();
            if let Some(data) = direct(&mut transfer, checked.length, moved, position, access) {
                return Ok(Some(data));
            }
        }
        let Some(bounce) = self.need_bounce(task)? else {
            return Ok(None);
        };
        let (memory, offset, _each) = self.bounce(bounce)?;
        Ok(Some(FileData {
            memory,
            offset: offset + moved,
            length: left,
            position,
        }))
    }

    /// The task's bounce buffer, lent now if it has none; `None` when all are lent.
    pub(super) fn need_bounce(&mut self, task: &mut FileTask) -> Result<Option<Bounce>, Status> {
        if task.bounce.is_none() {
            let files = self
                .queue
                .files
                .as_mut()
                .ok_or(GenericStatus::InternalError)?;
            task.bounce = files.bounce.lend();
        }
        Ok(task.bounce)
    }

    /// A bounce buffer's memory, its offset in it, and its length.
    pub(super) fn bounce(&self, bounce: Bounce) -> Result<(DmaMemory, usize, usize), Status> {
        let files = self
            .queue
            .files
            .as_ref()
            .ok_or(GenericStatus::InternalError)?;
        let buffers = &files.bounce;
        Ok((
            buffers.memory().clone(),
            buffers.offset(bounce),
            buffers.each_bytes(),
        ))
    }

    /// A ring and bounce buffers for this queue: once, when its first command needs them or when
    /// it is created while a namespace lies on a file.
    pub(crate) fn make_file_work(&self, capacity: u16, vector: Option<u16>) -> Option<FileWork> {
        let each = usize::try_from(self.shared.options.transfer_max_bytes()).ok()?;
        let mut ring = FileRing::with_capacity(capacity);
        if let Some(vector) = vector
            && let Some(signal) = self.shared.interrupts.descriptor(vector)
        {
            // Without it a sleeper is not woken; a poller finds the completions all the same.
            let _is_unsignalled = ring.register_signal(signal).is_err();
        }
        let bounce = BounceBuffers::of(each).ok()?;
        Some(FileWork { ring, bounce })
    }
}

/// The rest of a transfer as one operation on the host's memory, where that is possible.
fn direct(
    transfer: &mut Transfer<'_>,
    length: usize,
    moved: usize,
    position: u64,
    access: Access,
) -> Option<FileData> {
    let (memory, offset, taken) = transfer.take(length)?;
    let data = FileData {
        memory: memory.clone(),
        offset: offset + moved,
        length: length - moved,
        position,
    };
    let fits = access != Access::FileDirect || data.is_aligned();
    (taken == length && fits).then_some(data)
}
