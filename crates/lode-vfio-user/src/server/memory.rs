//! The client's memory, as far as it was shared.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use lode_bus::{Bus, BusError, DmaMemory};
use lode_units::Iova;

use super::session::errno;
use crate::wire::{DmaMap, DmaUnmap};

/// The client's mappings. No two overlap.
#[derive(Debug, Default)]
pub(super) struct ClientMemory {
    mappings: Vec<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    start: u64,
    size: u64,
    /// `None`: the client shares no descriptor for it, or not for writing. The controller's
    /// accesses to it are faults.
    memory: Option<DmaMemory>,
}

impl ClientMemory {
    /// Makes a range visible to the controller. The errno of a refusal.
    pub(super) fn map(
        &mut self,
        map: DmaMap,
        file: Option<OwnedFd>,
        bus: &impl Bus,
    ) -> Result<(), u32> {
        let (start, size) = (map.address.get(), map.size.get());
        let end = start.checked_add(size).ok_or(errno::EINVAL)?;
        let is_whole = |value: u64| value.is_multiple_of(PAGE_BYTES);
        if size == 0 || !is_whole(start) || !is_whole(size) || !is_whole(map.offset.get()) {
            return Err(errno::EINVAL);
        }
        let overlaps = |held: &Mapping| held.start < end && start < held.start + held.size;
        if self.mappings.iter().any(overlaps) {
            return Err(errno::EEXIST);
        }
        if self.mappings.len() >= MAPPINGS_MAX {
            return Err(errno::ENOSPC);
        }
        let rights = DmaMap::FLAG_READ | DmaMap::FLAG_WRITE;
        let memory = match file {
            Some(file) if map.flags.get() & rights == rights => Some(adopt(map, &file)?),
            _ => None,
        };
        if let Some(memory) = &memory {
            bus.map(memory).map_err(|_refused| errno::EIO)?;
        }
        self.mappings.push(Mapping {
            start,
            size,
            memory,
        });
        Ok(())
    }

    /// Hides exactly what was mapped before; when this returns, the controller does not touch it
    /// any more.
    pub(super) fn unmap(&mut self, unmap: DmaUnmap, bus: &impl Bus) -> Result<(), u32> {
        let wanted =
            |held: &Mapping| held.start == unmap.address.get() && held.size == unmap.size.get();
        let position = self.mappings.iter().position(wanted);
        let mapping = self.mappings.swap_remove(position.ok_or(errno::ENOENT)?);
        hide(&mapping, bus).map_err(|_late| errno::EIO)
    }

    /// Hides everything.
    pub(super) fn clear(&mut self, bus: &impl Bus) {
        for mapping in self.mappings.drain(..) {
            // A controller that is gone touches nothing, and the memory stays mapped here for as
            // long as the controller holds on to it.
            let _is_late = hide(&mapping, bus).is_err();
        }
    }
}

fn hide(mapping: &Mapping, bus: &impl Bus) -> Result<(), BusError> {
    mapping
        .memory
        .as_ref()
        .map_or(Ok(()), |memory| match bus.unmap(memory) {
            Err(BusError::Gone) => Ok(()),
            outcome => outcome,
        })
}

/// Maps what the client shares, if there is as much of it as it says.
fn adopt(map: DmaMap, file: &OwnedFd) -> Result<DmaMemory, u32> {
    let offset = map.offset.get();
    let end = offset.checked_add(map.size.get()).ok_or(errno::EINVAL)?;
    let status = rustix::fs::fstat(file).map_err(|_| errno::EINVAL)?;
    let is_held = u64::try_from(status.st_size).is_ok_and(|held| end <= held);
    if !is_held {
        return Err(errno::EINVAL);
    }
    let length = usize::try_from(map.size.get()).map_err(|_| errno::EINVAL)?;
    let iova = Iova::new(map.address.get());
    DmaMemory::adopt(file.as_fd(), offset, length, iova).map_err(|error: io::Error| {
        error
            .raw_os_error()
            .map_or(errno::ENOSPC, i32::cast_unsigned)
    })
}

const PAGE_BYTES: u64 = 4096;
/// Each of them is watched for pages that vanish.
pub(super) const MAPPINGS_MAX: usize = 512;
