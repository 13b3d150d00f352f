//! A device in front of a device, honest or with one defect: what a simulation that cannot fail
//! would not notice.

use lode_block::{BlockDevice, Completion, Geometry, Operation, Rejected, Request, Tag};
use lode_units::Instant;

/// A defect put between the engine and the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Defect {
    /// None.
    #[default]
    None,
    /// The controller completes Flush and write-through without doing anything.
    LyingController,
    /// Flushes never reach the controller.
    FlushIgnored,
    /// Write-through is sent as a plain write.
    WriteThroughIgnored,
    /// Every 64th write is completed without being sent.
    WriteLost,
}

/// A device with a [`Defect`].
#[derive(Debug)]
pub(crate) struct Tampered<D> {
    device: D,
    defect: Defect,
    /// Requests that were answered here.
    answered: Vec<Tag>,
    writes: u64,
}

impl<D> Tampered<D> {
    pub(crate) const fn new(device: D, defect: Defect) -> Self {
        Self {
            device,
            defect,
            answered: Vec::new(),
            writes: 0,
        }
    }

    fn is_swallowed(&mut self, operation: Operation) -> bool {
        let is_write = matches!(operation, Operation::Write | Operation::WriteThrough);
        self.writes += u64::from(is_write);
        match self.defect {
            Defect::FlushIgnored => operation == Operation::Flush,
            Defect::WriteLost => is_write && self.writes.is_multiple_of(64),
            Defect::None | Defect::LyingController | Defect::WriteThroughIgnored => false,
        }
    }
}

impl<D: BlockDevice> BlockDevice for Tampered<D> {
    fn geometry(&self) -> &Geometry {
        self.device.geometry()
    }

    fn submit(&mut self, mut request: Request) -> Result<(), Rejected> {
        if self.is_swallowed(request.operation) {
            self.answered.push(request.tag);
            return Ok(());
        }
        if self.defect == Defect::WriteThroughIgnored
            && request.operation == Operation::WriteThrough
        {
            request.operation = Operation::Write;
        }
        self.device.submit(request)
    }

    fn kick(&mut self) {
        self.device.kick();
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) -> usize {
        let room = completions.capacity() - completions.len();
        let count = self.answered.len().min(room);
        let own = self.answered.drain(..count);
        completions.extend(own.map(|tag| Completion {
            tag,
            result: Ok(()),
        }));
        count + self.device.poll(now, completions)
    }

    fn in_flight(&self) -> usize {
        self.answered.len() + self.device.in_flight()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline()
    }
}
