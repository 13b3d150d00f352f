//! QEMU's monitor (QMP): one JSON object a line, a greeting, then answers to commands between
//! events that nobody waits for.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to the monitor of one machine.
#[derive(Debug)]
pub(super) struct Monitor {
    from_machine: BufReader<UnixStream>,
    to_machine: UnixStream,
}

impl Monitor {
    /// Takes the greeting and leaves negotiation. `stream` has a time limit for reads.
    ///
    /// # Errors
    /// When the machine does not answer as a monitor.
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        let mut monitor = Self {
            from_machine: BufReader::new(stream.try_clone()?),
            to_machine: stream,
        };
        let greeting = monitor.receive()?;
        if greeting.get("QMP").is_none() {
            bail!("no monitor: {greeting}");
        }
        monitor.execute(&json!({"execute": "qmp_capabilities"}))?;
        Ok(monitor)
    }

    /// Runs a command in the monitor's language for people; its answer on one line.
    ///
    /// # Errors
    /// When the machine does not answer.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        let answer = self.execute(&json!({
            "execute": "human-monitor-command",
            "arguments": {"command-line": command},
        }))?;
        let text = answer.as_str().unwrap_or_default();
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Ends the machine.
    ///
    /// # Errors
    /// When the machine does not answer.
    pub(super) fn quit(&mut self) -> Result<()> {
        self.execute(&json!({"execute": "quit"})).map(|_| ())
    }

    fn execute(&mut self, command: &Value) -> Result<Value> {
        writeln!(self.to_machine, "{command}").context("the monitor is gone")?;
        for _ in 0..EVENTS_MAX {
            let message = self.receive()?;
            if let Some(answer) = message.get("return") {
                return Ok(answer.clone());
            }
            if let Some(error) = message.get("error") {
                bail!("{command}: {error}");
            }
        }
        bail!("no answer to {command} among {EVENTS_MAX} messages")
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        let length = self
            .from_machine
            .read_line(&mut line)
            .context("the monitor is silent")?;
        if length == 0 {
            bail!("the monitor closed");
        }
        serde_json::from_str(&line).context("the monitor's words")
    }
}

/// More events than a command ever waits behind.
const EVENTS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor whose machine says `words`, whatever it is asked.
    fn with(words: &str) -> (Result<Monitor>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        theirs.write_all(words.as_bytes()).expect("room");
        (Monitor::new(ours), theirs)
    }

    const GREETING: &str = "{\"QMP\": {}}\n{\"return\": {}}\n";

    #[test]
    fn an_answer_is_found_behind_events_and_joined_into_one_line() {
        let words = format!(
            "{GREETING}{{\"event\": \"RESUME\"}}\n{{\"return\": \"one\\r\\n two\\r\\n\"}}\n"
        );
        let (monitor, _machine) = with(&words);
        let answer = monitor.expect("a monitor").run("info status");
        assert_eq!(answer.expect("an answer"), "one two");
    }

    #[test]
    fn a_refusal_and_a_stranger_are_errors() {
        let words = format!("{GREETING}{{\"error\": {{\"desc\": \"no\"}}}}\n");
        let (monitor, _machine) = with(&words);
        assert!(monitor.expect("a monitor").run("x").is_err());
        assert!(with("{\"hello\": 1}\n").0.is_err());
        assert!(with("hello\n").0.is_err());
    }
}
