//! An address to listen on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A TCP address with its port; port 0 lets the system choose one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen(SocketAddr);

impl Listen {
    /// Port `port` of 127.0.0.1.
    pub(crate) const fn loopback(port: u16) -> Self {
        Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// The address.
    pub(crate) const fn address(self) -> SocketAddr {
        self.0
    }

    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.parse().map(Self);
        parsed.map_err(|_| format!("{text:?} is not an address with a port, as 127.0.0.1:7070"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_from_the_rest() {
        let is_loopback = |text: &str| text.parse::<Listen>().map(Listen::is_loopback);
        for text in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(is_loopback(text), Ok(true), "{text}");
        }
        for text in ["0.0.0.0:1", "192.0.2.1:1", "[::]:1", "[2001:db8::1]:1"] {
            assert_eq!(is_loopback(text), Ok(false), "{text}");
        }
        assert!(is_loopback("localhost:1").is_err());
        assert!(is_loopback("127.0.0.1").is_err());
    }
}
