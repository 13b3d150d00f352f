//! What a controller has to tell its caller.

use std::collections::VecDeque;

use lode_nvme_spec::{AsyncEvent, EventType};

use crate::error::Failure;
use crate::stats::ControllerStats;

/// Something that happened to a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// The controller sent an asynchronous event; its log page is being read.
    Async(AsyncEvent),
    /// The namespaces were identified anew.
    NamespacesChanged,
    /// A fresh health log is there.
    HealthRead,
    /// A fresh error log is there.
    ErrorLogRead,
    /// Fewer queue pairs were granted than asked for.
    FewerQueues {
        /// Asked for.
        asked: u16,
        /// Granted.
        granted: u16,
    },
    /// A reset of a working controller has begun.
    Resetting {
        /// Why.
        cause: Failure,
    },
    /// The controller works again after a reset.
    Recovered,
    /// The controller failed for good.
    Gone {
        /// Why.
        failure: Failure,
    },
}

/// The events that were not taken yet; the oldest go when there are too many.
#[derive(Debug)]
pub(super) struct EventLog {
    events: VecDeque<ControllerEvent>,
}

impl EventLog {
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::with_capacity(EVENTS_MAX),
        }
    }

    pub(super) fn push(&mut self, event: ControllerEvent, stats: &mut ControllerStats) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            stats.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    pub(super) fn take(&mut self) -> Option<ControllerEvent> {
        self.events.pop_front()
    }
}

/// Counts `event` by its type.
pub(super) const fn count(event: AsyncEvent, stats: &mut ControllerStats) {
    match event.event {
        EventType::Error(_) => stats.error_events += 1,
        EventType::Health(_) => stats.health_events += 1,
        EventType::Notice(_) => stats.notice_events += 1,
        EventType::Other { .. } => stats.other_events += 1,
    }
}

const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_go_first_and_are_counted() {
        let mut stats = ControllerStats::default();
        let mut log = EventLog::new();
        log.push(ControllerEvent::Recovered, &mut stats);
        for _ in 0..EVENTS_MAX {
            log.push(ControllerEvent::HealthRead, &mut stats);
        }
        assert_eq!(stats.events_dropped, 1);
        assert_eq!(log.take(), Some(ControllerEvent::HealthRead));
        assert_eq!(std::iter::from_fn(|| log.take()).count(), EVENTS_MAX - 1);
    }
}
