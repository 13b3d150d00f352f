//! What everybody is waiting for when a scenario takes too long: the host sees only silence.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A scenario that is watched; dropping it ends that.
pub(crate) struct Watch {
    /// A word for each sign of life; its end is that of the scenario.
    signs: Sender<()>,
}

impl Watch {
    /// Calls `tell` for each thread of the guest that is a program's, once, when there was no sign
    /// of life for [`LIMIT`]. Runs on a thread of its own until then.
    pub(crate) fn start(mut tell: impl FnMut(String) + Send + 'static) -> Self {
        let (signs, seen) = channel();
        std::thread::spawn(move || {
            let mut sign = Ok(());
            while sign.is_ok() {
                sign = seen.recv_timeout(LIMIT);
            }
            if sign == Err(RecvTimeoutError::Timeout) {
                threads().into_iter().for_each(&mut tell);
            }
        });
        Self { signs }
    }

    /// The scenario has said something.
    pub(crate) fn note_life(&self) {
        // The thread has ended when it has told of a silence before.
        let _is_over = self.signs.send(()).is_err();
    }
}

/// One line for each thread with a command line: who, its state, where it is in the kernel.
fn threads() -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|process| Some(process.ok()?.path()))
        .filter(|process| !text(&process.join("cmdline")).is_empty())
        .flat_map(|process| {
            let command = text(&process.join("cmdline")).replace('\0', " ");
            let tasks = fs::read_dir(process.join("task")).into_iter().flatten();
            tasks
                .filter_map(|task| Some(task.ok()?.path()))
                .map(move |task| line(&command, &task))
        })
        .collect()
}

fn line(command: &str, task: &Path) -> String {
    let status = text(&task.join("status"));
    let state = status
        .lines()
        .find_map(|line| line.strip_prefix("State:"))
        .unwrap_or("gone");
    let stack = text(&task.join("stack"))
        .replace("[<0>] ", "")
        .replace('\n', " < ");
    format!(
        "{} {command}: {} in {stack}",
        task.file_name().unwrap_or_default().to_string_lossy(),
        state.trim(),
    )
}

/// A file's text; empty when its thread has just ended.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Longer than any scenario is silent, shorter than the host waits.
const LIMIT: Duration = Duration::from_secs(150);
