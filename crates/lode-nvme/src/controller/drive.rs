//! Calls for start-up and shutdown code, which may block: they poll until something is so.

use lode_bus::Bus;
use lode_units::Clock;

use super::{Controller, ControllerState};
use crate::error::NvmeError;

impl<B: Bus> Controller<B> {
    /// Polls until the controller is ready. Blocks; every state on the way has a deadline, and
    /// resets on the way have a limit.
    ///
    /// # Errors
    /// Why the controller failed; [`NvmeError::ClockStopped`] when `clock` never moves.
    pub fn bring_up(&mut self, clock: &impl Clock) -> Result<(), NvmeError> {
        self.poll_until(clock, |controller| {
            controller.state == ControllerState::Ready
        })
    }

    /// Polls until queues that were opened are created, those that were dropped deleted, and a
    /// scan that was asked for done. Blocks; bounded by the deadlines of the commands.
    ///
    /// # Errors
    /// As [`Controller::bring_up`].
    pub fn settle(&mut self, clock: &impl Clock) -> Result<(), NvmeError> {
        self.poll_until(clock, |controller| {
            controller.state == ControllerState::Ready && controller.is_settled()
        })
    }

    /// Shuts the controller down in the way that keeps its data and the next start healthy
    /// (CC.SHN, Base 2.0 §3.6.1). Blocks, at most for the shutdown's deadline. Queues end: what
    /// is in flight completes with [`lode_block::ErrorKind::Gone`], so drain them first.
    ///
    /// # Errors
    /// When the controller failed before or does not finish in time.
    pub fn shut_down(&mut self, clock: &impl Clock) -> Result<(), NvmeError> {
        self.begin_shutdown();
        self.poll_until(clock, |controller| {
            controller.state == ControllerState::Stopped
        })
    }

    fn poll_until(
        &mut self,
        clock: &impl Clock,
        is_done: impl Fn(&Self) -> bool,
    ) -> Result<(), NvmeError> {
        let mut last = clock.now();
        let mut stalled = 0_u32;
        loop {
            let now = clock.now();
            stalled = if now == last { stalled + 1 } else { 0 };
            last = now;
            self.poll(now);
            if is_done(self) {
                return Ok(());
            }
            if let Some(failure) = self.failure {
                return Err(failure.into());
            }
            if self.state == ControllerState::Stopped {
                return Err(NvmeError::NotReady);
            }
            if stalled > STALLED_POLLS_MAX {
                return Err(NvmeError::ClockStopped);
            }
            std::thread::yield_now();
        }
    }
}

/// Polls in a row with the same time before a clock counts as stopped.
const STALLED_POLLS_MAX: u32 = 1 << 20;
