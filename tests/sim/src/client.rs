//! The clients: what they ask for, drawn from the run's seed.

use lode_block::Durability;
use lode_bus::DmaBuffer;
use lode_engine::{ControlRequest, DataOperation, DataRequest, Shrink, Token, VolumeName};
use lode_extent::{SyncAttribute, VolumeLimits, VolumeSpec};
use lode_units::{BlockSize, Random};

use crate::content;
use crate::machine::{BUFFER_BYTES, pick};
use crate::model::{Blocks, Life, UNIT_BYTES, Volume};
use crate::pending::{Kind, Pending};
use crate::world::{Phase, World};

impl World {
    /// Fills the clients' queue, or leaves it as it is.
    pub(crate) fn act(&mut self) -> Result<(), String> {
        let is_open = |pending: &Pending| matches!(pending.kind, Kind::Open);
        if self.pending.values().any(is_open) {
            return Ok(());
        }
        while self.pending.len() < self.boot.depth && self.random.below(4) > 0 {
            let index = pick(&mut self.random, self.volumes.len());
            match self.volumes[index].life {
                Life::Absent => self.create(index),
                Life::Present if self.volumes[index].handle.is_some() => self.ask(index)?,
                // One of those present may lie in a part of the table that cannot be read.
                Life::Present | Life::Creating | Life::Deleting => {}
            }
        }
        Ok(())
    }

    /// Opens every volume and reads all of it.
    pub(crate) fn survey(&mut self) -> Result<(), String> {
        self.boot.phase = Phase::Surveying;
        for index in 0..self.volumes.len() {
            self.control(index, Kind::Open, |name| ControlRequest::OpenVolume {
                volume: name,
            });
        }
        Ok(())
    }

    /// Reads all of a volume; what is found is what there is when it `settles`.
    pub(crate) fn read_all(&mut self, index: usize, settles: bool) -> Result<(), String> {
        let volume = &self.volumes[index];
        let (count, step) = (volume.blocks.len(), BUFFER_BYTES / volume.block_bytes);
        for first in (0..count).step_by(step) {
            let blocks = first..(first + step).min(count);
            self.read(index, blocks, settles)?;
        }
        Ok(())
    }

    fn ask(&mut self, index: usize) -> Result<(), String> {
        let blocks = self.choose_blocks(index);
        match self.random.below(100) {
            0..40 => self.write(index, blocks),
            40..60 => self.read(index, blocks, false),
            60..68 => self.submit(index, DataOperation::Flush, &(0..0), Kind::Flush, None),
            68..76 => self.discard(index, blocks),
            76..84 => {
                let kind = Kind::Change {
                    blocks: blocks.clone(),
                };
                self.begin(index, &blocks, 0);
                self.submit(index, DataOperation::WriteZeroes, &blocks, kind, None)
            }
            84..94 => self.compare(index, blocks),
            94..98 => {
                self.resize(index);
                Ok(())
            }
            _ => {
                self.delete(index);
                Ok(())
            }
        }
    }

    fn choose_blocks(&mut self, index: usize) -> Blocks {
        let (usable, block_bytes) = {
            let volume = &self.volumes[index];
            (volume.usable(), volume.block_bytes)
        };
        let reach = if self.random.below(2) == 0 {
            usable
        } else {
            usable.min(4 * UNIT_BYTES / block_bytes)
        };
        let first = pick(&mut self.random, reach);
        let most = LENGTH_MAX_BYTES / block_bytes;
        let longest = [1, 3, 16, most][pick(&mut self.random, 4)].min(most);
        let count = 1 + pick(&mut self.random, longest.min(usable - first));
        let per_unit = UNIT_BYTES / block_bytes;
        if self.random.below(4) == 0 {
            let first = first / per_unit * per_unit;
            return first..(first + count.next_multiple_of(per_unit)).min(usable);
        }
        first..first + count
    }

    fn begin(&mut self, index: usize, blocks: &Blocks, value: u64) {
        self.tick += 1;
        self.volumes[index].begin(blocks, self.next_token, value, self.tick);
    }

    fn write(&mut self, index: usize, blocks: Blocks) -> Result<(), String> {
        let value = self.next_token;
        let mut data = Vec::new();
        let volume = &self.volumes[index];
        for block in blocks.clone() {
            content::fill(&mut data, volume.place(block), value);
        }
        let Some(buffer) = self.buffer(&data, data.len()) else {
            return Ok(());
        };
        self.begin(index, &blocks, value);
        let kind = Kind::Change {
            blocks: blocks.clone(),
        };
        self.submit(index, DataOperation::Write, &blocks, kind, Some(buffer))
    }

    fn read(&mut self, index: usize, blocks: Blocks, settles: bool) -> Result<(), String> {
        let length = blocks.len() * self.volumes[index].block_bytes;
        let Some(buffer) = self.buffer(&[], length) else {
            return Ok(());
        };
        let kind = Kind::Read {
            blocks: blocks.clone(),
            settles,
        };
        self.submit(index, DataOperation::Read, &blocks, kind, Some(buffer))
    }

    /// Gives blocks back. Which units are whole depends on the volume's size: the two do not race
    /// here.
    fn discard(&mut self, index: usize, blocks: Blocks) -> Result<(), String> {
        if self.volumes[index].resize.is_some() {
            return Ok(());
        }
        let zeroed = self.volumes[index].whole_units(&blocks);
        self.begin(index, &zeroed, 0);
        let kind = Kind::Discard { blocks: zeroed };
        self.submit(index, DataOperation::Discard, &blocks, kind, None)
    }

    fn compare(&mut self, index: usize, blocks: Blocks) -> Result<(), String> {
        let value = self.next_token;
        let is_guess = self.random.below(8) > 0;
        let volume = &self.volumes[index];
        let newest = |block: usize| volume.blocks[block].newest();
        let expected: Vec<_> = blocks
            .clone()
            .map(|block| if is_guess { newest(block) } else { 0 })
            .collect();
        let mut data = Vec::new();
        for (block, value) in blocks.clone().zip(&expected) {
            content::fill(&mut data, volume.place(block), *value);
        }
        for block in blocks.clone() {
            content::fill(&mut data, volume.place(block), value);
        }
        let Some(buffer) = self.buffer(&data, data.len()) else {
            return Ok(());
        };
        self.begin(index, &blocks, value);
        let kind = Kind::Compare {
            blocks: blocks.clone(),
            expected,
        };
        let operation = DataOperation::CompareAndWrite;
        self.submit(index, operation, &blocks, kind, Some(buffer))
    }

    /// A buffer that holds `data` and, from there to `length_bytes`, what must not be taken for
    /// zeros.
    fn buffer(&mut self, data: &[u8], length_bytes: usize) -> Option<DmaBuffer> {
        let buffer = self.machine.buffers.take(BUFFER_BYTES)?;
        buffer.copy_from_slice(0, data);
        let rest = vec![0xAA; length_bytes - data.len()];
        buffer.copy_from_slice(data.len(), &rest);
        Some(buffer)
    }

    /// The core that the next request comes to.
    fn any_core(&mut self) -> usize {
        let cores = self.machine.cores();
        pick(&mut self.random, cores)
    }

    fn submit(
        &mut self,
        index: usize,
        operation: DataOperation,
        blocks: &Blocks,
        kind: Kind,
        buffer: Option<DmaBuffer>,
    ) -> Result<(), String> {
        let durabilities = [
            Durability::None,
            Durability::None,
            Durability::Data,
            Durability::Full,
        ];
        let durability = durabilities[pick(&mut self.random, durabilities.len())];
        let core = self.any_core();
        let volume = &self.volumes[index];
        let request = DataRequest {
            token: Token(self.next_token),
            volume: volume.handle.expect("a volume that is present is open"),
            operation,
            durability,
            offset_bytes: volume.bytes(blocks.start),
            length_bytes: volume.bytes(blocks.len()),
            buffer,
        };
        self.remember(index, kind, &|| {
            format!("{operation:?} {blocks:?} {durability:?} on core {core}")
        });
        let taken = self.machine.shards[core].submit(request);
        taken.map_err(|request| format!("request {} was refused a slot", request.token.0))
    }

    fn remember(&mut self, index: usize, kind: Kind, line: &dyn Fn() -> String) {
        self.tick += 1;
        self.tally.requests += 1;
        let token = self.next_token;
        self.next_token += 1;
        let volume = &self.volumes[index];
        self.history.note(token, || {
            format!("{token} v{index} of {} B: {}", volume.block_bytes, line())
        });
        let pending = Pending {
            begun: self.tick,
            volume: index,
            generation: volume.generation,
            is_overtaken: false,
            kind,
        };
        self.pending.insert(token, pending);
    }

    fn control(
        &mut self,
        index: usize,
        kind: Kind,
        request: impl FnOnce(VolumeName) -> ControlRequest,
    ) {
        let token = Token(self.next_token);
        let request = request(VolumeName {
            pool: String::new(),
            volume: self.volumes[index].name(),
        });
        let core = self.any_core();
        self.remember(index, kind, &|| format!("{request:?} on core {core}"));
        self.machine.shards[core].control(token, request);
    }

    fn create(&mut self, index: usize) {
        let block_size = [BlockSize::B512, BlockSize::B4096][pick(&mut self.random, 2)];
        let block_bytes = usize::try_from(block_size.bytes()).expect("a small block");
        let blocks = 1 + pick(&mut self.random, VOLUME_BYTES_MAX / block_bytes);
        let syncs = [
            SyncAttribute::None,
            SyncAttribute::None,
            SyncAttribute::Data,
        ];
        let sync = syncs[pick(&mut self.random, syncs.len())];
        self.volumes[index].begin_create(block_bytes, blocks, self.tick);
        let size_bytes = self.volumes[index].bytes(blocks);
        self.control(index, Kind::Create, |name| ControlRequest::CreateVolume {
            pool: name.pool,
            spec: VolumeSpec {
                name: name.volume,
                size_bytes,
                block_size,
                sync,
                limits: VolumeLimits::default(),
                created_unix_seconds: 0,
            },
            request: None,
        });
    }

    fn resize(&mut self, index: usize) {
        let volume = &self.volumes[index];
        let is_discard = |pending: &Pending| {
            pending.volume == index && matches!(pending.kind, Kind::Discard { .. })
        };
        if volume.resize.is_some() || self.pending.values().any(is_discard) {
            return;
        }
        let most = VOLUME_BYTES_MAX / volume.block_bytes;
        let blocks = 1 + pick(&mut self.random, most);
        let zeroed = tail(&self.volumes[index], blocks);
        self.begin(index, &zeroed, 0);
        self.volumes[index].resize = Some(blocks);
        let others = self.pending.values_mut().filter(|one| one.volume == index);
        others.for_each(|one| one.is_overtaken |= one.end() > blocks);
        let size_bytes = self.volumes[index].bytes(blocks);
        self.control(index, Kind::Resize { blocks, zeroed }, |volume| {
            ControlRequest::ResizeVolume {
                volume,
                size_bytes,
                shrink: Shrink::Allow,
            }
        });
    }

    fn delete(&mut self, index: usize) {
        if self.volumes[index].resize.is_some() {
            return;
        }
        self.volumes[index].life = Life::Deleting;
        self.control(index, Kind::Delete, |volume| ControlRequest::DeleteVolume {
            volume,
            request: None,
        });
    }
}

/// The blocks that a resize to `blocks` zeroes: the rest of the unit that it ends in.
fn tail(volume: &Volume, blocks: usize) -> Blocks {
    let per_unit = UNIT_BYTES / volume.block_bytes;
    let end = blocks.next_multiple_of(per_unit).min(volume.blocks.len());
    blocks.min(end)..end
}

/// The longest request, but for the rest of its first and last unit: both halves of a comparison
/// fit a buffer.
const LENGTH_MAX_BYTES: usize = BUFFER_BYTES / 4;
const VOLUME_BYTES_MAX: usize = 128 << 10;
