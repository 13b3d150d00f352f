//! Every interleaving of cores that take places at once, under the memory model, and of a taking
//! that is not one step.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

use super::{Word, take_place};

/// A loom word; `WHOLE` tells whether it is replaced in one step.
#[derive(Debug)]
struct ModelWord<const WHOLE: bool>(AtomicU64);

impl<const WHOLE: bool> Word for ModelWord<WHOLE> {
    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn replace(&self, old: u64, new: u64) -> Result<(), u64> {
        if WHOLE {
            return self
                .0
                .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
                .map(drop);
        }
        let present = self.read();
        if present != old {
            return Err(present);
        }
        self.0.store(new, Ordering::Relaxed);
        Ok(())
    }
}

/// Two cores take two places each, one at a clock that is behind the other's.
///
/// The places are `COST` apart or more, so that a stretch of time sees no more than the limit and
/// the burst; and what was taken is all paid for: none is lost.
fn no_place_is_given_twice_or_lost<const WHOLE: bool>() {
    loom::model(|| {
        let word = Arc::new(ModelWord::<WHOLE>(AtomicU64::new(0)));
        let takers: Vec<_> = CLOCKS
            .into_iter()
            .map(|now| {
                let word = Arc::clone(&word);
                loom::thread::spawn(move || [(); 2].map(|()| take_place(&*word, COST, now)))
            })
            .collect();
        let mut places = Vec::new();
        for (taker, now) in takers.into_iter().zip(CLOCKS) {
            let [first, second] = taker.join().expect("a core does not panic");
            assert!(
                now <= first && first < second,
                "in line, and not in the past"
            );
            places.extend([first, second]);
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            assert!(
                pair[0] + COST <= pair[1],
                "a place is given twice: {places:?}"
            );
        }
        // Whoever comes next stands behind all of them, with no gap but the one before the later
        // clock.
        let earliest = CLOCKS[0].max(places[0]) + COST * 4;
        let next = word.read();
        assert_eq!(next, places[3] + COST);
        assert!((earliest..=CLOCKS[1] + COST * 4).contains(&next), "{next}");
    });
}

#[test]
fn cores_that_take_places_at_once_get_each_its_own_and_pay_for_all() {
    no_place_is_given_twice_or_lost::<true>();
}

#[test]
#[should_panic(expected = "a place is given twice")]
fn a_word_that_is_not_replaced_in_one_step_gives_a_place_twice() {
    no_place_is_given_twice_or_lost::<false>();
}

const COST: u64 = 10;
/// What the two cores take for the present.
const CLOCKS: [u64; 2] = [100, 103];
