//! What a namespace's blocks are kept in: memory, or a file.
//!
//! Owns: [`Media`], a window into one store, with calls that finish before they return; and
//! [`FileRing`], through which reads and writes of a file run while the controller goes on.
//! Everything `unsafe` of this crate lies below this module: system calls that are given the
//! address of DMA memory.

mod file;
mod memory;
mod signal;

use std::path::Path;
use std::sync::Arc;

use lode_bus::DmaMemory;

pub(crate) use file::{FileData, FileOp, FileRing, Reach};
pub(crate) use signal::Signal;

use crate::error::EmulatorError;
use file::FileStore;
use memory::MemoryStore;

/// How the bytes of a namespace are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Memory of this process; lost when it ends.
    Memory,
    /// A file through `O_DIRECT`: the host's page cache is passed by.
    FileDirect,
    /// A file through the host's page cache, because the file system has no `O_DIRECT` for this
    /// block size.
    FileBuffered,
    /// A file through calls that block, because the host refuses io_uring.
    FileBlocking,
}

/// Why bytes could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaError {
    /// The host has no space left.
    NoSpace,
    /// The host cannot do this operation on this file.
    Unsupported,
    /// The host reported any other error, or the file has become shorter.
    Failed,
}

/// The bytes behind one namespace. Clones are handles to the same bytes, which outlive a
/// controller: a second one may be made over them.
#[derive(Clone, Debug)]
pub struct Media {
    store: Arc<Store>,
    base: u64,
    length: u64,
}

#[derive(Debug)]
enum Store {
    Memory(MemoryStore),
    File(FileStore),
}

impl Media {
    /// `length_bytes` of zeroed memory, taken from the system page by page as it is written.
    ///
    /// # Errors
    /// When the system refuses that much address space.
    pub fn memory(length_bytes: u64) -> Result<Self, EmulatorError> {
        let store = Store::Memory(MemoryStore::allocate(length_bytes)?);
        Ok(Self::whole(store, length_bytes))
    }

    /// An existing file or block device. Nobody else may have it open through this call.
    /// `expected_bytes` is checked against its size when given. `block_bytes` is the logical
    /// block that direct I/O must be able to do.
    ///
    /// # Errors
    /// When it cannot be opened, is in use, holds no blocks or has another size.
    pub fn open_file(
        path: &Path,
        expected_bytes: Option<u64>,
        block_bytes: u32,
    ) -> Result<Self, EmulatorError> {
        let store = FileStore::open(path, expected_bytes, block_bytes)?;
        let length = store.length_bytes();
        Ok(Self::whole(Store::File(store), length))
    }

    /// A file of `length_bytes`, created sparse when it is missing; an existing one must have
    /// that size.
    ///
    /// # Errors
    /// As [`Media::open_file`].
    pub fn create_file(
        path: &Path,
        length_bytes: u64,
        block_bytes: u32,
    ) -> Result<Self, EmulatorError> {
        let store = FileStore::create(path, length_bytes, block_bytes)?;
        Ok(Self::whole(Store::File(store), length_bytes))
    }

    /// Cuts the bytes into `count` windows of equal length, each a multiple of `unit_bytes`; a
    /// remainder stays unused.
    #[must_use]
    pub fn split(&self, count: u32, unit_bytes: u32) -> Vec<Self> {
        let unit = u64::from(unit_bytes.max(1));
        let length = self.length / u64::from(count.max(1)) / unit * unit;
        (0..u64::from(count))
            .map(|index| Self {
                store: Arc::clone(&self.store),
                base: self.base + index * length,
                length,
            })
            .collect()
    }

    /// The length in bytes.
    #[must_use]
    pub const fn length_bytes(&self) -> u64 {
        self.length
    }

    /// How the bytes are reached.
    #[must_use]
    pub fn access(&self) -> Access {
        match &*self.store {
            Store::Memory(_) => Access::Memory,
            Store::File(file) => file.access(),
        }
    }

    /// Copies bytes out, for tests and tools. May block.
    ///
    /// # Panics
    /// When the range lies outside, or the host cannot read the file.
    #[must_use]
    pub fn snapshot(&self, position: u64, length_bytes: usize) -> Vec<u8> {
        let staging = memory::staging(length_bytes).expect("memory for a snapshot");
        self.read(position, &staging, 0, length_bytes)
            .expect("the media can be read");
        let mut bytes = Vec::new();
        staging.append_to(0, length_bytes, &mut bytes);
        bytes
    }

    /// Puts bytes there as if an earlier owner had left them. May block.
    ///
    /// # Panics
    /// When the range lies outside, or the host cannot write the file.
    pub fn overwrite(&self, position: u64, bytes: &[u8]) {
        let staging = memory::staging(bytes.len()).expect("memory for a copy");
        staging.copy_from_slice(0, bytes);
        self.write(position, &staging, 0, bytes.len())
            .expect("the media can be written");
    }

    /// Whether commands on it are to go through a [`FileRing`].
    pub(crate) fn wants_ring(&self) -> bool {
        matches!(self.access(), Access::FileDirect | Access::FileBuffered)
    }

    /// Reads into memory. May block on a file.
    pub(crate) fn read(
        &self,
        position: u64,
        target: &DmaMemory,
        offset: usize,
        length: usize,
    ) -> Result<(), MediaError> {
        let at = self.locate(position, length as u64);
        match &*self.store {
            Store::Memory(store) => store.read(at, target, offset, length),
            Store::File(store) => return store.read(at, target, offset, length),
        }
        Ok(())
    }

    /// Writes from memory. May block on a file.
    pub(crate) fn write(
        &self,
        position: u64,
        source: &DmaMemory,
        offset: usize,
        length: usize,
    ) -> Result<(), MediaError> {
        let at = self.locate(position, length as u64);
        match &*self.store {
            Store::Memory(store) => store.write(at, source, offset, length),
            Store::File(store) => return store.write(at, source, offset, length),
        }
        Ok(())
    }

    /// Makes a range read as zeros, keeping its space or giving it back. May block.
    pub(crate) fn zero(&self, position: u64, length: u64, space: Space) -> Result<(), MediaError> {
        let at = self.locate(position, length);
        match &*self.store {
            Store::Memory(store) => store.zero(at, length),
            Store::File(store) => return store.zero(at, length, space),
        }
        Ok(())
    }

    /// Puts everything written onto stable storage. Blocks on a file.
    pub(crate) fn sync(&self) -> Result<(), MediaError> {
        match &*self.store {
            Store::Memory(_) => Ok(()),
            Store::File(store) => store.sync(),
        }
    }

    /// Copies out into a slice. May block on a file.
    pub(crate) fn read_slice(&self, position: u64, target: &mut [u8]) -> Result<(), MediaError> {
        let at = self.locate(position, target.len() as u64);
        match &*self.store {
            Store::Memory(store) => store.read_slice(at, target),
            Store::File(store) => return store.read_slice(at, target),
        }
        Ok(())
    }

    /// Whether space can be given back; blocks so released read as zeros.
    pub(crate) fn can_release(&self) -> bool {
        self.file().is_none_or(FileStore::can_release)
    }

    /// Whether a range can be zeroed without writing zeros.
    pub(crate) fn can_zero(&self) -> bool {
        self.file().is_none_or(FileStore::can_zero)
    }

    fn whole(store: Store, length: u64) -> Self {
        Self {
            store: Arc::new(store),
            base: 0,
            length,
        }
    }

    /// The position in the store; the caller has checked the range against the namespace.
    fn locate(&self, position: u64, length: u64) -> u64 {
        let end = position.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "{length} bytes at {position} lie inside a media of {}",
            self.length
        );
        self.base + position
    }

    fn file(&self) -> Option<&FileStore> {
        match &*self.store {
            Store::Memory(_) => None,
            Store::File(store) => Some(store),
        }
    }
}

/// What becomes of the space behind zeroed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// It stays allocated: later writes cannot run out of space.
    Keep,
    /// It is given back to the host.
    Release,
}

/// Memory that only this crate sees: arenas and bounce buffers.
pub(crate) fn staging(length_bytes: usize) -> Result<DmaMemory, EmulatorError> {
    memory::staging(length_bytes)
}

/// The error of a system call, as the controller sees it.
fn media_error(errno: i32) -> MediaError {
    match errno {
        libc::ENOSPC | libc::EDQUOT => MediaError::NoSpace,
        libc::EOPNOTSUPP | libc::ENOSYS => MediaError::Unsupported,
        _ => MediaError::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_told_apart_from_a_broken_one() {
        assert_eq!(media_error(libc::ENOSPC), MediaError::NoSpace);
        assert_eq!(media_error(libc::EDQUOT), MediaError::NoSpace);
        assert_eq!(media_error(libc::EOPNOTSUPP), MediaError::Unsupported);
        assert_eq!(media_error(libc::EIO), MediaError::Failed);
    }

    #[test]
    fn parts_of_a_media_do_not_overlap() {
        let media = Media::memory(10_000).expect("memory");
        let parts = media.split(3, 512);
        let source = staging(3072).expect("memory");
        for (byte, part) in (1..).zip(&parts) {
            assert_eq!(part.length_bytes(), 3072);
            source.copy_from_slice(0, &[byte; 3072]);
            part.write(0, &source, 0, 3072)
                .expect("memory does not fail");
        }
        for (byte, part) in (1..).zip(&parts) {
            assert_eq!(part.snapshot(0, 3072), [byte; 3072]);
        }
    }
}
