//! The rings of a batch: posting completions, reading doorbells, and saying when to come back.

use std::sync::atomic::Ordering;

use lode_nvme_spec::{CompletionEntry, Status};
use lode_units::{CommandId, Instant, QueueId};

use super::Batch;
use crate::dma::DmaFault;
use crate::fault::Twist;
use crate::options::SignalPolicy;
use crate::outstanding::{Command, State};
use crate::queues::Attention;
use crate::registers::this_thread;
use crate::shadow::{Doorbell, ShadowLayout};

impl Batch<'_> {
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

    pub(super) fn refresh_head(&mut self) -> Result<(), DmaFault> {
        let queue = self.queue.completion_queue;
        let shadow = self.shadow(queue, Doorbell::CompletionHead)?;
        let entries = self.completions.entries();
        self.completion_head = match shadow.filter(|value| *value < entries) {
            Some(value) => value,
            None => self.completion_slot.head.load(Ordering::Acquire),
        };
        Ok(())
    }

    pub(super) fn tail(&self) -> Result<u32, DmaFault> {
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
    pub(super) fn settle(&mut self) {
        if let Some(files) = self.queue.files.as_mut() {
            // Neither of the two will be signalled by anybody: a sleeper must not wait for it.
            if !files.ring.submit() || files.ring.has_finished() {
                self.shared.queues.mark(self.queue.id);
            }
        }
        let due = self.queue.outstanding.earliest_due();
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

/// What a wrong command identifier differs by.
const WRONG_ID_MASK: u16 = 0x8000;
