//! Instructions of the engine for each request over a null device. Hardware counters are not to
//! be had on every machine: this program runs itself under valgrind, which counts them one by one,
//! with two numbers of requests, and divides the difference.

use std::io::{self, Write};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, anyhow, ensure};
use lode_engine::DataOperation;

use crate::engine::{SPAN_BYTES, mapped_volume};
use crate::load::Loop;
use crate::report::{Report, figure};

/// 4 KiB random reads and overwrites at queue depths 1 and 128.
pub(crate) fn run(report: &Report) -> anyhow::Result<()> {
    report.note("instructions of the engine over a null device, counted by valgrind")?;
    if !is_valgrind_there() {
        let missing = "instructions are NOT measured: valgrind cannot be started (Debian: apt-get \
                       install valgrind)";
        return Ok(writeln!(io::stderr().lock(), "{missing}")?);
    }
    for (name, operation) in [
        ("read", DataOperation::Read),
        ("write", DataOperation::Write),
    ] {
        for depth in [1, 128] {
            let count = |operations| {
                Counted {
                    operation,
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
                &format!("instructions.{name}.qd{depth}"),
                &[figure("instructions_per_io", per(each, MANY - FEW))],
            )?;
        }
    }
    Ok(())
}

/// One closed loop of the engine, the whole work of a process that is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    operation: DataOperation,
    depth: usize,
    operations: u64,
}

impl Counted {
    /// Runs the loop.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (mut load, _pool, volume) = mapped_volume(|_| {})?;
        load.run(&Loop {
            volume,
            operation: self.operation,
            block_bytes: 4096,
            span_bytes: SPAN_BYTES,
            depth: self.depth,
            operations: self.operations,
        })?;
        Ok(())
    }

    /// Runs the loop in a process under valgrind; returns all instructions of that process.
    fn count(self) -> anyhow::Result<u64> {
        let operation = match self.operation {
            DataOperation::Read => "read",
            _ => "write",
        };
        let loop_of = format!("{operation}:{}:{}", self.depth, self.operations);
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe()?)
            .args(["--counted", &loop_of])
            .output()
            .context("starting valgrind")?;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "valgrind has failed: {told}");
        instructions_of(&told).with_context(|| format!("valgrind tells no count: {told}"))
    }
}

impl FromStr for Counted {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut fields = text.split(':');
        let mut field = || fields.next().ok_or_else(|| anyhow!("a field is missing"));
        let operation = match field()? {
            "read" => DataOperation::Read,
            "write" => DataOperation::Write,
            other => return Err(anyhow!("no operation {other:?}")),
        };
        Ok(Self {
            operation,
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
    fn a_loop_is_named_by_operation_depth_and_count() {
        let counted: Counted = "write:128:5".parse().expect("a loop");
        assert_eq!(counted.operation, DataOperation::Write);
        assert_eq!((counted.depth, counted.operations), (128, 5));
        for wrong in ["", "read", "read:1", "flush:1:1", "read:x:1"] {
            assert!(wrong.parse::<Counted>().is_err(), "{wrong:?}");
        }
    }
}
