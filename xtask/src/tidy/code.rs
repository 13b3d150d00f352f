//! Rust source with its comments and texts blanked out, so that a rule about code does not
//! stumble over prose.

/// What the scanner is inside of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    /// Nested to this depth.
    BlockComment(usize),
    Text,
    /// Ends at a quote followed by this many `#`.
    RawText(usize),
}

/// `source` with every character of a comment or a string replaced by a space. Lines stay lines.
pub(super) fn code_of(source: &str) -> String {
    let characters: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut state = State::Code;
    let mut rest = characters.as_slice();
    while let Some(&first) = rest.first() {
        let (next, taken) = step(state, rest, code.chars().next_back());
        let is_code = state == State::Code && next == State::Code;
        for &character in rest.iter().take(taken) {
            code.push(if is_code || character == '\n' {
                character
            } else {
                ' '
            });
        }
        debug_assert!(taken > 0, "the scanner stands still at {first:?}");
        state = next;
        rest = rest.get(taken..).unwrap_or_default();
    }
    code
}

/// The state after the next token, and the token's length in characters.
fn step(state: State, rest: &[char], previous: Option<char>) -> (State, usize) {
    match state {
        State::Code => step_in_code(rest, previous),
        State::LineComment if rest.starts_with(&['\n']) => (State::Code, 1),
        State::LineComment => (State::LineComment, 1),
        State::BlockComment(depth) if rest.starts_with(&['/', '*']) => {
            (State::BlockComment(depth + 1), 2)
        }
        State::BlockComment(1) if rest.starts_with(&['*', '/']) => (State::Code, 2),
        State::BlockComment(depth) if rest.starts_with(&['*', '/']) => {
            (State::BlockComment(depth - 1), 2)
        }
        State::BlockComment(depth) => (State::BlockComment(depth), 1),
        State::Text if rest.starts_with(&['\\']) => (State::Text, rest.len().min(2)),
        State::Text if rest.starts_with(&['"']) => (State::Code, 1),
        State::Text => (State::Text, 1),
        State::RawText(hashes) => {
            let is_end = rest.starts_with(&['"']) && hashes_in(rest.get(1..)) >= hashes;
            if is_end {
                (State::Code, 1 + hashes)
            } else {
                (state, 1)
            }
        }
    }
}

fn step_in_code(rest: &[char], previous: Option<char>) -> (State, usize) {
    let follows_word =
        previous.is_some_and(|character| character.is_alphanumeric() || character == '_');
    match rest {
        ['/', '/', ..] => (State::LineComment, 2),
        ['/', '*', ..] => (State::BlockComment(1), 2),
        ['"', ..] => (State::Text, 1),
        ['r', '"', ..] if !follows_word => (State::RawText(0), 2),
        ['r', '#', tail @ ..] if !follows_word => {
            let hashes = 1 + hashes_in(Some(tail));
            if rest.get(1 + hashes) == Some(&'"') {
                (State::RawText(hashes), 2 + hashes)
            } else {
                (State::Code, 2)
            }
        }
        // A character literal; a lifetime has no closing quote.
        ['\'', '\\', _, '\'', ..] => (State::Code, 4),
        ['\'', character, '\'', ..] if *character != '\\' => (State::Code, 3),
        _ => (State::Code, 1),
    }
}

fn hashes_in(tail: Option<&[char]>) -> usize {
    let tail = tail.unwrap_or_default();
    tail.iter()
        .take_while(|character| **character == '#')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        code_of(source)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn comments_are_blank() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
    }

    #[test]
    fn texts_are_blank() {
        assert_eq!(words(r#"a "b \" c" d"#), ["a", "d"]);
        assert_eq!(words("a r#\"b \" c\"# d"), ["a", "d"]);
        assert_eq!(words("bar\"b\" c"), ["bar", "c"]);
    }

    #[test]
    fn a_quote_as_a_character_opens_no_text() {
        assert_eq!(words("a '\"' b"), ["a", "'\"'", "b"]);
        assert_eq!(words("a '\\'' b \"c\" d"), ["a", "'\\''", "b", "d"]);
        assert_eq!(words("fn f<'a>(x: &'a str) {}").len(), 5);
    }

    #[test]
    fn lines_keep_their_numbers() {
        let source = "one\n\"two\nthree\"\n/* four\n*/ five\n";
        assert_eq!(code_of(source).lines().count(), source.lines().count());
        assert_eq!(code_of(source).lines().last().map(str::trim), Some("five"));
    }
}
