//! How many cores the daemon has, and on which processors they run.

use std::fmt;
use std::str::FromStr;

use lode_units::limits::CORES_MAX;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// The cores: a number of them, or the processor of each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Cores {
    /// So many, left to the system's scheduler.
    Count(usize),
    /// One pinned to each of these processors.
    Processors(Vec<usize>),
}

impl Default for Cores {
    /// One. A core serves hundreds of thousands of requests a second, and each takes its own
    /// buffers, queue pairs and, under load, a whole processor: a second one is the operator's
    /// choice.
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Cores {
    /// The processor of each core; `None` where the scheduler chooses.
    pub(crate) fn processors(&self) -> Vec<Option<usize>> {
        match self {
            Self::Count(count) => vec![None; *count],
            Self::Processors(list) => list.iter().copied().map(Some).collect(),
        }
    }

    /// What is wrong with them on a machine where the daemon may use these processors.
    pub(super) fn problem(&self, available: &[usize]) -> Option<String> {
        let count = self.processors().len();
        if !(1..=CORES_MAX).contains(&count) {
            return Some(format!("{count} cores; there are 1 to {CORES_MAX}"));
        }
        if count > available.len() {
            let available = available.len();
            return Some(format!(
                "{count} cores, and {available} processors for this process"
            ));
        }
        let Self::Processors(list) = self else {
            return None;
        };
        for (position, processor) in list.iter().enumerate() {
            if list[..position].contains(processor) {
                return Some(format!("processor {processor} is named twice"));
            }
            if !available.contains(processor) {
                return Some(format!(
                    "processor {processor} is not one that this process may use; those are {}",
                    listed(available)
                ));
            }
        }
        None
    }
}

/// The processors that this process may use.
pub(super) fn available_processors() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect(),
        // A machine with more processors than the set has bits for: the start tells.
        Err(_) => (0..CpuSet::MAX_CPU).collect(),
    }
}

impl FromStr for Cores {
    type Err = String;

    /// `2` is a number of cores; `0,1` and `4-7` are processors, `3-3` a single one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(count) = text.trim().parse() {
            return Ok(Self::Count(count));
        }
        let mut list = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok();
            let range = number(first).zip(number(last));
            let (first, last) = range
                .filter(|(first, last)| first <= last && last - first < CORES_MAX)
                .ok_or_else(|| format!("{part:?}: {SYNTAX}"))?;
            list.extend(first..=last);
        }
        Ok(Self::Processors(list))
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(formatter),
            Self::Processors(list) => formatter.write_str(&listed(list)),
        }
    }
}

fn listed(processors: &[usize]) -> String {
    let numbers: Vec<_> = processors.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

const SYNTAX: &str = "a number of cores as 2, or processors as 0,1 or 4-7 (3-3 for one)";

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<String> {
        let cores: Cores = text.parse().expect("cores");
        cores.problem(&[0, 1, 2, 5])
    }

    #[test]
    fn a_number_counts_and_a_list_names_processors() {
        assert_eq!("2".parse(), Ok(Cores::Count(2)));
        assert_eq!("0,1".parse(), Ok(Cores::Processors(vec![0, 1])));
        assert_eq!("1, 4-6".parse(), Ok(Cores::Processors(vec![1, 4, 5, 6])));
        assert_eq!("3-3".parse(), Ok(Cores::Processors(vec![3])));
        for text in ["", "a", "1,", "-1", "3-1", "0-99999999", "1;2"] {
            let refused: Result<Cores, _> = text.parse();
            assert!(refused.is_err(), "{text:?}: {refused:?}");
        }
        let cores: Cores = "4-5".parse().expect("processors");
        assert_eq!(cores.processors(), [Some(4), Some(5)]);
        assert_eq!(Cores::Count(2).processors(), [None, None]);
    }

    #[test]
    fn what_this_machine_cannot_give_is_a_problem() {
        for good in ["1", "4", "5-5", "2,0"] {
            assert_eq!(problem(good), None, "{good}");
        }
        for (bad, said) in [
            ("0", "0 cores"),
            ("65", "65 cores; there are 1 to 64"),
            ("5", "5 cores, and 4 processors"),
            ("0,0", "processor 0 is named twice"),
            (
                "0,3",
                "processor 3 is not one that this process may use; those are 0,1,2,5",
            ),
        ] {
            let problem = problem(bad).expect(bad);
            assert!(problem.contains(said), "{bad}: {problem}");
        }
    }
}
