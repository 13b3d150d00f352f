//! Giving back the space of deleted and shrunk volumes, a bounded piece at a time.

use crate::error::ExtentError;
use crate::format::record::Record;
use crate::pool::Pool;
use crate::tree::KEY_END;
use crate::types::VolumeId;
use crate::volume::PoolState;

impl Pool {
    /// Takes the next piece, while no commit waits: each piece has its commit, and callers'
    /// changes go with it.
    pub(super) fn drive_background(&mut self) {
        let Some(core) = self.core.as_ref() else {
            return;
        };
        if self.state != PoolState::Ready || core.journal.backlog() > 0 {
            return;
        }
        let Some(&volume) = core.catalog.trimming.first() else {
            return;
        };
        match self.trim(volume) {
            Ok(()) => self.core_mut().journal.want_commit(),
            Err(ExtentError::NotResident(missing)) => self.load(missing),
            Err(ExtentError::JournalFull) => {}
            // What cannot be read stays taken until it can.
            Err(_damaged) => self.core_mut().catalog.stall(volume),
        }
    }

    fn trim(&mut self, id: VolumeId) -> Result<(), ExtentError> {
        let core = self.core_mut();
        let volume = core
            .catalog
            .any(id)
            .ok_or(ExtentError::UnknownVolume { volume: id })?;
        let (first, is_deleting) = (volume.trim_from(), volume.record.is_deleting);
        let done = self.unmap_piece(id, first, KEY_END)?;
        if done.stop < KEY_END {
            return Ok(());
        }
        let record = if is_deleting {
            Record::Remove { volume: id }
        } else {
            Record::TrimEnd { volume: id }
        };
        self.admit(64, 16)?;
        self.change(&[record])?;
        Ok(())
    }
}
