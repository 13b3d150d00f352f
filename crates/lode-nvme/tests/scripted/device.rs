//! A device of a few lines: registers as a table, commands answered by a closure at the very
//! moment their doorbell is rung.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_bus::{Bus, BusError, DmaMemory, IovaSpace, Registers};
use lode_nvme::{Controller, ControllerOptions, ControllerState};
use lode_nvme_spec::command::{CreateCompletionQueue, CreateSubmissionQueue};
use lode_nvme_spec::identify::{IdentifyController, IdentifyNamespace};
use lode_nvme_spec::registers::{
    ACQ, AQA, ASQ, AdminQueueAttributes, CAP, CC, CSTS, Capabilities, Configuration,
    ControllerStatus, DOORBELLS, VS, Version,
};
use lode_nvme_spec::{AdminOpcode, CompletionEntry, Status, SubmissionEntry};
use lode_units::{CommandId, Instant, QueueId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// What a command is answered with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: Status,
    pub(crate) dword_0: u32,
    pub(crate) data: Vec<u8>,
    /// The command that the completion names, when it is not the one that was sent.
    pub(crate) names: Option<u16>,
}

impl Reply {
    pub(crate) fn data(bytes: &[u8]) -> Self {
        Self {
            data: bytes.to_vec(),
            ..Self::default()
        }
    }

    pub(crate) fn status(raw: u16) -> Self {
        Self {
            status: Status::from_raw(raw),
            ..Self::default()
        }
    }
}

/// Answers a command of a queue; `None` for never.
pub(crate) type Answer = Box<dyn FnMut(QueueId, &SubmissionEntry) -> Option<Reply> + Send>;

/// A handle to the device.
#[derive(Clone)]
pub(crate) struct Device(Arc<Mutex<State>>);

struct State {
    capabilities: Capabilities,
    version: Version,
    window_bytes: u64,
    configuration: u32,
    attributes: u32,
    admin: [u64; 2],
    answer: Answer,
    memories: Vec<DmaMemory>,
    queues: Vec<Rings>,
    seen: Vec<(QueueId, SubmissionEntry)>,
}

/// One queue pair as the device sees it.
#[derive(Clone, Copy, Debug)]
struct Rings {
    id: QueueId,
    submission: u64,
    submission_entries: u32,
    head: u32,
    completion: u64,
    completion_entries: u32,
    tail: u32,
    phase: bool,
}

impl Device {
    pub(crate) fn new(answer: Answer) -> Self {
        Self(Arc::new(Mutex::new(State {
            capabilities: Capabilities {
                queue_entries_max_minus_one: 1023,
                requires_contiguous_queues: true,
                timeout_500ms: 4,
                command_sets: Capabilities::COMMAND_SET_NVM,
                ..Capabilities::default()
            },
            version: Version::V2_0,
            window_bytes: 0x2000,
            configuration: 0,
            attributes: 0,
            admin: [0; 2],
            answer,
            memories: Vec::new(),
            queues: Vec::new(),
            seen: Vec::new(),
        })))
    }

    pub(crate) fn with_capabilities(self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.lock().capabilities);
        self
    }

    pub(crate) fn with_window(self, bytes: u64) -> Self {
        self.lock().window_bytes = bytes;
        self
    }

    pub(crate) fn with_version(self, version: Version) -> Self {
        self.lock().version = version;
        self
    }

    /// Every command seen so far, with its queue.
    pub(crate) fn seen(&self) -> Vec<(QueueId, SubmissionEntry)> {
        self.lock().seen.clone()
    }

    pub(crate) fn admin_seen(&self, opcode: AdminOpcode) -> Vec<SubmissionEntry> {
        let seen = self.seen().into_iter();
        seen.filter(|(queue, entry)| queue.get() == 0 && entry.opcode == opcode.raw())
            .map(|(_, entry)| entry)
            .collect()
    }

    pub(crate) fn configuration(&self) -> Configuration {
        Configuration::from_bits(self.lock().configuration)
    }

    /// The memory behind an address, if it is mapped.
    pub(crate) fn memory(&self, address: u64) -> Option<(DmaMemory, usize)> {
        self.lock().find(address)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&self, address: u64) -> Option<(DmaMemory, usize)> {
        self.memories.iter().find_map(|memory| {
            let offset = address.checked_sub(memory.iova().get())?;
            let offset = usize::try_from(offset).ok()?;
            (offset < memory.length_bytes()).then(|| (memory.clone(), offset))
        })
    }

    fn configure(&mut self, bits: u32) {
        self.configuration = bits;
        if !Configuration::from_bits(bits).enabled {
            self.queues.clear();
            return;
        }
        let attributes = AdminQueueAttributes::from_bits(self.attributes);
        self.queues.push(Rings {
            id: QueueId::new(0),
            submission: self.admin[0],
            submission_entries: attributes.submission_entries.into(),
            head: 0,
            completion: self.admin[1],
            completion_entries: attributes.completion_entries.into(),
            tail: 0,
            phase: true,
        });
    }

    fn ring(&mut self, offset: u32, value: u32) {
        let index = (offset - DOORBELLS) / (4 << self.capabilities.doorbell_stride);
        let Ok(id) = u16::try_from(index / 2) else {
            return;
        };
        if !index.is_multiple_of(2) {
            return;
        }
        while let Some(at) = self.position(QueueId::new(id)) {
            let rings = self.queues[at];
            if rings.head == value {
                return;
            }
            let address = rings.submission + u64::from(rings.head) * 64;
            let (memory, offset) = self.find(address).expect("a mapped ring");
            self.queues[at].head = (rings.head + 1) % rings.submission_entries;
            let entry: SubmissionEntry = memory.read(offset);
            self.seen.push((rings.id, entry));
            if let Some(reply) = (self.answer)(rings.id, &entry) {
                self.complete(rings.id, &entry, &reply);
            }
        }
    }

    fn complete(&mut self, queue: QueueId, entry: &SubmissionEntry, reply: &Reply) {
        if queue.get() == 0 && reply.status.is_success() {
            self.create_queues(entry);
        }
        if !reply.data.is_empty() {
            let address = entry.data_pointer.prp1.get();
            let (memory, offset) = self.find(address).expect("mapped data");
            memory.copy_from_slice(offset, &reply.data);
        }
        let Some(at) = self.position(queue) else {
            return;
        };
        let rings = &mut self.queues[at];
        let head = u16::try_from(rings.head).expect("small rings");
        let id = reply.names.map_or(entry.command_id(), CommandId::new);
        let completion = CompletionEntry::new(queue, id, head, reply.status, reply.dword_0)
            .with_phase(rings.phase);
        let address = rings.completion + u64::from(rings.tail) * 16;
        rings.tail += 1;
        if rings.tail == rings.completion_entries {
            rings.tail = 0;
            rings.phase = !rings.phase;
        }
        let (memory, offset) = self.find(address).expect("a mapped ring");
        memory.write(offset, &completion);
    }

    fn create_queues(&mut self, entry: &SubmissionEntry) {
        match AdminOpcode::from_raw(entry.opcode) {
            AdminOpcode::CreateCompletionQueue => {
                let command = CreateCompletionQueue::decode(entry);
                self.queues.push(Rings {
                    id: command.queue,
                    submission: 0,
                    submission_entries: 0,
                    head: 0,
                    completion: command.base.get(),
                    completion_entries: command.entries,
                    tail: 0,
                    phase: true,
                });
            }
            AdminOpcode::CreateSubmissionQueue => {
                let command = CreateSubmissionQueue::decode(entry);
                let at = self.position(command.queue).expect("a completion queue");
                self.queues[at].submission = command.base.get();
                self.queues[at].submission_entries = command.entries;
            }
            _ => {}
        }
    }

    fn position(&self, queue: QueueId) -> Option<usize> {
        self.queues.iter().position(|rings| rings.id == queue)
    }
}

/// The device's registers.
pub(crate) struct Window(Device);

impl Registers for Window {
    fn length_bytes(&self) -> u64 {
        self.0.lock().window_bytes
    }

    fn read_u32(&self, offset: u32) -> u32 {
        let state = self.0.lock();
        let status = ControllerStatus {
            ready: Configuration::from_bits(state.configuration).enabled,
            ..ControllerStatus::default()
        };
        match offset {
            VS => state.version.to_bits(),
            CC => state.configuration,
            CSTS => status.to_bits(),
            AQA => state.attributes,
            _ => 0,
        }
    }

    fn read_u64(&self, offset: u32) -> u64 {
        let state = self.0.lock();
        match offset {
            CAP => state.capabilities.to_bits(),
            ASQ => state.admin[0],
            ACQ => state.admin[1],
            _ => 0,
        }
    }

    fn write_u32(&self, offset: u32, value: u32) {
        let mut state = self.0.lock();
        match offset {
            CC => state.configure(value),
            AQA => state.attributes = value,
            DOORBELLS.. => state.ring(offset, value),
            _ => {}
        }
    }

    fn write_u64(&self, offset: u32, value: u64) {
        let mut state = self.0.lock();
        match offset {
            ASQ => state.admin[0] = value,
            ACQ => state.admin[1] = value,
            _ => {}
        }
    }
}

impl Bus for Device {
    type Registers = Window;

    fn name(&self) -> &'static str {
        "scripted"
    }

    fn registers(&self) -> Window {
        Window(self.clone())
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        self.lock().memories.push(memory.clone());
        Ok(())
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        let mut state = self.lock();
        state.memories.retain(|held| held.iova() != memory.iova());
        Ok(())
    }

    fn interrupt_count(&self) -> u16 {
        0
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        Err(BusError::NoVector { vector, count: 0 })
    }

    fn reset_function(&self) -> Result<(), BusError> {
        Err(BusError::Unsupported {
            operation: "function reset",
        })
    }

    fn is_present(&self) -> bool {
        true
    }
}

/// An ordinary controller: one namespace, every command succeeds, events never come.
pub(crate) fn ordinary(queue: QueueId, entry: &SubmissionEntry) -> Option<Reply> {
    if queue.get() != 0 {
        return Some(Reply::default());
    }
    match AdminOpcode::from_raw(entry.opcode) {
        AdminOpcode::Identify => Some(identify(entry)),
        AdminOpcode::AsyncEventRequest => None,
        AdminOpcode::SetFeatures => Some(Reply {
            dword_0: entry.dword_11.get(),
            ..Reply::default()
        }),
        _ => Some(Reply::default()),
    }
}

fn identify(entry: &SubmissionEntry) -> Reply {
    match entry.dword_10.get() & 0xFF {
        0 => Reply::data(namespace(9, 1 << 40).as_bytes()),
        1 => Reply::data(controller().as_bytes()),
        2 => {
            let list = if entry.namespace_id.get() < 1 {
                [1_u32, 0]
            } else {
                [0, 0]
            };
            Reply::data(list.as_bytes())
        }
        _ => Reply::status(0x4002),
    }
}

pub(crate) fn controller() -> IdentifyController {
    let mut identify = IdentifyController::new_zeroed();
    identify.serial_number = *b"SCRIPT              ";
    identify.controller_type = 1;
    identify.submission_entry_sizes = 0x66;
    identify.completion_entry_sizes = 0x44;
    identify.namespace_id_max = U32::new(1);
    identify.features = U16::new(0xFF);
    identify
}

pub(crate) fn namespace(block_shift: u8, blocks: u64) -> IdentifyNamespace {
    let mut identify = IdentifyNamespace::new_zeroed();
    identify.size = U64::new(blocks);
    identify.capacity = U64::new(blocks);
    identify.lba_formats[0].block_shift = block_shift;
    identify
}

/// A driver over a device, polled until it is ready or gone.
pub(crate) struct Driven {
    pub(crate) controller: Controller<Device>,
    pub(crate) space: IovaSpace,
    pub(crate) now: Instant,
}

pub(crate) fn drive(device: &Device, options: ControllerOptions) -> Driven {
    let space = IovaSpace::new();
    let controller = Controller::new(device.clone(), options, &space).expect("memory");
    let mut driven = Driven {
        controller,
        space,
        now: Instant::ZERO,
    };
    for _ in 0..ROUNDS_MAX {
        let state = driven.controller.state();
        if matches!(state, ControllerState::Ready | ControllerState::Gone) {
            return driven;
        }
        driven.tick();
    }
    panic!("neither ready nor gone: {:?}", driven.controller);
}

impl Driven {
    pub(crate) fn tick(&mut self) {
        self.now += std::time::Duration::from_millis(1);
        self.controller.poll(self.now);
    }
}

const ROUNDS_MAX: usize = 200_000;
