//! An emulated controller served by a thread, and a driver at the other end of its socket.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use lode_block::{BlockDevice, Completion, Operation, Request, Tag};
use lode_bus::{Bus, DmaMemory, DmaSpan, IovaSpace, PagePreference};
use lode_nvme::{Controller, ControllerOptions, NamespaceQueue, QueueOptions};
use lode_nvme_emu::{EmulatedController, EmulatorSpec, SignalPolicy};
use lode_units::{Clock, Iova, Lba, MonotonicClock};
use lode_vfio_user::{DoorbellTransport, Patience, Server, VfioUserBus, VfioUserError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// How long a test waits before it has failed, on a machine with much else to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// For servers that are honest.
pub(crate) const PATIENT: Patience = Patience {
    setup: Duration::from_secs(30),
    request: Duration::from_secs(30),
};

/// A thread that serves one client; stopped and joined when dropped.
pub(crate) struct Served {
    stop: OwnedFd,
    thread: Option<JoinHandle<Result<(), VfioUserError>>>,
}

impl Served {
    /// Serves `emulator` at the other end of the returned socket.
    pub(crate) fn start(
        emulator: EmulatedController,
        transport: DoorbellTransport,
    ) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let stop = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let heard = stop.try_clone().expect("a descriptor");
        let thread = std::thread::spawn(move || {
            let mut server = Server::new(emulator, transport, MonotonicClock::new())?;
            server.serve(theirs, heard.as_fd())
        });
        let served = Self {
            stop,
            thread: Some(thread),
        };
        (served, ours)
    }

    /// Waits until the client has left.
    pub(crate) fn outcome(mut self) -> Result<(), VfioUserError> {
        let thread = self.thread.take().expect("not joined yet");
        thread.join().expect("the server does not panic")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).expect("an eventfd takes a count");
        let ended = thread.join();
        if !std::thread::panicking() {
            assert!(ended.is_ok(), "the server does not panic");
        }
    }
}

/// An emulated controller in memory, as a configuration names it.
pub(crate) fn emulator(options: &str) -> EmulatedController {
    let text = format!("memory:64MiB?{options}");
    let mut spec: EmulatorSpec = text.parse().expect("a controller");
    spec.controller.signal_policy = SignalPolicy::Always;
    EmulatedController::open(&spec).expect("memory")
}

/// A driver that is ready, with one queue; `B` is its end of the socket, `S` the other one.
pub(crate) struct Rig<B: Bus = VfioUserBus, S = Served> {
    pub(crate) controller: Controller<B>,
    pub(crate) queue: NamespaceQueue<B>,
    pub(crate) data: DmaMemory,
    pub(crate) space: IovaSpace,
    pub(crate) clock: MonotonicClock,
    // Last: the driver lets go first.
    pub(crate) served: S,
}

impl Rig {
    pub(crate) fn new(options: &str, transport: DoorbellTransport) -> Self {
        Self::over(emulator(options), transport)
    }

    pub(crate) fn over(emulator: EmulatedController, transport: DoorbellTransport) -> Self {
        let (served, socket) = Served::start(emulator, transport);
        let name = "vfio-user:test".to_owned();
        let bus = VfioUserBus::attach(name, socket, PATIENT, MonotonicClock::new())
            .expect("an honest server");
        Self::between(bus, served)
    }
}

impl<B: Bus, S> Rig<B, S> {
    /// A driver on `bus`, which reaches what `served` serves.
    pub(crate) fn between(bus: B, served: S) -> Self {
        let clock = MonotonicClock::new();
        let space = IovaSpace::new();
        let mut controller =
            Controller::new(bus, ControllerOptions::default(), &space).expect("memory");
        controller.bring_up(&clock).expect("it comes up");
        let data = space
            .allocate(DATA_BYTES, PagePreference::Ordinary)
            .expect("memory");
        controller.map_memory(&data).expect("mapped");
        let namespace = controller.namespaces()[0].id;
        let queue = controller
            .open_queue(namespace, QueueOptions::default(), &space)
            .expect("a queue");
        controller.settle(&clock).expect("the queue is made");
        Self {
            controller,
            queue,
            data,
            space,
            clock,
            served,
        }
    }

    /// A piece of the data memory.
    pub(crate) fn span(&self, offset: u32, length_bytes: u32) -> DmaSpan {
        DmaSpan {
            iova: Iova::new(self.data.iova().get() + u64::from(offset)),
            length_bytes,
        }
    }

    pub(crate) fn submit(&mut self, operation: Operation, tag: u64, lba: u64, data: DmaSpan) {
        let block_bytes = self.queue.geometry().block_size.bytes();
        let request = Request {
            tag: Tag(tag),
            operation,
            lba: Lba::new(lba),
            block_count: data.length_bytes / block_bytes,
            data,
        };
        self.queue.submit(request).expect("accepted");
        self.queue.kick();
    }

    /// Polls once.
    pub(crate) fn turn(&mut self) -> Vec<Completion> {
        let mut completions = Vec::with_capacity(64);
        let now = self.clock.now();
        self.controller.poll(now);
        self.queue.kick();
        self.queue.poll(now, &mut completions);
        completions
    }

    /// Polls until nothing is in flight.
    #[track_caller]
    pub(crate) fn drain(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        self.until(|rig| {
            all.extend(rig.turn());
            rig.queue.in_flight() == 0
        });
        all
    }

    /// Looks until `is_done`, for [`LIMIT`] at most.
    #[track_caller]
    pub(crate) fn until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        let end = self.clock.now() + LIMIT;
        while !is_done(self) {
            assert!(self.clock.now() < end, "no end: {:?}", self.controller);
            std::thread::yield_now();
        }
    }

    /// Runs one request to its end.
    #[track_caller]
    pub(crate) fn run(&mut self, operation: Operation, lba: u64, data: DmaSpan) -> Completion {
        self.submit(operation, 1, lba, data);
        let completions = self.drain();
        assert_eq!(completions.len(), 1, "{completions:?}");
        completions[0]
    }

    /// A signal of our own, which vector 2 fires from now on.
    pub(crate) fn route(&self) -> OwnedFd {
        let own = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let bus = self.controller.bus();
        bus.route_interrupt(2, own.as_fd()).expect("routed");
        own
    }

    /// Reads through a queue whose vector fires `own`, and waits for that alone.
    #[track_caller]
    pub(crate) fn read_by_interrupt(&mut self, own: &OwnedFd) {
        let options = QueueOptions {
            interrupt_vector: Some(2),
            ..Default::default()
        };
        let namespace = self.controller.namespaces()[0].id;
        self.queue = self
            .controller
            .open_queue(namespace, options, &self.space)
            .expect("a queue");
        self.controller.settle(&self.clock).expect("made");
        self.until(|rig| {
            rig.turn();
            rig.queue.is_live()
        });
        self.submit(Operation::Read, 1, 0, self.span(0, 4096));
        let limit = Timespec {
            tv_sec: i64::try_from(LIMIT.as_secs()).expect("short"),
            tv_nsec: 0,
        };
        let mut wanted = [PollFd::new(own, PollFlags::IN)];
        let fired = poll(&mut wanted, Some(&limit)).expect("polled");
        assert_eq!(
            fired, 1,
            "the interrupt fires without any poll of the queue"
        );
        assert_eq!(self.drain().len(), 1);
    }

    pub(crate) fn is_present(&self) -> bool {
        self.controller.bus().is_present()
    }
}

pub(crate) const DATA_BYTES: usize = 4 << 20;
