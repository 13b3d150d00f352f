//! The figures as a person reads them.

use super::figures::{CoreFigures, Figures, OperationFigures, RouteFigures, VolumeFigures, total};
use crate::output::table;
use crate::volume::limits_shown;

/// The whole view.
pub(super) fn whole(figures: &Figures) -> String {
    let parts = [
        summary(figures),
        cores(&figures.cores),
        volumes(&figures.volumes),
        routes(&figures.routes),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

fn summary(figures: &Figures) -> String {
    let iops = total(figures.volumes.iter().map(|volume| volume.iops));
    let rates = figures.volumes.iter().map(|volume| volume.bytes_per_second);
    let bytes = total(rates);
    format!(
        "last {:.1} s: {} requests/s, {}/s",
        figures.interval_seconds,
        scaled(iops),
        binary(bytes)
    )
}

fn cores(cores: &[CoreFigures]) -> String {
    let row = |core: &CoreFigures| {
        vec![
            core.core.to_string(),
            percent(core.busy_ratio),
            percent(core.idle_ratio),
            percent(core.asleep_ratio),
            scaled(core.polls_per_second),
            scaled(core.sleeps_per_second),
            scaled(core.requests_per_second),
            format!("{:.1}", core.commands_per_poll),
            format!("{:.3}", core.doorbells_per_request),
            core.requests_in_flight.to_string(),
            core.requests_waiting.to_string(),
            core.requests_held.to_string(),
        ]
    };
    let head = [
        "core", "busy", "idle", "asleep", "polls/s", "sleeps/s", "req/s", "cmd/poll", "bell/req",
        "active", "waiting", "held",
    ];
    table(&head, cores.iter().map(row).collect())
}

/// Those at work, the busiest first.
fn volumes(volumes: &[VolumeFigures]) -> String {
    let mut busy: Vec<_> = volumes
        .iter()
        .filter(|volume| !volume.operations.is_empty())
        .collect();
    busy.sort_by(|left, right| right.iops.total_cmp(&left.iops));
    if busy.is_empty() {
        return "no volume is in use".to_owned();
    }
    let rows = busy.into_iter().flat_map(|volume| {
        let operations = volume.operations.iter().enumerate();
        operations.map(|(index, operation)| volume_row(volume, operation, index == 0))
    });
    let head = [
        "volume",
        "operation",
        "iops",
        "bytes/s",
        "p50",
        "p99",
        "errors",
        "throttled/s",
        "wait",
        "limits",
    ];
    table(&head, rows.collect())
}

/// What holds for the volume as a whole stands in its first row only.
fn volume_row(volume: &VolumeFigures, operation: &OperationFigures, is_first: bool) -> Vec<String> {
    let once = |text: String| if is_first { text } else { String::new() };
    let is_throttled = volume.throttled_per_second > 0.0;
    let wait = volume.throttle_wait_mean_seconds * 1e9;
    vec![
        once(format!("{}/{}", volume.pool, volume.volume)),
        operation.operation.clone(),
        scaled(operation.iops),
        binary(operation.bytes_per_second),
        latency(operation.latency_p50_ns),
        latency(operation.latency_p99_ns),
        operation.errors.to_string(),
        once(scaled(volume.throttled_per_second)),
        once(if is_throttled { time(wait) } else { "-".into() }),
        once(limits_shown(&volume.limits())),
    ]
}

fn routes(routes: &[RouteFigures]) -> String {
    if routes.is_empty() {
        return String::new();
    }
    let row = |route: &RouteFigures| {
        vec![
            route.route.clone(),
            route.reason.clone(),
            scaled(route.per_second),
            percent(route.share),
        ]
    };
    let head = ["route", "reason", "per second", "share"];
    table(&head, routes.iter().map(row).collect())
}

fn percent(ratio: f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

/// A count a second with a decimal unit.
fn scaled(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.1}k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        0.0 => "0".to_owned(),
        value => format!("{value:.1}"),
    }
}

/// Bytes with a binary unit.
fn binary(bytes: f64) -> String {
    let mut scaled = bytes;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while scaled >= 1024.0 {
        let Some(larger) = units.next() else { break };
        scaled /= 1024.0;
        unit = larger;
    }
    format!("{scaled:.1} {unit}")
}

/// A bound of the histogram that the latency stayed below.
fn latency(nanoseconds: Option<u64>) -> String {
    let bounded = nanoseconds.and_then(|value| u32::try_from(value).ok());
    match (nanoseconds, bounded) {
        (Some(_), Some(value)) => time(f64::from(value)),
        // More than four seconds: whole ones are enough.
        (Some(value), None) => format!("{} s", value / 1_000_000_000),
        (None, _) => "> 34 s".to_owned(),
    }
}

fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value < 1e3 => format!("{value:.0} ns"),
        value if value < 1e6 => format!("{:.1} µs", value / 1e3),
        value if value < 1e9 => format!("{:.1} ms", value / 1e6),
        value => format!("{:.1} s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_whatever_their_size() {
        let counts = [0.0, 0.4, 99.9, 101.0, 12_345.0, 2_500_000.0].map(scaled);
        assert_eq!(counts, ["0", "0.4", "99.9", "101", "12.3k", "2.50M"]);
        assert_eq!(binary(1536.0), "1.5 KiB");
        assert_eq!(time(1500.0), "1.5 µs");
        assert_eq!(latency(Some(8_000_000_000)), "8 s");
        assert_eq!(latency(None), "> 34 s");
    }

    #[test]
    fn an_idle_server_has_a_view() {
        let idle = Figures {
            interval_seconds: 1.0,
            cores: Vec::new(),
            volumes: Vec::new(),
            routes: Vec::new(),
        };
        let view = whole(&idle);
        assert!(view.contains("no volume is in use"), "{view}");
        assert!(
            view.starts_with("last 1.0 s: 0 requests/s, 0.0 B/s\n"),
            "{view}"
        );
    }
}
