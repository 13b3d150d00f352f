//! Numbers, sizes and durations as people write them.

use std::time::Duration;

use crate::error::EmulatorError;

/// A decimal or `0x` hexadecimal number.
pub(crate) fn integer(text: &str) -> Result<u64, EmulatorError> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_error| syntax(text, "expected a number, decimal or 0x hexadecimal"))
}

/// A number from 1 on.
pub(crate) fn positive<T: TryFrom<u64>>(text: &str) -> Result<T, EmulatorError> {
    if integer(text)? == 0 {
        return Err(syntax(text, "expected a number from 1 on"));
    }
    narrow(text)
}

/// A number that fits.
pub(crate) fn narrow<T: TryFrom<u64>>(text: &str) -> Result<T, EmulatorError> {
    T::try_from(integer(text)?).map_err(|_error| syntax(text, "the number is too large"))
}

/// A size in bytes: `512`, `64KiB`, `1GiB`, `2TB`. Powers of 1024 with an `i`, of 1000 without.
pub(crate) fn size_bytes(text: &str) -> Result<u64, EmulatorError> {
    let wrong = || syntax(text, "expected a size such as 4096, 64MiB or 1GiB");
    let (number, unit) = split_unit(text);
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    number
        .checked_mul(factor)
        .ok_or_else(|| syntax(text, "the size exceeds 64 bits"))
}

/// A duration: `50ns`, `100us`, `5ms`, `2s`.
pub(crate) fn duration(text: &str) -> Result<Duration, EmulatorError> {
    let wrong = || syntax(text, "expected a duration such as 100us, 5ms or 2s");
    let (number, unit) = split_unit(text);
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    match unit {
        "ns" => Ok(Duration::from_nanos(number)),
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(wrong()),
    }
}

/// The error that names the part of a text that was not understood.
pub(crate) fn syntax(text: &str, reason: &'static str) -> EmulatorError {
    EmulatorError::Syntax {
        text: text.to_owned(),
        reason,
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_two_kinds() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("3G", 3 << 30),
            ("2TB", 2_000_000_000_000),
            ("0", 0),
        ] {
            assert_eq!(size_bytes(text).expect(text), bytes);
        }
        for text in ["", "MiB", "12 MiB", "-1", "1.5GiB", "99999999999TiB", "1XB"] {
            assert!(size_bytes(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(
            duration("100us").expect("100us"),
            Duration::from_micros(100)
        );
        for text in ["100", "us", "1.5ms", "5m"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(integer("0x281").expect("hexadecimal"), 0x281);
        assert_eq!(integer("12").expect("decimal"), 12);
        assert!(integer("0xZZ").is_err() && integer("").is_err());
    }
}
