//! What is known of devices and pools in use besides what the shard knows: read by the server,
//! written when one is opened, changes or goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_server::DeviceDetails;

use crate::drive::Devices;

/// The devices and pools in use.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    devices: Arc<Devices>,
}

#[derive(Debug, Default)]
struct Inner {
    devices: BTreeMap<String, DeviceDetails>,
    pools: BTreeMap<String, String>,
}

impl Registry {
    /// The figures of the devices in use.
    pub(crate) const fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Shows a device, or what has changed about it.
    pub(crate) fn show(&self, name: &str, details: DeviceDetails) {
        self.lock().devices.insert(name.to_owned(), details);
    }

    /// Forgets a device.
    pub(crate) fn hide(&self, name: &str) {
        self.lock().devices.remove(name);
    }

    /// What is known of a device.
    pub(crate) fn device(&self, name: &str) -> DeviceDetails {
        self.lock().devices.get(name).cloned().unwrap_or_default()
    }

    /// Whether a device is in use, under this name or with other options.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let wanted = path(name);
        self.lock()
            .devices
            .keys()
            .any(|used| path(used) == wanted && !is_memory(wanted))
    }

    /// Shows a pool's UUID.
    pub(crate) fn show_pool(&self, name: &str, uuid: String) {
        self.lock().pools.insert(name.to_owned(), uuid);
    }

    /// Forgets a pool.
    pub(crate) fn hide_pool(&self, name: &str) {
        self.lock().pools.remove(name);
    }

    /// A pool's UUID; empty when it is not in use.
    pub(crate) fn pool_uuid(&self, name: &str) -> String {
        self.lock().pools.get(name).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device's name without its options.
fn path(name: &str) -> &str {
    name.split('?').next().unwrap_or(name)
}

/// Each `memory:` device is one of its own, whatever its name.
fn is_memory(name: &str) -> bool {
    name.starts_with("memory:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_in_use_whatever_its_options_and_memory_never_is() {
        let registry = Registry::default();
        registry.show("file:/a?size=1GiB", DeviceDetails::default());
        registry.show("memory:1GiB", DeviceDetails::default());
        assert!(registry.uses("file:/a"));
        assert!(!registry.uses("file:/b"));
        assert!(!registry.uses("memory:1GiB"));
        registry.hide("file:/a?size=1GiB");
        assert!(!registry.uses("file:/a"));
    }
}
