//! Every interleaving of the agreement, under the memory model, and of its broken versions.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::{SleepFlag, Word};

/// A loom word; `FENCED` tells whether its fence is one.
#[derive(Debug, Default)]
struct ModelWord<const FENCED: bool>(AtomicBool);

impl<const FENCED: bool> Word for ModelWord<FENCED> {
    fn read(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn write(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    fn fence() {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SecondPoll {
    Done,
    LeftOut,
}

/// One completion is published while the core goes to sleep; it must not sleep on without a
/// signal.
fn one_completion_reaches_the_core<const FENCED: bool>(second_poll: SecondPoll) {
    loom::model(move || {
        let flag = Arc::new(SleepFlag::<ModelWord<FENCED>>::default());
        let published = Arc::new(AtomicUsize::new(0));
        let device = {
            let (flag, published) = (Arc::clone(&flag), Arc::clone(&published));
            loom::thread::spawn(move || {
                published.store(1, Ordering::Release);
                flag.must_signal()
            })
        };
        let mut found = published.load(Ordering::Acquire);
        if found == 0 {
            flag.arm();
            if second_poll == SecondPoll::Done {
                found = published.load(Ordering::Acquire);
            }
        }
        let signalled = device.join().expect("the device thread ends");
        assert!(found == 1 || signalled, "a wake-up was lost");
    });
}

#[test]
fn no_interleaving_loses_a_wake_up() {
    one_completion_reaches_the_core::<true>(SecondPoll::Done);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_the_second_poll_a_wake_up_is_lost() {
    one_completion_reaches_the_core::<true>(SecondPoll::LeftOut);
}

#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_the_fences_a_wake_up_is_lost() {
    one_completion_reaches_the_core::<false>(SecondPoll::Done);
}

/// Two letters are sent while the core goes to sleep, and announced together.
fn a_batch_reaches_the_core(announcement: Announcement) {
    loom::model(move || {
        let flag = Arc::new(SleepFlag::<ModelWord<true>>::default());
        let sent = Arc::new(AtomicUsize::new(0));
        let peer = {
            let (flag, sent) = (Arc::clone(&flag), Arc::clone(&sent));
            loom::thread::spawn(move || {
                sent.store(1, Ordering::Release);
                let is_early = announcement == Announcement::BeforeTheLast && flag.must_signal();
                sent.store(2, Ordering::Release);
                is_early || (announcement == Announcement::AfterTheLast && flag.must_signal())
            })
        };
        let mut found = sent.load(Ordering::Acquire);
        if found < 2 {
            flag.arm();
            found = sent.load(Ordering::Acquire);
        }
        let signalled = peer.join().expect("the peer ends");
        assert!(found == 2 || signalled, "a letter was lost");
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Announcement {
    BeforeTheLast,
    AfterTheLast,
}

#[test]
fn a_batch_that_is_announced_once_reaches_the_core() {
    a_batch_reaches_the_core(Announcement::AfterTheLast);
}

#[test]
#[should_panic(expected = "a letter was lost")]
fn a_letter_sent_after_the_announcement_is_lost() {
    a_batch_reaches_the_core(Announcement::BeforeTheLast);
}
