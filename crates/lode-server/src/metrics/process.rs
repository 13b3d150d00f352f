//! The process's own figures, from /proc/self, and what it was built from.

use std::fs;

use lode_engine::requests_lost;

use crate::metrics::{Families, MetricsSource};

/// Processor time, memory and descriptors of this process (proc(5)). What cannot be read is left
/// out.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSource;

impl MetricsSource for ProcessSource {
    fn collect(&self, into: &mut Families) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "What was built; always 1.";
        into.gauge("lodestore_build_info", help, &version, 1);
        let help = "Requests dropped instead of being completed: anything but 0 is a defect.";
        into.counter("lodestore_requests_lost_total", help, &[], requests_lost());
        if let Some(ticks) = fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(ticks)
        {
            let help = "Processor time in user and kernel mode.";
            let nanoseconds = ticks.saturating_mul(NANOSECONDS_PER_TICK);
            into.counter_of_time("process_cpu_seconds_total", help, &[], nanoseconds);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(bytes) = resident_bytes(&status) {
            let help = "Resident memory.";
            into.gauge("process_resident_memory_bytes", help, &[], bytes);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            let help = "Open file descriptors.";
            into.gauge("process_open_fds", help, &[], entries.count() as u64);
        }
    }
}

/// User and kernel time, fields 14 and 15 of /proc/self/stat, in ticks of 10 ms. The second field,
/// in parentheses, may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    user.checked_add(kernel)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// USER_HZ is 100 on every architecture that Linux and this program share.
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 12 30 0 0 20 0 1 0 5";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   12 kB\n"), Some(12_288));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    fn the_process_has_figures() {
        let mut families = Families::default();
        ProcessSource.collect(&mut families);
        let text = families.encode();
        for name in [
            "lodestore_build_info{",
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
        ] {
            assert!(text.contains(name), "{name} in {text}");
        }
    }
}
