//! The requests of an Io stream that are not answered yet: at most as many as it has credits.

use crate::block::transfer::Command;

/// A table with a place for each credit. Allocated once.
#[derive(Debug)]
pub(super) struct Outstanding {
    places: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// No place from here on has ever been used: few requests at once make a short search.
    used_up_to: usize,
    /// The sum of the requests' buffers.
    bytes: usize,
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
            bytes: 0,
        }
    }

    pub(super) fn credits(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Whether the buffers of all requests are at most `bytes_max` long together.
    pub(super) const fn is_within(&self, bytes_max: usize) -> bool {
        self.bytes <= bytes_max
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
        self.bytes += command.buffer_length();
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
        self.bytes -= entry.command.buffer_length();
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

    #[test]
    fn bytes_are_held_until_their_request_ends() {
        let mut outstanding = Outstanding::new(4);
        let read = Command::read(0, 4096).expect("a length");
        let first = outstanding.begin(1, read).expect("a credit");
        assert!(outstanding.is_within(4096));
        let second = outstanding.begin(2, read).expect("a credit");
        assert!(!outstanding.is_within(8191) && outstanding.is_within(8192));
        outstanding.end(first);
        outstanding.end(second);
        assert!(outstanding.is_within(0));
    }
}
