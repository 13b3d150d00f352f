//! Which memory one device can see.

use std::collections::BTreeMap;
use std::io;

use lode_bus::{BusError, DmaMemory};
use lode_units::Iova;
use rustix::process::{Resource, getrlimit};

use crate::error::VfioError;
use crate::iommu::IommuReach;

/// The mappings of one device. Memory that is mapped twice is mapped once and counted: the
/// kernel has a limited number of mappings and pins pages for each.
///
/// Invariants:
/// 1. What the table holds is what the kernel has mapped, no more and no less.
/// 2. No two entries overlap; all lie inside the IOMMU's reach.
#[derive(Debug)]
pub(crate) struct DmaTable {
    reach: IommuReach,
    limit: usize,
    entries: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Keeps the memory allocated while the device can see it.
    memory: DmaMemory,
    uses: u32,
}

/// The kernel's side: replaced in tests.
pub(crate) trait Translation {
    /// Makes `memory` visible at its own address.
    fn map(&self, memory: &DmaMemory) -> io::Result<()>;
    /// Hides what was mapped.
    fn unmap(&self, iova: u64, length_bytes: u64) -> io::Result<()>;
    /// The line of `/proc/self/status` in which the kernel counts what is mapped.
    fn account(&self) -> &'static str;
}

impl DmaTable {
    pub(crate) fn new(reach: IommuReach) -> Self {
        let told = reach
            .mappings_available
            .and_then(|count| usize::try_from(count).ok());
        Self {
            limit: told.map_or(MAPPINGS_MAX, |told| told.min(MAPPINGS_MAX)),
            reach,
            entries: BTreeMap::new(),
        }
    }

    /// Maps `memory`, unless it is mapped already. Enters the kernel, which pins the pages.
    ///
    /// # Errors
    /// When the address is out of reach or taken, a limit is met, or the kernel refuses.
    pub(crate) fn map(
        &mut self,
        memory: &DmaMemory,
        translation: &impl Translation,
    ) -> Result<(), BusError> {
        let (iova, length_bytes) = extent(memory);
        if let Some(entry) = self.entries.get_mut(&iova)
            && entry.memory.host_address() == memory.host_address()
        {
            entry.uses += 1;
            return Ok(());
        }
        self.admit(iova, length_bytes)
            .map_err(|error| refused(memory, io::Error::other(error)))?;
        translation
            .map(memory)
            .map_err(|error| refused(memory, self.explained(error, length_bytes, translation)))?;
        let memory = memory.clone();
        self.entries.insert(iova, Entry { memory, uses: 1 });
        debug_assert!(self.check());
        Ok(())
    }

    /// Hides `memory` once it has been unmapped as often as it was mapped. Memory that is not
    /// mapped is hidden already.
    ///
    /// # Errors
    /// When the kernel refuses; the memory then counts as mapped.
    pub(crate) fn unmap(
        &mut self,
        memory: &DmaMemory,
        translation: &impl Translation,
    ) -> Result<(), BusError> {
        let (iova, length_bytes) = extent(memory);
        let Some(entry) = self.entries.get_mut(&iova) else {
            return Ok(());
        };
        if entry.memory.host_address() != memory.host_address() {
            return Ok(());
        }
        if entry.uses > 1 {
            entry.uses -= 1;
            return Ok(());
        }
        translation
            .unmap(iova, length_bytes)
            .map_err(|source| BusError::System {
                operation: "hiding memory from the device",
                source,
            })?;
        self.entries.remove(&iova);
        Ok(())
    }

    /// Hides everything. A mapping that the kernel does not let go keeps its pages pinned until
    /// the container is closed, so that a late access of the device meets nothing else.
    pub(crate) fn hide_all(&mut self, translation: &impl Translation) {
        self.entries.retain(|iova, entry| {
            let length_bytes = entry.memory.length_bytes() as u64;
            translation.unmap(*iova, length_bytes).is_err()
        });
    }

    /// Whether the invariants hold.
    pub(crate) fn check(&self) -> bool {
        let mut end = 0;
        self.entries.iter().all(|(start, entry)| {
            let (iova, length_bytes) = extent(&entry.memory);
            let is_apart = *start == iova && iova >= end && entry.uses > 0;
            end = iova.saturating_add(length_bytes);
            is_apart && self.reach.holds(iova, length_bytes)
        })
    }

    fn admit(&self, iova: u64, length_bytes: u64) -> Result<(), VfioError> {
        let is_whole =
            iova.is_multiple_of(self.reach.page_bytes) && self.reach.holds(iova, length_bytes);
        if !is_whole {
            return Err(VfioError::OutOfReach {
                iova: Iova::new(iova),
                length_bytes,
            });
        }
        let end = iova.saturating_add(length_bytes);
        let before = self.entries.range(..end).next_back();
        if before.is_some_and(|(start, entry)| start.saturating_add(extent(&entry.memory).1) > iova)
        {
            return Err(VfioError::AddressTaken {
                iova: Iova::new(iova),
            });
        }
        if self.entries.len() >= self.limit {
            return Err(VfioError::TooManyMappings { limit: self.limit });
        }
        Ok(())
    }

    /// The kernel's refusal in words, where the reason can be told.
    fn explained(
        &self,
        error: io::Error,
        length_bytes: u64,
        translation: &impl Translation,
    ) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ENOSPC) => io::Error::other(VfioError::TooManyMappings {
                limit: self.entries.len(),
            }),
            Some(libc::ENOMEM) => {
                let locked = locked_bytes(translation.account());
                memory_lock(locked, length_bytes).map_or(error, io::Error::other)
            }
            _ => error,
        }
    }
}

/// Which limit stands in the way of locking `more` bytes on top of `locked`.
fn memory_lock(locked: u64, more: u64) -> Option<VfioError> {
    let limit_bytes = getrlimit(Resource::Memlock).current?;
    let needed_bytes = locked.saturating_add(more);
    (needed_bytes > limit_bytes).then_some(VfioError::MemoryLock {
        needed_bytes,
        limit_bytes,
    })
}

/// What this process has locked by now; 0 when the kernel does not tell.
fn locked_bytes(account: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_locked_bytes(&status, account).unwrap_or(0)
}

fn parse_locked_bytes(status: &str, account: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(account))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn extent(memory: &DmaMemory) -> (u64, u64) {
    (memory.iova().get(), memory.length_bytes() as u64)
}

fn refused(memory: &DmaMemory, source: io::Error) -> BusError {
    BusError::Map {
        iova: memory.iova(),
        length_bytes: memory.length_bytes(),
        source,
    }
}

/// The kernel's own default (`dma_entry_limit` of vfio_iommu_type1).
const MAPPINGS_MAX: usize = 65_535;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use lode_bus::{IovaSpace, PagePreference};

    use super::*;

    /// Records what reaches the kernel; refuses with an errno when told to.
    #[derive(Default)]
    struct Recorder {
        mapped: RefCell<Vec<u64>>,
        refusal: RefCell<Option<i32>>,
    }

    impl Recorder {
        fn answer(&self) -> io::Result<()> {
            self.refusal
                .borrow()
                .map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
        }
    }

    impl Translation for Recorder {
        fn map(&self, memory: &DmaMemory) -> io::Result<()> {
            self.answer()?;
            self.mapped.borrow_mut().push(memory.iova().get());
            Ok(())
        }

        fn unmap(&self, iova: u64, _length_bytes: u64) -> io::Result<()> {
            self.answer()?;
            self.mapped.borrow_mut().retain(|mapped| *mapped != iova);
            Ok(())
        }

        fn account(&self) -> &'static str {
            "VmLck:"
        }
    }

    fn reach() -> IommuReach {
        IommuReach {
            ranges: vec![0..=0xFEDF_FFFF],
            mappings_available: Some(2),
            page_bytes: 4096,
        }
    }

    fn memories(count: usize) -> Vec<DmaMemory> {
        let space = IovaSpace::new();
        (0..count)
            .map(|_| {
                space
                    .allocate(4096, PagePreference::Ordinary)
                    .expect("a page")
            })
            .collect()
    }

    fn reason(error: &BusError) -> String {
        std::error::Error::source(error).map_or_else(String::new, ToString::to_string)
    }

    #[test]
    fn memory_mapped_twice_is_mapped_once_and_hidden_with_the_last_unmap() {
        let (mut table, kernel, memories) =
            (DmaTable::new(reach()), Recorder::default(), memories(1));
        let memory = &memories[0];
        table.map(memory, &kernel).expect("map");
        table.map(memory, &kernel).expect("map again");
        assert_eq!(kernel.mapped.borrow().len(), 1);
        table.unmap(memory, &kernel).expect("unmap");
        assert_eq!(kernel.mapped.borrow().len(), 1);
        table.unmap(memory, &kernel).expect("unmap again");
        assert!(kernel.mapped.borrow().is_empty());
        table.unmap(memory, &kernel).expect("hidden already");
        assert!(table.check());
    }

    #[test]
    fn the_kernels_limit_of_mappings_is_met_before_it_is_asked() {
        let (mut table, kernel, memories) =
            (DmaTable::new(reach()), Recorder::default(), memories(3));
        table.map(&memories[0], &kernel).expect("the first");
        table.map(&memories[1], &kernel).expect("the second");
        let error = table.map(&memories[2], &kernel).expect_err("no third");
        assert!(reason(&error).contains("all 2 mappings"), "{error:?}");
        table.unmap(&memories[0], &kernel).expect("room again");
        table.map(&memories[2], &kernel).expect("the third");
    }

    #[test]
    fn an_address_that_the_iommu_cannot_translate_is_refused() {
        let narrow = IommuReach {
            ranges: vec![0..=0x20_0FFE],
            ..reach()
        };
        let (mut table, kernel, memories) =
            (DmaTable::new(narrow), Recorder::default(), memories(1));
        let error = table.map(&memories[0], &kernel).expect_err("out of reach");
        assert!(reason(&error).contains("outside"), "{error:?}");
        assert!(kernel.mapped.borrow().is_empty());
    }

    #[test]
    fn another_memory_at_a_taken_address_is_refused() {
        let (mut table, kernel) = (DmaTable::new(reach()), Recorder::default());
        let (first, second) = (memories(1), memories(1));
        table.map(&first[0], &kernel).expect("map");
        let error = table.map(&second[0], &kernel).expect_err("taken");
        assert!(reason(&error).contains("taken"), "{error:?}");
        table.unmap(&second[0], &kernel).expect("never mapped");
        assert_eq!(kernel.mapped.borrow().len(), 1);
    }

    #[test]
    fn a_refused_map_or_unmap_changes_nothing() {
        let (mut table, kernel, memories) =
            (DmaTable::new(reach()), Recorder::default(), memories(1));
        *kernel.refusal.borrow_mut() = Some(libc::EFAULT);
        assert!(table.map(&memories[0], &kernel).is_err());
        *kernel.refusal.borrow_mut() = None;
        table.map(&memories[0], &kernel).expect("map");
        *kernel.refusal.borrow_mut() = Some(libc::EINVAL);
        assert!(table.unmap(&memories[0], &kernel).is_err());
        *kernel.refusal.borrow_mut() = None;
        table.unmap(&memories[0], &kernel).expect("still mapped");
        assert!(kernel.mapped.borrow().is_empty());
    }

    #[test]
    fn hiding_everything_leaves_nothing_mapped() {
        let (mut table, kernel, memories) =
            (DmaTable::new(reach()), Recorder::default(), memories(2));
        for memory in &memories {
            table.map(memory, &kernel).expect("map");
            table.map(memory, &kernel).expect("map again");
        }
        table.hide_all(&kernel);
        assert!(kernel.mapped.borrow().is_empty());
        table.map(&memories[0], &kernel).expect("room again");
    }

    #[test]
    fn what_is_locked_is_read_from_the_kernels_own_account() {
        let status = "Name:\tx\nVmLck:\t    8192 kB\nVmPin:\t 4 kB\n";
        assert_eq!(parse_locked_bytes(status, "VmLck:"), Some(8192 * 1024));
        assert_eq!(parse_locked_bytes(status, "VmPin:"), Some(4 * 1024));
        assert_eq!(parse_locked_bytes("Name:\tx\n", "VmLck:"), None);
        assert_eq!(parse_locked_bytes("VmLck: many kB", "VmLck:"), None);
    }

    #[test]
    fn a_limit_that_is_too_low_is_told_with_what_is_needed() {
        match (
            memory_lock(u64::MAX, 4096),
            getrlimit(Resource::Memlock).current,
        ) {
            (
                Some(VfioError::MemoryLock {
                    needed_bytes,
                    limit_bytes,
                }),
                Some(limit),
            ) => {
                assert_eq!(needed_bytes, u64::MAX);
                assert_eq!(limit_bytes, limit);
            }
            (None, None | Some(u64::MAX)) => {}
            (found, limit) => panic!("{found:?} with limit {limit:?}"),
        }
    }
}
