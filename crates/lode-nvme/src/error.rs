//! What can go wrong with a controller.

use lode_bus::BusError;
use lode_nvme_spec::Status;
use lode_units::NamespaceId;

use crate::namespace::Refusal;

/// An error of the driver's own calls. Failed requests are reported by their completions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmeError {
    /// The machine below refused memory, a mapping or an interrupt.
    #[error("the bus refused")]
    Bus(#[from] BusError),
    /// The controller failed for good; the caller makes a new one or does without.
    #[error("the controller failed")]
    Failed(#[from] Failure),
    /// The controller is not in use yet or no more; the caller brings it up first.
    #[error("the controller is not ready")]
    NotReady,
    /// There is no such namespace on this controller.
    #[error("namespace {id} does not exist")]
    NoNamespace {
        /// What was asked for.
        id: NamespaceId,
    },
    /// The namespace exists but cannot be used.
    #[error("namespace {id} cannot be used: {reason}")]
    UnusableNamespace {
        /// What was asked for.
        id: NamespaceId,
        /// Why not.
        reason: Refusal,
    },
    /// Every queue pair that the controller granted is in use; the caller shares one.
    #[error("all {granted} queue pairs are in use")]
    NoQueueLeft {
        /// How many the controller granted.
        granted: u16,
    },
    /// The clock stands still while the controller is waited for.
    #[error("the clock does not move")]
    ClockStopped,
}

/// Why a controller failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Its registers read as all ones for too long, or the transport says that it is gone.
    #[error("the device was removed")]
    Removed,
    /// It stayed in one state of bring-up or shutdown beyond the state's deadline.
    #[error("no progress in state {state}")]
    StateTimeout {
        /// The state.
        state: &'static str,
    },
    /// An admin command had no answer.
    #[error("admin command {opcode:#04x} had no answer")]
    AdminTimeout {
        /// The command's opcode.
        opcode: u8,
    },
    /// An admin command that bring-up cannot do without failed.
    #[error("admin command {opcode:#04x} failed: {status}")]
    AdminFailed {
        /// The command's opcode.
        opcode: u8,
        /// How it ended.
        status: Status,
    },
    /// It reported a fatal error (CSTS.CFS), and resets did not help.
    #[error("fatal controller status")]
    FatalStatus,
    /// A command of an I/O queue hung through abort, and resets did not help.
    #[error("commands hang")]
    CommandsHang,
    /// A namespace in use was formatted otherwise, shrunk, or made anew.
    #[error("namespace {namespace} is another one than before")]
    NamespaceChanged {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// It serves discovery or administration only (CNTRLTYPE).
    #[error("no I/O controller: type {kind}")]
    NoIoController {
        /// Its type.
        kind: u8,
    },
    /// Its queue entries are larger than those of the NVM command set (SQES, CQES).
    #[error("queue entries of another size")]
    EntrySizes,
    /// It has no NVM command set (CAP.CSS).
    #[error("no NVM command set")]
    NoNvmCommandSet,
    /// Its smallest memory page is larger than this driver can lay out (CAP.MPSMIN).
    #[error("memory pages of at least 2^{shift} bytes")]
    PageSize {
        /// The base-two logarithm of the smallest page.
        shift: u32,
    },
    /// It cannot hold a queue of two entries (CAP.MQES is 0).
    #[error("queues of one entry")]
    QueueSize,
    /// Its register window ends before the doorbells of the first I/O queue.
    #[error("no doorbells within {length_bytes} bytes of registers")]
    NoDoorbells {
        /// The length of the window.
        length_bytes: u64,
    },
    /// It was dropped while in use.
    #[error("the driver let go of the controller")]
    Abandoned,
}
