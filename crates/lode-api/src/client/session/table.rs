//! The requests of one session that have not been answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::client::failure::Failure;
use crate::v1::io_response::Result as Answer;

/// One slot for each credit, and the failure that ended the stream.
///
/// A tag is a slot's position and its generation: an answer that comes twice, or to a tag that
/// was never given, finds no slot waiting for it.
#[derive(Debug)]
pub(crate) struct Table {
    state: Mutex<State>,
    credits: Semaphore,
    credit_count: u32,
    /// Told of each request that begins, for a driver that wants to look out for its answer.
    begun: Notify,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nobody's.
    Free,
    /// Asked; its future may have been polled.
    Waiting(Option<Waker>),
    /// Asked; its future was dropped. The server still owes the answer.
    Abandoned,
    /// Answered; its future has not taken the answer yet.
    Answered(Result<Answer, Failure>),
}

impl Table {
    /// A table for at most `credits` outstanding requests.
    pub(crate) fn new(credits: u32) -> Self {
        let slot = || Slot {
            generation: 0,
            stage: Stage::Free,
        };
        Self {
            state: Mutex::new(State {
                slots: (0..credits).map(|_| slot()).collect(),
                free: (0..credits).rev().collect(),
                failure: None,
            }),
            credits: Semaphore::new(usize::try_from(credits).expect("32 bits fit a usize")),
            credit_count: credits,
            begun: Notify::new(),
        }
    }

    /// How many requests may be outstanding.
    pub(crate) const fn credit_count(&self) -> u32 {
        self.credit_count
    }

    /// Waits for a credit and takes a slot with it.
    pub(crate) async fn reserve(&self) -> Result<Pending<'_>, Failure> {
        match self.credits.acquire().await {
            Ok(credit) => self.take_slot(credit),
            Err(_) => Err(self.failure()),
        }
    }

    fn take_slot(&self, credit: SemaphorePermit<'_>) -> Result<Pending<'_>, Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        credit.forget();
        let index = state.free.pop().expect("a credit is a free slot");
        let slot = state.slot(index);
        slot.stage = Stage::Waiting(None);
        self.begun.notify_one();
        Ok(Pending {
            table: self,
            index,
            generation: slot.generation,
        })
    }

    /// Takes the answer to `tag` in.
    ///
    /// # Errors
    /// When no request with this tag is outstanding: the server broke the protocol.
    pub(crate) fn answer(&self, tag: u64, answer: Result<Answer, Failure>) -> Result<(), Failure> {
        let mut state = self.lock();
        let Some((index, slot)) = state.find(tag) else {
            return Err(Failure::protocol(format!(
                "the server answered tag {tag:#x}, which is not outstanding"
            )));
        };
        match std::mem::replace(&mut slot.stage, Stage::Free) {
            Stage::Waiting(waker) => {
                slot.stage = Stage::Answered(answer);
                drop(state);
                waker.inspect(Waker::wake_by_ref);
            }
            Stage::Abandoned => {
                state.release(index);
                drop(state);
                self.credits.add_permits(1);
            }
            Stage::Free | Stage::Answered(_) => unreachable!("find() returns outstanding slots"),
        }
        Ok(())
    }

    /// Ends the session: every outstanding and every later request fails with `failure`.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        for slot in &mut state.slots {
            if let Stage::Waiting(waker) = &mut slot.stage {
                wakers.extend(waker.take());
                slot.stage = Stage::Answered(Err(failure.clone()));
            }
        }
        state.failure.get_or_insert(failure);
        drop(state);
        self.credits.close();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether any request is outstanding.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.free.len() == state.slots.len()
    }

    /// Waits for a request to begin, if none has since this was last asked.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Waits until no request is outstanding, or the session has failed.
    pub(crate) async fn idle(&self) {
        if let Ok(all) = self.credits.acquire_many(self.credit_count).await {
            drop(all);
        }
    }

    fn failure(&self) -> Failure {
        let state = self.lock();
        let failure = state.failure.clone();
        failure.unwrap_or_else(|| Failure::connection_lost("the session is closed"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock leaves the table half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn slot(&mut self, index: u32) -> &mut Slot {
        let index = usize::try_from(index).expect("32 bits fit a usize");
        &mut self.slots[index]
    }

    /// The slot that waits for the answer to `tag`.
    fn find(&mut self, tag: u64) -> Option<(u32, &mut Slot)> {
        let (generation, index) = split(tag);
        let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
        let is_outstanding = matches!(slot.stage, Stage::Waiting(_) | Stage::Abandoned);
        (is_outstanding && slot.generation == generation).then_some((index, slot))
    }

    fn release(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.stage = Stage::Free;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }
}

/// A request that has a slot. Completes with the answer; when dropped before, the slot stays
/// taken until the server has answered.
#[derive(Debug)]
#[must_use = "a request is asked and its answer awaited"]
pub(crate) struct Pending<'a> {
    table: &'a Table,
    index: u32,
    generation: u32,
}

impl Pending<'_> {
    /// The tag to ask with.
    pub(crate) fn tag(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Gives the slot back unasked.
    pub(crate) fn withdraw(self) {
        self.free(&mut self.table.lock());
    }

    fn free(&self, state: &mut State) {
        state.release(self.index);
        self.table.credits.add_permits(1);
    }
}

impl Future for Pending<'_> {
    type Output = Result<Answer, Failure>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.table.lock();
        let slot = state.slot(self.index);
        assert_eq!(slot.generation, self.generation, "a request completes once");
        match &mut slot.stage {
            Stage::Waiting(Some(waker)) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            Stage::Waiting(none) => {
                *none = Some(context.waker().clone());
                Poll::Pending
            }
            Stage::Answered(_) => {
                let stage = std::mem::replace(&mut slot.stage, Stage::Free);
                self.free(&mut state);
                match stage {
                    Stage::Answered(answer) => Poll::Ready(answer),
                    _ => unreachable!("matched above"),
                }
            }
            Stage::Free | Stage::Abandoned => unreachable!("the slot belongs to a live request"),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        let slot = state.slot(self.index);
        if slot.generation != self.generation {
            return;
        }
        match slot.stage {
            Stage::Waiting(_) => slot.stage = Stage::Abandoned,
            Stage::Answered(_) => self.free(&mut state),
            Stage::Free | Stage::Abandoned => {}
        }
    }
}

const fn split(tag: u64) -> (u32, u32) {
    let bytes = tag.to_be_bytes();
    let [g0, g1, g2, g3, i0, i1, i2, i3] = bytes;
    (
        u32::from_be_bytes([g0, g1, g2, g3]),
        u32::from_be_bytes([i0, i1, i2, i3]),
    )
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;
    use crate::v1::Durability;

    fn done() -> Result<Answer, Failure> {
        Ok(Answer::Durability(Durability::Data.into()))
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn reserve(table: &Table) -> Option<Result<Pending<'_>, Failure>> {
        match poll(std::pin::pin!(table.reserve())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_request_beyond_the_credits_waits_until_one_is_answered_and_taken() {
        let table = Table::new(1);
        let mut first = std::pin::pin!(reserve(&table).expect("a credit").expect("a slot"));
        assert!(reserve(&table).is_none());
        assert!(poll(first.as_mut()).is_pending());
        table.answer(first.tag(), done()).expect("outstanding");
        assert!(reserve(&table).is_none(), "the answer has not been taken");
        assert!(poll(first.as_mut()).is_ready());
        assert!(reserve(&table).is_some());
    }

    #[test]
    fn an_answer_that_comes_twice_or_to_an_unknown_tag_breaks_the_protocol() {
        let table = Table::new(2);
        let mut pending = std::pin::pin!(reserve(&table).expect("a credit").expect("a slot"));
        let tag = pending.tag();
        assert!(table.answer(tag ^ 1, done()).is_err());
        assert!(table.answer(u64::MAX, done()).is_err());
        table.answer(tag, done()).expect("outstanding");
        assert!(table.answer(tag, done()).is_err());
        assert!(poll(pending.as_mut()).is_ready());
        assert!(table.answer(tag, done()).is_err());
        let next = reserve(&table).expect("a credit").expect("a slot");
        assert_ne!(next.tag(), tag, "a tag is not used again at once");
    }

    #[test]
    fn a_dropped_request_keeps_its_credit_until_the_server_has_answered() {
        let table = Table::new(1);
        let pending = reserve(&table).expect("a credit").expect("a slot");
        let tag = pending.tag();
        drop(pending);
        assert!(!table.is_idle());
        assert!(reserve(&table).is_none());
        table.answer(tag, done()).expect("outstanding");
        assert!(table.is_idle());
        assert!(reserve(&table).is_some());
    }

    #[test]
    fn a_failed_session_fails_outstanding_waiting_and_later_requests() {
        let table = Table::new(1);
        let mut outstanding = std::pin::pin!(reserve(&table).expect("a credit").expect("a slot"));
        let mut waiting = std::pin::pin!(table.reserve());
        assert!(poll(waiting.as_mut()).is_pending());
        table.fail(Failure::connection_lost("gone"));
        table.fail(Failure::protocol(
            "a later failure does not cover the first",
        ));
        let Poll::Ready(Err(failure)) = poll(outstanding.as_mut()) else {
            panic!("the outstanding request has failed");
        };
        assert_eq!(failure.message, "gone");
        assert!(matches!(poll(waiting.as_mut()), Poll::Ready(Err(_))));
        let later = reserve(&table).expect("no waiting").expect_err("failed");
        assert_eq!(later.message, "gone");
    }

    #[test]
    fn a_withdrawn_request_gives_its_credit_back() {
        let table = Table::new(1);
        reserve(&table)
            .expect("a credit")
            .expect("a slot")
            .withdraw();
        assert!(table.is_idle());
        assert!(reserve(&table).is_some());
    }
}
