//! Instructions for each request: of the engine over a null device, and of the driver alone.
//! Hardware counters are not to be had on every machine: this program runs itself under valgrind,
//! which counts them one by one, with two numbers of requests, and divides the difference.

use std::io::{self, Write};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, anyhow, ensure};
use lode_block::{Durability, Operation};
use lode_bus::IovaSpace;
use lode_engine::DataOperation;
use lode_units::MonotonicClock;

use crate::apart::{Apart, LEFT_OUT};
use crate::engine::{SPAN_BYTES, mapped_volume};
use crate::load::Loop;
use crate::raw::{Raw, RawLoop, controller_in_memory};
use crate::report::{Report, figure};

/// 4 KiB random reads and overwrites: the driver at queue depths 1 and 32, the engine at 1 and 128.
pub(crate) fn run(report: &Report) -> anyhow::Result<()> {
    report.note(
        "instructions, counted by valgrind, with those of the loop that drives it: the driver \
         without its device, the engine over a null device",
    )?;
    if !is_valgrind_there() {
        let missing = "instructions are NOT measured: valgrind cannot be started (Debian: apt-get \
                       install valgrind)";
        return Ok(writeln!(io::stderr().lock(), "{missing}")?);
    }
    for subject in [Subject::Driver, Subject::Engine] {
        for direction in [Direction::Read, Direction::Write] {
            for depth in subject.depths() {
                let count = |operations| {
                    Counted {
                        subject,
                        direction,
                        depth,
                        operations,
                    }
                    .count()
                };
                let (few, many) = (count(FEW)?, count(MANY)?);
                let each = many
                    .checked_sub(few)
                    .context("more requests took fewer instructions")?;
                report.line(
                    &format!("instructions.{}.qd{depth}", subject.figure(direction)),
                    &[figure("instructions_per_io", per(each, MANY - FEW))],
                )?;
            }
        }
    }
    Ok(())
}

/// One closed loop, the whole work of a process that is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    subject: Subject,
    direction: Direction,
    depth: usize,
    operations: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// The driver's queue pair; what the emulated controller does is left out.
    Driver,
    /// The engine over a null device.
    Engine,
}

/// Which way the data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Subject {
    const fn depths(self) -> [usize; 2] {
        match self {
            Self::Driver => [1, 32],
            Self::Engine => [1, 128],
        }
    }

    const fn figure(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Driver, Direction::Read) => "driver.read",
            (Self::Driver, Direction::Write) => "driver.write",
            (Self::Engine, Direction::Read) => "read",
            (Self::Engine, Direction::Write) => "write",
        }
    }
}

impl Counted {
    /// Runs the loop.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.subject {
            Subject::Driver => self.run_driver(),
            Subject::Engine => self.run_engine(),
        }
    }

    fn run_driver(self) -> anyhow::Result<()> {
        let bus = Apart(controller_in_memory()?);
        let mut raw = Raw::new(bus, &IovaSpace::new(), MonotonicClock::new())?;
        raw.run(RawLoop {
            operation: match self.direction {
                Direction::Read => Operation::Read,
                Direction::Write => Operation::Write,
            },
            depth: self.depth,
            operations: self.operations,
        })?;
        Ok(())
    }

    fn run_engine(self) -> anyhow::Result<()> {
        let (mut load, _pool, volume) = mapped_volume(|_| {})?;
        load.run(&Loop {
            volume,
            operation: match self.direction {
                Direction::Read => DataOperation::Read,
                Direction::Write => DataOperation::Write,
            },
            durability: Durability::None,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: self.depth,
            operations: self.operations,
        })?;
        Ok(())
    }

    /// Runs the loop in a process under valgrind; returns all instructions of that process, but
    /// for those of a device that is left out.
    fn count(self) -> anyhow::Result<u64> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        if self.subject == Subject::Driver {
            // Naming a function alone would count nothing but that function.
            valgrind
                .arg(format!("--toggle-collect={LEFT_OUT}"))
                .arg("--collect-atstart=yes");
        }
        let output = valgrind
            .arg(std::env::current_exe()?)
            .args(["--counted", &self.name()])
            .output()
            .context("starting valgrind")?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "valgrind has failed: {told}");
        instructions_of(&told).with_context(|| format!("valgrind tells no count: {told}"))
    }

    /// What [`Counted::from_str`] reads.
    fn name(self) -> String {
        let subject = match self.subject {
            Subject::Driver => "driver",
            Subject::Engine => "engine",
        };
        let direction = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        format!("{subject}:{direction}:{}:{}", self.depth, self.operations)
    }
}

impl FromStr for Counted {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.split(':');
        let mut field = || fields.next().ok_or_else(|| anyhow!("a field is missing"));
        let subject = match field()? {
            "driver" => Subject::Driver,
            "engine" => Subject::Engine,
            other => return Err(anyhow!("no subject {other:?}")),
        };
        let direction = match field()? {
            "read" => Direction::Read,
            "write" => Direction::Write,
            other => return Err(anyhow!("no operation {other:?}")),
        };
        Ok(Self {
            subject,
            direction,
            depth: field()?.parse()?,
            operations: field()?.parse()?,
        })
    }
}

fn is_valgrind_there() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// The count in callgrind's closing words: `==1== Collected : 123`.
fn instructions_of(told: &str) -> Option<u64> {
    let line = told.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "a mean: 53 bits are plenty")]
fn per(count: u64, operations: u64) -> f64 {
    count as f64 / operations as f64
}

const FEW: u64 = 20_000;
const MANY: u64 = 120_000;
const _: () = assert!(FEW < MANY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_found_among_what_valgrind_says() {
        let told = "==7== Events    : Ir\n==7== Collected : 4215\n==7==\n";
        assert_eq!(instructions_of(told), Some(4215));
        assert_eq!(instructions_of("==7== Events : Ir\n"), None);
    }

    #[test]
    fn a_loop_comes_back_from_its_name() {
        for name in ["engine:write:128:5", "driver:read:1:20000"] {
            let counted: Counted = name.parse().expect("a loop");
            assert_eq!(counted.name(), name);
        }
        for wrong in [
            "",
            "engine:read",
            "engine:read:1",
            "driver:flush:1:1",
            "engine:read:x:1",
            "x:read:1:1",
        ] {
            assert!(wrong.parse::<Counted>().is_err(), "{wrong:?}");
        }
    }
}
