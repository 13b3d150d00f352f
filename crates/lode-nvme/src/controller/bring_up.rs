//! The states that wait for a register (Base 2.0 §3.5.1 and §3.6.1).

use lode_bus::{Bus, Registers};
use lode_nvme_spec::prp;
use lode_nvme_spec::registers::{
    ACQ, ALL_ONES_U32, ALL_ONES_U64, AQA, ASQ, CAP, CC, COMPLETION_ENTRY_SHIFT, CRTO, CSTS,
    Capabilities, Configuration, ControllerStatus, SUBMISSION_ENTRY_SHIFT, ShutdownNotification,
    ShutdownStatus, VS, Version, completion_doorbell,
};
use lode_units::{Instant, QueueId};
use std::time::Duration;

use super::start::Purpose;
use super::{Controller, ControllerState, PAGE_SHIFT_MAX};
use crate::admin::AdminQueue;
use crate::error::Failure;

impl<B: Bus> Controller<B> {
    /// Leaves the first state.
    pub(super) fn begin(&mut self) {
        let deadline = self.now + self.options.ready_timeout_min;
        self.enter(ControllerState::Probing, deadline);
    }

    /// Reads the capabilities and starts from a disabled controller, whatever it did before.
    pub(super) fn probe(&mut self) {
        let bits = self.registers.read_u64(CAP);
        if bits == ALL_ONES_U64 {
            self.note_all_ones();
            return;
        }
        self.all_ones_since = None;
        let capabilities = Capabilities::from_bits(bits);
        if let Err(failure) = self.accept(capabilities) {
            self.fail(failure);
            return;
        }
        self.capabilities = capabilities;
        self.facts.version = Version::from_bits(self.registers.read_u32(VS));
        self.admin.place_doorbells(capabilities.doorbell_stride);
        self.configuration = Configuration {
            command_set: 0,
            page_size: capabilities.page_size_min,
            submission_entry_shift: SUBMISSION_ENTRY_SHIFT,
            completion_entry_shift: COMPLETION_ENTRY_SHIFT,
            ..Configuration::default()
        };
        self.disable(ControllerState::Disabling);
    }

    /// Refuses what the driver cannot drive.
    fn accept(&self, capabilities: Capabilities) -> Result<(), Failure> {
        if capabilities.command_sets & Capabilities::COMMAND_SET_NVM == 0 {
            return Err(Failure::NoNvmCommandSet);
        }
        let shift = prp::PAGE_SHIFT_MIN + u32::from(capabilities.page_size_min);
        if shift > PAGE_SHIFT_MAX {
            return Err(Failure::PageSize { shift });
        }
        if capabilities.queue_entries_max() < 2 {
            return Err(Failure::QueueSize);
        }
        let length_bytes = self.registers.length_bytes();
        let last = completion_doorbell(QueueId::new(1), capabilities.doorbell_stride);
        if u64::from(last) + 4 > length_bytes {
            return Err(Failure::NoDoorbells { length_bytes });
        }
        Ok(())
    }

    /// Clears CC.EN and waits in `state` for CSTS.RDY = 0.
    pub(super) fn disable(&mut self, state: ControllerState) {
        self.configuration.enabled = false;
        self.configuration.shutdown = ShutdownNotification::None;
        self.write_configuration();
        let deadline = self.now + self.ready_timeout();
        self.enter(state, deadline);
    }

    pub(super) fn await_disabled(&mut self) {
        match self.read_status() {
            Some(status) if !status.ready => self.enable(),
            Some(_) if self.now >= self.state_deadline => self.reset_function(),
            Some(_) | None => {}
        }
    }

    /// The controller is disabled: it lets go of all memory. Sets the admin queue and CC.EN.
    fn enable(&mut self) {
        self.release_quarantine();
        self.admin.restart();
        let attributes = AdminQueue::<Purpose>::attributes().to_bits();
        self.registers.write_u32(AQA, attributes);
        self.registers
            .write_u64(ASQ, self.admin.submission_base().get());
        self.registers
            .write_u64(ACQ, self.admin.completion_base().get());
        self.configuration.enabled = true;
        self.write_configuration();
        let deadline = self.now + self.ready_timeout();
        self.enter(ControllerState::Enabling, deadline);
    }

    pub(super) fn await_enabled(&mut self) {
        let Some(status) = self.read_status() else {
            return;
        };
        if status.fatal {
            self.recover(Failure::FatalStatus);
        } else if status.ready {
            self.enter(ControllerState::Starting, Instant::FAR_FUTURE);
            self.begin_start();
        } else if self.now >= self.state_deadline {
            let state = self.state.name();
            self.recover(Failure::StateTimeout { state });
        }
    }

    /// Begins the shutdown that [`Controller::shut_down`] waits for; [`Controller::poll`] goes
    /// on with it. A controller that is not in use is stopped at once.
    pub fn begin_shutdown(&mut self) {
        match self.state {
            ControllerState::Ready => {
                self.shared.close();
                self.configuration.shutdown = ShutdownNotification::Normal;
                self.write_configuration();
                let patience = self
                    .facts
                    .shutdown_latency
                    .max(self.options.shutdown_timeout);
                let deadline = self.now + patience;
                self.enter(ControllerState::ShuttingDown, deadline);
            }
            ControllerState::Created => self.stop(),
            ControllerState::Probing
            | ControllerState::Disabling
            | ControllerState::Enabling
            | ControllerState::Starting => self.disable(ControllerState::Stopping),
            ControllerState::ShuttingDown
            | ControllerState::Stopping
            | ControllerState::Stopped
            | ControllerState::Gone => {}
        }
    }

    pub(super) fn await_shutdown(&mut self) {
        match self.read_status() {
            Some(status) if status.shutdown == ShutdownStatus::Complete => {
                self.disable(ControllerState::Stopping);
            }
            Some(_) if self.now >= self.state_deadline => self.fail_state(),
            Some(_) | None => {}
        }
    }

    pub(super) fn await_stopped(&mut self) {
        match self.read_status() {
            Some(status) if !status.ready => self.stop(),
            Some(_) if self.now >= self.state_deadline => self.fail_state(),
            Some(_) | None => {}
        }
    }

    fn stop(&mut self) {
        self.hide_memory();
        self.shared.end();
        self.enter(ControllerState::Stopped, Instant::FAR_FUTURE);
    }

    fn fail_state(&mut self) {
        let state = self.state.name();
        self.fail(Failure::StateTimeout { state });
    }

    /// The status, or `None` while it is not to be read or reads as all ones. A device whose
    /// registers stay all ones, or that the transport has lost, is failed here.
    pub(super) fn read_status(&mut self) -> Option<ControllerStatus> {
        if self.now < self.status_after {
            return None;
        }
        if !self.shared.bus.is_present() {
            self.fail(Failure::Removed);
            return None;
        }
        let bits = self.registers.read_u32(CSTS);
        if bits == ALL_ONES_U32 {
            self.note_all_ones();
            return None;
        }
        self.all_ones_since = None;
        Some(ControllerStatus::from_bits(bits))
    }

    fn note_all_ones(&mut self) {
        self.stats.all_ones_reads += 1;
        let since = *self.all_ones_since.get_or_insert(self.now);
        let elapsed = self.now.saturating_duration_since(since);
        if elapsed >= self.options.all_ones_tolerance || !self.shared.bus.is_present() {
            self.fail(Failure::Removed);
        }
    }

    fn write_configuration(&mut self) {
        let bits = self.configuration.to_bits();
        self.registers.write_u32(CC, bits);
        self.status_after = self.now + self.options.status_delay;
    }

    /// How long a change of CSTS.RDY may take (CAP.TO; CRTO where it is there).
    fn ready_timeout(&self) -> Duration {
        let mut units = u32::from(self.capabilities.timeout_500ms);
        if self.capabilities.ready_modes & 1 != 0 {
            let crto = self.registers.read_u32(CRTO);
            if crto != ALL_ONES_U32 {
                units = units.max(crto & 0xFFFF);
            }
        }
        (READY_TIMEOUT_UNIT * units).max(self.options.ready_timeout_min)
    }

    pub(super) fn enter(&mut self, state: ControllerState, deadline: Instant) {
        assert!(
            self.state.may_become(state),
            "no way from {:?} to {state:?}",
            self.state
        );
        self.state = state;
        self.state_deadline = deadline;
    }
}

/// The unit of CAP.TO and CRTO.
const READY_TIMEOUT_UNIT: Duration = Duration::from_millis(500);
