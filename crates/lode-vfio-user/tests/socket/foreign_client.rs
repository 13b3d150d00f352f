//! Our server against a client that others wrote: the crate `vfio_user` moves the messages, and
//! our driver stands on top of it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use lode_block::Operation;
use lode_bus::{Bus, BusError, DmaMemory, Registers};
use lode_nvme_emu::EmulatedController;
use lode_units::MonotonicClock;
use lode_vfio_user::{DoorbellTransport, ListeningSocket, Server, VfioUserError};
use rustix::event::{EventfdFlags, eventfd};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::{VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD};
use vfio_user::Client;

use crate::rig::{Rig, emulator};

/// Our server, listening in a thread of its own; stopped and joined when dropped.
struct Listening {
    folder: TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<Vec<Result<(), VfioUserError>>>>,
}

impl Listening {
    fn start(controller: EmulatedController, transport: DoorbellTransport) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = MonotonicClock::new();
        let socket = ListeningSocket::bind(&folder.path().join(SOCKET), clock).expect("a socket");
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let heard = stop.try_clone().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            let mut ends = Vec::new();
            let mut server = Server::new(controller, transport, clock).expect("memory");
            server
                .listen(&socket, heard.as_fd(), |left| ends.push(left))
                .expect("the socket does not fail");
            ends
        });
        Self {
            folder,
            stop,
            thread: Some(thread),
        }
    }

    fn connect(&self) -> Client {
        Client::new(&self.folder.path().join(SOCKET)).expect("it attaches")
    }

    fn stop(&mut self) -> Vec<Result<(), VfioUserError>> {
        let thread = self.thread.take();
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).expect("an eventfd takes a count");
        thread.map_or(Vec::new(), |thread| thread.join().expect("no panic"))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            let ends = self.stop();
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        }
    }
}

/// The foreign client as a bus of ours.
struct ForeignBus {
    client: Arc<Mutex<Client>>,
    length_bytes: u64,
    signals: Mutex<Vec<OwnedFd>>,
}

impl ForeignBus {
    fn new(client: Client) -> Self {
        let bar = client.region(BAR_0).expect("BAR 0");
        Self {
            length_bytes: bar.size,
            client: Arc::new(Mutex::new(client)),
            signals: Mutex::default(),
        }
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().expect("nobody panics with it")
    }
}

fn failed(error: vfio_user::Error) -> BusError {
    BusError::System {
        operation: "talking to the server",
        source: std::io::Error::other(error),
    }
}

impl Bus for ForeignBus {
    type Registers = ForeignRegisters;

    fn name(&self) -> &str {
        "foreign client"
    }

    fn registers(&self) -> ForeignRegisters {
        ForeignRegisters {
            client: Arc::clone(&self.client),
            length_bytes: self.length_bytes,
        }
    }

    fn map(&self, memory: &DmaMemory) -> Result<(), BusError> {
        let file = memory.file().expect("memory that can be shared");
        let (address, size) = (memory.iova().get(), memory.length_bytes() as u64);
        self.client()
            .dma_map(0, address, size, file.as_raw_fd())
            .map_err(failed)
    }

    fn unmap(&self, memory: &DmaMemory) -> Result<(), BusError> {
        let (address, size) = (memory.iova().get(), memory.length_bytes() as u64);
        self.client().dma_unmap(address, size).map_err(failed)
    }

    fn interrupt_count(&self) -> u16 {
        let info = self.client().get_irq_info(MSIX).expect("an answer");
        u16::try_from(info.count).expect("few")
    }

    fn enable_interrupt(&self, vector: u16) -> Result<RawFd, BusError> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        self.route_interrupt(vector, signal.as_fd())?;
        let descriptor = signal.as_raw_fd();
        self.signals.lock().expect("nobody panics").push(signal);
        Ok(descriptor)
    }

    fn route_interrupt(&self, vector: u16, signal: BorrowedFd<'_>) -> Result<(), BusError> {
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        self.client()
            .set_irqs(MSIX, flags, vector.into(), 1, &[signal.as_raw_fd()])
            .map_err(failed)
    }

    fn reset_function(&self) -> Result<(), BusError> {
        self.client().reset().map_err(failed)
    }

    fn is_present(&self) -> bool {
        true
    }
}

struct ForeignRegisters {
    client: Arc<Mutex<Client>>,
    length_bytes: u64,
}

impl ForeignRegisters {
    fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut bytes = [0; N];
        let mut client = self.client.lock().expect("nobody panics with it");
        client
            .region_read(BAR_0, offset.into(), &mut bytes)
            .expect("an answer");
        bytes
    }

    fn write(&self, offset: u32, bytes: &[u8]) {
        let mut client = self.client.lock().expect("nobody panics with it");
        client
            .region_write(BAR_0, offset.into(), bytes)
            .expect("an answer");
    }
}

impl Registers for ForeignRegisters {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn read_u32(&self, offset: u32) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }

    fn read_u64(&self, offset: u32) -> u64 {
        u64::from_le_bytes(self.read(offset))
    }

    fn write_u32(&self, offset: u32, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    fn write_u64(&self, offset: u32, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }
}

#[test]
fn a_foreign_client_learns_what_there_is() {
    let controller = emulator("lba=4096");
    let own = controller.registers();
    let server = Listening::start(controller, DoorbellTransport::Mapped);
    let mut client = server.connect();
    let bar = client.region(BAR_0).expect("BAR 0");
    assert!(bar.file_offset.is_some(), "the doorbells can be mapped");
    let [area] = bar.sparse_areas.as_slice() else {
        panic!("one area of doorbells: {bar:?}");
    };
    assert_eq!((area.offset, area.offset + area.size), (0x1000, bar.size));
    let mut class = [0; 3];
    client
        .region_read(CONFIGURATION, 9, &mut class)
        .expect("an answer");
    assert_eq!(class, [0x02, 0x08, 0x01]);
    let vectors = client.get_irq_info(MSIX).expect("an answer");
    assert!(vectors.count > 1);
    let mut version = [0; 4];
    client
        .region_read(BAR_0, 8, &mut version)
        .expect("an answer");
    assert_eq!(u32::from_le_bytes(version), own.read_u32(8));
}

#[test]
fn the_driver_works_over_a_foreign_client_and_our_server() {
    for transport in [DoorbellTransport::Mapped, DoorbellTransport::Messages] {
        let server = Listening::start(emulator("lba=4096"), transport);
        let bus = ForeignBus::new(server.connect());
        let mut rig = Rig::between(bus, server);
        let length = 1 << 20;
        let bytes: Vec<u8> = (0..length)
            .map(|at: u32| (at >> 4).to_le_bytes()[0])
            .collect();
        rig.data.copy_from_slice(0, &bytes);
        let source = rig.span(0, length);
        assert_eq!(rig.run(Operation::Write, 5, source).result, Ok(()));
        let target = rig.span(2 << 20, length);
        assert_eq!(rig.run(Operation::Read, 5, target).result, Ok(()));
        assert!(rig.data.equals(2 << 20, &bytes));
        rig.controller.bus().reset_function().expect("reset");
        rig.until(|rig| {
            rig.turn();
            rig.controller.stats().resets_completed == 1
        });
        assert_eq!(rig.run(Operation::Read, 5, source).result, Ok(()));
    }
}

#[test]
fn our_server_fires_the_interrupts_of_a_foreign_client() {
    let server = Listening::start(emulator("lba=4096"), DoorbellTransport::Mapped);
    let bus = ForeignBus::new(server.connect());
    let mut rig = Rig::between(bus, server);
    let own = rig.route();
    rig.read_by_interrupt(&own);
}

const SOCKET: &str = "ours.sock";
const BAR_0: u32 = 0;
const CONFIGURATION: u32 = 7;
const MSIX: u32 = 2;
