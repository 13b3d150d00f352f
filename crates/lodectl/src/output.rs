//! Where results go: standard output, as tables or as JSON.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON value.
    Json,
}

/// Whoever read standard output has stopped reading: a reason to end quietly.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct OutputClosed;

/// Standard output in one format.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) const fn new(format: Format) -> Self {
        Self { format }
    }

    pub(crate) const fn is_json(&self) -> bool {
        matches!(self.format, Format::Json)
    }

    /// Whether progress should be drawn: a person is looking.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.is_json() && io::stderr().is_terminal()
    }

    /// Writes `value` as JSON, or what `people` makes of it.
    pub(crate) fn show<T: Serialize>(
        &self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<()> {
        let text = match self.format {
            Format::Json => serde_json::to_string_pretty(value)?,
            Format::Table => people(value),
        };
        write_all(text.trim_end().as_bytes())?;
        write_all(b"\n")
    }
}

/// Writes bytes to standard output as they are.
pub(crate) fn write_all(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        other => Ok(other?),
    }
}

/// Writes so many zero bytes to standard output.
pub(crate) fn write_zeroes(mut length: u64) -> Result<()> {
    static ZEROES: [u8; 65536] = [0; 65536];
    while length > 0 {
        let part = usize::try_from(length).map_or(ZEROES.len(), |left| left.min(ZEROES.len()));
        write_all(&ZEROES[..part])?;
        length -= u64::try_from(part)?;
    }
    Ok(())
}

/// Lines of a name and a value, the values under each other.
pub(crate) fn lines(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {value}\n");
    pairs.iter().map(line).collect()
}

/// A table with a head, without frames.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(head.iter().map(|name| name.to_uppercase()));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let text = table.to_string();
    let trimmed = text.lines().map(str::trim_end);
    trimmed.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_under_each_other() {
        let text = lines(&[("a", "1".into()), ("long", "2".into())]);
        assert_eq!(text, "a     1\nlong  2\n");
    }

    #[test]
    fn a_table_has_its_head_in_capitals_and_no_blanks_at_the_ends_of_lines() {
        let text = table(&["name", "size"], vec![vec!["disk".into(), "1 B".into()]]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines, ["NAME  SIZE", "disk  1 B"]);
    }
}
