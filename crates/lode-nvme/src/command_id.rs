//! Command identifiers that carry a generation.

use lode_units::CommandId;

/// How the 16 bits of a command identifier are divided: the slot's index below, a generation
/// above that grows each time the slot is used.
///
/// A completion that comes late or twice names a generation that is no longer current and is
/// recognised. The index 2^bits − 1 is never used, so that 0xFFFF, which the error log uses for
/// "no command" (Base 2.0 §5.16.1.2), is no identifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandIds {
    index_mask: u16,
}

impl CommandIds {
    /// The division for `slots` slots.
    pub(crate) const fn new(slots: u16) -> Self {
        Self {
            // As many bits as it takes for their largest value to be no slot's index.
            index_mask: (1 << (u16::BITS - slots.leading_zeros())) - 1,
        }
    }

    /// The slot that `id` names; not checked against the count of slots.
    #[inline]
    pub(crate) const fn index(self, id: CommandId) -> usize {
        self.slot(id) as usize
    }

    /// The slot that `id` names, as it is kept in a list of free slots.
    #[inline]
    pub(crate) const fn slot(self, id: CommandId) -> u16 {
        id.get() & self.index_mask
    }

    /// The identifier of the same slot's next use.
    #[inline]
    pub(crate) const fn next(self, id: CommandId) -> CommandId {
        // The carry out of the generation is dropped; the index is left alone.
        CommandId::new(id.get().wrapping_add(self.index_mask + 1))
    }

    /// The identifier of the first use of slot `index`.
    pub(crate) const fn first(self, index: u16) -> CommandId {
        CommandId::new(index & self.index_mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_keeps_its_index_through_all_generations_and_avoids_all_ones() {
        for slots in [1, 2, 3, 7, 8, 31, 127, 128, 254, 255, 256, 1000, 4095] {
            let ids = CommandIds::new(slots);
            for index in [0, slots / 2, slots - 1] {
                let first = ids.first(index);
                let later = std::iter::successors(Some(ids.next(first)), |id| Some(ids.next(*id)));
                let uses: Vec<_> = later.take_while(|id| *id != first).collect();
                assert!(uses.iter().all(|id| ids.index(*id) == usize::from(index)));
                assert!(uses.iter().all(|id| id.get() != 0xFFFF));
                assert!(uses.len() >= 15, "{slots} slots: {}", uses.len());
            }
        }
    }
}
