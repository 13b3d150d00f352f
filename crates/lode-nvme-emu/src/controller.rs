//! The controller: what its parts share, and the bus in front of it.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_bus::{Bus, BusError, DmaMemory};
use lode_units::Instant;

use crate::admin::AdminState;
use crate::control::ControlState;
use crate::counters::OperationCounters;
use crate::dma::DmaTable;
use crate::error::EmulatorError;
use crate::fault::{DeviceFault, FaultAction, FaultScript};
use crate::interrupts::Interrupts;
use crate::lanes::Replicated;
use crate::latency::LatencyModel;
use crate::namespace::NamespaceTable;
use crate::options::{ControllerOptions, NamespaceOptions};
use crate::queues::{QueueSlot, QueueTable};
use crate::registers::{EmulatedRegisters, RegisterFile};
use crate::shadow::ShadowDoorbells;

/// An emulated NVMe controller. Clones are handles to the same one; it works when
/// [`Bus::advance`] is called, from any number of threads.
#[derive(Clone, Debug)]
pub struct EmulatedController {
    pub(crate) shared: Arc<Shared>,
}

/// Everything that the handles share.
///
/// Lock order: control, the DMA table, the namespaces, the queues (see [`crate::queues`]), then
/// the admin state or a namespace's cache. Interrupt vectors, the fault script and the latency
/// model are locked last and alone. The DMA table and the namespaces are never locked twice by one
/// thread, since a writer between the two would block it for ever.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ControllerOptions,
    pub(crate) registers: RegisterFile,
    pub(crate) queues: QueueTable,
    pub(crate) interrupts: Interrupts,
    pub(crate) faults: FaultScript,
    pub(crate) shadow: ShadowDoorbells,
    pub(crate) is_running: AtomicBool,
    pub(crate) is_ready_stuck: AtomicBool,
    pub(crate) is_write_cache_enabled: AtomicBool,
    pub(crate) has_latency: bool,
    /// The earliest moment that a command of any queue waits for; may be too early, never late.
    pub(crate) earliest_due: AtomicU64,
    /// The next moment at which control has something to do.
    pub(crate) control_due: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) vanished: AtomicU64,
    pub(crate) dma: Replicated<DmaTable>,
    pub(crate) namespaces: Replicated<NamespaceTable>,
    control: Mutex<ControlState>,
    admin: Mutex<AdminState>,
    latency: Mutex<LatencyModel>,
    /// Commands of queues that are gone.
    retired: Mutex<OperationCounters>,
}

impl EmulatedController {
    /// A controller with `namespaces`, numbered from 1. Powered on and disabled.
    ///
    /// # Errors
    /// When an option is out of bounds, a namespace's size does not fit its blocks, or memory for
    /// a modelled cache is refused.
    pub fn new(
        options: ControllerOptions,
        namespaces: Vec<NamespaceOptions>,
    ) -> Result<Self, EmulatorError> {
        options.validate()?;
        let mut table = NamespaceTable::default();
        for namespace in namespaces {
            table.add(namespace)?;
        }
        let shared = Shared {
            registers: RegisterFile::new(&options),
            queues: QueueTable::new(options.queue_pairs_max),
            interrupts: Interrupts::new(options.interrupt_count),
            faults: FaultScript::default(),
            shadow: ShadowDoorbells::default(),
            is_running: AtomicBool::new(false),
            is_ready_stuck: AtomicBool::new(false),
            is_write_cache_enabled: AtomicBool::new(true),
            has_latency: !options.latency.is_none(),
            earliest_due: AtomicU64::new(Instant::FAR_FUTURE.as_nanos()),
            control_due: AtomicU64::new(Instant::FAR_FUTURE.as_nanos()),
            resets: AtomicU64::new(0),
            vanished: AtomicU64::new(0),
            dma: Replicated::new(DmaTable::default()),
            namespaces: Replicated::new(table),
            control: Mutex::default(),
            admin: Mutex::new(AdminState::new(options.queue_pairs_max)),
            latency: Mutex::new(LatencyModel::new(options.latency)),
            retired: Mutex::default(),
            options,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The properties it was made with.
    #[must_use]
    pub fn options(&self) -> &ControllerOptions {
        &self.shared.options
    }
}

impl Shared {
    pub(crate) fn control(&self) -> MutexGuard<'_, ControlState> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_control(&self) -> Option<MutexGuard<'_, ControlState>> {
        match self.control.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn admin(&self) -> MutexGuard<'_, AdminState> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn latency(&self) -> MutexGuard<'_, LatencyModel> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, OperationCounters> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the fault script act on a register access.
    pub(crate) fn on_register_access(&self) {
        if let Some(FaultAction::Device(fault)) = self.faults.on_register_access() {
            self.apply(fault);
        }
    }

    /// A fault of the whole controller takes effect.
    pub(crate) fn apply(&self, fault: DeviceFault) {
        match fault {
            DeviceFault::StuckReady => self.is_ready_stuck.store(true, Ordering::Release),
            DeviceFault::FatalStatus => self.fail(),
            DeviceFault::AllOnes(reads) => self.registers.set_all_ones_reads(reads),
            DeviceFault::Remove => {
                self.is_running.store(false, Ordering::Release);
                self.registers.set_removed();
                self.registers.mark_control();
            }
        }
    }

    /// Sets CSTS.CFS; only a reset helps (NVMe Base 2.0 §9.5).
    pub(crate) fn fail(&self) {
        let mut status = self.registers.status();
        status.fatal = true;
        self.registers.set_status(status);
        self.is_running.store(false, Ordering::Release);
    }

    /// Waits until no operation on a file that was begun before is in flight. Blocks; bounded.
    pub(crate) fn drain_files(&self) -> bool {
        let mut is_drained = true;
        for (_id, slot) in self.queues.iter() {
            if let Some(files) = slot
                .lock_submission()
                .as_mut()
                .and_then(|queue| queue.files.as_mut())
            {
                is_drained &= files.ring.settle();
            }
        }
        is_drained & self.control().drain_files()
    }

    /// Connects the file operations of queues that fire `vector` to its descriptor.
    fn signal_files(&self, vector: u16) {
        for (_id, slot) in self.queues.iter() {
            if slot.has_submission() {
                self.signal_files_of(slot, vector);
            }
        }
    }

    fn signal_files_of(&self, slot: &QueueSlot, vector: u16) {
        let mut guard = slot.lock_submission();
        let Some(queue) = guard.as_mut() else {
            return;
        };
        let fires = self
            .queues
            .slot(queue.completion_queue)
            .and_then(|slot| slot.lock_completion().as_ref().and_then(|cq| cq.vector()));
        if fires != Some(vector) {
            return;
        }
        if let (Some(files), Some(signal)) =
            (queue.files.as_mut(), self.interrupts.descriptor(vector))
        {
            // Without it a sleeper is not woken by this file's completions, but its poller still
            // finds them.
            let _is_unsignalled = files.ring.register_signal(signal).is_err();
        }
    }
}

impl Bus for EmulatedController {
    type Registers = EmulatedRegisters;

    fn name(&self) -> &str {
        &self.shared.options.name
    }

    fn registers(&self) -> EmulatedRegisters {
        EmulatedRegisters::new(Arc::clone(&self.shared))
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.check_present()?;
        self.shared.dma.update(|table| table.map(memory))
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.shared.dma.update(|table| table.unmap(memory));
        if self.shared.drain_files() {
            self.check_present()
        } else {
            Err(BusError::System {
                operation: "waiting for file I/O into unmapped memory",
                source: std::io::ErrorKind::TimedOut.into(),
            })
        }
    }

    fn interrupt_count(&self) -> u16 {
        self.shared.interrupts.count()
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        self.check_present()?;
        let descriptor = self.shared.interrupts.enable(vector)?;
        self.shared.signal_files(vector);
        Ok(descriptor)
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        self.check_present()?;
        self.shared.interrupts.route(vector, signal)?;
        self.shared.signal_files(vector);
        Ok(())
    }

    fn reset_function(&self) -> Result<(), BusError> {
        self.check_present()?;
        self.shared.reset_function();
        Ok(())
    }

    fn is_present(&self) -> bool {
        !self.shared.registers.is_removed()
    }

    fn advance(&self, now: Instant) -> Option<Instant> {
        self.shared.advance(now)
    }
}

impl EmulatedController {
    fn check_present(&self) -> Result<(), BusError> {
        if self.is_present() {
            Ok(())
        } else {
            Err(BusError::Gone)
        }
    }
}
