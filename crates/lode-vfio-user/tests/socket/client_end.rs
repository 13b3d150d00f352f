//! What the client owes a server: access to its memory, and surviving what the server takes away.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lode_bus::{Bus, DmaMemory, IovaSpace, PagePreference, Registers};
use lode_units::{Clock, Instant, MonotonicClock};
use lode_vfio_user::VfioUserBus;

use crate::rig::{LIMIT, PATIENT};
use crate::script::{
    Came, DMA_READ, DMA_WRITE, IRQ_INFO, REGION_INFO, REGION_READ, REGION_WRITE, Sent, honest,
    message, receive, refusal, region, reply, send, serve, word,
};

/// Attaches to an honest script, which hands its end of the socket back afterwards; `bar` is what
/// it shares in place of BAR 0.
fn attached(bar: Option<File>) -> (VfioUserBus, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let thread = std::thread::spawn(move || {
        loop {
            let came = receive(&theirs).expect("the client asks on");
            send(&theirs, &answer(&came, bar.as_ref()));
            if came.command == IRQ_INFO {
                return theirs;
            }
        }
    });
    let name = "vfio-user:test".to_owned();
    let bus = VfioUserBus::attach(name, ours, PATIENT, MonotonicClock::new()).expect("honest");
    (bus, thread.join().expect("the script does not fail"))
}

fn answer(came: &Came, bar: Option<&File>) -> Sent {
    let is_bar = came.command == REGION_INFO && word(&came.payload, 8) == 0;
    match bar.filter(|_| is_bar) {
        Some(bar) => Sent {
            bytes: reply(came, &region(0, 7, 0, 0x2000)),
            file: Some(bar.try_clone().expect("a descriptor").into()),
        },
        None => honest(came),
    }
}

/// Answers one command of the client from another thread while `act` sends it.
fn while_answered(server: &UnixStream, act: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let came = receive(server).expect("a command");
            send(server, &honest(&came));
        });
        act();
    });
}

/// Sends a command of the server's own and returns the client's answer: flags, errno, payload.
fn asked(
    bus: &VfioUserBus,
    server: &UnixStream,
    command: u16,
    payload: &[u8],
) -> (u32, u32, Vec<u8>) {
    let sent = Sent {
        bytes: message([77, 0], command, 0, 0, payload),
        file: None,
    };
    send(server, &sent);
    server
        .set_read_timeout(Some(LIMIT))
        .expect("a positive duration");
    // The client looks when it is polled; it need not wait for anything else.
    bus.advance(NOW);
    let mut header = [0; 16];
    let mut socket = server;
    std::io::Read::read_exact(&mut socket, &mut header).expect("an answer");
    let mut payload = vec![0; word(&header, 4) as usize - 16];
    std::io::Read::read_exact(&mut socket, &mut payload).expect("an answer");
    assert_eq!(header[..4], [77, 0, command.to_le_bytes()[0], 0]);
    (word(&header, 8), word(&header, 12), payload)
}

/// After the time that a silent server is left alone for.
const NOW: Instant = Instant::from_nanos(5_000_000_000);

fn access(memory: &DmaMemory, offset: i64, count: u64) -> Vec<u8> {
    let address = memory.iova().get().wrapping_add_signed(offset);
    [address.to_le_bytes(), count.to_le_bytes()].concat()
}

#[test]
fn a_server_reads_and_writes_by_messages_what_it_was_given_and_nothing_else() {
    let (bus, server) = attached(None);
    let memory = IovaSpace::new()
        .allocate(8192, PagePreference::Ordinary)
        .expect("memory");
    let unmapped = asked(&bus, &server, DMA_READ, &access(&memory, 0, 4));
    assert_eq!(unmapped, (0x21, 14, vec![]));
    while_answered(&server, || bus.map(&memory).expect("mapped"));
    memory.copy_from_slice(100, b"lodestore");
    let (flags, _, payload) = asked(&bus, &server, DMA_READ, &access(&memory, 100, 9));
    assert_eq!((flags, &payload[16..]), (1, &b"lodestore"[..]));
    let write = [&access(&memory, 4, 4)[..], b"data"].concat();
    let (flags, _, payload) = asked(&bus, &server, DMA_WRITE, &write);
    assert_eq!((flags, payload.len()), (1, 16));
    assert!(memory.equals(4, b"data"));
    for (command, payload) in [
        (DMA_READ, access(&memory, 8190, 3)),
        (DMA_READ, access(&memory, -1, 1)),
        (DMA_READ, access(&memory, 0, u64::MAX)),
        (DMA_READ, access(&memory, 0, 0)[..15].to_vec()),
        (DMA_WRITE, access(&memory, 0, 1)),
        (DMA_WRITE, [&access(&memory, 8191, 2)[..], b"ab"].concat()),
        (99, vec![]),
    ] {
        let (flags, errno, _) = asked(&bus, &server, command, &payload);
        assert_eq!(flags, 0x21, "{command} {payload:?}");
        assert!(errno > 0);
    }
    assert!(bus.is_present());
}

#[test]
fn a_server_that_sends_commands_is_looked_at_more_often_than_one_that_sends_none() {
    let (bus, server) = attached(None);
    assert_eq!(bus.advance(Instant::ZERO), None);
    asked(&bus, &server, DMA_READ, &[0; 16]);
    let soon = bus.advance(NOW).expect("more may come");
    assert!(soon > NOW && soon < NOW + Duration::from_millis(10));
    assert_eq!(bus.advance(NOW + Duration::from_secs(2)), None);
}

#[test]
fn a_refused_doorbell_shows_as_a_fatal_status_until_the_controller_is_disabled() {
    let (thread, socket) = serve(|came| {
        let offset = came
            .payload
            .first_chunk()
            .map(|low| u32::from_le_bytes(*low));
        let is_refused = came.command == REGION_WRITE && offset == Some(0x1004);
        let bytes = match came.command {
            REGION_WRITE if is_refused => refusal(came, 0),
            // All registers are 0.
            REGION_READ if word(&came.payload, 8) == 0 => {
                let count = word(&came.payload, 12) as usize;
                reply(came, &[&came.payload[..16], &vec![0; count]].concat())
            }
            _ => return Some(honest(came)),
        };
        Some(Sent { bytes, file: None })
    });
    let name = "vfio-user:test".to_owned();
    let bus = VfioUserBus::attach(name, socket, PATIENT, MonotonicClock::new()).expect("honest");
    let registers = bus.registers();
    let status = || registers.read_u32(0x1C);
    registers.write_u32(0x1000, 1);
    assert_eq!(status(), 0, "it was heard");
    registers.write_u32(0x1004, 1);
    assert_eq!(status(), 0b10);
    assert_eq!(
        registers.read_u32(0x14),
        0,
        "other registers are as they are"
    );
    registers.write_u32(0x14, 1);
    assert_eq!(status(), 0b10, "enabling is no reset");
    registers.write_u32(0x14, 0);
    assert_eq!(status(), 0);
    assert!(bus.is_present());
    drop((bus, registers));
    thread.join().expect("the script does not fail");
}

#[test]
fn registers_that_the_server_takes_away_read_ones_and_end_nothing() {
    let bar = tempfile::tempfile().expect("a file");
    bar.set_len(0x2000).expect("length");
    let (bus, _server) = attached(Some(bar.try_clone().expect("a descriptor")));
    let registers = bus.registers();
    registers.write_u32(0x1000, 5);
    assert_eq!(registers.read_u32(0x1000), 5);
    assert!(bus.is_present());
    bar.set_len(0).expect("taken away");
    registers.write_u32(0x1000, 6);
    assert_eq!(registers.read_u32(0x1000), u32::MAX);
    assert!(!bus.is_present());
}

#[test]
fn a_server_that_dies_is_noticed_by_polling_alone() {
    let (bus, server) = attached(None);
    let clock = MonotonicClock::new();
    drop(server);
    let end = clock.now() + LIMIT;
    while bus.is_present() {
        bus.advance(clock.now());
        assert!(clock.now() < end, "never noticed");
    }
    assert_eq!(bus.registers().read_u32(0x1C), u32::MAX);
    assert!(
        bus.loss()
            .expect("a reason")
            .contains("closed the connection")
    );
}
