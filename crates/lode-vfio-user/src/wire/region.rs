//! What a region is: its size, its rights, and which parts of it can be mapped.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::split;
use crate::error::VfioUserError;

/// DEVICE_GET_REGION_INFO, both ways, before the capabilities.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct RegionInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    /// Where the first capability lies, from the beginning of this structure.
    pub(crate) cap_offset: U32,
    pub(crate) size: U64,
    /// Where the region begins in the descriptor that comes with it.
    pub(crate) offset: U64,
}

const _: () = assert!(size_of::<RegionInfo>() == 32);

impl RegionInfo {
    pub(crate) const FLAG_READ: u32 = 1;
    pub(crate) const FLAG_WRITE: u32 = 1 << 1;
    pub(crate) const FLAG_MMAP: u32 = 1 << 2;
    pub(crate) const FLAG_CAPS: u32 = 1 << 3;
}

/// The head of a capability.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct CapabilityHead {
    id: U16,
    version: U16,
    /// Where the next one lies, from the beginning of the region's structure; 0 at the last.
    next: U32,
}

/// The head of the capability "sparse mmap", after the head of every capability.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct SparseHead {
    area_count: U32,
    reserved: U32,
}

/// A part of a region that can be mapped.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
pub(crate) struct Area {
    pub(crate) offset: U64,
    pub(crate) size: U64,
}

/// What a server says of a region, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionReply {
    pub(crate) flags: u32,
    pub(crate) size: u64,
    /// Where the region begins in its descriptor.
    pub(crate) offset: u64,
    /// What can be mapped: inside the region, whole pages, few.
    pub(crate) areas: Vec<Area>,
}

impl RegionReply {
    /// Reads the answer to a question for region `index`.
    pub(crate) fn parse(payload: &[u8], index: u32) -> Result<Self, VfioUserError> {
        let foreign = |reason| VfioUserError::Foreign { reason };
        let (info, _rest) = split::<RegionInfo>(payload)?;
        if info.index.get() != index {
            return Err(foreign(
                "the server tells of a region that was not asked for",
            ));
        }
        let flags = info.flags.get();
        let size = info.size.get();
        let mut areas = Vec::new();
        if flags & RegionInfo::FLAG_MMAP != 0 && size > 0 {
            let sparse = match flags & RegionInfo::FLAG_CAPS {
                0 => None,
                _ => sparse_areas(payload, info.cap_offset.get())?,
            };
            areas = sparse.unwrap_or_else(|| {
                vec![Area {
                    offset: 0.into(),
                    size: size.into(),
                }]
            });
        }
        let is_possible = areas
            .iter()
            .all(|area| area.is_inside(info.offset.get(), size));
        if !is_possible {
            return Err(foreign("an area to be mapped lies outside its region"));
        }
        Ok(Self {
            flags,
            size,
            offset: info.offset.get(),
            areas,
        })
    }
}

impl Area {
    /// Whether it is a positive number of whole pages inside a region of `size` bytes, and its
    /// place in the region's descriptor can be told in a number.
    fn is_inside(&self, region_offset: u64, size: u64) -> bool {
        let end = self.offset.get().checked_add(self.size.get());
        self.size.get() > 0
            && self.offset.get().is_multiple_of(PAGE_BYTES)
            && region_offset.is_multiple_of(PAGE_BYTES)
            && end.is_some_and(|end| end <= size && region_offset.checked_add(end).is_some())
    }
}

/// The areas of the capability "sparse mmap" in the list that begins at `first`; `None` when the
/// list has no such capability.
fn sparse_areas(payload: &[u8], first: u32) -> Result<Option<Vec<Area>>, VfioUserError> {
    let foreign = |reason| VfioUserError::Foreign { reason };
    let (mut at, mut before) = (first, 0);
    while at != 0 {
        // A list that only goes forward ends.
        if at <= before {
            return Err(foreign("the capabilities of a region go round in a circle"));
        }
        let bytes = usize::try_from(at)
            .ok()
            .and_then(|start| payload.get(start..))
            .ok_or_else(|| foreign("a capability lies outside its message"))?;
        let (head, rest) = split::<CapabilityHead>(bytes)?;
        if head.id.get() == CAPABILITY_SPARSE_MMAP {
            return areas(rest).map(Some);
        }
        before = at;
        at = head.next.get();
    }
    Ok(None)
}

fn areas(bytes: &[u8]) -> Result<Vec<Area>, VfioUserError> {
    let foreign = |reason| VfioUserError::Foreign { reason };
    let (head, rest) = split::<SparseHead>(bytes)?;
    let count = usize::try_from(head.area_count.get())
        .ok()
        .filter(|count| *count <= AREAS_MAX)
        .ok_or_else(|| foreign("a region has too many areas to be mapped"))?;
    <[Area]>::ref_from_prefix_with_elems(rest, count)
        .map(|(areas, _rest)| areas.to_vec())
        .map_err(|_short| foreign("a region has fewer areas than it tells"))
}

/// The bytes of a list with nothing but the capability "sparse mmap", for one area.
pub(crate) fn sparse_capability(area: Area) -> Vec<u8> {
    let head = CapabilityHead {
        id: CAPABILITY_SPARSE_MMAP.into(),
        version: 1.into(),
        next: 0.into(),
    };
    let sparse = SparseHead {
        area_count: 1.into(),
        reserved: 0.into(),
    };
    [head.as_bytes(), sparse.as_bytes(), area.as_bytes()].concat()
}

/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`.
const CAPABILITY_SPARSE_MMAP: u16 = 1;
const AREAS_MAX: usize = 16;
const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn area(offset: u64, size: u64) -> Area {
        Area {
            offset: offset.into(),
            size: size.into(),
        }
    }

    fn info(flags: u32, size: u64) -> RegionInfo {
        RegionInfo {
            flags: flags.into(),
            cap_offset: 32.into(),
            size: size.into(),
            ..RegionInfo::default()
        }
    }

    fn reply(info: RegionInfo, capabilities: &[u8]) -> Result<RegionReply, VfioUserError> {
        RegionReply::parse(&[info.as_bytes(), capabilities].concat(), 0)
    }

    const MAPPED: u32 = RegionInfo::FLAG_MMAP | RegionInfo::FLAG_CAPS;

    #[test]
    fn the_area_that_a_server_tells_is_the_one_that_is_mapped() {
        let told = area(0x1000, 0x3000);
        let reply = reply(info(MAPPED, 0x4000), &sparse_capability(told)).expect("valid");
        assert_eq!(reply.areas, [told]);
    }

    #[test]
    fn a_region_without_areas_is_mapped_whole_or_not_at_all() {
        let whole = reply(info(RegionInfo::FLAG_MMAP, 0x2000), &[]).expect("valid");
        assert_eq!(whole.areas, [area(0, 0x2000)]);
        let none = reply(info(RegionInfo::FLAG_READ, 0x2000), &[]).expect("valid");
        assert_eq!(none.areas, []);
    }

    #[test]
    fn areas_outside_misaligned_empty_or_past_all_numbers_are_refused() {
        for bad in [
            area(0x1000, 0x4000),
            area(0x5000, 0x1000),
            area(0x10, 0x1000),
            area(0x1000, 0),
            area(u64::MAX - 0xFFF, 0x1000),
            area(0x1000, u64::MAX),
        ] {
            let outcome = reply(info(MAPPED, 0x4000), &sparse_capability(bad));
            assert!(outcome.is_err(), "{bad:?}");
        }
        let mut far = info(RegionInfo::FLAG_MMAP, 0x4000);
        far.offset = (u64::MAX - 0xFFF).into();
        assert!(reply(far, &[]).is_err());
    }

    #[test]
    fn a_list_that_lies_about_itself_is_refused() {
        let list = sparse_capability(area(0x1000, 0x1000));
        for length in 1..list.len() {
            assert!(reply(info(MAPPED, 0x4000), &list[..length]).is_err());
        }
        let mut outside = info(MAPPED, 0x4000);
        outside.cap_offset = u32::MAX.into();
        assert!(reply(outside, &list).is_err());
        let mut many = list.clone();
        many[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(reply(info(MAPPED, 0x4000), &many).is_err());
        // An unknown capability that is its own successor.
        let mut circle = list;
        circle[0] = 99;
        circle[4] = 32;
        assert!(reply(info(MAPPED, 0x4000), &circle).is_err());
        let mut other = info(MAPPED, 0x4000);
        other.index = 1.into();
        assert!(reply(other, &[]).is_err());
    }
}
