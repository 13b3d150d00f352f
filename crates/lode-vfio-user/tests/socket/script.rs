//! A server in bytes, written from the specification and not with this crate's code, that can be
//! told to lie.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A message that came: its command number, and what followed the header.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    pub(crate) id: [u8; 2],
    pub(crate) command: u16,
    pub(crate) payload: Vec<u8>,
}

/// What is sent back.
pub(crate) struct Sent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) file: Option<OwnedFd>,
}

/// The answer of an honest server to `came`: a controller whose BAR 0 is not mapped, with 3
/// vectors, whose registers all hold 7.
pub(crate) fn honest(came: &Came) -> Sent {
    let payload = match came.command {
        VERSION => b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":1}}\0".to_vec(),
        DEVICE_INFO => words(&[16, 3, 9, 5]),
        REGION_INFO => region_info(came, 0x2000),
        IRQ_INFO => words(&[16, 1, 2, 3]),
        REGION_READ => region_read(came),
        REGION_WRITE => came.payload[..16].to_vec(),
        DMA_UNMAP => came.payload.clone(),
        _ => Vec::new(),
    };
    Sent {
        bytes: reply(came, &payload),
        file: None,
    }
}

fn region_info(came: &Came, bar_bytes: u64) -> Vec<u8> {
    let index = word(&came.payload, 8);
    let size = match index {
        0 => bar_bytes,
        7 => 256,
        _ => 0,
    };
    region(index, 3, 0, size)
}

/// The structure of a region.
pub(crate) fn region(index: u32, flags: u32, cap_offset: u32, size: u64) -> Vec<u8> {
    let mut bytes = words(&[32, flags, index, cap_offset]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes
}

fn region_read(came: &Came) -> Vec<u8> {
    let (offset, region) = (word(&came.payload, 0), word(&came.payload, 8));
    let count = word(&came.payload, 12) as usize;
    let mut bytes = came.payload[..16].to_vec();
    let data = match (region, offset) {
        (7, 8) => vec![0, 0x02, 0x08, 0x01],
        (7, _) => vec![0; count],
        _ => vec![7; count],
    };
    bytes.extend(data);
    bytes
}

/// A reply with the header of `came`.
pub(crate) fn reply(came: &Came, payload: &[u8]) -> Vec<u8> {
    message(came.id, came.command, 1, 0, payload)
}

/// A refusal of `came`.
pub(crate) fn refusal(came: &Came, errno: u32) -> Vec<u8> {
    message(came.id, came.command, 1 | 1 << 5, errno, &[])
}

/// Any message.
pub(crate) fn message(
    id: [u8; 2],
    command: u16,
    flags: u32,
    errno: u32,
    payload: &[u8],
) -> Vec<u8> {
    let size = u32::try_from(16 + payload.len()).expect("a short message");
    let mut bytes = id.to_vec();
    bytes.extend(command.to_le_bytes());
    bytes.extend(words(&[size, flags, errno]));
    bytes.extend(payload);
    bytes
}

pub(crate) fn words(values: &[u32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub(crate) fn word(bytes: &[u8], offset: usize) -> u32 {
    let word = bytes[offset..offset + 4].try_into();
    u32::from_le_bytes(word.expect("four bytes"))
}

/// Receives one message; `None` when the other side has left.
pub(crate) fn receive(mut socket: &UnixStream) -> Option<Came> {
    let mut header = [0; 16];
    socket.read_exact(&mut header).ok()?;
    let mut payload = vec![0; word(&header, 4) as usize - 16];
    socket.read_exact(&mut payload).ok()?;
    Some(Came {
        id: [header[0], header[1]],
        command: u16::from_le_bytes([header[2], header[3]]),
        payload,
    })
}

/// Sends bytes with a descriptor beside them. A client that has left is no failure.
pub(crate) fn send(mut socket: &UnixStream, sent: &Sent) {
    let Some(file) = &sent.file else {
        let _has_left = socket.write_all(&sent.bytes).is_err();
        return;
    };
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let slices = [std::io::IoSlice::new(&sent.bytes)];
    let _has_left = sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL).is_err();
}

/// A server that answers with `answer`, and with silence where that gives nothing. It ends when
/// the client leaves.
pub(crate) fn serve(
    mut answer: impl FnMut(&Came) -> Option<Sent> + Send + 'static,
) -> (JoinHandle<()>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let thread = std::thread::spawn(move || {
        while let Some(came) = receive(&theirs) {
            if let Some(sent) = answer(&came) {
                send(&theirs, &sent);
            }
        }
    });
    (thread, ours)
}

pub(crate) const VERSION: u16 = 1;
pub(crate) const DMA_UNMAP: u16 = 3;
pub(crate) const DEVICE_INFO: u16 = 4;
pub(crate) const REGION_INFO: u16 = 5;
pub(crate) const IRQ_INFO: u16 = 7;
pub(crate) const REGION_READ: u16 = 9;
pub(crate) const REGION_WRITE: u16 = 10;
pub(crate) const DMA_READ: u16 = 11;
pub(crate) const DMA_WRITE: u16 = 12;
