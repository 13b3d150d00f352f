//! Our client and the driver behind it against a server that others wrote: the crate `vfio_user`
//! moves the messages, and the emulated controller stands behind its backend trait.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use lode_block::{BlockDevice, ErrorKind, Operation};
use lode_bus::{Bus, BusError, IovaSpace, PagePreference, Registers};
use lode_nvme_emu::EmulatedController;
use lode_units::MonotonicClock;
use lode_vfio_user::VfioUserBus;
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_region_info,
};
use vfio_user::{IrqInfo, Server, ServerRegion};

use crate::foreign_backend::{
    BAR_0, Backend, CONFIGURATION, CONFIGURATION_BYTES, MEMORIES_MAX, MSIX, Seen,
};
use crate::rig::{PATIENT, Rig, emulator};

/// A thread in which the foreign server serves one client; joined when dropped.
struct ForeignServer {
    _folder: TempDir,
    path: PathBuf,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<Result<(), vfio_user::Error>>>,
}

impl ForeignServer {
    fn start(controller: EmulatedController) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("foreign.sock");
        let registers_bytes = controller.registers().length_bytes();
        let regions = (0..REGION_COUNT)
            .map(|index| region(index, registers_bytes))
            .collect();
        let irqs = (0..IRQ_COUNT)
            .map(|index| IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD,
                count: u32::from(index == MSIX) * VECTORS,
            })
            .collect();
        let server = Server::new(&path, true, irqs, regions).expect("a socket");
        let seen = Arc::new(Seen::default());
        let mut backend = Backend::new(controller, Arc::clone(&seen));
        let thread = std::thread::spawn(move || server.run(&mut backend));
        Self {
            _folder: folder,
            path,
            seen,
            thread: Some(thread),
        }
    }

    fn attach(&self) -> VfioUserBus {
        VfioUserBus::open(&self.path, PATIENT, MonotonicClock::new()).expect("it attaches")
    }
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        let thread = self.thread.take().expect("joined once");
        let ended = thread.join();
        if !std::thread::panicking() {
            ended
                .expect("the backend's assertions hold")
                .expect("the client left in good order");
        }
    }
}

fn region(index: u32, registers_bytes: u64) -> ServerRegion {
    let size = match index {
        BAR_0 => registers_bytes,
        CONFIGURATION => CONFIGURATION_BYTES as u64,
        _ => 0,
    };
    ServerRegion {
        region_info: vfio_region_info {
            argsz: u32::try_from(size_of::<vfio_region_info>()).expect("small"),
            flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
            index,
            size,
            ..vfio_region_info::default()
        },
        sparse_areas: Vec::new(),
        mmap_fd: None,
    }
}

fn rig(controller: EmulatedController) -> Rig<VfioUserBus, ForeignServer> {
    let server = ForeignServer::start(controller);
    Rig::between(server.attach(), server)
}

#[test]
fn a_foreign_server_is_attached_to_and_its_registers_are_read_and_written() {
    let controller = emulator("lba=4096");
    let own = controller.registers();
    let server = ForeignServer::start(controller);
    let bus = server.attach();
    let registers = bus.registers();
    assert_eq!(registers.length_bytes(), own.length_bytes());
    assert_eq!(u32::from(bus.interrupt_count()), VECTORS);
    assert_eq!(registers.read_u64(CAP), own.read_u64(CAP));
    assert_eq!(registers.read_u32(VS), own.read_u32(VS));
    assert_ne!(registers.read_u32(VS), u32::MAX);
    let depths = 0x001F_001F;
    registers.write_u32(AQA, depths);
    assert_eq!(own.read_u32(AQA), depths, "it arrives at the controller");
    registers.write_u64(ASQ, 0x10_0000);
    assert_eq!(own.read_u64(ASQ), 0x10_0000);
    assert_eq!(registers.read_u32(CSTS) & 1, 0, "nobody enabled it");
    bus.reset_function().expect("it can be reset");
    assert_eq!(server.seen.count(|seen| &seen.resets), 1);
    assert!(bus.is_present());
    drop((registers, bus));
}

#[test]
fn the_driver_reads_and_writes_through_a_foreign_server() {
    let mut rig = rig(emulator("lba=4096"));
    assert_eq!(rig.queue.geometry().block_size.bytes(), 4096);
    for length in [4096, 8192, 1 << 20] {
        let bytes: Vec<u8> = (0..length)
            .map(|at: u32| (at >> 4).to_le_bytes()[0])
            .collect();
        rig.data.copy_from_slice(0, &bytes);
        let source = rig.span(0, length);
        assert_eq!(rig.run(Operation::Write, 5, source).result, Ok(()));
        let target = rig.span(2 << 20, length);
        assert_eq!(rig.run(Operation::Read, 5, target).result, Ok(()));
        assert!(rig.data.equals(2 << 20, &bytes), "{length}");
    }
    let seen = Arc::clone(&rig.served.seen);
    assert!(seen.count(|seen| &seen.doorbells) > 0, "they are messages");
    rig.controller.shut_down(&rig.clock).expect("shut down");
}

#[test]
fn memory_is_shared_with_a_foreign_server_and_taken_back() {
    let rig = rig(emulator("lba=4096"));
    let seen = Arc::clone(&rig.served.seen);
    let (maps, unmaps) = (
        seen.count(|seen| &seen.maps),
        seen.count(|seen| &seen.unmaps),
    );
    let memory = rig
        .space
        .allocate(8192, PagePreference::Ordinary)
        .expect("memory");
    rig.controller.bus().map(&memory).expect("mapped");
    assert_eq!(seen.count(|seen| &seen.maps), maps + 1);
    rig.controller.bus().unmap(&memory).expect("hidden");
    assert_eq!(seen.count(|seen| &seen.unmaps), unmaps + 1);
}

#[test]
fn what_a_foreign_server_refuses_without_a_reason_is_an_error_and_no_loss() {
    let server = ForeignServer::start(emulator("lba=4096"));
    let bus = server.attach();
    let space = IovaSpace::new();
    let memories: Vec<_> = (0..=MEMORIES_MAX)
        .map(|_| space.allocate(4096, PagePreference::Ordinary))
        .collect::<Result<_, _>>()
        .expect("memory");
    let (last, first) = memories.split_last().expect("one more than it takes");
    for memory in first {
        bus.map(memory).expect("there is room");
    }
    let refused = bus.map(last).expect_err("there is none");
    assert!(matches!(refused, BusError::Map { .. }), "{refused}");
    assert!(bus.is_present());
    bus.unmap(&first[0]).expect("hidden");
    bus.map(last).expect("there is room again");
}

#[test]
fn a_completion_behind_a_foreign_server_fires_an_interrupt() {
    let mut rig = rig(emulator("lba=4096"));
    let own = rig.route();
    assert_eq!(rig.served.seen.count(|seen| &seen.signals), 1);
    rig.read_by_interrupt(&own);
}

#[test]
fn a_reset_by_a_foreign_server_leaves_a_controller_that_comes_up_again() {
    let mut rig = rig(emulator("lba=4096"));
    rig.controller.bus().reset_function().expect("reset");
    assert_eq!(rig.served.seen.count(|seen| &seen.resets), 1);
    rig.until(|rig| {
        rig.turn();
        rig.controller.stats().resets_completed == 1
    });
    let data = rig.span(0, 4096);
    assert_eq!(rig.run(Operation::Read, 1, data).result, Ok(()));
}

#[test]
fn a_doorbell_that_a_foreign_server_refuses_is_made_good_by_a_reset_and_no_deadline() {
    let mut rig = rig(emulator("lba=4096"));
    rig.served.seen.to_refuse.store(1, Ordering::SeqCst);
    let data = rig.span(0, 4096);
    let refused = rig.run(Operation::Read, 1, data).result;
    assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Retry));
    rig.until(|rig| {
        rig.turn();
        rig.controller.stats().resets_completed == 1
    });
    assert_eq!(rig.queue.stats().timeouts, 0);
    assert_eq!(rig.run(Operation::Read, 1, data).result, Ok(()));
}

const REGION_COUNT: u32 = 9;
const IRQ_COUNT: u32 = 5;
const VECTORS: u32 = 9;
/// NVMe PCIe Transport 1.0 §3.1.
const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CSTS: u32 = 0x1C;
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
