//! The system calls of VFIO that `vfio-ioctls` does not offer, or whose answer it drops, one
//! function each, with their errors mapped (kernel documentation, "VFIO - Virtual Function I/O";
//! layouts from `vfio-bindings`). Which, and why: `docs/adr/0010-vfio-through-vfio-ioctls.md`.
//!
//! Structures are filled here and never handed in, so that every length that the kernel is told
//! is that of memory owned here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_TYPE, vfio_device_info,
    vfio_group_status, vfio_irq_set, vfio_region_info,
};

/// The flags of a group.
pub(crate) fn group_flags(group: BorrowedFd<'_>) -> io::Result<u32> {
    let mut status = vfio_group_status {
        argsz: length_of::<vfio_group_status>(),
        ..Default::default()
    };
    with_structure(group, GROUP_GET_STATUS, &mut status)?;
    Ok(status.flags)
}

/// Puts a group into a container.
pub(crate) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut descriptor = container.as_raw_fd();
    with_structure(group, GROUP_SET_CONTAINER, &mut descriptor)
}

/// What a device is: its flags, how many regions and interrupts it has.
pub(crate) fn device_info(device: BorrowedFd<'_>) -> io::Result<vfio_device_info> {
    let mut info = vfio_device_info {
        argsz: length_of::<vfio_device_info>(),
        ..Default::default()
    };
    with_structure(device, DEVICE_GET_INFO, &mut info)?;
    Ok(info)
}

/// Where region `index` lies in the device's descriptor and what can be done with it.
pub(crate) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<vfio_region_info> {
    let mut info = vfio_region_info {
        argsz: length_of::<vfio_region_info>(),
        index,
        ..Default::default()
    };
    with_structure(device, DEVICE_GET_REGION_INFO, &mut info)?;
    Ok(info)
}

/// Makes the interrupts from `start` on fire into `signals`; -1 stands for "not at all".
///
/// Returns 0, or the number of interrupts that could be had when it is fewer than were asked
/// for; nothing has changed then.
pub(crate) fn route_interrupts(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    signals: &[RawFd],
) -> io::Result<u32> {
    let mut words = Vec::with_capacity(INTERRUPT_SET_WORDS + signals.len());
    words.extend(interrupt_set([index, start], signals.len())?);
    words.extend(signals.iter().map(|signal| signal.cast_unsigned()));
    set_interrupts(device, &mut words)
}

/// Makes interrupt `start` of `index` fire into `signal`, or nowhere: the kernel then masks it.
/// Allocates nothing.
pub(crate) fn route_interrupt(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    signal: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let signal = signal.map_or(NOWHERE, |signal| signal.as_raw_fd());
    let [length, flags, index, start, count] = interrupt_set([index, start], 1)?;
    let mut words = [length, flags, index, start, count, signal.cast_unsigned()];
    set_interrupts(device, &mut words).map(|_| ())
}

/// A `vfio_irq_set` for `count` signals from `[index, start]` on, which follow it and are part of
/// its length.
fn interrupt_set([index, start]: [u32; 2], count: usize) -> io::Result<[u32; INTERRUPT_SET_WORDS]> {
    let length = size_of::<vfio_irq_set>() + count * size_of::<RawFd>();
    let length = u32::try_from(length).map_err(io::Error::other)?;
    let count = u32::try_from(count).map_err(io::Error::other)?;
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    Ok([length, flags, index, start, count])
}

/// `words` are a `vfio_irq_set` and its signals.
fn set_interrupts(device: BorrowedFd<'_>, words: &mut [u32]) -> io::Result<u32> {
    let told = words.first().copied().map_or(0, u64::from);
    assert_eq!(told, size_of_val(words) as u64, "the length that is told");
    // SAFETY: `words` holds a `vfio_irq_set` (five 32-bit fields, then the descriptors) of
    // exactly the length that its first field tells.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_mut_ptr()) };
    answered(answer).map(i32::cast_unsigned)
}

/// Resets the function.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes nothing.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_RESET) };
    answered(answer).map(|_| ())
}

/// Fills `buffer` with the IOMMU's information; its first word is the length that there would
/// be, which may be more than fits.
pub(crate) fn iommu_info(container: BorrowedFd<'_>, buffer: &mut [u32]) -> io::Result<()> {
    let length = size_of_val(buffer);
    let first = buffer
        .first_mut()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    *first = u32::try_from(length).map_err(io::Error::other)?;
    // SAFETY: the first word tells the kernel how much it may write: the buffer's own length.
    let answer = unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO, buffer.as_mut_ptr()) };
    answered(answer).map(|_| ())
}

/// The fields of a `vfio_irq_set` before its signals.
const INTERRUPT_SET_WORDS: usize = 5;
/// What stands for no signal.
const NOWHERE: RawFd = -1;
const _: () = assert!(size_of::<vfio_irq_set>() == INTERRUPT_SET_WORDS * size_of::<u32>());

/// For requests whose argument is a structure of exactly type `T`, its length told inside it
/// where the request has such a field.
fn with_structure<T>(
    descriptor: BorrowedFd<'_>,
    request: libc::c_ulong,
    structure: &mut T,
) -> io::Result<()> {
    // SAFETY: the callers above pair each request with its own structure; the kernel writes no
    // further than the length that the structure tells, which is its own.
    let answer = unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            request,
            std::ptr::from_mut(structure),
        )
    };
    answered(answer).map(|_| ())
}

fn answered(answer: libc::c_int) -> io::Result<i32> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

fn length_of<T>() -> u32 {
    u32::try_from(size_of::<T>()).expect("a structure of a system call is small")
}

/// `_IO(VFIO_TYPE, VFIO_BASE + number)`: VFIO tells lengths inside its structures.
const fn request(number: u32) -> libc::c_ulong {
    ((VFIO_TYPE as libc::c_ulong) << 8) | (VFIO_BASE + number) as libc::c_ulong
}

const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const DEVICE_GET_INFO: libc::c_ulong = request(7);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);
const DEVICE_RESET: libc::c_ulong = request(11);
const IOMMU_GET_INFO: libc::c_ulong = request(12);

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    /// A descriptor that knows nothing of VFIO: what is tested is that its refusal comes back.
    fn stranger() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    #[test]
    fn the_kernels_refusal_comes_back_as_an_error() {
        let stranger = stranger();
        let stranger = stranger.as_fd();
        let refused = |error: io::Error| error.raw_os_error() == Some(libc::ENOTTY);
        assert!(group_flags(stranger).is_err_and(refused));
        assert!(set_container(stranger, stranger).is_err_and(refused));
        assert!(device_info(stranger).is_err_and(refused));
        assert!(region_info(stranger, 0).is_err_and(refused));
        assert!(reset(stranger).is_err_and(refused));
        assert!(route_interrupts(stranger, 2, 0, &[-1]).is_err_and(refused));
        assert!(route_interrupt(stranger, 2, 0, None).is_err_and(refused));
        assert!(iommu_info(stranger, &mut [0; 8]).is_err_and(refused));
    }

    #[test]
    fn an_answer_without_room_never_reaches_the_kernel() {
        let error = iommu_info(stranger().as_fd(), &mut []).expect_err("no room");
        assert_eq!(error.raw_os_error(), None);
    }
}
