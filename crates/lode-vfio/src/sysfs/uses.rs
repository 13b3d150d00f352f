//! What a controller's namespaces are used for at the moment.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::address::PciAddress;
use crate::error::VfioError;
use crate::sysfs::Sysfs;
use crate::sysfs::signature::{PROBE_BYTES, recognise};

/// A block device or a partition of one.
struct Node {
    name: String,
    /// `major:minor`.
    number: String,
    directory: PathBuf,
}

impl Sysfs {
    /// Every reason not to take the controller away from the kernel, in words; empty when its
    /// namespaces are idle and empty, or when the kernel shows none. Reads the first 68 KiB of
    /// each namespace.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn uses(&self, address: PciAddress) -> Result<Vec<String>, VfioError> {
        let mounts = self
            .text(Path::new("proc/self/mountinfo"))?
            .unwrap_or_default();
        let swaps = self.text(Path::new("proc/swaps"))?.unwrap_or_default();
        let mut uses = Vec::new();
        for disk in self.disks(address)? {
            let partitions = self.partitions(&disk)?;
            for node in std::iter::once(&disk).chain(&partitions) {
                uses.extend(
                    mount_points(&mounts, &node.number)
                        .map(|point| format!("{} is mounted at {point}", node.name)),
                );
                if is_swap(&swaps, &node.name) {
                    uses.push(format!("{} is swap space in use", node.name));
                }
                uses.extend(self.holders(node)?);
            }
            uses.extend(self.contents(&disk.name));
        }
        Ok(uses)
    }

    /// The block devices of the controller at `address`.
    fn disks(&self, address: PciAddress) -> Result<Vec<Node>, VfioError> {
        let mut found = Vec::new();
        for name in self.names(Path::new(BLOCK))? {
            let relative = Path::new(BLOCK).join(&name);
            let Ok(directory) = fs::canonicalize(self.path(&relative)) else {
                // Removed since it was listed.
                continue;
            };
            if is_below(&directory, address) || has_path_through(&directory, address) {
                found.extend(self.node(name, relative)?);
            }
        }
        found.sort_by(|first, second| first.name.cmp(&second.name));
        Ok(found)
    }

    fn partitions(&self, disk: &Node) -> Result<Vec<Node>, VfioError> {
        let mut found = Vec::new();
        for name in self.names(&disk.directory)? {
            let directory = disk.directory.join(&name);
            if self.path(&directory).join("partition").is_file() {
                found.extend(self.node(name, directory)?);
            }
        }
        found.sort_by(|first, second| first.name.cmp(&second.name));
        Ok(found)
    }

    fn node(&self, name: String, directory: PathBuf) -> Result<Option<Node>, VfioError> {
        Ok(self.text(&directory.join("dev"))?.map(|number| Node {
            name,
            number: number.trim().to_owned(),
            directory,
        }))
    }

    /// Other block devices that stand on this one: LVM, RAID, encryption.
    fn holders(&self, node: &Node) -> Result<Vec<String>, VfioError> {
        let holders = self.names(&node.directory.join("holders"))?;
        Ok(holders
            .into_iter()
            .map(|holder| format!("{} is held by {holder}", node.name))
            .collect())
    }

    /// What the disk holds; a disk that cannot be read counts as holding something.
    fn contents(&self, name: &str) -> Vec<String> {
        let mut start = Vec::new();
        let read = File::open(self.path(Path::new("dev")).join(name))
            .and_then(|disk| disk.take(PROBE_BYTES as u64).read_to_end(&mut start));
        match read {
            Ok(_) => recognise(&start)
                .into_iter()
                .map(|format| format!("{name} holds {format}"))
                .collect(),
            Err(error) => vec![format!(
                "{name} cannot be read to see what it holds: {error}"
            )],
        }
    }
}

/// Whether a block device's directory lies below the function's.
fn is_below(directory: &Path, address: PciAddress) -> bool {
    let name = address.to_string();
    directory
        .components()
        .any(|part| part.as_os_str().to_str() == Some(name.as_str()))
}

/// Whether a multipath namespace (below its subsystem, not its controller) has a path through
/// the function: its subsystem lists the controllers as links.
fn has_path_through(directory: &Path, address: PciAddress) -> bool {
    let Some(entries) = directory
        .parent()
        .and_then(|parent| fs::read_dir(parent).ok())
    else {
        return false;
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("nvme"))
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .any(|controller| is_below(&controller, address))
}

/// Where the device with `number` is mounted (proc(5): the third field is `major:minor`, the
/// fifth the mount point).
fn mount_points<'a>(mounts: &'a str, number: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then(|| fields.nth(1))?
    })
}

fn is_swap(swaps: &str, name: &str) -> bool {
    swaps.lines().skip(1).any(|line| {
        line.split_whitespace()
            .next()
            .is_some_and(|path| Path::new(path) == Path::new("/dev").join(name))
    })
}

const BLOCK: &str = "sys/block";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::{FakeTree, address};

    const DISK: &str = "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1";

    fn tree() -> FakeTree {
        let tree = FakeTree::new();
        tree.function("0000:01:00.0", "0x010802", Some("nvme"), Some(4))
            .file(&format!("{DISK}/dev"), "259:0\n")
            .link("sys/block/nvme0n1", &format!("../../{DISK}"))
            .file("dev/nvme0n1", [0; 4096]);
        tree
    }

    fn uses(tree: &FakeTree) -> Vec<String> {
        tree.sysfs().uses(address("0000:01:00.0")).expect("told")
    }

    #[test]
    fn an_idle_empty_disk_has_no_uses_and_another_controllers_disk_does_not_count() {
        let tree = tree();
        tree.file(
            "sys/devices/pci0000:00/0000:02:00.0/nvme/nvme1/nvme1n1/dev",
            "259:1\n",
        )
        .link(
            "sys/block/nvme1n1",
            "../devices/pci0000:00/0000:02:00.0/nvme/nvme1/nvme1n1",
        )
        .file(
            "proc/self/mountinfo",
            "30 1 259:1 / /srv rw - ext4 /dev/x rw\n",
        );
        assert!(uses(&tree).is_empty());
    }

    #[test]
    fn a_mounted_partition_swap_and_holders_are_told() {
        let tree = tree();
        tree.file(&format!("{DISK}/nvme0n1p1/dev"), "259:5\n")
            .file(&format!("{DISK}/nvme0n1p1/partition"), "1\n")
            .file(&format!("{DISK}/nvme0n1p2/dev"), "259:6\n")
            .file(&format!("{DISK}/nvme0n1p2/partition"), "2\n")
            .directory(&format!("{DISK}/nvme0n1p2/holders/dm-0"))
            .file(
                "proc/self/mountinfo",
                "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                 30 22 259:5 / /boot rw,relatime shared:3 - vfat /dev/nvme0n1p1 rw\n",
            )
            .file(
                "proc/swaps",
                "Filename Type Size Used Priority\n/dev/nvme0n1 partition 9 0 -2\n",
            );
        assert_eq!(
            uses(&tree),
            [
                "nvme0n1 is swap space in use",
                "nvme0n1p1 is mounted at /boot",
                "nvme0n1p2 is held by dm-0",
            ]
        );
    }

    #[test]
    fn a_foreign_file_system_is_told() {
        let tree = tree();
        let mut disk = vec![0; PROBE_BYTES];
        disk[..4].copy_from_slice(b"XFSB");
        tree.file("dev/nvme0n1", disk);
        assert_eq!(uses(&tree), ["nvme0n1 holds an XFS file system"]);
    }

    #[test]
    fn a_disk_that_cannot_be_read_counts_as_used() {
        let tree = FakeTree::new();
        tree.file(&format!("{DISK}/dev"), "259:0\n")
            .link("sys/block/nvme0n1", &format!("../../{DISK}"));
        let uses = uses(&tree);
        assert_eq!(uses.len(), 1);
        assert!(uses[0].contains("cannot be read"));
    }

    #[test]
    fn a_multipath_namespace_belongs_to_each_controller_of_its_subsystem() {
        let tree = FakeTree::new();
        let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0";
        tree.directory("sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0")
            .file(&format!("{subsystem}/nvme0n1/dev"), "259:0\n")
            .link(
                &format!("{subsystem}/nvme0"),
                "../../../pci0000:00/0000:01:00.0/nvme/nvme0",
            )
            .link("sys/block/nvme0n1", &format!("../../{subsystem}/nvme0n1"))
            .file("dev/nvme0n1", [0; 4096])
            .file(
                "proc/self/mountinfo",
                "30 1 259:0 / /srv rw - xfs /dev/x rw\n",
            );
        assert_eq!(uses(&tree), ["nvme0n1 is mounted at /srv"]);
    }
}
