//! A stand-in for a shard: one pool with volumes in memory, and a script for what goes wrong.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lode_block::Durability;
use lode_bus::DmaBuffer;
use lode_engine::{
    Completion, ControlError, ControlReply, ControlRequest, DataCompletion, DataOperation,
    DataRequest, Extent, IoError, PoolIndex, PoolStatus, Shrink, Token, VolumeHandle, VolumeName,
    VolumeStatus,
};
use lode_extent::{
    Counters, ExtentError, LogicalBlock, PieceKind, PoolState, SyncAttribute, Usage, VolumeId,
    VolumeInfo, VolumeLimits, VolumeSpec,
};
use lode_reactor::Hosted;
use lode_units::Instant;

pub(crate) const POOL: &str = "tank";
const UNIT: usize = 4096;
const SPAN_MAX: u64 = 1 << 20;

/// What a test sets and sees from outside.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// While set, data requests are taken and not ended. Released ones end newest first.
    pub(crate) hold: AtomicBool,
    /// Every data request fails with this.
    pub(crate) fail: Mutex<Option<IoError>>,
}

#[derive(Debug)]
struct Volume {
    name: String,
    generation: u32,
    size_bytes: u64,
    block_size: lode_units::BlockSize,
    sync: SyncAttribute,
    limits: VolumeLimits,
    units: BTreeMap<u64, Vec<u8>>,
}

/// The stand-in.
#[derive(Debug, Default)]
pub(crate) struct MemoryHost {
    script: Arc<Script>,
    volumes: Vec<Option<Volume>>,
    generation: u32,
    requests: BTreeMap<String, String>,
    held: Vec<DataRequest>,
    done: VecDeque<Completion>,
}

impl MemoryHost {
    pub(crate) fn new(script: Arc<Script>) -> Self {
        Self {
            script,
            ..Self::default()
        }
    }

    fn find(&self, name: &VolumeName) -> Result<usize, ControlError> {
        if !name.pool.is_empty() && name.pool != POOL {
            let name = name.pool.clone();
            return Err(ControlError::UnknownPool { name });
        }
        self.position(&name.volume).ok_or_else(|| {
            let name = name.volume.clone();
            ControlError::UnknownVolume { name }
        })
    }

    fn position(&self, name: &str) -> Option<usize> {
        let mut volumes = self.volumes.iter();
        volumes.position(|volume| volume.as_ref().is_some_and(|volume| volume.name == name))
    }

    fn status(&self, slot: usize) -> VolumeStatus {
        let volume = self.volumes[slot].as_ref().expect("just found");
        let slot = u16::try_from(slot).expect("few volumes");
        VolumeStatus {
            pool: POOL.into(),
            handle: VolumeHandle::from_parts(PoolIndex(0), slot, volume.generation),
            info: volume.info(),
        }
    }

    fn create(
        &mut self,
        spec: VolumeSpec,
        request: Option<String>,
    ) -> Result<ControlReply, ControlError> {
        if let Some(slot) = self.position(&spec.name) {
            let first = request.and_then(|request| self.requests.get(&request));
            if first.is_some_and(|name| *name == spec.name) {
                return Ok(ControlReply::Volume(self.status(slot)));
            }
            return Err(ExtentError::AlreadyExists { name: spec.name }.into());
        }
        if spec.size_bytes == 0 || !spec.block_size.divides(spec.size_bytes) {
            let size_bytes = spec.size_bytes;
            return Err(ExtentError::InvalidSize { size_bytes }.into());
        }
        if let Some(request) = request {
            self.requests.insert(request, spec.name.clone());
        }
        self.generation += 1;
        self.volumes.push(Some(Volume {
            name: spec.name,
            generation: self.generation,
            size_bytes: spec.size_bytes,
            block_size: spec.block_size,
            sync: spec.sync,
            limits: spec.limits,
            units: BTreeMap::new(),
        }));
        Ok(ControlReply::Volume(self.status(self.volumes.len() - 1)))
    }

    fn answer(&mut self, request: ControlRequest) -> Result<ControlReply, ControlError> {
        match request {
            ControlRequest::ListPools => Ok(ControlReply::Pools(vec![self.pool_status()])),
            ControlRequest::OpenVolume { volume } => {
                let slot = self.find(&volume)?;
                Ok(ControlReply::Volume(self.status(slot)))
            }
            ControlRequest::CreateVolume { spec, request, .. } => {
                self.create(spec, request.map(|request| request.as_str().to_owned()))
            }
            ControlRequest::ResizeVolume {
                volume,
                size_bytes,
                shrink,
            } => {
                let slot = self.find(&volume)?;
                let found = self.volumes[slot].as_mut().expect("just found");
                let current_bytes = found.size_bytes;
                if size_bytes < current_bytes && shrink == Shrink::Refuse {
                    return Err(ControlError::WouldShrink {
                        size_bytes,
                        current_bytes,
                    });
                }
                found.size_bytes = size_bytes;
                Ok(ControlReply::Volume(self.status(slot)))
            }
            ControlRequest::LimitVolume { volume, change } => {
                let slot = self.find(&volume)?;
                let volume = self.volumes[slot].as_mut().expect("just found");
                volume.limits = change.applied_to(volume.limits);
                Ok(ControlReply::Volume(self.status(slot)))
            }
            ControlRequest::DeleteVolume { volume, .. } => {
                let slot = self.find(&volume)?;
                self.volumes[slot] = None;
                Ok(ControlReply::Done)
            }
            ControlRequest::ListVolumes { after, limit, .. } => {
                let mut infos: Vec<_> = self.volumes.iter().flatten().map(Volume::info).collect();
                infos.retain(|info| after.as_ref().is_none_or(|after| info.name > *after));
                infos.sort_by(|left, right| left.name.cmp(&right.name));
                infos.truncate(limit);
                Ok(ControlReply::Volumes(infos))
            }
            ControlRequest::ListExtents {
                volume,
                first,
                count,
            } => {
                let volume = self.by_handle(volume).ok_or(ControlError::StaleHandle)?;
                Ok(ControlReply::Extents(volume.extents(first.get(), count)))
            }
        }
    }

    fn pool_status(&self) -> PoolStatus {
        PoolStatus {
            index: PoolIndex(0),
            name: POOL.into(),
            state: PoolState::Ready,
            usage: Usage {
                capacity_bytes: 1 << 30,
                ..Usage::default()
            },
            counters: Counters::default(),
            devices: Vec::new(),
            volume_count: self.volumes.iter().flatten().count(),
        }
    }

    fn by_handle(&mut self, handle: VolumeHandle) -> Option<&mut Volume> {
        let slot = (0..self.volumes.len())
            .find(|slot| self.volumes[*slot].is_some() && self.status(*slot).handle == handle)?;
        self.volumes[slot].as_mut()
    }

    fn perform(&mut self, request: &DataRequest) -> Result<Durability, IoError> {
        if let Some(error) = self.script.fail.lock().expect("not poisoned").clone() {
            return Err(error);
        }
        let volume = self
            .by_handle(request.volume)
            .ok_or(IoError::UnknownVolume)?;
        volume.perform(request)
    }
}

impl Volume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            id: VolumeId::new(u64::from(self.generation)),
            name: self.name.clone(),
            size_bytes: self.size_bytes,
            block_size: self.block_size,
            sync: self.sync,
            limits: self.limits,
            created_unix_seconds: 1,
            allocated_bytes: (self.units.len() * UNIT) as u64,
            is_damaged: false,
        }
    }

    fn extents(&self, first: u64, count: u32) -> Vec<Extent> {
        let end = self
            .size_bytes
            .div_ceil(UNIT as u64)
            .min(first + u64::from(count));
        let mut extents: Vec<Extent> = Vec::new();
        for unit in first..end {
            let kind = if self.units.contains_key(&unit) {
                PieceKind::Written
            } else {
                PieceKind::Hole
            };
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.count += 1,
                _ => extents.push(Extent {
                    kind,
                    first: LogicalBlock::new(unit),
                    count: 1,
                }),
            }
        }
        extents
    }

    fn perform(&mut self, request: &DataRequest) -> Result<Durability, IoError> {
        let level = match self.sync {
            SyncAttribute::None => Durability::None,
            SyncAttribute::Data => Durability::Data,
            SyncAttribute::Full => Durability::Full,
        };
        if request.operation == DataOperation::Flush {
            return Ok(level.max(Durability::Data));
        }
        self.check(request)?;
        let (offset, length) = (request.offset_bytes, request.length_bytes);
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        match (request.operation, &request.buffer) {
            (DataOperation::Read, Some(buffer)) => {
                buffer.copy_from_slice(0, &self.read(offset, bytes));
                return Ok(Durability::None);
            }
            (DataOperation::Write, Some(buffer)) => self.write(offset, &copy(buffer, 0, bytes)),
            (DataOperation::CompareAndWrite, Some(buffer)) => {
                let held = self.read(offset, bytes);
                let expected = copy(buffer, 0, bytes);
                if let Some(at) = (0..bytes).find(|at| held[*at] != expected[*at]) {
                    let block = u64::from(self.block_size.bytes());
                    let offset_bytes = offset + at as u64 / block * block;
                    return Err(IoError::Mismatch { offset_bytes });
                }
                self.write(offset, &copy(buffer, bytes, bytes));
            }
            (DataOperation::WriteZeroes | DataOperation::Discard, None) => {
                let unit = UNIT as u64;
                let whole = offset.div_ceil(unit)..(offset + length) / unit;
                self.units.retain(|number, _| !whole.contains(number));
            }
            _ => return Err(IoError::NoBuffer),
        }
        Ok(level.max(request.durability))
    }

    fn check(&self, request: &DataRequest) -> Result<(), IoError> {
        let (offset_bytes, length_bytes) = (request.offset_bytes, request.length_bytes);
        if !self.block_size.divides(offset_bytes) || !self.block_size.divides(length_bytes) {
            return Err(IoError::Unaligned {
                offset_bytes,
                length_bytes,
                block_size_bytes: self.block_size.bytes(),
            });
        }
        let is_data = request.buffer.is_some();
        if is_data && length_bytes > SPAN_MAX {
            return Err(IoError::TooLong {
                length_bytes,
                length_max_bytes: SPAN_MAX,
            });
        }
        let end = offset_bytes.checked_add(length_bytes);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(IoError::OutOfRange {
                offset_bytes,
                length_bytes,
                size_bytes: self.size_bytes,
            });
        }
        Ok(())
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        for (unit, within, range) in parts(offset, length) {
            if let Some(held) = self.units.get(&unit) {
                data[range.clone()].copy_from_slice(&held[within..within + range.len()]);
            }
        }
        data
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (unit, within, range) in parts(offset, data.len()) {
            let held = self.units.entry(unit).or_insert_with(|| vec![0; UNIT]);
            held[within..within + range.len()].copy_from_slice(&data[range]);
        }
    }
}

/// The parts of a range by unit: the unit, where the part begins in it, and which bytes it is.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let offset = usize::try_from(offset).expect("small volumes");
    let mut done = 0;
    std::iter::from_fn(move || {
        let within = (offset + done) % UNIT;
        let part = (UNIT - within).min(length - done);
        let unit = ((offset + done) / UNIT) as u64;
        let range = done..done + part;
        done += part;
        (part > 0).then_some((unit, within, range))
    })
}

fn copy(buffer: &DmaBuffer, offset: usize, length: usize) -> Vec<u8> {
    let mut data = Vec::new();
    buffer.append_to(offset, length, &mut data);
    data
}

impl Hosted for MemoryHost {
    fn submit(&mut self, request: DataRequest) -> Result<(), DataRequest> {
        self.held.push(request);
        Ok(())
    }

    fn control(&mut self, token: Token, request: ControlRequest) -> Result<(), ControlRequest> {
        let result = self.answer(request);
        let result = Box::new(result);
        self.done.push_back(Completion::Control { token, result });
        Ok(())
    }

    fn poll(&mut self, _now: Instant, completions: &mut Vec<Completion>) -> usize {
        if !self.script.hold.load(Ordering::Acquire) {
            while let Some(request) = self.held.pop() {
                let result = self.perform(&request);
                self.done.push_back(Completion::Data(DataCompletion {
                    token: request.token,
                    result,
                    buffer: request.buffer,
                }));
            }
        }
        let found = self.done.len();
        completions.extend(self.done.drain(..));
        found
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&mut self) {}

    fn disarm(&mut self) {}
}
