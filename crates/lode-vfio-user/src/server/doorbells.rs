//! Doorbells that the client writes into shared memory.
//!
//! Every word of the shared page holds a value that no doorbell can have until the client writes
//! one; the server swaps it back when it takes the value. So a value is taken exactly once, also
//! when it is the same as the one before, and whatever happens to the queue in between.

use std::sync::atomic::Ordering;

use lode_bus::{DmaMemory, IovaSpace, PagePreference, Registers};

use crate::error::VfioUserError;
use crate::wire::Area;

/// How a client rings doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellTransport {
    /// In memory that both processes map: no system call, and the server polls.
    Mapped,
    /// With a message each: slower, and an idle server sleeps.
    Messages,
}

/// The shared page, and what has been seen of it.
#[derive(Debug)]
pub(super) struct Doorbells {
    page: Option<DmaMemory>,
    region_bytes: u64,
    /// Behind the last doorbell that was ever written.
    used_end: u32,
    rounds: u32,
}

impl Doorbells {
    /// For a register window of `registers_bytes`.
    pub(super) fn new(
        transport: DoorbellTransport,
        registers_bytes: u64,
    ) -> Result<Self, VfioUserError> {
        let region_bytes = registers_bytes
            .checked_next_power_of_two()
            .filter(|length| *length <= REGION_BYTES_MAX)
            .ok_or(VfioUserError::Unusable {
                reason: "its register window is too large to be served",
            })?
            .max(2 * u64::from(DOORBELLS));
        let mut doorbells = Self {
            page: None,
            region_bytes,
            used_end: DOORBELLS,
            rounds: 0,
        };
        if transport == DoorbellTransport::Mapped {
            let length = usize::try_from(region_bytes).unwrap_or(usize::MAX);
            let page = IovaSpace::new()
                .allocate(length, PagePreference::Ordinary)
                .map_err(|error| VfioUserError::System {
                    operation: "sharing the doorbells",
                    source: std::io::Error::other(error),
                })?;
            // A system without memory files has no page to share: then there are messages.
            doorbells.page = page.file().is_some().then(|| page.clone());
        }
        doorbells.clear();
        Ok(doorbells)
    }

    /// The region's length: registers and doorbells.
    pub(super) const fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// What is shared, and which part of the region it stands for.
    pub(super) fn shared(&self) -> Option<(&DmaMemory, Area)> {
        let area = Area {
            offset: u64::from(DOORBELLS).into(),
            size: self.region_bytes.saturating_sub(DOORBELLS.into()).into(),
        };
        self.page.as_ref().map(|page| (page, area))
    }

    /// Writes what the client has rung since the last call to `registers`; true when it has rung
    /// anything. Does not enter the kernel.
    pub(super) fn forward(&mut self, registers: &impl Registers) -> bool {
        let Some(page) = &self.page else {
            return false;
        };
        // Most doorbells are never used: those behind the last used one are looked at now and
        // then only.
        self.rounds = self.rounds.wrapping_add(1);
        let end = if self.rounds.is_multiple_of(FULL_ROUND) || self.used_end == DOORBELLS {
            u32::try_from(self.region_bytes).unwrap_or(DOORBELLS)
        } else {
            self.used_end
        };
        let mut has_rung = false;
        for offset in (DOORBELLS..end).step_by(WORD_BYTES) {
            let index = offset as usize;
            if page.load_u32(index, Ordering::Relaxed) == UNTOUCHED {
                continue;
            }
            let value = page.swap_u32(index, UNTOUCHED);
            registers.write_u32(offset, value);
            self.used_end = self.used_end.max(offset + 4);
            has_rung = true;
        }
        has_rung
    }

    /// Looks at every doorbell, as [`Doorbells::forward`].
    pub(super) fn forward_all(&mut self, registers: &impl Registers) -> bool {
        self.rounds = u32::MAX;
        self.forward(registers)
    }

    /// Forgets what was rung.
    pub(super) fn clear(&mut self) {
        self.used_end = DOORBELLS;
        if let Some(page) = &self.page {
            for index in (0..page.length_bytes()).step_by(WORD_BYTES) {
                page.store_u32(index, UNTOUCHED, Ordering::Relaxed);
            }
        }
    }
}

/// Where the doorbells begin (NVMe PCIe Transport 1.0 §3.1.2); also a page.
pub(super) const DOORBELLS: u32 = 0x1000;
const WORD_BYTES: usize = 4;
/// No queue has so many entries.
const UNTOUCHED: u32 = u32::MAX;
const FULL_ROUND: u32 = 64;
/// 1024 queue pairs at the widest stride, rounded up.
const REGION_BYTES_MAX: u64 = 1 << 23;

const _: () = assert!(u32::MAX.wrapping_add(1).is_multiple_of(FULL_ROUND));

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Remembers what is written.
    #[derive(Default)]
    struct Written(RefCell<Vec<(u32, u32)>>);

    impl Registers for Written {
        fn length_bytes(&self) -> u64 {
            0x2000
        }

        fn read_u32(&self, _offset: u32) -> u32 {
            0
        }

        fn read_u64(&self, _offset: u32) -> u64 {
            0
        }

        fn write_u32(&self, offset: u32, value: u32) {
            self.0.borrow_mut().push((offset, value));
        }

        fn write_u64(&self, _offset: u32, _value: u64) {}
    }

    fn ring(doorbells: &Doorbells, offset: usize, value: u32) {
        let (page, _) = doorbells.shared().expect("mapped");
        page.store_u32(offset, value, Ordering::Release);
    }

    #[test]
    fn each_ring_arrives_once_also_when_its_value_is_the_one_before() {
        let mut doorbells = Doorbells::new(DoorbellTransport::Mapped, 0x2000).expect("memory");
        let written = Written::default();
        assert!(!doorbells.forward(&written));
        for _ in 0..3 {
            ring(&doorbells, 0x1008, 5);
            assert!(doorbells.forward(&written));
            assert!(!doorbells.forward(&written));
        }
        assert_eq!(written.0.into_inner(), [(0x1008, 5); 3]);
    }

    #[test]
    fn a_doorbell_behind_the_used_ones_is_found_within_a_full_round() {
        let mut doorbells = Doorbells::new(DoorbellTransport::Mapped, 0x2000).expect("memory");
        let written = Written::default();
        ring(&doorbells, 0x1000, 1);
        assert!(doorbells.forward(&written));
        ring(&doorbells, 0x1FFC, 2);
        let found = (0..FULL_ROUND).any(|_| doorbells.forward(&written));
        assert!(found);
        ring(&doorbells, 0x1F00, 3);
        assert!(doorbells.forward_all(&written));
        assert_eq!(
            written.0.into_inner(),
            [(0x1000, 1), (0x1FFC, 2), (0x1F00, 3)]
        );
    }

    #[test]
    fn what_was_rung_before_a_client_left_is_forgotten() {
        let mut doorbells = Doorbells::new(DoorbellTransport::Mapped, 0x2000).expect("memory");
        ring(&doorbells, 0x1000, 1);
        doorbells.clear();
        assert!(!doorbells.forward_all(&Written::default()));
    }

    #[test]
    fn without_a_shared_page_there_is_nothing_to_map() {
        let doorbells = Doorbells::new(DoorbellTransport::Messages, 0x1800).expect("memory");
        assert!(doorbells.shared().is_none());
        assert_eq!(doorbells.region_bytes(), 0x2000);
    }
}
