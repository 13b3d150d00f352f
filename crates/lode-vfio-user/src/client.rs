//! Another process' controller as a bus of this one.

mod attach;
mod bus;
mod configuration;
mod dma;
mod interrupts;
mod link;
mod registers;

use std::time::Duration;

pub use bus::VfioUserBus;
pub use registers::VfioUserRegisters;

/// How long a server is waited for before it counts as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For each answer while attaching, mapping memory, enabling interrupts and resetting.
    pub setup: Duration,
    /// For each access to a register. The thread that reads or writes waits this long at most,
    /// once: a server that lets it pass is gone.
    pub request: Duration,
}

impl Default for Patience {
    /// 5 s and 2 s.
    fn default() -> Self {
        Self {
            setup: Duration::from_secs(5),
            request: Duration::from_secs(2),
        }
    }
}
