//! `lodectl emulate`: an emulated controller for another program, over a vfio-user socket.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use lode_nvme_emu::{EmulatedController, EmulatorSpec, SignalPolicy};
use lode_units::MonotonicClock;
use lode_vfio_user::{DoorbellTransport, ListeningSocket, Server, VfioUserError};
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use crate::cli::{DoorbellChoice, EmulateArguments};
use crate::interrupt::Interrupt;
use crate::output::Output;

#[derive(Serialize)]
struct Served<'a> {
    device: &'a str,
    socket: String,
}

/// Serves until a signal asks to stop. Says so once clients can connect.
pub(crate) fn run(output: &Output, arguments: &EmulateArguments) -> Result<()> {
    let mut spec: EmulatorSpec = arguments.device.parse()?;
    // Every completion is for another process.
    spec.controller.signal_policy = SignalPolicy::Always;
    let controller = EmulatedController::open(&spec)?;
    let clock = MonotonicClock::new();
    let transport = match arguments.doorbells {
        DoorbellChoice::Mapped => DoorbellTransport::Mapped,
        DoorbellChoice::Messages => DoorbellTransport::Messages,
    };
    let mut server = Server::new(controller, transport, clock)?;
    let socket = ListeningSocket::bind(&arguments.socket, clock)?;
    let stop = eventfd(0, EventfdFlags::CLOEXEC).context("cannot make an eventfd")?;
    let heard = stop.try_clone().context("cannot copy an eventfd")?;
    let signals = SignalThread::start(stop)?;
    output.show(
        &Served {
            device: &arguments.device,
            socket: arguments.socket.display().to_string(),
        },
        |served| format!("{} is served at {}", served.device, served.socket),
    )?;
    server.listen(&socket, heard.as_fd(), note)?;
    signals.end()
}

/// A client that broke the protocol is worth a line; one that left is not.
fn note(outcome: Result<(), VfioUserError>) {
    if let Err(error) = outcome {
        let error = anyhow::Error::from(error);
        // When standard error is gone, nobody wants to know.
        let _unsaid = writeln!(std::io::stderr().lock(), "lodectl: a client: {error:#}");
    }
}

/// Waits for a signal while the main thread serves.
struct SignalThread(std::thread::JoinHandle<Result<()>>);

impl SignalThread {
    fn start(stop: OwnedFd) -> Result<Self> {
        let (is_watching, watches) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || wait(&stop, &is_watching))
            .context("cannot start a thread")?;
        // A signal that comes from now on is not lost; when watching failed, the thread has ended.
        match watches.recv() {
            Ok(()) => Ok(Self(thread)),
            Err(_ended) => Err(Self(thread)
                .end()
                .err()
                .unwrap_or_else(|| anyhow!("cannot watch signals"))),
        }
    }

    fn end(self) -> Result<()> {
        self.0
            .join()
            .unwrap_or_else(|_panic| Err(anyhow!("waiting for a signal failed")))
    }
}

fn wait(stop: &OwnedFd, is_watching: &std::sync::mpsc::Sender<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        let interrupt = Interrupt::watch()?;
        // The other end waits for it.
        is_watching.send(()).context("cannot start")?;
        interrupt.arrived().await;
        rustix::io::write(stop, &1_u64.to_ne_bytes()).context("cannot stop")?;
        Ok(())
    })
}
