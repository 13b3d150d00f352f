//! The route and latency figures, taken from the metrics page.

/// Series that tell how requests went.
const ROUTES: &[&str] = &["completions_total", "flushes_total", "fua_writes_total"];

/// Prints the counters of routes, and count and mean of each latency histogram. Series that are
/// zero are left out.
pub(crate) fn print(metrics: &str) {
    let series = || {
        metrics
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter_map(|(name, value)| Some((name, value.parse::<f64>().ok()?)))
            .filter(|(_, value)| *value > 0.0)
    };
    for (name, value) in series() {
        if ROUTES.iter().any(|route| bare(name).ends_with(route)) {
            println!("  {name} {value}");
        }
    }
    for (name, count) in series() {
        let Some(histogram) = bare(name).strip_suffix("_count") else {
            continue;
        };
        if !histogram.ends_with("_seconds") {
            continue;
        }
        let labels = name.strip_prefix(bare(name)).unwrap_or_default();
        let sum_name = format!("{histogram}_sum{labels}");
        if let Some((_, sum)) = series().find(|(other, _)| *other == sum_name) {
            println!(
                "  {histogram}{labels} {count} times, mean {:.0} us",
                sum / count * 1e6
            );
        }
    }
}

/// A series' name without its labels.
fn bare(name: &str) -> &str {
    name.split('{').next().unwrap_or(name)
}
