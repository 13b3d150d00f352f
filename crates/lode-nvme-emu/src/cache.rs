//! A volatile write cache that really loses what was not flushed.
//!
//! Every write of a block appends a version to a ring; the newest version of a block is what
//! reads see. When the ring is full its oldest version goes to the media, as a device would write
//! back. A power cut decides for each version on its own whether it had reached the media, so
//! that writes are lost, torn between their blocks, and superseded versions come back.
//!
//! Invariants:
//! 1. Versions are numbered in the order of their writes; `first..next` are in the ring.
//! 2. `newest` names a version in the ring for exactly those blocks that have a live one.
//! 3. Nothing is allocated after the cache was made.

use std::collections::HashMap;

use lode_bus::DmaMemory;
use lode_units::{BlockSize, Lba, NamespaceId};

use crate::backing::{self, Media, MediaError, Space};
use crate::error::EmulatorError;
use crate::power::{Fate, UnflushedBlock};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Bytes in the arena.
    Data,
    /// Zeros.
    Zero(Space),
    /// Nothing: the media hold something newer.
    Superseded,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    lba: u64,
    write: u64,
    /// The version of the same block before this one, if it is still in the ring.
    older: u64,
    content: Content,
}

/// What the cache holds of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Bytes at this offset of the arena.
    Data(usize),
    /// Zeros.
    Zero,
}

/// The cache of one namespace.
#[derive(Debug)]
pub(crate) struct VolatileCache {
    arena: DmaMemory,
    block: BlockSize,
    versions: Vec<Version>,
    first: u64,
    next: u64,
    writes: u64,
    newest: HashMap<u64, u64>,
}

impl VolatileCache {
    /// An empty cache of `capacity_bytes`, at least one block.
    pub(crate) fn with_capacity(
        capacity_bytes: usize,
        block: BlockSize,
    ) -> Result<Self, EmulatorError> {
        let block_bytes = block_bytes(block);
        let count = (capacity_bytes / block_bytes).max(1);
        let empty = Version {
            lba: 0,
            write: 0,
            older: NONE,
            content: Content::Superseded,
        };
        Ok(Self {
            arena: backing::staging(count * block_bytes)?,
            block,
            versions: vec![empty; count],
            first: 0,
            next: 0,
            writes: 0,
            newest: HashMap::with_capacity(2 * count),
        })
    }

    /// The memory that [`Held::Data`] points into.
    pub(crate) const fn arena(&self) -> &DmaMemory {
        &self.arena
    }

    /// What reads of `lba` see, or `None` when that is on the media.
    pub(crate) fn lookup(&self, lba: u64) -> Option<Held> {
        let number = *self.newest.get(&lba)?;
        match self.version(number).content {
            Content::Data => Some(Held::Data(self.arena_offset(number))),
            Content::Zero(_) => Some(Held::Zero),
            Content::Superseded => None,
        }
    }

    /// Begins a write: the blocks that follow belong together.
    pub(crate) fn begin_write(&mut self) {
        self.writes += 1;
    }

    /// Adds a version of `lba` and returns where in the arena its bytes go.
    pub(crate) fn add(&mut self, lba: u64, media: &Media) -> Result<usize, MediaError> {
        self.append(lba, Content::Data, media)
    }

    /// Adds a version of `lba` that is all zeros.
    pub(crate) fn add_zero(
        &mut self,
        lba: u64,
        space: Space,
        media: &Media,
    ) -> Result<(), MediaError> {
        self.append(lba, Content::Zero(space), media)
            .map(|_unused| ())
    }

    /// How many versions fit.
    pub(crate) fn capacity(&self) -> u64 {
        self.versions.len() as u64
    }

    /// How many versions are held.
    pub(crate) const fn count(&self) -> u64 {
        self.next - self.first
    }

    /// How many writes have begun.
    pub(crate) const fn write_count(&self) -> u64 {
        self.writes
    }

    /// Forgets every version of a range of blocks: the media are about to hold something newer.
    pub(crate) fn forget(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        if count <= self.count() {
            for lba in first..end {
                self.forget_block(lba);
            }
            return;
        }
        for number in self.first..self.next {
            let lba = self.version(number).lba;
            if (first..end).contains(&lba) {
                self.version_mut(number).content = Content::Superseded;
                self.newest.remove(&lba);
            }
        }
    }

    /// Writes everything to the media, oldest first. On an error what was not written stays.
    pub(crate) fn write_back(&mut self, media: &Media) -> Result<(), MediaError> {
        while self.first < self.next {
            self.write_back_oldest(media)?;
        }
        Ok(())
    }

    /// Empties the cache as a power cut does: `choose` says of each version, in the order of the
    /// writes, whether it had reached the media.
    pub(crate) fn cut_power(
        &mut self,
        namespace: NamespaceId,
        media: &Media,
        choose: &mut dyn FnMut(UnflushedBlock) -> Fate,
    ) -> Result<(), MediaError> {
        for number in self.first..self.next {
            let version = *self.version(number);
            if version.content == Content::Superseded {
                continue;
            }
            let block = UnflushedBlock {
                namespace,
                lba: Lba::new(version.lba),
                write: version.write,
                is_in_flight: false,
            };
            if choose(block) == Fate::Keep {
                self.put(number, media)?;
            }
        }
        self.first = self.next;
        self.newest.clear();
        Ok(())
    }

    fn append(&mut self, lba: u64, content: Content, media: &Media) -> Result<usize, MediaError> {
        if self.count() == self.capacity() {
            self.write_back_oldest(media)?;
        }
        let number = self.next;
        let older = self.newest.insert(lba, number).unwrap_or(NONE);
        let write = self.writes;
        *self.version_mut(number) = Version {
            lba,
            write,
            older,
            content,
        };
        self.next += 1;
        Ok(self.arena_offset(number))
    }

    fn write_back_oldest(&mut self, media: &Media) -> Result<(), MediaError> {
        let number = self.first;
        self.put(number, media)?;
        let lba = self.version(number).lba;
        if self.newest.get(&lba) == Some(&number) {
            self.newest.remove(&lba);
        }
        self.first += 1;
        Ok(())
    }

    /// Puts one version onto the media.
    fn put(&self, number: u64, media: &Media) -> Result<(), MediaError> {
        let version = self.version(number);
        let position = version.lba << self.block.shift();
        match version.content {
            Content::Data => {
                let offset = self.arena_offset(number);
                media.write(position, &self.arena, offset, block_bytes(self.block))
            }
            Content::Zero(space) => media.zero(position, self.block.bytes().into(), space),
            Content::Superseded => Ok(()),
        }
    }

    fn forget_block(&mut self, lba: u64) {
        let mut number = self.newest.remove(&lba).unwrap_or(NONE);
        // Each step goes to an earlier version, so this ends.
        while number != NONE && number >= self.first {
            let version = self.version_mut(number);
            version.content = Content::Superseded;
            number = version.older;
        }
    }

    fn version(&self, number: u64) -> &Version {
        &self.versions[self.place(number)]
    }

    fn version_mut(&mut self, number: u64) -> &mut Version {
        let place = self.place(number);
        &mut self.versions[place]
    }

    fn arena_offset(&self, number: u64) -> usize {
        self.place(number) * block_bytes(self.block)
    }

    fn place(&self, number: u64) -> usize {
        usize::try_from(number % self.capacity()).expect("below the capacity")
    }

    /// Invariants 1 and 2.
    #[cfg(test)]
    fn check(&self) {
        assert!(self.count() <= self.capacity());
        for (lba, number) in &self.newest {
            assert!((self.first..self.next).contains(number));
            assert_eq!(self.version(*number).lba, *lba);
            assert_ne!(self.version(*number).content, Content::Superseded);
        }
    }
}

fn block_bytes(block: BlockSize) -> usize {
    usize::try_from(block.bytes()).expect("at most 64 KiB")
}

/// No version: numbers never get this far.
const NONE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    fn cache(blocks: usize) -> (VolatileCache, Media) {
        let cache = VolatileCache::with_capacity(blocks * BLOCK, BlockSize::B512);
        let media = Media::memory(64 * 512).expect("memory");
        (cache.expect("memory"), media)
    }

    fn write(cache: &mut VolatileCache, media: &Media, lba: u64, byte: u8) {
        let offset = cache.add(lba, media).expect("memory does not fail");
        cache.arena.copy_from_slice(offset, &[byte; BLOCK]);
        cache.check();
    }

    fn on_media(media: &Media, lba: u64) -> u8 {
        media.snapshot(lba * 512, 1)[0]
    }

    fn in_cache(cache: &VolatileCache, lba: u64) -> Option<u8> {
        match cache.lookup(lba)? {
            Held::Data(offset) => Some(cache.arena.read(offset)),
            Held::Zero => Some(0),
        }
    }

    fn cut(cache: &mut VolatileCache, media: &Media, keeps: impl Fn(u64) -> bool) {
        let mut choose = |block: UnflushedBlock| {
            if keeps(block.write) {
                Fate::Keep
            } else {
                Fate::Lose
            }
        };
        cache
            .cut_power(NamespaceId::new(1), media, &mut choose)
            .expect("memory does not fail");
        cache.check();
    }

    #[test]
    fn the_newest_version_is_read_and_the_media_hold_none_before_write_back() {
        let (mut cache, media) = cache(8);
        write(&mut cache, &media, 3, 1);
        write(&mut cache, &media, 3, 2);
        assert_eq!(in_cache(&cache, 3), Some(2));
        assert_eq!(on_media(&media, 3), 0);
        cache.write_back(&media).expect("memory does not fail");
        assert_eq!((in_cache(&cache, 3), on_media(&media, 3)), (None, 2));
    }

    #[test]
    fn a_full_cache_writes_its_oldest_back() {
        let (mut cache, media) = cache(4);
        for lba in 0..6_u8 {
            write(&mut cache, &media, lba.into(), lba + 1);
        }
        let held: Vec<_> = (0..6).map(|lba| in_cache(&cache, lba).is_some()).collect();
        assert_eq!(held, [false, false, true, true, true, true]);
        assert_eq!(
            (
                on_media(&media, 0),
                on_media(&media, 1),
                on_media(&media, 2)
            ),
            (1, 2, 0)
        );
    }

    #[test]
    fn a_power_cut_may_keep_any_version() {
        for (keeps, expected) in [(0, 0), (1, 1), (2, 2)] {
            let (mut cache, media) = cache(8);
            for byte in 1..=2 {
                cache.begin_write();
                write(&mut cache, &media, 5, byte);
            }
            cut(&mut cache, &media, |write| write == keeps);
            assert_eq!(on_media(&media, 5), expected);
            assert_eq!(cache.lookup(5), None);
        }
    }

    #[test]
    fn forgotten_versions_never_reach_the_media() {
        for count in [1, 1000] {
            let (mut cache, media) = cache(8);
            write(&mut cache, &media, 5, 1);
            write(&mut cache, &media, 4, 9);
            write(&mut cache, &media, 5, 2);
            cache.forget(5, count);
            cache.check();
            assert_eq!(cache.lookup(5), None);
            cache.write_back(&media).expect("memory does not fail");
            assert_eq!((on_media(&media, 5), on_media(&media, 4)), (0, 9));
        }
    }

    #[test]
    fn zeros_are_versions_like_any_other() {
        let (mut cache, media) = cache(8);
        write(&mut cache, &media, 7, 1);
        cache.write_back(&media).expect("memory does not fail");
        cache.begin_write();
        cache
            .add_zero(7, Space::Keep, &media)
            .expect("memory does not fail");
        assert_eq!((in_cache(&cache, 7), on_media(&media, 7)), (Some(0), 1));
        cut(&mut cache, &media, |_| false);
        assert_eq!(on_media(&media, 7), 1);
    }
}
