//! What happened in a run, in order. Kept only when asked for: a run that failed is played again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The last events of a run, and a digest of all of them.
#[derive(Clone, Debug)]
pub(crate) struct History {
    inner: Rc<RefCell<Inner>>,
}

#[derive(Debug)]
struct Inner {
    is_kept: bool,
    lines: VecDeque<String>,
    digest: u64,
}

impl History {
    pub(crate) fn new(is_kept: bool) -> Self {
        let inner = Inner {
            is_kept,
            lines: VecDeque::new(),
            digest: 0xCBF2_9CE4_8422_2325,
        };
        Self {
            inner: Rc::new(RefCell::new(inner)),
        }
    }

    /// Notes an event: `mark` tells it apart from others, `line` is how it reads.
    pub(crate) fn note(&self, mark: u64, line: impl FnOnce() -> String) {
        let mut inner = self.inner.borrow_mut();
        inner.digest = (inner.digest ^ mark).wrapping_mul(0x0000_0100_0000_01B3);
        if inner.is_kept {
            if inner.lines.len() == LINES_MAX {
                inner.lines.pop_front();
            }
            inner.lines.push_back(line());
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.inner.borrow().digest
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.inner.borrow().lines.iter().cloned().collect()
    }
}

const LINES_MAX: usize = 2000;
