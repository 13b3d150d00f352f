//! A core's account of itself.

use lode_reactor::CoreStats;

use crate::http::CoreProbe;
use crate::metrics::Families;

/// Adds the figures of one core.
pub(crate) fn collect(probe: &dyn CoreProbe, into: &mut Families) {
    let core = probe.core().to_string();
    let stats = probe.stats();
    let labels = &[("core", core.as_str())];
    let with = |name, value| [("core", core.as_str()), (name, value)];

    let useful = stats.polls_useful.read();
    let useless = stats.polls.read().saturating_sub(useful);
    for (kind, value) in [("useful", useful), ("empty", useless)] {
        let help = "Turns of the poller, by whether they found or submitted anything.";
        into.counter(
            "lodestore_core_polls_total",
            help,
            &with("result", kind),
            value,
        );
    }
    for (state, nanoseconds) in [
        ("busy", stats.busy_nanoseconds.read()),
        ("idle", stats.idle_nanoseconds.read()),
        ("asleep", stats.asleep_nanoseconds.read()),
    ] {
        let help = "Time of the core: in useful turns, polling in vain, asleep.";
        let name = "lodestore_core_time_seconds_total";
        into.counter_of_time(name, help, &with("state", state), nanoseconds);
    }
    for (reason, counter) in [
        ("task", &stats.wakes_by_task),
        ("signal", &stats.wakes_by_signal),
        ("deadline", &stats.wakes_by_deadline),
    ] {
        let help = "Sleeps ended: by a task of the core, by an interrupt or another thread, by a \
                    deadline.";
        let name = "lodestore_core_wakes_total";
        into.counter(name, help, &with("reason", reason), counter.read());
    }
    let help = "From a wake-up by a task, or the deadline slept for, to the next turn of the \
                poller.";
    let latency = stats.wake_latency.snapshot();
    into.histogram("lodestore_core_wake_latency_seconds", help, labels, latency);
    collect_counters(labels, stats, into);
    for (name, help, value) in [
        (
            "lodestore_core_mailbox_jobs",
            "Jobs that wait in the core's mailbox.",
            probe.mailbox_depth() as u64,
        ),
        (
            "lodestore_core_connections",
            "Connections that the core serves.",
            probe.connections() as u64,
        ),
        (
            "lodestore_core_requests",
            "Requests of clients on this core, waiting or in the shard.",
            stats.requests.read(),
        ),
        (
            "lodestore_core_requests_waiting",
            "Requests that wait because the shard is full.",
            stats.requests_waiting.read(),
        ),
        (
            "lodestore_core_buffers_lent",
            "DMA buffers in use by clients' requests.",
            stats.buffers_lent.read(),
        ),
    ] {
        into.gauge(name, help, labels, value);
    }
}

fn collect_counters(labels: &[(&str, &str)], stats: &CoreStats, into: &mut Families) {
    for (name, help, counter) in [
        (
            "lodestore_core_events_found_total",
            "What the turns of the poller found.",
            &stats.found,
        ),
        (
            "lodestore_core_requests_submitted_total",
            "Requests handed to the shard.",
            &stats.submitted,
        ),
        (
            "lodestore_core_sleeps_total",
            "How often the core slept.",
            &stats.sleeps,
        ),
        (
            "lodestore_core_sleeps_averted_total",
            "How often the poll after arming found something.",
            &stats.sleeps_averted,
        ),
        (
            "lodestore_core_wakes_spurious_total",
            "Wake-ups by an interrupt or another thread after which nothing was found.",
            &stats.wakes_spurious,
        ),
        (
            "lodestore_core_mailbox_jobs_run_total",
            "Jobs run from the mailbox.",
            &stats.mailbox_jobs,
        ),
        (
            "lodestore_core_requests_refused_total",
            "Requests refused because the core was full.",
            &stats.requests_refused,
        ),
        (
            "lodestore_core_buffer_waits_total",
            "How often a request waited for a buffer.",
            &stats.buffer_waits,
        ),
        (
            "lodestore_core_task_panics_total",
            "Tasks that ended in a panic.",
            &stats.task_panics,
        ),
    ] {
        into.counter(name, help, labels, counter.read());
    }
}
