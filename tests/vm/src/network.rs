//! The loopback interface, which the kernel leaves down.

use anyhow::{Context, Result, ensure};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

/// Brings the loopback interface up. Does nothing when it is up.
pub(crate) fn bring_loopback_up() -> Result<()> {
    let route = socket(AddressFamily::NETLINK, SocketType::RAW, None).context("a route socket")?;
    let kernel = SocketAddrNetlink::new(0, 0);
    let sent = sendto(&route, &request(), SendFlags::empty(), &kernel)?;
    ensure!(
        sent == REQUEST_BYTES,
        "{sent} bytes of the request were sent"
    );
    let mut answer = [0; 256];
    let (length, _) = recv(&route, &mut answer, RecvFlags::empty())?;
    // An acknowledgement is an error message with code 0 behind its header.
    let code = answer.get(HEADER_BYTES..HEADER_BYTES + 4);
    ensure!(
        length >= HEADER_BYTES + 4 && code == Some(&[0; 4]),
        "the loopback interface stays down: {:?}",
        answer.get(..length)
    );
    Ok(())
}

/// RTM_NEWLINK for the first interface, which is the loopback one: set IFF_UP, acknowledge.
fn request() -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let length = u32::try_from(REQUEST_BYTES).expect("a small constant");
    // Length, type 16, flags REQUEST | ACK.
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&16_u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&5_u16.to_ne_bytes());
    // Interface 1, flags, and the mask of those that change.
    bytes[20..24].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[24..28].copy_from_slice(&1_u32.to_ne_bytes());
    bytes[28..32].copy_from_slice(&1_u32.to_ne_bytes());
    bytes
}

const HEADER_BYTES: usize = 16;
/// A message's header and the description of an interface.
const REQUEST_BYTES: usize = HEADER_BYTES + 16;
