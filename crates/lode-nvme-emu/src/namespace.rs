//! A namespace: blocks on some media, perhaps with a volatile cache in front.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lode_units::{BlockSize, NamespaceId};

use crate::backing::{Media, MediaError, Reach, Space};
use crate::cache::{Held, VolatileCache};
use crate::error::EmulatorError;
use crate::options::{Cache, NamespaceOptions};
use crate::power::{Fate, UnflushedBlock};
use crate::prp::Transfer;

/// A range of blocks that was checked against its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

/// One namespace. Its calls finish before they return and may block on a file.
#[derive(Debug)]
pub(crate) struct Namespace {
    id: NamespaceId,
    block_size: BlockSize,
    block_count: u64,
    media: Media,
    cache: Cache,
    model: Option<Mutex<VolatileCache>>,
    lies_about_flush: AtomicBool,
    nguid: Option<[u8; 16]>,
}

impl Namespace {
    pub(crate) fn new(id: NamespaceId, options: NamespaceOptions) -> Result<Self, EmulatorError> {
        let length_bytes = options.media.length_bytes();
        let block_size = options.block_size;
        if length_bytes == 0 || !block_size.divides(length_bytes) {
            return Err(EmulatorError::SizeNotBlocks {
                length_bytes,
                block_bytes: block_size.bytes(),
            });
        }
        let model = match options.cache {
            Cache::None | Cache::Host => None,
            Cache::Modelled { capacity_bytes } => {
                let model = VolatileCache::with_capacity(capacity_bytes, block_size)?;
                Some(Mutex::new(model))
            }
        };
        Ok(Self {
            id,
            block_size,
            block_count: block_size.blocks_in(length_bytes),
            media: options.media,
            cache: options.cache,
            model,
            lies_about_flush: AtomicBool::new(options.lies_about_flush),
            nguid: options.nguid,
        })
    }

    /// Its NGUID when it has one of its own.
    pub(crate) const fn nguid(&self) -> Option<[u8; 16]> {
        self.nguid
    }

    pub(crate) const fn id(&self) -> NamespaceId {
        self.id
    }

    pub(crate) const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    pub(crate) const fn block_count(&self) -> u64 {
        self.block_count
    }

    pub(crate) const fn media(&self) -> &Media {
        &self.media
    }

    /// Whether completed writes may be lost.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.cache != Cache::None
    }

    /// Whether commands are to run through a file ring. A modelled cache works by calls that
    /// block.
    pub(crate) fn wants_ring(&self) -> bool {
        self.model.is_none() && self.media.wants_ring()
    }

    pub(crate) fn set_lies_about_flush(&self, lies: bool) {
        self.lies_about_flush.store(lies, Ordering::Relaxed);
    }

    pub(crate) fn lies_about_flush(&self) -> bool {
        self.lies_about_flush.load(Ordering::Relaxed)
    }

    /// The range, if it lies inside the namespace.
    pub(crate) const fn range(&self, first: u64, count: u64) -> Option<BlockRange> {
        match first.checked_add(count) {
            Some(end) if end <= self.block_count => Some(BlockRange { first, count }),
            _ => None,
        }
    }

    /// Where a range lies on the media: position and length in bytes.
    pub(crate) fn bytes(&self, range: BlockRange) -> (u64, u64) {
        let shift = self.block_size.shift();
        (range.first << shift, range.count << shift)
    }

    /// How far a write has to come, given what the command and the feature ask for.
    pub(crate) fn effective_reach(&self, asked: Reach) -> Reach {
        match self.cache {
            Cache::None => Reach::Stable,
            Cache::Host | Cache::Modelled { .. } if self.lies_about_flush() => Reach::Cache,
            Cache::Host | Cache::Modelled { .. } => asked,
        }
    }

    /// Reads blocks into the host's memory.
    pub(crate) fn read(
        &self,
        range: BlockRange,
        transfer: &mut Transfer<'_>,
    ) -> Result<(), MediaError> {
        let Some(model) = self.model() else {
            let (position, length) = self.bytes(range);
            return read_media(&self.media, position, length, transfer);
        };
        let block = u64::from(self.block_size.bytes());
        for lba in range.first..range.first + range.count {
            match model.lookup(lba) {
                Some(Held::Data(offset)) => {
                    transfer.copy_in(model.arena(), offset, index(block));
                }
                Some(Held::Zero) => transfer.zero_in(index(block)),
                None => read_media(&self.media, lba * block, block, transfer)?,
            }
        }
        Ok(())
    }

    /// Writes blocks from the host's memory.
    pub(crate) fn write(
        &self,
        range: BlockRange,
        transfer: &mut Transfer<'_>,
        asked: Reach,
    ) -> Result<(), MediaError> {
        let reach = self.effective_reach(asked);
        let Some(mut model) = self.model() else {
            let (position, length) = self.bytes(range);
            write_media(&self.media, position, length, transfer)?;
            return self.settle(reach);
        };
        if reach == Reach::Stable {
            let (position, length) = self.bytes(range);
            model.forget(range.first, range.count);
            write_media(&self.media, position, length, transfer)?;
            return self.media.sync();
        }
        model.begin_write();
        let block = index(self.block_size.bytes().into());
        for lba in range.first..range.first + range.count {
            let offset = model.add(lba, &self.media)?;
            let arena = model.arena().clone();
            transfer.copy_out(&arena, offset, block);
        }
        Ok(())
    }

    /// Makes blocks read as zeros.
    pub(crate) fn zero(
        &self,
        range: BlockRange,
        space: Space,
        asked: Reach,
    ) -> Result<(), MediaError> {
        let reach = self.effective_reach(asked);
        let (position, length) = self.bytes(range);
        let Some(mut model) = self.model() else {
            self.media.zero(position, length, space)?;
            return self.settle(reach);
        };
        // A range that would push everything else out of the cache goes to the media at once,
        // which a device may do at any time.
        if reach == Reach::Stable || range.count > model.capacity() / 4 {
            model.forget(range.first, range.count);
            self.media.zero(position, length, space)?;
            return self.settle(reach);
        }
        model.begin_write();
        for lba in range.first..range.first + range.count {
            model.add_zero(lba, space, &self.media)?;
        }
        Ok(())
    }

    /// Whether blocks equal the host's memory.
    pub(crate) fn compare(
        &self,
        range: BlockRange,
        transfer: &mut Transfer<'_>,
    ) -> Result<bool, MediaError> {
        let mut theirs = [0; CHUNK_BYTES];
        let mut equal = true;
        self.for_each_chunk(range, |ours| {
            transfer.copy_slice_out(&mut theirs);
            equal &= ours == &theirs;
        })?;
        Ok(equal)
    }

    /// Whether blocks can be read.
    pub(crate) fn verify(&self, range: BlockRange) -> Result<(), MediaError> {
        self.for_each_chunk(range, |_ours| {})
    }

    /// Puts every completed write onto the media.
    pub(crate) fn flush(&self) -> Result<(), MediaError> {
        if self.lies_about_flush() {
            return Ok(());
        }
        if let Some(mut model) = self.model() {
            model.write_back(&self.media)?;
        }
        self.media.sync()
    }

    /// Loses or keeps what was not flushed.
    pub(crate) fn cut_power(
        &self,
        choose: &mut dyn FnMut(UnflushedBlock) -> Fate,
    ) -> Result<(), MediaError> {
        match self.model() {
            Some(mut model) => model.cut_power(self.id, &self.media, choose),
            None => Ok(()),
        }
    }

    /// How many versions of blocks sit in the modelled cache.
    pub(crate) fn unflushed_count(&self) -> u64 {
        self.model().map_or(0, |model| model.count())
    }

    /// How many writes the modelled cache has taken.
    pub(crate) fn write_count(&self) -> u64 {
        self.model().map_or(0, |model| model.write_count())
    }

    /// Hands out a range in pieces of 512 bytes, which divide every block.
    fn for_each_chunk(
        &self,
        range: BlockRange,
        mut visit: impl FnMut(&[u8; CHUNK_BYTES]),
    ) -> Result<(), MediaError> {
        let model = self.model();
        let block = u64::from(self.block_size.bytes());
        let mut chunk = [0; CHUNK_BYTES];
        for lba in range.first..range.first + range.count {
            let held = model.as_ref().and_then(|model| model.lookup(lba));
            for within in (0..block).step_by(CHUNK_BYTES) {
                match (held, &model) {
                    (Some(Held::Data(offset)), Some(model)) => {
                        model
                            .arena()
                            .copy_to_slice(offset + index(within), &mut chunk);
                    }
                    (Some(Held::Zero), _) => chunk.fill(0),
                    (Some(Held::Data(_)) | None, _) => {
                        self.media.read_slice(lba * block + within, &mut chunk)?;
                    }
                }
                visit(&chunk);
            }
        }
        Ok(())
    }

    fn settle(&self, reach: Reach) -> Result<(), MediaError> {
        match reach {
            Reach::Cache => Ok(()),
            Reach::Stable => self.media.sync(),
        }
    }

    fn model(&self) -> Option<MutexGuard<'_, VolatileCache>> {
        let model = self.model.as_ref()?;
        Some(model.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn read_media(
    media: &Media,
    mut position: u64,
    length: u64,
    transfer: &mut Transfer<'_>,
) -> Result<(), MediaError> {
    let end = position + length;
    while position < end {
        let Some((memory, offset, taken)) = transfer.take(index(end - position)) else {
            break;
        };
        media.read(position, memory, offset, taken)?;
        position += taken as u64;
    }
    Ok(())
}

fn write_media(
    media: &Media,
    mut position: u64,
    length: u64,
    transfer: &mut Transfer<'_>,
) -> Result<(), MediaError> {
    let end = position + length;
    while position < end {
        let Some((memory, offset, taken)) = transfer.take(index(end - position)) else {
            break;
        };
        media.write(position, memory, offset, taken)?;
        position += taken as u64;
    }
    Ok(())
}

fn index(length: u64) -> usize {
    usize::try_from(length).expect("a transfer fits in memory")
}

const CHUNK_BYTES: usize = 512;

/// The namespaces of a controller by identifier.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceTable {
    list: Vec<Option<Arc<Namespace>>>,
}

impl NamespaceTable {
    /// The active namespace `id`.
    pub(crate) fn active(&self, id: NamespaceId) -> Option<&Arc<Namespace>> {
        let position = usize::try_from(id.get()).ok()?.checked_sub(1)?;
        self.list.get(position)?.as_ref()
    }

    /// Every active namespace, by ascending identifier.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.list.iter().flatten()
    }

    /// Adds a namespace under the lowest free identifier.
    pub(crate) fn add(&mut self, options: NamespaceOptions) -> Result<NamespaceId, EmulatorError> {
        let position = self
            .list
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.list.len());
        let number = u32::try_from(position)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        if number > NAMESPACE_ID_MAX {
            return Err(EmulatorError::TableFull {
                table: "namespaces",
                limit: position,
            });
        }
        let id = NamespaceId::new(number);
        let namespace = Some(Arc::new(Namespace::new(id, options)?));
        match self.list.get_mut(position) {
            Some(place) => *place = namespace,
            None => self.list.push(namespace),
        }
        Ok(id)
    }

    /// Removes a namespace; commands that still hold it end first.
    pub(crate) fn remove(&mut self, id: NamespaceId) -> Option<Arc<Namespace>> {
        let position = usize::try_from(id.get()).ok()?.checked_sub(1)?;
        self.list.get_mut(position)?.take()
    }
}

/// The largest namespace identifier (NN).
pub(crate) const NAMESPACE_ID_MAX: u32 = 4096;
