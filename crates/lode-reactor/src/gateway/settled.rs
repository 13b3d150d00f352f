//! The end of a data request between its completion and its fetching.

use lode_block::Durability;
use lode_bus::DmaBuffer;
use lode_engine::{DataCompletion, DataOperation, DataRequest, IoError};

use crate::gateway::buffers::Buffers;

/// A completion that nobody has fetched yet.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) result: Result<Durability, IoError>,
    pub(super) memory: Memory,
    settled_at_turn: u64,
}

/// What has become of a request's buffer.
#[derive(Debug)]
pub(super) enum Memory {
    /// There is none, or it went back.
    None,
    /// It is there; its first bytes are the data of a read.
    Buffer {
        buffer: DmaBuffer,
        data_length: usize,
    },
    /// It went back; the data of a read were copied first.
    Copied(Vec<u8>),
}

impl Settled {
    pub(super) fn new(completion: DataCompletion, data_length: usize, turn: u64) -> Self {
        let data_length = if completion.result.is_ok() {
            data_length
        } else {
            0
        };
        Self {
            result: completion.result,
            memory: completion
                .buffer
                .map_or(Memory::None, |buffer| Memory::Buffer {
                    buffer,
                    data_length,
                }),
            settled_at_turn: turn,
        }
    }

    /// Gives the buffer back although nobody has fetched the completion, if that is so since long.
    /// Allocates for the data of a read.
    pub(super) fn relieve(&mut self, turn: u64, buffers: &mut Buffers) {
        let is_stale = turn.wrapping_sub(self.settled_at_turn) >= STALE_TURNS;
        if is_stale && matches!(self.memory, Memory::Buffer { .. }) {
            self.memory = std::mem::replace(&mut self.memory, Memory::None).relieved(buffers);
        }
    }
}

impl Memory {
    /// Gives the buffer back and keeps the data of a read.
    fn relieved(self, buffers: &mut Buffers) -> Self {
        let Self::Buffer {
            buffer,
            data_length,
        } = self
        else {
            return self;
        };
        let kept = if data_length > 0 {
            let mut copied = Vec::with_capacity(data_length);
            buffer.append_to(0, data_length, &mut copied);
            Self::Copied(copied)
        } else {
            Self::None
        };
        buffers.give_back(buffer);
        kept
    }

    /// The buffer, if it is there.
    pub(super) fn into_buffer(self) -> Option<DmaBuffer> {
        match self {
            Self::Buffer { buffer, .. } => Some(buffer),
            Self::None | Self::Copied(_) => None,
        }
    }
}

/// How many bytes of its buffer a request fills: those of a read.
pub(super) fn data_length(request: &DataRequest) -> usize {
    match request.operation {
        DataOperation::Read => usize::try_from(request.length_bytes).unwrap_or(0),
        DataOperation::Write
        | DataOperation::CompareAndWrite
        | DataOperation::WriteZeroes
        | DataOperation::Discard
        | DataOperation::Flush => 0,
    }
}

/// After how many turns of the poller an answer counts as one that its caller cannot take: a caller
/// that can does so within a turn or two.
pub(super) const STALE_TURNS: u64 = 64;
