//! A shard over one pool, and the calls of a client that waits for each answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec, Durability, Geometry, WriteCache};
use lode_bus::{DmaBuffer, IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlError, ControlReply, ControlRequest, DataCompletion, DataOperation,
    DataRequest, IoError, PoolIndex, Shard, ShardLimits, Token, VolumeHandle, VolumeName,
    device_spec,
};
use lode_extent::{
    ExistingPool, Pool, PoolSpec, PoolState, SyncAttribute, VolumeLimits, VolumeSpec,
};
use lode_units::{BlockSize, Instant, SeededRandom};

use crate::device::{Media, MemoryDevice, geometry};

/// A shard over one pool, a client's buffers, and the time.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) shard: Shard<MemoryDevice>,
    pub(crate) media: Rc<RefCell<Media>>,
    pub(crate) pool: PoolIndex,
    pub(crate) done: Vec<Completion>,
    buffers: BufferPool,
    now: Instant,
    next_token: u64,
}

impl Rig {
    /// A new pool on a new device with 512-byte blocks.
    pub(crate) fn new(write_cache: WriteCache) -> Self {
        let geometry = geometry(BlockSize::B512, write_cache);
        Self::on(Rc::new(RefCell::new(Media::new())), geometry, true)
    }

    /// A pool on `media`: made anew, or the one that is there.
    pub(crate) fn on(media: Rc<RefCell<Media>>, geometry: Geometry, is_new: bool) -> Self {
        Self::try_on(media, geometry, is_new).expect("the pool serves")
    }

    /// A new pool on a device without a cache, a shard of these limits, and buffers for many
    /// clients.
    pub(crate) fn crowded(geometry: Geometry, limits: ShardLimits) -> Self {
        let media = Rc::new(RefCell::new(Media::new()));
        Self::build(media, geometry, true, limits, 4096).expect("the pool serves")
    }

    /// Opens an exported pool anew, with as many buffers.
    pub(crate) fn crowded_again(self, geometry: Geometry) -> Self {
        let media = Rc::clone(&self.media);
        drop(self);
        Self::build(media, geometry, false, ShardLimits::default(), 4096).expect("the pool serves")
    }

    /// The same for a pool that may not serve.
    pub(crate) fn try_on(
        media: Rc<RefCell<Media>>,
        geometry: Geometry,
        is_new: bool,
    ) -> Result<Self, Option<PoolState>> {
        Self::build(media, geometry, is_new, ShardLimits::default(), 64)
    }

    fn build(
        media: Rc<RefCell<Media>>,
        geometry: Geometry,
        is_new: bool,
        limits: ShardLimits,
        small_buffers: usize,
    ) -> Result<Self, Option<PoolState>> {
        let space = IovaSpace::new();
        let shard = Shard::with_limits(&space, PagePreference::Ordinary, limits);
        let mut shard = shard.expect("memory");
        let specs = [
            BufferPoolSpec {
                length_bytes: 4096,
                count: small_buffers,
            },
            BufferPoolSpec {
                length_bytes: 8192,
                count: 32,
            },
            BufferPoolSpec {
                length_bytes: 1 << 20,
                count: 16,
            },
        ];
        let buffers = BufferPool::new(&specs, &space, PagePreference::Ordinary).expect("memory");
        media.borrow_mut().memories = shard
            .memories()
            .chain(buffers.memories())
            .cloned()
            .collect();
        let device = MemoryDevice::new(geometry, Rc::clone(&media));
        let specs = [device_spec(&device)];
        let pool = if is_new {
            let spec = PoolSpec {
                name: "tank".to_owned(),
                existing: ExistingPool::Overwrite,
            };
            let mut random = SeededRandom::new(7);
            Pool::create(spec, &specs, &mut random, 0).expect("a pool fits the device")
        } else {
            Pool::import(&specs)
        };
        // Who imports a pool may not know its name before.
        let name = if is_new { "tank" } else { "" };
        let pool = shard.attach(name, vec![("memory".to_owned(), device)], pool);
        let now = Instant::from_nanos(1);
        let mut rig = Self {
            shard,
            media,
            pool,
            done: Vec::new(),
            buffers,
            now,
            next_token: 0,
        };
        rig.until(|rig| rig.shard.pool_state(rig.pool) != Some(&PoolState::Starting));
        match rig.shard.pool_state(rig.pool) {
            Some(PoolState::Ready) => Ok(rig),
            other => Err(other.cloned()),
        }
    }

    /// A volume of blocks of 512 bytes in a second pool, on a device of its own.
    pub(crate) fn neighbour(&mut self, geometry: Geometry) -> VolumeHandle {
        let media = Rc::new(RefCell::new(Media::new()));
        media.borrow_mut().memories = self.media.borrow().memories.clone();
        let device = MemoryDevice::new(geometry, media);
        let spec = PoolSpec {
            name: "second".to_owned(),
            existing: ExistingPool::Overwrite,
        };
        let mut random = SeededRandom::new(8);
        let pool = Pool::create(spec, &[device_spec(&device)], &mut random, 0);
        let devices = vec![("memory".to_owned(), device)];
        let pool = pool.expect("a pool fits the device");
        let index = self.shard.attach("second", devices, pool);
        self.until(|rig| rig.shard.pool_state(index) == Some(&PoolState::Ready));
        let reply = self.control(ControlRequest::CreateVolume {
            pool: "second".to_owned(),
            spec: self::spec("v", 1 << 20, BlockSize::B512),
            request: None,
        });
        handle(reply.expect("a volume can be made"))
    }

    /// Gives up this shard as a power cut would, and opens the pool on what is left.
    #[expect(clippy::mem_forget, reason = "after a power cut no destructor runs")]
    pub(crate) fn crash(self, geometry: Geometry) -> Self {
        let media = Rc::clone(&self.media);
        // The process is gone: nothing of it runs, not even its destructors.
        std::mem::forget(self);
        media.borrow_mut().is_held = false;
        media.borrow_mut().cut_power();
        Self::on(media, geometry, false)
    }

    /// Polls once, a microsecond later.
    pub(crate) fn poll(&mut self) {
        self.poll_after(Duration::from_micros(1));
    }

    /// Polls once, some time later.
    pub(crate) fn poll_after(&mut self, time: Duration) {
        self.now += time;
        self.shard.poll(self.now, &mut self.done);
    }

    /// Polls until `is_so`, a bounded number of times.
    pub(crate) fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_so(self) {
                return;
            }
            self.poll();
        }
        panic!("what was waited for did not come");
    }

    /// Makes a volume.
    pub(crate) fn create(
        &mut self,
        name: &str,
        size_bytes: u64,
        block_size: BlockSize,
    ) -> VolumeHandle {
        let reply = self.control(ControlRequest::CreateVolume {
            pool: String::new(),
            spec: spec(name, size_bytes, block_size),
            request: None,
        });
        handle(reply.expect("a volume can be made"))
    }

    /// Opens a volume.
    pub(crate) fn open(&mut self, name: &str) -> Result<VolumeHandle, ControlError> {
        self.control(ControlRequest::OpenVolume {
            volume: named(name),
        })
        .map(handle)
    }

    /// A control request, to its end.
    pub(crate) fn control(
        &mut self,
        request: ControlRequest,
    ) -> Result<ControlReply, ControlError> {
        let token = self.token();
        self.shard.control(token, request);
        self.until(|rig| rig.position(token).is_some());
        self.control_outcome(token)
    }

    /// The outcome of a control request that has ended.
    pub(crate) fn control_outcome(&mut self, wanted: Token) -> Result<ControlReply, ControlError> {
        let position = self.position(wanted).expect("it has ended");
        match self.done.remove(position) {
            Completion::Control { result, .. } => *result,
            Completion::Data(done) => panic!("a data request ended instead: {done:?}"),
        }
    }

    /// Submits a data request and does not wait.
    pub(crate) fn submit(
        &mut self,
        volume: VolumeHandle,
        operation: DataOperation,
        range: (u64, u64),
        durability: Durability,
        data: &[u8],
    ) -> Token {
        let token = self.token();
        let (offset_bytes, length_bytes) = range;
        let buffer = self.buffer(operation, length_bytes, data);
        let request = DataRequest {
            token,
            volume,
            operation,
            durability,
            offset_bytes,
            length_bytes,
            buffer,
        };
        self.shard.submit(request).expect("a slot is free");
        token
    }

    /// Waits for a data request.
    pub(crate) fn wait(&mut self, token: Token) -> DataCompletion {
        self.until(|rig| rig.position(token).is_some());
        self.outcome(token).expect("it has just ended")
    }

    /// The outcome of a data request, if it has ended.
    pub(crate) fn outcome(&mut self, token: Token) -> Option<DataCompletion> {
        let position = self.position(token)?;
        match self.done.remove(position) {
            Completion::Data(done) => Some(done),
            Completion::Control { result, .. } => panic!("a control request ended: {result:?}"),
        }
    }

    /// A whole request; its buffer goes back.
    pub(crate) fn run(
        &mut self,
        volume: VolumeHandle,
        operation: DataOperation,
        range: (u64, u64),
        durability: Durability,
        data: &[u8],
    ) -> Result<Durability, IoError> {
        let token = self.submit(volume, operation, range, durability, data);
        let done = self.wait(token);
        if let Some(buffer) = done.buffer {
            self.buffers.give_back(buffer);
        }
        done.result
    }

    pub(crate) fn write(&mut self, volume: VolumeHandle, offset: u64, data: &[u8]) {
        let range = (offset, data.len() as u64);
        let outcome = self.run(volume, DataOperation::Write, range, Durability::None, data);
        outcome.expect("a write succeeds");
    }

    pub(crate) fn read(&mut self, volume: VolumeHandle, offset: u64, length: u64) -> Vec<u8> {
        self.try_read(volume, offset, length)
            .expect("a read succeeds")
    }

    pub(crate) fn try_read(
        &mut self,
        volume: VolumeHandle,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, IoError> {
        let range = (offset, length);
        let token = self.submit(volume, DataOperation::Read, range, Durability::None, &[]);
        let done = self.wait(token);
        let mut data = Vec::new();
        if let Some(buffer) = done.buffer {
            buffer.append_to(0, usize::try_from(length).expect("short"), &mut data);
            self.buffers.give_back(buffer);
        }
        done.result.map(|_| data)
    }

    pub(crate) fn flush(&mut self, volume: VolumeHandle) -> Result<Durability, IoError> {
        self.run(volume, DataOperation::Flush, (0, 0), Durability::None, &[])
    }

    /// The present moment.
    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Takes all that has ended; the buffers go back.
    pub(crate) fn harvest(&mut self) -> Vec<(Token, Result<Durability, IoError>)> {
        let mut ended = Vec::new();
        for completion in std::mem::take(&mut self.done) {
            match completion {
                Completion::Data(done) => {
                    if let Some(buffer) = done.buffer {
                        self.buffers.give_back(buffer);
                    }
                    ended.push((done.token, done.result));
                }
                control @ Completion::Control { .. } => self.done.push(control),
            }
        }
        ended
    }

    /// Buffers that some request still has.
    pub(crate) fn lent(&self) -> usize {
        self.buffers.lent()
    }

    pub(crate) fn give_back(&mut self, buffer: DmaBuffer) {
        self.buffers.give_back(buffer);
    }

    pub(crate) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn buffer(&mut self, operation: DataOperation, length: u64, data: &[u8]) -> Option<DmaBuffer> {
        let length = match operation {
            DataOperation::Read | DataOperation::Write => length,
            DataOperation::CompareAndWrite => length.saturating_mul(2),
            DataOperation::WriteZeroes | DataOperation::Discard | DataOperation::Flush => 0,
        };
        let length = usize::try_from(length).expect("short").clamp(0, 1 << 20);
        if length == 0 {
            return None;
        }
        let buffer = self.buffers.take(length).expect("a buffer is free");
        // What a read leaves untouched must not pass for zeros.
        buffer.copy_from_slice(0, &vec![0xAA; buffer.length_bytes()]);
        buffer.copy_from_slice(0, &data[..data.len().min(length)]);
        Some(buffer)
    }

    fn position(&self, wanted: Token) -> Option<usize> {
        self.done.iter().position(|completion| match completion {
            Completion::Data(done) => done.token == wanted,
            Completion::Control { token, .. } => *token == wanted,
        })
    }
}

pub(crate) fn spec(name: &str, size_bytes: u64, block_size: BlockSize) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes,
        block_size,
        sync: SyncAttribute::None,
        limits: VolumeLimits::default(),
        created_unix_seconds: 0,
    }
}

pub(crate) fn named(name: &str) -> VolumeName {
    VolumeName {
        pool: "tank".to_owned(),
        volume: name.to_owned(),
    }
}

pub(crate) fn handle(reply: ControlReply) -> VolumeHandle {
    match reply {
        ControlReply::Volume(status) => status.handle,
        other => panic!("not a volume: {other:?}"),
    }
}

/// Bytes that differ from block to block and from seed to seed.
pub(crate) fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| seed ^ u8::try_from(index % 251).expect("below 251") ^ block_byte(index))
        .collect()
}

fn block_byte(index: usize) -> u8 {
    u8::try_from(index / 512 % 256).expect("below 256")
}
