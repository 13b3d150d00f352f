//! Servers that hang, lie or speak something else: a precise error within the deadline.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lode_bus::{Bus, BusError, IovaSpace, PagePreference, Registers};
use lode_units::MonotonicClock;
use lode_vfio_user::{Patience, VfioUserBus, VfioUserError};

use crate::rig::PATIENT;
use crate::script::{
    Came, DEVICE_INFO, IRQ_INFO, REGION_INFO, REGION_READ, REGION_WRITE, Sent, VERSION, honest,
    message, refusal, region, reply, serve, word, words,
};

const BRIEF: Patience = Patience {
    setup: Duration::from_millis(200),
    request: Duration::from_millis(200),
};

fn attach(socket: UnixStream, patience: Patience) -> Result<VfioUserBus, VfioUserError> {
    VfioUserBus::attach(
        "vfio-user:test".to_owned(),
        socket,
        patience,
        MonotonicClock::new(),
    )
}

/// What attaching says to a server that is honest but for what `lie` gives.
fn refused(lie: impl Fn(&Came) -> Option<Sent> + Send + 'static) -> String {
    let (thread, socket) = serve(move |came| lie(came).or_else(|| Some(honest(came))));
    let error = attach(socket, PATIENT).expect_err("a lie");
    thread.join().expect("the script does not fail");
    error.to_string()
}

fn bytes(bytes: Vec<u8>) -> Option<Sent> {
    Some(Sent { bytes, file: None })
}

#[test]
fn the_script_itself_is_honest() {
    let (thread, socket) = serve(|came| Some(honest(came)));
    let bus = attach(socket, PATIENT).expect("no lie");
    assert_eq!(bus.registers().read_u32(0x1C), 0x0707_0707);
    assert_eq!(bus.registers().read_u32(0x2000), u32::MAX, "outside");
    assert_eq!(bus.interrupt_count(), 3);
    drop(bus);
    thread.join().expect("the script does not fail");
}

/// A command, what is said instead of the honest answer, and what the error says.
type Lie = (u16, fn(&Came) -> Vec<u8>, &'static str);

const LIES: &[Lie] = &[
    (
        VERSION,
        |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        "does not speak vfio-user",
    ),
    (VERSION, |_| vec![0; 16], "shorter than its header"),
    (VERSION, |_| vec![0xFF; 64], "longer than any"),
    (
        VERSION,
        |came| reply(came, b"\x01\0\0\0{}\0"),
        "vfio-user 1.0, not 0.1",
    ),
    (
        VERSION,
        |came| reply(came, b"\0\0\x09\0{}\0"),
        "vfio-user 0.9, not 0.1",
    ),
    (VERSION, |came| reply(came, b"\0\0\x01\0{]\0"), "no JSON"),
    (
        VERSION,
        |came| reply(came, b"\0"),
        "shorter than what it must hold",
    ),
    (VERSION, |came| refusal(came, 95), "refuses VERSION"),
    (
        VERSION,
        |came| message([9, 9], came.command, 1, 0, &[]),
        "what was not asked",
    ),
    (
        VERSION,
        |came| message(came.id, 13, 1, 0, &[]),
        "what was not asked",
    ),
    (
        DEVICE_INFO,
        |came| reply(came, &[0; 15]),
        "shorter than what it must hold",
    ),
    (
        DEVICE_INFO,
        |came| reply(came, &words(&[16, 1, 9, 5])),
        "no PCI function",
    ),
    (
        DEVICE_INFO,
        |came| reply(came, &words(&[16, 3, 2, 5])),
        "no configuration space",
    ),
    (
        DEVICE_INFO,
        |came| refusal(came, 0),
        "refuses DEVICE_GET_INFO",
    ),
    (
        REGION_INFO,
        |came| reply(came, &region(3, 3, 0, 0x2000)),
        "not asked for",
    ),
    (
        REGION_INFO,
        |came| reply(came, &[0; 31]),
        "shorter than what it must hold",
    ),
    (
        REGION_INFO,
        |came| reply(came, &bar(came, 3, 0)),
        "BAR 0 is absent",
    ),
    (
        REGION_INFO,
        |came| reply(came, &bar(came, 3, u64::MAX)),
        "implausible size",
    ),
    (
        REGION_INFO,
        |came| reply(came, &bar(came, 1, 0x2000)),
        "cannot be read and written",
    ),
    (
        REGION_INFO,
        |came| reply(came, &bar(came, 7, 0x2000)),
        "no descriptor came",
    ),
    (
        REGION_INFO,
        |came| reply(came, &bar(came, 15, 0x2000)),
        "outside its message",
    ),
    (
        REGION_READ,
        |came| reply(came, &[&came.payload[..], &[0; 4]].concat()),
        "0x000000, not",
    ),
    (
        REGION_READ,
        |came| reply(came, &came.payload),
        "not what was asked for",
    ),
    (
        REGION_READ,
        |came| reply(came, &[&came.payload[..], &[0; 9]].concat()),
        "not what was asked",
    ),
    (
        REGION_READ,
        |came| reply(came, &[0; 20]),
        "not what was asked for",
    ),
    (
        IRQ_INFO,
        |came| reply(came, &[0; 8]),
        "shorter than what it must hold",
    ),
];

/// The structure of BAR 0 with a lie, that of other regions without.
fn bar(came: &Came, flags: u32, size: u64) -> Vec<u8> {
    match word(&came.payload, 8) {
        0 => region(0, flags, 4000, size),
        _ => honest(came).bytes[16..].to_vec(),
    }
}

#[test]
fn each_lie_is_called_what_it_is() {
    for (index, (command, lie, expected)) in LIES.iter().enumerate() {
        let said = refused(move |came| match came.command == *command {
            true => bytes(lie(came)),
            false => None,
        });
        assert!(said.contains(expected), "lie {index}: {said}");
    }
}

#[test]
fn a_bar_whose_descriptor_does_not_hold_it_is_not_mapped() {
    let files: [fn() -> OwnedFd; 3] = [
        || tempfile::tempfile().expect("a file").into(),
        || {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(0x1FFF).expect("one byte is missing");
            file.into()
        },
        || std::io::pipe().expect("a pipe").0.into(),
    ];
    for file in files {
        let said = refused(move |came| {
            let is_bar = came.command == REGION_INFO && word(&came.payload, 8) == 0;
            is_bar.then(|| Sent {
                bytes: reply(came, &region(0, 7, 0, 0x2000)),
                file: Some(file()),
            })
        });
        assert!(said.contains("shorter than what is to be mapped"), "{said}");
    }
}

#[test]
fn a_server_that_falls_silent_at_any_message_is_given_up_in_time() {
    let mut messages = 0;
    loop {
        let mut left = messages;
        let (thread, socket) = serve(move |came| {
            left = i32::max(left, 1) - 1;
            (left > 0).then(|| honest(came))
        });
        let outcome = attach(socket, BRIEF);
        let is_attached = outcome.is_ok();
        match outcome {
            Ok(bus) => drop(bus),
            Err(error) => {
                assert!(matches!(error, VfioUserError::Silent { .. }), "{error}");
            }
        }
        thread.join().expect("the script does not fail");
        if is_attached {
            break;
        }
        messages += 1;
        assert!(messages < 100, "attaching ends at some point");
    }
    assert!(
        messages > 6,
        "attaching takes more messages than {messages}"
    );
}

#[test]
fn a_server_that_closes_at_any_message_is_gone_at_once() {
    for messages in 0..6 {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let thread = std::thread::spawn(move || {
            for _ in 0..messages {
                let came = crate::script::receive(&theirs).expect("the client asks on");
                crate::script::send(&theirs, &honest(&came));
            }
        });
        let error = attach(ours, PATIENT).expect_err("nobody is left");
        assert!(matches!(error, VfioUserError::Closed { .. }), "{error}");
        thread.join().expect("the script does not fail");
    }
}

#[test]
fn a_server_that_sends_commands_for_ever_does_not_hold_up_a_request_for_ever() {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let thread = std::thread::spawn(move || {
        let flood = message([1, 0], crate::script::DMA_READ, 1 << 4, 0, &[0; 16]).repeat(256);
        let mut socket = &theirs;
        while std::io::Write::write_all(&mut socket, &flood).is_ok() {}
    });
    let error = attach(ours, BRIEF).expect_err("never an answer");
    assert!(matches!(error, VfioUserError::Silent { .. }), "{error}");
    thread.join().expect("the script does not fail");
}

/// A bus whose server is honest while it is attached to, and says `then` afterwards.
fn attached(
    patience: Patience,
    then: fn(&Came) -> Option<Sent>,
) -> (std::thread::JoinHandle<()>, VfioUserBus) {
    let mut is_attached = false;
    let (thread, socket) = serve(move |came| {
        let sent = match is_attached {
            true => then(came),
            false => Some(honest(came)),
        };
        is_attached |= came.command == IRQ_INFO;
        sent
    });
    let bus = attach(socket, patience).expect("honest so far");
    (thread, bus)
}

#[test]
fn a_server_that_hangs_in_use_is_gone_for_good() {
    let (thread, bus) = attached(
        Patience {
            setup: PATIENT.setup,
            ..BRIEF
        },
        |_| None,
    );
    let registers = bus.registers();
    assert_eq!(registers.read_u32(0x1C), u32::MAX);
    assert!(!bus.is_present());
    assert_eq!(registers.read_u64(0), u64::MAX);
    registers.write_u32(0x14, 1);
    assert!(matches!(bus.enable_interrupt(0), Err(BusError::Gone)));
    assert!(matches!(bus.reset_function(), Err(BusError::Gone)));
    let memory = IovaSpace::new()
        .allocate(4096, PagePreference::Ordinary)
        .expect("memory");
    assert!(matches!(bus.map(&memory), Err(BusError::Gone)));
    assert!(matches!(bus.unmap(&memory), Err(BusError::Gone)));
    let loss = bus.loss().expect("a reason");
    assert!(loss.contains("REGION_READ within 200ms"), "{loss}");
    drop((bus, registers));
    thread.join().expect("the script does not fail");
}

#[test]
fn a_refusal_is_an_error_and_the_server_stays() {
    let (thread, bus) = attached(PATIENT, |came| {
        Some(Sent {
            bytes: refusal(came, 28),
            file: None,
        })
    });
    let memory = IovaSpace::new()
        .allocate(4096, PagePreference::Ordinary)
        .expect("memory");
    let error = bus.map(&memory).expect_err("refused");
    let reason = std::error::Error::source(&error).expect("a reason");
    assert!(reason.to_string().contains("refuses DMA_MAP"), "{reason}");
    assert!(matches!(
        bus.enable_interrupt(0),
        Err(BusError::System { .. })
    ));
    assert!(matches!(bus.reset_function(), Err(BusError::System { .. })));
    assert_eq!(bus.registers().read_u32(0), u32::MAX);
    assert!(bus.is_present());
    drop(bus);
    thread.join().expect("the script does not fail");
}

#[test]
fn an_answer_to_a_doorbell_that_wanted_none_is_passed_over() {
    let (thread, bus) = attached(PATIENT, |came| match came.command {
        REGION_WRITE => Some(Sent {
            bytes: reply(came, &came.payload[..16]),
            file: None,
        }),
        _ => Some(honest(came)),
    });
    let registers = bus.registers();
    for value in 0..10 {
        registers.write_u32(0x1000, value);
        assert_eq!(registers.read_u32(0), 0x0707_0707);
    }
    assert!(bus.is_present());
    drop((bus, registers));
    thread.join().expect("the script does not fail");
}
