//! Doorbells, direct and through shadow memory.

use std::sync::atomic::{Ordering, fence};

use lode_bus::{DmaMemory, Registers};

/// One doorbell of a queue.
///
/// With shadow doorbells (Base 2.0 §5.9, annex B.5) the value is written to memory, and the
/// register only when the controller asked to be told of that value.
#[derive(Debug)]
pub(crate) struct Doorbell {
    register: u32,
    shadow: Option<Shadow>,
    shadowing: Shadowing,
    last: u16,
}

/// What the shadow of a doorbell is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shadowing {
    /// Nothing: the controller was not told of it.
    Off,
    /// Kept equal to the register, which is always written: an admin queue's.
    Mirror,
    /// Written in place of the register, unless the controller wants that too.
    Instead,
}

/// The memory of shadow doorbells: a page of values, and a page of event indexes.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    pub(crate) memory: DmaMemory,
    pub(crate) value_offset: usize,
    pub(crate) event_offset: usize,
}

impl Doorbell {
    /// The doorbell at `register`, whose place in shadow memory is `shadow`, if it has one.
    pub(crate) const fn new(register: u32, shadow: Option<Shadow>) -> Self {
        Self {
            register,
            shadow,
            shadowing: Shadowing::Off,
            last: 0,
        }
    }

    /// Begins anew with a queue that was just created; `uses_shadow` says whether the
    /// controller has been told of the shadow memory.
    pub(crate) const fn restart(&mut self, uses_shadow: bool) {
        self.last = 0;
        self.shadowing = if uses_shadow && self.shadow.is_some() {
            Shadowing::Instead
        } else {
            Shadowing::Off
        };
    }

    /// Keeps the shadow equal to the register from now on, beginning with `value`, its present
    /// one.
    pub(crate) fn mirror(&mut self, value: u32) {
        if let Some(shadow) = &self.shadow {
            self.shadowing = Shadowing::Mirror;
            shadow.store(value);
        }
    }

    /// Tells the controller of `value`, below 65536. Returns whether the register was written.
    #[inline]
    pub(crate) fn ring<R: Registers>(&mut self, registers: &R, value: u32) -> bool {
        if self.shadowing != Shadowing::Off && !self.publish(value) {
            return false;
        }
        registers.write_u32(self.register, value);
        true
    }

    /// Publishes `value` in shadow memory; true when the controller wants the register written
    /// too.
    fn publish(&mut self, value: u32) -> bool {
        let Some(shadow) = &self.shadow else {
            return true;
        };
        shadow.store(value);
        if self.shadowing == Shadowing::Mirror {
            return true;
        }
        let new = u16::try_from(value).expect("a ring has at most 65536 entries");
        let old = std::mem::replace(&mut self.last, new);
        // The controller writes its event index and then reads the value once more; we write
        // the value and then read the event index. The fence between (its partner is the
        // controller's) makes sure that one of the two sees the other.
        fence(Ordering::SeqCst);
        let event = shadow
            .memory
            .load_u32(shadow.event_offset, Ordering::Relaxed);
        let [low, high, _, _] = event.to_le_bytes();
        is_due(u16::from_le_bytes([low, high]), new, old)
    }
}

impl Shadow {
    /// Release: the queue entries are visible before the value that speaks of them.
    fn store(&self, value: u32) {
        self.memory
            .store_u32(self.value_offset, value, Ordering::Release);
    }
}

/// Whether going from `old` to `new` passes the value at which the controller asked to be told.
const fn is_due(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doorbell_is_due_when_the_event_index_is_passed() {
        assert!(is_due(0, 1, 0), "from the index itself");
        assert!(is_due(4, 8, 2), "across it");
        assert!(!is_due(8, 8, 2), "up to it");
        assert!(!is_due(1, 8, 2), "beyond it");
        assert!(is_due(0xFFFF, 1, 0xFFFE), "across the wrap");
        assert!(!is_due(5, 7, 7), "no change");
    }
}
