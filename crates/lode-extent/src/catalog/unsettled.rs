//! The parts of a volume whose mapping is recorded but not durable.

use smallvec::SmallVec;

use crate::types::Ticket;

/// Ranges kept apart; beyond that they are merged, which may take in what lies between.
const RANGES_MAX: usize = 16;

/// Ranges of units with the last change that mapped them.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    newest: Ticket,
    ranges: SmallVec<[(Ticket, u64, u64); 4]>,
}

impl Unsettled {
    /// The units `first..end` are mapped by `ticket`.
    pub(crate) fn add(&mut self, ticket: Ticket, first: u64, end: u64, durable: Ticket) {
        self.newest = ticket;
        self.ranges.retain(|&mut (ticket, _, _)| ticket > durable);
        if let Some(last) = self.ranges.last_mut()
            && last.2 == first
        {
            *last = (ticket, last.1, end);
            return;
        }
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push((ticket, first, end));
            return;
        }
        let last = self.ranges.last_mut().expect("there are many ranges");
        *last = (ticket, last.1.min(first), last.2.max(end));
    }

    /// Whether the mapping of any of `first..end` may not be durable.
    #[inline]
    pub(crate) fn touches(&self, first: u64, end: u64, durable: Ticket) -> bool {
        self.newest > durable
            && self
                .ranges
                .iter()
                .any(|&(ticket, start, stop)| ticket > durable && start < end && first < stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_stays_unsettled_until_its_ticket_is_durable() {
        let mut unsettled = Unsettled::default();
        for index in 0..100 {
            let durable = Ticket::new(0);
            unsettled.add(Ticket::new(index + 1), index * 10, index * 10 + 5, durable);
        }
        for index in 0..100 {
            assert!(unsettled.touches(index * 10, index * 10 + 1, Ticket::new(index)));
        }
        assert!(!unsettled.touches(0, 2000, Ticket::new(100)));
        assert!(!unsettled.touches(2000, 3000, Ticket::new(0)));
    }
}
