//! What a test or an operator does to a controller from outside: faults, hot-plug, health, and a
//! look at its counters and media.

use std::sync::atomic::Ordering;

use lode_nvme_spec::log_page::CriticalWarning;
use lode_units::{NamespaceId, QueueId};

use crate::backing::{Access, Media};
use crate::controller::{EmulatedController, Shared};
use crate::counters::{Counters, OperationCounters};
use crate::error::EmulatorError;
use crate::fault::{DeviceFault, FaultRule};
use crate::namespace::Namespace;
use crate::options::NamespaceOptions;

impl EmulatedController {
    /// Adds a rule to the fault script; it counts from now on.
    ///
    /// # Errors
    /// At 64 rules.
    pub fn install_fault(&self, rule: FaultRule) -> Result<(), EmulatorError> {
        self.shared.faults.install(rule)
    }

    /// Drops every rule. Commands that were dropped stay so until they are aborted.
    pub fn clear_faults(&self) {
        self.shared.faults.clear();
    }

    /// Lets a fault of the whole controller happen now.
    pub fn apply(&self, fault: DeviceFault) {
        self.shared.apply(fault);
    }

    /// Ends [`DeviceFault::StuckReady`]: CSTS.RDY follows CC.EN again.
    pub fn release_ready(&self) {
        self.shared.is_ready_stuck.store(false, Ordering::Release);
        self.shared.registers.mark_control();
    }

    /// Plugs a removed controller in again: powered on and disabled.
    pub fn reinsert(&self) {
        self.shared.registers.set_present();
        self.shared.reset_function();
    }

    /// Adds a namespace under the lowest free identifier and tells the host.
    ///
    /// # Errors
    /// When its size does not fit its blocks, or no identifier is free.
    pub fn add_namespace(&self, options: NamespaceOptions) -> Result<NamespaceId, EmulatorError> {
        let id = self.shared.namespaces.update(|table| table.add(options))?;
        self.tell_namespace_change(id);
        Ok(id)
    }

    /// Takes a namespace away and tells the host. Returns whether it was there.
    #[must_use]
    pub fn remove_namespace(&self, namespace: NamespaceId) -> bool {
        let was_there = self
            .shared
            .namespaces
            .update(|table| table.remove(namespace))
            .is_some();
        if was_there {
            self.tell_namespace_change(namespace);
        }
        was_there
    }

    /// Sets the critical warnings of the health log; the host is told of those that are new.
    pub fn set_critical_warnings(&self, warnings: CriticalWarning) {
        self.shared.admin().set_warnings(warnings.bits());
        self.shared.queues.mark(ADMIN);
    }

    /// Sets the composite temperature; beyond the host's thresholds it is a critical warning.
    pub fn set_temperature_kelvin(&self, kelvin: u16) {
        self.shared.admin().set_temperature(kelvin);
        self.shared.queues.mark(ADMIN);
    }

    /// Switches whether Flush and FUA of a namespace are lies. Returns whether it is there.
    #[must_use]
    pub fn set_lies_about_flush(&self, namespace: NamespaceId, lies: bool) -> bool {
        self.with(namespace, |namespace| namespace.set_lies_about_flush(lies))
            .is_some()
    }

    /// The media of a namespace: what would be left after the power was cut and every unflushed
    /// write lost.
    #[must_use]
    pub fn media(&self, namespace: NamespaceId) -> Option<Media> {
        self.with(namespace, |namespace| namespace.media().clone())
    }

    /// How the media of a namespace are reached.
    #[must_use]
    pub fn access(&self, namespace: NamespaceId) -> Option<Access> {
        self.with(namespace, |namespace| namespace.media().access())
    }

    /// How many versions of blocks sit in the modelled cache of a namespace.
    #[must_use]
    pub fn unflushed_count(&self, namespace: NamespaceId) -> Option<u64> {
        self.with(namespace, Namespace::unflushed_count)
    }

    /// The size of a namespace in blocks.
    #[must_use]
    pub fn block_count(&self, namespace: NamespaceId) -> Option<u64> {
        self.with(namespace, Namespace::block_count)
    }

    /// Commands that were fetched and have not completed, over all queues. Asynchronous event
    /// requests do not count.
    #[must_use]
    pub fn outstanding_count(&self) -> usize {
        let count = |slot: &crate::queues::QueueSlot| {
            let queue = slot.lock_submission();
            queue.as_ref().map_or(0, |queue| queue.outstanding.count())
        };
        self.shared
            .queues
            .iter()
            .map(|(_id, slot)| count(slot))
            .sum()
    }

    /// Everything that was counted since the controller was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let rings = self.shared.queues.iter().map(|(_id, slot)| slot.rings());
        let (submission_doorbells, completion_doorbells) =
            rings.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Counters {
            operations: self.shared.operations(None),
            submission_doorbells,
            completion_doorbells,
            dma_faults: self.shared.dma.read().fault_count(),
            faults_injected: self.shared.faults.fired(),
            resets: self.shared.resets.load(Ordering::Relaxed),
            commands_vanished: self.shared.vanished.load(Ordering::Relaxed),
        }
    }

    fn with<T>(&self, id: NamespaceId, read: impl FnOnce(&Namespace) -> T) -> Option<T> {
        let namespaces = self.shared.namespaces.read();
        namespaces.active(id).map(|namespace| read(namespace))
    }

    fn tell_namespace_change(&self, namespace: NamespaceId) {
        self.shared.admin().namespace_changed(namespace.get());
        self.shared.queues.mark(ADMIN);
    }
}

impl Shared {
    /// Commands by kind over all queues, apart from one that the caller has locked.
    pub(crate) fn operations(&self, locked: Option<QueueId>) -> OperationCounters {
        let mut sum = *self.retired();
        for (id, slot) in self.queues.iter() {
            if Some(id) == locked {
                continue;
            }
            if let Some(queue) = slot.lock_submission().as_ref() {
                sum.add(&queue.counters);
            }
        }
        sum
    }
}

const ADMIN: QueueId = QueueId::new(0);
