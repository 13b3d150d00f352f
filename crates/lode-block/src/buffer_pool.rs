//! A bounded store of DMA buffers of a few sizes.

use lode_bus::{BusError, DmaBuffer, DmaMemory, IovaSpace, PageKind, PagePreference};

/// One size of buffer and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPoolSpec {
    /// The length of each, in bytes: a multiple of 4096.
    pub length_bytes: usize,
    /// How many.
    pub count: usize,
}

/// A store of DMA buffers, allocated once. Taking and returning allocate nothing. Belongs to
/// one core.
#[derive(Debug)]
pub struct BufferPool {
    classes: Vec<Class>,
}

#[derive(Debug)]
struct Class {
    memory: DmaMemory,
    length_bytes: usize,
    count: usize,
    free: Vec<DmaBuffer>,
}

impl BufferPool {
    /// Allocates the buffers of every class in `specs`, each class in one piece of memory. Not
    /// for the data path.
    ///
    /// # Errors
    /// When the system has no memory.
    ///
    /// # Panics
    /// When a length is 0 or no multiple of 4096.
    pub fn new(
        specs: &[BufferPoolSpec],
        space: &IovaSpace,
        preference: PagePreference,
    ) -> Result<Self, BusError> {
        let mut classes = specs
            .iter()
            .map(|spec| Class::new(*spec, space, preference))
            .collect::<Result<Vec<_>, _>>()?;
        classes.sort_by_key(|class| class.length_bytes);
        Ok(Self { classes })
    }

    /// The memories that must be mapped for a device before buffers are used with it.
    pub fn memories(&self) -> impl Iterator<Item = &DmaMemory> {
        self.classes.iter().map(|class| &class.memory)
    }

    /// Takes a buffer of at least `length_bytes` from the smallest class that has one free;
    /// `None` when there is none, and the caller waits.
    pub fn take(&mut self, length_bytes: usize) -> Option<DmaBuffer> {
        self.classes
            .iter_mut()
            .filter(|class| class.length_bytes >= length_bytes)
            .find_map(|class| class.free.pop())
    }

    /// Takes a buffer back.
    ///
    /// # Panics
    /// When the buffer is not one of this pool's: its class would grow.
    pub fn give_back(&mut self, buffer: DmaBuffer) {
        let class = self
            .classes
            .iter_mut()
            .find(|class| class.owns(&buffer))
            .expect("a buffer goes back to the pool it came from");
        assert!(class.free.len() < class.count, "a buffer goes back once");
        class.free.push(buffer);
    }

    /// Whether a buffer of `length_bytes` could be taken now.
    #[must_use]
    pub fn has(&self, length_bytes: usize) -> bool {
        self.classes
            .iter()
            .any(|class| class.length_bytes >= length_bytes && !class.free.is_empty())
    }

    /// The length of the longest buffers, in bytes; 0 when there is no class.
    #[must_use]
    pub fn length_max_bytes(&self) -> usize {
        self.classes.last().map_or(0, |class| class.length_bytes)
    }

    /// How many buffers are out at the moment.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.classes
            .iter()
            .map(|class| class.count - class.free.len())
            .sum()
    }

    /// Whether every class lies in huge pages.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.classes
            .iter()
            .all(|class| class.memory.page_kind() == PageKind::Huge)
    }
}

impl Class {
    fn new(
        spec: BufferPoolSpec,
        space: &IovaSpace,
        preference: PagePreference,
    ) -> Result<Self, BusError> {
        assert!(
            spec.length_bytes > 0 && spec.length_bytes.is_multiple_of(4096),
            "buffers are whole pages"
        );
        let total = spec.length_bytes.saturating_mul(spec.count);
        let memory = space.allocate(total, preference)?;
        let mut free = DmaBuffer::cut(&memory, spec.length_bytes);
        free.truncate(spec.count);
        // The lowest address is lent first.
        free.reverse();
        let count = free.len();
        Ok(Self {
            memory,
            length_bytes: spec.length_bytes,
            count,
            free,
        })
    }

    fn owns(&self, buffer: &DmaBuffer) -> bool {
        let start = self.memory.iova();
        let offset = buffer.span().iova.get().checked_sub(start.get());
        buffer.length_bytes() == self.length_bytes
            && offset.is_some_and(|offset| offset < self.memory.length_bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufferPool {
        let specs = [
            BufferPoolSpec {
                length_bytes: 65536,
                count: 1,
            },
            BufferPoolSpec {
                length_bytes: 4096,
                count: 2,
            },
        ];
        BufferPool::new(&specs, &IovaSpace::new(), PagePreference::Ordinary).expect("memory")
    }

    #[test]
    fn the_smallest_class_that_fits_is_used_first_and_a_larger_one_when_it_is_empty() {
        let mut pool = pool();
        let taken: Vec<_> = (0..3)
            .map(|_| pool.take(512).expect("three buffers"))
            .collect();
        let lengths: Vec<_> = taken.iter().map(DmaBuffer::length_bytes).collect();
        assert_eq!(lengths, [4096, 4096, 65536]);
        assert!(pool.take(1).is_none());
        assert_eq!(pool.lent(), 3);
        taken.into_iter().for_each(|buffer| pool.give_back(buffer));
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn a_length_beyond_the_largest_class_is_never_served() {
        let mut pool = pool();
        assert!(!pool.has(65537));
        assert!(pool.take(65537).is_none());
        assert!(pool.has(65536));
    }

    #[test]
    #[should_panic(expected = "goes back to the pool it came from")]
    fn a_foreign_buffer_is_refused() {
        let space = IovaSpace::new();
        let memory = space
            .allocate(4096, PagePreference::Ordinary)
            .expect("memory");
        let foreign = DmaBuffer::cut(&memory, 512).pop().expect("a buffer");
        pool().give_back(foreign);
    }
}
