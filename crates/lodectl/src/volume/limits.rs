//! Limits as they are given on the command line and shown.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use lode_api::client::LimitChange;
use lode_api::v1::VolumeLimits;

use crate::cli::LimitOptions;
use crate::size::{Human, Size};

/// The burst of a new volume with limits, where none is given.
const BURST_MS: u32 = 1000;

/// The limits of a new volume.
pub(super) fn new(options: LimitOptions) -> Result<VolumeLimits> {
    let change = changed(options)?;
    let is_limited = change.iops_max.unwrap_or(0) | change.bandwidth_max_bytes.unwrap_or(0) > 0;
    let burst_ms = if is_limited { BURST_MS } else { 0 };
    Ok(VolumeLimits {
        iops_max: change.iops_max.unwrap_or(0),
        bandwidth_max_bytes: change.bandwidth_max_bytes.unwrap_or(0),
        burst_ms: change.burst_ms.unwrap_or(burst_ms),
    })
}

/// The change of a volume's limits.
pub(super) fn change(options: LimitOptions) -> Result<LimitChange> {
    let change = changed(options)?;
    if change == LimitChange::default() {
        bail!("nothing to change: give --iops-max, --bandwidth-max or --burst");
    }
    Ok(change)
}

fn changed(options: LimitOptions) -> Result<LimitChange> {
    let burst_ms = options.burst.map(|burst| u32::try_from(burst.as_millis()));
    Ok(LimitChange {
        iops_max: options.iops_max,
        bandwidth_max_bytes: options.bandwidth_max.map(|Size(bytes)| bytes),
        burst_ms: burst_ms.transpose().context("a burst is at most 1h")?,
    })
}

/// Limits as they are shown.
pub(crate) fn shown(limits: &VolumeLimits) -> String {
    let mut parts = Vec::new();
    if limits.iops_max > 0 {
        parts.push(format!("{} op/s", limits.iops_max));
    }
    if limits.bandwidth_max_bytes > 0 {
        parts.push(format!("{}/s", Human(limits.bandwidth_max_bytes)));
    }
    if parts.is_empty() {
        return "none".to_owned();
    }
    let burst = Duration::from_millis(limits.burst_ms.into());
    parts.push(format!("burst {}", humantime::format_duration(burst)));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_volume_with_a_limit_has_a_burst_and_one_without_has_none() {
        let none = new(LimitOptions::default()).expect("valid");
        assert_eq!(none, VolumeLimits::default());
        assert_eq!(shown(&none), "none");
        let limited = new(LimitOptions {
            iops_max: Some(500),
            bandwidth_max: Some(Size(10 << 20)),
            burst: None,
        });
        let shown = shown(&limited.expect("valid"));
        assert_eq!(shown, "500 op/s, 10.0 MiB/s, burst 1s");
    }

    #[test]
    fn a_change_of_nothing_is_refused_and_zero_is_a_change() {
        assert!(change(LimitOptions::default()).is_err());
        let lifted = change(LimitOptions {
            iops_max: Some(0),
            ..LimitOptions::default()
        });
        assert_eq!(lifted.expect("a change").iops_max, Some(0));
        let endless = Some(Duration::from_secs(1 << 32));
        let endless = LimitOptions {
            burst: endless,
            ..LimitOptions::default()
        };
        assert!(change(endless).is_err());
    }
}
