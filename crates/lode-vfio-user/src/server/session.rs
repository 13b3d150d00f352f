//! One client: its messages, and all that has to be undone when it leaves.

mod regions;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use lode_bus::Bus;
use lode_units::Instant;
use zerocopy::{FromBytes, IntoBytes};

use super::configuration::Configuration;
use super::doorbells::Doorbells;
use super::interrupts::ClientInterrupts;
use super::memory::{ClientMemory, MAPPINGS_MAX};
use crate::error::VfioUserError;
use crate::stream::Stream;
use crate::wire::{
    Command, DESCRIPTORS_MAX, DeviceInfo, DmaMap, DmaUnmap, Header, INTERRUPT_MSIX,
    INTERRUPT_TYPE_COUNT, InterruptInfo, InterruptSet, Kind, REGION_COUNT, Version, split,
};

/// A client's stay.
#[derive(Debug)]
pub(super) struct Session<'a, B: Bus> {
    stream: Stream,
    bus: &'a B,
    registers: &'a B::Registers,
    doorbells: &'a mut Doorbells,
    memory: ClientMemory,
    interrupts: ClientInterrupts,
    configuration: Configuration,
    has_agreed: bool,
    /// A message brought a doorbell, or came behind some, since doorbells were asked for.
    has_rung: bool,
    /// The answer that is being put together.
    answer: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// Whether messages may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backlog {
    /// The client is there and has nothing more to say.
    Empty,
    /// There may be more, or its end.
    More,
}

/// What goes with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attachment {
    Nothing,
    /// The descriptor of the doorbells.
    Doorbells,
}

impl<'a, B: Bus> Session<'a, B> {
    pub(super) fn new(
        stream: Stream,
        bus: &'a B,
        registers: &'a B::Registers,
        doorbells: &'a mut Doorbells,
    ) -> Result<Self, VfioUserError> {
        let vector_count = bus.interrupt_count();
        Ok(Self {
            configuration: Configuration::new(vector_count, doorbells.region_bytes()),
            interrupts: ClientInterrupts::new(vector_count)?,
            stream,
            bus,
            registers,
            doorbells,
            memory: ClientMemory::default(),
            has_agreed: false,
            has_rung: false,
            answer: Vec::with_capacity(ANSWER_BYTES),
            descriptors: Vec::with_capacity(DESCRIPTORS_MAX),
        })
    }

    pub(super) fn has_mapped_doorbells(&self) -> bool {
        self.doorbells.shared().is_some()
    }

    /// See [`Doorbells::forward`]; true also when messages did so since the last call. After a
    /// sleep every doorbell is looked at: the next look may be as long away.
    pub(super) fn forward_doorbells(&mut self, has_slept: bool) -> bool {
        let has_rung = if has_slept {
            self.doorbells.forward_all(self.registers)
        } else {
            self.doorbells.forward(self.registers)
        };
        std::mem::take(&mut self.has_rung) || has_rung
    }

    /// Lets the controller work.
    pub(super) fn advance(&self, now: Instant) -> Option<Instant> {
        self.bus.advance(now)
    }

    /// Takes everything back that the client was given, and the controller with it.
    pub(super) fn end(mut self) {
        self.stream.close();
        // A controller that is gone cannot be reset, and need not be.
        let _is_gone = self.bus.reset_function().is_err();
        self.memory.clear(self.bus);
        self.interrupts.clear(self.bus);
        self.doorbells.clear();
    }

    /// Handles the messages that are there, a few at a time.
    pub(super) fn handle(&mut self) -> Result<Backlog, VfioUserError> {
        for _ in 0..MESSAGES_MAX {
            let allowance = self.stream.allow("a message", MESSAGE_PATIENCE);
            let Some(header) = self.stream.receive_begun(allowance)? else {
                return Ok(Backlog::Empty);
            };
            let Kind::Command { wants_reply } = header.kind else {
                return Err(VfioUserError::Foreign {
                    reason: "a reply to what was not asked",
                });
            };
            self.descriptors.clear();
            self.descriptors.extend(self.stream.take_descriptors());
            // What the client rang before it sent this comes before this.
            self.has_rung |= self.doorbells.forward_all(self.registers);
            self.answer.clear();
            let outcome = self.answer_to(header);
            if wants_reply {
                self.reply(header, outcome)?;
            }
            if !self.has_agreed {
                return Err(VfioUserError::Foreign {
                    reason: "it did not begin with a version that is spoken here",
                });
            }
        }
        Ok(Backlog::More)
    }

    fn reply(&self, header: Header, outcome: Result<Attachment, u32>) -> Result<(), VfioUserError> {
        let allowance = self.stream.allow("an answer", MESSAGE_PATIENCE);
        let attachment = match outcome {
            Ok(attachment) => attachment,
            Err(errno) => {
                let refusal = header.refusal(errno);
                return self.stream.send(refusal, [&[], &[]], &[], allowance);
            }
        };
        let file = match attachment {
            Attachment::Nothing => None,
            Attachment::Doorbells => self.doorbells.shared().and_then(|(page, _)| page.file()),
        };
        let parts = [self.answer.as_slice(), &[]];
        let answer = header.answer(self.answer.len());
        match file {
            Some(file) => self.stream.send(answer, parts, &[file], allowance),
            None => self.stream.send(answer, parts, &[], allowance),
        }
    }

    /// Does what a command asks and puts the answer together, or says which errno refuses it.
    fn answer_to(&mut self, header: Header) -> Result<Attachment, u32> {
        let command = Command::from_number(header.command).ok_or(errno::ENOTSUP)?;
        if !self.has_agreed && command != Command::Version {
            return Err(errno::EPROTO);
        }
        match command {
            Command::Version => self.agree(header)?,
            Command::DmaMap => {
                let map = self.question::<DmaMap>(header)?;
                let file = self.descriptors.drain(..).next();
                self.memory.map(map, file, self.bus)?;
            }
            Command::DmaUnmap => {
                let unmap = self.question::<DmaUnmap>(header)?;
                self.memory.unmap(unmap, self.bus)?;
                self.answer.extend_from_slice(unmap.as_bytes());
            }
            Command::DeviceGetInfo => self.tell_device(),
            Command::DeviceGetRegionInfo => return self.tell_region(header),
            Command::DeviceGetIrqInfo => self.tell_interrupts(header)?,
            Command::DeviceSetIrqs => {
                let set = self.question::<InterruptSet>(header)?;
                self.interrupts.set(set, &self.descriptors, self.bus)?;
            }
            Command::RegionRead => self.read_region(header)?,
            Command::RegionWrite => self.write_region(header)?,
            Command::DeviceReset => self.bus.reset_function().map_err(|_gone| errno::EIO)?,
            Command::DmaRead | Command::DmaWrite => return Err(errno::ENOTSUP),
        }
        Ok(Attachment::Nothing)
    }

    fn agree(&mut self, header: Header) -> Result<(), u32> {
        let theirs = Version::parse(self.stream.payload(header)).map_err(|_| errno::EINVAL)?;
        let ours = Version::ours(MAPPINGS_MAX as u64);
        if theirs.major != ours.major {
            return Err(errno::ENOTSUP);
        }
        let agreed = Version {
            minor: ours.minor.min(theirs.minor),
            ..ours
        };
        self.answer.extend(agreed.to_bytes());
        self.has_agreed = true;
        Ok(())
    }

    fn tell_device(&mut self) {
        let info = DeviceInfo {
            argsz: 16.into(),
            flags: (DeviceInfo::FLAG_PCI | DeviceInfo::FLAG_RESET).into(),
            region_count: REGION_COUNT.into(),
            interrupt_count: INTERRUPT_TYPE_COUNT.into(),
        };
        self.answer.extend_from_slice(info.as_bytes());
    }

    fn tell_interrupts(&mut self, header: Header) -> Result<(), u32> {
        let question = self.question::<InterruptInfo>(header)?;
        let index = question.index.get();
        let (flags, count) = match index {
            INTERRUPT_MSIX => (InterruptInfo::FLAG_EVENTFD, self.bus.interrupt_count()),
            index if index < INTERRUPT_TYPE_COUNT => (0, 0),
            _ => return Err(errno::EINVAL),
        };
        let info = InterruptInfo {
            argsz: 16.into(),
            flags: flags.into(),
            index: index.into(),
            count: u32::from(count).into(),
        };
        self.answer.extend_from_slice(info.as_bytes());
        Ok(())
    }

    /// The fixed part of a message.
    fn question<T: FromBytes>(&self, header: Header) -> Result<T, u32> {
        split(self.stream.payload(header))
            .map(|(value, _)| value)
            .map_err(|_short| errno::EINVAL)
    }
}

impl<B: Bus> AsFd for Session<'_, B> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The error numbers that refusals carry.
pub(super) mod errno {
    pub(in crate::server) const ENOENT: u32 = 2;
    pub(in crate::server) const EIO: u32 = 5;
    pub(in crate::server) const EEXIST: u32 = 17;
    pub(in crate::server) const EINVAL: u32 = 22;
    pub(in crate::server) const ENOSPC: u32 = 28;
    pub(in crate::server) const EPROTO: u32 = 71;
    pub(in crate::server) const ENOTSUP: u32 = 95;
}

/// Messages in one go, before the doorbells are looked at again.
const MESSAGES_MAX: usize = 16;
/// For the rest of a message that has begun, and for the client to take an answer.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(2);
/// Answers without much data need no more room.
const ANSWER_BYTES: usize = 4096;
