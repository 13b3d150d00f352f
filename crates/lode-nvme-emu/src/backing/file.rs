//! Blocks in a file or on a block device of the host.
//!
//! A file is opened twice: once through the page cache, for the calls that block (and for the
//! lock), and once with `O_DIRECT` for the ring, where the file system can do that in the
//! namespace's logical blocks. The kernel keeps both views coherent.

mod ring;
mod syscall;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use lode_bus::DmaMemory;

pub(crate) use ring::{FileData, FileOp, FileRing, Reach};

use super::{Access, MediaError, Space, memory};
use crate::error::EmulatorError;

/// An open file, locked against a second controller for as long as it lives.
#[derive(Debug)]
pub(super) struct FileStore {
    buffered: File,
    direct: Option<File>,
    length_bytes: u64,
    has_ring: bool,
    punch: Fallocate,
    zero_range: Fallocate,
}

/// Whether the file system knows a kind of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fallocate {
    Available,
    Missing,
}

impl FileStore {
    pub(super) fn open(
        path: &Path,
        expected_bytes: Option<u64>,
        block_bytes: u32,
    ) -> Result<Self, EmulatorError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self::adopt(
            path,
            or_open_error(path, file)?,
            expected_bytes,
            block_bytes,
        )
    }

    pub(super) fn create(
        path: &Path,
        length_bytes: u64,
        block_bytes: u32,
    ) -> Result<Self, EmulatorError> {
        let fresh = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path);
        match fresh {
            Ok(file) => {
                or_open_error(path, file.set_len(length_bytes))?;
                Self::adopt(path, file, Some(length_bytes), block_bytes)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Self::open(path, Some(length_bytes), block_bytes)
            }
            Err(source) => or_open_error(path, Err(source)),
        }
    }

    pub(super) const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    pub(super) const fn access(&self) -> Access {
        match (self.has_ring, &self.direct) {
            (false, _) => Access::FileBlocking,
            (true, None) => Access::FileBuffered,
            (true, Some(_)) => Access::FileDirect,
        }
    }

    pub(super) fn read(
        &self,
        position: u64,
        target: &DmaMemory,
        offset: usize,
        length: usize,
    ) -> Result<(), MediaError> {
        syscall::read_exact(&self.buffered, position, target, offset, length)
    }

    pub(super) fn read_slice(&self, position: u64, target: &mut [u8]) -> Result<(), MediaError> {
        self.buffered
            .read_exact_at(target, position)
            .map_err(|_error| MediaError::Failed)
    }

    pub(super) fn write(
        &self,
        position: u64,
        source: &DmaMemory,
        offset: usize,
        length: usize,
    ) -> Result<(), MediaError> {
        syscall::write_all(&self.buffered, position, source, offset, length)
    }

    pub(super) fn zero(&self, position: u64, length: u64, space: Space) -> Result<(), MediaError> {
        match self.zero_mode(space) {
            Some(mode) => syscall::fallocate(&self.buffered, mode, position, length),
            None => self.write_zeros(position, length),
        }
    }

    /// Whether blocks can be zeroed without writing them, and their space given back.
    pub(super) fn can_release(&self) -> bool {
        self.punch == Fallocate::Available
    }

    /// Whether the ring can zero a range; without it zeros are written.
    pub(super) fn can_zero(&self) -> bool {
        self.zero_mode(Space::Keep).is_some()
    }

    pub(super) fn sync(&self) -> Result<(), MediaError> {
        syscall::data_sync(&self.buffered)
    }

    /// The fallocate mode that zeroes a range, the wished one first; `None` where the file
    /// system has neither and zeros must be written.
    fn zero_mode(&self, space: Space) -> Option<i32> {
        let punch = (self.punch == Fallocate::Available).then_some(syscall::PUNCH);
        let zero = (self.zero_range == Fallocate::Available).then_some(syscall::ZERO_RANGE);
        match space {
            Space::Release => punch.or(zero),
            Space::Keep => zero.or(punch),
        }
    }

    fn write_zeros(&self, position: u64, length: u64) -> Result<(), MediaError> {
        let zeros = memory::staging(ZEROS_BYTES).map_err(|_error| MediaError::Failed)?;
        let mut done = 0;
        while done < length {
            let part = (length - done).min(ZEROS_BYTES as u64);
            let bytes = usize::try_from(part).expect("at most the length of the zeros");
            syscall::write_all(&self.buffered, position + done, &zeros, 0, bytes)?;
            done += part;
        }
        Ok(())
    }

    /// The descriptor that the ring uses.
    fn ring_descriptor(&self) -> RawFd {
        self.direct.as_ref().unwrap_or(&self.buffered).as_raw_fd()
    }

    /// The descriptor for operations that change allocation.
    fn buffered_descriptor(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    fn adopt(
        path: &Path,
        mut file: File,
        expected_bytes: Option<u64>,
        block_bytes: u32,
    ) -> Result<Self, EmulatorError> {
        let kind = or_open_error(path, file.metadata())?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(EmulatorError::NotStorage { path: path.into() });
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(EmulatorError::InUse { path: path.into() });
            }
            Err(TryLockError::Error(source)) => return or_open_error(path, Err(source)),
        }
        let length_bytes = or_open_error(path, file.seek(SeekFrom::End(0)))?;
        if let Some(expected_bytes) = expected_bytes.filter(|expected| *expected != length_bytes) {
            return Err(EmulatorError::SizeMismatch {
                path: path.into(),
                expected_bytes,
                actual_bytes: length_bytes,
            });
        }
        let has_ring = FileRing::is_available();
        let direct = has_ring.then(|| open_direct(path, block_bytes)).flatten();
        let probe = |mode| match syscall::fallocate(&file, mode, length_bytes, PROBE_BYTES) {
            Ok(()) | Err(MediaError::NoSpace) => Fallocate::Available,
            Err(_) => Fallocate::Missing,
        };
        // Beyond the end, and keeping the size, neither changes anything that can be seen.
        let (punch, zero_range) = (probe(syscall::PUNCH), probe(syscall::ZERO_RANGE));
        if zero_range == Fallocate::Available && punch == Fallocate::Available {
            // Zeroing allocates; take back what the probe allocated.
            probe(syscall::PUNCH);
        }
        Ok(Self {
            buffered: file,
            direct,
            length_bytes,
            has_ring,
            punch,
            zero_range,
        })
    }
}

/// Opens `path` with `O_DIRECT` when one logical block can really be read that way.
fn open_direct(path: &Path, block_bytes: u32) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .ok()?;
    let block = usize::try_from(block_bytes).ok()?;
    let staging = memory::staging(2 * block).ok()?;
    // From the second block, into memory aligned to no more than a block.
    let aligned_to_a_block = block.min(DIRECT_ALIGNMENT_BYTES);
    syscall::read_some(
        &file,
        u64::from(block_bytes),
        &staging,
        aligned_to_a_block,
        block,
    )
    .ok()?;
    Some(file)
}

fn or_open_error<T>(path: &Path, outcome: std::io::Result<T>) -> Result<T, EmulatorError> {
    outcome.map_err(|source| EmulatorError::Open {
        path: path.into(),
        source,
    })
}

/// The alignment that a buffer needs to be handed to direct I/O as it is.
pub(super) const DIRECT_ALIGNMENT_BYTES: usize = 512;
const PROBE_BYTES: u64 = 4096;
const ZEROS_BYTES: usize = 64 << 10;
