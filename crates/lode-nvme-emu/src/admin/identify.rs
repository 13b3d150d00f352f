//! Identify (NVMe Base 2.0 §5.17; NVM Command Set 1.0 §4.1.5).

use std::sync::Arc;

use lode_nvme_spec::command::Identify;
use lode_nvme_spec::identify::{
    AdminFeatures, Cns, ControllerFeatures, DescriptorType, IdentifyController, IdentifyNamespace,
    IdentifyNvmController, LbaFormat, NamespaceDescriptors, NamespaceList,
};
use lode_nvme_spec::registers::{COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT, Version};
use lode_nvme_spec::{GenericStatus, Status, SubmissionEntry};
use lode_units::NamespaceId;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use super::events::REQUESTS_MAX;
use super::features::WARNING_TEMPERATURE_KELVIN;
use super::log_pages::ERROR_LOG_ENTRIES;
use crate::batch::{Batch, Outcome};
use crate::io::{inactive, refused};
use crate::namespace::{NAMESPACE_ID_MAX, Namespace};
use crate::options::ControllerOptions;

impl Batch<'_> {
    pub(super) fn identify(&mut self, entry: &SubmissionEntry) -> Result<Outcome, Status> {
        let command = Identify::decode(entry);
        let is_nvm = command.command_set == 0;
        match command.cns {
            Cns::Controller => {
                let identify = self.identify_controller();
                self.send(entry, identify.as_bytes())
            }
            Cns::Namespace => {
                let identify = self.identify_namespace(command.namespace)?;
                self.send(entry, identify.as_bytes())
            }
            Cns::ActiveNamespaces => {
                let list = self.active_namespaces(command.namespace)?;
                self.send(entry, list.as_bytes())
            }
            Cns::CommandSetActiveNamespaces if is_nvm => {
                let list = self.active_namespaces(command.namespace)?;
                self.send(entry, list.as_bytes())
            }
            Cns::NamespaceDescriptors => {
                let namespace = self.active(command.namespace)?;
                let list = descriptors(&namespace, &self.shared.options);
                self.send(entry, list.as_bytes())
            }
            Cns::CommandSetController if is_nvm => {
                // No limits are told: the maxima of the fields hold.
                let limits = IdentifyNvmController::new_zeroed();
                self.send(entry, limits.as_bytes())
            }
            Cns::CommandSetNamespace if is_nvm => {
                self.active(command.namespace)?;
                self.send(entry, &[0; lode_nvme_spec::identify::IDENTIFY_BYTES])
            }
            Cns::CommandSetNamespace
            | Cns::CommandSetController
            | Cns::CommandSetActiveNamespaces
            | Cns::IndependentNamespace
            | Cns::AllocatedNamespaces
            | Cns::CommandSets
            | Cns::Other(_) => Err(refused(GenericStatus::InvalidField)),
        }
    }

    fn active(&self, id: NamespaceId) -> Result<Arc<Namespace>, Status> {
        let namespace = self.namespaces.active(id);
        namespace.map(Arc::clone).ok_or_else(|| inactive(id))
    }

    fn identify_controller(&self) -> IdentifyController {
        let options = &self.shared.options;
        let mut identify = IdentifyController::new_zeroed();
        identify.serial_number = padded(&options.serial_number);
        identify.model_number = padded("Lodestore emulated controller");
        identify.firmware_revision = padded(env!("CARGO_PKG_VERSION"));
        identify.transfer_size_max = options.transfer_max_shift;
        identify.controller_id = U16::new(1);
        identify.version = U32::new(Version::V2_0.to_bits());
        identify.async_events = U32::new(NAMESPACE_ATTRIBUTE_NOTICES);
        identify.controller_type = IO_CONTROLLER;
        if options.shadow_doorbells {
            identify.admin_features = U16::new(AdminFeatures::DOORBELL_BUFFER.bits());
        }
        identify.abort_limit = ABORT_LIMIT;
        identify.async_event_limit = small(REQUESTS_MAX - 1);
        identify.firmware_updates = ONE_READ_ONLY_SLOT;
        identify.log_page_attributes = EXTENDED_LOG_DATA;
        identify.error_log_entries = small(ERROR_LOG_ENTRIES - 1);
        identify.warning_temperature_kelvin = U16::new(WARNING_TEMPERATURE_KELVIN);
        identify.critical_temperature_kelvin = U16::new(WARNING_TEMPERATURE_KELVIN + 10);
        let capacity = self
            .namespaces
            .iter()
            .map(|namespace| u128::from(namespace.media().length_bytes()))
            .sum();
        identify.capacity_total = U128::new(capacity);
        identify.submission_entry_sizes = SUBMISSION_ENTRY_SHIFT * 0x11;
        identify.completion_entry_sizes = COMPLETION_ENTRY_SHIFT * 0x11;
        identify.namespace_id_max = U32::new(NAMESPACE_ID_MAX);
        identify.features = U16::new(optional_commands(options).bits());
        let has_cache = self
            .namespaces
            .iter()
            .any(|namespace| namespace.has_volatile_cache());
        identify.volatile_write_cache = FLUSHES_ALL | u8::from(has_cache);
        let name = format!(
            "nqn.2026-11.org.lodestore:emulated:{}",
            options.serial_number
        );
        let length = name.len().min(identify.subsystem_nqn.len());
        identify.subsystem_nqn[..length].copy_from_slice(&name.as_bytes()[..length]);
        identify
    }

    /// A namespace; all zeros for one that is not active but could be.
    fn identify_namespace(&self, id: NamespaceId) -> Result<IdentifyNamespace, Status> {
        let mut identify = IdentifyNamespace::new_zeroed();
        if id.get() == 0 || id.get() > NAMESPACE_ID_MAX {
            return Err(inactive(id));
        }
        let Some(namespace) = self.namespaces.active(id) else {
            return Ok(identify);
        };
        let blocks = U64::new(namespace.block_count());
        identify.size = blocks;
        identify.capacity = blocks;
        identify.utilization = blocks;
        identify.capacity_bytes = U128::new(namespace.media().length_bytes().into());
        identify.lba_formats[0] = LbaFormat {
            metadata_bytes: U16::ZERO,
            block_shift: small(usize::try_from(namespace.block_size().shift()).unwrap_or(0)),
            relative_performance: 0,
        };
        identify.deallocate_features = IdentifyNamespace::WRITE_ZEROES_DEALLOCATES;
        if namespace.media().can_release() {
            identify.deallocate_features |= IdentifyNamespace::DEALLOCATED_READS_ZEROS;
        }
        identify.nguid = nguid(namespace, &self.shared.options);
        identify.eui64.copy_from_slice(&identify.nguid[8..]);
        Ok(identify)
    }

    /// The active identifiers above `above`.
    fn active_namespaces(&self, above: NamespaceId) -> Result<NamespaceList, Status> {
        if above.get() >= u32::MAX - 1 {
            return Err(refused(GenericStatus::InvalidNamespaceOrFormat));
        }
        let mut list = NamespaceList::new_zeroed();
        let active = self.namespaces.iter().map(|namespace| namespace.id());
        let above = active.filter(|id| *id > above);
        for (place, id) in list.ids.iter_mut().zip(above) {
            *place = U32::new(id.get());
        }
        Ok(list)
    }
}

/// The identification descriptors: NGUID and command set.
fn descriptors(namespace: &Namespace, options: &ControllerOptions) -> NamespaceDescriptors {
    let mut list = NamespaceDescriptors::new_zeroed();
    let nguid = nguid(namespace, options);
    list.bytes[0] = DescriptorType::Nguid.raw();
    list.bytes[1] = 16;
    list.bytes[4..20].copy_from_slice(&nguid);
    list.bytes[20] = DescriptorType::CommandSet.raw();
    list.bytes[21] = 1;
    list
}

/// A number for the namespace: its own, or one that is the same each time over the same serial
/// number.
fn nguid(namespace: &Namespace, options: &ControllerOptions) -> [u8; 16] {
    if let Some(own) = namespace.nguid() {
        return own;
    }
    let mut hash = FNV_START;
    for byte in options.serial_number.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    }
    let mut nguid = [0; 16];
    nguid[..8].copy_from_slice(&hash.to_be_bytes());
    nguid[8..12].copy_from_slice(b"LODE");
    nguid[12..].copy_from_slice(&namespace.id().get().to_be_bytes());
    nguid
}

fn optional_commands(options: &ControllerOptions) -> ControllerFeatures {
    let commands = options.commands;
    let mut features = ControllerFeatures::empty();
    features.set(ControllerFeatures::COMPARE, commands.compare);
    features.set(ControllerFeatures::WRITE_ZEROES, commands.write_zeroes);
    features.set(
        ControllerFeatures::DATASET_MANAGEMENT,
        commands.dataset_management,
    );
    features.set(ControllerFeatures::VERIFY, commands.verify);
    features
}

/// ASCII, padded with spaces, cut at the field's end.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, byte) in field.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    field
}

fn small(value: usize) -> u8 {
    u8::try_from(value).expect("a constant below 256")
}

/// OAES bit 8.
const NAMESPACE_ATTRIBUTE_NOTICES: u32 = 1 << 8;
/// CNTRLTYPE.
const IO_CONTROLLER: u8 = 1;
/// ACL: four aborts at once.
const ABORT_LIMIT: u8 = 3;
/// FRMW: one slot, which cannot be written.
const ONE_READ_ONLY_SLOT: u8 = 1 << 1 | 1;
/// LPA bit 2: offsets and 32-bit lengths.
const EXTENDED_LOG_DATA: u8 = 1 << 2;
/// VWC bits 2:1: Flush takes 0xFFFF_FFFF.
const FLUSHES_ALL: u8 = 0b110;
const FNV_START: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;
