//! A core: one pinned thread with a runtime, the host, its poller and its mailbox.

use std::cell::RefCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, mpsc as channel};
use std::time::Duration;

use lode_block::BufferPool;
use lode_units::{Clock, CoreId};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::{mpsc, watch};

use crate::exit::{CoreExit, panic_message};
use crate::gateway::Desk;
use crate::handle::CoreHandle;
use crate::hosted::Hosted;
use crate::mailbox::{self, Job, MAILBOX_JOBS_MAX};
use crate::options::CoreOptions;
use crate::poller::{Hosting, Poller};
use crate::signal::Signal;
use crate::stats::CoreStats;

/// Starts cores.
#[derive(Clone, Copy, Debug)]
pub struct Core;

/// What the build function of a core is told.
#[derive(Clone, Debug)]
pub struct CoreContext {
    /// The core's options.
    pub options: CoreOptions,
    /// Where interrupts can be routed, and whom another thread notifies.
    pub signal: Arc<Signal>,
    /// The core's account.
    pub stats: Arc<CoreStats>,
}

/// What the build function of a core makes.
#[derive(Debug)]
pub struct Built<H> {
    /// The host.
    pub hosted: H,
    /// The buffers of the core, mapped for every device that the host uses.
    pub buffers: BufferPool,
}

/// An error of the build function.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// Why a core did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The thread, its processor or its runtime could not be had.
    #[error("core {core}: {operation} failed")]
    System {
        /// Which.
        core: CoreId,
        /// What was tried.
        operation: &'static str,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// The build function failed.
    #[error("core {core}: the shard could not be built")]
    Build {
        /// Which.
        core: CoreId,
        /// Its error.
        #[source]
        source: BuildError,
    },
    /// The build function panicked.
    #[error("core {core}: building the shard panicked: {message}")]
    Panicked {
        /// Which.
        core: CoreId,
        /// The panic's message.
        message: String,
    },
}

impl Core {
    /// Starts a core and builds its host there. Blocks until it is built.
    ///
    /// # Errors
    /// See [`SpawnError`].
    pub fn spawn<H: Hosted>(
        options: CoreOptions,
        build: impl FnOnce(&CoreContext) -> Result<Built<H>, BuildError> + Send + 'static,
    ) -> Result<CoreHandle<H>, SpawnError> {
        let core = options.core;
        let system = |operation| {
            move |source| SpawnError::System {
                core,
                operation,
                source,
            }
        };
        let context = CoreContext {
            options,
            signal: Arc::new(Signal::new().map_err(system("making an eventfd"))?),
            stats: Arc::new(CoreStats::default()),
        };
        let (jobs, receiver) = mpsc::channel(MAILBOX_JOBS_MAX);
        let (exit_sender, exit) = watch::channel(None);
        let (started_sender, started) = channel::sync_channel(1);
        let handle = CoreHandle {
            core,
            jobs,
            exit,
            stats: Arc::clone(&context.stats),
            signal: Arc::clone(&context.signal),
            connections: Arc::default(),
        };
        std::thread::Builder::new()
            .name(format!("lode-core-{core}"))
            .spawn(move || {
                let thread = Thread {
                    context,
                    started: started_sender,
                };
                let ended = catch_unwind(AssertUnwindSafe(|| thread.run(build, receiver)));
                Desk::close();
                let exit = ended.unwrap_or_else(|payload| CoreExit::Panicked {
                    message: panic_message(&*payload),
                });
                exit_sender.send_replace(Some(exit));
            })
            .map_err(system("starting a thread"))?;
        match started.recv() {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error),
            Err(channel::RecvError) => Err(SpawnError::Panicked {
                core,
                message: message_of_exit(&handle),
            }),
        }
    }
}

/// The message with which a thread that never started ended.
fn message_of_exit<H>(handle: &CoreHandle<H>) -> String {
    let mut exit = handle.exit.clone();
    let runtime = Builder::new_current_thread().build();
    let ended = runtime.map(|runtime| {
        let waited = runtime.block_on(exit.wait_for(Option::is_some));
        waited.map(|exit| exit.clone())
    });
    match ended {
        Ok(Ok(Some(CoreExit::Panicked { message }))) => message,
        Ok(Ok(_) | Err(_)) | Err(_) => "the thread ended".to_owned(),
    }
}

/// What runs on the core's thread.
struct Thread {
    context: CoreContext,
    started: channel::SyncSender<Result<(), SpawnError>>,
}

impl Thread {
    fn run<H: Hosted>(
        self,
        build: impl FnOnce(&CoreContext) -> Result<Built<H>, BuildError>,
        jobs: mpsc::Receiver<Job<H>>,
    ) -> CoreExit {
        match self.start(build) {
            Ok((runtime, hosting)) => {
                // Whoever started the core waits for this; it cannot have gone.
                let _told = self.started.send(Ok(()));
                let exit = runtime.block_on(serve(&self.context, &hosting, jobs));
                // Tasks hold buffers and give them back to the gateway, which ends after them.
                drop(runtime);
                exit
            }
            Err(error) => {
                let _told = self.started.send(Err(error));
                CoreExit::Stopped
            }
        }
    }

    fn start<H: Hosted>(
        &self,
        build: impl FnOnce(&CoreContext) -> Result<Built<H>, BuildError>,
    ) -> Result<(LocalRuntime, Rc<Hosting<H>>), SpawnError> {
        let options = self.context.options;
        let core = options.core;
        let system = |operation| {
            move |source| SpawnError::System {
                core,
                operation,
                source,
            }
        };
        if let Some(cpu) = options.cpu {
            pin_to(cpu).map_err(system("pinning the thread to its processor"))?;
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .event_interval(options.event_interval)
            .build_local(LocalOptions::default())
            .map_err(system("making the runtime"))?;
        let built = build(&self.context).map_err(|source| SpawnError::Build { core, source })?;
        let stats = Arc::clone(&self.context.stats);
        let hosting = Hosting {
            hosted: RefCell::new(built.hosted),
            desk: Desk::open(core, options.clock, built.buffers, stats),
        };
        Ok((runtime, Rc::new(hosting)))
    }
}

fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs poller and mailbox; they are tasks, since the root future pays an eventfd write per wake.
async fn serve<H: Hosted>(
    context: &CoreContext,
    hosting: &Rc<Hosting<H>>,
    jobs: mpsc::Receiver<Job<H>>,
) -> CoreExit {
    let stats = Arc::clone(&context.stats);
    let poller = Poller::new(
        Rc::clone(hosting),
        context.options,
        Arc::clone(&stats),
        Arc::clone(&context.signal),
    )
    .expect("the signal's descriptor can be registered with a fresh runtime");
    let mut poller = tokio::task::spawn_local(poller.run());
    let mailbox = mailbox::run(jobs, Rc::clone(hosting), stats);
    let ending = {
        let hosting = Rc::clone(hosting);
        let clock = context.options.clock;
        tokio::task::spawn_local(async move {
            let grace = mailbox.await;
            drain(&hosting, &clock, grace).await
        })
    };
    let ended = tokio::select! {
        ended = &mut poller => ended.map(|()| CoreExit::Stopped),
        ended = ending => ended,
    };
    poller.abort();
    match ended {
        Ok(exit) => exit,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => resume_unwind(payload),
            Err(_) => CoreExit::Stopped,
        },
    }
}

/// Lets what is under way end, for `grace` at most.
async fn drain<H: Hosted>(hosting: &Hosting<H>, clock: &impl Clock, grace: Duration) -> CoreExit {
    hosting.desk.stop();
    let deadline = clock.now() + grace;
    let mut quiet_passes = 0;
    loop {
        let requests = hosting.desk.requests();
        let in_flight = hosting.hosted.borrow().in_flight();
        let is_quiet = requests == 0 && in_flight == 0;
        quiet_passes = if is_quiet { quiet_passes + 1 } else { 0 };
        if quiet_passes > QUIET_PASSES {
            return CoreExit::Stopped;
        }
        if !is_quiet && clock.now() >= deadline {
            return CoreExit::GraceOver {
                requests,
                in_flight,
            };
        }
        tokio::task::yield_now().await;
    }
}

/// How many passes of the runtime the tasks get to send the last answers.
const QUIET_PASSES: u32 = 32;
