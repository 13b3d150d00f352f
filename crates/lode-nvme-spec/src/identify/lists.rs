//! Lists that Identify returns: namespaces, and the descriptors of one namespace.

use lode_units::NamespaceId;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::open_enum::open_enum;

/// Up to 1024 namespace identifiers in ascending order, ended by a zero (Base 2.0 §5.17.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NamespaceList {
    /// The identifiers.
    pub ids: [U32; NamespaceList::LENGTH_MAX],
}

impl NamespaceList {
    /// The most identifiers of one list.
    pub const LENGTH_MAX: usize = 1024;

    /// The identifiers up to the first zero.
    pub fn iter(&self) -> impl Iterator<Item = NamespaceId> + '_ {
        self.ids
            .iter()
            .map(|id| NamespaceId::new(id.get()))
            .take_while(|id| id.get() != 0)
    }
}

const _: () = assert!(size_of::<NamespaceList>() == super::IDENTIFY_BYTES);

open_enum! {
    /// What a namespace identification descriptor holds (figure 277).
    DescriptorType {
        /// Eight bytes: EUI-64.
        Eui64 = 0x01,
        /// Sixteen bytes: NGUID.
        Nguid = 0x02,
        /// Sixteen bytes: a UUID.
        Uuid = 0x03,
        /// One byte: the command set identifier.
        CommandSet = 0x04,
    }
}

/// The identification descriptors of a namespace (Base 2.0 §5.17.2.3): each is type, length,
/// two reserved bytes and the value; a length of 0 ends the list.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NamespaceDescriptors {
    /// The list as it lies in memory.
    pub bytes: [u8; super::IDENTIFY_BYTES],
}

impl NamespaceDescriptors {
    /// The descriptors in order. A descriptor that runs past the end ends the list.
    pub fn iter(&self) -> impl Iterator<Item = (DescriptorType, &[u8])> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (header, after) = rest.split_first_chunk::<HEADER_BYTES>()?;
            let [kind, length, _, _] = *header;
            if length == 0 {
                return None;
            }
            let (value, tail) = after.split_at_checked(usize::from(length))?;
            rest = tail;
            Some((DescriptorType::from_raw(kind), value))
        })
    }
}

const HEADER_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_list_ends_at_its_first_zero_or_its_end() {
        let mut list = NamespaceList::new_zeroed();
        list.ids[0] = U32::new(1);
        list.ids[1] = U32::new(9);
        list.ids[3] = U32::new(77);
        let ids: Vec<_> = list.iter().map(NamespaceId::get).collect();
        assert_eq!(ids, [1, 9]);
        list.ids = [U32::new(5); 1024];
        assert_eq!(list.iter().count(), 1024);
    }

    #[test]
    fn descriptors_are_walked_by_their_length() {
        let mut list = NamespaceDescriptors::new_zeroed();
        list.bytes[0] = 3;
        list.bytes[1] = 16;
        list.bytes[4] = 0xAA;
        list.bytes[20] = 4;
        list.bytes[21] = 1;
        let found: Vec<_> = list.iter().collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, DescriptorType::Uuid);
        assert_eq!(found[0].1[0], 0xAA);
        assert_eq!(found[1], (DescriptorType::CommandSet, [0_u8].as_slice()));
    }

    #[test]
    fn a_descriptor_that_runs_past_the_end_ends_the_list() {
        let list = NamespaceDescriptors {
            bytes: [0xFF; 4096],
        };
        assert_eq!(list.iter().count(), 4096 / 259);
    }
}
