//! The guests: which controllers each has and which scenarios it runs.
//!
//! The scenarios themselves are in `tests/vm`; addresses, identifiers and the bad block here are
//! the ones that they rely on.

mod disk;

use std::ops::Range;

pub(super) use disk::{Disk, Fault};

/// One guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) name: &'static str,
    /// Files behind its disks; each is made anew for every run, sparse.
    pub(super) disks: &'static [Disk],
    /// QEMU's arguments for its controllers.
    pub(super) devices: &'static [&'static str],
    /// Words for its kernel beyond those of every guest.
    pub(super) kernel: &'static str,
    /// What it runs, in this order.
    pub(super) scenarios: &'static [&'static str],
}

/// A guest with what it is to run this time.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) guest: &'static Guest,
    pub(super) scenarios: Vec<&'static str>,
    pub(super) emulation: Emulation,
}

/// How the processors are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emulation {
    /// Two, each on a thread of its own.
    Parallel,
    /// One; the guest's clock advances by a nanosecond with each instruction, whatever time it
    /// takes, and not otherwise.
    Counted,
}

/// The bad block of the scenarios that use a driver without a pool.
const BAD: Range<u64> = 1024..1025;
/// Among the first blocks that a pool on a disk of 64 MiB gives to a volume.
const BAD_DATA: Range<u64> = 2400..2401;
/// The two places for superblocks at the disk's beginning.
const BAD_SUPERBLOCKS: Range<u64> = 0..16;
/// A block of the journal of a pool on a disk of 64 MiB that a young pool soon comes to.
const BAD_JOURNAL: Range<u64> = 528..529;

/// The guest that needs a kernel with VFIO's device nodes and iommufd.
pub(super) const IOMMUFD: &str = "iommufd";

/// The controller that the daemon serves where nothing is wrong with it.
const SERVED: &[&str] = &[
    "nvme,id=served,serial=served,addr=0x13,max_ioqpairs=8",
    "nvme-ns,bus=served,nsid=1,drive=untouched,logical_block_size=512",
    "nvme-ns,bus=served,nsid=2,drive=pool,logical_block_size=4096,physical_block_size=4096",
];

pub(super) const GUESTS: &[Guest] = &[
    Guest {
        name: "controllers",
        disks: &[
            // Beyond 4 GiB, so that there are blocks on both sides of it.
            Disk::new("first", 6 << 10),
            Disk::new("second", 6 << 10),
            Disk::faulty("third", Fault::Used),
            // Small, so that a volume soon needs a second one.
            Disk::new("fourth", 32),
            Disk::new("fifth", 64),
            Disk::new("sixth", 32),
        ],
        devices: &[
            "nvme,id=plain,serial=plain,addr=0x10,max_ioqpairs=8,dbcs=off",
            "nvme-ns,bus=plain,nsid=1,drive=first,logical_block_size=512",
            "nvme-ns,bus=plain,nsid=2,drive=second,logical_block_size=4096,\
             physical_block_size=4096",
            "nvme-ns,bus=plain,nsid=3,drive=third,logical_block_size=512",
            "nvme-ns,bus=plain,nsid=4,drive=fourth,logical_block_size=4096,\
             physical_block_size=4096",
            "nvme-ns,bus=plain,nsid=5,drive=fifth,logical_block_size=512",
            "nvme,id=shadow,serial=shadow,addr=0x11,max_ioqpairs=8,dbcs=on",
            "nvme-ns,bus=shadow,nsid=1,drive=sixth,logical_block_size=512",
        ],
        kernel: "",
        scenarios: &[
            "doctor",
            "in-use",
            "bring-up",
            "two-controllers",
            "namespaces",
            "transfer-sizes",
            "operations",
            "shadow-doorbells",
            "write-cache",
            "raw-proof",
            "interrupts",
            "function-reset",
            "killed",
            "unprivileged",
            "smart-warning",
            "daemon-namespaces",
            "daemon-write-cache",
            "start-stop",
            "no-stray-dma",
            // Last: it makes a device access what it may not.
            "blocked-dma",
        ],
    },
    Guest {
        name: "faults",
        disks: &[
            Disk::faulty(
                "bad-read",
                Fault::Bad {
                    accesses: &["read"],
                    blocks: BAD,
                },
            ),
            Disk::faulty(
                "bad-write",
                Fault::Bad {
                    accesses: &["write"],
                    blocks: BAD,
                },
            ),
            Disk::faulty("held", Fault::Held),
            Disk::faulty("limited", Fault::Limited),
            Disk::new("sound", 64),
            Disk::way(
                "data-read",
                "sound",
                Fault::Bad {
                    accesses: &["read"],
                    blocks: BAD_DATA,
                },
            ),
            Disk::way(
                "data-write",
                "sound",
                Fault::Bad {
                    accesses: &["write"],
                    blocks: BAD_DATA,
                },
            ),
            Disk::way(
                "superblocks",
                "sound",
                Fault::Bad {
                    accesses: &["read", "write"],
                    blocks: BAD_SUPERBLOCKS,
                },
            ),
            Disk::way(
                "journal",
                "sound",
                Fault::Bad {
                    accesses: &["write"],
                    blocks: BAD_JOURNAL,
                },
            ),
        ],
        devices: &[
            "nvme,id=faulty,serial=faulty,addr=0x12,max_ioqpairs=8",
            "nvme-ns,bus=faulty,nsid=1,drive=bad-read,logical_block_size=512",
            "nvme-ns,bus=faulty,nsid=2,drive=bad-write,logical_block_size=512",
            "nvme-ns,id=hang,bus=faulty,nsid=3,drive=held,logical_block_size=512",
            "nvme-ns,bus=faulty,nsid=4,drive=limited,logical_block_size=512",
            "nvme,id=damaged,serial=damaged,addr=0x14,max_ioqpairs=8",
            "nvme-ns,bus=damaged,nsid=1,drive=sound,logical_block_size=512",
            "nvme-ns,bus=damaged,nsid=2,drive=data-read,logical_block_size=512",
            "nvme-ns,bus=damaged,nsid=3,drive=data-write,logical_block_size=512",
            "nvme-ns,bus=damaged,nsid=4,drive=superblocks,logical_block_size=512",
            "nvme-ns,bus=damaged,nsid=5,drive=journal,logical_block_size=512",
        ],
        kernel: "hugepages=64",
        scenarios: &[
            "huge-pages",
            "media-error-read",
            "media-error-write",
            "hung-command",
            "daemon-media-error",
            "daemon-bad-superblock",
            "daemon-bad-journal",
            "daemon-abort",
            "daemon-hang",
            "daemon-reset",
            "no-stray-dma",
        ],
    },
    Guest {
        name: "removal",
        disks: &[Disk::new("removable", 64)],
        devices: &[
            "pcie-root-port,id=rootport,chassis=1,addr=0x18",
            "nvme,id=removable,bus=rootport,serial=removable,drive=removable",
        ],
        kernel: "",
        scenarios: &["removal", "daemon-unplug", "no-stray-dma"],
    },
    Guest {
        name: "daemon",
        disks: &[Disk::new("untouched", 256), Disk::new("pool", 256)],
        devices: SERVED,
        kernel: "",
        scenarios: &[
            "daemon",
            "daemon-removal",
            "daemon-sleep",
            "unprivileged-daemon",
            "daemon-health",
            "no-stray-dma",
        ],
    },
    // A hundred rounds in four parts: when QEMU crashes at one of their many resets, the parts that
    // are done stay done.
    Guest {
        name: "restarts",
        disks: &[Disk::new("untouched", 256), Disk::new("pool", 256)],
        devices: SERVED,
        kernel: "",
        scenarios: &[
            "daemon-start-stop",
            "daemon-start-stop",
            "daemon-start-stop",
            "daemon-start-stop",
            "no-stray-dma",
        ],
    },
    Guest {
        // Two controllers on the same namespaces: the one can take them from the other.
        name: "subsystem",
        disks: &[Disk::new("taken", 64), Disk::new("left", 64)],
        devices: &[
            "nvme-subsys,id=subsystem,nqn=subsystem",
            "nvme,id=ours,serial=shared,subsys=subsystem,addr=0x15,max_ioqpairs=8",
            "nvme,id=theirs,serial=shared,subsys=subsystem,addr=0x16,max_ioqpairs=8",
            "nvme-ns,bus=ours,nsid=1,drive=taken,logical_block_size=512",
            "nvme-ns,bus=ours,nsid=2,drive=left,logical_block_size=512",
        ],
        kernel: "",
        scenarios: &["daemon-attachment", "no-stray-dma"],
    },
    Guest {
        name: IOMMUFD,
        disks: &[Disk::new("noded", 64)],
        devices: &["nvme,id=noded,serial=noded,addr=0x14,max_ioqpairs=8,drive=noded"],
        kernel: "",
        scenarios: &["device-node", "no-stray-dma"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disk_is_used_by_a_device_and_every_device_uses_a_disk_that_exists() {
        for guest in GUESTS {
            for disk in guest.disks {
                let wanted = format!("drive={}", disk.node);
                let uses = |device: &&str| device.split(',').any(|part| part == wanted);
                assert!(guest.devices.iter().any(uses), "{wanted}");
            }
            for device in guest.devices {
                for drive in device
                    .split(',')
                    .filter_map(|part| part.strip_prefix("drive="))
                {
                    let is_there = guest.disks.iter().any(|disk| disk.node == drive);
                    assert!(is_there, "{drive}");
                }
            }
        }
    }
}
