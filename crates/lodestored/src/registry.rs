//! What is known of devices and pools in use besides what the shard knows: read by the server,
//! written when one is opened, changes or goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_server::DeviceDetails;
use tokio::sync::Notify;

use crate::device_name::DeviceSpec;
use crate::drive::Devices;

/// The devices and pools in use.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    devices: Arc<Devices>,
    removal: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    devices: BTreeMap<String, DeviceDetails>,
    pools: BTreeMap<String, String>,
    /// Controllers that the kernel wants back and nobody has let go of yet.
    wanted_back: BTreeSet<String>,
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

    /// Whether a device is in use, under this name or with options that do not tell it apart.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let Some(wanted) = DeviceSpec::identity(name) else {
            return false;
        };
        self.lock()
            .devices
            .keys()
            .any(|used| DeviceSpec::identity(used).as_ref() == Some(&wanted))
    }

    /// Says that the kernel wants a controller back. Called once for each controller in use.
    pub(crate) fn request_removal(&self, name: &str) {
        self.lock().wanted_back.insert(name.to_owned());
        self.removal.notify_one();
    }

    /// Waits for a controller that the kernel wants back.
    pub(crate) async fn next_removal(&self) -> String {
        loop {
            if let Some(name) = self.lock().wanted_back.pop_first() {
                return name;
            }
            // A request after the look leaves a permit behind, so that none is missed.
            self.removal.notified().await;
        }
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

    #[tokio::test]
    async fn every_controller_that_is_wanted_back_is_told_once() {
        let registry = Registry::default();
        registry.request_removal("vfio:01:00.0");
        registry.request_removal("vfio:02:00.0");
        assert_eq!(registry.next_removal().await, "vfio:01:00.0");
        assert_eq!(registry.next_removal().await, "vfio:02:00.0");
        let waiting = registry.next_removal();
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            name = &mut waiting => panic!("{name} was told twice"),
            () = std::future::ready(()) => {}
        }
        registry.request_removal("vfio:03:00.0");
        assert_eq!(waiting.await, "vfio:03:00.0");
    }
}
