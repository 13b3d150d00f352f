//! What a caller may choose.

use std::time::Duration;

bitflags::bitflags! {
    /// Deviations of a device that the driver works around. Those of known devices are found
    /// by their vendor and model.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Quirks: u32 {
        /// Force Unit Access does not reach the media: write-through is not offered.
        const NO_FUA = 1 << 0;
        /// Abort is ignored or harmful: a hung command goes straight to a reset.
        const NO_ABORT = 1 << 1;
        /// Only one I/O queue pair works.
        const ONE_QUEUE_PAIR = 1 << 2;
        /// Write Zeroes is offered and does not work.
        const NO_WRITE_ZEROES = 1 << 3;
        /// Dataset Management is offered and does not work.
        const NO_DEALLOCATE = 1 << 4;
        /// Doorbell Buffer Config is offered and does not work.
        const NO_SHADOW_DOORBELLS = 1 << 5;
    }
}

impl Quirks {
    /// The quirks of a device by its PCI vendor and the beginning of its model number.
    pub(crate) fn of(pci_vendor_id: u16, model_number: &[u8]) -> Self {
        KNOWN_DEVICES
            .iter()
            .filter(|(vendor, model, _)| {
                *vendor == pci_vendor_id && model_number.starts_with(model.as_bytes())
            })
            .fold(Self::empty(), |all, (_, _, quirks)| all | *quirks)
    }
}

/// PCI vendor, beginning of the model number, quirks.
const KNOWN_DEVICES: &[(u16, &str, Quirks)] = &[
    // Intel 600p: announces Write Zeroes, which cannot be relied on.
    (0x8086, "INTEL SSDPEKKW", Quirks::NO_WRITE_ZEROES),
];

/// What to do about a volatile write cache at bring-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteCachePolicy {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Switch it on.
    Enable,
    /// Switch it off: every write reaches the media before it completes.
    Disable,
}

/// How a controller is brought up and watched.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// How many I/O queue pairs to ask for; the controller may grant fewer.
    pub queue_pairs: u16,
    /// What to do about a volatile write cache.
    pub write_cache: WriteCachePolicy,
    /// Whether shadow doorbells are used where they are offered.
    pub uses_shadow_doorbells: bool,
    /// Quirks beyond those that are known of the device.
    pub quirks: Quirks,
    /// A pause after enabling or disabling the controller before its status is read.
    pub status_delay: Duration,
    /// How long registers may read as all ones before the device counts as removed.
    pub all_ones_tolerance: Duration,
    /// The least time that a change of CSTS.RDY is given, whatever CAP.TO says.
    pub ready_timeout_min: Duration,
    /// How long an admin command may take.
    pub admin_timeout: Duration,
    /// How long a shutdown may take, whatever the controller says.
    pub shutdown_timeout: Duration,
    /// How often the status register is read while all is well.
    pub watch_interval: Duration,
    /// How often the health log is read; `None` for only when asked.
    pub health_interval: Option<Duration>,
    /// How many controller resets in a row are tried before the whole function is reset.
    pub reset_attempts_max: u32,
    /// How long a controller must work before the resets before it are forgotten.
    pub stable_after: Duration,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            queue_pairs: 16,
            write_cache: WriteCachePolicy::Keep,
            uses_shadow_doorbells: true,
            quirks: Quirks::empty(),
            status_delay: Duration::ZERO,
            all_ones_tolerance: Duration::from_secs(1),
            ready_timeout_min: Duration::from_secs(1),
            admin_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(10),
            watch_interval: Duration::from_millis(250),
            health_interval: Some(Duration::from_secs(60)),
            reset_attempts_max: 3,
            stable_after: Duration::from_secs(60),
        }
    }
}

/// How one I/O queue pair is made.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Entries of either ring: 2 to [`QueueOptions::ENTRIES_MAX`], cut to what the controller
    /// can. One request fewer than this can be in flight.
    pub entries: u16,
    /// How long a command may take before it is aborted.
    pub command_timeout: Duration,
    /// How long an aborted command may take to end before the controller is reset.
    pub abort_timeout: Duration,
    /// The interrupt vector that completions fire; `None` for a queue that is only polled.
    pub interrupt_vector: Option<u16>,
}

impl QueueOptions {
    /// The most entries of a ring: an index and at least four generation bits fit a command id.
    pub const ENTRIES_MAX: u16 = 4096;
    /// The fewest entries: a ring of one could never hold a command.
    pub const ENTRIES_MIN: u16 = 2;
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            entries: 256,
            command_timeout: Duration::from_secs(8),
            abort_timeout: Duration::from_secs(4),
            interrupt_vector: None,
        }
    }
}

const _: () = assert!(QueueOptions::ENTRIES_MAX as usize <= lode_units::limits::CORE_REQUESTS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quirks_are_found_by_vendor_and_model() {
        assert_eq!(
            Quirks::of(0x8086, b"INTEL SSDPEKKW256G7          "),
            Quirks::NO_WRITE_ZEROES
        );
        assert_eq!(Quirks::of(0x8086, b"INTEL SSDPE2KX"), Quirks::empty());
        assert_eq!(Quirks::of(0x1234, b"INTEL SSDPEKKW"), Quirks::empty());
    }
}
