//! Commands to a controller through the kernel's own driver.

#![expect(
    unsafe_code,
    reason = "the kernel is told the address of a buffer: its interface for commands"
)]

use std::os::fd::AsRawFd;

use anyhow::{Context, Result, ensure};
use lode_nvme_spec::AdminOpcode;
use lode_vfio::PciAddress;

use crate::kernel;

/// What Namespace Attachment does (NVMe Base 2.0 §5.22, dword 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    Attach = 0,
    Detach = 1,
}

/// Has the controller at `through`, which the kernel's driver has, attach a namespace to
/// `controllers` of its subsystem or detach it from them.
pub(crate) fn change_attachment(
    through: PciAddress,
    change: Attachment,
    namespace: u32,
    controllers: &[u16],
) -> Result<()> {
    // A controller list: how many, then the identifiers (§4.5.1).
    let mut list = [0; LIST_WORDS];
    let count = u16::try_from(controllers.len())?;
    let words = [count].into_iter().chain(controllers.iter().copied());
    for (place, word) in list.iter_mut().zip(words) {
        *place = word.to_le();
    }
    let command = AdminCommand {
        opcode: AdminOpcode::NamespaceAttachment.raw(),
        namespace,
        data_length: u32::try_from(size_of_val(&list))?,
        dword_10: change as u32,
        ..AdminCommand::default()
    };
    let status = run(through, command, &mut list).with_context(|| {
        format!("{change:?} namespace {namespace} of controllers {controllers:?}")
    })?;
    ensure!(status == 0, "{change:?}: status {status:#x}");
    Ok(())
}

/// Runs an admin command with its data; its status.
fn run(through: PciAddress, mut command: AdminCommand, data: &mut [u16]) -> Result<i32> {
    ensure!(size_of_val(data) == usize::try_from(command.data_length)?);
    let node = kernel::open_controller(through)?;
    command.data = data.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the kernel reads and writes `command`, which has the layout that it expects, and
    // the `data_length` bytes at `data`; both are borrowed here for the whole call.
    let status = unsafe { libc::ioctl(node.as_raw_fd(), ADMIN_COMMAND, &raw mut command) };
    if status < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(status)
}

/// `struct nvme_admin_cmd` of the kernel's `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    dwords_2_3: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_length: u32,
    data_length: u32,
    dword_10: u32,
    dwords_11_15: [u32; 5],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// `NVME_IOCTL_ADMIN_CMD`: read and write, `N`, 41h.
const ADMIN_COMMAND: libc::Ioctl = 0xC048_4E41;
/// A list is a page.
const LIST_WORDS: usize = 2048;
