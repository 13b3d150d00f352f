//! `lodectl top`: what the server is doing, interval by interval.
//!
//! On a terminal the view is drawn over the one before; into a pipe, and with `--once`, it is
//! plain lines. As JSON each interval is one value: a line for each, or a readable one with
//! `--once`.

mod figures;
mod view;

use std::io::{self, IsTerminal};

use anyhow::{Result, bail};
use lode_api::Client;
use rustix::termios::tcgetwinsize;

use crate::cli::TopArguments;
use crate::output::{self, Output};

use figures::Figures;

pub(crate) async fn run(client: &Client, output: &Output, arguments: TopArguments) -> Result<()> {
    let mut watch = client.watch_stats(arguments.interval).await?;
    let mut screen = Screen::of_stdout();
    let mut is_first = true;
    while let Some(answer) = watch.next().await? {
        let figures = Figures::from(answer);
        if arguments.once {
            return output.show(&figures, view::whole);
        }
        if output.is_json() {
            let line = serde_json::to_string(&figures)? + "\n";
            output::write_all(line.as_bytes())?;
        } else if let Some(screen) = &mut screen {
            output::write_all(screen.draw(&view::whole(&figures)).as_bytes())?;
        } else {
            let gap = if is_first { "" } else { "\n" };
            let text = format!("{gap}{}\n", view::whole(&figures));
            output::write_all(text.as_bytes())?;
        }
        is_first = false;
    }
    bail!("the server is stopping")
}

/// The terminal that the view is drawn on.
struct Screen {
    is_clear: bool,
}

impl Screen {
    /// Standard output, where it is a terminal.
    fn of_stdout() -> Option<Self> {
        io::stdout()
            .is_terminal()
            .then_some(Self { is_clear: false })
    }

    /// What draws `text` over what was drawn before, cut to the size of the terminal.
    fn draw(&mut self, text: &str) -> String {
        let size = tcgetwinsize(io::stdout()).ok();
        let (rows, columns) = extent(size.map(|size| (size.ws_row, size.ws_col)));
        let is_clear = std::mem::replace(&mut self.is_clear, true);
        let start = if is_clear { HOME } else { CLEAR };
        start.to_owned() + &cut(text, rows.into(), columns.into()) + ERASE_BELOW
    }
}

/// The rows and columns to draw on. Some terminals say that they have none.
fn extent(told: Option<(u16, u16)>) -> (u16, u16) {
    told.filter(|(rows, columns)| *rows > 0 && *columns > 0)
        .unwrap_or((ROWS, COLUMNS))
}

/// At most so many lines and columns, less the line that the cursor is left on; each line erases
/// what is left of an older one.
fn cut(text: &str, rows: usize, columns: usize) -> String {
    let lines = text.lines().take(rows.saturating_sub(1));
    let cut = lines.map(|line| line.chars().take(columns).collect::<String>());
    cut.map(|line| line + ERASE_LINE + "\n").collect()
}

const HOME: &str = "\u{1b}[H";
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";
const ERASE_LINE: &str = "\u{1b}[K";
const ERASE_BELOW: &str = "\u{1b}[J";
/// A terminal that does not tell its size.
const ROWS: u16 = 24;
const COLUMNS: u16 = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_tells_no_size_is_taken_for_a_small_one() {
        assert_eq!(extent(Some((50, 132))), (50, 132));
        for told in [None, Some((0, 0)), Some((50, 0))] {
            assert_eq!(extent(told), (24, 80), "{told:?}");
        }
    }

    #[test]
    fn a_view_fits_its_terminal_and_leaves_nothing_of_the_one_before() {
        let text = "one long line\ntwo\nthree\n";
        assert_eq!(cut(text, 3, 8), "one long\u{1b}[K\ntwo\u{1b}[K\n");
    }
}
