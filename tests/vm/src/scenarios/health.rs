//! What a controller says of itself while the daemon uses it.

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::daemon::{address, device};
use crate::host;
use crate::lodectl::lodectl;
use crate::metrics::Metrics;
use crate::remote::Remote;
use crate::service::Daemon;

/// A SMART warning raises an event; metrics and the pool's status show it, and its end.
pub(super) fn warning() -> Result<String> {
    let address = address()?;
    lodectl(&["device", "bind", &address.to_string()])?;
    let daemon = Daemon::start()?;
    let remote = Remote::connect()?;
    remote.create_pool("tank", &[device(address)])?;
    let label = address.to_string();
    Metrics::until("lodestore_nvme_critical_warning", &label, |bits| {
        bits == 0.0
    })?;
    let before = Metrics::read()?.expect("lodestore_nvme_async_events_total", &label)?;
    host::monitor_quietly("qom-set /machine/peripheral/served smart_critical_warning 4")?;
    Metrics::until("lodestore_nvme_critical_warning", &label, |bits| {
        bits == 4.0
    })?;
    let events = Metrics::read()?.expect("lodestore_nvme_async_events_total", &label)? - before;
    ensure!(events >= 1.0, "{events} events");
    let status = lodectl(&["pool", "status", "tank"])?;
    ensure!(status.contains("warning 0x04"), "{status}");
    let status = lodectl(&["pool", "status", "tank", "--json"])?;
    ensure!(status.contains("\"critical_warning\": 4"), "{status}");
    host::monitor_quietly("qom-set /machine/peripheral/served smart_critical_warning 0")?;
    let status = daemon.end(Signal::TERM)?;
    ensure!(status.success(), "the daemon stopped with {status}");
    Ok(format!(
        "{events} event, warning 0x4 in the metrics and in the pool's status"
    ))
}
