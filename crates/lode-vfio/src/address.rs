//! The address of a PCI function.

use std::fmt;
use std::str::FromStr;

/// A PCI function as sysfs names it: domain, bus, device, function (`0000:01:00.0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Why a text is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no PCI address; one looks like 0000:01:00.0")]
pub struct AddressError {
    /// What was given.
    pub text: String,
}

impl FromStr for PciAddress {
    type Err = AddressError;

    /// Accepts the full form and the one without the domain, which is then 0.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).ok_or_else(|| AddressError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0000", rest));
    Some(PciAddress {
        domain: hexadecimal(domain, 4..=8, u32::MAX)?,
        bus: narrow(bus, 2..=2, u8::MAX)?,
        device: narrow(device, 2..=2, DEVICE_MAX)?,
        function: narrow(function, 1..=1, FUNCTION_MAX)?,
    })
}

fn narrow(text: &str, digits: std::ops::RangeInclusive<usize>, maximum: u8) -> Option<u8> {
    u8::try_from(hexadecimal(text, digits, u32::from(maximum))?).ok()
}

fn hexadecimal(text: &str, digits: std::ops::RangeInclusive<usize>, maximum: u32) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits.contains(&text.len()) && is_plain)
        .then(|| u32::from_str_radix(text, 16).ok())?
        .filter(|value| *value <= maximum)
}

impl fmt::Display for PciAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

/// PCI Local Bus 3.0 §3.2.2.3.1: five bits of device, three of function.
const DEVICE_MAX: u8 = 31;
const FUNCTION_MAX: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_sysfs_writes_it() {
        for (given, shown) in [
            ("0000:01:00.0", "0000:01:00.0"),
            ("01:00.0", "0000:01:00.0"),
            ("10000:E1:1f.7", "10000:e1:1f.7"),
        ] {
            let address: PciAddress = given.parse().expect("an address");
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for text in [
            "",
            "nvme0",
            "0000:01:00",
            "0000:01:00.8",
            "0000:01:20.0",
            "0000:001:00.0",
            "000:01:00.0",
            "0000:01:00.+1",
            "0000:01:0x.0",
            "../0000:01:00.0",
            "0:0000:01:00.0",
        ] {
            let error = text.parse::<PciAddress>().expect_err(text);
            assert_eq!(error.text, text);
        }
    }
}
