//! What a pool shows of itself: to the scrape, and to who asks.

use std::sync::Arc;

use lode_block::BlockDevice;
use lode_extent::{PoolState, Usage};

use super::PoolHost;
use crate::control::{DeviceStatus, PoolStatus};
use crate::core::ShardCore;
use crate::stats::PoolStats;

impl<D: BlockDevice> PoolHost<D> {
    /// Shows a pool that became ready, under its own name, or is no more: also one that has
    /// nothing else to do.
    #[inline]
    pub(super) fn show_readiness(&mut self, core: &mut ShardCore) {
        let is_ready = matches!(self.pool.state(), PoolState::Ready);
        if is_ready == (self.stats.is_ready.read() == 1) {
            return;
        }
        if !is_ready {
            self.recall_pool(core);
        }
        if is_ready && self.name != self.pool.name() {
            self.take_name(core);
        } else {
            self.publish();
        }
    }

    /// Shows the present figures.
    pub(super) fn publish(&self) {
        self.stats.publish(&self.pool.usage(), self.pool.counters());
        self.stats
            .is_ready
            .set(u64::from(matches!(self.pool.state(), PoolState::Ready)));
        for (shown, lane) in self.stats.devices.iter().zip(&self.lanes) {
            shown.errors.set(lane.errors());
            shown.in_flight.set(lane.in_flight() as u64);
        }
    }

    /// Takes the name that the pool has on its devices, which is known now.
    pub(super) fn take_name(&mut self, core: &ShardCore) {
        self.name = self.pool.name().to_owned();
        core.stats.remove_pool(&self.stats);
        let named = self.lanes.iter().map(|lane| (lane.name(), lane.geometry()));
        self.stats = Arc::new(PoolStats::new(&self.name, named));
        core.stats.add_pool(Arc::clone(&self.stats));
        self.publish();
    }

    /// How its space is used.
    pub(crate) fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// The pool as it stands.
    pub(crate) fn status(&self) -> PoolStatus {
        PoolStatus {
            index: self.index,
            name: self.name.clone(),
            state: self.pool.state().clone(),
            usage: self.pool.usage(),
            counters: *self.pool.counters(),
            devices: self
                .lanes
                .iter()
                .map(|lane| DeviceStatus {
                    name: lane.name().to_owned(),
                    geometry: lane.geometry().clone(),
                    errors: lane.errors(),
                    in_flight: lane.in_flight(),
                })
                .collect(),
            volume_count: self.pool.volumes(None, usize::MAX).len(),
        }
    }
}
