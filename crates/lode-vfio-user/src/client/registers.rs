//! The registers of a served controller: mapped where the server lets them be, messages elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use lode_bus::{MappedRegisters, Registers};

use super::link::Link;
use crate::error::VfioUserError;
use crate::wire::REGION_BAR_0;

/// What the bus and the handles to its registers share.
#[derive(Debug)]
pub(super) struct Shared {
    link: Mutex<Link>,
    is_lost: AtomicBool,
    windows: Vec<RegisterArea>,
    length_bytes: u64,
}

/// A mapped part of the registers.
#[derive(Debug)]
pub(super) struct RegisterArea {
    pub(super) start: u32,
    pub(super) registers: MappedRegisters,
}

impl Shared {
    pub(super) fn new(link: Link, windows: Vec<RegisterArea>, length_bytes: u64) -> Self {
        Self {
            link: Mutex::new(link),
            is_lost: AtomicBool::new(false),
            windows,
            length_bytes,
        }
    }

    /// Whether the server is gone, or has taken the mapped registers away.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
            || self.windows.iter().any(|area| area.registers.is_lost())
    }

    /// Talks to the server. Waits while another thread does.
    pub(super) fn talk<T>(
        &self,
        talk: impl FnOnce(&mut Link) -> Result<T, VfioUserError>,
    ) -> Result<T, VfioUserError> {
        if self.is_lost() {
            return Err(VfioUserError::Lost);
        }
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = talk(&mut link);
        self.note(&link);
        outcome
    }

    /// Answers the server's own commands; `None` while another thread talks to it.
    pub(super) fn try_serve(&self) -> Option<usize> {
        let mut link = match self.link.try_lock() {
            Ok(link) => link,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let served = link.serve().unwrap_or(0);
        self.note(&link);
        Some(served)
    }

    /// Lets go of the server: handles to registers that are still held read ones from now on.
    pub(super) fn close(&self) {
        self.is_lost.store(true, Ordering::Release);
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.stream.close();
    }

    /// Why the server is gone.
    pub(super) fn loss(&self) -> Option<String> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.loss().map(ToOwned::to_owned)
    }

    fn note(&self, link: &Link) {
        if link.loss().is_some() {
            self.is_lost.store(true, Ordering::Release);
        }
    }

    /// The mapped window that `offset` lies in, and where.
    fn mapped(&self, offset: u32) -> Option<(&MappedRegisters, u32)> {
        self.windows.iter().find_map(|area| {
            let inside = offset.checked_sub(area.start)?;
            (u64::from(inside) < area.registers.length_bytes()).then_some((&area.registers, inside))
        })
    }

    fn is_inside(&self, offset: u32, length: u32) -> bool {
        let end = u64::from(offset) + u64::from(length);
        end <= self.length_bytes && offset.is_multiple_of(length)
    }

    /// Asks for a register; all ones when that is not possible.
    fn ask<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut bytes = [0xFF; N];
        let is_read = self.talk(|link| {
            let patience = link.patience.request;
            link.read_region(REGION_BAR_0, offset.into(), &mut bytes, patience)?;
            if offset == CSTS && link.has_refused_post() {
                // What was submitted with that doorbell never ends: only a reset helps, and this
                // is how a controller asks for one.
                bytes[0] |= CSTS_FATAL;
            }
            Ok(())
        });
        // Refused or gone, it reads as what nobody drives.
        is_read.map_or([0xFF; N], |()| bytes)
    }

    /// Tells the server of a register. Doorbells are only sent; what configures the controller
    /// is waited for, so that a later write to a doorbell cannot overtake it.
    fn tell(&self, offset: u32, bytes: &[u8]) {
        let outcome = self.talk(|link| {
            if offset >= DOORBELLS {
                return link.post(REGION_BAR_0, offset.into(), bytes);
            }
            let patience = link.patience.request;
            link.write_region(REGION_BAR_0, offset.into(), bytes, patience)?;
            if offset == CC && bytes[0] & CC_ENABLE == 0 {
                // Refusals of earlier doorbells came before this answer.
                link.forget_refused_post();
            }
            Ok(())
        });
        // As on the wire: a write that nobody takes goes nowhere. The loss is noted.
        let _is_not_taken = outcome.is_err();
    }
}

/// A handle to the registers of a controller that another process serves.
#[derive(Clone, Debug)]
pub struct VfioUserRegisters {
    shared: Arc<Shared>,
}

impl VfioUserRegisters {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Registers for VfioUserRegisters {
    fn length_bytes(&self) -> u64 {
        self.shared.length_bytes
    }

    fn read_u32(&self, offset: u32) -> u32 {
        if let Some((registers, inside)) = self.shared.mapped(offset) {
            return registers.read_u32(inside);
        }
        if !self.shared.is_inside(offset, 4) {
            return u32::MAX;
        }
        u32::from_le_bytes(self.shared.ask(offset))
    }

    fn read_u64(&self, offset: u32) -> u64 {
        if let Some((registers, inside)) = self.shared.mapped(offset) {
            return registers.read_u64(inside);
        }
        if !self.shared.is_inside(offset, 8) {
            return u64::MAX;
        }
        u64::from_le_bytes(self.shared.ask(offset))
    }

    fn write_u32(&self, offset: u32, value: u32) {
        if let Some((registers, inside)) = self.shared.mapped(offset) {
            registers.write_u32(inside, value);
        } else if self.shared.is_inside(offset, 4) {
            self.shared.tell(offset, &value.to_le_bytes());
        }
    }

    fn write_u64(&self, offset: u32, value: u64) {
        if let Some((registers, inside)) = self.shared.mapped(offset) {
            registers.write_u64(inside, value);
        } else if self.shared.is_inside(offset, 8) {
            self.shared.tell(offset, &value.to_le_bytes());
        }
    }
}

/// Where the doorbells begin (NVMe PCIe Transport 1.0 §3.1.2).
const DOORBELLS: u32 = 0x1000;
/// Controller Configuration and Status (NVMe Base 2.0 §3.1.4.5 and §3.1.4.6), their low bytes.
const CC: u32 = 0x14;
const CC_ENABLE: u8 = 1;
const CSTS: u32 = 0x1C;
const CSTS_FATAL: u8 = 1 << 1;
