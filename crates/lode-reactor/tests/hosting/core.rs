//! Start, end, mailbox and panics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lode_block::Durability;
use lode_reactor::{
    Built, CallError, Core, CoreExit, CoreHandle, MAILBOX_JOBS_MAX, SpawnError, gateway,
};
use lode_units::CoreId;

use crate::fake::{FakeHost, buffers, flush, on_core, options, run, spawn};

fn plain() -> CoreHandle<FakeHost> {
    spawn(options(), FakeHost::new(8, usize::MAX))
}

#[test]
fn a_call_runs_on_the_host_and_returns() {
    run(async {
        let core = plain();
        assert_eq!(core.call(|host| host.slots).await, Ok(8));
        assert_eq!(core.shutdown(Duration::ZERO).await, CoreExit::Stopped);
        let gone = CallError::Gone {
            core: CoreId::new(0),
        };
        assert_eq!(core.call(|host| host.slots).await, Err(gone));
        assert_eq!(core.shutdown(Duration::ZERO).await, CoreExit::Stopped);
    });
}

#[test]
fn an_error_of_the_build_function_is_the_error_of_the_start() {
    let started = Core::spawn::<FakeHost>(options(), |_context| Err("no device".into()));
    match started {
        Err(SpawnError::Build { source, .. }) => assert_eq!(source.to_string(), "no device"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_of_the_build_function_is_reported() {
    let started = Core::spawn::<FakeHost>(options(), |_context| panic!("a broken build"));
    match started {
        Err(SpawnError::Panicked { message, .. }) => assert_eq!(message, "a broken build"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_processor_that_does_not_exist_is_an_error() {
    let mut options = options();
    options.cpu = Some(1023);
    let started = Core::spawn(options, |_context| {
        Ok(Built {
            hosted: FakeHost::new(1, 1),
            buffers: buffers(),
        })
    });
    assert!(matches!(started, Err(SpawnError::System { .. })));
}

#[test]
fn a_pinned_core_runs_on_its_processor_alone() {
    run(async {
        let allowed = rustix::thread::sched_getaffinity(None).expect("the affinity");
        let cpu = (0..1024)
            .find(|cpu| allowed.is_set(*cpu))
            .expect("a processor");
        let mut options = options();
        options.cpu = Some(cpu);
        let core = spawn(options, FakeHost::new(1, 1));
        let pinned = on_core(&core, || async {
            let set = rustix::thread::sched_getaffinity(None).expect("the affinity");
            (0..1024).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>()
        });
        assert_eq!(pinned.await, [cpu]);
    });
}

#[test]
fn a_panic_of_the_host_ends_the_core_and_tells_everyone() {
    run(async {
        let core = plain();
        let called = core.call(|_host| -> usize { panic!("a broken shard") });
        assert!(matches!(called.await, Err(CallError::Gone { .. })));
        let exit = core.exited().await;
        let message = "a broken shard".to_owned();
        assert_eq!(exit, CoreExit::Panicked { message });
        assert_eq!(core.shutdown(Duration::from_secs(1)).await, exit);
    });
}

#[test]
fn a_panic_of_a_task_is_counted_and_the_core_goes_on() {
    run(async {
        let core = plain();
        core.spawn_local(|| async { panic!("a broken connection") })
            .await
            .expect("the core runs");
        while core.stats().task_panics.read() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(core.call(|host| host.slots).await, Ok(8));
    });
}

#[test]
fn a_full_mailbox_refuses_and_everything_in_it_is_run() {
    run(async {
        let core = plain();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (entered, inside) = tokio::sync::oneshot::channel();
        let blocker = core.try_call(move |_host| {
            let _told = entered.send(());
            let _released = held.recv();
        });
        inside.await.expect("the core is held inside a call");
        let calls: Vec<_> = (0..MAILBOX_JOBS_MAX)
            .map(|_| core.try_call(|host| host.slots).expect("room"))
            .collect();
        assert_eq!(core.mailbox_depth(), MAILBOX_JOBS_MAX);
        let full = core.try_call(|host| host.slots).map(|_future| ());
        assert!(matches!(full, Err(CallError::MailboxFull { .. })));
        release.send(()).expect("the core waits");
        blocker.expect("room").await.expect("the core runs");
        for call in calls {
            assert_eq!(call.await, Ok(8));
        }
        assert_eq!(core.mailbox_depth(), 0);
    });
}

#[test]
fn shutdown_lets_what_is_under_way_end_and_refuses_what_is_new() {
    run(async {
        let host = FakeHost::new(8, 0);
        let release = Arc::clone(&host.release);
        let core = spawn(options(), host);
        let task = on_core(&core, move || async move {
            let future = gateway::submit(flush()).expect("room");
            while !gateway::is_stopping() {
                tokio::task::yield_now().await;
            }
            let refused = gateway::submit(flush()).expect_err("the core is stopping");
            release.store(1, Ordering::Release);
            (refused.reason, future.await.result)
        });
        let (exit, (reason, result)) = tokio::join!(
            async {
                while core.stats().requests.read() == 0 {
                    tokio::task::yield_now().await;
                }
                core.shutdown(FOREVER).await
            },
            task
        );
        assert_eq!(reason, gateway::RefuseReason::Stopping);
        assert_eq!(result, Ok(Durability::None));
        assert_eq!(exit, CoreExit::Stopped);
    });
}

#[test]
fn when_the_grace_is_over_the_core_tells_what_it_left() {
    run(async {
        let core = spawn(options(), FakeHost::new(8, 0));
        core.spawn_local(|| async {
            let future = gateway::submit(flush()).expect("room");
            assert!(future.await.result.is_ok(), "never reached");
        })
        .await
        .expect("the core runs");
        while core.stats().requests.read() == 0 {
            tokio::task::yield_now().await;
        }
        let exit = core.shutdown(Duration::from_millis(10)).await;
        let left = CoreExit::GraceOver {
            requests: 1,
            in_flight: 1,
        };
        assert_eq!(exit, left);
    });
}

const FOREVER: Duration = Duration::from_secs(3600);
