//! Single requests with random gaps, in every poll mode, over the emulated controller.
//!
//! Nothing but a wake-up ends the wait for a request here: the deadlines that would otherwise
//! cover up for a lost one are a day away, so that it leaves the test stuck.

use std::sync::Arc;
use std::time::Duration;

use lode_block::Durability;
use lode_engine::{ControlReply, ControlRequest, DataOperation, VolumeHandle};
use lode_extent::{SyncAttribute, VolumeLimits, VolumeSpec};
use lode_nvme::{ControllerOptions, QueueOptions};
use lode_reactor::gateway::{self, IoRequest, take_buffer};
use lode_reactor::{CoreExit, CoreHandle, CoreStats};
use lode_server::{Families, MetricsSource};
use lode_units::{BlockSize, Clock, MonotonicClock, Random, SeededRandom};

use super::Node;
use crate::config::{self, Config, Poll};
use crate::cores::{self, Started};
use crate::drive::{DevicesSource, Opener};
use crate::pools::Pools;

/// Runs `make`'s future on the core and returns its result.
async fn on_core<R: Send + 'static, F: Future<Output = R> + 'static>(
    core: &CoreHandle<Node>,
    make: impl FnOnce() -> F + Send + 'static,
) -> R {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    core.spawn_local(|| async move {
        assert!(sender.send(make().await).is_ok(), "the test waits");
    })
    .await
    .expect("the core runs");
    receiver.await.expect("the task on the core ended well")
}

async fn create_volume(core: &CoreHandle<Node>) -> VolumeHandle {
    let create = || async {
        let spec = VolumeSpec {
            name: "disk".to_owned(),
            size_bytes: BLOCKS * BLOCK_BYTES,
            block_size: BlockSize::B4096,
            sync: SyncAttribute::None,
            created_unix_seconds: 0,
            limits: VolumeLimits::default(),
        };
        let pool = String::new();
        gateway::control(ControlRequest::CreateVolume {
            pool,
            spec,
            request: None,
        })
        .expect("room")
        .await
    };
    match on_core(core, create).await {
        Ok(ControlReply::Volume(status)) => status.handle,
        other => panic!("no volume: {other:?}"),
    }
}

/// Writes `value` all over a block.
async fn write(core: &CoreHandle<Node>, volume: VolumeHandle, block: u64, value: u8) {
    // One in four has to wait for the media.
    let durability = match value % 4 {
        0 => Durability::Data,
        _ => Durability::None,
    };
    let result = on_core(core, move || async move {
        let buffer = take_buffer(BLOCK_LENGTH).await.expect("a buffer");
        buffer.copy_from_slice(0, &[value; BLOCK_LENGTH]);
        let request = IoRequest {
            volume,
            operation: DataOperation::Write,
            durability,
            offset_bytes: block * BLOCK_BYTES,
            length_bytes: BLOCK_BYTES,
            buffer: Some(buffer),
        };
        gateway::submit(request).expect("room").await.result
    });
    result.await.expect("a write");
}

/// Whether `value` is all over a block.
async fn holds(core: &CoreHandle<Node>, volume: VolumeHandle, block: u64, value: u8) -> bool {
    on_core(core, move || async move {
        let request = IoRequest {
            volume,
            operation: DataOperation::Read,
            durability: Durability::None,
            offset_bytes: block * BLOCK_BYTES,
            length_bytes: BLOCK_BYTES,
            buffer: Some(take_buffer(BLOCK_LENGTH).await.expect("a buffer")),
        };
        let answer = gateway::submit(request).expect("room").await;
        answer.result.expect("a read");
        let buffer = answer.buffer.expect("its buffer comes back");
        buffer.equals(0, &[value; BLOCK_LENGTH])
    })
    .await
}

/// One request after the other, each after a gap of up to half a millisecond; every fifth gap is
/// longer than the idle budget ever gets, so that a core which may sleep does, however fast it is.
async fn load(core: &CoreHandle<Node>, requests: u64) {
    let volume = create_volume(core).await;
    let mut expected = vec![0; usize::try_from(BLOCKS).expect("few blocks")];
    for block in 0..BLOCKS {
        write(core, volume, block, 0).await;
    }
    let clock = MonotonicClock::new();
    let mut random = SeededRandom::new(7);
    for round in 0..requests {
        let beyond_budget = if round % 5 == 0 { 1500 } else { 0 };
        let gap = beyond_budget + random.below(500);
        let until = clock.now() + Duration::from_micros(gap);
        while clock.now() < until {
            std::hint::spin_loop();
        }
        let block = random.below(BLOCKS);
        let slot = usize::try_from(block).expect("few blocks");
        if round % 2 == 0 {
            let value = u8::try_from(random.below(256)).expect("a byte");
            write(core, volume, block, value).await;
            expected[slot] = value;
        } else {
            assert!(holds(core, volume, block, expected[slot]).await);
        }
    }
}

/// How often the polls of the devices' queues found something, and how often the devices were told
/// of it.
#[derive(Clone, Copy, Debug)]
struct Polls {
    productive: u64,
    told: u64,
}

impl Polls {
    fn of(opener: &Opener) -> Self {
        let mut families = Families::default();
        DevicesSource(Arc::clone(opener.registry.devices())).collect(&mut families);
        let text = families.encode();
        let count = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let sample = line.and_then(|line| line.rsplit_once(' '));
            let (_, value) = sample.expect("the device's queue is shown");
            value.parse().expect("a count")
        };
        Self {
            productive: count("lodestore_nvme_productive_polls_total{"),
            told: count("lodestore_nvme_completion_doorbells_total{"),
        }
    }
}

/// Requests on the core itself, each as soon as the last one has ended.
async fn burst(core: &CoreHandle<Node>, requests: u64) {
    let volume = create_volume(core).await;
    let work = async move {
        let mut buffer = take_buffer(BLOCK_LENGTH).await.ok();
        for round in 0..requests {
            let request = IoRequest {
                volume,
                operation: DataOperation::Write,
                durability: Durability::None,
                offset_bytes: round % BLOCKS * BLOCK_BYTES,
                length_bytes: BLOCK_BYTES,
                buffer: buffer.take(),
            };
            let answer = gateway::submit(request).expect("room").await;
            answer.result.expect("a write");
            buffer = answer.buffer;
        }
    };
    on_core(core, || work).await;
}

/// Runs [`load`] on a core over `device`; the core's account afterwards.
fn run(poll: Poll, device: &str, requests: u64) -> Arc<CoreStats> {
    with_core(poll, device, async |core, _| {
        load(core, requests).await;
        Arc::clone(core.stats())
    })
}

/// Runs `load` on a core over `device` and returns its result.
fn with_core<R>(
    poll: Poll,
    device: &str,
    load: impl AsyncFnOnce(&CoreHandle<Node>, &Opener) -> R,
) -> R {
    let mut config = Config::default();
    config.core.poll = poll;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let work = async {
        let started = cores::start(&config).await.expect("a core");
        let Started {
            cores, mut opener, ..
        } = started;
        let core = cores.first().expect("one core").clone();
        opener.controller = ControllerOptions {
            watch_interval: NEVER,
            health_interval: None,
            ..opener.controller
        };
        opener.queue = QueueOptions {
            command_timeout: NEVER,
            ..opener.queue
        };
        let pools = Pools::new(cores, opener.clone());
        let pool = config::Pool {
            name: "tank".to_owned(),
            devices: vec![device.to_owned()],
            create: true,
        };
        pools.open_configured(&pool).await.expect("a pool");
        let result = load(&core, &opener).await;
        pools.close_all(STUCK_AFTER).await;
        assert_eq!(core.shutdown(STUCK_AFTER).await, CoreExit::Stopped);
        result
    };
    runtime.block_on(async {
        tokio::time::timeout(STUCK_AFTER, work)
            .await
            .expect("no wake-up is lost")
    })
}

/// A device whose completions arrive from the kernel while the core does something else.
fn over_a_file(poll: Poll) -> Arc<CoreStats> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let options = "size=64MiB&create";
    let device = format!("file:{}?{options}", path.display());
    run(poll, &device, REQUESTS)
}

#[test]
fn a_core_that_always_polls_neither_sleeps_nor_loses_a_request() {
    let stats = over_a_file(Poll::Always);
    assert_eq!(stats.sleeps.read(), 0);
}

#[test]
fn an_adaptive_core_sleeps_in_the_gaps_and_loses_no_request() {
    let stats = over_a_file(Poll::Adaptive);
    assert!(stats.sleeps.read() > REQUESTS / 10);
    assert!(stats.wakes_by_task.read() > 0);
}

#[test]
fn a_core_that_never_spins_is_woken_for_every_completion_and_loses_no_request() {
    let stats = over_a_file(Poll::Interrupt);
    assert!(stats.sleeps.read() > REQUESTS);
    assert!(stats.wakes_by_signal.read() > 0, "the file's completions");
}

#[test]
fn a_slow_device_is_slept_for_in_both_modes_that_sleep() {
    for poll in [Poll::Adaptive, Poll::Interrupt] {
        let stats = run(poll, "memory:64MiB?latency=1500us+1ms", 500);
        assert!(stats.wakes_by_deadline.read() > 250, "{poll:?}");
    }
}

#[test]
fn a_busy_core_tells_its_device_seldom_and_one_that_heeds_interrupts_every_time() {
    for poll in [Poll::Always, Poll::Adaptive, Poll::Interrupt] {
        let polls = with_core(poll, "memory:64MiB", async |core, opener| {
            burst(core, REQUESTS).await;
            // The figures are shown now and then, and before the core sleeps.
            loop {
                let polls = Polls::of(opener);
                if polls.productive >= REQUESTS {
                    return polls;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        match poll {
            Poll::Interrupt => assert!(polls.told >= polls.productive, "{polls:?}"),
            Poll::Always | Poll::Adaptive => {
                assert!(polls.told < polls.productive / 4, "{polls:?}")
            }
        }
    }
}

const BLOCK_LENGTH: usize = 4096;
const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 64;
const REQUESTS: u64 = 5000;
const NEVER: Duration = Duration::from_hours(24);
const STUCK_AFTER: Duration = Duration::from_secs(240);
