//! The written extents of a volume that a guest may use without asking, until they are recalled.

use std::collections::BTreeMap;

use lode_extent::{LogicalBlock, Piece, PieceFlags, PieceKind, PoolBlock};

use crate::host::Pieces;
use crate::port::UnitRange;

/// Leases on one volume, without overlaps.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// By first unit.
    extents: BTreeMap<u64, Lease>,
    /// The one that served last.
    recent: Option<(u64, Lease)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    count: u32,
    is_settled: bool,
    physical: u64,
}

impl Leases {
    /// Appends the pieces that cover the units, which are all under lease; `false` when some are
    /// not. `into` may then hold some pieces. Allocates only where `into` spills.
    #[inline]
    pub(crate) fn look_up(&mut self, units: UnitRange, into: &mut Pieces) -> bool {
        let mut next = units.first;
        while next < units.end {
            let Some((first, lease)) = self.find(next) else {
                return false;
            };
            let end = (first + u64::from(lease.count)).min(units.end);
            let Ok(count) = u32::try_from(end - next) else {
                return false;
            };
            into.push(piece(next, count, lease.physical + (next - first), &lease));
            next = end;
        }
        true
    }

    /// The lease that covers a unit.
    #[inline]
    fn find(&mut self, unit: u64) -> Option<(u64, Lease)> {
        let covers = |first: u64, lease: Lease| {
            unit.checked_sub(first)
                .is_some_and(|into| into < u64::from(lease.count))
        };
        if let Some((first, lease)) = self.recent
            && covers(first, lease)
        {
            return self.recent;
        }
        let (first, lease) = self.extents.range(..=unit).next_back()?;
        let found = (*first, *lease);
        self.recent = covers(found.0, found.1).then_some(found);
        self.recent
    }

    /// Takes a lease in place of those that it overlaps.
    pub(crate) fn insert(&mut self, extent: &Piece) {
        let units = UnitRange::of(extent);
        self.remove(units);
        if self.extents.len() >= LEASES_MAX {
            self.extents.clear();
        }
        let lease = Lease {
            count: extent.count,
            is_settled: !extent.flags.contains(PieceFlags::META_DIRTY),
            physical: extent.physical.get(),
        };
        self.extents.insert(units.first, lease);
    }

    /// Lets go of units; what a lease covers beside them stays.
    pub(crate) fn remove(&mut self, units: UnitRange) {
        self.recent = None;
        let overlapping = self.extents.range(..units.end).rev();
        let overlapping: Vec<_> = overlapping
            .map(|(first, lease)| (*first, *lease))
            .take_while(|(first, lease)| first + u64::from(lease.count) > units.first)
            .collect();
        for (first, lease) in overlapping {
            self.extents.remove(&first);
            let end = first + u64::from(lease.count);
            if first < units.first {
                self.keep_part(first, units.first, first, lease);
            }
            if units.end < end {
                self.keep_part(units.end, end, first, lease);
            }
        }
    }

    fn keep_part(&mut self, from: u64, to: u64, first: u64, lease: Lease) {
        let count = u32::try_from(to - from).expect("a part is shorter than the whole");
        let physical = lease.physical + (from - first);
        let part = Lease {
            count,
            physical,
            ..lease
        };
        self.extents.insert(from, part);
    }

    /// Lets go of all.
    pub(crate) fn clear(&mut self) {
        self.recent = None;
        self.extents.clear();
    }
}

fn piece(first: u64, count: u32, physical: u64, lease: &Lease) -> Piece {
    let mut flags = PieceFlags::empty();
    flags.set(PieceFlags::META_DIRTY, !lease.is_settled);
    Piece {
        kind: PieceKind::Written,
        flags,
        logical: LogicalBlock::new(first),
        physical: PoolBlock::new(physical),
        count,
    }
}

/// The most leases on one volume: when there are more, all are given up and asked for anew.
const LEASES_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, count: u32, physical: u64) -> Piece {
        let lease = Lease {
            count,
            is_settled: true,
            physical,
        };
        piece(first, count, physical, &lease)
    }

    fn units(first: u64, end: u64) -> UnitRange {
        UnitRange { first, end }
    }

    fn looked_up(leases: &mut Leases, first: u64, end: u64) -> Option<Vec<(u64, u32, u64)>> {
        let mut pieces = Pieces::new();
        let is_covered = leases.look_up(units(first, end), &mut pieces);
        let triple = |piece: &Piece| (piece.logical.get(), piece.count, piece.physical.get());
        is_covered.then(|| pieces.iter().map(triple).collect())
    }

    #[test]
    fn a_range_is_served_only_when_leases_cover_all_of_it() {
        let mut leases = Leases::default();
        leases.insert(&extent(10, 10, 100));
        leases.insert(&extent(20, 5, 300));
        assert_eq!(looked_up(&mut leases, 12, 14), Some(vec![(12, 2, 102)]));
        let both = vec![(18, 2, 108), (20, 3, 300)];
        assert_eq!(looked_up(&mut leases, 18, 23), Some(both));
        assert_eq!(looked_up(&mut leases, 9, 12), None);
        assert_eq!(looked_up(&mut leases, 23, 26), None);
    }

    #[test]
    fn what_is_recalled_is_gone_and_its_neighbours_stay() {
        let mut leases = Leases::default();
        leases.insert(&extent(0, 100, 1000));
        assert!(looked_up(&mut leases, 50, 51).is_some());
        leases.remove(units(40, 60));
        assert_eq!(looked_up(&mut leases, 50, 51), None);
        assert_eq!(looked_up(&mut leases, 39, 41), None);
        assert_eq!(looked_up(&mut leases, 30, 40), Some(vec![(30, 10, 1030)]));
        assert_eq!(looked_up(&mut leases, 60, 61), Some(vec![(60, 1, 1060)]));
        leases.remove(UnitRange::from(70));
        assert_eq!(looked_up(&mut leases, 69, 70), Some(vec![(69, 1, 1069)]));
        assert_eq!(looked_up(&mut leases, 70, 71), None);
    }

    #[test]
    fn a_lease_replaces_what_it_overlaps() {
        let mut leases = Leases::default();
        leases.insert(&extent(0, 10, 1000));
        leases.insert(&extent(5, 10, 2000));
        let both = vec![(4, 1, 1004), (5, 2, 2000)];
        assert_eq!(looked_up(&mut leases, 4, 7), Some(both));
        leases.insert(&extent(0, 20, 3000));
        assert_eq!(looked_up(&mut leases, 0, 20), Some(vec![(0, 20, 3000)]));
    }

    #[test]
    fn a_lease_too_many_gives_up_the_others() {
        let mut leases = Leases::default();
        for at in 0..=LEASES_MAX as u64 {
            leases.insert(&extent(at * 2, 1, at));
        }
        assert_eq!(looked_up(&mut leases, 0, 1), None);
        let last = LEASES_MAX as u64;
        assert!(looked_up(&mut leases, last * 2, last * 2 + 1).is_some());
    }
}
