//! Several shards over one pool, each with a queue of its own on the same device, and the ways
//! between them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lode_block::{BufferPool, BufferPoolSpec, Durability, Geometry, WriteCache};
use lode_bus::{DmaBuffer, IovaSpace, PagePreference};
use lode_engine::{
    Completion, ControlError, ControlReply, ControlRequest, DataCompletion, DataOperation,
    DataRequest, IoError, Letter, PoolIndex, Port, Shard, ShardLimits, Token, VolumeHandle,
    device_spec,
};
use lode_extent::{ExistingPool, Pool, PoolSpec, PoolState};
use lode_units::{BlockSize, CoreId, Instant, SeededRandom};

use crate::device::{Media, MemoryDevice, geometry};
use crate::rig::{handle, named, spec};

/// Shards over one pool; the first is its home.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) shards: Vec<Shard<MemoryDevice>>,
    pub(crate) media: Rc<RefCell<Media>>,
    pub(crate) pool: PoolIndex,
    done: Vec<Vec<Completion>>,
    buffers: BufferPool,
    pub(crate) now: Instant,
    next_token: u64,
}

/// One direction of a way between two cores.
type Way = Arc<Mutex<VecDeque<Letter>>>;

/// One end of a way between two cores, for `room` letters.
#[derive(Debug)]
struct End {
    to_peer: Way,
    from_peer: Way,
    room: usize,
    order: Order,
}

/// In which order letters arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they were sent: what a port promises.
    Kept,
    /// The last one first: what no port may do.
    Broken,
}

impl Port for End {
    fn send(&mut self, letter: Letter) -> Result<(), Letter> {
        let mut way = self.to_peer.lock().expect("nobody panicked");
        if way.len() >= self.room {
            return Err(letter);
        }
        match self.order {
            Order::Kept => way.push_back(letter),
            Order::Broken => way.push_front(letter),
        }
        Ok(())
    }

    fn receive(&mut self) -> Option<Letter> {
        let mut way = self.from_peer.lock().expect("nobody panicked");
        way.pop_front()
    }

    fn flush(&mut self) {}
}

/// What a fleet is made of.
#[derive(Clone, Debug)]
pub(crate) struct Makeup {
    pub(crate) cores: usize,
    pub(crate) geometry: Geometry,
    /// How many letters are under way from one core to another.
    pub(crate) room: usize,
    pub(crate) order: Order,
    /// Whether guests have queues of their own.
    pub(crate) has_queues: bool,
    pub(crate) limits: ShardLimits,
    /// Clients' buffers of 4 KiB.
    pub(crate) small_buffers: usize,
}

impl Makeup {
    /// `cores` cores over a device with 4096-byte blocks.
    pub(crate) fn of(cores: usize, write_cache: WriteCache) -> Self {
        Self {
            cores,
            geometry: geometry(BlockSize::B4096, write_cache),
            room: 64,
            order: Order::Kept,
            has_queues: true,
            limits: ShardLimits::default(),
            small_buffers: 64,
        }
    }
}

impl Fleet {
    /// A new pool.
    pub(crate) fn new(makeup: &Makeup) -> Self {
        let space = IovaSpace::new();
        let media = Rc::new(RefCell::new(Media::new()));
        let mut shards: Vec<_> = (0..makeup.cores)
            .map(|_| Shard::with_limits(&space, PagePreference::Ordinary, makeup.limits))
            .map(|shard| shard.expect("memory"))
            .collect();
        let buffers = [(4096, makeup.small_buffers), (8192, 32), (1 << 20, 8)].map(
            |(length_bytes, count)| BufferPoolSpec {
                length_bytes,
                count,
            },
        );
        let buffers = BufferPool::new(&buffers, &space, PagePreference::Ordinary).expect("memory");
        let memories = shards.iter().flat_map(Shard::memories);
        media.borrow_mut().memories = memories.chain(buffers.memories()).cloned().collect();
        connect(&mut shards, makeup);
        let device = || MemoryDevice::new(makeup.geometry.clone(), Rc::clone(&media));
        let specs = [device_spec(&device())];
        let pool_spec = PoolSpec {
            name: "tank".to_owned(),
            existing: ExistingPool::Overwrite,
        };
        let mut random = SeededRandom::new(7);
        let pool = Pool::create(pool_spec, &specs, &mut random, 0).expect("it fits the device");
        let pool = shards[0].attach("tank", vec![("memory".to_owned(), device())], pool);
        let mut fleet = Self {
            done: shards.iter().map(|_| Vec::new()).collect(),
            shards,
            media: Rc::clone(&media),
            pool,
            buffers,
            now: Instant::from_nanos(1),
            next_token: 0,
        };
        fleet.until(|fleet| fleet.shards[0].pool_state(fleet.pool) == Some(&PoolState::Ready));
        let spec = fleet.shards[0].guest_spec(pool).expect("it serves");
        for guest in &mut fleet.shards[1..] {
            let own = makeup.has_queues.then(|| ("memory".to_owned(), device()));
            guest.attach_guest(CoreId::new(0), spec.clone(), own.into_iter().collect());
        }
        fleet
    }

    /// Polls one shard, a microsecond later.
    pub(crate) fn poll(&mut self, core: usize) -> usize {
        self.now += Duration::from_micros(1);
        self.shards[core].poll(self.now, &mut self.done[core])
    }

    /// Polls every shard once.
    pub(crate) fn poll_all(&mut self) {
        for core in 0..self.shards.len() {
            self.poll(core);
        }
    }

    /// Polls every shard until `is_so`, a bounded number of times.
    pub(crate) fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_so(self) {
                return;
            }
            self.poll_all();
        }
        panic!("what was waited for did not come");
    }

    /// Polls until nothing is under way on any core.
    pub(crate) fn settle(&mut self) {
        self.until(|fleet| fleet.shards.iter().all(|shard| !shard.is_busy()));
    }

    /// Makes a volume, asked for on `core`.
    pub(crate) fn create(&mut self, core: usize, name: &str, size_bytes: u64) -> VolumeHandle {
        let reply = self.control(
            core,
            ControlRequest::CreateVolume {
                pool: String::new(),
                spec: spec(name, size_bytes, BlockSize::B4096),
                request: None,
            },
        );
        handle(reply.expect("a volume can be made"))
    }

    /// Opens a volume on `core`.
    pub(crate) fn open(&mut self, core: usize, name: &str) -> Result<VolumeHandle, ControlError> {
        let volume = named(name);
        let reply = self.control(core, ControlRequest::OpenVolume { volume });
        reply.map(handle)
    }

    /// A control request on `core`, to its end.
    pub(crate) fn control(
        &mut self,
        core: usize,
        request: ControlRequest,
    ) -> Result<ControlReply, ControlError> {
        let token = self.start_control(core, request);
        self.until(|fleet| fleet.position(core, token).is_some());
        self.control_outcome(core, token).expect("it has ended")
    }

    /// A control request on `core`, not waited for.
    pub(crate) fn start_control(&mut self, core: usize, request: ControlRequest) -> Token {
        let token = self.token();
        self.shards[core].control(token, request);
        token
    }

    /// The outcome of a control request, if it has ended.
    pub(crate) fn control_outcome(
        &mut self,
        core: usize,
        token: Token,
    ) -> Option<Result<ControlReply, ControlError>> {
        let position = self.position(core, token)?;
        match self.done[core].remove(position) {
            Completion::Control { result, .. } => Some(*result),
            Completion::Data(done) => panic!("a data request ended instead: {done:?}"),
        }
    }

    /// Submits a data request on `core` and does not wait.
    pub(crate) fn submit(
        &mut self,
        core: usize,
        volume: VolumeHandle,
        operation: DataOperation,
        range: (u64, u64),
        with: (Durability, &[u8]),
    ) -> Token {
        let token = self.token();
        let request = DataRequest {
            token,
            volume,
            operation,
            durability: with.0,
            offset_bytes: range.0,
            length_bytes: range.1,
            buffer: self.buffer(operation, range.1, with.1),
        };
        self.shards[core].submit(request).expect("a slot is free");
        token
    }

    /// The outcome of a data request, and what its buffer holds, if it has ended.
    pub(crate) fn outcome(
        &mut self,
        core: usize,
        token: Token,
    ) -> Option<(Result<Durability, IoError>, Vec<u8>)> {
        let position = self.position(core, token)?;
        let Completion::Data(DataCompletion { result, buffer, .. }) =
            self.done[core].remove(position)
        else {
            panic!("a control request ended");
        };
        let mut data = Vec::new();
        if let Some(buffer) = buffer {
            buffer.append_to(0, buffer.length_bytes(), &mut data);
            self.buffers.give_back(buffer);
        }
        Some((result, data))
    }

    /// A whole data request on `core`.
    pub(crate) fn run(
        &mut self,
        core: usize,
        volume: VolumeHandle,
        operation: DataOperation,
        range: (u64, u64),
        with: (Durability, &[u8]),
    ) -> Result<Durability, IoError> {
        let token = self.submit(core, volume, operation, range, with);
        self.until(|fleet| fleet.position(core, token).is_some());
        self.outcome(core, token).expect("it has just ended").0
    }

    pub(crate) fn write(&mut self, core: usize, volume: VolumeHandle, offset: u64, data: &[u8]) {
        let range = (offset, data.len() as u64);
        let with = (Durability::None, data);
        let outcome = self.run(core, volume, DataOperation::Write, range, with);
        outcome.expect("a write succeeds");
    }

    pub(crate) fn read(
        &mut self,
        core: usize,
        volume: VolumeHandle,
        offset: u64,
        length: u64,
    ) -> Vec<u8> {
        let with = (Durability::None, [].as_slice());
        let range = (offset, length);
        let token = self.submit(core, volume, DataOperation::Read, range, with);
        self.until(|fleet| fleet.position(core, token).is_some());
        let (result, mut data) = self.outcome(core, token).expect("it has just ended");
        result.expect("a read succeeds");
        data.truncate(usize::try_from(length).expect("short"));
        data
    }

    /// Takes all data requests that have ended on `core`; the buffers go back.
    pub(crate) fn harvest(&mut self, core: usize) -> Vec<(Token, Result<Durability, IoError>)> {
        let mut ended = Vec::new();
        for completion in std::mem::take(&mut self.done[core]) {
            match completion {
                Completion::Data(done) => {
                    if let Some(buffer) = done.buffer {
                        self.buffers.give_back(buffer);
                    }
                    ended.push((done.token, done.result));
                }
                control @ Completion::Control { .. } => self.done[core].push(control),
            }
        }
        ended
    }

    /// Buffers that some request still has.
    pub(crate) fn lent(&self) -> usize {
        self.buffers.lent()
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn buffer(&mut self, operation: DataOperation, length: u64, data: &[u8]) -> Option<DmaBuffer> {
        let length = match operation {
            DataOperation::Read | DataOperation::Write => length,
            DataOperation::CompareAndWrite => length * 2,
            DataOperation::WriteZeroes | DataOperation::Discard | DataOperation::Flush => 0,
        };
        let length = usize::try_from(length).expect("short");
        if length == 0 {
            return None;
        }
        let buffer = self.buffers.take(length).expect("a buffer is free");
        // What a read leaves untouched must not pass for zeros.
        buffer.copy_from_slice(0, &vec![0xAA; buffer.length_bytes()]);
        buffer.copy_from_slice(0, &data[..data.len().min(length)]);
        Some(buffer)
    }

    fn position(&self, core: usize, wanted: Token) -> Option<usize> {
        self.done[core]
            .iter()
            .position(|completion| match completion {
                Completion::Data(done) => done.token == wanted,
                Completion::Control { token, .. } => *token == wanted,
            })
    }
}

/// Connects every shard with every other.
fn connect(shards: &mut [Shard<MemoryDevice>], makeup: &Makeup) {
    let (room, order) = (makeup.room, makeup.order);
    let core = |index: usize| CoreId::new(u16::try_from(index).expect("few"));
    for near in 0..shards.len() {
        for far in near + 1..shards.len() {
            let (there, back) = (Way::default(), Way::default());
            let near_end = End {
                to_peer: Arc::clone(&there),
                from_peer: Arc::clone(&back),
                room,
                order,
            };
            let far_end = End {
                to_peer: back,
                from_peer: there,
                room,
                order,
            };
            shards[near].connect(core(far), Box::new(near_end));
            shards[far].connect(core(near), Box::new(far_end));
        }
    }
}
