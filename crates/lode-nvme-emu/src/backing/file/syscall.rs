//! One system call each, on memory whose bounds are checked first. Blocking.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use lode_bus::DmaMemory;

use super::super::{MediaError, media_error};

/// Gives space back; the range reads as zeros.
pub(super) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// Keeps space; the range reads as zeros.
pub(super) const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// Reads exactly `length` bytes; a file that ends earlier is an error.
pub(super) fn read_exact(
    file: &File,
    position: u64,
    target: &DmaMemory,
    offset: usize,
    length: usize,
) -> Result<(), MediaError> {
    let mut done = 0;
    while done < length {
        let at = position + done as u64;
        match read_some(file, at, target, offset + done, length - done)? {
            0 => return Err(MediaError::Failed),
            moved => done += moved,
        }
    }
    Ok(())
}

/// Writes exactly `length` bytes.
pub(super) fn write_all(
    file: &File,
    position: u64,
    source: &DmaMemory,
    offset: usize,
    length: usize,
) -> Result<(), MediaError> {
    let mut done = 0;
    while done < length {
        let at = position + done as u64;
        match write_some(file, at, source, offset + done, length - done)? {
            0 => return Err(MediaError::Failed),
            moved => done += moved,
        }
    }
    Ok(())
}

/// One `pread`; returns how many bytes it moved.
pub(super) fn read_some(
    file: &File,
    position: u64,
    target: &DmaMemory,
    offset: usize,
    length: usize,
) -> Result<usize, MediaError> {
    let address = checked_address(target, offset, length);
    let at = signed(position)?;
    retry_interrupted(|| {
        // SAFETY: `checked_address` bounded the range by the live mapping, to which no Rust
        // reference exists; the borrow of `target` keeps it mapped during the call.
        unsafe { libc::pread(file.as_raw_fd(), address.cast(), length, at) }
    })
}

fn write_some(
    file: &File,
    position: u64,
    source: &DmaMemory,
    offset: usize,
    length: usize,
) -> Result<usize, MediaError> {
    let address = checked_address(source, offset, length);
    let at = signed(position)?;
    retry_interrupted(|| {
        // SAFETY: as in `read_some`; the kernel only reads the memory.
        unsafe { libc::pwrite(file.as_raw_fd(), address.cast_const().cast(), length, at) }
    })
}

/// One `fdatasync`.
pub(super) fn data_sync(file: &File) -> Result<(), MediaError> {
    file.sync_data()
        .map_err(|error| media_error(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// One `fallocate`.
pub(super) fn fallocate(
    file: &File,
    mode: i32,
    position: u64,
    length: u64,
) -> Result<(), MediaError> {
    let (at, length) = (signed(position)?, signed(length)?);
    retry_interrupted(|| {
        // SAFETY: the call takes numbers and a descriptor that `file` keeps open.
        let outcome = unsafe { libc::fallocate(file.as_raw_fd(), mode, at, length) };
        isize::try_from(outcome).unwrap_or(-1)
    })?;
    Ok(())
}

/// The process address of a range of DMA memory.
///
/// Panics when the range does not lie inside the memory: a broken invariant of the caller.
pub(super) fn checked_address(memory: &DmaMemory, offset: usize, length: usize) -> *mut u8 {
    let end = offset.checked_add(length);
    assert!(
        end.is_some_and(|end| end <= memory.length_bytes()),
        "file data lie inside their memory"
    );
    memory.host_address().wrapping_add(offset)
}

fn signed(value: u64) -> Result<i64, MediaError> {
    i64::try_from(value).map_err(|_error| MediaError::Failed)
}

fn retry_interrupted(mut call: impl FnMut() -> isize) -> Result<usize, MediaError> {
    loop {
        if let Ok(moved) = usize::try_from(call()) {
            return Ok(moved);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(media_error(error.raw_os_error().unwrap_or(libc::EIO)));
        }
    }
}
