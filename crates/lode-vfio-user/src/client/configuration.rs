//! The configuration space of a served function (PCI Local Bus 3.0 §6).

use super::link::Link;
use crate::error::VfioUserError;
use crate::wire::REGION_CONFIGURATION;

/// Checks that the function is an NVMe controller.
pub(super) fn check_class(link: &mut Link) -> Result<(), VfioUserError> {
    let revision_and_class = u32::from_le_bytes(read(link, CLASS_OFFSET)?);
    let class_code = revision_and_class >> 8;
    if class_code != CLASS_NVME {
        return Err(VfioUserError::NotNvme { class_code });
    }
    Ok(())
}

/// Lets the function decode its registers and access memory; pin interrupts stay off.
pub(super) fn enable_function(link: &mut Link) -> Result<(), VfioUserError> {
    let command = u16::from_le_bytes(read(link, COMMAND_OFFSET)?);
    let wanted = command | COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_PIN_INTERRUPT;
    if command == wanted {
        return Ok(());
    }
    write(link, COMMAND_OFFSET, wanted)
}

/// Switches MSI-X on, for servers that look at it before they fire.
pub(super) fn enable_msix(link: &mut Link) -> Result<(), VfioUserError> {
    let Some(at) = msix_control(link)? else {
        return Ok(());
    };
    let control = u16::from_le_bytes(read(link, at)?);
    write(link, at, control | MSIX_ENABLE)
}

/// Where the control word of the MSI-X capability lies.
fn msix_control(link: &mut Link) -> Result<Option<u64>, VfioUserError> {
    let status = u16::from_le_bytes(read(link, STATUS_OFFSET)?);
    if status & STATUS_HAS_CAPABILITIES == 0 {
        return Ok(None);
    }
    let [mut at] = read(link, CAPABILITIES_OFFSET)?;
    for _ in 0..CAPABILITIES_MAX {
        // The two low bits are reserved.
        at &= !3;
        if at == 0 {
            return Ok(None);
        }
        let [id, next] = read(link, at.into())?;
        if id == CAPABILITY_MSIX {
            return Ok(Some(u64::from(at) + 2));
        }
        at = next;
    }
    Err(VfioUserError::Unusable {
        reason: "its list of capabilities has no end",
    })
}

fn read<const N: usize>(link: &mut Link, offset: u64) -> Result<[u8; N], VfioUserError> {
    let mut bytes = [0; N];
    let patience = link.patience.setup;
    link.read_region(REGION_CONFIGURATION, offset, &mut bytes, patience)?;
    Ok(bytes)
}

fn write(link: &mut Link, offset: u64, value: u16) -> Result<(), VfioUserError> {
    let patience = link.patience.setup;
    link.write_region(REGION_CONFIGURATION, offset, &value.to_le_bytes(), patience)
}

/// Mass storage, non-volatile memory, NVM Express.
const CLASS_NVME: u32 = 0x01_08_02;
const COMMAND_OFFSET: u64 = 4;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_PIN_INTERRUPT: u16 = 1 << 10;
const STATUS_OFFSET: u64 = 6;
const STATUS_HAS_CAPABILITIES: u16 = 1 << 4;
const CLASS_OFFSET: u64 = 8;
const CAPABILITIES_OFFSET: u64 = 0x34;
const CAPABILITY_MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;
/// More do not fit between the header and the end of 256 bytes.
const CAPABILITIES_MAX: usize = 48;
