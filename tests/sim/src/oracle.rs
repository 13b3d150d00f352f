//! What a block of a volume may legally hold, now and after a power cut.
//!
//! Moments are counted events, not time. A version supersedes another one when it was begun
//! after that one had ended; two that overlapped may lie in either order for ever.

/// Every version of one block that may still matter.
#[derive(Clone, Debug)]
pub(crate) struct BlockHistory {
    versions: Vec<Version>,
}

/// What one request made of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    request: u64,
    value: u64,
    begun: u64,
    /// `None` while the request is in flight.
    ended: Option<u64>,
    /// The request succeeded: a version that it supersedes cannot be read any more.
    is_certain: bool,
    /// A power cut cannot bring back what it supersedes.
    is_durable: bool,
}

impl Version {
    /// Notes that `request` has ended; whether it is the one that this is of.
    pub(crate) fn ends(&mut self, request: u64, now: u64) -> bool {
        let is_its = self.request == request;
        if is_its {
            self.ended = Some(now);
        }
        is_its
    }

    fn supersedes(&self, other: &Self) -> bool {
        other.ended.is_some_and(|ended| self.begun > ended)
    }
}

impl BlockHistory {
    /// A block that holds `value` since `now`, and will after a power cut.
    pub(crate) fn settled(value: u64, now: u64) -> Self {
        Self {
            versions: vec![Version {
                request: 0,
                value,
                begun: now,
                ended: Some(now),
                is_certain: true,
                is_durable: true,
            }],
        }
    }

    /// A request that will make the block hold `value` is under way.
    pub(crate) fn begin(&mut self, request: u64, value: u64, now: u64) {
        self.versions.push(Version {
            request,
            value,
            begun: now,
            ended: None,
            is_certain: false,
            is_durable: false,
        });
    }

    /// A request that was begun has ended. `horizon` is a moment before which no request in
    /// flight began.
    pub(crate) fn end(&mut self, request: u64, outcome: Outcome, now: u64, horizon: u64) {
        for version in &mut self.versions {
            if version.request == request && version.ended.is_none() {
                version.ended = Some(now);
                version.is_certain = outcome != Outcome::Failed;
                version.is_durable = outcome == Outcome::Durable;
            }
        }
        self.prune(horizon);
    }

    /// The versions of requests in flight.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = Version> {
        let versions = self.versions.iter().copied();
        versions.filter(|version| version.ended.is_none())
    }

    /// A request that was in flight when the block was taken away may make the block hold its
    /// value all the same, which has come back at `now`; or it came before.
    pub(crate) fn rejoin(&mut self, version: &Version, now: u64) {
        self.versions.push(Version {
            ended: version.ended.map(|_| now),
            is_certain: false,
            is_durable: false,
            ..*version
        });
    }

    /// A request has ended without having touched the block.
    pub(crate) fn withdraw(&mut self, request: u64) {
        self.versions
            .retain(|version| version.request != request || version.ended.is_some());
    }

    /// A flush has ended that was begun at `begun`.
    pub(crate) fn flushed(&mut self, begun: u64) {
        for version in &mut self.versions {
            let is_covered = version.ended.is_some_and(|ended| ended < begun);
            version.is_durable |= version.is_certain && is_covered;
        }
    }

    /// Whether a read that was begun at `begun` and ends now may give `value`.
    pub(crate) fn may_read(&self, value: u64, begun: u64) -> bool {
        self.readable(begun).any(|found| found == value)
    }

    /// Whether such a read may give anything but `value`.
    pub(crate) fn may_differ(&self, value: u64, begun: u64) -> bool {
        self.readable(begun).any(|found| found != value)
    }

    fn readable(&self, begun: u64) -> impl Iterator<Item = u64> {
        let versions = &self.versions;
        let is_current = move |version: &&Version| {
            !versions.iter().any(|newer| {
                let was_before = newer.ended.is_some_and(|ended| ended < begun);
                newer.is_certain && was_before && newer.supersedes(version)
            })
        };
        versions
            .iter()
            .filter(is_current)
            .map(|version| version.value)
    }

    /// The power was cut: from now on any version may be there that could survive it.
    pub(crate) fn cut_power(&mut self, now: u64) {
        let all = std::mem::take(&mut self.versions);
        for version in &all {
            let is_lost = all
                .iter()
                .any(|newer| newer.is_durable && newer.supersedes(version));
            let is_known = self.versions.iter().any(|one| one.value == version.value);
            if !is_lost && !is_known {
                self.versions.push(Version {
                    request: 0,
                    begun: now,
                    ended: Some(now),
                    is_certain: false,
                    is_durable: false,
                    ..*version
                });
            }
        }
    }

    /// Whether no request has been changing it since `moment`.
    pub(crate) fn is_idle_since(&self, moment: u64) -> bool {
        let mut versions = self.versions.iter();
        versions.all(|version| version.ended.is_some_and(|ended| ended < moment))
    }

    /// The value begun last: a good guess at what a read gives.
    pub(crate) fn newest(&self) -> u64 {
        self.versions.last().map_or(0, |version| version.value)
    }

    fn prune(&mut self, horizon: u64) {
        let durable: Vec<_> = self
            .versions
            .iter()
            .filter(|version| version.is_durable)
            .filter(|version| version.ended.is_some_and(|ended| ended < horizon))
            .copied()
            .collect();
        self.versions
            .retain(|version| !durable.iter().any(|newer| newer.supersedes(version)));
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did what was asked, and a power cut may undo it.
    Done,
    /// It did what was asked for good.
    Durable,
    /// It failed: each block is as before, or as was asked.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unflushed_write_may_be_lost_and_a_flushed_one_may_not() {
        let mut block = BlockHistory::settled(0, 1);
        block.begin(7, 5, 2);
        block.end(7, Outcome::Done, 3, 3);
        assert!(block.may_read(5, 4) && !block.may_read(0, 4));
        let mut lost = block.clone();
        lost.cut_power(5);
        assert!(lost.may_read(5, 6) && lost.may_read(0, 6));
        block.flushed(4);
        block.cut_power(5);
        assert!(block.may_read(5, 6) && !block.may_read(0, 6));
    }

    #[test]
    fn a_flush_covers_nothing_that_ended_after_it_was_begun() {
        let mut block = BlockHistory::settled(0, 1);
        block.begin(7, 5, 2);
        block.end(7, Outcome::Done, 4, 4);
        block.flushed(3);
        block.cut_power(5);
        assert!(block.may_read(0, 6));
    }

    #[test]
    fn writes_that_overlapped_may_lie_in_either_order() {
        let mut block = BlockHistory::settled(0, 1);
        block.begin(7, 5, 2);
        block.begin(8, 6, 3);
        block.end(7, Outcome::Durable, 4, 2);
        block.end(8, Outcome::Durable, 5, 2);
        assert!(block.may_read(5, 6) && block.may_read(6, 6));
        assert!(block.may_differ(5, 6) && !block.may_read(0, 6));
    }

    #[test]
    fn a_failed_write_leaves_the_old_or_the_new() {
        let mut block = BlockHistory::settled(3, 1);
        block.begin(7, 5, 2);
        block.end(7, Outcome::Failed, 3, 3);
        assert!(block.may_read(3, 4) && block.may_read(5, 4) && !block.may_read(0, 4));
    }

    #[test]
    fn a_write_that_was_under_way_through_a_shrink_and_a_growth_may_be_there_or_not() {
        let mut gone = BlockHistory::settled(3, 1);
        gone.begin(7, 5, 2);
        let straggler = gone.under_way().next().expect("it is under way");
        let mut back = BlockHistory::settled(0, 6);
        back.rejoin(&straggler, 6);
        assert!(back.may_read(5, 7) && back.may_read(0, 7) && !back.may_read(3, 7));
        back.end(7, Outcome::Done, 8, 8);
        assert!(back.may_read(5, 9) && back.may_read(0, 9));
    }
}
