//! One running guest: started, listened to, ended.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::guests::Plan;
use super::kit::Kit;
use super::monitor::Monitor;
use super::qemu;

/// Where a guest's words go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voice {
    /// Outcomes and remarks.
    pub(super) tell: fn(&str),
    /// A figure: its name, then `key=value` pairs.
    pub(super) figure: fn(&str),
}

/// How one scenario ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) scenario: String,
    guest: &'static str,
    seconds: f64,
    /// What it found, or why it failed.
    result: Result<String, String>,
}

impl Outcome {
    pub(super) const fn is_pass(&self) -> bool {
        self.result.is_ok()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, text) = match &self.result {
            Ok(finding) => ("ok", finding),
            Err(reason) => ("FAILED", reason),
        };
        let name = format!("{}/{}", self.guest, self.scenario);
        write!(
            formatter,
            "{word:6} {name:32} {:6.1} s  {text}",
            self.seconds
        )
    }
}

/// What came of a guest.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) outcomes: Vec<Outcome>,
    /// What is left to run because the emulator failed.
    pub(super) unfinished: Option<Plan>,
}

/// A guest that runs. Dropping it ends it and removes its files.
#[derive(Debug)]
pub(super) struct Machine {
    plan: Plan,
    process: Child,
    directory: PathBuf,
    line: BufReader<UnixStream>,
    to_guest: UnixStream,
    monitor: Monitor,
    voice: Voice,
    /// Whether the other end of a socket is gone.
    is_line_closed: bool,
    /// Whether a timer of the guest stands still.
    is_clock_stopped: bool,
}

impl Machine {
    /// Starts the guest of `plan` with `image` as its initial file system.
    ///
    /// # Errors
    /// When QEMU does not start or its sockets do not appear.
    pub(super) fn start(plan: Plan, kit: &Kit, image: &Path, voice: Voice) -> Result<Self> {
        let directory = directory_of(plan.guest.name)?;
        let process = qemu::command(&plan, kit, image, &directory)?
            .spawn()
            .context("starting QEMU")?;
        let mut process = Ending(Some((process, directory.clone())));
        let monitor = process.connect(&directory.join(qemu::MONITOR))?;
        monitor.set_read_timeout(Some(SILENCE_LIMIT))?;
        let line = process.connect(&directory.join(qemu::LINE))?;
        line.set_read_timeout(Some(LISTENING_STEP))?;
        let monitor = Monitor::new(monitor).with_context(|| last_words(&directory))?;
        let (process, directory) = process.0.take().context("a running guest")?;
        Ok(Self {
            plan,
            process,
            directory,
            to_guest: line.try_clone()?,
            line: BufReader::new(line),
            monitor,
            voice,
            is_line_closed: false,
            is_clock_stopped: false,
        })
    }

    /// Listens until the guest has run everything; shows each outcome at once. A guest that dies
    /// or falls silent fails the scenario that it was in and those after it, unless it was the
    /// emulator that crashed or lost a timer: then they are left for another start.
    pub(super) fn run(mut self) -> Report {
        let mut outcomes = Vec::new();
        let mut since = now();
        let conversed = self.converse(&mut outcomes, &mut since);
        let rest: Vec<_> = self.plan.scenarios.split_off(outcomes.len());
        let reason = match conversed {
            Ok(()) => "the guest ended early".to_owned(),
            Err(error) => format!("{error:#}{}", last_words(&self.directory)),
        };
        if let Some(failure) = self.failure_of_emulator() {
            let guest = self.plan.guest;
            (self.voice.tell)(&format!(
                "       guest {}: QEMU itself {failure}: {reason}",
                guest.name
            ));
            let scenarios = rest;
            return Report {
                outcomes,
                unfinished: Some(Plan {
                    guest,
                    scenarios,
                    emulation: self.plan.emulation,
                }),
            };
        }
        for scenario in rest {
            let text = format!("{scenario} {reason}");
            outcomes.push(self.told(self.outcome(&text, since, Err)));
        }
        // A machine that cannot quit any more is ended by force.
        if self.monitor.quit().is_err() {
            let name = self.plan.guest.name;
            (self.voice.tell)(&format!("       guest {name} had to be killed"));
        }
        Report {
            outcomes,
            unfinished: None,
        }
    }

    /// Listens and answers until the guest says that it has run everything.
    fn converse(&mut self, outcomes: &mut Vec<Outcome>, since: &mut Instant) -> Result<()> {
        let started = now();
        loop {
            let words = self.listen(started)?;
            match words.split_once(' ').unwrap_or((words.as_str(), "")) {
                ("start", _) => *since = now(),
                ("note", text) => (self.voice.tell)(&format!("       {text}")),
                ("figure", text) => (self.voice.figure)(text),
                ("monitor", command) => self.answer(command)?,
                ("pass", text) => outcomes.push(self.told(self.outcome(text, *since, Ok))),
                ("fail", text) => {
                    // A deadline may have passed because nothing else did.
                    self.check_clock()?;
                    outcomes.push(self.told(self.outcome(text, *since, Err)));
                }
                ("end", _) => return Ok(()),
                _ => bail!("the guest says {words:?}"),
            }
        }
    }

    /// What the emulator did wrong, if it was the emulator.
    fn failure_of_emulator(&mut self) -> Option<String> {
        if self.is_clock_stopped {
            return Some("lost a timer".to_owned());
        }
        let signal = self.crash()?;
        Some(format!("crashed (signal {signal})"))
    }

    /// The signal that ended QEMU, when it has ended by one. A guest's panic ends it in order.
    fn crash(&mut self) -> Option<i32> {
        if !self.is_line_closed {
            return None;
        }
        // Its sockets close a moment before it can be waited for.
        let deadline = now() + CRASH_LIMIT;
        while now() < deadline {
            if let Ok(Some(status)) = self.process.try_wait() {
                return status.signal();
            }
            pause();
        }
        None
    }

    /// The guest's next words, within its time.
    fn listen(&mut self, started: Instant) -> Result<String> {
        let since = now();
        let mut words = String::new();
        loop {
            if started.elapsed() > GUEST_LIMIT {
                bail!("the guest took longer than {} s", GUEST_LIMIT.as_secs());
            }
            match self.line.read_line(&mut words) {
                Ok(0) => {
                    self.is_line_closed = true;
                    bail!("the guest died");
                }
                Ok(_) => return Ok(words.trim_end().to_owned()),
                // What has come of a line so far stays in `words`.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("listening to the guest"),
            }
            self.check_clock()?;
            if since.elapsed() > SILENCE_LIMIT {
                bail!("silent for {} s", SILENCE_LIMIT.as_secs());
            }
        }
    }

    /// An error when a timer of the guest stands still.
    fn check_clock(&mut self) -> Result<()> {
        self.is_clock_stopped = misses_a_timer(&console(&self.directory));
        ensure!(!self.is_clock_stopped, "its kernel misses a timer");
        Ok(())
    }

    fn answer(&mut self, command: &str) -> Result<()> {
        let answer = self.monitor.run(command);
        self.is_line_closed = answer.is_err();
        let answer = answer?;
        writeln!(self.to_guest, "answer {answer}").context("answering the guest")
    }

    fn outcome(
        &self,
        text: &str,
        since: Instant,
        result: impl Fn(String) -> Result<String, String>,
    ) -> Outcome {
        let (scenario, text) = text.split_once(' ').unwrap_or((text, ""));
        Outcome {
            scenario: scenario.to_owned(),
            guest: self.plan.guest.name,
            seconds: since.elapsed().as_secs_f64(),
            result: result(text.to_owned()),
        }
    }

    /// Shows an outcome as soon as it is there.
    fn told(&self, outcome: Outcome) -> Outcome {
        (self.voice.tell)(&outcome.to_string());
        outcome
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.process, &self.directory);
    }
}

/// A guest that is only being started; ended on the way out unless it was taken.
struct Ending(Option<(Child, PathBuf)>);

impl Ending {
    /// Connects to a socket that QEMU is about to make.
    fn connect(&mut self, path: &Path) -> Result<UnixStream> {
        let deadline = now() + START_LIMIT;
        loop {
            if let Ok(stream) = UnixStream::connect(path) {
                return Ok(stream);
            }
            let (process, directory) = self.0.as_mut().context("a running guest")?;
            if let Some(status) = process.try_wait()? {
                bail!("QEMU ended: {status}\n{}", console(directory));
            }
            if now() > deadline {
                bail!("QEMU made no {}", path.display());
            }
            pause();
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some((process, directory)) = &mut self.0 {
            end(process, directory);
        }
    }
}

/// Ends QEMU, waits for it, removes its files. Errors would mean that it is gone already.
fn end(process: &mut Child, directory: &Path) {
    let killed = process.kill().is_ok();
    let waited = process.wait().is_ok();
    let removed = fs::remove_dir_all(directory).is_ok();
    if !(killed && waited && removed) {
        eprintln!("vm-test: could not clean up after process {}", process.id());
    }
}

/// What the guest's kernel and QEMU have said.
fn console(directory: &Path) -> String {
    let bytes = fs::read(directory.join(qemu::CONSOLE)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the kernel says that a timer that it had set did not fire. An emulated processor loses
/// one now and then, and then idles for ever with everything that waits for its time. No program in
/// the guest can bring that about: one that hangs leaves the timers alone.
fn misses_a_timer(console: &str) -> bool {
    console.contains("timer wakeup didn't happen for")
}

/// The end of the console: where a panic would be, and QEMU's own complaints.
fn last_words(directory: &Path) -> String {
    let text = console(directory);
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let first = lines.len().saturating_sub(LAST_WORDS_LINES);
    lines
        .get(first..)
        .unwrap_or_default()
        .iter()
        .fold(String::new(), |mut all, line| {
            all.push_str("\n         ");
            all.push_str(line);
            all
        })
}

/// A folder for the guest's sockets and disks. Short: a socket's path has 108 bytes.
fn directory_of(guest: &str) -> Result<PathBuf> {
    let name = format!("lode-vm-{}-{guest}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir(&directory).with_context(|| format!("{}", directory.display()))?;
    Ok(directory)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a limit on another program's time"
)]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a socket appears without an event; the loop around it has a deadline"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

const START_LIMIT: Duration = Duration::from_secs(30);
/// The longest scenario says nothing in between; the machine may be shared and slow.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);
/// How often a silent guest's console is looked at.
const LISTENING_STEP: Duration = Duration::from_secs(5);
const GUEST_LIMIT: Duration = Duration::from_secs(600);
/// A core dump of a gibibyte takes its time.
const CRASH_LIMIT: Duration = Duration::from_secs(20);
const LAST_WORDS_LINES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_timer_is_told_from_a_stall_that_a_program_can_cause() {
        let lost = "rcu: rcu_preempt kthread timer wakeup didn't happen for 5251 jiffies! g449";
        assert!(misses_a_timer(lost));
        let busy = "rcu: INFO: rcu_preempt self-detected stall on CPU\n\
                    INFO: task lodestored:93 blocked for more than 120 seconds.";
        assert!(!misses_a_timer(busy));
    }
}
