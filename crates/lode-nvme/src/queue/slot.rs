//! What a queue remembers of a command.

use lode_block::{Operation, Tag};
use lode_units::{CommandId, Instant};

/// One command that can be in flight: 32 bytes.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) tag: Tag,
    /// When the present phase ends; [`Slot::UNSTAMPED`] until the first scan sees the command.
    pub(super) deadline: Instant,
    /// The identifier of the present or last use.
    pub(super) id: CommandId,
    pub(super) operation: Operation,
    pub(super) phase: SlotPhase,
}

/// How far a command has come.
///
/// ```text
/// Free ─► InFlight ─ deadline ─► Overdue ─ abort taken on ─► Aborting ─ deadline ─► Hopeless
///   ▲        │                      │                           │                      │
///   └────────┴──── completion ──────┴───────────────────────────┴──── or reset ────────┘
/// any in use ─ refused ─► Doubted ─ scan or reset ─► Free
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPhase {
    /// Not in use.
    Free,
    /// The controller has it, or will have with the next doorbell.
    InFlight,
    /// Its deadline passed; the controller's owner could not be asked to abort it yet.
    Overdue,
    /// An abort was asked for.
    Aborting,
    /// The abort did not help; a reset was asked for.
    Hopeless,
    /// The device refused it, perhaps because the namespace is not attached; that is looked up.
    Doubted,
}

impl Slot {
    /// No deadline yet.
    pub(super) const UNSTAMPED: Instant = Instant::FAR_FUTURE;

    pub(super) const fn new(id: CommandId) -> Self {
        Self {
            tag: Tag(0),
            deadline: Self::UNSTAMPED,
            id,
            operation: Operation::Flush,
            phase: SlotPhase::Free,
        }
    }

    /// Whether a completion that names `id` ends this slot's command.
    #[inline]
    pub(super) fn is_named(&self, id: CommandId) -> bool {
        self.id == id && self.is_with_device()
    }

    /// Whether the device has still to end it.
    #[inline]
    pub(super) const fn is_with_device(&self) -> bool {
        !matches!(self.phase, SlotPhase::Free | SlotPhase::Doubted)
    }
}

const _: () = assert!(size_of::<Slot>() <= 32);
