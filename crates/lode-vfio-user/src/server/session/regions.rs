//! The regions: what they are, and reading and writing them by messages.

use lode_bus::{Bus, Registers};
use zerocopy::IntoBytes;

use super::{Attachment, Session, errno};
use crate::server::doorbells::DOORBELLS;
use crate::wire::{
    DATA_BYTES_MAX, Header, REGION_BAR_0, REGION_BAR_4, REGION_CONFIGURATION, REGION_COUNT,
    RegionAccess, RegionInfo, sparse_capability, split,
};

impl<B: Bus> Session<'_, B> {
    pub(super) fn tell_region(&mut self, header: Header) -> Result<Attachment, u32> {
        let question = self.question::<RegionInfo>(header)?;
        let index = question.index.get();
        let size = match index {
            REGION_BAR_0 => self.doorbells.region_bytes(),
            REGION_BAR_4 => self.configuration.table_bytes(),
            REGION_CONFIGURATION => self.configuration.space_bytes(),
            index if index < REGION_COUNT => 0,
            _ => return Err(errno::EINVAL),
        };
        let mut info = RegionInfo {
            argsz: FIXED_BYTES.into(),
            index: index.into(),
            size: size.into(),
            ..RegionInfo::default()
        };
        if size > 0 {
            info.flags = (RegionInfo::FLAG_READ | RegionInfo::FLAG_WRITE).into();
        }
        let area = self.doorbells.shared().map(|(_, area)| area);
        let Some(area) = area.filter(|_| index == REGION_BAR_0) else {
            self.answer.extend_from_slice(info.as_bytes());
            return Ok(Attachment::Nothing);
        };
        let capability = sparse_capability(area);
        let whole = FIXED_BYTES + u32::try_from(capability.len()).map_err(|_| errno::EINVAL)?;
        let flags = RegionInfo::FLAG_MMAP | RegionInfo::FLAG_CAPS;
        info.flags = (info.flags.get() | flags).into();
        info.argsz = whole.into();
        if question.argsz.get() < whole {
            // The client learns how much room it takes and asks again.
            self.answer.extend_from_slice(info.as_bytes());
            return Ok(Attachment::Doorbells);
        }
        info.cap_offset = FIXED_BYTES.into();
        self.answer.extend_from_slice(info.as_bytes());
        self.answer.extend(capability);
        Ok(Attachment::Doorbells)
    }

    pub(super) fn read_region(&mut self, header: Header) -> Result<(), u32> {
        let access = self.question::<RegionAccess>(header)?;
        let (offset, length) = extent(access)?;
        self.answer.extend_from_slice(access.as_bytes());
        let source = match access.region.get() {
            REGION_BAR_0 => return self.read_register(offset, length),
            REGION_BAR_4 => self.configuration.table(),
            REGION_CONFIGURATION => self.configuration.space(),
            _ => return Err(errno::EINVAL),
        };
        let bytes = source.get(offset..offset.saturating_add(length));
        self.answer.extend_from_slice(bytes.ok_or(errno::EINVAL)?);
        Ok(())
    }

    fn read_register(&mut self, offset: usize, length: usize) -> Result<(), u32> {
        let at = self.register(offset, length)?;
        match length {
            4 => {
                let value = self.registers.read_u32(at);
                self.answer.extend_from_slice(&value.to_le_bytes());
            }
            _ => {
                let value = self.registers.read_u64(at);
                self.answer.extend_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }

    pub(super) fn write_region(&mut self, header: Header) -> Result<(), u32> {
        let payload = self.stream.payload(header);
        let (access, data) = split::<RegionAccess>(payload).map_err(|_short| errno::EINVAL)?;
        let (offset, length) = extent(access)?;
        if data.len() != length {
            return Err(errno::EINVAL);
        }
        let is_written = match access.region.get() {
            REGION_BAR_0 => {
                let at = self.register(offset, length)?;
                self.has_rung |= at >= DOORBELLS;
                write_register(self.registers, at, data)
            }
            REGION_BAR_4 => {
                let table = self.configuration.table_mut();
                let target = table.get_mut(offset..offset.saturating_add(length));
                target.is_some_and(|target| {
                    target.copy_from_slice(data);
                    true
                })
            }
            REGION_CONFIGURATION => self.configuration.write_space(offset, data),
            _ => false,
        };
        if !is_written {
            return Err(errno::EINVAL);
        }
        self.answer.extend_from_slice(access.as_bytes());
        Ok(())
    }

    /// Where a register access goes: 4 or 8 bytes, aligned, inside the region.
    fn register(&self, offset: usize, length: usize) -> Result<u32, u32> {
        let is_possible = (length == 4 || length == 8)
            && offset.is_multiple_of(length)
            && ((offset + length) as u64) <= self.doorbells.region_bytes();
        u32::try_from(offset)
            .ok()
            .filter(|_| is_possible)
            .ok_or(errno::EINVAL)
    }
}

fn write_register(registers: &impl Registers, at: u32, data: &[u8]) -> bool {
    if let Ok(bytes) = <[u8; 4]>::try_from(data) {
        registers.write_u32(at, u32::from_le_bytes(bytes));
        return true;
    }
    <[u8; 8]>::try_from(data).is_ok_and(|bytes| {
        registers.write_u64(at, u64::from_le_bytes(bytes));
        true
    })
}

/// Where an access begins and how long it is: bounded, and without an end past all numbers.
fn extent(access: RegionAccess) -> Result<(usize, usize), u32> {
    let offset = usize::try_from(access.offset.get()).map_err(|_| errno::EINVAL)?;
    let length = access.count.get() as usize;
    if length > DATA_BYTES_MAX || offset.checked_add(length).is_none() {
        return Err(errno::EINVAL);
    }
    Ok((offset, length))
}

/// A region's structure without capabilities.
const FIXED_BYTES: u32 = 32;
