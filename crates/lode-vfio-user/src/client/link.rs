//! Commands to the server and their replies, one at a time; and the answers to its own commands.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use zerocopy::IntoBytes;

use super::Patience;
use super::dma::DmaTable;
use crate::error::VfioUserError;
use crate::stream::{Allowance, Stream};
use crate::wire::{Command, DATA_BYTES_MAX, DmaAccess, Header, Kind, RegionAccess, split};

/// The client's end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    pub(super) patience: Patience,
    pub(super) memory: DmaTable,
    next_id: u16,
    /// The answer to a command for memory is put together here.
    data: Vec<u8>,
    loss: Option<String>,
    has_refused_post: bool,
}

/// What goes with a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Question<'a> {
    pub(super) fixed: &'a [u8],
    pub(super) data: &'a [u8],
    pub(super) descriptors: &'a [BorrowedFd<'a>],
}

impl<'a> Question<'a> {
    pub(super) const fn of(fixed: &'a [u8]) -> Self {
        Self {
            fixed,
            data: &[],
            descriptors: &[],
        }
    }
}

impl Link {
    pub(super) fn new(stream: Stream, patience: Patience) -> Self {
        Self {
            stream,
            patience,
            memory: DmaTable::default(),
            next_id: 1,
            data: vec![0; DATA_BYTES_MAX],
            loss: None,
            has_refused_post: false,
        }
    }

    /// Whether a write was refused that nobody waited for, since [`Link::forget_refused_post`].
    pub(super) const fn has_refused_post(&self) -> bool {
        self.has_refused_post
    }

    /// The controller begins anew.
    pub(super) const fn forget_refused_post(&mut self) {
        self.has_refused_post = false;
    }

    /// Why the server is gone, once it is.
    pub(super) fn loss(&self) -> Option<&str> {
        self.loss.as_deref()
    }

    /// Asks and waits for the answer, whose payload is in the stream then. Anything but an
    /// answer or a refusal loses the server.
    pub(super) fn ask(
        &mut self,
        command: Command,
        question: Question<'_>,
        patience: Duration,
    ) -> Result<Header, VfioUserError> {
        let outcome = self.exchange(command, question, patience);
        self.judge(outcome)
    }

    fn exchange(
        &mut self,
        command: Command,
        question: Question<'_>,
        patience: Duration,
    ) -> Result<Header, VfioUserError> {
        let allowance = self.begin(command.name(), patience)?;
        let header = self.header(command, question);
        let parts = [question.fixed, question.data];
        self.stream
            .send(header, parts, question.descriptors, allowance)?;
        loop {
            let received = self.stream.receive(allowance)?;
            let is_ours =
                received.message_id == header.message_id && received.command == header.command;
            match received.kind {
                Kind::Reply if is_ours => return Ok(received),
                Kind::Refusal { errno } if is_ours => {
                    return Err(VfioUserError::Refused {
                        command,
                        source: reason(errno),
                    });
                }
                _ => self.answer(received, allowance)?,
            }
        }
    }

    /// Reads a region until `target` is full.
    pub(super) fn read_region(
        &mut self,
        region: u32,
        offset: u64,
        target: &mut [u8],
        patience: Duration,
    ) -> Result<(), VfioUserError> {
        let access = region_access(region, offset, target.len());
        let question = Question::of(access.as_bytes());
        let header = self.ask(Command::RegionRead, question, patience)?;
        self.read_answer(header, |payload| {
            let (echo, data) = split::<RegionAccess>(payload)?;
            if echo != access || data.len() != target.len() {
                return Err(VfioUserError::Foreign {
                    reason: "the answer to a read is not what was asked for",
                });
            }
            target.copy_from_slice(data);
            Ok(())
        })
    }

    /// Writes to a region and waits until the server has taken it.
    pub(super) fn write_region(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
        patience: Duration,
    ) -> Result<(), VfioUserError> {
        let access = region_access(region, offset, data.len());
        let question = Question {
            fixed: access.as_bytes(),
            data,
            descriptors: &[],
        };
        self.ask(Command::RegionWrite, question, patience)
            .map(|_| ())
    }

    /// Writes to a region without waiting: for doorbells that are not mapped.
    pub(super) fn post(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<(), VfioUserError> {
        let access = region_access(region, offset, data.len());
        let question = Question {
            fixed: access.as_bytes(),
            data,
            descriptors: &[],
        };
        let patience = self.patience.request;
        let outcome = self
            .begin(Command::RegionWrite.name(), patience)
            .and_then(|allowance| {
                let header = Header {
                    kind: Kind::Command { wants_reply: false },
                    ..self.header(Command::RegionWrite, question)
                };
                self.stream
                    .send(header, [question.fixed, data], &[], allowance)
            });
        self.judge(outcome)
    }

    /// Answers what the server has asked by itself; returns how much that was, at most
    /// [`ANSWERS_MAX`]. Waits only for the rest of a message that has begun.
    pub(super) fn serve(&mut self) -> Result<usize, VfioUserError> {
        let outcome = self.serve_pending();
        self.judge(outcome)
    }

    fn serve_pending(&mut self) -> Result<usize, VfioUserError> {
        let allowance = self.begin("its own commands", self.patience.request)?;
        for count in 0..ANSWERS_MAX {
            let Some(header) = self.stream.receive_begun(allowance)? else {
                return Ok(count);
            };
            self.answer(header, allowance)?;
        }
        Ok(ANSWERS_MAX)
    }

    fn begin(&self, during: &'static str, patience: Duration) -> Result<Allowance, VfioUserError> {
        match self.loss {
            Some(_) => Err(VfioUserError::Lost),
            None => Ok(self.stream.allow(during, patience)),
        }
    }

    fn header(&mut self, command: Command, question: Question<'_>) -> Header {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        Header::command(command, id, question.fixed.len() + question.data.len())
    }

    /// Loses the server after anything but a refusal.
    fn judge<T>(&mut self, outcome: Result<T, VfioUserError>) -> Result<T, VfioUserError> {
        outcome.map_err(|error| {
            if error.leaves_the_link() {
                return error;
            }
            self.lose(error)
        })
    }

    /// Reads an answer that was received; one that makes no sense loses the server.
    pub(super) fn read_answer<T>(
        &mut self,
        header: Header,
        read: impl FnOnce(&[u8]) -> Result<T, VfioUserError>,
    ) -> Result<T, VfioUserError> {
        let outcome = read(self.stream.payload(header));
        self.judge(outcome)
    }

    /// Loses the server for what its last answer says.
    fn lose(&mut self, error: VfioUserError) -> VfioUserError {
        self.stream.close();
        self.loss.get_or_insert_with(|| described(&error));
        error
    }

    /// Answers one message that is not the awaited reply.
    fn answer(&mut self, header: Header, allowance: Allowance) -> Result<(), VfioUserError> {
        let wants_reply = match header.kind {
            Kind::Command { wants_reply } => wants_reply,
            // A server may answer a posted write although it need not.
            Kind::Reply if header.command == Command::RegionWrite.number() => return Ok(()),
            Kind::Refusal { .. } if header.command == Command::RegionWrite.number() => {
                self.has_refused_post = true;
                return Ok(());
            }
            Kind::Reply | Kind::Refusal { .. } => {
                return Err(VfioUserError::Foreign {
                    reason: "a reply to what was not asked",
                });
            }
        };
        let (reply, fixed, length) = match self.access(header) {
            Ok((access, length)) => (
                header.answer(size_of::<DmaAccess>() + length),
                access,
                length,
            ),
            Err(errno) => (header.refusal(errno), DmaAccess::default(), 0),
        };
        if !wants_reply {
            return Ok(());
        }
        let fixed = match reply.kind {
            Kind::Refusal { .. } => &[][..],
            _ => fixed.as_bytes(),
        };
        let data = self.data.get(..length).unwrap_or_default();
        self.stream.send(reply, [fixed, data], &[], allowance)
    }

    /// Reads or writes this process' memory for the server. Returns how many bytes of
    /// [`Link::data`] go with the answer, or an errno.
    fn access(&mut self, header: Header) -> Result<(DmaAccess, usize), u32> {
        let command = Command::from_number(header.command);
        let payload = self.stream.payload(header);
        let (access, data) = split::<DmaAccess>(payload).map_err(|_short| EINVAL)?;
        let length = usize::try_from(access.count.get())
            .ok()
            .filter(|length| *length <= DATA_BYTES_MAX)
            .ok_or(EINVAL)?;
        let address = access.address.get();
        let is_done = match command {
            Some(Command::DmaRead) => {
                let target = self.data.get_mut(..length).ok_or(EINVAL)?;
                self.memory.read(address, target)
            }
            Some(Command::DmaWrite) => {
                let source = data.get(..length).ok_or(EINVAL)?;
                self.memory.write(address, source)
            }
            _ => return Err(ENOTSUP),
        };
        let returned = match command {
            Some(Command::DmaRead) => length,
            _ => 0,
        };
        is_done.then_some((access, returned)).ok_or(EFAULT)
    }
}

fn region_access(region: u32, offset: u64, length: usize) -> RegionAccess {
    RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: u32::try_from(length).unwrap_or(u32::MAX).into(),
    }
}

/// An error with its cause.
fn described(error: &VfioUserError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn reason(errno: u32) -> io::Error {
    match i32::try_from(errno) {
        Ok(errno) if errno > 0 => io::Error::from_raw_os_error(errno),
        _ => io::Error::other("it gives no reason"),
    }
}

/// Commands of the server that are answered in one go.
const ANSWERS_MAX: usize = 64;
const EFAULT: u32 = 14;
const EINVAL: u32 = 22;
const ENOTSUP: u32 = 95;
