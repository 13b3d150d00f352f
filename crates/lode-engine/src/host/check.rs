//! What a request says about itself, checked before it takes anything.

use lode_block::{BlockDevice, Durability};
use lode_extent::PoolState;
use lode_units::BlockSize;
use lode_units::limits::{IO_LENGTH_MAX_BYTES, RANGE_LENGTH_MAX_BYTES};

use super::PoolHost;
use crate::error::IoError;
use crate::memory::COMPARE_MAX_BYTES;
use crate::request::{DataOperation, DataRequest};

/// What was found of a request that may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    /// The durability that it is owed: the strongest of its own and the volume's.
    pub(crate) durability: Durability,
    /// Its volume has limits.
    pub(crate) is_limited: bool,
}

impl<D: BlockDevice> PoolHost<D> {
    /// Checks what a request says about itself. Cheap and without effect.
    #[inline]
    pub(crate) fn check(&self, request: &DataRequest) -> Result<Checked, IoError> {
        let handle = request.volume;
        let volume = self
            .volumes
            .get(handle.slot, handle.generation)
            .filter(|volume| !volume.is_closing)
            .ok_or(IoError::UnknownVolume)?;
        if self.is_exporting {
            return Err(IoError::PoolUnavailable);
        }
        let durability = request.durability.max(volume.durability);
        let is_limited = volume.throttle.is_limited();
        let checked = |durability| Checked {
            durability,
            is_limited,
        };
        if request.operation == DataOperation::Read {
            check_range(request, volume.block_size, volume.size_bytes)?;
            return Ok(checked(Durability::None));
        }
        if !matches!(self.pool.state(), PoolState::Ready) {
            return Err(IoError::PoolUnavailable);
        }
        if request.operation == DataOperation::Flush {
            let can_flush = self.can_promise(Durability::Data);
            return if can_flush {
                Ok(checked(Durability::Data))
            } else {
                Err(IoError::FlushFailed)
            };
        }
        check_range(request, volume.block_size, volume.size_bytes)?;
        if self.can_promise(durability) {
            Ok(checked(durability))
        } else {
            Err(IoError::FlushFailed)
        }
    }
}

/// Checks a request against the size and the blocks of its volume.
#[inline]
pub(crate) fn check_range(
    request: &DataRequest,
    block_size: BlockSize,
    size_bytes: u64,
) -> Result<(), IoError> {
    let (offset_bytes, length_bytes) = (request.offset_bytes, request.length_bytes);
    if length_bytes == 0 {
        return Err(IoError::ZeroLength);
    }
    let length_max_bytes = match request.operation {
        DataOperation::Read | DataOperation::Write | DataOperation::Flush => IO_LENGTH_MAX_BYTES,
        DataOperation::CompareAndWrite => COMPARE_MAX_BYTES,
        DataOperation::WriteZeroes | DataOperation::Discard => RANGE_LENGTH_MAX_BYTES,
    };
    if length_bytes > length_max_bytes {
        return Err(IoError::TooLong {
            length_bytes,
            length_max_bytes,
        });
    }
    if !block_size.divides(offset_bytes | length_bytes) {
        let block_size_bytes = block_size.bytes();
        return Err(IoError::Unaligned {
            offset_bytes,
            length_bytes,
            block_size_bytes,
        });
    }
    if offset_bytes
        .checked_add(length_bytes)
        .is_none_or(|end| end > size_bytes)
    {
        return Err(IoError::OutOfRange {
            offset_bytes,
            length_bytes,
            size_bytes,
        });
    }
    let held = request
        .buffer
        .as_ref()
        .map_or(0, |buffer| buffer.length_bytes() as u64);
    let needed = match request.operation {
        DataOperation::Read | DataOperation::Write => length_bytes,
        DataOperation::CompareAndWrite => length_bytes * 2,
        DataOperation::WriteZeroes | DataOperation::Discard | DataOperation::Flush => 0,
    };
    if held < needed {
        Err(IoError::NoBuffer)
    } else {
        Ok(())
    }
}
