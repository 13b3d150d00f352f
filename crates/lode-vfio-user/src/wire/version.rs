//! The first message: version and capabilities.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DATA_BYTES_MAX, DESCRIPTORS_MAX, split};
use crate::error::VfioUserError;

/// The numbers before the capabilities.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawVersion {
    major: U16,
    minor: U16,
}

/// The version and the limits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) capabilities: Capabilities,
}

/// What one side can take. Absent members have the specification's defaults; unknown ones are
/// passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Capabilities {
    pub(crate) max_msg_fds: u64,
    pub(crate) max_data_xfer_size: u64,
    pub(crate) max_dma_maps: u64,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            max_msg_fds: 1,
            max_data_xfer_size: 1 << 20,
            max_dma_maps: 65_535,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Document {
    capabilities: Capabilities,
}

impl Version {
    /// What this crate speaks, with room for `dma_maps` mappings.
    pub(crate) const fn ours(dma_maps: u64) -> Self {
        Self {
            major: 0,
            minor: 1,
            capabilities: Capabilities {
                max_msg_fds: DESCRIPTORS_MAX as u64,
                max_data_xfer_size: DATA_BYTES_MAX as u64,
                max_dma_maps: dma_maps,
            },
        }
    }

    pub(crate) fn parse(payload: &[u8]) -> Result<Self, VfioUserError> {
        let foreign = |reason| VfioUserError::Foreign { reason };
        let (raw, rest) = split::<RawVersion>(payload)?;
        let document = match rest.split_last() {
            None => Document::default(),
            Some((0, text)) if text.len() <= DOCUMENT_BYTES_MAX => serde_json::from_slice(text)
                .map_err(|_| foreign("the capabilities are no JSON that can be read"))?,
            Some((0, _)) => return Err(foreign("the capabilities are too long")),
            Some(_) => return Err(foreign("the capabilities do not end with a zero")),
        };
        Ok(Self {
            major: raw.major.get(),
            minor: raw.minor.get(),
            capabilities: document.capabilities,
        })
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let raw = RawVersion {
            major: self.major.into(),
            minor: self.minor.into(),
        };
        let document = Document {
            capabilities: self.capabilities,
        };
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend(serde_json::to_vec(&document).expect("three numbers are JSON"));
        bytes.push(0);
        bytes
    }
}

const DOCUMENT_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &[u8]) -> Vec<u8> {
        [&[0, 0, 1, 0], text].concat()
    }

    #[test]
    fn a_version_comes_back_as_written() {
        let version = Version::ours(77);
        assert_eq!(Version::parse(&version.to_bytes()).expect("ours"), version);
    }

    #[test]
    fn what_is_absent_has_the_default_and_what_is_unknown_is_passed_over() {
        for text in [
            &b""[..],
            b"{}\0",
            b"{\"capabilities\":{}}\0",
            b"{\"capabilities\":{\"migration\":{\"pgsize\":4096}}}\0",
        ] {
            let version = Version::parse(&bytes(text)).expect("valid");
            assert_eq!(version.capabilities, Capabilities::default());
        }
        let told = Version::parse(&bytes(b"{\"capabilities\":{\"max_dma_maps\":9}}\0"));
        assert_eq!(told.expect("valid").capabilities.max_dma_maps, 9);
    }

    #[test]
    fn what_is_no_version_is_refused() {
        let long = [vec![b' '; DOCUMENT_BYTES_MAX + 1], vec![0]].concat();
        for text in [
            &b"{}"[..],
            b"{\0",
            b"\0",
            b"\xFF\0",
            b"{\"capabilities\":{\"max_dma_maps\":-1}}\0",
            &long,
        ] {
            assert!(Version::parse(&bytes(text)).is_err());
        }
        assert!(Version::parse(&[0, 0, 1]).is_err());
    }
}
