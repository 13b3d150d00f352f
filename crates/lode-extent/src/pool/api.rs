//! Durability, space and figures.

use lode_units::DeviceIndex;
use lode_units::limits::ALLOCATION_UNIT_BYTES;
use uuid::Uuid;

use crate::layout::PoolLayout;
use crate::pool::Pool;
use crate::types::{PoolBlock, Ticket};
use crate::volume::{Counters, PoolState, Usage};

impl Pool {
    /// The pool's identity; `None` before it is known.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        Some(self.core.as_ref()?.identity.uuid)
    }

    /// The identity that the pool gave each device, in the caller's order; empty before it is
    /// known.
    #[must_use]
    pub fn device_uuids(&self) -> Vec<Uuid> {
        let Some(core) = self.core.as_ref() else {
            return Vec::new();
        };
        let records = core.superblock.devices.iter();
        let mut placed: Vec<_> = self.caller_position.iter().zip(records).collect();
        placed.sort_by_key(|(position, _)| **position);
        placed.iter().map(|(_, record)| record.uuid).collect()
    }

    /// The pool's name; empty before it is known.
    #[must_use]
    pub fn name(&self) -> &str {
        self.core.as_ref().map_or("", |core| &core.identity.name)
    }

    /// When the pool was made, in seconds since 1970-01-01 UTC; 0 before it is known.
    #[must_use]
    pub fn created_unix_seconds(&self) -> u64 {
        self.core
            .as_ref()
            .map_or(0, |core| core.identity.created_unix_seconds)
    }

    /// The device, by its position in the caller's list, and its 4 KiB block that hold a block of
    /// the pool. A run of an allocation or a piece of a lookup continues on the same device.
    ///
    /// # Panics
    /// When the block is not one that this pool has named.
    #[must_use]
    #[inline]
    pub fn locate(&self, block: PoolBlock) -> (DeviceIndex, u64) {
        self.layout.locate(block).expect("a block of this pool")
    }

    /// What [`locate`](Self::locate) knows, for other cores; `None` before the pool is known.
    #[must_use]
    pub fn layout(&self) -> Option<PoolLayout> {
        self.core.is_some().then(|| self.layout.clone())
    }

    /// Starts to make durable all that is recorded; joins the next group when one is being
    /// written. Nothing happens when there is nothing to do.
    pub fn commit(&mut self) {
        if let Some(core) = self.core.as_mut() {
            core.journal.want_commit();
        }
    }

    /// The last change that survives a power cut; every change before it does too.
    #[must_use]
    #[inline]
    pub fn durable(&self) -> Ticket {
        self.core
            .as_ref()
            .map_or(Ticket::default(), |core| core.journal.durable())
    }

    /// The last change recorded.
    #[must_use]
    #[inline]
    pub fn recorded(&self) -> Ticket {
        self.core
            .as_ref()
            .map_or(Ticket::default(), |core| core.journal.recorded())
    }

    /// Asks for a checkpoint; one is made on its own when the journal is half full.
    pub fn checkpoint(&mut self) {
        self.is_checkpoint_wanted = true;
        self.commit();
    }

    /// Commits, checkpoints and marks the pool clean: no more changes from now on, and
    /// [`PoolState::Exported`] once it is done.
    pub fn export(&mut self) {
        if self.state == PoolState::Ready {
            self.state = PoolState::Exporting;
            self.commit();
        }
    }

    /// How the space is used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let Some(core) = self.core.as_ref() else {
            return Usage::default();
        };
        let bytes = |blocks: u64| blocks * ALLOCATION_UNIT_BYTES;
        let (total, free) = (core.geometry.blocks(), core.space.free());
        let data_may_take = core.free_for_data();
        let elsewhere = core.data_blocks + core.space.pending() + free;
        Usage {
            capacity_bytes: bytes(total),
            allocated_bytes: bytes(core.data_blocks),
            metadata_bytes: bytes(total.saturating_sub(elsewhere)),
            reserved_bytes: bytes(free - data_may_take),
            free_bytes: bytes(data_may_take),
            pending_bytes: bytes(core.space.pending()),
            virtual_bytes: core
                .catalog
                .iter()
                .filter(|(_, volume)| !volume.record.is_deleting)
                .map(|(_, volume)| volume.record.size_bytes)
                .sum(),
            unreadable_bytes: bytes(core.space.unreadable_blocks_max(&core.geometry)),
            leaked_bytes: bytes(core.leaked_nodes),
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
