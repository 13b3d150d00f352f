//! Buffers for transfers that a file cannot take as they are: scattered, misaligned, or compared.

use lode_bus::DmaMemory;

use crate::backing;
use crate::error::EmulatorError;

/// A few buffers of the longest transfer each. Their memory is taken from the system when it is
/// first used.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    memory: DmaMemory,
    each_bytes: usize,
    free: Vec<u8>,
}

/// One buffer, lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounce(u8);

impl BounceBuffers {
    pub(crate) fn of(each_bytes: usize) -> Result<Self, EmulatorError> {
        Ok(Self {
            memory: backing::staging(each_bytes * usize::from(COUNT))?,
            each_bytes,
            free: (0..COUNT).collect(),
        })
    }

    /// Lends a buffer, or `None` when all are lent.
    pub(crate) fn lend(&mut self) -> Option<Bounce> {
        self.free.pop().map(Bounce)
    }

    /// Takes a buffer back.
    pub(crate) fn take_back(&mut self, bounce: Bounce) {
        debug_assert!(!self.free.contains(&bounce.0), "a buffer is lent once");
        self.free.push(bounce.0);
    }

    /// The memory of all buffers.
    pub(crate) const fn memory(&self) -> &DmaMemory {
        &self.memory
    }

    /// Where `bounce` begins.
    pub(crate) fn offset(&self, bounce: Bounce) -> usize {
        usize::from(bounce.0) * self.each_bytes
    }

    /// How long each is.
    pub(crate) const fn each_bytes(&self) -> usize {
        self.each_bytes
    }
}

const COUNT: u8 = 8;
