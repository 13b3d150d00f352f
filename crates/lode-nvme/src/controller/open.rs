//! Opening an I/O queue pair: its memory, its identifier, its two halves.

use std::sync::Arc;

use lode_bus::{Bus, BusError, IovaSpace, PagePreference};
use lode_nvme_spec::registers::{completion_doorbell, submission_doorbell};
use lode_units::{NamespaceId, QueueId};

use super::links::LinkEntry;
use super::{Controller, ControllerState};
use crate::error::NvmeError;
use crate::link::{Link, LinkParts};
use crate::namespace::{Claim, Namespace};
use crate::options::QueueOptions;
use crate::prp::PrpLists;
use crate::queue::{NamespaceQueue, QueueParts};
use crate::ring::{CompletionRing, SubmissionRing};

/// Where the parts of a queue pair lie in its memory.
struct Layout {
    completion_offset: usize,
    list_offset: usize,
    length_bytes: usize,
}

impl Layout {
    /// Rings and lists each begin at a page of the controller.
    fn new(entries: u16, page_shift: u32, transfer_max_bytes: u32) -> Self {
        let page = 1_usize << page_shift;
        let completion_offset = SubmissionRing::length_bytes(entries).next_multiple_of(page);
        let completion_end = completion_offset + CompletionRing::length_bytes(entries);
        let list_offset = completion_end.next_multiple_of(page);
        let stride = PrpLists::stride_bytes(page_shift, transfer_max_bytes);
        Self {
            completion_offset,
            list_offset,
            length_bytes: list_offset + stride * usize::from(entries - 1),
        }
    }
}

impl<B: Bus> Controller<B> {
    pub(super) fn open_link(
        &mut self,
        namespace: NamespaceId,
        options: QueueOptions,
        space: &IovaSpace,
    ) -> Result<NamespaceQueue<B>, NvmeError> {
        self.check_alive()?;
        if self.state != ControllerState::Ready {
            return Err(NvmeError::NotReady);
        }
        let found = self.find_namespace(namespace)?.clone();
        let queue = self.free_queue_id()?;
        self.check_vector(options.interrupt_vector)?;
        let entries = self.entries(options.entries);
        let layout = Layout::new(
            entries,
            self.page_min_shift(),
            found.geometry.transfer_max_bytes,
        );
        let memory = space.allocate(layout.length_bytes, PagePreference::HugeIfReserved)?;
        self.shared.bus.map(&memory)?;
        let stride = self.capabilities.doorbell_stride;
        let submission = SubmissionRing::new(memory.clone(), 0, entries);
        let completion = CompletionRing::new(memory.clone(), layout.completion_offset, entries);
        let link = Arc::new(Link::new(LinkParts {
            queue,
            claim: Claim::on(&found),
            entries,
            submission_base: submission.base(),
            completion_base: completion.base(),
            interrupt_vector: options.interrupt_vector,
            memory: memory.clone(),
            epoch: self.shared.view().epoch(),
        }));
        self.links.push(LinkEntry::new(Arc::clone(&link)));
        let [submission_shadow, completion_shadow] = self.shadows(queue);
        Ok(NamespaceQueue::new(QueueParts {
            shared: Arc::clone(&self.shared),
            registers: self.shared.bus.registers(),
            link,
            submission,
            completion,
            submission_doorbell: (submission_doorbell(queue, stride), submission_shadow),
            completion_doorbell: (completion_doorbell(queue, stride), completion_shadow),
            lists: PrpLists::new(
                memory,
                layout.list_offset,
                self.page_min_shift(),
                found.geometry.transfer_max_bytes,
            ),
            namespace: found,
            options,
        }))
    }

    fn find_namespace(&self, id: NamespaceId) -> Result<&Namespace, NvmeError> {
        if let Some(found) = self.namespaces.iter().find(|known| known.id == id) {
            return Ok(found);
        }
        match self.refused.iter().find(|(known, _)| *known == id) {
            Some((_, reason)) => Err(NvmeError::UnusableNamespace {
                id,
                reason: *reason,
            }),
            None => Err(NvmeError::NoNamespace { id }),
        }
    }

    fn free_queue_id(&self) -> Result<QueueId, NvmeError> {
        let granted = self.facts.queue_pairs;
        (1..=granted)
            .map(QueueId::new)
            .find(|id| self.links.iter().all(|entry| entry.link.queue != *id))
            .ok_or(NvmeError::NoQueueLeft { granted })
    }

    fn check_vector(&self, vector: Option<u16>) -> Result<(), NvmeError> {
        let count = self.shared.bus.interrupt_count();
        match vector {
            Some(vector) if vector >= count => Err(BusError::NoVector { vector, count }.into()),
            _ => Ok(()),
        }
    }

    /// As many entries as asked for, within what the program and the controller can.
    pub(super) fn entries(&self, asked: u16) -> u16 {
        let largest = u16::try_from(self.capabilities.queue_entries_max()).unwrap_or(u16::MAX);
        asked
            .clamp(QueueOptions::ENTRIES_MIN, QueueOptions::ENTRIES_MAX)
            .min(largest)
    }
}
