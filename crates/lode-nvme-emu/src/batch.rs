//! The work on one submission queue: what is due is ended, what is new is fetched and begun.

mod rings;

use std::sync::atomic::Ordering;

use lode_nvme_spec::{NvmOpcode, Status, SubmissionEntry};
use lode_units::Instant;

use crate::controller::Shared;
use crate::dma::{DmaFault, DmaTable};
use crate::fault::{FaultAction, Twist};
use crate::namespace::NamespaceTable;
use crate::outstanding::{Command, State};
use crate::queues::{CompletionQueue, QueueSlot, SubmissionQueue};

/// How a command's execution went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ended, with dword 0 of its completion.
    Done(Status, u32),
    /// It goes on through a file ring.
    File,
    /// It stays open elsewhere and is completed from there.
    Kept,
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self::Done(status, 0)
    }
}

/// A submission queue and the completion queue behind it, both locked by the caller.
pub(crate) struct Locked<'a> {
    pub(crate) queue: &'a mut SubmissionQueue,
    pub(crate) slot: &'a QueueSlot,
    pub(crate) completions: &'a mut CompletionQueue,
    pub(crate) completion_slot: &'a QueueSlot,
}

/// The work on one submission queue and the completion queue behind it, both locked.
pub(crate) struct Batch<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) dma: &'a DmaTable,
    pub(crate) namespaces: &'a NamespaceTable,
    pub(crate) queue: &'a mut SubmissionQueue,
    slot: &'a QueueSlot,
    completions: &'a mut CompletionQueue,
    completion_slot: &'a QueueSlot,
    pub(crate) now: Instant,
    /// The host's page size in bytes.
    pub(crate) page: u64,
    /// How far the host has read the completion queue, as of the last look.
    completion_head: u32,
    has_posted: bool,
    /// Whether something waits that no doorbell will announce.
    is_parked: bool,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        dma: &'a DmaTable,
        namespaces: &'a NamespaceTable,
        locked: Locked<'a>,
        now: Instant,
    ) -> Self {
        let page_shift = 12 + u32::from(shared.registers.configuration().page_size);
        let Locked {
            queue,
            slot,
            completions,
            completion_slot,
        } = locked;
        Self {
            shared,
            dma,
            namespaces,
            completion_head: completion_slot.head.load(Ordering::Acquire),
            queue,
            slot,
            completions,
            completion_slot,
            now,
            page: 1 << page_shift,
            has_posted: false,
            is_parked: false,
        }
    }

    /// Does what there is to do on the queue. A queue that the host has hidden or misplaced leaves
    /// nothing to go on with: the controller fails.
    pub(crate) fn work(mut self) {
        if self.run().is_err() {
            self.shared.fail();
        }
        self.settle();
    }
}

impl Batch<'_> {
    fn run(&mut self) -> Result<(), DmaFault> {
        if !self.shared.is_running.load(Ordering::Acquire) {
            return Ok(());
        }
        self.refresh_head()?;
        if self.queue.file_operations() > 0 {
            self.reap_files()?;
        }
        let is_due = self.slot.due.load(Ordering::Relaxed) <= self.now.as_nanos();
        if is_due || self.queue.outstanding.has_parked() {
            self.collect()?;
        }
        self.fetch_all()?;
        if self.queue.id.get() == 0 {
            self.admin_housekeeping()?;
        }
        Ok(())
    }

    /// Ends what is due and what found no room before.
    fn collect(&mut self) -> Result<(), DmaFault> {
        let mut position = 0;
        while let Some((index, state)) = self.queue.outstanding.at(position) {
            if !self.has_room()? {
                self.is_parked = true;
                return Ok(());
            }
            match state {
                State::Delayed(due) if due <= self.now => {
                    let command = self.queue.outstanding.remove(index);
                    self.execute(command)?;
                }
                State::Ready(status, dword_0) => {
                    let command = self.queue.outstanding.remove(index);
                    self.finish(&command, status, dword_0)?;
                }
                State::Waiting(task) => {
                    self.continue_file(index, task)?;
                    let still = self.queue.outstanding.at(position);
                    if still.is_some_and(|(there, _state)| there == index) {
                        position += 1;
                    }
                }
                State::Delayed(_) | State::Hung | State::File(_) => position += 1,
            }
        }
        Ok(())
    }

    /// Reads new commands and begins them.
    fn fetch_all(&mut self) -> Result<(), DmaFault> {
        let tail = self.tail()?;
        for _fetched in 0..FETCH_MAX {
            if self.queue.is_read_up_to(tail) || self.queue.is_closing {
                return Ok(());
            }
            if self.queue.outstanding.is_full() {
                return Ok(());
            }
            if !self.has_room()? {
                self.is_parked = true;
                return Ok(());
            }
            let entry = self.queue.fetch(self.dma)?;
            self.begin(entry)?;
            if !self.shared.is_running.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        self.shared.queues.mark(self.queue.id);
        Ok(())
    }

    /// Begins one command: faults first, then its time.
    fn begin(&mut self, entry: SubmissionEntry) -> Result<(), DmaFault> {
        let mut due = self.now;
        if self.queue.id.get() == 0 {
            self.queue.counters.admin += 1;
        } else {
            let length = self.length_of(&entry);
            self.queue.counters.count(&entry, length);
            if self.shared.has_latency {
                due = self.due(&entry, length);
            }
        }
        let mut command = Command {
            entry,
            twist: Twist::None,
            forced: None,
        };
        match self.shared.faults.on_command(self.queue.id, &entry) {
            None => {}
            Some(FaultAction::Drop) => return self.hold(command, State::Hung),
            Some(FaultAction::LoseCompletion) => command.twist = Twist::Lose,
            Some(FaultAction::Delay(delay)) => due += delay,
            Some(FaultAction::DuplicateCompletion) => command.twist = Twist::Duplicate,
            Some(FaultAction::WrongCommandId) => command.twist = Twist::WrongId,
            Some(FaultAction::Status(status)) => command.forced = Some(status),
            Some(FaultAction::Device(fault)) => {
                self.shared.apply(fault);
                if !self.shared.is_running.load(Ordering::Relaxed) {
                    return self.hold(command, State::Hung);
                }
            }
        }
        if due > self.now {
            self.slot.due.fetch_min(due.as_nanos(), Ordering::SeqCst);
            return self.hold(command, State::Delayed(due));
        }
        self.execute(command)
    }

    /// How many bytes the blocks of a command are together; 0 where there are none.
    fn length_of(&self, entry: &SubmissionEntry) -> u64 {
        let count = u64::from(entry.dword_12.get() & 0xFFFF) + 1;
        self.namespaces
            .active(entry.namespace_id())
            .map_or(0, |namespace| count << namespace.block_size().shift())
    }

    fn due(&self, entry: &SubmissionEntry, length: u64) -> Instant {
        let opcode = NvmOpcode::from_raw(entry.opcode);
        let moves = matches!(
            opcode,
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare
        );
        let length = if moves { length } else { 0 };
        self.shared.latency().due(opcode, length, self.now)
    }

    /// Keeps a command for later; `fetch_all` has made sure that there is a slot.
    pub(crate) fn hold(&mut self, command: Command, state: State) -> Result<(), DmaFault> {
        let slot = self.queue.outstanding.insert(command, state);
        assert!(
            slot.is_some(),
            "a slot was free when the command was fetched"
        );
        Ok(())
    }

    pub(crate) fn execute(&mut self, command: Command) -> Result<(), DmaFault> {
        let outcome = match command.forced {
            Some(status) => status.into(),
            None if self.queue.id.get() == 0 => self.execute_admin(&command.entry)?,
            None => self.execute_io(&command.entry),
        };
        match outcome {
            Outcome::Done(status, dword_0) => self.finish(&command, status, dword_0),
            Outcome::File => self.start_file(command),
            Outcome::Kept => Ok(()),
        }
    }
}

/// The most commands of one queue that are begun in one call.
const FETCH_MAX: usize = 256;
