//! MSI-X vectors into event descriptors, one by one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use zerocopy::IntoBytes;

use super::attach::length_of;
use super::configuration;
use super::link::{Link, Question};
use crate::error::VfioUserError;
use crate::wire::{Command, INTERRUPT_MSIX, InterruptSet};

/// The vectors of a served controller.
#[derive(Debug)]
pub(super) struct Vectors {
    pub(super) count: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_msix_enabled: bool,
    /// The descriptors of our own, by vector.
    own: Vec<Option<OwnedFd>>,
}

impl Vectors {
    pub(super) fn new(count: u16) -> Self {
        Self {
            count,
            state: Mutex::default(),
        }
    }

    /// The descriptor of our own that `vector` fires into, if it has one.
    pub(super) fn own(&self, vector: u16) -> Option<RawFd> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let own = state.own.get(usize::from(vector))?;
        own.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Makes `vector` fire into a descriptor of our own, which is returned.
    pub(super) fn enable(&self, link: &mut Link, vector: u16) -> Result<RawFd, VfioUserError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = eventfd(0, flags).map_err(|error| VfioUserError::System {
            operation: "making an eventfd",
            source: error.into(),
        })?;
        self.route(link, vector, signal.as_fd())?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::from(vector);
        if state.own.len() <= index {
            state.own.resize_with(index + 1, || None);
        }
        let descriptor = signal.as_raw_fd();
        state.own[index] = Some(signal);
        Ok(descriptor)
    }

    /// Makes `vector` fire into `signal`; the server gets its own hold of it. A core that is about
    /// to sleep asks for this too, so no more patience than for a register.
    pub(super) fn route(
        &self,
        link: &mut Link,
        vector: u16,
        signal: BorrowedFd<'_>,
    ) -> Result<(), VfioUserError> {
        let set = InterruptSet {
            argsz: length_of::<InterruptSet>().into(),
            flags: (InterruptSet::DATA_EVENTFD | InterruptSet::ACTION_TRIGGER).into(),
            index: INTERRUPT_MSIX.into(),
            start: u32::from(vector).into(),
            count: 1.into(),
        };
        let question = Question {
            fixed: set.as_bytes(),
            data: &[],
            descriptors: &[signal],
        };
        let patience = link.patience.request;
        link.ask(Command::DeviceSetIrqs, question, patience)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = state.own.get_mut(usize::from(vector)) {
            *own = None;
        }
        if !state.is_msix_enabled {
            configuration::enable_msix(link)?;
            state.is_msix_enabled = true;
        }
        Ok(())
    }

    /// Does again what a reset of the function undoes.
    pub(super) fn restore(&self, link: &mut Link) -> Result<(), VfioUserError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.is_msix_enabled {
            true => configuration::enable_msix(link),
            false => Ok(()),
        }
    }
}
