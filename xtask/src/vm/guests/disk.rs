//! The disks of a guest and what is wrong with them.

use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};

/// A disk of a guest.
#[derive(Debug)]
pub(in crate::vm) struct Disk {
    /// The name by which a device takes it.
    pub(in crate::vm) node: &'static str,
    /// The file behind it. Several disks may be ways to one file.
    pub(in crate::vm) file: &'static str,
    pub(in crate::vm) mebibytes: u64,
    /// What is wrong with it.
    pub(in crate::vm) fault: Fault,
}

/// What is wrong with a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Fault {
    /// Nothing.
    None,
    /// Nothing; but it holds a file system when the guest starts.
    Used,
    /// These accesses to these blocks of 512 bytes fail.
    Bad {
        accesses: &'static [&'static str],
        blocks: Range<u64>,
    },
    /// Nothing by itself; the monitor can hold its requests.
    Held,
    /// Nothing by itself; the monitor can limit its rate, to next to nothing as well, through an
    /// object with the name of the disk. What waits for the limit goes on when the device is
    /// reset.
    Limited,
    /// It is no disk: writes are forgotten, reads succeed and move nothing.
    Null,
}

impl Disk {
    pub(super) const fn new(node: &'static str, mebibytes: u64) -> Self {
        Self {
            node,
            file: node,
            mebibytes,
            fault: Fault::None,
        }
    }

    pub(super) const fn faulty(node: &'static str, fault: Fault) -> Self {
        Self::way(node, node, fault)
    }

    /// A way to `file` with a fault of its own.
    pub(super) const fn way(node: &'static str, file: &'static str, fault: Fault) -> Self {
        Self {
            node,
            file,
            mebibytes: 64,
            fault,
        }
    }

    /// A disk that does nothing, for measuring what is above it.
    pub(in crate::vm) const fn null(node: &'static str, mebibytes: u64) -> Self {
        Self {
            node,
            file: node,
            mebibytes,
            fault: Fault::Null,
        }
    }

    /// QEMU's description of the disk whose file lies in `directory`. Under a fault the format
    /// layer is on top, because it is what raises the events that a fault waits for.
    pub(in crate::vm) fn describe(&self, directory: &Path) -> Value {
        let file = json!({
            "driver": "file",
            "filename": directory.join(self.file),
            // Several ways to one file do not lock each other out.
            "locking": "off",
        });
        let below = match &self.fault {
            Fault::Null => {
                return json!({
                    "driver": "null-co", "node-name": self.node,
                    "size": self.mebibytes << 20, "read-zeroes": false,
                });
            }
            Fault::Limited => {
                return json!({
                    "driver": "throttle", "node-name": self.node, "throttle-group": self.node,
                    "file": {"driver": "raw", "discard": "unmap", "file": file},
                });
            }
            Fault::None | Fault::Used => file,
            Fault::Held => json!({"driver": "blkdebug", "image": file}),
            Fault::Bad { accesses, blocks } => {
                let pairs = accesses
                    .iter()
                    .flat_map(|access| blocks.clone().map(move |block| (access, block)));
                let errors: Vec<_> = pairs
                    .map(|(access, block)| {
                        json!({
                            "event": "none", "iotype": access, "errno": 5,
                            "sector": block, "immediately": true,
                        })
                    })
                    .collect();
                json!({"driver": "blkdebug", "image": file, "inject-error": errors})
            }
        };
        json!({
            "driver": "raw", "node-name": self.node, "discard": "unmap", "file": below,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_lies_below_the_format() {
        let fault = Fault::Bad {
            accesses: &["read"],
            blocks: 1024..1025,
        };
        let text = Disk::way("bad", "file", fault)
            .describe(Path::new("/disks"))
            .to_string();
        assert!(text.contains(r#""driver":"raw""#), "{text}");
        assert!(text.contains(r#""iotype":"read""#), "{text}");
        assert!(text.contains(r#""filename":"/disks/file""#), "{text}");
    }
}
