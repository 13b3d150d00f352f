//! The work on one submission queue: what is due is ended, what is new is fetched and begun.

use std::sync::atomic::Ordering;

use lode_nvme_spec::{CompletionEntry, NvmOpcode, Status, SubmissionEntry};
use lode_units::{CommandId, Instant, QueueId};

use crate::controller::Shared;
use crate::dma::{DmaFault, DmaTable};
use crate::fault::{FaultAction, Twist};
use crate::namespace::NamespaceTable;
use crate::options::SignalPolicy;
use crate::outstanding::{Command, State};
use crate::queues::{Attention, CompletionQueue, QueueSlot, SubmissionQueue};
use crate::registers::this_thread;
use crate::shadow::{Doorbell, ShadowLayout};

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
        if !self.queue.outstanding.is_empty() {
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

    /// Posts a command's completion. The caller has made sure that there is room for one.
    pub(crate) fn finish(
        &mut self,
        command: &Command,
        status: Status,
        dword_0: u32,
    ) -> Result<(), DmaFault> {
        if !status.is_success() {
            self.log_error(&command.entry, status);
        }
        let id = command.entry.command_id();
        match command.twist {
            Twist::None => self.post(id, status, dword_0),
            Twist::Lose => Ok(()),
            Twist::WrongId => {
                let wrong = CommandId::new(id.get() ^ WRONG_ID_MASK);
                self.post(wrong, status, dword_0)
            }
            Twist::Duplicate => {
                self.post(id, status, dword_0)?;
                if self.has_room()? {
                    self.post(id, status, dword_0)?;
                }
                Ok(())
            }
        }
    }

    /// Ends a command that has a slot, at once or when there is room.
    pub(crate) fn finish_slot(
        &mut self,
        index: u16,
        status: Status,
        dword_0: u32,
    ) -> Result<(), DmaFault> {
        if self.has_room()? {
            let command = self.queue.outstanding.remove(index);
            return self.finish(&command, status, dword_0);
        }
        self.queue
            .outstanding
            .set_state(index, State::Ready(status, dword_0));
        self.is_parked = true;
        Ok(())
    }

    pub(crate) fn post(
        &mut self,
        id: CommandId,
        status: Status,
        dword_0: u32,
    ) -> Result<(), DmaFault> {
        let head = self.queue.head();
        let entry = CompletionEntry::new(self.queue.id, id, head, status, dword_0);
        self.completions.post(self.dma, entry)?;
        self.has_posted = true;
        Ok(())
    }

    /// Whether the completion queue has room for one more.
    pub(crate) fn has_room(&mut self) -> Result<bool, DmaFault> {
        if self.completions.room(self.completion_head) > 0 {
            return Ok(true);
        }
        self.refresh_head()?;
        Ok(self.completions.room(self.completion_head) > 0)
    }

    /// The interrupt vector of the completion queue.
    pub(crate) fn vector(&self) -> Option<u16> {
        self.completions.vector()
    }

    /// Remembers that something waits without a doorbell to announce it.
    pub(crate) const fn park(&mut self) {
        self.is_parked = true;
    }

    fn refresh_head(&mut self) -> Result<(), DmaFault> {
        let queue = self.queue.completion_queue;
        let shadow = self.shadow(queue, Doorbell::CompletionHead)?;
        let entries = self.completions.entries();
        self.completion_head = match shadow.filter(|value| *value < entries) {
            Some(value) => value,
            None => self.completion_slot.head.load(Ordering::Acquire),
        };
        Ok(())
    }

    fn tail(&self) -> Result<u32, DmaFault> {
        let shadow = self.shadow(self.queue.id, Doorbell::SubmissionTail)?;
        let entries = self.queue.entries();
        Ok(match shadow.filter(|value| *value < entries) {
            Some(value) => value,
            None => self.slot.tail.load(Ordering::Acquire),
        })
    }

    fn shadow(&self, queue: QueueId, doorbell: Doorbell) -> Result<Option<u32>, DmaFault> {
        if !self.shared.shadow.is_active() {
            return Ok(None);
        }
        self.shared
            .shadow
            .load(self.dma, self.shadow_layout(), queue, doorbell)
    }

    pub(crate) fn shadow_layout(&self) -> ShadowLayout {
        ShadowLayout {
            stride: self.shared.options.doorbell_stride,
            page: self.page,
        }
    }

    /// Says when this queue is to be looked at again, and wakes whoever sleeps.
    fn settle(&mut self) {
        if let Some(files) = self.queue.files.as_mut() {
            files.ring.submit();
            if files.ring.has_finished() {
                self.shared.queues.mark(self.queue.id);
            }
        }
        let due = match self.queue.outstanding.is_empty() {
            true => Instant::FAR_FUTURE,
            false => self.queue.outstanding.earliest_due(),
        };
        self.slot.due.store(due.as_nanos(), Ordering::SeqCst);
        if due != Instant::FAR_FUTURE {
            self.shared
                .earliest_due
                .fetch_min(due.as_nanos(), Ordering::SeqCst);
        }
        let is_watched = self.is_parked
            || self.queue.file_operations() > 0
            || (self.shared.shadow.is_active() && self.queue.id.get() != 0);
        let attention = match is_watched {
            true => Attention::Always,
            false => Attention::OnDoorbell,
        };
        self.shared.queues.set_busy(self.queue.id, attention);
        if self.has_posted {
            self.fire();
        }
    }

    fn fire(&self) {
        let Some(vector) = self.completions.vector() else {
            return;
        };
        let is_own = match self.shared.options.signal_policy {
            SignalPolicy::Always => false,
            SignalPolicy::OtherThreads => self.slot.ringer.load(Ordering::Relaxed) == this_thread(),
        };
        if !is_own && !self.shared.registers.is_masked(vector) {
            self.shared.interrupts.fire(vector);
        }
    }
}

/// The most commands of one queue that are begun in one call.
const FETCH_MAX: usize = 256;
/// What a wrong command identifier differs by.
const WRONG_ID_MASK: u16 = 0x8000;
