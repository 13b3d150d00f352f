//! Moving a function from the kernel's driver to VFIO and back.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::address::PciAddress;
use crate::error::VfioError;
use crate::sysfs::VFIO_DRIVER;
use crate::sysfs::{PciFunction, Sysfs, device_directory};

/// Whether a device that is in use may be taken nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// A device that is mounted or holds foreign data is refused.
    UnusedOnly,
    /// The person has said in words that whatever the device holds may be lost.
    EvenInUse,
}

/// How long to wait for the kernel to move a function. NVMe functions are probed asynchronously:
/// the driver that was just told to let go may come back once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How often to try.
    pub attempts: u32,
    /// How long to wait between two attempts.
    pub pause: Duration,
}

impl Default for Patience {
    /// Five seconds.
    fn default() -> Self {
        Self {
            attempts: 100,
            pause: Duration::from_millis(50),
        }
    }
}

impl Sysfs {
    /// Hands `address` to VFIO. Does nothing when it is there already. Needs root; blocks.
    ///
    /// # Errors
    /// When the function is no NVMe controller, in use without consent, or does not come.
    pub fn bind(
        &self,
        address: PciAddress,
        consent: Consent,
        patience: Patience,
    ) -> Result<PciFunction, VfioError> {
        let function = self.function(address)?;
        if !function.is_nvme() {
            return Err(VfioError::NoRegisters {
                address,
                reason: "it is no NVMe controller",
            });
        }
        if function.is_bound_to_vfio() {
            return Ok(function);
        }
        if !self.path(Path::new(VFIO_DRIVER_DIRECTORY)).is_dir() {
            return Err(VfioError::NoVfio {
                path: self.path(Path::new(VFIO_DRIVER_DIRECTORY)),
            });
        }
        let uses = self.uses(address)?;
        if consent == Consent::UnusedOnly && !uses.is_empty() {
            return Err(VfioError::InUse { address, uses });
        }
        let moved = self.move_to(address, VFIO_DRIVER, patience, |driver| {
            driver == Some(VFIO_DRIVER)
        });
        if moved.is_err() {
            // Without the override the next probe gives it to the kernel's driver again.
            self.set_override(address, "")?;
            self.probe(address)?;
        }
        moved
    }

    /// Gives `address` back to the kernel's own driver. Needs root; blocks until every holder
    /// of the VFIO device has let go.
    ///
    /// # Errors
    /// When the function does not exist, or no other driver takes it.
    pub fn unbind(
        &self,
        address: PciAddress,
        patience: Patience,
    ) -> Result<PciFunction, VfioError> {
        let function = self.function(address)?;
        if function.driver.is_some() && !function.is_bound_to_vfio() {
            return Ok(function);
        }
        self.move_to(address, "", patience, |driver| {
            driver.is_some_and(|driver| driver != VFIO_DRIVER)
        })
    }

    /// Lets go, names `driver` as the only one (or none) and has the kernel probe, until
    /// `is_there`.
    fn move_to(
        &self,
        address: PciAddress,
        driver: &str,
        patience: Patience,
        is_there: impl Fn(Option<&str>) -> bool,
    ) -> Result<PciFunction, VfioError> {
        for attempt in 0..patience.attempts {
            let function = self.function(address)?;
            if is_there(function.driver.as_deref()) {
                return Ok(function);
            }
            if attempt > 0 {
                pause(patience.pause);
            }
            self.set_override(address, driver)?;
            if function.driver.is_some() {
                let unbind = device_directory(address).join("driver/unbind");
                self.write_tolerant(&unbind, &address.to_string())?;
            }
            self.probe(address)?;
        }
        let function = self.function(address)?;
        if is_there(function.driver.as_deref()) {
            return Ok(function);
        }
        let wanted = if driver.is_empty() {
            "the kernel's driver"
        } else {
            driver
        };
        Err(VfioError::NotTaken {
            address,
            driver: wanted.to_owned(),
        })
    }

    /// An empty name removes the override; sysfs takes a line for that.
    fn set_override(&self, address: PciAddress, driver: &str) -> Result<(), VfioError> {
        let path = device_directory(address).join("driver_override");
        self.write(&path, &format!("{driver}\n"))
    }

    fn probe(&self, address: PciAddress) -> Result<(), VfioError> {
        self.write_tolerant(Path::new(PROBE), &address.to_string())
    }

    /// A write that may lose a race: the driver let go by itself (ENODEV), the directory went
    /// with it, or a probe found nobody. What counts is the driver afterwards.
    fn write_tolerant(&self, relative: &Path, text: &str) -> Result<(), VfioError> {
        match self.write(relative, text) {
            Err(VfioError::File { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::ENODEV | libc::ENOENT | libc::EINVAL | libc::EBUSY)
                ) =>
            {
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn write(&self, relative: &Path, text: &str) -> Result<(), VfioError> {
        let path = self.path(relative);
        let written = OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source: io::Error| VfioError::File {
            operation: "write",
            path,
            source,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "sysfs raises no event; the driver is looked at again a bounded number of times"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

const PROBE: &str = "sys/bus/pci/drivers_probe";
const VFIO_DRIVER_DIRECTORY: &str = "sys/bus/pci/drivers/vfio-pci";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::{FakeTree, address};

    const AT_ONCE: Patience = Patience {
        attempts: 2,
        pause: Duration::ZERO,
    };

    /// A controller with the files that binding writes.
    fn tree(driver: Option<&str>) -> FakeTree {
        let tree = FakeTree::new();
        let directory = "sys/bus/pci/devices/0000:01:00.0";
        tree.function("0000:01:00.0", "0x010802", driver, Some(4))
            .file(&format!("{directory}/driver_override"), "")
            .file("sys/bus/pci/drivers/vfio-pci/unbind", "")
            .file("sys/bus/pci/drivers/nvme/unbind", "")
            .file(PROBE, "");
        tree
    }

    #[test]
    fn binding_names_vfio_lets_go_and_probes_and_undoes_that_when_nothing_comes_of_it() {
        let tree = tree(Some("nvme"));
        let outcome = tree
            .sysfs()
            .bind(address("0000:01:00.0"), Consent::UnusedOnly, AT_ONCE);
        assert!(
            matches!(outcome, Err(VfioError::NotTaken { .. })),
            "{outcome:?}"
        );
        assert_eq!(tree.read("sys/bus/pci/drivers/nvme/unbind"), "0000:01:00.0");
        assert_eq!(tree.read(PROBE), "0000:01:00.0");
        let left = tree.read("sys/bus/pci/devices/0000:01:00.0/driver_override");
        assert!(left.starts_with('\n'), "{left:?}");
    }

    #[test]
    fn a_function_that_vfio_has_already_is_left_alone() {
        let tree = tree(Some("vfio-pci"));
        let bound = tree
            .sysfs()
            .bind(address("0000:01:00.0"), Consent::UnusedOnly, AT_ONCE)
            .expect("bound");
        assert!(bound.is_bound_to_vfio());
        assert_eq!(tree.read(PROBE), "");
    }

    #[test]
    fn giving_back_clears_the_override_and_lets_go_of_vfio() {
        let tree = tree(Some("vfio-pci"));
        let outcome = tree.sysfs().unbind(address("0000:01:00.0"), AT_ONCE);
        assert!(matches!(outcome, Err(VfioError::NotTaken { .. })));
        assert_eq!(
            tree.read("sys/bus/pci/drivers/vfio-pci/unbind"),
            "0000:01:00.0"
        );
        assert_eq!(
            tree.read("sys/bus/pci/devices/0000:01:00.0/driver_override"),
            "\n"
        );
    }

    #[test]
    fn a_function_with_the_kernels_driver_needs_no_giving_back() {
        let tree = tree(Some("nvme"));
        let function = tree
            .sysfs()
            .unbind(address("0000:01:00.0"), AT_ONCE)
            .expect("there");
        assert_eq!(function.driver.as_deref(), Some("nvme"));
        assert_eq!(tree.read(PROBE), "");
    }

    #[test]
    fn what_is_no_nvme_controller_is_never_touched() {
        let tree = FakeTree::new();
        tree.function("0000:00:1f.3", "0x040300", Some("snd_hda_intel"), Some(3))
            .file("sys/bus/pci/devices/0000:00:1f.3/driver_override", "");
        let outcome = tree
            .sysfs()
            .bind(address("0000:00:1f.3"), Consent::EvenInUse, AT_ONCE);
        assert!(matches!(outcome, Err(VfioError::NoRegisters { .. })));
        assert_eq!(
            tree.read("sys/bus/pci/devices/0000:00:1f.3/driver_override"),
            ""
        );
    }

    #[test]
    fn a_device_in_use_is_taken_only_with_consent() {
        let tree = tree(Some("nvme"));
        tree.file(
            "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/dev",
            "259:0\n",
        )
        .link(
            "sys/block/nvme0n1",
            "../devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1",
        )
        .file("dev/nvme0n1", [0; 4096])
        .file(
            "proc/self/mountinfo",
            "30 1 259:0 / /srv rw,relatime - ext4 /dev/nvme0n1 rw\n",
        );
        let sysfs = tree.sysfs();
        let refused = sysfs.bind(address("0000:01:00.0"), Consent::UnusedOnly, AT_ONCE);
        let Err(VfioError::InUse { uses, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(uses, ["nvme0n1 is mounted at /srv"]);
        assert_eq!(tree.read(PROBE), "");
        let forced = sysfs.bind(address("0000:01:00.0"), Consent::EvenInUse, AT_ONCE);
        assert!(matches!(forced, Err(VfioError::NotTaken { .. })));
        assert_eq!(tree.read(PROBE), "0000:01:00.0");
    }

    #[test]
    fn without_the_vfio_driver_nothing_is_moved() {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("nvme"), Some(4));
        let outcome = tree
            .sysfs()
            .bind(address("0000:01:00.0"), Consent::UnusedOnly, AT_ONCE);
        assert!(matches!(outcome, Err(VfioError::NoVfio { .. })));
    }
}
