//! A volume's extents: as a walk over a range, and as pages.

use lode_api::v1::{Extent, ExtentKind, ListExtentsRequest, ListExtentsResponse};
use lode_engine::{ControlReply, ControlRequest, IoError, VolumeHandle, VolumeStatus};
use lode_extent::{LogicalBlock, PieceKind};
use lode_units::limits::ALLOCATION_UNIT_BYTES;

use crate::failure::Failure;
use crate::open;
use crate::volume::listing::{invalid_page_token, page_size};

/// A stretch of a volume that is mapped in one way, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) kind: PieceKind,
}

impl Run {
    pub(crate) const fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.length_bytes
    }
}

/// Walks the extents of a range, window by window, so that no single question covers more pieces
/// than the shard answers without delay. The window grows while it holds one piece only.
#[derive(Debug)]
pub(crate) struct ExtentWalk {
    volume: VolumeHandle,
    next_bytes: u64,
    end_bytes: u64,
    window_units: u64,
}

impl ExtentWalk {
    /// A walk from `start_bytes` to `end_bytes`, which lie in the volume.
    pub(crate) const fn new(volume: VolumeHandle, start_bytes: u64, end_bytes: u64) -> Self {
        Self {
            volume,
            next_bytes: start_bytes,
            end_bytes,
            window_units: WINDOW_MIN_UNITS,
        }
    }

    /// The runs of the next window, cut to the range; empty at its end.
    pub(crate) async fn next_window(&mut self) -> Result<Vec<Run>, Failure> {
        if self.next_bytes >= self.end_bytes {
            return Ok(Vec::new());
        }
        let first = self.next_bytes / ALLOCATION_UNIT_BYTES;
        let last = self.end_bytes.div_ceil(ALLOCATION_UNIT_BYTES);
        let count = self.window_units.min(last - first);
        let asked = open::control(ControlRequest::ListExtents {
            volume: self.volume,
            first: LogicalBlock::new(first),
            count: u32::try_from(count).expect("the window is below 2^32"),
        });
        let extents = match asked.await? {
            ControlReply::Extents(extents) => extents,
            reply => return Err(open::unexpected(&reply)),
        };
        let runs: Vec<_> = extents
            .iter()
            .map(|extent| self.cut(extent))
            .filter(|run| run.length_bytes > 0)
            .collect();
        match runs.last() {
            // The volume was made smaller meanwhile.
            None => Err(IoError::OutOfRange {
                offset_bytes: self.next_bytes,
                length_bytes: self.end_bytes - self.next_bytes,
                size_bytes: self.next_bytes,
            }
            .into()),
            Some(last) => {
                self.next_bytes = last.end_bytes();
                self.window_units = if runs.len() == 1 {
                    (self.window_units * 4).min(WINDOW_MAX_UNITS)
                } else {
                    WINDOW_MIN_UNITS
                };
                Ok(runs)
            }
        }
    }

    fn cut(&self, extent: &lode_engine::Extent) -> Run {
        let start = extent.first.get() * ALLOCATION_UNIT_BYTES;
        let end = start + u64::from(extent.count) * ALLOCATION_UNIT_BYTES;
        let start = start.max(self.next_bytes);
        let end = end.min(self.end_bytes);
        Run {
            offset_bytes: start,
            length_bytes: end.saturating_sub(start),
            kind: extent.kind,
        }
    }
}

/// The range that a request names, checked against the volume: start and end in bytes.
pub(crate) fn range(
    status: &VolumeStatus,
    offset_bytes: u64,
    length_bytes: Option<u64>,
) -> Result<(u64, u64), Failure> {
    let size_bytes = status.info.size_bytes;
    let block_size = status.info.block_size;
    let length_bytes = length_bytes.unwrap_or_else(|| size_bytes.saturating_sub(offset_bytes));
    if !block_size.divides(offset_bytes) || !block_size.divides(length_bytes) {
        return Err(IoError::Unaligned {
            offset_bytes,
            length_bytes,
            block_size_bytes: block_size.bytes(),
        }
        .into());
    }
    match offset_bytes.checked_add(length_bytes) {
        Some(end) if end <= size_bytes => Ok((offset_bytes, end)),
        _ => Err(IoError::OutOfRange {
            offset_bytes,
            length_bytes,
            size_bytes,
        }
        .into()),
    }
}

/// The page that `request` asks for.
pub(super) async fn page(request: &ListExtentsRequest) -> Result<ListExtentsResponse, Failure> {
    let status = open::volume(&request.pool, &request.name).await?;
    let (start, end) = range(&status, request.offset_bytes, request.length_bytes)?;
    let start = match request.page_token.as_str() {
        "" => start,
        token => position(token, start, end)?,
    };
    let limit = page_size(request.page_size);
    let mut walk = ExtentWalk::new(status.handle, start, end);
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..WINDOWS_PER_PAGE_MAX {
        let window = walk.next_window().await?;
        if window.is_empty() {
            break;
        }
        append(&mut runs, window);
        // The last run may go on in the next window: it is complete once another follows.
        if runs.len() > limit {
            break;
        }
    }
    runs.truncate(limit);
    let next = runs.last().map_or(start, Run::end_bytes);
    Ok(ListExtentsResponse {
        extents: runs.iter().map(Extent::from).collect(),
        next_page_token: if next < end {
            next.to_string()
        } else {
            String::new()
        },
    })
}

/// Appends runs, as one with the last where they are of one kind.
pub(crate) fn append(runs: &mut Vec<Run>, window: Vec<Run>) {
    for run in window {
        match runs.last_mut() {
            Some(last) if last.kind == run.kind => last.length_bytes += run.length_bytes,
            _ => runs.push(run),
        }
    }
}

/// The offset that a page token stands for.
fn position(token: &str, start: u64, end: u64) -> Result<u64, Failure> {
    token
        .parse()
        .ok()
        .filter(|offset: &u64| *offset > start && *offset < end)
        .filter(|offset| offset.is_multiple_of(ALLOCATION_UNIT_BYTES))
        .ok_or_else(invalid_page_token)
}

impl From<&Run> for Extent {
    fn from(run: &Run) -> Self {
        let kind = match run.kind {
            PieceKind::Hole => ExtentKind::Hole,
            PieceKind::Unwritten => ExtentKind::Unwritten,
            PieceKind::Written => ExtentKind::Written,
        };
        Self {
            offset_bytes: run.offset_bytes,
            length_bytes: run.length_bytes,
            kind: kind.into(),
        }
    }
}

/// 64 MiB: at most 16384 pieces.
const WINDOW_MIN_UNITS: u64 = 1 << 14;
/// 4 TiB, reached in steps while there is nothing but one piece.
const WINDOW_MAX_UNITS: u64 = 1 << 30;
const _: () = assert!(WINDOW_MAX_UNITS < 1 << 32);
/// How much of a large volume one page looks at; a page may be shorter than asked for.
const WINDOWS_PER_PAGE_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset_bytes: u64, length_bytes: u64, kind: PieceKind) -> Run {
        Run {
            offset_bytes,
            length_bytes,
            kind,
        }
    }

    #[test]
    fn neighbours_of_one_kind_become_one_run() {
        let mut runs = Vec::new();
        append(&mut runs, vec![run(0, 4096, PieceKind::Hole)]);
        let next = vec![
            run(4096, 4096, PieceKind::Hole),
            run(8192, 4096, PieceKind::Written),
        ];
        append(&mut runs, next);
        let expected = [
            run(0, 8192, PieceKind::Hole),
            run(8192, 4096, PieceKind::Written),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn a_page_token_outside_the_range_or_a_unit_is_refused() {
        assert_eq!(position("8192", 0, 16384), Ok(8192));
        for token in ["x", "-1", "0", "16384", "8193", "99999999999999999999"] {
            assert!(position(token, 0, 16384).is_err(), "{token}");
        }
    }
}
