//! Requests that the device refused in the way in which it refuses whatever names a namespace
//! that is not attached to the controller (Invalid Field in Command, Base 2.0 §3.2.1.2). The status
//! alone does not tell that from a fault of the command: such a request ends once the namespaces
//! have been identified anew. The device is done with it all the while. Those that come meanwhile
//! wait together with it, for one more scan; there are no more of them than the queue has slots.

use lode_block::{Completion, DeviceError, ErrorKind};
use lode_bus::Bus;
use lode_nvme_spec::{GenericStatus, Status, StatusCode};

use super::NamespaceQueue;
use super::slot::SlotPhase;

/// The requests of a queue that wait for a scan.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    count: usize,
    /// The scan after which all of them can be told.
    scan: u64,
    /// How the device refused the last of them.
    status: Option<u16>,
}

impl Doubts {
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// They have ended in another way.
    pub(super) const fn clear(&mut self) {
        self.count = 0;
    }
}

impl<B: Bus> NamespaceQueue<B> {
    /// Whether `error` may mean that the namespace is not attached.
    #[cold]
    pub(super) fn is_doubtful(&self, error: DeviceError) -> bool {
        let code = error.status.map(|raw| Status::from_raw(raw).code());
        code == Some(StatusCode::Generic(GenericStatus::InvalidField))
    }

    /// Keeps the request at `index` until it is known why the device refused it.
    #[cold]
    pub(super) fn doubt(&mut self, index: usize, error: DeviceError) {
        self.slots[index].phase = SlotPhase::Doubted;
        self.doubts.count += 1;
        self.doubts.scan = self.shared.request_scan();
        self.doubts.status = error.status;
    }

    /// Ends requests whose doubt is over, as many as `completions` has room for.
    #[cold]
    pub(super) fn resolve(&mut self, completions: &mut Vec<Completion>) -> usize {
        if !self.shared.has_scanned(self.doubts.scan) {
            return 0;
        }
        let kind = if self.link.is_attached() {
            ErrorKind::Invalid
        } else {
            ErrorKind::Gone
        };
        let status = self.doubts.status;
        let before = completions.len();
        for index in 0..self.slots.len() {
            if completions.len() == completions.capacity() {
                break;
            }
            if self.slots[index].phase == SlotPhase::Doubted {
                self.doubts.count -= 1;
                let ended = self.end(index, Err(DeviceError { kind, status }));
                completions.push(ended);
            }
        }
        completions.len() - before
    }
}
