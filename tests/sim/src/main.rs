//! `lode-sim --seeds A..B`: plays a range of seeds and shows the history of the first that finds
//! something.

#![expect(
    clippy::print_stdout,
    reason = "a developer's command talks to the terminal"
)]

use std::ops::Range;

use anyhow::{Context, Result, bail};
use clap::Parser;
use lode_sim::{Defect, Tally};

#[derive(Debug, Parser)]
#[command(
    name = "lode-sim",
    about = "Deterministic simulation of the shipped stack"
)]
struct Arguments {
    /// The seeds to play, for example 0..1000; a single number plays that one.
    #[arg(long, value_parser = seeds)]
    seeds: Range<u64>,
}

fn seeds(text: &str) -> Result<Range<u64>> {
    let number = |text: &str| text.parse::<u64>().context("a seed is a number");
    match text.split_once("..") {
        Some((first, end)) => Ok(number(first)?..number(end)?),
        None => number(text).map(|seed| seed..seed + 1),
    }
}

fn main() -> Result<()> {
    let seeds = Arguments::parse().seeds;
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        match lode_sim::run(seed, Defect::None) {
            Ok(report) => sum = sum.and(&report.tally),
            Err(finding) => {
                for line in &finding.history {
                    println!("{line}");
                }
                println!("replay: cargo xtask sim --seeds {seed}");
                bail!("seed {seed}: {}", finding.what);
            }
        }
    }
    println!(
        "sim: {} seeds, {sum:?}",
        seeds.end.saturating_sub(seeds.start)
    );
    Ok(())
}
