//! From a connection to a controller that can be driven: version, device, regions, interrupts.

use std::os::fd::OwnedFd;

use lode_bus::MappedRegisters;
use zerocopy::IntoBytes;

use super::configuration;
use super::link::{Link, Question};
use super::registers::RegisterArea;
use crate::error::VfioUserError;
use crate::wire::{
    Area, Command, DeviceInfo, INTERRUPT_MSIX, InterruptInfo, REGION_BAR_0, REGION_CONFIGURATION,
    RegionInfo, RegionReply, Version, split,
};

/// What a server offers.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) can_reset: bool,
    pub(super) vector_count: u16,
    pub(super) length_bytes: u64,
    pub(super) areas: Vec<RegisterArea>,
    /// How many memories the server takes.
    pub(super) mappings_max: usize,
}

/// Asks everything that has to be known, and maps what can be mapped.
pub(super) fn ask_all(link: &mut Link) -> Result<Offer, VfioUserError> {
    let version = agree(link)?;
    let info: DeviceInfo = device_info(link)?;
    if info.flags.get() & DeviceInfo::FLAG_PCI == 0 {
        return Err(unusable("the device is no PCI function"));
    }
    if info.region_count.get() <= REGION_CONFIGURATION {
        return Err(unusable("the device has no configuration space"));
    }
    let (configuration_space, _none) = region(link, REGION_CONFIGURATION)?;
    if configuration_space.size < CONFIGURATION_BYTES_MIN {
        return Err(unusable("its configuration space is too small"));
    }
    configuration::check_class(link)?;
    let (bar, file) = region(link, REGION_BAR_0)?;
    if !(REGISTERS_BYTES_MIN..=REGISTERS_BYTES_MAX).contains(&bar.size) {
        return Err(unusable("BAR 0 is absent or of an implausible size"));
    }
    let rights = RegionInfo::FLAG_READ | RegionInfo::FLAG_WRITE;
    if bar.flags & rights != rights {
        return Err(unusable("BAR 0 cannot be read and written"));
    }
    let areas = bar
        .areas
        .iter()
        .map(|area| map(area, &bar, file.as_ref()))
        .collect::<Result<_, _>>()?;
    configuration::enable_function(link)?;
    Ok(Offer {
        can_reset: info.flags.get() & DeviceInfo::FLAG_RESET != 0,
        vector_count: vector_count(link, info)?,
        length_bytes: bar.size,
        areas,
        mappings_max: usize::try_from(version.capabilities.max_dma_maps).unwrap_or(usize::MAX),
    })
}

fn agree(link: &mut Link) -> Result<Version, VfioUserError> {
    let ours = Version::ours(MAPPINGS_MAX);
    let header = ask(link, Command::Version, &ours.to_bytes())?;
    let theirs = link.read_answer(header, Version::parse)?;
    if theirs.major != ours.major || theirs.minor > ours.minor {
        return Err(VfioUserError::Version {
            major: theirs.major,
            minor: theirs.minor,
        });
    }
    Ok(theirs)
}

fn device_info(link: &mut Link) -> Result<DeviceInfo, VfioUserError> {
    let question = DeviceInfo {
        argsz: length_of::<DeviceInfo>().into(),
        ..DeviceInfo::default()
    };
    let header = ask(link, Command::DeviceGetInfo, question.as_bytes())?;
    link.read_answer(header, |payload| split(payload).map(|(info, _)| info))
}

/// A region, with the descriptor that it can be mapped from.
fn region(link: &mut Link, index: u32) -> Result<(RegionReply, Option<OwnedFd>), VfioUserError> {
    let question = RegionInfo {
        argsz: REGION_ANSWER_BYTES.into(),
        index: index.into(),
        ..RegionInfo::default()
    };
    let header = ask(link, Command::DeviceGetRegionInfo, question.as_bytes())?;
    let reply = link.read_answer(header, |payload| RegionReply::parse(payload, index))?;
    let file = link.stream.take_descriptors().next();
    Ok((reply, file))
}

/// Maps an area after a look at the descriptor: a server that is known to lie is not mapped.
fn map(
    area: &Area,
    bar: &RegionReply,
    file: Option<&OwnedFd>,
) -> Result<RegisterArea, VfioUserError> {
    let file = file.ok_or(unusable(
        "BAR 0 can be mapped, but no descriptor came with it",
    ))?;
    let failed = |source| VfioUserError::System {
        operation: "mapping the registers",
        source,
    };
    let begin = bar.offset.saturating_add(area.offset.get());
    let end = begin.saturating_add(area.size.get());
    let status = rustix::fs::fstat(file).map_err(|error| failed(error.into()))?;
    if u64::try_from(status.st_size).is_ok_and(|held| held < end) {
        return Err(unusable(
            "the descriptor of BAR 0 is shorter than what is to be mapped",
        ));
    }
    let length = usize::try_from(area.size.get());
    let start = u32::try_from(area.offset.get());
    let (Ok(length), Ok(start)) = (length, start) else {
        return Err(unusable("an area of BAR 0 is of an implausible size"));
    };
    let registers = MappedRegisters::map(file, begin, length).map_err(failed)?;
    Ok(RegisterArea { start, registers })
}

fn vector_count(link: &mut Link, info: DeviceInfo) -> Result<u16, VfioUserError> {
    if info.interrupt_count.get() <= INTERRUPT_MSIX {
        return Ok(0);
    }
    let question = InterruptInfo {
        argsz: length_of::<InterruptInfo>().into(),
        index: INTERRUPT_MSIX.into(),
        ..InterruptInfo::default()
    };
    let header = ask(link, Command::DeviceGetIrqInfo, question.as_bytes())?;
    let info: InterruptInfo =
        link.read_answer(header, |payload| split(payload).map(|(info, _)| info))?;
    let count = info.count.get();
    Ok(u16::try_from(count).map_or(VECTORS_MAX, |count| count.min(VECTORS_MAX)))
}

fn ask(
    link: &mut Link,
    command: Command,
    fixed: &[u8],
) -> Result<crate::wire::Header, VfioUserError> {
    let patience = link.patience.setup;
    link.ask(command, Question::of(fixed), patience)
}

pub(super) fn length_of<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("a structure of the protocol is small")
}

const fn unusable(reason: &'static str) -> VfioUserError {
    VfioUserError::Unusable { reason }
}

/// What a server may expect of this client; it is given far fewer.
const MAPPINGS_MAX: u64 = 65_535;
/// Room for the capabilities of a region.
const REGION_ANSWER_BYTES: u32 = 4096;
/// The header of a configuration space.
const CONFIGURATION_BYTES_MIN: u64 = 64;
/// The registers and the doorbells of the admin queue (NVMe PCIe Transport 1.0 §3.1).
const REGISTERS_BYTES_MIN: u64 = 0x1008;
/// Doorbells of 65,536 queues at the widest stride end far below.
const REGISTERS_BYTES_MAX: u64 = 1 << 32;
/// One for each core of a large machine and some to spare.
const VECTORS_MAX: u16 = 256;
