//! Finding free blocks: next to the hint, then a run that is long enough, then whatever there is.

use smallvec::SmallVec;

use crate::format::geometry::{GROUP_BLOCKS, Geometry};
use crate::space::{Run, Space, SpaceFault, SpaceNode};
use crate::types::PoolBlock;

/// Groups that are searched for one run of the whole length before shorter ones are taken.
const CONTIGUOUS_GROUPS_MAX: usize = 16;

/// Why no blocks were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveFault {
    /// A block of the map is not in memory.
    Absent(SpaceNode),
    /// There are not enough free blocks.
    NoSpace,
}

impl Space {
    /// Makes `count` free blocks busy: in one run where the neighbourhood of `hint` has one, else
    /// in several. Nothing is reserved when it fails.
    pub(crate) fn reserve(
        &mut self,
        geometry: &Geometry,
        hint: PoolBlock,
        count: u32,
    ) -> Result<SmallVec<[Run; 4]>, ReserveFault> {
        if u64::from(count) > self.free {
            return Err(ReserveFault::NoSpace);
        }
        let (start_group, position) = geometry.group_of(hint).unwrap_or((0, 0));
        let mut runs = SmallVec::new();
        if let Some(run) = self.find_whole(geometry, start_group, position, count)? {
            self.take(geometry, run);
            runs.push(run);
            return Ok(runs);
        }
        let gathered = self.gather(geometry, start_group, position, count, &mut runs);
        if let Err(fault) = gathered {
            self.put_back(geometry, &runs);
            return Err(fault);
        }
        Ok(runs)
    }

    /// Makes reserved blocks free again.
    pub(crate) fn put_back(&mut self, geometry: &Geometry, runs: &[Run]) {
        for &run in runs {
            self.release(geometry, run)
                .expect("a reserved run is busy and not owned");
        }
    }

    fn find_whole(
        &mut self,
        geometry: &Geometry,
        start_group: u32,
        position: u32,
        count: u32,
    ) -> Result<Option<Run>, ReserveFault> {
        let groups = geometry.groups();
        let mut searched = 0;
        // The group of the hint comes twice: from the hint on, and at the end from its start.
        for step in 0..=groups {
            let group = (start_group + step) % groups;
            if !self.may_hold(geometry, group, count)? {
                continue;
            }
            let from = if step == 0 { position } else { 0 };
            if let Some(start) = self.find_in_group(group, from, count) {
                return Ok(Some(run_of(geometry, group, start, count)));
            }
            searched += 1;
            if searched >= CONTIGUOUS_GROUPS_MAX {
                break;
            }
        }
        Ok(None)
    }

    /// Whether a group may have `count` free blocks; if so it is in memory.
    fn may_hold(
        &mut self,
        geometry: &Geometry,
        group: u32,
        count: u32,
    ) -> Result<bool, ReserveFault> {
        if !self.groups.contains_key(&group) {
            let entry = match self.entry(geometry, SpaceNode::bitmap(group)) {
                Ok(entry) => entry,
                Err(SpaceFault::Damaged(_)) => return Ok(false),
                Err(SpaceFault::Absent(node)) => return Err(ReserveFault::Absent(node)),
            };
            if entry.is_written && u32::from(entry.free) < count {
                return Ok(false);
            }
            match self.ensure_group(geometry, group) {
                Ok(()) => {}
                Err(SpaceFault::Damaged(_)) => return Ok(false),
                Err(SpaceFault::Absent(node)) => return Err(ReserveFault::Absent(node)),
            }
        }
        Ok(self.groups[&group].longest_free >= count)
    }

    /// The start of a free run of at least `count` blocks at or after `from`.
    fn find_in_group(&mut self, group: u32, from: u32, count: u32) -> Option<u32> {
        let group = self.groups.get_mut(&group)?;
        let (mut position, mut longest) = (from, 0);
        while let Some((start, length)) = group.busy.clear_run(position, u32::MAX) {
            if length >= count {
                return Some(start);
            }
            longest = longest.max(length);
            position = start + length;
        }
        if from == 0 {
            group.longest_free = longest;
        }
        None
    }

    fn gather(
        &mut self,
        geometry: &Geometry,
        start_group: u32,
        position: u32,
        count: u32,
        runs: &mut SmallVec<[Run; 4]>,
    ) -> Result<(), ReserveFault> {
        let groups = geometry.groups();
        let mut left = count;
        for step in 0..=groups {
            let group = (start_group + step) % groups;
            if !self.may_hold(geometry, group, 1)? {
                continue;
            }
            let mut from = if step == 0 { position } else { 0 };
            while let Some((start, length)) = self.groups[&group].busy.clear_run(from, left) {
                let run = run_of(geometry, group, start, length);
                self.take(geometry, run);
                runs.push(run);
                left -= length;
                if left == 0 {
                    return Ok(());
                }
                from = start + length;
                if from >= GROUP_BLOCKS {
                    break;
                }
            }
        }
        Err(ReserveFault::NoSpace)
    }

    fn take(&mut self, geometry: &Geometry, run: Run) {
        let (group, position) = geometry.group_of(run.start).expect("a run lies in a group");
        let group = self.groups.get_mut(&group).expect("the group was searched");
        group.busy.set(position, run.count);
        self.free -= u64::from(run.count);
        self.pending += u64::from(run.count);
    }
}

fn run_of(geometry: &Geometry, group: u32, start: u32, count: u32) -> Run {
    Run {
        start: geometry.group_start(group).plus(u64::from(start)),
        count,
    }
}
