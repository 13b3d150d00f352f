//! The fault script: rules that pick commands or register accesses and spoil them. The same
//! script over the same commands does the same.

mod parse;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lode_nvme_spec::{NvmOpcode, Status, SubmissionEntry};
use lode_units::QueueId;

use crate::error::EmulatorError;

/// One rule: what it applies to, and what happens then. Read from text by [`str::parse`], for
/// example `opcode=read lba=0..8 nth=3 -> status=0x281`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// What it applies to.
    pub matches: FaultMatch,
    /// What happens then.
    pub action: FaultAction,
}

/// What a rule applies to. Everything that is given must agree; the default applies to every
/// command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultMatch {
    /// What is counted and spoilt.
    pub event: FaultEvent,
    /// On which queue.
    pub queue: QueueMatch,
    /// With which opcode; its meaning depends on the queue.
    pub opcode: Option<u8>,
    /// For which namespace.
    pub namespace: Option<u32>,
    /// Touching which blocks; never agrees with a command that names no blocks.
    pub lba: Option<Range<u64>>,
    /// From which agreeing event on, counted from 1. Alone, it means that event only.
    pub nth: Option<u64>,
    /// Every how many agreeing events.
    pub every: Option<u64>,
    /// At most how often.
    pub count: Option<u64>,
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultEvent {
    /// A command, when it was fetched.
    #[default]
    Command,
    /// A read or write of a register other than a doorbell.
    RegisterAccess,
}

/// Which queues a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueMatch {
    /// All of them.
    #[default]
    Any,
    /// The admin queue.
    Admin,
    /// Every I/O queue.
    Io,
    /// One queue.
    Id(QueueId),
}

/// What happens to a command or to the whole controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The command is not executed and never completes; an Abort ends it.
    Drop,
    /// The command is executed and its completion is lost.
    LoseCompletion,
    /// The command is executed this much later; data move then.
    Delay(Duration),
    /// The command's completion is posted twice.
    DuplicateCompletion,
    /// The command's completion names another command.
    WrongCommandId,
    /// The command is not executed and ends with this status.
    Status(Status),
    /// The controller's own fault.
    Device(DeviceFault),
}

/// A fault of the controller as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// CSTS.RDY stays as it is, whatever CC.EN says, until a function reset.
    StuckReady,
    /// CSTS.CFS is set and no command is processed until a reset.
    FatalStatus,
    /// So many reads of registers return all ones, then the controller is back.
    AllOnes(u32),
    /// The controller is pulled out: registers read as all ones, nothing is written any more.
    Remove,
}

/// How a command's completion is spoilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Twist {
    #[default]
    None,
    Duplicate,
    WrongId,
    Lose,
}

#[derive(Debug)]
struct ActiveRule {
    rule: FaultRule,
    seen: u64,
    fired: u64,
}

/// The rules of one controller.
#[derive(Debug, Default)]
pub(crate) struct FaultScript {
    rules: Mutex<Vec<ActiveRule>>,
    command_rules: AtomicU32,
    register_rules: AtomicU32,
    fired: AtomicU64,
}

impl FaultScript {
    /// Adds a rule; it counts from now on.
    pub(crate) fn install(&self, rule: FaultRule) -> Result<(), EmulatorError> {
        let mut rules = self.lock();
        if rules.len() >= RULES_MAX {
            return Err(EmulatorError::TableFull {
                table: "fault rules",
                limit: RULES_MAX,
            });
        }
        let counter = match rule.matches.event {
            FaultEvent::Command => &self.command_rules,
            FaultEvent::RegisterAccess => &self.register_rules,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        rules.push(ActiveRule {
            rule,
            seen: 0,
            fired: 0,
        });
        Ok(())
    }

    /// Drops every rule.
    pub(crate) fn clear(&self) {
        self.lock().clear();
        self.command_rules.store(0, Ordering::Relaxed);
        self.register_rules.store(0, Ordering::Relaxed);
    }

    /// How often a rule fired.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// What is to happen to a command. One load when there are no rules.
    pub(crate) fn on_command(
        &self,
        queue: QueueId,
        entry: &SubmissionEntry,
    ) -> Option<FaultAction> {
        if self.command_rules.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.first(|matches| {
            matches.event == FaultEvent::Command && matches.agrees_with(queue, entry)
        })
    }

    /// What is to happen at a register access. One load when there are no rules.
    pub(crate) fn on_register_access(&self) -> Option<FaultAction> {
        if self.register_rules.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.first(|matches| matches.event == FaultEvent::RegisterAccess)
    }

    /// Counts the event in every rule that agrees; the first of those that fire decides.
    fn first(&self, agrees: impl Fn(&FaultMatch) -> bool) -> Option<FaultAction> {
        let mut decision = None;
        for active in self.lock().iter_mut() {
            if !agrees(&active.rule.matches) {
                continue;
            }
            active.seen += 1;
            if decision.is_none() && active.rule.matches.fires(active.seen, active.fired) {
                active.fired += 1;
                decision = Some(active.rule.action);
            }
        }
        if decision.is_some() {
            self.fired.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ActiveRule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultMatch {
    fn agrees_with(&self, queue: QueueId, entry: &SubmissionEntry) -> bool {
        let queue_agrees = match self.queue {
            QueueMatch::Any => true,
            QueueMatch::Admin => queue.get() == 0,
            QueueMatch::Io => queue.get() != 0,
            QueueMatch::Id(id) => id == queue,
        };
        queue_agrees
            && self.opcode.is_none_or(|opcode| opcode == entry.opcode)
            && self
                .namespace
                .is_none_or(|namespace| namespace == entry.namespace_id.get())
            && self
                .lba
                .as_ref()
                .is_none_or(|lba| queue.get() != 0 && touches(entry, lba))
    }

    /// Whether the `seen`th agreeing event is one of those meant, `fired` having been before.
    fn fires(&self, seen: u64, fired: u64) -> bool {
        let start = self.nth.unwrap_or(1).max(1);
        let step = self.every.unwrap_or(1).max(1);
        let only_once = self.nth.is_some() && self.every.is_none();
        let limit = self.count.unwrap_or(if only_once { 1 } else { u64::MAX });
        seen >= start && (seen - start).is_multiple_of(step) && fired < limit
    }
}

/// Whether a command names blocks of `lba`.
fn touches(entry: &SubmissionEntry, lba: &Range<u64>) -> bool {
    let names_blocks = !matches!(
        NvmOpcode::from_raw(entry.opcode),
        NvmOpcode::Flush | NvmOpcode::DatasetManagement
    );
    let first = entry.dwords_10_11();
    let end = first.saturating_add(u64::from(entry.dword_12.get() & 0xFFFF) + 1);
    names_blocks && first < lba.end && lba.start < end
}

/// The most rules at once.
const RULES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use lode_nvme_spec::command::{BlockCommand, BlockFlags};
    use lode_units::{Lba, NamespaceId};

    use super::*;

    fn read(lba: u64, block_count: u32) -> SubmissionEntry {
        BlockCommand {
            opcode: NvmOpcode::Read,
            namespace: NamespaceId::new(1),
            lba: Lba::new(lba),
            block_count,
            flags: BlockFlags::empty(),
        }
        .encode()
    }

    fn fired(rule: &str, events: usize) -> Vec<usize> {
        let script = FaultScript::default();
        script.install(rule.parse().expect("a rule")).expect("room");
        let queue = QueueId::new(1);
        (1..=events)
            .filter(|_| script.on_command(queue, &read(0, 1)).is_some())
            .collect()
    }

    #[test]
    fn nth_every_and_count_pick_events() {
        assert_eq!(fired("-> drop", 3), [1, 2, 3]);
        assert_eq!(fired("nth=3 -> drop", 9), [3]);
        assert_eq!(fired("every=4 -> drop", 9), [1, 5, 9]);
        assert_eq!(fired("nth=2 every=3 -> drop", 9), [2, 5, 8]);
        assert_eq!(fired("nth=2 every=3 count=2 -> drop", 9), [2, 5]);
        assert_eq!(fired("nth=7 count=2 -> drop", 9), [7, 8]);
    }

    #[test]
    fn a_range_of_blocks_agrees_where_it_is_touched() {
        let script = FaultScript::default();
        let rule = "opcode=read queue=io lba=8..16 -> status=0x281";
        script.install(rule.parse().expect("a rule")).expect("room");
        let hit = |lba, count| {
            script
                .on_command(QueueId::new(1), &read(lba, count))
                .is_some()
        };
        assert!(!hit(0, 8) && hit(0, 9) && hit(15, 1) && !hit(16, 4));
        assert!(
            script.on_command(QueueId::new(0), &read(8, 1)).is_none(),
            "admin commands name no blocks"
        );
        assert_eq!(script.fired(), 2);
    }

    #[test]
    fn the_table_of_rules_is_bounded() {
        let script = FaultScript::default();
        let rule: FaultRule = "-> drop".parse().expect("a rule");
        for _ in 0..RULES_MAX {
            script.install(rule.clone()).expect("room");
        }
        assert!(matches!(
            script.install(rule),
            Err(EmulatorError::TableFull { .. })
        ));
        script.clear();
        assert!(script.on_command(QueueId::new(1), &read(0, 1)).is_none());
    }
}
