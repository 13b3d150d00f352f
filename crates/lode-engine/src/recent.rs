//! The extents of a volume that served lately: where most lookups end, before the extent map.

use lode_extent::{LogicalBlock, Piece, PieceFlags, PieceKind, PoolBlock};

/// Extents that served lately, as long as nothing has changed the mapping. Each stretch of the
/// volume has one place, which it shares with others far away.
#[derive(Debug)]
pub(crate) struct RecentExtents {
    places: [Place; PLACES],
    is_empty: bool,
    /// Lookups that pass before another extent is remembered.
    pause: u8,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of no units: none.
    extent: Piece,
    /// It has served since it was remembered.
    has_served: bool,
}

impl RecentExtents {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            places: [Place::VACANT; PLACES],
            is_empty: true,
            pause: 0,
        }
    }

    /// The part of a remembered extent that covers the units, if one covers them all.
    #[inline]
    pub(crate) fn covering(&mut self, first_unit: u64, count: u32) -> Option<Piece> {
        let place = &mut self.places[place_of(first_unit)];
        let extent = place.extent;
        let into = first_unit.checked_sub(extent.logical.get())?;
        if into + u64::from(count) > u64::from(extent.count) {
            return None;
        }
        place.has_served = true;
        Some(Piece {
            logical: LogicalBlock::new(first_unit),
            physical: PoolBlock::new(extent.physical.get() + into),
            count,
            ..extent
        })
    }

    /// Whether the extent that a lookup of this unit met is worth asking for: where the one before
    /// it served nobody it is not, and that is found out only now and then.
    pub(crate) fn wants(&mut self, first_unit: u64) -> bool {
        if let Some(pause) = self.pause.checked_sub(1) {
            self.pause = pause;
            return false;
        }
        let place = &mut self.places[place_of(first_unit)];
        if place.extent.count > 0 && !place.has_served {
            *place = Place::VACANT;
            self.pause = PAUSE;
            return false;
        }
        true
    }

    /// Remembers the extent that a lookup of `first_unit` met; `None` where it cannot be relied on.
    pub(crate) fn remember(&mut self, first_unit: u64, extent: Option<Piece>) {
        let Some(extent) = extent else {
            self.pause = PAUSE;
            return;
        };
        self.places[place_of(first_unit)] = Place {
            extent,
            has_served: false,
        };
        self.is_empty = false;
    }

    /// Forgets all: the mapping changes.
    pub(crate) fn forget(&mut self) {
        if !self.is_empty {
            self.places = [Place::VACANT; PLACES];
            self.is_empty = true;
        }
    }
}

impl Place {
    const VACANT: Self = Self {
        extent: Piece {
            kind: PieceKind::Hole,
            flags: PieceFlags::empty(),
            logical: LogicalBlock::new(0),
            physical: PoolBlock::new(0),
            count: 0,
        },
        has_served: false,
    };
}

/// The place of the stretch that a unit lies in.
#[inline]
fn place_of(unit: u64) -> usize {
    usize::try_from(unit / STRETCH_UNITS % PLACES as u64).expect("a remainder of few places")
}

/// Places: so many stretches side by side do not get in each other's way.
const PLACES: usize = 32;
/// 128 MiB: an extent lies within one allocation group, and that is hardly shorter.
const STRETCH_UNITS: u64 = 1 << 15;
/// How many lookups pass before remembering is tried again.
const PAUSE: u8 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, physical: u64, count: u32) -> Piece {
        Piece {
            kind: PieceKind::Written,
            flags: PieceFlags::empty(),
            logical: LogicalBlock::new(first),
            physical: PoolBlock::new(physical),
            count,
        }
    }

    #[test]
    fn an_extent_answers_for_what_lies_wholly_in_it() {
        let mut recent = RecentExtents::new();
        recent.remember(100, Some(extent(90, 1000, 20)));
        assert_eq!(recent.covering(90, 20), Some(extent(90, 1000, 20)));
        assert_eq!(recent.covering(109, 1), Some(extent(109, 1019, 1)));
        for (first, count) in [(89, 1), (89, 2), (109, 2), (110, 1), (0, 1)] {
            assert_eq!(recent.covering(first, count), None, "{first} {count}");
        }
        let far = 100 + STRETCH_UNITS * PLACES as u64;
        assert_eq!(recent.covering(far, 1), None, "of the same place");
        recent.forget();
        assert_eq!(recent.covering(100, 1), None);
    }

    #[test]
    fn stretches_side_by_side_are_remembered_together() {
        let mut recent = RecentExtents::new();
        let firsts = || (0..PLACES as u64).map(|stretch| stretch * STRETCH_UNITS);
        for first in firsts() {
            assert!(recent.wants(first));
            recent.remember(first, Some(extent(first, first + 7, 4)));
        }
        for first in firsts() {
            let found = recent.covering(first + 3, 1);
            assert_eq!(found, Some(extent(first + 3, first + 10, 1)));
        }
    }

    #[test]
    fn what_served_nobody_is_not_replaced_for_a_while() {
        let mut recent = RecentExtents::new();
        recent.remember(0, Some(extent(0, 1000, 4)));
        assert!(!recent.wants(10), "the one before served nobody");
        for _ in 0..PAUSE {
            assert!(!recent.wants(10));
        }
        assert!(recent.wants(10));
        recent.remember(10, Some(extent(10, 1000, 4)));
        assert!(recent.covering(10, 1).is_some());
        assert!(recent.wants(20), "the one before served");
        recent.remember(20, None);
        assert!(!recent.wants(30), "nothing to rely on lies here");
    }
}
