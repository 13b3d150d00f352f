//! The extents of a volume that served lately: where most lookups end, before the extent map.

use lode_extent::{LogicalBlock, Piece, PieceFlags, PieceKind, PoolBlock};

/// Extents that served lately, as long as nothing has changed the mapping. Each stretch of the
/// volume has one place, which it shares with others far away.
#[derive(Debug)]
pub(crate) struct RecentExtents {
    places: [Place; PLACES],
    is_empty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of no units: none.
    extent: Piece,
    /// How many lookups beside it the extent outlasts; 0 when it has served nobody.
    credit: u8,
    /// Lookups that pass before another extent is remembered.
    pause: u8,
}

impl RecentExtents {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            places: [Place::VACANT; PLACES],
            is_empty: true,
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
        place.credit = CREDIT;
        Some(Piece {
            logical: LogicalBlock::new(first_unit),
            physical: PoolBlock::new(extent.physical.get() + into),
            count,
            ..extent
        })
    }

    /// Whether the extent that a lookup of this unit met is worth asking for. Not while the one
    /// that is remembered serves more often; and where that one served nobody, as in a stretch of
    /// short extents, it is found out only now and then.
    pub(crate) fn wants(&mut self, first_unit: u64) -> bool {
        let place = &mut self.places[place_of(first_unit)];
        if let Some(pause) = place.pause.checked_sub(1) {
            place.pause = pause;
            return false;
        }
        if place.extent.count > 0 && place.credit == 0 {
            *place = Place::PAUSING;
            return false;
        }
        place.credit = place.credit.saturating_sub(1);
        place.credit == 0
    }

    /// Remembers the extent that a lookup of `first_unit` met; `None` where it cannot be relied on.
    pub(crate) fn remember(&mut self, first_unit: u64, extent: Option<Piece>) {
        self.places[place_of(first_unit)] = match extent {
            Some(extent) => Place {
                extent,
                ..Place::VACANT
            },
            None => Place::PAUSING,
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
        credit: 0,
        pause: 0,
    };
    const PAUSING: Self = Self {
        pause: PAUSE,
        ..Self::VACANT
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
/// What serving earns: an extent gives way when so many lookups pass it by before it serves again.
const CREDIT: u8 = 4;
/// How many lookups pass before remembering is tried again.
const PAUSE: u8 = 16;

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
        recent.remember(20, None);
        assert!(!recent.wants(30), "nothing to rely on lies here");
        assert!(recent.wants(STRETCH_UNITS), "elsewhere there may be");
    }

    #[test]
    fn what_serves_outlasts_a_few_lookups_beside_it() {
        let mut recent = RecentExtents::new();
        recent.remember(0, Some(extent(0, 1000, 4)));
        for _ in 0..2 * CREDIT {
            assert!(recent.covering(1, 1).is_some());
            assert!(!recent.wants(10));
        }
        let passed_by = (1..CREDIT).filter(|_| recent.wants(10)).count();
        assert_eq!(passed_by, 1, "the last of them");
    }
}
