//! Get and Set Features (NVMe Base 2.0 §5.15, §5.27).

use std::sync::atomic::Ordering;

use lode_nvme_spec::command::{GetFeatures, SetFeatures};
use lode_nvme_spec::feature::{EventMask, FeatureId, QueueCounts, WRITE_CACHE_ENABLED};
use lode_nvme_spec::{GenericStatus, SpecificStatus, Status, SubmissionEntry};

use super::rejected;
use crate::batch::{Batch, Outcome};
use crate::io::refused;

/// The values that a host has set, apart from those that other parts keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    arbitration: u32,
    power_state: u32,
    temperature_over_kelvin: u16,
    temperature_under_kelvin: u16,
    error_recovery: u32,
    write_atomicity: u32,
    events: EventMask,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            arbitration: 0,
            power_state: 0,
            temperature_over_kelvin: WARNING_TEMPERATURE_KELVIN,
            temperature_under_kelvin: 0,
            error_recovery: 0,
            write_atomicity: 0,
            events: EventMask::empty(),
        }
    }
}

impl Features {
    pub(super) const fn event_mask(&self) -> EventMask {
        self.events
    }

    pub(super) const fn is_beyond_threshold(&self, kelvin: u16) -> bool {
        kelvin >= self.temperature_over_kelvin || kelvin <= self.temperature_under_kelvin
    }
}

impl Batch<'_> {
    /// Get Features: the current value; defaults and saved values are not kept apart (ONCS).
    pub(super) fn read_feature(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        let command = GetFeatures::decode(entry);
        if command.select != 0 {
            return Err(refused(GenericStatus::InvalidField));
        }
        let admin = self.shared.admin();
        let features = admin.features;
        let value = match command.feature {
            FeatureId::Arbitration => features.arbitration,
            FeatureId::PowerManagement => features.power_state,
            FeatureId::TemperatureThreshold => match threshold_kind(command.argument)? {
                Threshold::Over => features.temperature_over_kelvin.into(),
                Threshold::Under => features.temperature_under_kelvin.into(),
            },
            FeatureId::ErrorRecovery => features.error_recovery,
            FeatureId::VolatileWriteCache => {
                drop(admin);
                return self.read_write_cache();
            }
            FeatureId::NumberOfQueues => admin.queues.granted().to_dword(),
            FeatureId::InterruptCoalescing => 0,
            FeatureId::InterruptVectorConfiguration => {
                let vector = command.argument & 0xFFFF;
                if vector >= self.shared.options.interrupt_count.into() {
                    return Err(refused(GenericStatus::InvalidField));
                }
                vector | COALESCING_DISABLED
            }
            FeatureId::WriteAtomicity => features.write_atomicity,
            FeatureId::AsyncEventConfiguration => features.events.bits(),
            FeatureId::AutonomousPowerState
            | FeatureId::HostMemoryBuffer
            | FeatureId::Timestamp
            | FeatureId::KeepAliveTimer
            | FeatureId::Other(_) => return Err(refused(GenericStatus::InvalidField)),
        };
        Ok(Outcome::Done(Status::SUCCESS, value))
    }

    pub(super) fn set_feature(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        let command = SetFeatures::decode(entry);
        if command.is_saved {
            return Err(rejected(SpecificStatus::FeatureNotSaveable));
        }
        let value = command.value;
        match command.feature {
            FeatureId::NumberOfQueues => return self.set_queue_counts(value),
            FeatureId::VolatileWriteCache => return self.set_write_cache(value),
            FeatureId::TemperatureThreshold => return self.set_threshold(value),
            _ => {}
        }
        let mut admin = self.shared.admin();
        let features = &mut admin.features;
        match command.feature {
            FeatureId::Arbitration => features.arbitration = value,
            FeatureId::PowerManagement if value & 0x1F == 0 => features.power_state = 0,
            FeatureId::ErrorRecovery => features.error_recovery = value & 0xFFFF,
            FeatureId::WriteAtomicity => features.write_atomicity = value & 1,
            // Coalescing is a recommendation: it is taken and not followed.
            FeatureId::InterruptCoalescing | FeatureId::InterruptVectorConfiguration => {}
            FeatureId::AsyncEventConfiguration => {
                features.events = EventMask::from_bits_truncate(value);
            }
            _ => return Err(refused(GenericStatus::InvalidField)),
        }
        Ok(Status::SUCCESS.into())
    }

    fn has_write_cache(&self) -> bool {
        let mut namespaces = self.namespaces.iter();
        namespaces.any(|namespace| namespace.has_volatile_cache())
    }

    fn read_write_cache(&self) -> Result<Outcome, Status> {
        if !self.has_write_cache() {
            return Err(refused(GenericStatus::InvalidField));
        }
        let is_enabled = self.shared.is_write_cache_enabled.load(Ordering::Relaxed);
        let value = if is_enabled { WRITE_CACHE_ENABLED } else { 0 };
        Ok(Outcome::Done(Status::SUCCESS, value))
    }

    /// Switches the volatile write cache. What sits in it goes to the media first, so that
    /// "disabled" means that nothing can be lost.
    fn set_write_cache(&self, value: u32) -> Result<Outcome, Status> {
        if !self.has_write_cache() {
            return Err(refused(GenericStatus::InvalidField));
        }
        let enable = value & WRITE_CACHE_ENABLED != 0;
        self.shared
            .is_write_cache_enabled
            .store(enable, Ordering::Relaxed);
        if !enable {
            for namespace in self.namespaces.iter() {
                namespace
                    .flush()
                    .map_err(|_error| Status::from(GenericStatus::InternalError))?;
            }
        }
        Ok(Status::SUCCESS.into())
    }

    fn set_queue_counts(&self, value: u32) -> Result<Outcome, Status> {
        let asked = QueueCounts::from_dword(value);
        if asked.submission > QueueCounts::MAX || asked.completion > QueueCounts::MAX {
            return Err(refused(GenericStatus::InvalidField));
        }
        let mut admin = self.shared.admin();
        if !admin.queues.is_empty() {
            return Err(refused(GenericStatus::CommandSequenceError));
        }
        admin
            .queues
            .grant(asked, self.shared.options.queue_pairs_max);
        // What is told is what there is, which may be more than was asked for (§5.27.1.5).
        Ok(Outcome::Done(
            Status::SUCCESS,
            admin.queues.granted().to_dword(),
        ))
    }

    fn set_threshold(&self, value: u32) -> Result<Outcome, Status> {
        let kind = threshold_kind(value)?;
        let kelvin = u16::try_from(value & 0xFFFF).expect("16 bits");
        let mut admin = self.shared.admin();
        match kind {
            Threshold::Over => admin.features.temperature_over_kelvin = kelvin,
            Threshold::Under => admin.features.temperature_under_kelvin = kelvin,
        }
        Ok(Status::SUCCESS.into())
    }
}

enum Threshold {
    Over,
    Under,
}

/// Bits 21:20 THSEL and 19:16 TMPSEL of a temperature threshold: the composite temperature is the
/// only sensor (0), or all of them are meant (0xF).
fn threshold_kind(value: u32) -> Result<Threshold, Status> {
    let sensor = value >> 16 & 0xF;
    match (value >> 20 & 0x3, sensor) {
        (0, 0 | 0xF) => Ok(Threshold::Over),
        (1, 0 | 0xF) => Ok(Threshold::Under),
        _ => Err(refused(GenericStatus::InvalidField)),
    }
}

/// WCTEMP: 70 °C.
pub(super) const WARNING_TEMPERATURE_KELVIN: u16 = 343;
/// The health log's warning that a temperature crossed its threshold.
pub(super) const TEMPERATURE_WARNING: u8 = 1 << 1;
/// In the value of Interrupt Vector Configuration: bit 16, CD.
const COALESCING_DISABLED: u32 = 1 << 16;
