//! The requests of an Io stream that are not answered yet: at most as many as it has credits.

use crate::block::transfer::Command;

/// A table with a place for each credit. Allocated once.
#[derive(Debug)]
pub(super) struct Outstanding {
    places: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// No place from here on has ever been used: few requests at once make a short search.
    used_up_to: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    command: Command,
}

impl Outstanding {
    pub(super) fn new(credits: usize) -> Self {
        Self {
            places: vec![None; credits],
            free: (0..credits).rev().collect(),
            used_up_to: 0,
        }
    }

    pub(super) fn credits(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Whether a request under that tag is not answered yet.
    pub(super) fn has_tag(&self, tag: u64) -> bool {
        self.places
            .iter()
            .take(self.used_up_to)
            .flatten()
            .any(|entry| entry.tag == tag)
    }

    /// Notes a request and returns its mark; `None` when no credit is left.
    pub(super) fn begin(&mut self, tag: u64, command: Command) -> Option<u64> {
        let place = self.free.pop()?;
        self.places[place] = Some(Entry { tag, command });
        self.used_up_to = self.used_up_to.max(place + 1);
        Some(place as u64)
    }

    /// Ends the request of that mark and returns its tag and what it was.
    ///
    /// # Panics
    /// When there is no such request.
    pub(super) fn end(&mut self, mark: u64) -> (u64, Command) {
        let place = usize::try_from(mark).expect("a mark is a place");
        let entry = self.places[place].take().expect("a request ends once");
        self.free.push(place);
        (entry.tag, entry.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_once_its_request_has_ended() {
        let mut outstanding = Outstanding::new(2);
        let first = outstanding.begin(7, Command::flush()).expect("a credit");
        let second = outstanding.begin(0, Command::flush()).expect("a credit");
        assert_eq!(outstanding.begin(8, Command::flush()), None);
        assert!(outstanding.has_tag(7) && outstanding.has_tag(0) && !outstanding.has_tag(8));
        assert_eq!(outstanding.end(first).0, 7);
        assert!(!outstanding.has_tag(7));
        assert!(outstanding.begin(7, Command::flush()).is_some());
        assert_eq!(outstanding.end(second).0, 0);
        assert!(!outstanding.is_empty());
    }
}
