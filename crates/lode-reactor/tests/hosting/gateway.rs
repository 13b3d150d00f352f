//! Requests, sessions and buffers through the gateway.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use lode_engine::{ControlReply, ControlRequest, DataOperation};
use lode_reactor::gateway::{
    self, BUFFER_WAITS_MAX, BufferError, IoRequest, REQUESTS_MAX, RefuseReason, Session,
    take_buffer,
};
use lode_reactor::{CoreExit, CoreHandle};

use crate::fake::{FakeHost, flush, on_core, options, run, spawn};

fn core_of(slots: usize, release: usize) -> (CoreHandle<FakeHost>, Arc<AtomicUsize>) {
    let host = FakeHost::new(slots, release);
    let release = Arc::clone(&host.release);
    (spawn(options(), host), release)
}

async fn write_of(length_bytes: usize) -> IoRequest {
    IoRequest {
        operation: DataOperation::Write,
        length_bytes: length_bytes as u64,
        buffer: Some(take_buffer(length_bytes).await.expect("a buffer")),
        ..flush()
    }
}

/// Every buffer is back once the core has stopped.
async fn stop_and_count_lent(core: &CoreHandle<FakeHost>) -> u64 {
    assert_eq!(
        core.shutdown(Duration::from_secs(60)).await,
        CoreExit::Stopped
    );
    core.stats().buffers_lent.read()
}

#[test]
fn a_request_is_answered_with_its_own_buffer() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        let same = on_core(&core, || async {
            let request = write_of(4096).await;
            let buffer = request.buffer.as_ref().expect("a buffer");
            buffer.copy_from_slice(0, b"mark");
            let answer = gateway::submit(request).expect("room").await;
            assert!(answer.result.is_ok());
            answer
                .buffer
                .expect("the buffer comes back")
                .equals(0, b"mark")
        });
        assert!(same.await);
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn a_control_request_is_answered() {
    run(async {
        let (core, _release) = core_of(8, 0);
        let reply = on_core(&core, || async {
            gateway::control(ControlRequest::ListPools)
                .expect("room")
                .await
        });
        assert!(matches!(reply.await, Ok(ControlReply::Done)));
    });
}

#[test]
fn requests_beyond_the_hosts_slots_wait_and_all_are_answered() {
    run(async {
        let (core, _release) = core_of(3, usize::MAX);
        let answered = on_core(&core, || async {
            let futures: Vec<_> = (0..500)
                .map(|_| gateway::submit(flush()).expect("room"))
                .collect();
            join_all(futures).await.len()
        });
        assert_eq!(answered.await, 500);
    });
}

#[test]
fn a_gateway_that_is_full_gives_the_request_back_and_takes_it_later() {
    run(async {
        let (core, release) = core_of(1, 0);
        on_core(&core, move || async move {
            let futures: Vec<_> = (0..REQUESTS_MAX)
                .map(|_| gateway::submit(flush()).expect("room"))
                .collect();
            let request = write_of(4096).await;
            let refused = gateway::submit(request).expect_err("no room is left");
            let full = RefuseReason::Full {
                requests_max: REQUESTS_MAX,
            };
            assert_eq!(refused.reason, full);
            assert!(refused.request.buffer.is_some(), "the buffer comes back");
            release.store(usize::MAX, Ordering::Release);
            join_all(futures).await;
            let answer = gateway::submit(refused.request).expect("room again").await;
            assert!(answer.result.is_ok());
        })
        .await;
        assert_eq!(core.stats().requests_refused.read(), 1);
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn waiters_for_a_buffer_are_served_in_turn() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        let order = on_core(&core, || async {
            let large = take_buffer(65536).await.expect("the only one");
            let small = take_buffer(4096).await.expect("a buffer");
            let mut wants_large = take_buffer(65536);
            assert!(poll_immediate(&mut wants_large).await.is_none());
            let mut wants_small = take_buffer(512);
            let barging = poll_immediate(&mut wants_small).await;
            assert!(
                barging.is_none(),
                "a free small buffer is not taken past the queue"
            );
            drop(small);
            assert!(poll_immediate(&mut wants_small).await.is_none());
            drop(large);
            let large = wants_large.await.expect("granted");
            let small = wants_small.await.expect("granted");
            (large.length_bytes(), small.length_bytes())
        });
        assert_eq!(order.await, (65536, 4096));
        assert_eq!(core.stats().buffer_waits.read(), 2);
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn a_waiter_that_leaves_lets_the_next_one_in() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        on_core(&core, || async {
            let large = take_buffer(65536).await.expect("the only one");
            let mut leaves = take_buffer(65536);
            assert!(poll_immediate(&mut leaves).await.is_none());
            let mut next = take_buffer(512);
            assert!(poll_immediate(&mut next).await.is_none());
            drop(leaves);
            assert!(next.await.is_ok());
            let mut granted_and_left = take_buffer(65536);
            assert!(poll_immediate(&mut granted_and_left).await.is_none());
            drop(large);
            drop(granted_and_left);
            assert!(take_buffer(65536).await.is_ok(), "it went back");
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn a_buffer_that_no_class_has_and_one_waiter_too_many_are_refused() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        on_core(&core, || async {
            let too_long = take_buffer(65537).await.map(|_| ());
            assert!(matches!(too_long, Err(BufferError::TooLong { .. })));
            let large = take_buffer(65536).await.expect("the only one");
            let mut waits: Vec<_> = (0..BUFFER_WAITS_MAX).map(|_| take_buffer(65536)).collect();
            for wait in &mut waits {
                assert!(poll_immediate(wait).await.is_none());
            }
            let one_more = take_buffer(65536).await.map(|_| ());
            assert!(matches!(one_more, Err(BufferError::TooManyWaiting { .. })));
            drop(large);
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn the_buffer_of_a_cancelled_request_goes_back_when_the_request_ends_and_not_before() {
    run(async {
        let (core, release) = core_of(8, 0);
        on_core(&core, move || async move {
            let request = write_of(65536).await;
            drop(gateway::submit(request).expect("room"));
            let mut next = take_buffer(65536);
            for _ in 0..10 {
                tokio::task::yield_now().await;
                assert!(poll_immediate(&mut next).await.is_none(), "still in use");
            }
            release.store(1, Ordering::Release);
            assert!(next.await.is_ok());
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn an_answer_that_nobody_fetches_gives_its_buffer_back() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        on_core(&core, || async {
            let unfetched = gateway::submit(write_of(65536).await).expect("room");
            gateway::submit(flush())
                .expect("room")
                .await
                .result
                .expect("done after the write");
            drop(unfetched);
            assert!(take_buffer(65536).await.is_ok());
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
fn a_session_hands_out_answers_as_requests_end_under_the_callers_marks() {
    run(async {
        let (core, release) = core_of(2, 0);
        let marks = on_core(&core, move || async move {
            let mut session = Session::open(4).expect("room");
            for mark in [70, 71, 72, 73] {
                session.submit(mark, flush()).expect("room");
            }
            assert!(session.is_full());
            let mut marks = Vec::new();
            for _ in 0..4 {
                release.fetch_add(1, Ordering::AcqRel);
                let (mark, answer) = poll_fn(|context| session.poll_answer(context)).await;
                assert!(answer.result.is_ok());
                marks.push(mark);
            }
            assert_eq!(session.in_flight(), 0);
            marks
        });
        assert_eq!(marks.await, [70, 71, 72, 73]);
    });
}

#[test]
fn a_session_that_is_dropped_releases_what_is_ready_and_what_is_under_way() {
    run(async {
        let (core, release) = core_of(8, 1);
        on_core(&core, move || async move {
            let mut session = Session::open(4).expect("room");
            session.submit(1, write_of(4096).await).expect("room");
            session.submit(2, write_of(4096).await).expect("room");
            session.submit(3, write_of(65536).await).expect("room");
            while release.load(Ordering::Acquire) > 0 {
                tokio::task::yield_now().await;
            }
            drop(session);
            let mut successor = Session::open(4).expect("room");
            release.store(usize::MAX, Ordering::Release);
            successor.submit(9, flush()).expect("room");
            let (mark, _answer) = poll_fn(|context| successor.poll_answer(context)).await;
            assert_eq!(
                mark, 9,
                "answers of the dropped session do not reach its successor"
            );
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}

#[test]
#[should_panic(expected = "the gateway is used on the thread of a core")]
fn the_gateway_panics_on_a_thread_that_is_no_core() {
    assert_eq!(gateway::core(), None);
    let _future = gateway::submit(flush());
}

#[test]
fn a_future_that_is_taken_to_another_core_panics_there() {
    run(async {
        let (first, _release) = core_of(8, 0);
        let mut other = options();
        other.core = lode_units::CoreId::new(1);
        let second = spawn(other, FakeHost::new(8, 0));
        let (future,) = on_core(&first, || async {
            // Not awaited here, but taken away.
            (gateway::submit(flush()).expect("room"),)
        })
        .await;
        second
            .spawn_local(|| async move {
                let _answer = future.await;
            })
            .await
            .expect("the core runs");
        while second.stats().task_panics.read() == 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn answers_that_nobody_fetches_give_their_buffers_to_those_who_wait_and_keep_their_data() {
    run(async {
        let (core, _release) = core_of(8, usize::MAX);
        on_core(&core, || async {
            let mut session = Session::open(4).expect("room");
            let read = IoRequest {
                operation: DataOperation::Read,
                ..write_of(65536).await
            };
            let buffer = read.buffer.as_ref().expect("a buffer");
            buffer.copy_from_slice(0, &[7; 65536]);
            session.submit(1, read).expect("room");
            // Its only buffer lies in an answer that is not taken.
            let large = take_buffer(65536).await.expect("relieved");
            let future = gateway::submit(IoRequest {
                operation: DataOperation::Read,
                length_bytes: 512,
                buffer: Some(large),
                ..flush()
            })
            .expect("room");
            let large = take_buffer(65536).await.expect("relieved again");
            drop(large);
            let (_mark, answer) = poll_fn(|context| session.poll_answer(context)).await;
            assert!(answer.buffer.is_none());
            let copied = answer.copied.expect("the data were kept");
            assert!(copied.len() == 65536 && copied.iter().all(|byte| *byte == 7));
            let answer = future.await;
            assert_eq!(answer.copied.map(|data| data.len()), Some(512));
        })
        .await;
        assert_eq!(stop_and_count_lent(&core).await, 0);
    });
}
