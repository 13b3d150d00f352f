//! When the server looks at its socket, and when it sleeps.
//!
//! Mapped doorbells wake nobody, so a server that slept until a message came would miss them: it
//! spins while there is work, then naps. The longer nobody has rung, the longer the naps: what a
//! request waits in addition is a small share of the pause before it, and bounded. The same holds
//! for a command on a file, whose end wakes nobody either: it began with the last ring or before.

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
    rang_at: Instant,
    spins_until: Instant,
    look_at: Instant,
    has_silent_doorbells: bool,
}

impl Pace {
    /// `has_silent_doorbells`: some doorbells come without a message.
    pub(super) const fn new(now: Instant, has_silent_doorbells: bool) -> Self {
        Self {
            rang_at: now,
            spins_until: now,
            look_at: now,
            has_silent_doorbells,
        }
    }

    /// A message was handled: more of them may follow. A driver that has nothing to do reads a
    /// register now and then, so this says nothing of doorbells.
    pub(super) fn note_message(&mut self, now: Instant) {
        self.spins_until = now + SPIN;
        self.look_at = now;
    }

    /// After a round that found doorbells, by whatever way, or did not, with the moment at which
    /// the controller wants to work again.
    pub(super) fn turn(&mut self, now: Instant, has_rung: bool, due: Option<Instant>) -> Turn {
        if has_rung {
            self.rang_at = now;
            self.spins_until = now + SPIN;
        }
        if now < self.spins_until {
            if now < self.look_at {
                return Turn::GoOn;
            }
            self.look_at = now + LOOK_INTERVAL;
            return Turn::Look(Duration::ZERO);
        }
        let longest = self.longest_sleep(now);
        let wait = due.map_or(longest, |due| due.saturating_duration_since(now));
        Turn::Look(wait.min(longest))
    }

    fn longest_sleep(&self, now: Instant) -> Duration {
        let pause = now.saturating_duration_since(self.rang_at);
        if self.has_silent_doorbells || pause < WORK_MAX {
            (pause / PAUSE_SHARE).clamp(NAP_MIN, NAP_MAX)
        } else {
            SLEEP
        }
    }
}

/// How long after the last work the processor is kept.
const SPIN: Duration = Duration::from_millis(1);
/// How often the socket is looked at meanwhile: a system call each time.
const LOOK_INTERVAL: Duration = Duration::from_micros(20);
/// A nap: what the first request after a pause may wait in addition.
const NAP_MIN: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(16);
/// Between the two, a nap is this part of the time since the last ring.
const PAUSE_SHARE: u32 = 64;
/// How long a command on a file may take.
const WORK_MAX: Duration = Duration::from_secs(10);
/// Without anything on its way and with doorbells that wake.
const SLEEP: Duration = Duration::from_millis(100);

const _: () = assert!(NAP_MAX.as_nanos() < SLEEP.as_nanos());

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ZERO + Duration::from_micros(micros)
    }

    /// How often a server wakes between `from` and `until`, when a driver that has nothing to do
    /// sends a message every quarter of a second and the last doorbell was rung at 0.
    fn wakes(has_silent_doorbells: bool, from: u64, until: u64) -> u32 {
        let mut pace = Pace::new(at(0), has_silent_doorbells);
        let (mut now, mut wakes, mut message_at) = (at(0), 0, at(0));
        while now < at(until) {
            if now >= message_at {
                pace.note_message(now);
                message_at += Duration::from_millis(250);
            }
            now = match pace.turn(now, now == at(0), None) {
                Turn::GoOn | Turn::Look(Duration::ZERO) => now + Duration::from_micros(1),
                Turn::Look(nap) => {
                    wakes += u32::from(now >= at(from));
                    message_at.min(now + nap)
                }
            };
        }
        wakes
    }

    #[test]
    fn a_busy_server_spins_and_looks_at_its_socket_now_and_then() {
        let mut pace = Pace::new(at(0), true);
        assert_eq!(pace.turn(at(0), true, None), Turn::Look(Duration::ZERO));
        assert_eq!(pace.turn(at(10), true, None), Turn::GoOn);
        assert_eq!(pace.turn(at(20), false, None), Turn::Look(Duration::ZERO));
    }

    #[test]
    fn a_nap_is_a_small_share_of_the_pause_before_it_and_bounded() {
        let mut mapped = Pace::new(at(0), true);
        for (pause_ms, nap_us) in [(2, 1_000), (64, 1_000), (320, 5_000), (60_000, 16_000)] {
            let turn = mapped.turn(at(pause_ms * 1_000), false, None);
            assert_eq!(
                turn,
                Turn::Look(Duration::from_micros(nap_us)),
                "{pause_ms}"
            );
        }
        mapped.turn(at(60_000_000), true, None);
        let turn = mapped.turn(at(60_002_000), false, None);
        assert_eq!(turn, Turn::Look(NAP_MIN), "a ring ends the pause");
    }

    #[test]
    fn an_idle_server_wakes_seldom_although_its_client_looks_in() {
        // 16 ms each, and what a message cuts short.
        let mapped = wakes(true, 20_000_000, 30_000_000);
        assert!((600..=700).contains(&mapped), "{mapped}");
        // Every doorbell is a message: nothing is looked for meanwhile.
        let messages = wakes(false, 20_000_000, 30_000_000);
        assert!((80..=140).contains(&messages), "{messages}");
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
