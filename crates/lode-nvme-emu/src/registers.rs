//! The register window (NVMe Base 2.0 §3.1.3) and the doorbells behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use lode_bus::Registers;
use lode_nvme_spec::registers as at;
use lode_nvme_spec::registers::{Capabilities, Configuration, ControllerStatus, Version};

use crate::controller::Shared;
use crate::options::ControllerOptions;

/// What the registers hold.
#[derive(Debug)]
pub(crate) struct RegisterFile {
    capabilities: u64,
    doorbell_shift: u32,
    length_bytes: u64,
    configuration: AtomicU32,
    status: AtomicU32,
    interrupt_mask: AtomicU32,
    admin_attributes: AtomicU32,
    admin_submission: AtomicU64,
    admin_completion: AtomicU64,
    /// A reset was asked for and not yet done, whatever CC.EN says now.
    reset_requested: AtomicBool,
    /// CC was written since it was looked at.
    control_marked: AtomicBool,
    /// How many reads are still to return all ones.
    all_ones_reads: AtomicU32,
    is_removed: AtomicBool,
}

impl RegisterFile {
    pub(crate) fn new(options: &ControllerOptions) -> Self {
        let entries = u16::try_from(options.queue_entries_max - 1).unwrap_or(u16::MAX);
        let capabilities = Capabilities {
            queue_entries_max_minus_one: entries,
            requires_contiguous_queues: true,
            timeout_500ms: options.ready_timeout_500ms,
            doorbell_stride: options.doorbell_stride,
            supports_subsystem_reset: false,
            command_sets: Capabilities::COMMAND_SET_NVM,
            page_size_min: 0,
            page_size_max: options.page_size_max_shift,
            ready_modes: 0,
        };
        let doorbell_shift = 2 + u32::from(options.doorbell_stride);
        let doorbells = 2 * (u64::from(options.queue_pairs_max) + 1);
        let length = u64::from(at::DOORBELLS) + (doorbells << doorbell_shift);
        Self {
            capabilities: capabilities.to_bits(),
            doorbell_shift,
            length_bytes: length.next_multiple_of(WINDOW_GRANULE_BYTES),
            configuration: AtomicU32::new(0),
            status: AtomicU32::new(0),
            interrupt_mask: AtomicU32::new(0),
            admin_attributes: AtomicU32::new(0),
            admin_submission: AtomicU64::new(0),
            admin_completion: AtomicU64::new(0),
            reset_requested: AtomicBool::new(false),
            control_marked: AtomicBool::new(false),
            all_ones_reads: AtomicU32::new(0),
            is_removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn configuration(&self) -> Configuration {
        Configuration::from_bits(self.configuration.load(Ordering::Acquire))
    }

    pub(crate) fn status(&self) -> ControllerStatus {
        ControllerStatus::from_bits(self.status.load(Ordering::Acquire))
    }

    pub(crate) fn set_status(&self, status: ControllerStatus) {
        self.status.store(status.to_bits(), Ordering::Release);
    }

    /// AQA, ASQ and ACQ.
    pub(crate) fn admin_queues(&self) -> (at::AdminQueueAttributes, u64, u64) {
        let attributes = self.admin_attributes.load(Ordering::Acquire);
        (
            at::AdminQueueAttributes::from_bits(attributes),
            self.admin_submission.load(Ordering::Acquire),
            self.admin_completion.load(Ordering::Acquire),
        )
    }

    /// Whether interrupt `vector` is masked. The mask has bits for the first 32.
    pub(crate) fn is_masked(&self, vector: u16) -> bool {
        vector < 32 && self.interrupt_mask.load(Ordering::Relaxed) >> vector & 1 == 1
    }

    /// Whether CC was written since the last call.
    pub(crate) fn take_control_mark(&self) -> bool {
        self.control_marked.load(Ordering::Relaxed)
            && self.control_marked.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn mark_control(&self) {
        self.control_marked.store(true, Ordering::Release);
    }

    /// Whether CC.EN went from 1 to 0 since the last call.
    pub(crate) fn take_reset_request(&self) -> bool {
        self.reset_requested.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    pub(crate) fn set_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    pub(crate) fn set_present(&self) {
        self.is_removed.store(false, Ordering::Release);
    }

    pub(crate) fn set_all_ones_reads(&self, reads: u32) {
        self.all_ones_reads.store(reads, Ordering::Relaxed);
    }

    /// Every register as after power-on.
    pub(crate) fn clear(&self) {
        self.configuration.store(0, Ordering::Release);
        self.status.store(0, Ordering::Release);
        self.interrupt_mask.store(0, Ordering::Relaxed);
        self.admin_attributes.store(0, Ordering::Relaxed);
        self.admin_submission.store(0, Ordering::Relaxed);
        self.admin_completion.store(0, Ordering::Relaxed);
        self.all_ones_reads.store(0, Ordering::Relaxed);
        self.reset_requested.store(false, Ordering::Release);
        self.mark_control();
    }

    /// The doorbell at `offset`, counted from the first, or `None` where there is none.
    fn doorbell(&self, offset: u32) -> Option<u32> {
        let distance = offset.checked_sub(at::DOORBELLS)?;
        let index = distance >> self.doorbell_shift;
        (index << self.doorbell_shift == distance).then_some(index)
    }

    /// Whether this read is one of those that return all ones.
    fn reads_all_ones(&self) -> bool {
        if self.is_removed.load(Ordering::Relaxed) {
            return true;
        }
        let left = self.all_ones_reads.load(Ordering::Relaxed);
        left > 0
            && self
                .all_ones_reads
                .compare_exchange(left, left - 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn read(&self, offset: u32) -> u32 {
        match offset {
            at::CAP => low(self.capabilities),
            CAP_HIGH => high(self.capabilities),
            at::VS => Version::V2_0.to_bits(),
            at::INTMS | at::INTMC => self.interrupt_mask.load(Ordering::Relaxed),
            at::CC => self.configuration.load(Ordering::Acquire),
            at::CSTS => self.status.load(Ordering::Acquire),
            at::AQA => self.admin_attributes.load(Ordering::Relaxed),
            at::ASQ => low(self.admin_submission.load(Ordering::Relaxed)),
            ASQ_HIGH => high(self.admin_submission.load(Ordering::Relaxed)),
            at::ACQ => low(self.admin_completion.load(Ordering::Relaxed)),
            ACQ_HIGH => high(self.admin_completion.load(Ordering::Relaxed)),
            _ => 0,
        }
    }

    fn write(&self, offset: u32, value: u32) {
        match offset {
            at::INTMS => {
                self.interrupt_mask.fetch_or(value, Ordering::Relaxed);
            }
            at::INTMC => {
                self.interrupt_mask.fetch_and(!value, Ordering::Relaxed);
            }
            at::CC => self.write_configuration(value),
            at::AQA => self.admin_attributes.store(value, Ordering::Release),
            at::ASQ => replace_low(&self.admin_submission, value),
            ASQ_HIGH => replace_high(&self.admin_submission, value),
            at::ACQ => replace_low(&self.admin_completion, value),
            ACQ_HIGH => replace_high(&self.admin_completion, value),
            _ => {}
        }
    }

    fn write_configuration(&self, value: u32) {
        let before = self.configuration.swap(value, Ordering::AcqRel);
        let was_enabled = Configuration::from_bits(before).enabled;
        if was_enabled && !Configuration::from_bits(value).enabled {
            self.reset_requested.store(true, Ordering::Release);
        }
        self.mark_control();
    }
}

/// A handle to the registers of an emulated controller.
#[derive(Clone, Debug)]
pub struct EmulatedRegisters {
    shared: Arc<Shared>,
}

impl EmulatedRegisters {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn file(&self) -> &RegisterFile {
        &self.shared.registers
    }

    /// Counts an access and lets the fault script act on it. Returns whether the device answers.
    fn is_answered(&self, offset: u32, length: u32) -> bool {
        let end = u64::from(offset) + u64::from(length);
        if end > self.file().length_bytes || !offset.is_multiple_of(4) {
            return false;
        }
        if offset < at::DOORBELLS {
            self.shared.on_register_access();
        }
        true
    }
}

impl Registers for EmulatedRegisters {
    fn length_bytes(&self) -> u64 {
        self.file().length_bytes
    }

    fn read_u32(&self, offset: u32) -> u32 {
        if !self.is_answered(offset, 4) || self.file().reads_all_ones() {
            return at::ALL_ONES_U32;
        }
        self.file().read(offset)
    }

    fn read_u64(&self, offset: u32) -> u64 {
        if !self.is_answered(offset, 8) || self.file().reads_all_ones() {
            return at::ALL_ONES_U64;
        }
        u64::from(self.file().read(offset)) | u64::from(self.file().read(offset + 4)) << 32
    }

    fn write_u32(&self, offset: u32, value: u32) {
        if !self.is_answered(offset, 4) || self.file().is_removed() {
            return;
        }
        match self.file().doorbell(offset) {
            Some(index) => self.shared.queues.ring(index, value, this_thread()),
            None => self.file().write(offset, value),
        }
    }

    fn write_u64(&self, offset: u32, value: u64) {
        if !self.is_answered(offset, 8) || self.file().is_removed() || offset >= at::DOORBELLS {
            return;
        }
        self.file().write(offset, low(value));
        self.file().write(offset + 4, high(value));
    }
}

/// A number that differs between threads that live at the same time.
pub(crate) fn this_thread() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

fn replace_low(register: &AtomicU64, value: u32) {
    let kept = register.load(Ordering::Relaxed) & !u64::from(u32::MAX);
    register.store(kept | u64::from(value), Ordering::Release);
}

fn replace_high(register: &AtomicU64, value: u32) {
    let kept = register.load(Ordering::Relaxed) & u64::from(u32::MAX);
    register.store(kept | u64::from(value) << 32, Ordering::Release);
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the high half is meant to be dropped"
)]
const fn low(value: u64) -> u32 {
    value as u32
}

const fn high(value: u64) -> u32 {
    low(value >> 32)
}

const CAP_HIGH: u32 = at::CAP + 4;
const ASQ_HIGH: u32 = at::ASQ + 4;
const ACQ_HIGH: u32 = at::ACQ + 4;
const WINDOW_GRANULE_BYTES: u64 = 4096;
