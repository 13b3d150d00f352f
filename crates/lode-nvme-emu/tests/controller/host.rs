//! A scripted host: it writes submission entries by hand and looks at what comes back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use lode_bus::{Bus, DmaMemory, IovaSpace, PagePreference, Registers};
use lode_nvme_emu::{Cache, ControllerOptions, EmulatedController, Media, NamespaceOptions};
use lode_nvme_spec::command::{
    BlockCommand, BlockFlags, CreateCompletionQueue, CreateSubmissionQueue,
};
use lode_nvme_spec::registers::{
    self as at, AdminQueueAttributes, Configuration, ControllerStatus, completion_doorbell,
    submission_doorbell,
};
use lode_nvme_spec::{CompletionEntry, DataPointer, NvmOpcode, Status, SubmissionEntry};
use lode_units::{BlockSize, CommandId, Instant, Lba, NamespaceId, QueueId};

pub const NSID: NamespaceId = NamespaceId::new(1);
pub const PAGE: usize = 4096;
const ADMIN_ENTRIES: u16 = 16;

/// A queue pair as a host keeps it.
#[derive(Debug)]
pub struct Pair {
    pub id: QueueId,
    pub entries: u32,
    pub submission: DmaMemory,
    pub completion: DmaMemory,
    pub tail: u32,
    pub head: u32,
    phase: bool,
    next_id: u16,
}

/// One controller with its driver's side, in virtual time.
#[derive(Debug)]
pub struct Host {
    pub controller: EmulatedController,
    pub space: IovaSpace,
    pub now: Instant,
    pub admin: Option<Pair>,
}

impl Host {
    pub fn over(controller: EmulatedController) -> Self {
        Self {
            controller,
            space: IovaSpace::new(),
            now: Instant::ZERO,
            admin: None,
        }
    }

    /// A controller with one namespace of `blocks` blocks in memory, ready.
    pub fn with_memory(options: ControllerOptions, block: BlockSize, blocks: u64) -> Self {
        Self::with_cache(options, block, blocks, Cache::None)
    }

    pub fn with_cache(
        options: ControllerOptions,
        block: BlockSize,
        blocks: u64,
        cache: Cache,
    ) -> Self {
        let media = Media::memory(blocks * u64::from(block.bytes())).expect("memory");
        let namespace = NamespaceOptions {
            cache,
            ..NamespaceOptions::new(block, media)
        };
        let controller = EmulatedController::new(options, vec![namespace]).expect("options");
        let mut host = Self::over(controller);
        host.enable();
        host
    }

    pub fn ready() -> Self {
        Self::with_memory(ControllerOptions::default(), BlockSize::B512, 1 << 16)
    }

    pub fn allocate(&self, bytes: usize) -> DmaMemory {
        let memory = self
            .space
            .allocate(bytes, PagePreference::Ordinary)
            .expect("memory");
        self.controller.map(&memory).expect("room in the table");
        memory
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    pub fn advance(&self) -> Option<Instant> {
        self.controller.advance(self.now)
    }

    pub fn status(&self) -> ControllerStatus {
        let bits = self.controller.registers().read_u32(at::CSTS);
        ControllerStatus::from_bits(bits)
    }

    pub fn configure(&self, configuration: Configuration) {
        self.controller
            .registers()
            .write_u32(at::CC, configuration.to_bits());
    }

    pub fn enabled() -> Configuration {
        Configuration {
            enabled: true,
            submission_entry_shift: at::SUBMISSION_ENTRY_SHIFT,
            completion_entry_shift: at::COMPLETION_ENTRY_SHIFT,
            ..Configuration::default()
        }
    }

    /// Sets up the admin queues and CC.EN without looking at CSTS.
    pub fn start_enabling(&mut self) {
        let entries = u32::from(ADMIN_ENTRIES);
        let admin = self.pair_memory(QueueId::new(0), entries, entries);
        let registers = self.controller.registers();
        let attributes = AdminQueueAttributes {
            submission_entries: ADMIN_ENTRIES,
            completion_entries: ADMIN_ENTRIES,
        };
        registers.write_u32(at::AQA, attributes.to_bits());
        registers.write_u64(at::ASQ, admin.submission.iova().get());
        registers.write_u64(at::ACQ, admin.completion.iova().get());
        self.admin = Some(admin);
        self.configure(Self::enabled());
    }

    pub fn enable(&mut self) {
        self.start_enabling();
        self.advance();
        assert!(self.status().ready, "no delay was asked for");
    }

    pub fn disable(&mut self) {
        self.configure(Configuration::default());
        for _ in 0..1_000_000 {
            self.advance();
            if !self.status().ready {
                return;
            }
        }
        panic!("the controller becomes disabled");
    }

    pub fn pair_memory(&self, id: QueueId, submission: u32, completion: u32) -> Pair {
        let bytes = |entries: u32, size: usize| usize::try_from(entries).expect("few") * size;
        Pair {
            id,
            entries: submission.min(completion),
            submission: self.allocate(bytes(submission, 64)),
            completion: self.allocate(bytes(completion, 16)),
            tail: 0,
            head: 0,
            phase: true,
            next_id: 1,
        }
    }

    /// Creates an I/O queue pair of `entries`, without interrupts.
    pub fn create_pair(&mut self, id: u16, entries: u32) -> Pair {
        self.create_pair_with(id, entries, None)
    }

    pub fn create_pair_with(&mut self, id: u16, entries: u32, vector: Option<u16>) -> Pair {
        let id = QueueId::new(id);
        let pair = self.pair_memory(id, entries, entries);
        let completion = CreateCompletionQueue {
            base: pair.completion.iova(),
            queue: id,
            entries,
            is_contiguous: true,
            enables_interrupts: vector.is_some(),
            interrupt_vector: vector.unwrap_or(0),
        };
        self.admin_ok(completion.encode());
        let submission = CreateSubmissionQueue {
            base: pair.submission.iova(),
            queue: id,
            entries,
            is_contiguous: true,
            priority: 0,
            completion_queue: id,
        };
        self.admin_ok(submission.encode());
        pair
    }

    /// Runs an admin command to its end.
    pub fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let mut pair = self.admin.take().expect("the admin queue is there");
        let completion = self.run(&mut pair, entry);
        self.admin = Some(pair);
        completion
    }

    pub fn admin_ok(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        let completion = self.admin(entry);
        assert_eq!(completion.status(), Status::SUCCESS, "{entry:?}");
        completion
    }

    /// Gives an admin command without waiting for its end.
    pub fn admin_submit(&mut self, entry: SubmissionEntry) -> CommandId {
        let mut pair = self.admin.take().expect("the admin queue is there");
        let id = self.submit(&mut pair, entry);
        self.admin = Some(pair);
        id
    }

    pub fn admin_next(&mut self) -> Option<CompletionEntry> {
        let mut pair = self.admin.take().expect("the admin queue is there");
        self.advance();
        let completion = self.next(&mut pair);
        self.admin = Some(pair);
        completion
    }

    /// Queues a command under a fresh identifier and rings the doorbell.
    pub fn submit(&self, pair: &mut Pair, entry: SubmissionEntry) -> CommandId {
        let id = self.queue(pair, entry);
        self.ring(pair);
        id
    }

    /// Queues a command without ringing.
    pub fn queue(&self, pair: &mut Pair, entry: SubmissionEntry) -> CommandId {
        let id = CommandId::new(pair.next_id);
        pair.next_id = pair.next_id.wrapping_add(1) & 0x7FFF;
        let at = usize::try_from(pair.tail).expect("few") * 64;
        pair.submission.write(at, &entry.with_command_id(id));
        pair.tail = (pair.tail + 1) % pair.entries;
        id
    }

    pub fn ring(&self, pair: &Pair) {
        let stride = self.controller.options().doorbell_stride;
        let doorbell = submission_doorbell(pair.id, stride);
        self.controller.registers().write_u32(doorbell, pair.tail);
    }

    /// The next completion, if one is there; the controller is not asked to work.
    pub fn next(&self, pair: &mut Pair) -> Option<CompletionEntry> {
        let completion = Self::peek(pair)?;
        pair.head += 1;
        if pair.head == pair.entries {
            pair.head = 0;
            pair.phase = !pair.phase;
        }
        let stride = self.controller.options().doorbell_stride;
        let doorbell = completion_doorbell(pair.id, stride);
        self.controller.registers().write_u32(doorbell, pair.head);
        Some(completion)
    }

    pub fn peek(pair: &Pair) -> Option<CompletionEntry> {
        let at = usize::try_from(pair.head).expect("few") * 16;
        let word = pair.completion.load_u16(at + 14, Ordering::Acquire);
        (word & 1 == u16::from(pair.phase)).then(|| pair.completion.read(at))
    }

    /// Runs a command to its end; the controller may take a while over a file.
    pub fn run(&self, pair: &mut Pair, entry: SubmissionEntry) -> CompletionEntry {
        let id = self.submit(pair, entry);
        let completion = self.wait(pair);
        assert_eq!(completion.command_id(), id);
        completion
    }

    /// Asks the controller to work until a completion is there.
    pub fn wait(&self, pair: &mut Pair) -> CompletionEntry {
        for _ in 0..50_000_000_u64 {
            self.advance();
            if let Some(completion) = self.next(pair) {
                return completion;
            }
            std::hint::spin_loop();
        }
        panic!("the command completes");
    }

    pub fn run_ok(&self, pair: &mut Pair, entry: SubmissionEntry) {
        let completion = self.run(pair, entry);
        assert_eq!(completion.status(), Status::SUCCESS, "{entry:?}");
    }

    /// Writes `data` at `lba` through a fresh buffer.
    pub fn write(&self, pair: &mut Pair, lba: u64, data: &[u8], flags: BlockFlags) {
        let buffer = self.allocate(data.len());
        buffer.copy_from_slice(0, data);
        let blocks = self.blocks(data.len());
        let entry = block(NvmOpcode::Write, lba, blocks, flags);
        self.run_ok(pair, entry.with_data(self.pages(&buffer, 0, data.len())));
        self.controller.unmap(&buffer).expect("the device is there");
    }

    /// Reads `length` bytes at `lba` through a fresh buffer.
    pub fn read(&self, pair: &mut Pair, lba: u64, length: usize) -> Vec<u8> {
        let buffer = self.allocate(length);
        let entry = block(
            NvmOpcode::Read,
            lba,
            self.blocks(length),
            BlockFlags::empty(),
        );
        self.run_ok(pair, entry.with_data(self.pages(&buffer, 0, length)));
        let mut data = Vec::new();
        buffer.append_to(0, length, &mut data);
        self.controller.unmap(&buffer).expect("the device is there");
        data
    }

    /// The block count of `length` bytes in the first namespace.
    pub fn blocks(&self, length: usize) -> u32 {
        let bytes = self
            .controller
            .media(NSID)
            .expect("a namespace")
            .length_bytes();
        let size = bytes / self.controller.block_count(NSID).expect("a namespace");
        u32::try_from(length as u64 / size).expect("few")
    }

    /// The data pointer of `length` bytes at `offset` of `memory`, with a list where needed.
    pub fn pages(&self, memory: &DmaMemory, offset: usize, length: usize) -> DataPointer {
        let start = memory.iova().get() + offset as u64;
        let page = PAGE as u64;
        let second = (start / page + 1) * page;
        let end = start + length as u64;
        if end <= second {
            return DataPointer::new(start, 0);
        }
        if end <= second + page {
            return DataPointer::new(start, second);
        }
        let count = usize::try_from((end - second).div_ceil(page)).expect("few");
        let list = self.allocate(count * 8);
        assert!(count <= 512, "one list page");
        for index in 0..count {
            list.write(index * 8, &(second + index as u64 * page));
        }
        DataPointer::new(start, list.iova().get())
    }
}

/// A command on blocks of the first namespace, without data.
pub fn block(opcode: NvmOpcode, lba: u64, blocks: u32, flags: BlockFlags) -> SubmissionEntry {
    BlockCommand {
        opcode,
        namespace: NSID,
        lba: Lba::new(lba),
        block_count: blocks,
        flags,
    }
    .encode()
}

/// Bytes that differ by position and seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    use lode_units::{Random, SeededRandom};
    let mut random = SeededRandom::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
