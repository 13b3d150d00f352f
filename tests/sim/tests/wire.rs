//! What the shipped engine and driver put on the wire, counted by the emulated controller.

use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec, Durability};
use lode_bus::{DmaBuffer, IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlReply, ControlRequest, DataOperation, DataRequest, Shard, Token,
    VolumeHandle, device_spec,
};
use lode_extent::{ExistingPool, Pool, PoolSpec, PoolState, SyncAttribute, VolumeSpec};
use lode_nvme::{
    Controller, ControllerOptions, ControllerState, NamespaceQueue, QueueOptions, Quirks,
};
use lode_nvme_emu::{Cache, EmulatedController, Media, NamespaceOptions, OperationCounters};
use lode_units::{BlockSize, Instant, NamespaceId, SeededRandom};

/// A shard over one emulated controller with a volatile write cache.
struct Wire {
    emulator: EmulatedController,
    controller: Controller<EmulatedController>,
    shard: Shard<NamespaceQueue<EmulatedController>>,
    buffers: Vec<DmaBuffer>,
    now: Instant,
    done: Vec<Completion>,
}

impl Wire {
    fn new(quirks: Quirks) -> Self {
        let space = IovaSpace::new();
        let mut shard = Shard::new(&space, PagePreference::Ordinary).expect("memory");
        let spec = BufferPoolSpec {
            length_bytes: 4096,
            count: DEPTH,
        };
        let mut pool = BufferPool::new(&[spec], &space, PagePreference::Ordinary).expect("memory");
        let namespace = NamespaceOptions {
            block_size: BlockSize::B4096,
            media: Media::memory(64 << 20).expect("memory"),
            cache: Cache::Modelled {
                capacity_bytes: 32 << 20,
            },
            lies_about_flush: false,
            nguid: None,
        };
        let options = lode_nvme_emu::ControllerOptions::default();
        let emulator = EmulatedController::new(options, vec![namespace]).expect("valid options");
        let options = ControllerOptions {
            quirks,
            ..ControllerOptions::default()
        };
        let mut controller = Controller::new(emulator.clone(), options, &space).expect("memory");
        for memory in shard.memories().chain(pool.memories()) {
            controller.map_memory(memory).expect("mapping");
        }
        let mut now = Instant::from_nanos(1);
        while controller.state() != ControllerState::Ready {
            now += Duration::from_micros(10);
            controller.poll(now);
        }
        let first = NamespaceId::new(1);
        let queue = controller.open_queue(first, QueueOptions::default(), &space);
        let queue = queue.expect("a queue pair is free");
        let specs = [device_spec(&queue)];
        let spec = PoolSpec {
            name: "tank".to_owned(),
            existing: ExistingPool::Overwrite,
        };
        let made = Pool::create(spec, &specs, &mut SeededRandom::new(7), 0).expect("it fits");
        let index = shard.attach("tank", vec![("nvme".to_owned(), queue)], made);
        let buffers = (0..DEPTH).filter_map(|_| pool.take(4096)).collect();
        let mut wire = Self {
            emulator,
            controller,
            shard,
            buffers,
            now,
            done: Vec::new(),
        };
        while wire.shard.pool_state(index) != Some(&PoolState::Ready) {
            wire.poll();
        }
        wire
    }

    fn poll(&mut self) {
        self.now += Duration::from_micros(5);
        self.controller.poll(self.now);
        self.shard.poll(self.now, &mut self.done);
    }

    /// A volume all of whose units are written and durable.
    fn volume(&mut self) -> VolumeHandle {
        let spec = VolumeSpec {
            name: "v".to_owned(),
            size_bytes: UNITS * 4096,
            block_size: BlockSize::B4096,
            sync: SyncAttribute::None,
            limits: lode_extent::VolumeLimits::default(),
            created_unix_seconds: 0,
        };
        let create = ControlRequest::CreateVolume {
            pool: String::new(),
            spec,
            request: None,
        };
        self.shard.control(Token(0), create);
        while self.done.is_empty() {
            self.poll();
        }
        let Some(Completion::Control { result, .. }) = self.done.pop() else {
            panic!("a control request ends as one");
        };
        let Ok(ControlReply::Volume(status)) = *result else {
            panic!("a volume can be made");
        };
        self.write(status.handle, UNITS, Durability::Data);
        while self.shard.is_busy() {
            self.poll();
        }
        status.handle
    }

    /// So many writes, one unit after the other, as many at once as there are buffers.
    fn write(&mut self, volume: VolumeHandle, count: u64, durability: Durability) {
        let (mut sent, mut ended) = (0, 0);
        while ended < count {
            while sent < count
                && let Some(buffer) = self.buffers.pop()
            {
                let request = DataRequest {
                    token: Token(sent),
                    volume,
                    operation: DataOperation::Write,
                    durability,
                    offset_bytes: sent % UNITS * 4096,
                    length_bytes: 4096,
                    buffer: Some(buffer),
                };
                self.shard.submit(request).expect("a slot is free");
                sent += 1;
            }
            self.poll();
            for completion in self.done.drain(..) {
                let Completion::Data(done) = completion else {
                    panic!("only data were asked for");
                };
                assert_eq!(done.result.map(|reached| reached >= durability), Ok(true));
                self.buffers.extend(done.buffer);
                ended += 1;
            }
        }
    }

    fn counted(&self) -> OperationCounters {
        self.emulator.counters().operations
    }
}

#[test]
fn a_million_plain_writes_force_and_flush_nothing() {
    let mut wire = Wire::new(Quirks::empty());
    let volume = wire.volume();
    let before = wire.counted();
    wire.write(volume, 1_000_000, Durability::None);
    let after = wire.counted();
    assert_eq!(after.writes - before.writes, 1_000_000);
    assert_eq!(after.writes_fua, before.writes_fua, "forced to the media");
    assert_eq!(after.flushes, before.flushes, "flushed");
}

#[test]
fn every_durable_overwrite_is_forced_and_none_is_flushed() {
    let mut wire = Wire::new(Quirks::empty());
    let volume = wire.volume();
    let before = wire.counted();
    wire.write(volume, 10_000, Durability::Data);
    let after = wire.counted();
    assert_eq!(after.writes_fua - before.writes_fua, 10_000);
    assert_eq!(after.writes - before.writes, 10_000, "and no others");
    assert_eq!(after.flushes, before.flushes, "flushed");
}

#[test]
fn without_write_through_each_group_of_durable_overwrites_is_flushed_once() {
    let mut wire = Wire::new(Quirks::NO_FUA);
    let volume = wire.volume();
    let (before, stats) = (wire.counted(), wire.shard.stats());
    let (groups, waiters) = (stats.flushes.read(), stats.flush_waiters.read());
    wire.write(volume, 10_000, Durability::Data);
    let after = wire.counted();
    let groups = stats.flushes.read() - groups;
    assert_eq!(after.writes_fua, before.writes_fua, "forced to the media");
    assert_eq!(after.writes - before.writes, 10_000, "and no others");
    assert_eq!(after.flushes - before.flushes, groups);
    assert_eq!(stats.flush_waiters.read() - waiters, 10_000);
    assert!(groups < 1000, "{groups} flushes for 10,000 writes");
}

const DEPTH: usize = 64;
/// Units of the volume.
const UNITS: u64 = 1024;
