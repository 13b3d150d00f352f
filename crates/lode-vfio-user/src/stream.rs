//! Whole messages over a stream socket, with descriptors beside them and a deadline for each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use lode_units::{Clock, Instant, MonotonicClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, recvmsg, sendmsg, shutdown, socket_with,
};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::VfioUserError;
use crate::wire::{DESCRIPTORS_MAX, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, RawHeader};

/// A connection. Its one buffer for payloads is allocated with it.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    clock: MonotonicClock,
    payload: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// How long something may take, and what it is called when it takes longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) during: &'static str,
    pub(crate) patience: Duration,
    deadline: Instant,
}

impl Stream {
    pub(crate) fn new(socket: UnixStream, clock: MonotonicClock) -> Self {
        Self {
            socket,
            clock,
            payload: vec![0; PAYLOAD_BYTES_MAX],
            descriptors: Vec::with_capacity(DESCRIPTORS_MAX),
        }
    }

    /// Connects to `path`. Does not block: a server whose queue of connections is full counts as
    /// one that does not answer.
    pub(crate) fn connect(path: &Path, clock: MonotonicClock) -> Result<Self, VfioUserError> {
        let failed = |error: Errno| match error {
            Errno::NOENT | Errno::NOTDIR => VfioUserError::NoSocket {
                path: path.to_owned(),
            },
            error => VfioUserError::NotServed {
                path: path.to_owned(),
                source: error.into(),
            },
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        Ok(Self::new(socket.into(), clock))
    }

    /// `patience` from now on.
    pub(crate) fn allow(&self, during: &'static str, patience: Duration) -> Allowance {
        Allowance {
            during,
            patience,
            deadline: self.clock.now() + patience,
        }
    }

    /// The payload of the message that was received last.
    pub(crate) fn payload(&self, header: Header) -> &[u8] {
        self.payload.get(..header.payload_bytes).unwrap_or_default()
    }

    /// The descriptors that came with the message that was received last.
    pub(crate) fn take_descriptors(&mut self) -> impl Iterator<Item = OwnedFd> + '_ {
        self.descriptors.drain(..)
    }

    /// Sends a message whose payload is `parts`.
    pub(crate) fn send(
        &self,
        header: Header,
        parts: [&[u8]; 2],
        descriptors: &[BorrowedFd<'_>],
        allowance: Allowance,
    ) -> Result<(), VfioUserError> {
        let raw = header.to_raw();
        let mut rest = [raw.as_bytes(), parts[0], parts[1]];
        let mut descriptors = descriptors;
        loop {
            match self.send_some(rest, descriptors) {
                Ok(sent) => {
                    descriptors = &[];
                    if advance(&mut rest, sent) {
                        return Ok(());
                    }
                }
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, allowance)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(error, allowance)),
            }
        }
    }

    /// The next message, whole: its payload and descriptors are held until the next one.
    pub(crate) fn receive(&mut self, allowance: Allowance) -> Result<Header, VfioUserError> {
        loop {
            // Also when messages never stop coming.
            self.rest(allowance)?;
            if let Some(header) = self.receive_begun(allowance)? {
                return Ok(header);
            }
            self.wait(PollFlags::IN, allowance)?;
        }
    }

    /// The next message if there is one. Once its first byte is there the rest is waited for.
    pub(crate) fn receive_begun(
        &mut self,
        allowance: Allowance,
    ) -> Result<Option<Header>, VfioUserError> {
        self.descriptors.clear();
        let mut raw = RawHeader::new_zeroed();
        let first = match self.receive_some(raw.as_mut_bytes()) {
            Ok(0) => return Err(closed(allowance)),
            Ok(first) => first,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(broken(error, allowance)),
        };
        self.fill(&mut raw.as_mut_bytes()[first..], allowance)?;
        let header = Header::parse(raw)?;
        let mut payload = std::mem::take(&mut self.payload);
        let outcome = self.fill(&mut payload[..header.payload_bytes], allowance);
        self.payload = payload;
        outcome.map(|()| Some(header))
    }

    /// Receives until `target` is full.
    fn fill(&mut self, mut target: &mut [u8], allowance: Allowance) -> Result<(), VfioUserError> {
        while !target.is_empty() {
            match self.receive_some(target) {
                Ok(0) => return Err(closed(allowance)),
                Ok(count) => target = target.split_at_mut(count).1,
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, allowance)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(broken(error, allowance)),
            }
        }
        Ok(())
    }

    fn send_some(&self, parts: [&[u8]; 3], descriptors: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let slices = parts.map(IoSlice::new);
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOMANYREFS);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &slices, &mut control, flags)
    }

    /// Receives what is there, with its descriptors. One system call.
    fn receive_some(&mut self, target: &mut [u8]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(target)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.socket, &mut slices, &mut control, flags)?;
        let has_more = received.flags.contains(ReturnFlags::CTRUNC);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if has_more || self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(Errno::TOOMANYREFS);
        }
        Ok(received.bytes)
    }

    /// What is left of an allowance.
    fn rest(&self, allowance: Allowance) -> Result<Duration, VfioUserError> {
        let rest = allowance
            .deadline
            .saturating_duration_since(self.clock.now());
        if rest.is_zero() {
            return Err(VfioUserError::Silent {
                during: allowance.during,
                patience: allowance.patience,
            });
        }
        Ok(rest)
    }

    fn wait(&self, events: PollFlags, allowance: Allowance) -> Result<(), VfioUserError> {
        let rest = self.rest(allowance)?;
        match poll(
            &mut [PollFd::new(&self.socket, events)],
            Some(&timespec(rest)),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(broken(error, allowance)),
        }
    }

    /// Ends the connection: the other side learns of it at once.
    pub(crate) fn close(&self) {
        // Refused only when the other side was first.
        let _is_closed_already = shutdown(&self.socket, Shutdown::Both).is_err();
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Drops the first `sent` bytes; true when nothing is left.
fn advance(rest: &mut [&[u8]; 3], mut sent: usize) -> bool {
    for part in rest.iter_mut() {
        let step = sent.min(part.len());
        *part = part.split_at(step).1;
        sent -= step;
    }
    rest.iter().all(|part| part.is_empty())
}

fn closed(allowance: Allowance) -> VfioUserError {
    VfioUserError::Closed {
        during: allowance.during,
    }
}

fn broken(error: Errno, allowance: Allowance) -> VfioUserError {
    match error {
        Errno::CONNRESET | Errno::PIPE => closed(allowance),
        Errno::TOOMANYREFS => VfioUserError::Foreign {
            reason: "a message has more descriptors than any may have",
        },
        error => VfioUserError::System {
            operation: allowance.during,
            source: io::Error::from(error),
        },
    }
}

/// A duration as the kernel wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::Command;

    const BRIEF: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (Stream, Stream) {
        let (one, other) = UnixStream::pair().expect("sockets");
        let clock = MonotonicClock::new();
        (Stream::new(one, clock), Stream::new(other, clock))
    }

    #[test]
    fn a_message_comes_with_its_payload_and_its_descriptors() {
        let (one, mut other) = pair();
        let file = tempfile::tempfile().expect("a file");
        let header = Header::command(Command::DmaMap, 9, 5);
        let allowance = one.allow("a test", LONG);
        one.send(header, [b"abc", b"de"], &[file.as_fd()], allowance)
            .expect("sent");
        let received = other.receive(allowance).expect("received");
        assert_eq!(received, header);
        assert_eq!(other.payload(received), b"abcde");
        assert_eq!(other.take_descriptors().count(), 1);
    }

    #[test]
    fn messages_that_lie_in_the_socket_together_are_told_apart() {
        let (one, mut other) = pair();
        let allowance = one.allow("a test", LONG);
        for id in 0..3 {
            let header = Header::command(Command::RegionRead, id, 2);
            one.send(header, [b"xy", &[]], &[], allowance)
                .expect("sent");
        }
        for id in 0..3 {
            let header = other.receive(allowance).expect("received");
            assert_eq!(header.message_id, id);
        }
        assert!(other.receive_begun(allowance).expect("nothing").is_none());
    }

    #[test]
    fn a_peer_that_stops_in_the_middle_is_given_up_at_the_deadline() {
        for length in [1, 15, 16, 20] {
            let (one, mut other) = pair();
            let raw = Header::command(Command::RegionRead, 1, 16).to_raw();
            let bytes = [raw.as_bytes(), &[0; 16]].concat();
            (&one.socket).write_all(&bytes[..length]).expect("sent");
            let outcome = other.receive(other.allow("a test", BRIEF));
            assert!(matches!(outcome, Err(VfioUserError::Silent { .. })));
        }
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up_at_the_deadline() {
        let (one, _other) = pair();
        let data = vec![0; PAYLOAD_BYTES_MAX];
        let header = Header::command(Command::RegionWrite, 1, data.len());
        let outcome = one.send(header, [&data, &[]], &[], one.allow("a test", BRIEF));
        assert!(matches!(outcome, Err(VfioUserError::Silent { .. })));
    }

    #[test]
    fn a_peer_that_closes_is_told_apart_from_one_that_is_silent() {
        let (one, mut other) = pair();
        drop(one);
        let outcome = other.receive(other.allow("a test", LONG));
        assert!(matches!(outcome, Err(VfioUserError::Closed { .. })));
        let outcome = other.send(
            Header::command(Command::Version, 1, 0),
            [&[], &[]],
            &[],
            other.allow("a test", LONG),
        );
        assert!(matches!(outcome, Err(VfioUserError::Closed { .. })));
    }

    #[test]
    fn more_descriptors_than_fit_are_closed_and_refused() {
        let (one, mut other) = pair();
        let file = tempfile::tempfile().expect("a file");
        let many = [file.as_fd(); DESCRIPTORS_MAX];
        let allowance = one.allow("a test", LONG);
        let header = Header::command(Command::DmaMap, 1, 1);
        // The first byte of the payload brings another set.
        one.send(header, [&[], &[]], &many, allowance)
            .expect("sent");
        one.send(header, [&[], &[]], &many, allowance)
            .expect("sent");
        let outcome = other.receive(allowance);
        assert!(matches!(outcome, Err(VfioUserError::Foreign { .. })));
    }
}
