//! Control requests: what concerns a volume as a whole. Each is a small state machine that is
//! looked at in every poll until it has ended.

use std::sync::Arc;

use lode_block::{BlockDevice, Durability};
use lode_extent::{
    ExtentError, LogicalBlock, LookupError, PoolState, RequestId, Ticket, VolumeId, VolumeInfo,
    VolumeSpec,
};

use super::start::{UNIT, units_to};
use super::{Pieces, PoolHost};
use crate::control::{
    Completion, ControlError, ControlReply, ControlRequest, Extent, Shrink, VolumeName,
    VolumeStatus,
};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::op::Owner;
use crate::request::{DataOperation, DataRequest, Token, VolumeHandle};
use crate::stats::VolumeStats;
use crate::volume::Volume;

/// The control requests under way on one pool.
#[derive(Debug)]
pub(crate) struct ControlTable {
    slots: Vec<Option<Control>>,
}

#[derive(Debug)]
struct Control {
    token: Token,
    step: ControlStep,
}

/// What a control request waits for.
#[derive(Debug)]
enum ControlStep {
    /// The pool is to make a volume.
    Create {
        spec: VolumeSpec,
        request: Option<RequestId>,
    },
    /// The pool is to look a mapping up.
    Extents {
        volume: VolumeHandle,
        first: LogicalBlock,
        count: u32,
    },
    /// The tail that a shrink leaves is being zeroed.
    Zero {
        resize: Resize,
        outcome: Option<Result<Durability, IoError>>,
    },
    /// The pool is to change a size.
    Resize { resize: Resize },
    /// The requests of a volume are to end, then the pool is to delete it.
    Delete {
        volume: VolumeHandle,
        id: VolumeId,
        request: Option<RequestId>,
    },
    /// A change is to become durable; then the answer is given.
    Commit { ticket: Ticket, answer: Answer },
}

#[derive(Clone, Copy, Debug)]
struct Resize {
    volume: VolumeHandle,
    id: VolumeId,
    old_bytes: u64,
    new_bytes: u64,
}

/// What to answer once a change is durable.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Volume(VolumeId),
    Done,
}

type Outcome = Option<Result<ControlReply, ControlError>>;

impl ControlTable {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Notes the end of the data request that a control request needed.
    pub(crate) fn data_done(&mut self, slot: u16, result: Result<Durability, IoError>) {
        if let Some(Some(control)) = self.slots.get_mut(usize::from(slot))
            && let ControlStep::Zero { outcome, .. } = &mut control.step
        {
            *outcome = Some(result);
        }
    }

    fn has_room(&self) -> bool {
        self.slots.iter().filter(|slot| slot.is_some()).count() < CONTROLS_MAX
    }

    fn insert(&mut self, control: Control) -> usize {
        let position = self.slots.iter().position(Option::is_none);
        let position = position.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[position] = Some(control);
        position
    }
}

impl<D: BlockDevice> PoolHost<D> {
    /// Takes a control request. Its completion may follow at once.
    pub(crate) fn control(&mut self, token: Token, request: ControlRequest, core: &mut ShardCore) {
        let step = match self.control_step(request, core) {
            Ok(step) => step,
            Err(result) => {
                core.out.push(Completion::Control { token, result });
                return;
            }
        };
        if !self.controls.has_room() {
            core.out.push(Completion::Control {
                token,
                result: Box::new(Err(ControlError::TooMany)),
            });
            return;
        }
        let slot = self.controls.insert(Control { token, step });
        self.run_control(slot, core);
    }

    /// Turns a request into its first step, or into its answer when it needs none.
    fn control_step(
        &mut self,
        request: ControlRequest,
        core: &ShardCore,
    ) -> Result<ControlStep, Box<Result<ControlReply, ControlError>>> {
        match request {
            ControlRequest::ListPools => {
                Err(Box::new(Ok(ControlReply::Pools(vec![self.status()]))))
            }
            ControlRequest::OpenVolume { volume } => {
                Err(Box::new(self.open(&volume, core).map(ControlReply::Volume)))
            }
            ControlRequest::ListVolumes { after, limit, .. } => {
                let volumes = self.pool.volumes(after.as_deref(), limit);
                Err(Box::new(Ok(ControlReply::Volumes(volumes))))
            }
            ControlRequest::CreateVolume { spec, request, .. } => {
                Ok(ControlStep::Create { spec, request })
            }
            ControlRequest::ListExtents {
                volume,
                first,
                count,
            } => Ok(ControlStep::Extents {
                volume,
                first,
                count,
            }),
            ControlRequest::ResizeVolume {
                volume,
                size_bytes,
                shrink,
            } => self
                .begin_resize(&volume, size_bytes, shrink, core)
                .map_err(|error| Box::new(Err(error))),
            ControlRequest::DeleteVolume { volume, request } => self
                .begin_delete(&volume, request, core)
                .map_err(|error| Box::new(Err(error))),
        }
    }

    /// Looks at every control request that has not ended. Returns how many ended.
    pub(super) fn poll_controls(&mut self, core: &mut ShardCore) -> usize {
        (0..self.controls.slots.len())
            .filter(|slot| self.controls.slots[*slot].is_some() && self.run_control(*slot, core))
            .count()
    }

    /// Whether the control request in `slot` ended.
    fn run_control(&mut self, slot: usize, core: &mut ShardCore) -> bool {
        let Some(mut control) = self.controls.slots[slot].take() else {
            return false;
        };
        // While it runs its slot must not be given away: it may submit data under its number.
        let outcome = loop {
            match self.step_control(slot, &mut control.step, core) {
                Progress::Moved => {}
                Progress::Waits => break None,
                Progress::Ended(result) => break Some(result),
            }
        };
        let Some(result) = outcome else {
            self.controls.slots[slot] = Some(control);
            return false;
        };
        core.out.push(Completion::Control {
            token: control.token,
            result: Box::new(result),
        });
        true
    }

    fn step_control(
        &mut self,
        slot: usize,
        step: &mut ControlStep,
        core: &mut ShardCore,
    ) -> Progress {
        match step {
            ControlStep::Create { spec, request } => {
                match self.pool.create_volume(spec, request.as_ref()) {
                    Ok((id, ticket)) => {
                        let answer = Answer::Volume(id);
                        *step = ControlStep::Commit { ticket, answer };
                        Progress::Moved
                    }
                    Err(error) => self.refused(error),
                }
            }
            ControlStep::Extents {
                volume,
                first,
                count,
            } => {
                let (volume, first, count) = (*volume, *first, *count);
                self.list_extents(volume, first, count)
            }
            ControlStep::Zero { resize, outcome } => {
                let resize = *resize;
                match outcome.take() {
                    None => Progress::Waits,
                    Some(Ok(_)) => {
                        *step = ControlStep::Resize { resize };
                        Progress::Moved
                    }
                    Some(Err(error)) => {
                        self.end_resize(&resize, resize.old_bytes);
                        Progress::Ended(Err(ControlError::Io(error)))
                    }
                }
            }
            ControlStep::Resize { resize } => {
                let resize = *resize;
                match self.resize(slot, &resize, core) {
                    Ok(Some(next)) => {
                        *step = next;
                        Progress::Moved
                    }
                    Ok(None) => Progress::Waits,
                    Err(error) => self.refused_resize(&resize, error),
                }
            }
            ControlStep::Delete {
                volume,
                id,
                request,
            } => match self.delete(*volume, *id, request.as_ref(), core) {
                Ok(Some(next)) => {
                    *step = next;
                    Progress::Moved
                }
                Ok(None) => Progress::Waits,
                Err(error) => self.refused(error),
            },
            ControlStep::Commit { ticket, answer } => {
                let (ticket, answer) = (*ticket, *answer);
                self.committed(ticket, answer, core)
                    .map_or(Progress::Waits, Progress::Ended)
            }
        }
    }

    /// The answer to a change once it is durable.
    fn committed(&mut self, ticket: Ticket, answer: Answer, core: &ShardCore) -> Outcome {
        if ticket > self.pool.durable() {
            self.commit_wanted = true;
            return match self.pool.state() {
                PoolState::Failed(error) => Some(Err(ControlError::Pool(error.clone()))),
                _ => None,
            };
        }
        Some(match answer {
            Answer::Done => Ok(ControlReply::Done),
            Answer::Volume(id) => match self.pool.volume(id) {
                Some(info) => self.open_info(info, core).map(ControlReply::Volume),
                None => Err(ControlError::StaleHandle),
            },
        })
    }

    /// Ends a control request that the pool refused, unless it only has to wait.
    fn refused(&mut self, error: ExtentError) -> Progress {
        match error {
            ExtentError::NotResident(missing) => {
                self.pool.load(missing);
                Progress::Waits
            }
            ExtentError::JournalFull => {
                self.commit_wanted = true;
                Progress::Waits
            }
            error => Progress::Ended(Err(ControlError::Pool(error))),
        }
    }

    fn refused_resize(&mut self, resize: &Resize, error: ExtentError) -> Progress {
        let progress = self.refused(error);
        if matches!(progress, Progress::Ended(_)) {
            self.end_resize(resize, resize.old_bytes);
        }
        progress
    }

    /// Finds a volume by name and opens it.
    fn open(&mut self, name: &VolumeName, core: &ShardCore) -> Result<VolumeStatus, ControlError> {
        let unknown = || ControlError::UnknownVolume {
            name: name.volume.clone(),
        };
        let info = self.pool.find_volume(&name.volume).ok_or_else(unknown)?;
        let status = self.open_info(info, core)?;
        let handle = status.handle;
        let open = self.volumes.get(handle.slot, handle.generation);
        if open.is_none_or(|volume| volume.is_closing) {
            Err(unknown())
        } else {
            Ok(status)
        }
    }

    fn open_info(
        &mut self,
        info: VolumeInfo,
        core: &ShardCore,
    ) -> Result<VolumeStatus, ControlError> {
        let place = self.volumes.find(info.id).or_else(|| {
            let stats = Arc::new(VolumeStats::new(&self.name, &info.name));
            core.stats.add_volume(Arc::clone(&stats));
            let is_sub_block = info.block_size.bytes() < self.device_block_bytes;
            self.volumes.insert(Volume::new(&info, is_sub_block, stats))
        });
        let (slot, generation) = place.ok_or(ControlError::TooMany)?;
        let handle = VolumeHandle {
            pool: self.index,
            slot,
            generation,
        };
        Ok(VolumeStatus {
            pool: self.name.clone(),
            handle,
            info,
        })
    }

    fn begin_resize(
        &mut self,
        name: &VolumeName,
        new_bytes: u64,
        shrink: Shrink,
        core: &ShardCore,
    ) -> Result<ControlStep, ControlError> {
        let status = self.open(name, core)?;
        let current_bytes = status.info.size_bytes;
        if new_bytes < current_bytes && shrink == Shrink::Refuse {
            return Err(ControlError::WouldShrink {
                size_bytes: new_bytes,
                current_bytes,
            });
        }
        if new_bytes == 0 || !status.info.block_size.divides(new_bytes) {
            return Err(ExtentError::InvalidSize {
                size_bytes: new_bytes,
            }
            .into());
        }
        let volume = self.claim(status.handle, name)?;
        // From here on nothing new reaches the part that goes.
        volume.size_bytes = current_bytes.min(new_bytes);
        Ok(ControlStep::Resize {
            resize: Resize {
                volume: status.handle,
                id: status.info.id,
                old_bytes: current_bytes,
                new_bytes,
            },
        })
    }

    /// One step of a resize: the tail of the last unit is zeroed first, so that a later growth
    /// shows zeros there. The next step, or `None` to wait.
    fn resize(
        &mut self,
        slot: usize,
        resize: &Resize,
        core: &mut ShardCore,
    ) -> Result<Option<ControlStep>, ExtentError> {
        let handle = resize.volume;
        let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) else {
            return Err(ExtentError::UnknownVolume { volume: resize.id });
        };
        let shrinks = resize.new_bytes < resize.old_bytes;
        if shrinks && volume.size_bytes == resize.new_bytes {
            // Requests admitted before may still use the part that goes: they end first.
            if volume.active > 0 {
                return Ok(None);
            }
            let tail_end = (units_to(resize.new_bytes) * UNIT).min(resize.old_bytes);
            if tail_end > resize.new_bytes {
                if !core.ops.has_room() {
                    return Ok(None);
                }
                volume.size_bytes = tail_end;
                let request = zero_tail(handle, resize.new_bytes, tail_end);
                let owner = Owner::Control(u16::try_from(slot).unwrap_or(u16::MAX));
                let index = core.ops.take_up(owner, request, Durability::Data, core.now);
                let index = core.queued(index);
                core.wake(index);
                let next = ControlStep::Zero {
                    resize: *resize,
                    outcome: None,
                };
                return Ok(Some(next));
            }
        }
        let ticket = self.pool.resize_volume(resize.id, resize.new_bytes)?;
        self.end_resize(resize, resize.new_bytes);
        Ok(Some(ControlStep::Commit {
            ticket,
            answer: Answer::Volume(resize.id),
        }))
    }

    fn end_resize(&mut self, resize: &Resize, size_bytes: u64) {
        let handle = resize.volume;
        if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
            volume.size_bytes = size_bytes;
            volume.is_changing = false;
        }
    }

    fn begin_delete(
        &mut self,
        name: &VolumeName,
        request: Option<RequestId>,
        core: &ShardCore,
    ) -> Result<ControlStep, ControlError> {
        // The retry of a deletion is answered alike, whoever bears the name by now.
        if let Some(request) = &request
            && let Some(ticket) = self.pool.deleted_by(&name.volume, request)?
        {
            return Ok(ControlStep::Commit {
                ticket,
                answer: Answer::Done,
            });
        }
        let status = self.open(name, core)?;
        let volume = self.claim(status.handle, name)?;
        volume.is_closing = true;
        Ok(ControlStep::Delete {
            volume: status.handle,
            id: status.info.id,
            request,
        })
    }

    /// One step of a deletion: its requests end first. The next step, or `None` to wait.
    fn delete(
        &mut self,
        handle: VolumeHandle,
        id: VolumeId,
        request: Option<&RequestId>,
        core: &mut ShardCore,
    ) -> Result<Option<ControlStep>, ExtentError> {
        let active = self
            .volumes
            .get(handle.slot, handle.generation)
            .map_or(0, |volume| volume.active);
        if active > 0 {
            return Ok(None);
        }
        let outcome = self.pool.delete_volume(id, request);
        if let Err(ExtentError::NotResident(_) | ExtentError::JournalFull) = outcome {
            return outcome.map(|_| None);
        }
        let ticket = match outcome {
            Ok(ticket) => ticket,
            Err(error) => {
                if let Some(volume) = self.volumes.get_mut(handle.slot, handle.generation) {
                    volume.is_closing = false;
                    volume.is_changing = false;
                }
                return Err(error);
            }
        };
        if let Some(volume) = self.volumes.remove(handle.slot) {
            core.stats.remove_volume(&volume.stats);
            core.ready.extend(volume.blocked);
        }
        Ok(Some(ControlStep::Commit {
            ticket,
            answer: Answer::Done,
        }))
    }

    /// Reserves a volume for one change at a time.
    fn claim(
        &mut self,
        handle: VolumeHandle,
        name: &VolumeName,
    ) -> Result<&mut Volume, ControlError> {
        let volume = self
            .volumes
            .get_mut(handle.slot, handle.generation)
            .ok_or(ControlError::StaleHandle)?;
        if volume.is_changing {
            return Err(ControlError::Busy {
                name: name.volume.clone(),
            });
        }
        volume.is_changing = true;
        Ok(volume)
    }

    fn list_extents(&mut self, handle: VolumeHandle, first: LogicalBlock, count: u32) -> Progress {
        let Some(volume) = self.volumes.get(handle.slot, handle.generation) else {
            return Progress::Ended(Err(ControlError::StaleHandle));
        };
        let units = units_to(volume.size_bytes);
        let left = units.saturating_sub(first.get()).min(u64::from(count));
        let count = u32::try_from(left).unwrap_or(u32::MAX);
        if count == 0 {
            return Progress::Ended(Ok(ControlReply::Extents(Vec::new())));
        }
        let mut pieces = Pieces::new();
        match self.pool.lookup(volume.id, first, count, &mut pieces) {
            Ok(()) => Progress::Ended(Ok(ControlReply::Extents(merge(&pieces)))),
            Err(LookupError::NotResident(missing)) => {
                self.pool.load(missing);
                Progress::Waits
            }
            Err(_) => Progress::Ended(Err(ControlError::Io(IoError::Damaged))),
        }
    }
}

/// What one look at a control request found.
enum Progress {
    /// It is at its next step.
    Moved,
    /// It waits.
    Waits,
    /// It has ended.
    Ended(Result<ControlReply, ControlError>),
}

/// Pieces as a client sees them: neighbours of one kind are one extent.
fn merge(pieces: &Pieces) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match extents.last_mut() {
            Some(last) if last.kind == piece.kind => last.count += piece.count,
            _ => extents.push(Extent {
                kind: piece.kind,
                first: piece.logical,
                count: piece.count,
            }),
        }
    }
    extents
}

fn zero_tail(volume: VolumeHandle, start: u64, end: u64) -> DataRequest {
    DataRequest {
        token: Token(0),
        volume,
        operation: DataOperation::WriteZeroes,
        durability: Durability::Data,
        offset_bytes: start,
        length_bytes: end - start,
        buffer: None,
    }
}

/// The most control requests under way on one pool.
const CONTROLS_MAX: usize = 256;
