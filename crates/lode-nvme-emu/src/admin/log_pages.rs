//! Get Log Page (NVMe Base 2.0 §5.16).

use std::collections::VecDeque;

use lode_nvme_spec::command::GetLogPage;
use lode_nvme_spec::log_page::{
    CHANGED_NAMESPACES_MAX, ErrorEntry, FirmwareSlotLog, HealthLog, LogPageId,
};
use lode_nvme_spec::{GenericStatus, SpecificStatus, Status, SubmissionEntry};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use super::rejected;
use crate::batch::{Batch, Outcome};
use crate::counters::OperationCounters;
use crate::io::refused;

/// What the log pages tell that is not counted elsewhere.
#[derive(Debug)]
pub(super) struct LogState {
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    media_errors: u64,
    warnings: u8,
    temperature_kelvin: u16,
    changed_namespaces: Vec<u32>,
}

impl Default for LogState {
    fn default() -> Self {
        Self {
            errors: VecDeque::with_capacity(ERROR_LOG_ENTRIES),
            error_count: 0,
            media_errors: 0,
            warnings: 0,
            temperature_kelvin: ROOM_TEMPERATURE_KELVIN,
            changed_namespaces: Vec::new(),
        }
    }
}

impl LogState {
    pub(super) const fn warnings(&self) -> u8 {
        self.warnings
    }

    pub(super) const fn set_warnings(&mut self, warnings: u8) {
        self.warnings = warnings;
    }

    pub(super) const fn set_temperature(&mut self, kelvin: u16) {
        self.temperature_kelvin = kelvin;
    }

    pub(super) fn namespace_changed(&mut self, namespace: u32) {
        if let Err(place) = self.changed_namespaces.binary_search(&namespace) {
            self.changed_namespaces.insert(place, namespace);
        }
    }

    fn push_error(&mut self, mut entry: ErrorEntry) {
        self.error_count += 1;
        entry.error_count = U64::new(self.error_count);
        if self.errors.len() == ERROR_LOG_ENTRIES {
            self.errors.pop_back();
        }
        self.errors.push_front(entry);
    }

    fn error_page(&self) -> Vec<u8> {
        let mut page = vec![0; ERROR_LOG_ENTRIES * size_of::<ErrorEntry>()];
        for (place, entry) in page.chunks_mut(size_of::<ErrorEntry>()).zip(&self.errors) {
            place.copy_from_slice(entry.as_bytes());
        }
        page
    }

    fn health_page(&self, operations: &OperationCounters) -> HealthLog {
        let mut log = HealthLog::new_zeroed();
        log.critical_warning = self.warnings;
        log.temperature_kelvin = U16::new(self.temperature_kelvin);
        log.available_spare_percent = 100;
        log.spare_threshold_percent = 10;
        log.data_units_read = data_units(operations.bytes_read);
        log.data_units_written = data_units(operations.bytes_written);
        log.host_read_commands = U128::new((operations.reads + operations.compares).into());
        log.host_write_commands = U128::new(operations.writes.into());
        log.media_errors = U128::new(self.media_errors.into());
        log.error_log_entries = U128::new(self.error_count.into());
        log
    }

    /// The changed namespaces; more than fit are told by a single 0xFFFF_FFFF.
    fn changed_page(&self) -> Vec<u8> {
        let mut page = vec![0; CHANGED_NAMESPACES_MAX * 4];
        let too_many = [u32::MAX];
        let list = match self.changed_namespaces.len() {
            0..=CHANGED_NAMESPACES_MAX => self.changed_namespaces.as_slice(),
            _ => too_many.as_slice(),
        };
        for (place, id) in page.chunks_mut(4).zip(list) {
            place.copy_from_slice(&id.to_le_bytes());
        }
        page
    }
}

impl Batch<'_> {
    /// Writes a failed command into the error log.
    pub(crate) fn log_error(&self, entry: &SubmissionEntry, status: Status) {
        let mut error = ErrorEntry::new_zeroed();
        error.submission_queue_id = U16::new(self.queue.id.get());
        error.command_id = entry.command_id;
        error.status_and_phase = U16::new(status.raw() << 1);
        error.parameter_location = U16::new(u16::MAX);
        error.lba = U64::new(entry.dwords_10_11());
        error.namespace_id = U32::new(entry.namespace_id.get());
        let mut admin = self.shared.admin();
        if status.code_bits() & 0x700 == 0x200 {
            admin.logs.media_errors += 1;
        }
        admin.logs.push_error(error);
    }

    pub(super) fn log_page(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        let command = GetLogPage::decode(entry);
        let page = match command.page {
            LogPageId::ErrorInformation => self.shared.admin().logs.error_page(),
            LogPageId::Health => {
                let mut operations = self.shared.operations(Some(self.queue.id));
                operations.add(&self.queue.counters);
                let page = self.shared.admin().logs.health_page(&operations);
                page.as_bytes().to_vec()
            }
            LogPageId::FirmwareSlot => firmware_page().as_bytes().to_vec(),
            LogPageId::ChangedNamespaces => self.shared.admin().logs.changed_page(),
            LogPageId::CommandEffects | LogPageId::Other(_) => {
                return Err(rejected(SpecificStatus::InvalidLogPage));
            }
        };
        let start = usize::try_from(command.offset_bytes).unwrap_or(usize::MAX);
        let Some(rest) = page.get(start..).filter(|_| start.is_multiple_of(4)) else {
            return Err(refused(GenericStatus::InvalidField));
        };
        let asked = usize::try_from(command.length_bytes).unwrap_or(usize::MAX);
        let sent = self.send(entry, &rest[..asked.min(rest.len())])?;
        if !command.retains_event {
            self.page_was_read(command.page);
        }
        Ok(sent)
    }

    /// Lets events of that page through again; some pages start afresh.
    fn page_was_read(&self, page: LogPageId) {
        let mut admin = self.shared.admin();
        if page == LogPageId::ChangedNamespaces {
            admin.logs.changed_namespaces.clear();
        }
        admin.events.page_was_read(page);
    }
}

/// Thousands of 512-byte units, rounded up.
fn data_units(bytes: u64) -> U128 {
    U128::new(bytes.div_ceil(512_000).into())
}

fn firmware_page() -> FirmwareSlotLog {
    let mut log = FirmwareSlotLog::new_zeroed();
    log.active = 1;
    let version = env!("CARGO_PKG_VERSION")
        .bytes()
        .chain(std::iter::repeat(b' '));
    for (place, byte) in log.revisions[0].iter_mut().zip(version) {
        *place = byte;
    }
    log
}

/// ELPE plus one.
pub(super) const ERROR_LOG_ENTRIES: usize = 64;
const ROOM_TEMPERATURE_KELVIN: u16 = 300;
