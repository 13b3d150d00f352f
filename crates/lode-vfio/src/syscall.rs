//! The system calls of VFIO, one function each, with their errors mapped
//! (kernel documentation, "VFIO - Virtual Function I/O"; layouts from `vfio-bindings`).
//!
//! Structures are filled here and never handed in, so that every length that the kernel is told
//! is that of memory owned here.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_TYPE, vfio_device_info,
    vfio_group_status, vfio_iommu_type1_dma_map, vfio_irq_info, vfio_irq_set, vfio_region_info,
};

/// The kernel's interface version (0 since the beginning).
pub(crate) fn api_version(container: BorrowedFd<'_>) -> io::Result<u32> {
    with_value(container, GET_API_VERSION, 0)
}

/// Whether the container knows IOMMU type `kind`.
pub(crate) fn has_extension(container: BorrowedFd<'_>, kind: u32) -> io::Result<bool> {
    with_value(container, CHECK_EXTENSION, kind).map(|answer| answer > 0)
}

/// Chooses the IOMMU type of a container that has a group.
pub(crate) fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    with_value(container, SET_IOMMU, kind).map(|_| ())
}

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
    with_structure(group, GROUP_SET_CONTAINER, &mut descriptor).map(|_| ())
}

/// Opens the function called `name` of a group.
pub(crate) fn device(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    // SAFETY: the request takes a string that ends with a zero; `name` is one and outlives it.
    let answer = unsafe {
        libc::ioctl(
            group.as_raw_fd(),
            GROUP_GET_DEVICE_FD,
            name.as_ptr().cast::<libc::c_void>(),
        )
    };
    let descriptor = answered(answer)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
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

/// How many interrupts `index` has and how they work.
pub(crate) fn interrupt_info(device: BorrowedFd<'_>, index: u32) -> io::Result<vfio_irq_info> {
    let mut info = vfio_irq_info {
        argsz: length_of::<vfio_irq_info>(),
        index,
        ..Default::default()
    };
    with_structure(device, DEVICE_GET_IRQ_INFO, &mut info)?;
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
    let count = u32::try_from(signals.len()).map_err(io::Error::other)?;
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    set_interrupts(device, [flags, index, start, count], signals)
}

/// Switches all interrupts of `index` off.
pub(crate) fn disable_interrupts(device: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
    set_interrupts(device, [flags, index, 0, 0], &[]).map(|_| ())
}

/// `fields` are those of `vfio_irq_set` after its length: flags, index, start, count.
fn set_interrupts(device: BorrowedFd<'_>, fields: [u32; 4], signals: &[RawFd]) -> io::Result<u32> {
    let header = size_of::<vfio_irq_set>();
    let length = header + size_of_val(signals);
    let mut words = Vec::with_capacity(length / size_of::<u32>());
    words.push(u32::try_from(length).map_err(io::Error::other)?);
    words.extend(fields);
    words.extend(signals.iter().map(|signal| signal.cast_unsigned()));
    debug_assert_eq!(words.len() * size_of::<u32>(), length);
    // SAFETY: `words` holds a `vfio_irq_set` (five 32-bit fields, then the descriptors) of
    // exactly the length that its first field tells.
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_mut_ptr()) };
    answered(answer).map(i32::cast_unsigned)
}

/// Resets the function.
pub(crate) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    with_value(device, DEVICE_RESET, 0).map(|_| ())
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

/// Lets devices of the container read and write `length_bytes` at `address` of this process
/// under `iova`.
///
/// # Safety
/// Until the range is unmapped, the memory must stay mapped in this process, and no Rust
/// reference to it may exist.
pub(crate) unsafe fn map(
    container: BorrowedFd<'_>,
    iova: u64,
    address: *mut u8,
    length_bytes: u64,
) -> io::Result<()> {
    let mut request = vfio_iommu_type1_dma_map {
        argsz: length_of::<vfio_iommu_type1_dma_map>(),
        flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: address.expose_provenance() as u64,
        iova,
        size: length_bytes,
    };
    with_structure(container, IOMMU_MAP_DMA, &mut request).map(|_| ())
}

/// Takes a range that was mapped away from the devices; when this returns, they cannot reach it.
pub(crate) fn unmap(container: BorrowedFd<'_>, iova: u64, length_bytes: u64) -> io::Result<()> {
    let mut request = DmaUnmap {
        argsz: length_of::<DmaUnmap>(),
        flags: 0,
        iova,
        size: length_bytes,
    };
    with_structure(container, IOMMU_UNMAP_DMA, &mut request)?;
    if request.size != length_bytes {
        // The kernel unmaps whole mappings only and says how much that came to.
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(())
}

/// `vfio_iommu_type1_dma_unmap` without its flexible end, which needs no flag of ours.
#[repr(C)]
struct DmaUnmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    size: u64,
}

const _: () = assert!(size_of::<DmaUnmap>() == 24);
const _: () = assert!(size_of::<vfio_irq_set>() == 5 * size_of::<u32>());

fn with_value(descriptor: BorrowedFd<'_>, request: libc::c_ulong, value: u32) -> io::Result<u32> {
    // SAFETY: the requests that come here take a number or nothing.
    let answer =
        unsafe { libc::ioctl(descriptor.as_raw_fd(), request, libc::c_ulong::from(value)) };
    answered(answer).map(i32::cast_unsigned)
}

/// For requests whose argument is a structure of exactly type `T`, its length told inside it
/// where the request has such a field.
fn with_structure<T>(
    descriptor: BorrowedFd<'_>,
    request: libc::c_ulong,
    structure: &mut T,
) -> io::Result<i32> {
    // SAFETY: the callers above pair each request with its own structure; the kernel writes no
    // further than the length that the structure tells, which is its own.
    let answer = unsafe {
        libc::ioctl(
            descriptor.as_raw_fd(),
            request,
            std::ptr::from_mut(structure),
        )
    };
    answered(answer)
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

const GET_API_VERSION: libc::c_ulong = request(0);
const CHECK_EXTENSION: libc::c_ulong = request(1);
const SET_IOMMU: libc::c_ulong = request(2);
const GROUP_GET_STATUS: libc::c_ulong = request(3);
const GROUP_SET_CONTAINER: libc::c_ulong = request(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = request(6);
const DEVICE_GET_INFO: libc::c_ulong = request(7);
const DEVICE_GET_REGION_INFO: libc::c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: libc::c_ulong = request(9);
const DEVICE_SET_IRQS: libc::c_ulong = request(10);
const DEVICE_RESET: libc::c_ulong = request(11);
const IOMMU_GET_INFO: libc::c_ulong = request(12);
const IOMMU_MAP_DMA: libc::c_ulong = request(13);
const IOMMU_UNMAP_DMA: libc::c_ulong = request(14);

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// A descriptor that knows nothing of VFIO: what is tested is that its refusal comes back.
    fn stranger() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    #[test]
    fn the_kernels_refusal_comes_back_as_an_error() {
        let stranger = stranger();
        let refused = |error: io::Error| error.raw_os_error() == Some(libc::ENOTTY);
        assert!(api_version(stranger.as_fd()).is_err_and(refused));
        assert!(group_flags(stranger.as_fd()).is_err_and(refused));
        assert!(device(stranger.as_fd(), "0000:00:00.0").is_err_and(refused));
        assert!(unmap(stranger.as_fd(), 0x1000, 0x1000).is_err_and(refused));
        assert!(route_interrupts(stranger.as_fd(), 2, 0, &[-1]).is_err_and(refused));
    }

    #[test]
    fn a_device_name_with_a_zero_inside_never_reaches_the_kernel() {
        let error = device(stranger().as_fd(), "0000\0").expect_err("no such name");
        assert_eq!(error.raw_os_error(), None);
    }
}
