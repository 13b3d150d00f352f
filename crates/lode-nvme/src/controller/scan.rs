//! Finding out which namespaces there are (Base 2.0 §5.17.2.2), at bring-up and later.

use lode_bus::Bus;
use lode_nvme_spec::Status;
use lode_nvme_spec::identify::{IdentifyNamespace, NamespaceList};
use lode_units::{Instant, NamespaceId};

use super::events::ControllerEvent;
use super::start::{FIRST_LIST, Purpose, Step};
use super::{Controller, ControllerState};
use crate::admin::AdminCompletion;
use crate::error::Failure;
use crate::link::LinkState;
use crate::namespace::{Namespace, Refusal};
use crate::options::QueueOptions;

/// A scan of the namespaces in progress.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) is_running: bool,
    ids: Vec<NamespaceId>,
    next: usize,
    found: Vec<Namespace>,
    refused: Vec<(NamespaceId, Refusal)>,
}

impl Scan {
    const fn new() -> Self {
        Self {
            is_running: true,
            ids: Vec::new(),
            next: 0,
            found: Vec::new(),
            refused: Vec::new(),
        }
    }
}

impl<B: Bus> Controller<B> {
    /// Begins a scan of the namespaces of a controller in use.
    pub(super) fn begin_scan(&mut self) {
        self.start_scan();
        self.begin_step(FIRST_LIST);
    }

    /// Whatever a queue doubts from now on takes another scan.
    pub(super) fn start_scan(&mut self) {
        self.scan = Scan::new();
        self.shared.begin_scan();
    }

    pub(super) fn learn_list(
        &mut self,
        after: NamespaceId,
        status: Status,
        completion: &AdminCompletion<Purpose>,
    ) -> Option<Step> {
        if !status.is_success() {
            // Version 1.0 has no such list: every identifier up to NN may be a namespace.
            if self.scan.ids.is_empty() {
                let last = self.facts.namespace_id_max.min(NAMESPACES_MAX_U32);
                self.scan.ids = (1..=last).map(NamespaceId::new).collect();
            }
            return self.next_namespace();
        }
        let list: NamespaceList = self.admin.data(completion, 0);
        let mut last = after;
        let mut count = 0;
        for id in list.iter() {
            // A list that does not ascend would never end.
            if id <= last || self.scan.ids.len() >= NAMESPACES_MAX {
                return self.next_namespace();
            }
            self.scan.ids.push(id);
            last = id;
            count += 1;
        }
        if count == NamespaceList::LENGTH_MAX && last.get() < NAMESPACE_ID_LAST {
            return Some(Step::ListNamespaces { after: last });
        }
        self.next_namespace()
    }

    pub(super) fn learn_namespace(
        &mut self,
        id: NamespaceId,
        status: Status,
        completion: &AdminCompletion<Purpose>,
    ) -> Option<Step> {
        if status.is_success() {
            let identify: IdentifyNamespace = self.admin.data(completion, 0);
            let depth = u32::from(self.entries(QueueOptions::default().entries) - 1);
            match self.facts.offer(depth).namespace(id, &identify) {
                Some(Ok(namespace)) => self.scan.found.push(namespace),
                Some(Err(refusal)) => self.scan.refused.push((id, refusal)),
                None => {}
            }
        } else {
            let status = status.raw();
            self.scan.refused.push((id, Refusal::Identify { status }));
        }
        self.next_namespace()
    }

    fn next_namespace(&mut self) -> Option<Step> {
        let id = *self.scan.ids.get(self.scan.next)?;
        self.scan.next += 1;
        Some(Step::IdentifyNamespace { id })
    }

    pub(super) fn finish_scan(&mut self) {
        let scan = std::mem::take(&mut self.scan);
        self.namespaces = scan.found;
        self.refused = scan.refused;
        let mut changed = None;
        for entry in &self.links {
            let claim = &entry.link.claim;
            let found = self.namespaces.iter();
            let found = found.into_iter().find(|found| found.id == claim.namespace);
            let is_same = found.is_some_and(|found| claim.holds_for(found));
            entry.link.note_attached(is_same);
            if found.is_some() && !is_same && matches!(entry.link.state(), LinkState::Live { .. }) {
                changed = Some(claim.namespace);
            }
        }
        self.shared.finish_scan();
        if self.state == ControllerState::Starting {
            if let Some(identity) = &mut self.facts.identity {
                identity.write_cache = self.facts.write_cache;
                identity.uses_shadow_doorbells = self.facts.uses_shadow;
            }
            self.enter(ControllerState::Ready, Instant::FAR_FUTURE);
            self.note_ready();
        } else {
            self.events
                .push(ControllerEvent::NamespacesChanged, &mut self.stats);
            // What is in flight may already reach what is in its place: only a reset stops it.
            if let Some(namespace) = changed {
                self.recover(Failure::NamespaceChanged { namespace });
            }
        }
    }
}

/// The most namespaces that are looked at; a device with more shows its first.
const NAMESPACES_MAX: usize = 4096;
const NAMESPACES_MAX_U32: u32 = 4096;
/// The largest identifier after which a list can be asked for (§5.17.2.2).
const NAMESPACE_ID_LAST: u32 = 0xFFFF_FFFD;
