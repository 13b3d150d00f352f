//! The figures of controllers and of the queues on them: copied by the core a few times a second,
//! read by the scrape.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_block::Operation;
use lode_engine::PoolIndex;
use lode_nvme::{ControllerIdentity, ControllerStats, QueueStats, operation_index};
use lode_nvme_spec::log_page::HealthLog;
use lode_server::{Families, MetricsSource};
use lode_stats::Gauge;
use lode_units::CoreId;

/// The figures of one controller. The core sets them, the scrape reads them.
#[derive(Debug)]
pub(crate) struct ControllerFigures {
    controller: String,
    uses_shadow_doorbells: Gauge,
    counters: [Gauge; CONTROLLER_COUNTERS.len()],
    health: [Gauge; HEALTH.len()],
    has_health: Gauge,
    queue_pairs_granted: Gauge,
    queue_pairs_used: Gauge,
}

/// The I/O queue pairs of a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairs {
    /// As many as it granted.
    pub(crate) granted: usize,
    /// As many as are open.
    pub(crate) used: usize,
}

/// The figures of one core's queue on a device. The core sets them, the scrape reads them.
#[derive(Debug)]
pub(crate) struct QueueFigures {
    device: String,
    core: CoreId,
    counters: [Gauge; QUEUE_COUNTERS.len()],
    media_failures: [Gauge; MEDIA_OPERATIONS.len()],
    is_attached: Gauge,
}

/// How many queue pairs a core has of its own for a pool.
#[derive(Clone, Debug)]
pub(crate) struct PairFigures {
    pub(crate) pool: PoolIndex,
    pub(crate) name: String,
    pub(crate) core: CoreId,
    pub(crate) count: usize,
}

/// The controllers and queues whose figures are shown.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pairs: Mutex<Vec<PairFigures>>,
    controllers: Mutex<Vec<Arc<ControllerFigures>>>,
    queues: Mutex<Vec<Arc<QueueFigures>>>,
}

impl ControllerFigures {
    /// No figures yet, for the controller of this name.
    pub(crate) fn new(controller: &str, identity: Option<&ControllerIdentity>) -> Self {
        let uses_shadow_doorbells = Gauge::new();
        let uses = identity.is_some_and(|identity| identity.uses_shadow_doorbells);
        uses_shadow_doorbells.set(u64::from(uses));
        Self {
            controller: controller.to_owned(),
            uses_shadow_doorbells,
            counters: [const { Gauge::new() }; CONTROLLER_COUNTERS.len()],
            health: [const { Gauge::new() }; HEALTH.len()],
            has_health: Gauge::new(),
            queue_pairs_granted: Gauge::new(),
            queue_pairs_used: Gauge::new(),
        }
    }

    /// Copies what the controller has counted.
    pub(crate) fn set(&self, stats: &ControllerStats, queue_pairs: QueuePairs) {
        self.queue_pairs_granted.set(queue_pairs.granted as u64);
        self.queue_pairs_used.set(queue_pairs.used as u64);
        for (gauge, (_, _, read)) in self.counters.iter().zip(&CONTROLLER_COUNTERS) {
            gauge.set(read(stats));
        }
    }

    /// Copies what the controller says of its health.
    pub(crate) fn set_health(&self, log: &HealthLog) {
        for (gauge, (_, _, read)) in self.health.iter().zip(&HEALTH) {
            gauge.set(read(log));
        }
        self.has_health.set(1);
    }

    fn collect(&self, into: &mut Families) {
        let labels = [("controller", self.controller.as_str())];
        for (gauge, (name, help, _)) in self.counters.iter().zip(&CONTROLLER_COUNTERS) {
            into.counter(name, help, &labels, gauge.read());
        }
        let help = "1 where doorbells are rung in memory, and registers only when asked for.";
        let uses = self.uses_shadow_doorbells.read();
        into.gauge("lodestore_nvme_shadow_doorbells", help, &labels, uses);
        let help = "I/O queue pairs that the controller granted.";
        let name = "lodestore_nvme_queue_pairs_granted";
        into.gauge(name, help, &labels, self.queue_pairs_granted.read());
        let help = "I/O queue pairs in use: one for each device on each core that has its own.";
        let name = "lodestore_nvme_queue_pairs_used";
        into.gauge(name, help, &labels, self.queue_pairs_used.read());
        if self.has_health.read() == 0 {
            return;
        }
        for (gauge, (name, help, _)) in self.health.iter().zip(&HEALTH) {
            into.gauge(name, help, &labels, gauge.read());
        }
    }
}

impl QueueFigures {
    /// No figures yet, for the queue of a core on the device of this name.
    pub(crate) fn new(device: &str, core: CoreId) -> Self {
        let is_attached = Gauge::new();
        is_attached.set(1);
        Self {
            device: device.to_owned(),
            core,
            counters: [const { Gauge::new() }; QUEUE_COUNTERS.len()],
            media_failures: [const { Gauge::new() }; MEDIA_OPERATIONS.len()],
            is_attached,
        }
    }

    /// The core whose queue it is.
    pub(crate) const fn core(&self) -> CoreId {
        self.core
    }

    /// Copies what the queue has counted.
    pub(crate) fn set(&self, stats: &QueueStats) {
        for (gauge, (_, _, read)) in self.counters.iter().zip(&QUEUE_COUNTERS) {
            gauge.set(read(stats));
        }
        let total: u64 = stats.media_errors.iter().sum();
        let reads = stats.media_errors[operation_index(Operation::Read)];
        let writes = [Operation::Write, Operation::WriteThrough]
            .map(|operation| stats.media_errors[operation_index(operation)])
            .iter()
            .sum();
        let failures = [reads, writes, total - reads - writes];
        for (gauge, count) in self.media_failures.iter().zip(failures) {
            gauge.set(count);
        }
    }

    /// Takes whether the device's namespace is attached to its controller.
    pub(crate) fn set_attached(&self, is_attached: bool) {
        self.is_attached.set(u64::from(is_attached));
    }

    fn collect(&self, into: &mut Families) {
        let device = ("device", self.device.as_str());
        let core = self.core.to_string();
        let core = ("core", core.as_str());
        for (gauge, (name, help, _)) in self.counters.iter().zip(&QUEUE_COUNTERS) {
            into.counter(name, help, &[core, device], gauge.read());
        }
        let help = "1 while the device's namespace is attached to its controller.";
        let name = "lodestore_nvme_namespace_attached";
        into.gauge(name, help, &[core, device], self.is_attached.read());
        for (gauge, operation) in self.media_failures.iter().zip(MEDIA_OPERATIONS) {
            let help = "Commands that the media failed, by what they were to do.";
            let labels = [core, device, ("operation", operation)];
            let name = "lodestore_nvme_media_failures_total";
            into.counter(name, help, &labels, gauge.read());
        }
    }
}

impl Devices {
    /// Begins to show a controller.
    pub(crate) fn show_controller(&self, figures: Arc<ControllerFigures>) {
        held(&self.controllers).push(figures);
    }

    /// Stops to show a controller.
    pub(crate) fn hide_controller(&self, figures: &Arc<ControllerFigures>) {
        held(&self.controllers).retain(|other| !Arc::ptr_eq(other, figures));
    }

    /// Begins to show how many queue pairs a core has for a pool.
    pub(crate) fn show_pairs(&self, pairs: PairFigures) {
        held(&self.pairs).push(pairs);
    }

    /// Stops to show how many queue pairs the cores have for a pool.
    pub(crate) fn hide_pairs(&self, pool: PoolIndex) {
        held(&self.pairs).retain(|pairs| pairs.pool != pool);
    }

    /// Begins to show a device's queue.
    pub(crate) fn show_queue(&self, figures: Arc<QueueFigures>) {
        held(&self.queues).push(figures);
    }

    /// Stops to show a device's queue.
    pub(crate) fn hide_queue(&self, figures: &Arc<QueueFigures>) {
        held(&self.queues).retain(|other| !Arc::ptr_eq(other, figures));
    }
}

fn held<T>(shown: &Mutex<T>) -> MutexGuard<'_, T> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows what [`Devices`] holds.
#[derive(Debug)]
pub(crate) struct DevicesSource(pub(crate) Arc<Devices>);

impl MetricsSource for DevicesSource {
    fn collect(&self, into: &mut Families) {
        // Copies, so that the core never waits for a scrape.
        let queues = held(&self.0.queues).clone();
        let controllers = held(&self.0.controllers).clone();
        for figures in queues {
            figures.collect(into);
        }
        for pairs in held(&self.0.pairs).iter() {
            let core = pairs.core.to_string();
            let labels = [("core", core.as_str()), ("pool", pairs.name.as_str())];
            let help = "Queue pairs of the core's own for the pool; without any, it sends every \
                        request to the pool's home.";
            let name = "lodestore_core_queue_pairs";
            into.gauge(name, help, &labels, pairs.count as u64);
        }
        for figures in controllers {
            figures.collect(into);
        }
    }
}

/// The operations by which failures of the media are counted.
const MEDIA_OPERATIONS: [&str; 3] = ["read", "write", "other"];

type QueueCounterOf = fn(&QueueStats) -> u64;
type ControllerCounterOf = fn(&ControllerStats) -> u64;
type HealthOf = fn(&HealthLog) -> u64;

/// Name, help and source of what a queue counts.
const QUEUE_COUNTERS: [(&str, &str, QueueCounterOf); 8] = [
    (
        "lodestore_nvme_commands_total",
        "Commands completed by the device's I/O queue.",
        |queue| queue.completed_total(),
    ),
    (
        "lodestore_nvme_fua_writes_total",
        "Writes with Force Unit Access.",
        |queue| queue.fua_writes,
    ),
    (
        "lodestore_nvme_submission_doorbells_total",
        "Submission doorbell registers written.",
        |queue| queue.submission_doorbells,
    ),
    (
        "lodestore_nvme_completion_doorbells_total",
        "Completion doorbell registers written.",
        |queue| queue.completion_doorbells,
    ),
    (
        "lodestore_nvme_productive_polls_total",
        "Polls of the queue that found at least one completion.",
        |queue| queue.productive_polls,
    ),
    (
        "lodestore_nvme_errors_total",
        "Commands that ended with an error.",
        |queue| queue.errors.iter().sum(),
    ),
    (
        "lodestore_nvme_timeouts_total",
        "Commands that passed their deadline.",
        |queue| queue.timeouts,
    ),
    (
        "lodestore_nvme_stale_completions_total",
        "Completions that named no command in flight.",
        |queue| queue.stale_completions,
    ),
];

/// Name, help and source of what a controller counts.
const CONTROLLER_COUNTERS: [(&str, &str, ControllerCounterOf); 6] = [
    (
        "lodestore_nvme_aborts_total",
        "Abort commands sent.",
        |controller| controller.aborts_sent,
    ),
    (
        "lodestore_nvme_resets_total",
        "Controller resets begun after bring-up.",
        |controller| controller.resets,
    ),
    (
        "lodestore_nvme_function_resets_total",
        "Resets of the whole PCI function.",
        |controller| controller.function_resets,
    ),
    (
        "lodestore_nvme_async_events_total",
        "Asynchronous events of all types.",
        |controller| {
            controller.error_events
                + controller.health_events
                + controller.notice_events
                + controller.other_events
        },
    ),
    (
        "lodestore_nvme_admin_errors_total",
        "Admin commands that failed.",
        |controller| controller.admin_errors,
    ),
    (
        "lodestore_nvme_admin_stale_completions_total",
        "Completions of the admin queue that named no command in flight.",
        |controller| controller.stale_completions,
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
