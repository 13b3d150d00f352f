//! When the server looks at its socket, and when it sleeps.
//!
//! Mapped doorbells wake nobody, so a server that slept until a message came would miss them: it
//! spins while there is work, then naps.

use std::time::Duration;

use lode_units::Instant;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Look at the doorbells and the controller again.
    GoOn,
    /// Look at the descriptors, and sleep for this long until one is ready.
    Look(Duration),
}

/// The state behind it.
#[derive(Debug)]
pub(super) struct Pace {
    spins_until: Instant,
    /// After this nothing can be on its way any more.
    naps_until: Instant,
    look_at: Instant,
    has_silent_doorbells: bool,
}

impl Pace {
    /// `has_silent_doorbells`: some doorbells come without a message.
    pub(super) fn new(now: Instant, has_silent_doorbells: bool) -> Self {
        let mut pace = Self {
            spins_until: now,
            naps_until: now,
            look_at: now,
            has_silent_doorbells,
        };
        pace.note_message(now);
        pace
    }

    /// A message was handled.
    pub(super) fn note_message(&mut self, now: Instant) {
        self.spins_until = now + SPIN;
        self.naps_until = now + WORK_MAX;
        self.look_at = now;
    }

    /// After a round that found doorbells or did not, with the moment at which the controller
    /// wants to work again.
    pub(super) fn turn(&mut self, now: Instant, was_busy: bool, due: Option<Instant>) -> Turn {
        if was_busy {
            self.spins_until = now + SPIN;
            self.naps_until = now + WORK_MAX;
        }
        if now < self.spins_until {
            if now < self.look_at {
                return Turn::GoOn;
            }
            self.look_at = now + LOOK_INTERVAL;
            return Turn::Look(Duration::ZERO);
        }
        let longest = if self.has_silent_doorbells || now < self.naps_until {
            NAP
        } else {
            SLEEP
        };
        let wait = due.map_or(longest, |due| due.saturating_duration_since(now));
        Turn::Look(wait.min(longest))
    }
}

/// How long after the last work the processor is kept.
const SPIN: Duration = Duration::from_millis(1);
/// How often the socket is looked at meanwhile: a system call each time.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);
/// A nap: what the first request after a pause may wait in addition.
const NAP: Duration = Duration::from_millis(1);
/// How long a command on a file may take; its end wakes nobody either.
const WORK_MAX: Duration = Duration::from_secs(10);
/// Without anything on its way and with doorbells that wake.
const SLEEP: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_busy_server_spins_and_looks_at_its_socket_now_and_then() {
        let mut pace = Pace::new(at(0), true);
        assert_eq!(pace.turn(at(0), true, None), Turn::Look(Duration::ZERO));
        assert_eq!(pace.turn(at(10), true, None), Turn::GoOn);
        assert_eq!(pace.turn(at(20), false, None), Turn::Look(Duration::ZERO));
    }

    #[test]
    fn an_idle_server_naps_with_mapped_doorbells_and_sleeps_without() {
        let mut mapped = Pace::new(at(0), true);
        let mut messages = Pace::new(at(0), false);
        for micros in [2_000, 60_000_000] {
            assert_eq!(mapped.turn(at(micros), false, None), Turn::Look(NAP));
        }
        assert_eq!(messages.turn(at(2_000), false, None), Turn::Look(NAP));
        assert_eq!(
            messages.turn(at(60_000_000), false, None),
            Turn::Look(SLEEP)
        );
    }

    #[test]
    fn a_nap_ends_when_the_controller_wants_to_work() {
        let mut pace = Pace::new(at(0), true);
        let turn = pace.turn(at(2_000), false, Some(at(2_300)));
        assert_eq!(turn, Turn::Look(Duration::from_micros(300)));
        let turn = pace.turn(at(2_500), false, Some(at(2_300)));
        assert_eq!(turn, Turn::Look(Duration::ZERO));
    }
}
