//! How long a thread of this process has run.

use std::time::Duration;

use anyhow::Context;
use rustix::thread::Pid;

/// The time for which the scheduler has let thread `id` run (proc(5), `schedstat`).
pub(super) fn of(id: Pid) -> anyhow::Result<Duration> {
    let path = format!("/proc/self/task/{}/schedstat", id.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let nanoseconds = text.split(' ').next().context("an empty line")?;
    Ok(Duration::from_nanos(nanoseconds.parse().context(path)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_worked_has_run() {
        let id = rustix::thread::gettid();
        let before = of(id).expect("a thread that runs");
        let mut now = before;
        while now == before {
            now = of(id).expect("a thread that runs");
        }
        assert!(now > before);
    }
}
