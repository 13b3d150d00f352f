//! Commands that run through a file ring: each is a few operations, one after the other, with the
//! command's slot as their token.
//!
//! A transfer that lies in one aligned run of the host's memory goes there directly; any other,
//! and whatever is compared, goes through a bounce buffer. A command that finds no bounce buffer
//! free waits for one.

mod place;

use std::sync::Arc;

use lode_nvme_spec::command::DatasetManagement;
use lode_nvme_spec::{GenericStatus, MediaStatus, NvmOpcode, Status, SubmissionEntry};

use super::{BROADCAST, Checked, inactive, media_status, refused, space_of};
use crate::backing::{FileData, FileOp, Media, MediaError, Reach, Space};
use crate::batch::Batch;
use crate::bounce::Bounce;
use crate::dma::DmaFault;
use crate::namespace::Namespace;
use crate::outstanding::{Command, State};

/// How far a command on a file has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileTask {
    /// Bytes that were moved.
    moved: u64,
    /// Which range, namespace or step comes next.
    step: u32,
    bounce: Option<Bounce>,
}

/// What a command on a file needs next.
enum Next {
    /// An operation.
    Start(Media, FileOp),
    /// A bounce buffer, and none is free.
    Wait,
    /// Nothing: it is done.
    Finished,
}

impl Batch<'_> {
    /// Begins a command whose namespace lies on a file.
    pub(crate) fn start_file(&mut self, command: Command) -> Result<(), DmaFault> {
        if self.queue.files.is_none() {
            let vector = self.vector();
            let capacity = self.queue.outstanding.capacity();
            match self.make_file_work(capacity, vector) {
                Some(files) => self.queue.files = Some(files),
                None => {
                    return self.finish(&command, GenericStatus::InternalError.into(), 0);
                }
            }
        }
        let task = FileTask::default();
        let Some(index) = self.queue.outstanding.insert(command, State::File(task)) else {
            // Two commands became due for one slot; the host may try again.
            return self.finish(&command, GenericStatus::CommandInterrupted.into(), 0);
        };
        self.continue_file(index, task)
    }

    /// Takes the results of operations that ended.
    pub(crate) fn reap_files(&mut self) -> Result<(), DmaFault> {
        while let Some(files) = self.queue.files.as_mut() {
            let Some(finished) = files.ring.reap() else {
                return Ok(());
            };
            let State::File(mut task) = self.queue.outstanding.state(finished.token) else {
                continue;
            };
            let entry = self.queue.outstanding.command(finished.token).entry;
            let opcode = NvmOpcode::from_raw(entry.opcode);
            match finished.outcome {
                Ok(0) if moves_bytes(opcode, &task) => {
                    // The file ended early: somebody has cut it.
                    let status = media_status(opcode, MediaError::Failed);
                    self.end_file(finished.token, task, status)?;
                }
                Ok(moved) => {
                    task.moved += moved as u64;
                    task.step += 1;
                    self.continue_file(finished.token, task)?;
                }
                Err(error) => {
                    let status = media_status(opcode, error);
                    self.end_file(finished.token, task, status)?;
                }
            }
        }
        Ok(())
    }

    /// Does the next step of a command on a file.
    pub(crate) fn continue_file(&mut self, index: u16, mut task: FileTask) -> Result<(), DmaFault> {
        let entry = self.queue.outstanding.command(index).entry;
        match self.next_step(&entry, &mut task) {
            Ok(Next::Start(media, op)) => {
                self.queue.outstanding.set_state(index, State::File(task));
                if let Some(files) = self.queue.files.as_mut() {
                    files.ring.start(index, &media, &op);
                }
                Ok(())
            }
            Ok(Next::Wait) => {
                self.queue
                    .outstanding
                    .set_state(index, State::Waiting(task));
                self.park();
                Ok(())
            }
            Ok(Next::Finished) => self.end_file(index, task, Status::SUCCESS),
            Err(status) => self.end_file(index, task, status),
        }
    }

    fn end_file(&mut self, index: u16, task: FileTask, status: Status) -> Result<(), DmaFault> {
        if let (Some(bounce), Some(files)) = (task.bounce, self.queue.files.as_mut()) {
            files.bounce.take_back(bounce);
        }
        self.finish_slot(index, status, 0)
    }

    fn next_step(&mut self, entry: &SubmissionEntry, task: &mut FileTask) -> Result<Next, Status> {
        let opcode = NvmOpcode::from_raw(entry.opcode);
        if opcode == NvmOpcode::Flush {
            return self.next_flush(entry, task);
        }
        let id = entry.namespace_id();
        let namespaces = self.namespaces;
        let namespace = namespaces.active(id).ok_or_else(|| inactive(id))?;
        if opcode == NvmOpcode::DatasetManagement {
            return self.next_deallocate(entry, namespace, task);
        }
        let checked = self.check_blocks(entry, namespace)?;
        match opcode {
            NvmOpcode::Read => self.next_read(entry, &checked, task),
            NvmOpcode::Write => self.next_write(entry, &checked, task),
            NvmOpcode::Compare => self.next_compare(entry, &checked, task),
            NvmOpcode::Verify => self.next_verify(&checked, task),
            NvmOpcode::WriteZeroes => self.next_zero(&checked, task),
            NvmOpcode::Flush
            | NvmOpcode::DatasetManagement
            | NvmOpcode::WriteUncorrectable
            | NvmOpcode::Copy
            | NvmOpcode::Other(_) => Err(refused(GenericStatus::InvalidOpcode)),
        }
    }

    fn next_read(
        &mut self,
        entry: &SubmissionEntry,
        checked: &Checked<'_>,
        task: &mut FileTask,
    ) -> Result<Next, Status> {
        let is_done = task.moved >= checked.length as u64;
        if let Some(bounce) = task.bounce.filter(|_| is_done) {
            let (memory, offset, _each) = self.bounce(bounce)?;
            let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
            transfer.copy_in(&memory, offset, checked.length);
        }
        if is_done {
            return Ok(Next::Finished);
        }
        let Some(data) = self.place_data(entry, checked, task)? else {
            return Ok(Next::Wait);
        };
        let media = checked.namespace.media().clone();
        Ok(Next::Start(media, FileOp::Read(data)))
    }

    fn next_write(
        &mut self,
        entry: &SubmissionEntry,
        checked: &Checked<'_>,
        task: &mut FileTask,
    ) -> Result<Next, Status> {
        if task.moved >= checked.length as u64 {
            return Ok(Next::Finished);
        }
        let had_bounce = task.bounce.is_some();
        let Some(data) = self.place_data(entry, checked, task)? else {
            return Ok(Next::Wait);
        };
        if let Some(bounce) = task.bounce.filter(|_| !had_bounce) {
            let (memory, offset, _each) = self.bounce(bounce)?;
            let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
            transfer.copy_out(&memory, offset, checked.length);
        }
        let media = checked.namespace.media().clone();
        let reach = checked.namespace.effective_reach(self.reach(checked.flags));
        Ok(Next::Start(media, FileOp::Write(data, reach)))
    }

    fn next_compare(
        &mut self,
        entry: &SubmissionEntry,
        checked: &Checked<'_>,
        task: &mut FileTask,
    ) -> Result<Next, Status> {
        let Some(bounce) = self.need_bounce(task)? else {
            return Ok(Next::Wait);
        };
        if task.moved < checked.length as u64 {
            return self.read_into_bounce(checked, task, bounce, task.moved);
        }
        let (memory, offset, _each) = self.bounce(bounce)?;
        let mut transfer = self.transfer(entry.data_pointer, checked.length)?;
        if transfer.equals(&memory, offset, checked.length) {
            Ok(Next::Finished)
        } else {
            Err(MediaStatus::CompareFailure.into())
        }
    }

    fn next_verify(&mut self, checked: &Checked<'_>, task: &mut FileTask) -> Result<Next, Status> {
        if task.moved >= checked.length as u64 {
            return Ok(Next::Finished);
        }
        let Some(bounce) = self.need_bounce(task)? else {
            return Ok(Next::Wait);
        };
        self.read_into_bounce(checked, task, bounce, 0)
    }

    /// Reads what is left of the range into a bounce buffer, `within` bytes into it.
    fn read_into_bounce(
        &mut self,
        checked: &Checked<'_>,
        task: &FileTask,
        bounce: Bounce,
        within: u64,
    ) -> Result<Next, Status> {
        let (memory, offset, each) = self.bounce(bounce)?;
        let within = index(within)?;
        let (position, length) = checked.namespace.bytes(checked.range);
        let left = index(length - task.moved)?;
        let data = FileData {
            memory,
            offset: offset + within,
            length: left.min(each - within),
            position: position + task.moved,
        };
        Ok(Next::Start(
            checked.namespace.media().clone(),
            FileOp::Read(data),
        ))
    }

    /// Zeroes the range, then syncs it where the command asks for that.
    fn next_zero(&mut self, checked: &Checked<'_>, task: &mut FileTask) -> Result<Next, Status> {
        let media = checked.namespace.media().clone();
        let (position, length) = checked.namespace.bytes(checked.range);
        if !media.can_zero() {
            return self.next_written_zeros(checked, task);
        }
        match task.step {
            0 => Ok(Next::Start(
                media,
                FileOp::Zero {
                    position,
                    length,
                    space: space_of(checked.flags),
                },
            )),
            1 if checked.namespace.effective_reach(self.reach(checked.flags)) == Reach::Stable => {
                Ok(Next::Start(media, FileOp::Sync))
            }
            _ => Ok(Next::Finished),
        }
    }

    /// Writes zeros where the file system cannot make them.
    fn next_written_zeros(
        &mut self,
        checked: &Checked<'_>,
        task: &mut FileTask,
    ) -> Result<Next, Status> {
        let (position, length) = checked.namespace.bytes(checked.range);
        if task.moved >= length {
            return Ok(Next::Finished);
        }
        let had_bounce = task.bounce.is_some();
        let Some(bounce) = self.need_bounce(task)? else {
            return Ok(Next::Wait);
        };
        let (memory, offset, each) = self.bounce(bounce)?;
        if !had_bounce {
            memory.fill_zero(offset, each);
        }
        let data = FileData {
            memory,
            offset,
            length: index(length - task.moved)?.min(each),
            position: position + task.moved,
        };
        let reach = checked.namespace.effective_reach(self.reach(checked.flags));
        let media = checked.namespace.media().clone();
        Ok(Next::Start(media, FileOp::Write(data, reach)))
    }

    fn next_deallocate(
        &mut self,
        entry: &SubmissionEntry,
        namespace: &Arc<Namespace>,
        task: &mut FileTask,
    ) -> Result<Next, Status> {
        let command = DatasetManagement::decode(entry);
        if task.step == 0 {
            self.check_dataset(entry, namespace)?;
        }
        if !command.deallocates || !namespace.media().can_release() {
            return Ok(Next::Finished);
        }
        while task.step < u32::from(command.range_count) {
            let number = u16::try_from(task.step).map_err(|_error| GenericStatus::InternalError)?;
            let Some(range) = self.dataset_range(entry, namespace, number)? else {
                task.step += 1;
                continue;
            };
            let (position, length) = namespace.bytes(range);
            let op = FileOp::Zero {
                position,
                length,
                space: Space::Release,
            };
            return Ok(Next::Start(namespace.media().clone(), op));
        }
        Ok(Next::Finished)
    }

    /// Syncs one namespace after the other; `step` counts those that were looked at.
    fn next_flush(&mut self, entry: &SubmissionEntry, task: &mut FileTask) -> Result<Next, Status> {
        let id = entry.namespace_id();
        let namespaces = self.namespaces;
        let is_meant = |each: &&Arc<Namespace>| id == BROADCAST || each.id() == id;
        loop {
            let step = usize::try_from(task.step).map_err(|_error| GenericStatus::InternalError)?;
            let Some(namespace) = namespaces.iter().filter(is_meant).nth(step) else {
                return Ok(Next::Finished);
            };
            if namespace.wants_ring() && !namespace.lies_about_flush() {
                return Ok(Next::Start(namespace.media().clone(), FileOp::Sync));
            }
            super::flush_now(namespace)?;
            task.step += 1;
        }
    }
}

/// Whether an operation of this command that moves no byte has failed.
fn moves_bytes(opcode: NvmOpcode, task: &FileTask) -> bool {
    match opcode {
        NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare | NvmOpcode::Verify => true,
        // Zeros that are written have a bounce buffer; those that the file system makes do not.
        NvmOpcode::WriteZeroes => task.bounce.is_some(),
        NvmOpcode::Flush
        | NvmOpcode::DatasetManagement
        | NvmOpcode::WriteUncorrectable
        | NvmOpcode::Copy
        | NvmOpcode::Other(_) => false,
    }
}

fn index(value: u64) -> Result<usize, Status> {
    usize::try_from(value).map_err(|_error| GenericStatus::InternalError.into())
}
