//! The pages behind DMA memory: where they come from, and who else may map them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::lost_pages::PageWatch;

/// Which pages to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePreference {
    /// Ordinary 4 KiB pages.
    Ordinary,
    /// 2 MiB pages where the system has reserved some, ordinary ones otherwise.
    HugeIfReserved,
}

/// Which pages a memory came to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// 4 KiB pages.
    Ordinary,
    /// 2 MiB pages.
    Huge,
}

/// Mapped pages, readable and writable.
#[derive(Debug)]
pub(super) struct Pages {
    /// Of pages that somebody else can take away. Before the mapping, so that it is dropped first.
    _watch: Option<PageWatch>,
    pub(super) map: MmapRaw,
    pub(super) kind: PageKind,
    /// What another process maps to see the same pages, from its first byte on.
    file: Option<OwnedFd>,
}

impl Pages {
    /// Zeroed pages that can be shared with another process; with nobody where the system has no
    /// sealed memory files.
    pub(super) fn shareable(length_bytes: usize, preference: PagePreference) -> io::Result<Self> {
        let huge = match preference {
            PagePreference::Ordinary => None,
            PagePreference::HugeIfReserved => Self::sealed(length_bytes, PageKind::Huge).ok(),
        };
        huge.map_or_else(
            || {
                Self::sealed(length_bytes, PageKind::Ordinary)
                    .or_else(|_refused| Self::private(length_bytes))
            },
            Ok,
        )
    }

    /// Zeroed ordinary pages of this process alone.
    pub(super) fn private(length_bytes: usize) -> io::Result<Self> {
        let length = whole_pages(length_bytes, PAGE_BYTES)?;
        Ok(Self {
            _watch: None,
            map: MmapOptions::new().len(length).map_anon()?.into(),
            kind: PageKind::Ordinary,
            file: None,
        })
    }

    /// The pages of `file`, which another process has made and may shorten at any time.
    pub(super) fn foreign(
        file: BorrowedFd<'_>,
        offset: u64,
        length_bytes: usize,
    ) -> io::Result<Self> {
        let map = MmapOptions::new()
            .offset(offset)
            .len(length_bytes)
            .map_raw(&file)?;
        let start = map.as_mut_ptr();
        // The fault handler knows the pages by their address alone.
        start.expose_provenance();
        Ok(Self {
            _watch: Some(PageWatch::new(start, length_bytes)?),
            map,
            kind: PageKind::Ordinary,
            file: None,
        })
    }

    /// Pages of a memory file that nobody can shorten or extend: whoever it is shared with cannot
    /// take the pages away from this process.
    fn sealed(length_bytes: usize, kind: PageKind) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let (page, flags) = match kind {
            PageKind::Ordinary => (PAGE_BYTES, flags),
            PageKind::Huge => (
                HUGE_PAGE_BYTES,
                flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            ),
        };
        let length = whole_pages(length_bytes, page)?;
        let file = memfd_create("lodestore-dma", flags)?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut options = MmapOptions::new();
        options.len(length);
        if kind == PageKind::Huge {
            options.populate();
        }
        Ok(Self {
            _watch: None,
            map: options.map_raw(&file)?,
            kind,
            file: Some(file),
        })
    }

    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

fn whole_pages(length_bytes: usize, page: usize) -> io::Result<usize> {
    length_bytes
        .max(1)
        .checked_next_multiple_of(page)
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 1 << 21;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_shares_the_pages_cannot_take_them_away() {
        let pages = Pages::shareable(8192, PagePreference::Ordinary).expect("pages");
        let file = pages.file().expect("a memory file");
        ftruncate(file, 0).expect_err("sealed against shrinking");
        ftruncate(file, 1 << 20).expect_err("sealed against growing");
        fcntl_add_seals(file, SealFlags::WRITE).expect_err("no further seals");
    }

    #[test]
    fn private_pages_are_shared_with_nobody() {
        let pages = Pages::private(4096).expect("pages");
        assert!(pages.file().is_none());
    }

    #[test]
    fn asking_for_huge_pages_works_without_any() {
        let pages = Pages::shareable(4096, PagePreference::HugeIfReserved).expect("pages");
        match pages.kind {
            PageKind::Ordinary => assert_eq!(pages.map.len(), 4096),
            PageKind::Huge => assert_eq!(pages.map.len(), HUGE_PAGE_BYTES),
        }
    }
}
