//! Clients that lie to our server: refused, and the next client finds it as it was.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use lode_vfio_user::{DoorbellTransport, VfioUserError};

use crate::rig::{Rig, Served, emulator};
use crate::script::{
    DMA_UNMAP, REGION_INFO, REGION_READ, REGION_WRITE, Sent, VERSION, message, receive, send, word,
    words,
};

/// A client in bytes that has agreed on the version.
struct Client {
    socket: UnixStream,
    served: Served,
}

impl Client {
    fn new() -> Self {
        let client = Self::unversed();
        let version = client.ask(VERSION, b"\0\0\x01\0{}\0", None);
        assert!(version.is_ok());
        client
    }

    fn unversed() -> Self {
        let (served, socket) = Served::start(emulator("lba=4096"), DoorbellTransport::Mapped);
        Self { socket, served }
    }

    /// The payload of the answer, or the errno of the refusal.
    fn ask(&self, command: u16, payload: &[u8], file: Option<OwnedFd>) -> Result<Vec<u8>, u32> {
        let sent = Sent {
            bytes: message([5, 0], command, 0, 0, payload),
            file,
        };
        send(&self.socket, &sent);
        let mut header = [0; 16];
        let mut socket = &self.socket;
        std::io::Read::read_exact(&mut socket, &mut header).expect("an answer");
        let mut payload = vec![0; word(&header, 4) as usize - 16];
        std::io::Read::read_exact(&mut socket, &mut payload).expect("an answer");
        match word(&header, 8) {
            1 => Ok(payload),
            _ => Err(word(&header, 12)),
        }
    }

    fn map(&self, range: [u64; 3], flags: u32, file: Option<OwnedFd>) -> Result<(), u32> {
        let mut payload = words(&[32, flags]);
        payload.extend(range.iter().flat_map(|value| value.to_le_bytes()));
        self.ask(2, &payload, file).map(|_| ())
    }

    fn leave(self) -> Result<(), VfioUserError> {
        drop(self.socket);
        self.served.outcome()
    }
}

fn file(length: u64) -> Option<OwnedFd> {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(length).expect("length");
    Some(file.into())
}

fn eventfd() -> Option<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    Some(rustix::event::eventfd(0, flags).expect("an eventfd"))
}

const EINVAL: u32 = 22;

#[test]
fn memory_that_is_not_what_the_client_says_is_refused() {
    let client = Client::new();
    for (range, file) in [
        ([0, 0x1000, 0], file(0x1000)),
        ([0, 0x1001, 0x1000], file(0x1000)),
        ([0, 0x1000, 0x1001], file(0x2000)),
        ([0x10, 0x1000, 0x1000], file(0x2000)),
        ([0, u64::MAX - 0xFFF, 0x1000], file(0x1000)),
        ([0, 0x1000, u64::MAX - 0xFFF], file(0x1000)),
        ([u64::MAX - 0xFFF, 0x1000, 0x1000], file(0x1000)),
        ([0, 0x1000, 0x2000], file(0x1FFF)),
        (
            [0, 0x1000, 0x1000],
            Some(std::io::pipe().expect("a pipe").0.into()),
        ),
    ] {
        assert_eq!(client.map(range, 3, file), Err(EINVAL), "{range:x?}");
    }
    assert_eq!(client.map([0, 0x1000, 0x2000], 3, file(0x2000)), Ok(()));
    assert_eq!(client.map([0, 0x2000, 0x1000], 3, file(0x1000)), Err(17));
    // Without a descriptor, or not for writing: taken note of, and out of the controller's reach.
    assert_eq!(client.map([0, 0x8000, 0x1000], 3, None), Ok(()));
    assert_eq!(client.map([0, 0x9000, 0x1000], 1, file(0x1000)), Ok(()));
    let mut unmap = words(&[24, 0]);
    unmap.extend(
        [0x1000_u64, 0x1000]
            .iter()
            .flat_map(|value| value.to_le_bytes()),
    );
    assert_eq!(client.ask(DMA_UNMAP, &unmap, None), Err(2));
    unmap[16..].copy_from_slice(&0x2000_u64.to_le_bytes());
    assert!(client.ask(DMA_UNMAP, &unmap, None).is_ok());
    assert_eq!(client.ask(DMA_UNMAP, &unmap, None), Err(2));
    client.leave().expect("in good order");
}

#[test]
fn interrupts_go_into_eventfds_of_vectors_that_exist_and_nowhere_else() {
    let client = Client::new();
    let set = |flags, index, start, count, file| {
        let payload = words(&[20, flags, index, start, count]);
        client.ask(8, &payload, file)
    };
    assert!(set(0x24, 2, 0, 1, eventfd()).is_ok());
    assert!(set(0x24, 2, 0, 1, None).is_ok(), "taken away");
    assert!(set(0x21, 2, 0, 0, None).is_ok(), "all of them");
    for (flags, index, start, count, file) in [
        (0x24, 2, 0, 1, file(8)),
        (0x24, 2, 0, 2, eventfd()),
        (0x24, 2, 65, 1, eventfd()),
        (0x24, 2, u32::MAX, 1, eventfd()),
        (0x24, 2, 0, u32::MAX, None),
        (0x24, 1, 0, 1, eventfd()),
        (0x24, 9, 0, 1, eventfd()),
        (0x21, 2, 0, 1, None),
        (0xFF, 2, 0, 1, eventfd()),
    ] {
        assert_eq!(set(flags, index, start, count, file), Err(EINVAL));
    }
    client.leave().expect("in good order");
}

#[test]
fn registers_and_configuration_are_read_and_written_inside_their_bounds_only() {
    let client = Client::new();
    let access = |command, region: u32, offset: u64, count: u32, data: &[u8]| {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend(words(&[region, count]));
        payload.extend(data);
        client.ask(command, &payload, None)
    };
    let class = access(REGION_READ, 7, 8, 4, &[]).expect("the class");
    assert_eq!(class[17..], [0x02, 0x08, 0x01]);
    assert!(access(REGION_READ, 0, 0, 8, &[]).is_ok());
    assert!(access(REGION_WRITE, 4, 0, 16, &[1; 16]).is_ok());
    let vector = access(REGION_READ, 4, 8, 4, &[]).expect("the table");
    assert_eq!(vector[16..], [1; 4]);
    for (command, region, offset, count, data) in [
        (REGION_READ, 0, 1, 4, &[][..]),
        (REGION_READ, 0, 0, 3, &[]),
        (REGION_READ, 0, 0, 0, &[]),
        (REGION_READ, 0, u64::MAX - 3, 4, &[]),
        (REGION_READ, 0, 1 << 40, 4, &[]),
        (REGION_READ, 7, 253, 4, &[]),
        (REGION_READ, 7, 0, u32::MAX, &[]),
        (REGION_READ, 3, 0, 4, &[]),
        (REGION_READ, u32::MAX, 0, 4, &[]),
        (REGION_WRITE, 0, 0x14, 4, &[0; 3]),
        (REGION_WRITE, 0, 0x14, 4, &[0; 8]),
        (REGION_WRITE, 4, u64::MAX, 1, &[0]),
        (REGION_WRITE, 7, 256, 1, &[0]),
    ] {
        let outcome = access(command, region, offset, count, data);
        assert_eq!(
            outcome,
            Err(EINVAL),
            "{command} {region} {offset:x} {count}"
        );
    }
    for region in [9, u32::MAX] {
        let question = words(&[4096, 0, region, 0, 0, 0, 0, 0]);
        assert_eq!(client.ask(REGION_INFO, &question, None), Err(EINVAL));
    }
    for command in [0, 6, 11, 12, 14, 0xFFFF] {
        assert_eq!(client.ask(command, &[0; 64], None), Err(95));
    }
    for command in [2, 3, 5, 7, 8, 9, 10] {
        assert_eq!(client.ask(command, &[0; 3], None), Err(EINVAL), "{command}");
    }
    client.leave().expect("in good order");
}

#[test]
fn what_is_no_message_ends_the_clients_stay() {
    for bytes in [
        vec![0xFF; 64],
        vec![0; 16],
        message([1, 0], VERSION, 1, 0, &[]),
        message([1, 0], 4, 0, 0, &[0; 16]),
        message([1, 0], VERSION, 0, 0, b"\x07\0\0\0{}\0"),
        message([1, 0], VERSION, 0, 0, b"\0\0\0\0nonsense"),
    ] {
        let Client { mut socket, served } = Client::unversed();
        socket.write_all(&bytes).expect("sent");
        let outcome = served.outcome();
        assert!(
            matches!(outcome, Err(VfioUserError::Foreign { .. })),
            "{bytes:?}"
        );
        // Perhaps a refusal, then the end.
        while receive(&socket).is_some() {}
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_message_is_no_error() {
    let Client { mut socket, served } = Client::unversed();
    socket.write_all(&[1, 0, 1]).expect("sent");
    drop(socket);
    served.outcome().expect("it just left");
}

#[test]
fn memory_that_the_client_takes_away_under_a_running_controller_ends_nothing() {
    let emulator = emulator("lba=4096");
    let (served, socket) = Served::start(emulator.clone(), DoorbellTransport::Mapped);
    let client = Client { socket, served };
    assert!(client.ask(VERSION, b"\0\0\x01\0{}\0", None).is_ok());
    let queues = tempfile::tempfile().expect("a file");
    queues.set_len(0x4000).expect("length");
    let shared = queues.try_clone().expect("a descriptor");
    client
        .map([0, 0x10_0000, 0x4000], 3, Some(shared.into()))
        .expect("mapped");
    let write = |offset: u64, value: &[u8]| {
        let mut payload = offset.to_le_bytes().to_vec();
        payload.extend(words(&[0, u32::try_from(value.len()).expect("short")]));
        payload.extend(value);
        client.ask(REGION_WRITE, &payload, None).expect("written");
    };
    // AQA, ASQ, ACQ, CC.EN (NVMe Base 2.0 §3.1.3): an admin queue in that memory.
    write(0x24, &0x000F_000F_u32.to_le_bytes());
    write(0x28, &0x10_0000_u64.to_le_bytes());
    write(0x30, &0x10_1000_u64.to_le_bytes());
    write(0x14, &0x0046_0001_u32.to_le_bytes());
    queues.set_len(0).expect("taken away");
    // The controller fetches a command from where nothing is.
    write(0x1000, &1_u32.to_le_bytes());
    let mut question = 0x1C_u64.to_le_bytes().to_vec();
    question.extend(words(&[0, 4]));
    assert!(client.ask(REGION_READ, &question, None).is_ok());
    client.leave().expect("in good order");

    let mut rig = Rig::over(emulator, DoorbellTransport::Mapped);
    let data = rig.span(0, 4096);
    let read = rig.run(lode_block::Operation::Read, 0, data);
    assert_eq!(read.result, Ok(()), "the next client is served");
}

#[test]
fn a_second_client_is_turned_away_and_a_successor_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let clock = lode_units::MonotonicClock::new();
    let socket = lode_vfio_user::ListeningSocket::bind(&path, clock).expect("a socket");
    let stop = eventfd().expect("an eventfd");
    std::thread::scope(|scope| {
        let (socket, stop) = (&socket, &stop);
        let server = scope.spawn(move || {
            let mut server = lode_vfio_user::Server::new(
                emulator("lba=4096"),
                DoorbellTransport::Messages,
                clock,
            )?;
            server.listen(socket, stop.as_fd(), |outcome| assert!(outcome.is_ok()))
        });
        let open = || lode_vfio_user::VfioUserBus::open(&path, crate::rig::PATIENT, clock);
        let mut first = open().expect("served");
        for _ in 0..20 {
            let second = open().expect_err("one at a time");
            assert!(matches!(second, VfioUserError::Closed { .. }), "{second}");
            drop(first);
            first = open().expect("the place is free at once");
        }
        drop(first);
        rustix::io::write(stop, &1_u64.to_ne_bytes()).expect("an eventfd takes a count");
        server
            .join()
            .expect("no panic")
            .expect("stopped in good order");
    });
}
