//! Faults other than power cuts: what devices do to commands, and to themselves.

use lode_units::Random;

use crate::machine::pick;
use crate::world::{Harm, World};

impl World {
    /// Now and then a fault, of those that this boot may meet.
    pub(crate) fn spoil(&mut self) {
        if self.boot.plan == Harm::None || self.random.below(150) > 0 {
            return;
        }
        let device = pick(&mut self.random, 2);
        let failures = if self.boot.plan == Harm::Failure {
            FAILURES
        } else {
            &[]
        };
        let choice = pick(&mut self.random, 1 + DELAYS.len() + failures.len());
        self.tally.faults += 1;
        let rule = match choice {
            0 => {
                self.machine.fail_controller(device);
                "fatal status".to_owned()
            }
            _ => {
                let rule = DELAYS.iter().chain(failures).nth(choice - 1);
                let rule = self.placed(rule.expect("the choice lies within both tables"));
                self.machine.install_fault(device, &rule);
                rule
            }
        };
        let harm = if choice > DELAYS.len() {
            Harm::Failure
        } else {
            Harm::Delay
        };
        self.boot.harm = self.boot.harm.max(harm);
        self.history
            .note(1000 + choice as u64, || format!("fault: {rule}"));
    }

    /// A rule for bad blocks gets a place where the pool has something.
    fn placed(&mut self, rule: &str) -> String {
        let shift = 12 - self.block_size.shift();
        let first = self.random.below(USED_UNITS);
        let end = first + 1 + self.random.below(16);
        rule.replace("PLACE", &format!("{}..{}", first << shift, end << shift))
    }
}

/// Faults that every request survives.
const DELAYS: &[&str] = &[
    "queue=io count=1 -> duplicate",
    "queue=io count=2 -> delay=3ms",
    "queue=io opcode=write count=1 -> status=0x082",
    "queue=io opcode=read count=1 -> status=0x082",
    "queue=io opcode=flush count=1 -> status=0x082",
];
/// Faults that may make requests fail.
const FAILURES: &[&str] = &[
    "queue=io count=1 -> drop",
    "queue=io count=1 -> lose",
    "queue=io count=1 -> wrong_id",
    "queue=io opcode=read count=1 -> status=0x281",
    "queue=io opcode=read lba=PLACE count=5 -> status=0x281",
    "queue=io opcode=read lba=PLACE -> status=0x281",
    "queue=io opcode=write count=1 -> status=0x280",
    "queue=io opcode=write count=1 -> drop",
    "queue=io opcode=flush count=1 -> status=0x006",
    "queue=io opcode=flush count=1 -> lose",
];

/// Units of a device from its start on that hold most of what a run puts there.
const USED_UNITS: u64 = 500;
