//! What a guest is made of: QEMU and a kernel, both from Debian unless a kernel is given.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{emulator, kernel_image};
use crate::process;
use crate::tools::install_debian_packages;

/// The pieces, found or fetched.
#[derive(Debug)]
pub(super) struct Kit {
    /// The emulator.
    pub(super) qemu: PathBuf,
    /// The kernel as an ELF image.
    pub(super) kernel: PathBuf,
    /// The directory of the kernel's modules (`lib/modules/VERSION`); `None` for a kernel that has
    /// everything built in.
    pub(super) modules: Option<PathBuf>,
}

impl Kit {
    /// Finds or fetches everything but a `kernel` that is given; what is fetched stays in
    /// `directory`. Blocks; uses the network the first time.
    ///
    /// # Errors
    /// When a piece cannot be had: no Debian, no network, no rights to install.
    pub(super) fn prepare(directory: &Path, kernel: Option<&Path>) -> Result<Self> {
        ensure!(cfg!(target_arch = "x86_64"), "guests are x86-64");
        fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
        // mke2fs among them.
        install_debian_packages()?;
        let qemu = emulator::find_or_install(directory)?;
        let (kernel, modules) = match kernel {
            Some(kernel) => (kernel.to_owned(), None),
            None => debian_kernel(directory)?,
        };
        Ok(Self {
            qemu,
            kernel,
            modules,
        })
    }
}

/// Debian's kernel as an ELF image, and its modules.
fn debian_kernel(directory: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    let unpacked = directory.join("kernel");
    let version = match kernel_version(&unpacked) {
        Some(version) => version,
        None => fetch_kernel(directory, &unpacked)?,
    };
    let kernel = directory.join(format!("vmlinux-{version}"));
    if !kernel.is_file() {
        let packed = unpacked.join("boot").join(format!("vmlinuz-{version}"));
        kernel_image::extract(&packed, &kernel)?;
    }
    Ok((kernel, Some(unpacked.join("lib/modules").join(version))))
}

/// The version of the kernel that is unpacked in `directory`, if one is.
fn kernel_version(directory: &Path) -> Option<String> {
    fs::read_dir(directory.join("boot"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned))
}

/// Downloads and unpacks the newest kernel of [`KERNEL_SERIES`]; it is never installed.
fn fetch_kernel(directory: &Path, unpacked: &Path) -> Result<String> {
    let newest = process::output(Command::new("apt-cache").args(["depends", KERNEL_SERIES]))?;
    let package = newest
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| name.starts_with("linux-image-"))
        .with_context(|| format!("{KERNEL_SERIES} depends on no kernel"))?;
    process::run(
        Command::new("apt-get")
            .args(["download", "--quiet", package])
            .current_dir(directory),
    )?;
    let archive = fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(package) && name.ends_with(".deb"))
        })
        .context("the kernel was downloaded and is not there")?;
    // Under another name until it is whole.
    let partial = directory.join("kernel.partial");
    process::run(Command::new("dpkg").arg("-x").args([&archive, &partial]))?;
    fs::rename(&partial, unpacked)?;
    fs::remove_file(&archive)?;
    kernel_version(unpacked).context("the package holds no kernel")
}

/// Has VFIO for PCI, the Intel IOMMU and virtio; 6.12 is a long-term kernel.
const KERNEL_SERIES: &str = "linux-image-6.12-cloud-amd64";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_holds_no_kernel() {
        assert_eq!(kernel_version(Path::new("/proc/self/task")), None);
    }
}
