//! What a controller was found to be.

use std::time::Duration;

use lode_block::WriteCache;
use lode_nvme_spec::identify::{AdminFeatures, ControllerFeatures, IdentifyController};
use lode_nvme_spec::registers::Version;

use crate::namespace::{Limits, Offer, transfer_max_bytes};
use crate::options::Quirks;

/// What a controller says of itself (Base 2.0 §5.17.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerIdentity {
    /// PCI vendor.
    pub pci_vendor_id: u16,
    /// Serial number, without padding.
    pub serial_number: String,
    /// Model number, without padding.
    pub model_number: String,
    /// Firmware revision, without padding.
    pub firmware_revision: String,
    /// The version of NVMe that it claims.
    pub version: Version,
    /// The longest transfer of one command in bytes, as far as this program goes.
    pub transfer_max_bytes: u32,
    /// Its volatile write cache.
    pub write_cache: WriteCache,
    /// Whether shadow doorbells are in use.
    pub uses_shadow_doorbells: bool,
}

/// The driver's view of the same, complete at the end of bring-up.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) identity: Option<ControllerIdentity>,
    pub(crate) features: ControllerFeatures,
    pub(crate) admin_features: AdminFeatures,
    pub(crate) quirks: Quirks,
    pub(crate) limits: Limits,
    pub(crate) transfer_max_bytes: u32,
    /// Concurrent aborts that are allowed.
    pub(crate) aborts_max: usize,
    /// Concurrent asynchronous event requests that are allowed.
    pub(crate) event_requests_max: usize,
    pub(crate) error_log_entries: usize,
    pub(crate) optional_events: u32,
    pub(crate) namespace_id_max: u32,
    pub(crate) shutdown_latency: Duration,
    pub(crate) has_write_cache: bool,
    pub(crate) write_cache: WriteCache,
    pub(crate) queue_pairs: u16,
    pub(crate) uses_shadow: bool,
    pub(crate) version: Version,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            identity: None,
            features: ControllerFeatures::empty(),
            admin_features: AdminFeatures::empty(),
            quirks: Quirks::empty(),
            limits: Limits::default(),
            transfer_max_bytes: 0,
            aborts_max: 1,
            event_requests_max: 1,
            error_log_entries: 1,
            optional_events: 0,
            namespace_id_max: 0,
            shutdown_latency: Duration::ZERO,
            has_write_cache: false,
            write_cache: WriteCache::None,
            queue_pairs: 0,
            uses_shadow: false,
            version: Version::from_bits(0),
        }
    }
}

impl Facts {
    /// Takes over what `identify` says.
    pub(crate) fn learn(
        &mut self,
        identify: &IdentifyController,
        page_min_shift: u32,
        quirks: Quirks,
    ) {
        let vendor = identify.pci_vendor_id.get();
        self.quirks = quirks | Quirks::of(vendor, &identify.model_number);
        self.features = identify.features();
        self.admin_features = identify.admin_features();
        self.transfer_max_bytes = transfer_max_bytes(identify, page_min_shift);
        self.limits = Limits::untold(self.transfer_max_bytes);
        self.aborts_max = ABORTS_MAX.min(usize::from(identify.abort_limit) + 1);
        self.event_requests_max =
            EVENT_REQUESTS_MAX.min(usize::from(identify.async_event_limit) + 1);
        self.error_log_entries =
            ERROR_LOG_ENTRIES_MAX.min(usize::from(identify.error_log_entries) + 1);
        self.optional_events = identify.async_events.get();
        self.namespace_id_max = identify.namespace_id_max.get();
        let shutdown_us = u64::from(identify.shutdown_latency_us.get());
        self.shutdown_latency = Duration::from_micros(shutdown_us);
        self.has_write_cache = identify.has_volatile_write_cache();
        self.uses_shadow = false;
        self.identity = Some(ControllerIdentity {
            pci_vendor_id: vendor,
            serial_number: text(&identify.serial_number),
            model_number: text(&identify.model_number),
            firmware_revision: text(&identify.firmware_revision),
            version: self.version,
            transfer_max_bytes: self.transfer_max_bytes,
            write_cache: self.write_cache,
            uses_shadow_doorbells: false,
        });
    }

    /// What is promised to each namespace, given how deep a queue of default options is.
    pub(crate) const fn offer(&self, queue_depth_max: u32) -> Offer {
        Offer {
            transfer_max_bytes: self.transfer_max_bytes,
            queue_depth_max,
            write_cache: self.write_cache,
            features: self.features,
            quirks: self.quirks,
            limits: self.limits,
        }
    }
}

/// ASCII of a fixed field, without its padding.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field)
        .trim_matches([' ', '\0'])
        .to_owned()
}

/// The most aborts in flight at once, whatever the controller allows.
const ABORTS_MAX: usize = 4;
/// The most asynchronous event requests at once.
const EVENT_REQUESTS_MAX: usize = 4;
/// The most entries of the error log that are read: a page of them.
pub(crate) const ERROR_LOG_ENTRIES_MAX: usize = 64;
