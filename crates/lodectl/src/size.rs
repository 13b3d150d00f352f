//! Sizes as people write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes on the command line.
///
/// A bare number is bytes. `K`, `M`, `G`, `T`, `P` and `KiB` … `PiB` are powers of 1024, as in
/// qemu-img and truncate; `KB` … `PB` are powers of 1000. Case does not matter. Only whole
/// numbers: a size is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("{text:?} is no size: write a whole number and perhaps K, M, G, T, P, KiB … or KB …")]
    Malformed { text: String },
    #[error("{text:?} is more than 64 bits of bytes")]
    TooLarge { text: String },
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_lowercase();
        let malformed = || SizeError::Malformed {
            text: text.to_owned(),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let factor = factor(&unit).ok_or_else(malformed)?;
        let number: Option<u64> = digits.parse().ok();
        number
            .and_then(|number| number.checked_mul(factor))
            .map(Self)
            .ok_or_else(|| SizeError::TooLarge {
                text: text.to_owned(),
            })
    }
}

fn factor(unit: &str) -> Option<u64> {
    if unit.is_empty() || unit == "b" {
        return Some(1);
    }
    let power = PREFIXES.find(unit.chars().next()?)?;
    let base: u64 = match &unit[1..] {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    base.checked_pow(u32::try_from(power).ok()? + 1)
}

/// Shows a number of bytes with a binary unit and one decimal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Human(pub(crate) u64);

impl fmt::Display for Human {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return formatter.pad(&format!("{} B", self.0));
        }
        let mut whole = self.0;
        let mut tenths = 0;
        let mut unit = ' ';
        for prefix in PREFIXES.chars().chain(['e']) {
            if whole < 1024 {
                break;
            }
            tenths = whole % 1024 * 10 / 1024;
            whole /= 1024;
            unit = prefix.to_ascii_uppercase();
        }
        formatter.pad(&format!("{whole}.{tenths} {unit}iB"))
    }
}

/// The prefixes of sizes, smallest first.
const PREFIXES: &str = "kmgtp";

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Option<u64> {
        text.parse().ok().map(|Size(bytes)| bytes)
    }

    #[test]
    fn single_letters_and_ib_are_binary_and_b_alone_is_decimal() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("512b"), Some(512));
        assert_eq!(bytes("1K"), Some(1024));
        assert_eq!(bytes("1kib"), Some(1024));
        assert_eq!(bytes("1KB"), Some(1000));
        assert_eq!(bytes("1G"), bytes("1GiB"));
        assert_eq!(bytes("3GB"), Some(3_000_000_000));
        assert_eq!(bytes("2TiB"), Some(2 << 40));
        assert_eq!(bytes("16PiB"), Some(16 << 50));
    }

    #[test]
    fn what_is_no_exact_size_is_refused() {
        for text in [
            "", "G", "1.5G", "-1", "+1", "1 G", "1Gi", "1X", "0x10", "1é", "1kk", "1KiBB",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
        for text in ["16384PiB", "18446744073709551616", "99999999999P"] {
            let error = text.parse::<Size>().expect_err(text);
            assert!(matches!(error, SizeError::TooLarge { .. }), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_in_the_unit_that_fits_and_never_rounded_up() {
        let shown = |bytes| Human(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1.0 KiB");
        assert_eq!(shown((1 << 20) - 1), "1023.9 KiB");
        assert_eq!(shown(3 << 29), "1.5 GiB");
        assert_eq!(shown(u64::MAX), "15.9 EiB");
    }
}
