//! The figures of one controller and its queue: copied by the core a few times a second, read by
//! the scrape.

use std::sync::{Arc, Mutex, PoisonError};

use lode_nvme::{ControllerStats, QueueStats};
use lode_nvme_spec::log_page::HealthLog;
use lode_server::{Families, MetricsSource};
use lode_stats::Gauge;

/// The figures of one device. The core sets them, the scrape reads them.
#[derive(Debug)]
pub(crate) struct Figures {
    device: String,
    counters: [Gauge; COUNTERS.len()],
    health: [Gauge; HEALTH.len()],
    has_health: Gauge,
}

/// The devices whose figures are shown.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    shown: Mutex<Vec<Arc<Figures>>>,
}

impl Figures {
    /// No figures yet, for the device of this name.
    pub(crate) fn new(device: &str) -> Self {
        Self {
            device: device.to_owned(),
            counters: [const { Gauge::new() }; COUNTERS.len()],
            health: [const { Gauge::new() }; HEALTH.len()],
            has_health: Gauge::new(),
        }
    }

    /// Copies what the queue and the controller have counted.
    pub(crate) fn set(&self, queue: &QueueStats, controller: &ControllerStats) {
        for (gauge, (_, _, read)) in self.counters.iter().zip(&COUNTERS) {
            gauge.set(read(queue, controller));
        }
    }

    /// Copies what the controller says of its health.
    pub(crate) fn set_health(&self, log: &HealthLog) {
        for (gauge, (_, _, read)) in self.health.iter().zip(&HEALTH) {
            gauge.set(read(log));
        }
        self.has_health.set(1);
    }
}

impl Devices {
    /// Begins to show a device.
    pub(crate) fn show(&self, figures: Arc<Figures>) {
        self.shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(figures);
    }

    /// Stops to show a device.
    pub(crate) fn hide(&self, figures: &Arc<Figures>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.retain(|other| !Arc::ptr_eq(other, figures));
    }
}

/// Shows what [`Devices`] holds.
#[derive(Debug)]
pub(crate) struct DevicesSource(pub(crate) Arc<Devices>);

impl MetricsSource for DevicesSource {
    fn collect(&self, into: &mut Families) {
        let shown = self
            .0
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for figures in shown {
            let labels = [("device", figures.device.as_str())];
            for (gauge, (name, help, _)) in figures.counters.iter().zip(&COUNTERS) {
                into.counter(name, help, &labels, gauge.read());
            }
            if figures.has_health.read() == 0 {
                continue;
            }
            for (gauge, (name, help, _)) in figures.health.iter().zip(&HEALTH) {
                into.gauge(name, help, &labels, gauge.read());
            }
        }
    }
}

type CounterOf = fn(&QueueStats, &ControllerStats) -> u64;
type HealthOf = fn(&HealthLog) -> u64;

/// Name, help and source of what only grows.
const COUNTERS: [(&str, &str, CounterOf); 13] = [
    (
        "lodestore_nvme_commands_total",
        "Commands completed by the device's I/O queue.",
        |queue, _| queue.completed_total(),
    ),
    (
        "lodestore_nvme_fua_writes_total",
        "Writes with Force Unit Access.",
        |queue, _| queue.fua_writes,
    ),
    (
        "lodestore_nvme_submission_doorbells_total",
        "Submission doorbell registers written.",
        |queue, _| queue.submission_doorbells,
    ),
    (
        "lodestore_nvme_completion_doorbells_total",
        "Completion doorbell registers written.",
        |queue, _| queue.completion_doorbells,
    ),
    (
        "lodestore_nvme_productive_polls_total",
        "Polls of the queue that found at least one completion.",
        |queue, _| queue.productive_polls,
    ),
    (
        "lodestore_nvme_errors_total",
        "Commands that ended with an error.",
        |queue, _| queue.errors.iter().sum(),
    ),
    (
        "lodestore_nvme_timeouts_total",
        "Commands that passed their deadline.",
        |queue, _| queue.timeouts,
    ),
    (
        "lodestore_nvme_stale_completions_total",
        "Completions that named no command in flight.",
        |queue, controller| queue.stale_completions + controller.stale_completions,
    ),
    (
        "lodestore_nvme_aborts_total",
        "Abort commands sent.",
        |_, controller| controller.aborts_sent,
    ),
    (
        "lodestore_nvme_resets_total",
        "Controller resets begun after bring-up.",
        |_, controller| controller.resets,
    ),
    (
        "lodestore_nvme_function_resets_total",
        "Resets of the whole PCI function.",
        |_, controller| controller.function_resets,
    ),
    (
        "lodestore_nvme_async_events_total",
        "Asynchronous events of all types.",
        |_, controller| {
            controller.error_events
                + controller.health_events
                + controller.notice_events
                + controller.other_events
        },
    ),
    (
        "lodestore_nvme_admin_errors_total",
        "Admin commands that failed.",
        |_, controller| controller.admin_errors,
    ),
];

/// Name, help and source of what the health log tells.
const HEALTH: [(&str, &str, HealthOf); 6] = [
    (
        "lodestore_nvme_critical_warning",
        "Critical warning bits of the health log; 0 is good.",
        |log| u64::from(log.critical_warning),
    ),
    (
        "lodestore_nvme_temperature_kelvin",
        "Composite temperature.",
        |log| u64::from(log.temperature_kelvin.get()),
    ),
    (
        "lodestore_nvme_available_spare_percent",
        "Spare capacity that is left.",
        |log| u64::from(log.available_spare_percent),
    ),
    (
        "lodestore_nvme_used_percent",
        "Share of the device's life that is used up; may exceed 100.",
        |log| u64::from(log.used_percent),
    ),
    (
        "lodestore_nvme_media_errors",
        "Unrecovered data errors that the device counts.",
        |log| saturated(log.media_errors.get()),
    ),
    (
        "lodestore_nvme_unsafe_shutdowns",
        "Power losses without a shutdown notification that the device counts.",
        |log| saturated(log.unsafe_shutdowns.get()),
    ),
];

/// A 128-bit count, cut to what 64 bits hold.
pub(crate) fn saturated(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
