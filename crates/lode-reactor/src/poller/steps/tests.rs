//! Every interleaving of the core's steps with completions that a device posts meanwhile, and the
//! same for orders that are wrong.

use super::{FALLING_ASLEEP, Step};

/// What a device does for each completion: first the entry, then the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Post,
    Signal,
}

/// What happens to a signal while the interrupt is not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unarmed {
    /// It stays pending and fires when the interrupt is armed: a masked MSI-X vector.
    Kept,
    /// It is gone: a signaller that looks whether somebody sleeps.
    Dropped,
}

/// Both sides between two moves.
#[derive(Clone, Copy, Debug)]
struct World {
    unarmed: Unarmed,
    is_armed: bool,
    is_pending: bool,
    /// The device does not signal before it has heard of the completions that were found.
    is_untold: bool,
    /// A signal that the core has not consumed: it ends a sleep.
    is_signalled: bool,
    /// Entries that no poll has found yet.
    posted: u32,
    is_asleep: bool,
}

impl World {
    fn device(&mut self, what: Move) {
        match what {
            Move::Post => self.posted += 1,
            Move::Signal if self.is_untold => {}
            Move::Signal if self.is_armed => self.is_signalled = true,
            Move::Signal => self.is_pending |= self.unarmed == Unarmed::Kept,
        }
    }

    /// One step of the core; whether it is on its way to sleep still.
    fn core(&mut self, step: Step) -> bool {
        match step {
            Step::Forget => self.is_signalled = false,
            Step::Acknowledge => self.is_untold = false,
            Step::Arm => {
                self.is_armed = true;
                self.is_signalled |= std::mem::take(&mut self.is_pending);
            }
            Step::Look if self.posted > 0 => return false,
            Step::Look => {}
            Step::Sleep => self.is_asleep = true,
        }
        true
    }

    /// Nothing moves any more: whether a completion lies there and the core sleeps on.
    const fn has_lost_a_wake_up(&self) -> bool {
        self.is_asleep && self.posted > 0 && !self.is_signalled
    }
}

/// Plays every interleaving of `steps` and `moves` from `world` on; returns how many there were
/// and how many of them lost a wake-up.
fn play(world: World, steps: &[Step], moves: &[Move]) -> (u64, u64) {
    if steps.is_empty() && moves.is_empty() {
        return (1, u64::from(world.has_lost_a_wake_up()));
    }
    let mut sum = (0, 0);
    let mut add = |(played, lost): (u64, u64)| sum = (sum.0 + played, sum.1 + lost);
    if let Some((step, rest)) = steps.split_first() {
        let mut next = world;
        let rest = if next.core(*step) { rest } else { &[] };
        add(play(next, rest, moves));
    }
    if let Some((what, rest)) = moves.split_first() {
        let mut next = world;
        next.device(*what);
        add(play(next, steps, rest));
    }
    sum
}

/// Plays `steps` against up to three completions, from every state in which a core may begin.
fn play_all(steps: &[Step], unarmed: Unarmed) -> (u64, u64) {
    let mut sum = (0, 0);
    for completions in 0..=3 {
        let moves = [Move::Post, Move::Signal].repeat(completions);
        for bits in 0..16_u8 {
            let [is_armed, is_signalled, is_pending, is_untold] =
                [1, 2, 4, 8].map(|bit| bits & bit != 0);
            if is_pending && (is_armed || unarmed == Unarmed::Dropped) {
                continue;
            }
            let world = World {
                unarmed,
                is_armed,
                is_pending,
                is_untold,
                is_signalled,
                posted: 0,
                is_asleep: false,
            };
            let (played, lost) = play(world, steps, &moves);
            sum = (sum.0 + played, sum.1 + lost);
        }
    }
    sum
}

fn without(step: Step) -> Vec<Step> {
    let kept = FALLING_ASLEEP.iter().filter(|known| **known != step);
    kept.copied().collect()
}

#[test]
fn no_arrival_of_completions_while_the_core_falls_asleep_is_lost() {
    for unarmed in [Unarmed::Kept, Unarmed::Dropped] {
        let (played, lost) = play_all(&FALLING_ASLEEP, unarmed);
        assert!(played > 500, "{played} interleavings");
        assert_eq!(lost, 0, "of {played} with {unarmed:?}");
    }
}

#[test]
fn without_the_last_look_a_completion_is_slept_over() {
    let (_, lost) = play_all(&without(Step::Look), Unarmed::Dropped);
    assert!(lost > 0);
}

#[test]
fn without_arming_a_completion_is_slept_over_by_either_kind_of_device() {
    for unarmed in [Unarmed::Kept, Unarmed::Dropped] {
        let (_, lost) = play_all(&without(Step::Arm), unarmed);
        assert!(lost > 0, "{unarmed:?}");
    }
}

#[test]
fn without_acknowledging_a_device_that_waits_for_it_is_slept_over() {
    for unarmed in [Unarmed::Kept, Unarmed::Dropped] {
        let (_, lost) = play_all(&without(Step::Acknowledge), unarmed);
        assert!(lost > 0, "{unarmed:?}");
    }
}

#[test]
fn acknowledging_after_the_look_loses_completions() {
    let steps = [
        Step::Forget,
        Step::Arm,
        Step::Look,
        Step::Acknowledge,
        Step::Sleep,
    ];
    let (_, lost) = play_all(&steps, Unarmed::Kept);
    assert!(lost > 0);
}

#[test]
fn looking_before_arming_and_forgetting_after_the_look_both_lose_completions() {
    let looks_early = [Step::Forget, Step::Look, Step::Arm, Step::Sleep];
    let forgets_late = [Step::Arm, Step::Look, Step::Forget, Step::Sleep];
    for steps in [looks_early, forgets_late] {
        let steps = [&[Step::Acknowledge], &steps[..]].concat();
        let (_, lost) = play_all(&steps, Unarmed::Dropped);
        assert!(lost > 0, "{steps:?}");
    }
}
