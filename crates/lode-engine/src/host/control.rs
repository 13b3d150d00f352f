//! Control requests: what concerns a volume as a whole. Each is a small state machine that is
//! looked at in every poll until it has ended.

mod delete;
mod extents;
mod limit;
mod open;
mod resize;

use lode_block::{BlockDevice, Durability};
use lode_extent::{ExtentError, LogicalBlock, PoolState, RequestId, Ticket, VolumeId, VolumeSpec};

use super::PoolHost;
use crate::control::{Asker, ControlError, ControlReply, ControlRequest};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::request::VolumeHandle;

use delete::Deletion;
use limit::Limit;
use resize::Resize;

/// The control requests under way on one pool.
#[derive(Debug)]
pub(crate) struct ControlTable {
    slots: Vec<Option<Control>>,
    /// Slots in use, that of a request which is being looked at included.
    running: usize,
}

#[derive(Debug)]
struct Control {
    asker: Asker,
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
    /// The pool is to change limits.
    Limit { limit: Limit },
    /// The requests of a volume are to end, then the pool is to delete it.
    Delete(Deletion),
    /// A change is to become durable; then the answer is given.
    Commit { ticket: Ticket, answer: Answer },
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
        Self {
            slots: Vec::new(),
            running: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running == 0
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
        self.running < CONTROLS_MAX
    }

    fn insert(&mut self, control: Control) -> usize {
        let position = self.slots.iter().position(Option::is_none);
        let position = position.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[position] = Some(control);
        self.running += 1;
        position
    }
}

impl<D: BlockDevice> PoolHost<D> {
    /// Takes a control request. Its completion may follow at once.
    pub(crate) fn control(&mut self, asker: Asker, request: ControlRequest, core: &mut ShardCore) {
        let step = match self.control_step(request, core) {
            Ok(step) => step,
            Err(result) => {
                core.answer(asker, result);
                return;
            }
        };
        if !self.controls.has_room() {
            core.answer(asker, Box::new(Err(ControlError::TooMany)));
            return;
        }
        let slot = self.controls.insert(Control { asker, step });
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
            ControlRequest::LimitVolume { volume, change } => self
                .begin_limit(&volume, change, core)
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

    /// Answers the control requests that are left when a closed pool is taken off its shard.
    pub(crate) fn end_controls(&mut self, core: &mut ShardCore) {
        for slot in 0..self.controls.slots.len() {
            let step = self.controls.slots[slot].as_ref().map(|left| &left.step);
            // What is durable is said to be so; every other step might begin something.
            if matches!(step, Some(ControlStep::Commit { .. })) {
                self.run_control(slot, core);
            }
            if let Some(control) = self.controls.slots[slot].take() {
                self.controls.running -= 1;
                let error = match self.pool.state() {
                    PoolState::Failed(error) => error.clone(),
                    _ => ExtentError::Exported,
                };
                core.answer(control.asker, Box::new(Err(ControlError::Pool(error))));
            }
        }
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
        self.controls.running -= 1;
        core.answer(control.asker, Box::new(result));
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
                let outcome = self.resize(slot, resize, core);
                let resize = *resize;
                match outcome {
                    Ok(Some(next)) => {
                        *step = next;
                        Progress::Moved
                    }
                    Ok(None) => Progress::Waits,
                    Err(error) => self.refused_resize(&resize, error),
                }
            }
            ControlStep::Limit { limit } => match self.limit(limit) {
                Ok(next) => {
                    *step = next;
                    Progress::Moved
                }
                Err(error) => self.refused(error),
            },
            ControlStep::Delete(deletion) => match self.delete(deletion, core) {
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

/// The most control requests under way on one pool.
const CONTROLS_MAX: usize = 256;
