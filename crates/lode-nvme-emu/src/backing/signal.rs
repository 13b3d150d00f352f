//! An event counter of the kernel: what a finished file operation and a posted completion fire.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd. Readable once it was fired, until it is read.
#[derive(Debug)]
pub(crate) struct Signal {
    file: File,
}

impl Signal {
    /// A fresh one that has not fired. Enters the kernel.
    pub(crate) fn create() -> io::Result<Self> {
        // SAFETY: the call takes two numbers and returns a new descriptor or -1.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and nothing else owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { file: owned.into() })
    }

    /// A second handle to somebody else's eventfd.
    pub(crate) fn adopt(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let owned = descriptor.try_clone_to_owned()?;
        Ok(Self { file: owned.into() })
    }

    /// Makes the descriptor readable. One system call, which does not block.
    pub(crate) fn fire(&self) {
        // It fails only when the counter is at its maximum: then it is readable already.
        let _is_readable_already = (&self.file).write(&1_u64.to_ne_bytes()).is_err();
    }

    /// The descriptor to wait on.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
