//! The data structures of the Identify command (Base 2.0 §5.17.2; NVM Command Set 1.0 §4.1.5).

mod controller;
mod lists;
mod namespace;

pub use controller::{
    AdminFeatures, ControllerFeatures, IdentifyController, IdentifyNvmController,
};
pub use lists::{DescriptorType, NamespaceDescriptors, NamespaceList};
pub use namespace::{IdentifyNamespace, LbaFormat};

use crate::open_enum::open_enum;

/// The length of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;

open_enum! {
    /// Controller or Namespace Structure: what Identify returns (figure 273).
    Cns {
        /// A namespace (NVM Command Set 1.0 §4.1.5.1).
        Namespace = 0x00,
        /// The controller (§5.17.2.1).
        Controller = 0x01,
        /// Active namespaces above an identifier (§5.17.2.2).
        ActiveNamespaces = 0x02,
        /// A namespace's identification descriptors (§5.17.2.3).
        NamespaceDescriptors = 0x03,
        /// A namespace, as a command set sees it (§5.17.2.5).
        CommandSetNamespace = 0x05,
        /// The controller, as a command set sees it (§5.17.2.6).
        CommandSetController = 0x06,
        /// Active namespaces of one command set (§5.17.2.7).
        CommandSetActiveNamespaces = 0x07,
        /// A namespace, independent of command sets (§5.17.2.8).
        IndependentNamespace = 0x08,
        /// Allocated namespaces (§5.17.2.9).
        AllocatedNamespaces = 0x10,
        /// Combinations of I/O command sets (§5.17.2.21).
        CommandSets = 0x1C,
    }
}
