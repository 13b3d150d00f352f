//! The gateway's state on one core, shared by the tasks of that core and its poller.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use lode_block::BufferPool;
use lode_bus::DmaBuffer;
use lode_engine::{Completion, ControlError, ControlReply, ControlRequest, DataRequest, Token};
use lode_units::limits::CORE_REQUESTS_MAX;
use lode_units::{Clock, CoreId, Instant, MonotonicClock};

use crate::gateway::buffers::Buffers;
use crate::gateway::error::RefuseReason;
use crate::gateway::session::Sessions;
use crate::gateway::settled::{STALE_TURNS, Settled, data_length};
use crate::gateway::slots::{Delivery, Ending, Owner, SlotKey, Slots};
use crate::hosted::Hosted;
use crate::stats::CoreStats;

/// The most requests that wait at the gateway or are in the host.
pub const REQUESTS_MAX: usize = 2 * CORE_REQUESTS_MAX;

/// The most callers that wait for a buffer.
pub const BUFFER_WAITS_MAX: usize = 1024;

/// The most sessions open at once on a core.
pub const SESSIONS_MAX: usize = 1024;

/// An answer that nobody has fetched yet.
#[derive(Debug)]
pub(super) enum RawAnswer {
    Data(Settled),
    Control(Result<ControlReply, ControlError>),
}

/// The gateway of one core.
#[derive(Debug)]
pub(crate) struct Desk {
    core: CoreId,
    clock: MonotonicClock,
    stats: Arc<CoreStats>,
    state: RefCell<State>,
    poller: RefCell<Option<Waker>>,
    woken_at: Cell<Option<Instant>>,
    is_stopping: Cell<bool>,
}

/// What is to be done once the end of a request has been taken in.
enum Settlement {
    Wake(Waker),
    Nothing,
    /// Nobody wanted the answer: its buffer, if it had one, is for those who wait.
    BufferBack,
}

impl Settlement {
    fn of(waker: Option<Waker>) -> Self {
        waker.map_or(Self::Nothing, Self::Wake)
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) slots: Slots,
    pub(super) sessions: Sessions,
    pub(super) buffers: Buffers,
    data: VecDeque<DataRequest>,
    control: VecDeque<(Token, ControlRequest)>,
    /// Turns of the poller.
    turn: u64,
    /// Until which turn the poller stays awake for the sake of those who wait for a buffer.
    awake_until_turn: u64,
}

thread_local! {
    static DESK: RefCell<Option<Rc<Desk>>> = const { RefCell::new(None) };
}

impl Desk {
    /// Opens the gateway of this thread.
    pub(crate) fn open(
        core: CoreId,
        clock: MonotonicClock,
        pool: BufferPool,
        stats: Arc<CoreStats>,
    ) -> Rc<Self> {
        let desk = Rc::new(Self {
            core,
            clock,
            stats,
            state: RefCell::new(State {
                slots: Slots::new(REQUESTS_MAX_U32),
                sessions: Sessions::new(SESSIONS_MAX_U32),
                buffers: Buffers::new(pool, BUFFER_WAITS_MAX_U32),
                data: VecDeque::with_capacity(REQUESTS_MAX),
                control: VecDeque::with_capacity(REQUESTS_MAX),
                turn: 0,
                awake_until_turn: 0,
            }),
            poller: RefCell::new(None),
            woken_at: Cell::new(None),
            is_stopping: Cell::new(false),
        });
        DESK.set(Some(Rc::clone(&desk)));
        desk
    }

    /// Closes the gateway of this thread: whatever still holds a buffer keeps it to itself.
    pub(crate) fn close() {
        drop(DESK.take());
    }

    /// The gateway of this thread, if it is a core.
    pub(super) fn here() -> Option<Rc<Self>> {
        DESK.try_with(|desk| desk.try_borrow().ok()?.clone())
            .ok()
            .flatten()
    }

    /// The gateway of this thread.
    ///
    /// # Panics
    /// When this thread is no core.
    pub(super) fn current() -> Rc<Self> {
        Self::here().expect("the gateway is used on the thread of a core")
    }

    /// The gateway of core `core`.
    ///
    /// # Panics
    /// When this thread is not that core.
    pub(super) fn of(core: CoreId) -> Rc<Self> {
        let desk = Self::current();
        assert!(
            desk.core == core,
            "what was begun on core {core} was continued on core {}",
            desk.core
        );
        desk
    }

    pub(super) const fn core(&self) -> CoreId {
        self.core
    }

    pub(super) fn stats(&self) -> &CoreStats {
        &self.stats
    }

    /// Runs `action` on the state. It must not run foreign code (wakers, destructors of buffers).
    pub(super) fn with<R>(&self, action: impl FnOnce(&mut State) -> R) -> R {
        action(&mut self.state.borrow_mut())
    }

    /// Queues a data request.
    pub(super) fn submit(
        &self,
        mut request: DataRequest,
        owner: Owner,
    ) -> Result<SlotKey, (RefuseReason, DataRequest)> {
        match self.admit(owner, data_length(&request)) {
            Ok(key) => {
                request.token = key.token();
                self.with(|state| state.data.push_back(request));
                self.wake_poller();
                Ok(key)
            }
            Err(reason) => Err((reason, request)),
        }
    }

    /// Queues a control request. It is dropped when it is refused.
    pub(super) fn control(&self, request: ControlRequest) -> Result<SlotKey, RefuseReason> {
        let key = self.admit(Owner::Future, 0)?;
        self.with(|state| state.control.push_back((key.token(), request)));
        self.wake_poller();
        Ok(key)
    }

    fn admit(&self, owner: Owner, data_length: usize) -> Result<SlotKey, RefuseReason> {
        if self.is_stopping.get() {
            return Err(RefuseReason::Stopping);
        }
        let key = self.with(|state| state.slots.take(owner, data_length));
        key.ok_or_else(|| {
            self.stats.requests_refused.increment();
            RefuseReason::Full {
                requests_max: REQUESTS_MAX,
            }
        })
    }

    /// Hands queued requests to `hosted` until it is full or none is left. Returns how many.
    pub(crate) fn feed<H: Hosted>(&self, hosted: &mut H) -> usize {
        self.relieve();
        let mut state = self.state.borrow_mut();
        let mut fed = 0;
        while let Some((token, request)) = state.control.pop_front() {
            if let Err(request) = hosted.control(token, request) {
                state.control.push_front((token, request));
                break;
            }
            fed += 1;
        }
        while let Some(request) = state.data.pop_front() {
            if let Err(request) = hosted.submit(request) {
                state.data.push_front(request);
                break;
            }
            fed += 1;
        }
        let waiting = state.data.len() + state.control.len();
        self.stats.requests_waiting.set(waiting as u64);
        self.stats.requests.set(state.slots.under_way() as u64);
        fed
    }

    /// Begins a turn of the poller. While somebody waits for a buffer, those that lie in answers
    /// which nobody fetches go back from time to time: a client that does not read its answers
    /// must not keep the core's buffers from the others.
    fn relieve(&self) {
        let is_relief = self.with(|state| {
            state.turn += 1;
            let is_relief = state.turn.is_multiple_of(STALE_TURNS) && state.buffers.is_short();
            if is_relief {
                state.relieve();
            }
            is_relief
        });
        if is_relief {
            self.grant_buffers();
        }
    }

    /// Whether the poller must go on turning although nothing completes: buffers may have to be
    /// taken from answers. Requests that wait do not count: they wait because the host is full,
    /// and go on when it has ended another.
    pub(crate) fn needs_turns(&self) -> bool {
        self.with(|state| state.buffers.is_short() && state.turn < state.awake_until_turn)
    }

    /// Somebody waits for a buffer: the poller stays awake for a while, to relieve them.
    pub(super) fn note_shortage(&self) {
        self.with(State::stay_awake);
        self.wake_poller();
    }

    /// Requests that the host has not ended.
    pub(crate) fn requests(&self) -> usize {
        self.with(|state| state.slots.under_way())
    }

    /// Gives a completion to whoever waits for it.
    pub(crate) fn deliver(&self, completion: Completion) {
        let (token, ending) = match completion {
            Completion::Data(data) => (data.token, Ending::Data(data)),
            Completion::Control { token, result } => (token, Ending::Control(*result)),
        };
        match self.with(|state| state.settle(token, ending)) {
            Settlement::Wake(waker) => waker.wake(),
            Settlement::Nothing => {}
            Settlement::BufferBack => self.grant_buffers(),
        }
    }

    /// Takes a buffer back and serves who waits for one.
    pub(super) fn give_back(&self, buffer: DmaBuffer) {
        self.with(|state| state.buffers.give_back(buffer));
        self.grant_buffers();
    }

    /// Serves those who wait for a buffer, as far as there are any.
    pub(super) fn grant_buffers(&self) {
        while let Some(waker) = self.with(|state| state.buffers.grant()) {
            waker.wake();
        }
        self.show_lent();
    }

    /// Shows how many buffers are lent.
    pub(super) fn show_lent(&self) {
        self.with(|state| self.stats.buffers_lent.set(state.buffers.lent() as u64));
    }

    /// Refuses requests from now on; those under way go on.
    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
        self.wake_poller();
    }

    /// Whether the core is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Ends the poller's sleep, if it sleeps.
    pub(crate) fn wake_poller(&self) {
        if let Some(waker) = self.poller.take() {
            self.woken_at.set(Some(self.clock.now()));
            waker.wake();
        }
    }

    /// The poller leaves its waker before it sleeps.
    pub(crate) fn set_poller(&self, waker: Waker) {
        self.poller.replace(Some(waker));
    }

    /// The poller has woken: since when it should have, if one of this core's tasks woke it.
    pub(crate) fn clear_poller(&self) -> Option<Instant> {
        self.poller.replace(None);
        self.woken_at.take()
    }
}

impl State {
    /// Takes in the end of a request.
    fn settle(&mut self, token: Token, ending: Ending) -> Settlement {
        if self.buffers.is_short() {
            self.stay_awake();
        }
        let unwanted = match self
            .slots
            .answer(SlotKey::of_token(token), ending, self.turn)
        {
            Delivery::Kept(waker) => return Settlement::of(waker),
            Delivery::Session {
                session,
                mark,
                answer: RawAnswer::Data(settled),
            } => match self.sessions.deliver(session, mark, settled) {
                Ok(waker) => return Settlement::of(waker),
                Err(closed) => RawAnswer::Data(closed),
            },
            Delivery::Session {
                answer: RawAnswer::Control(_),
                ..
            } => unreachable!("a session submits data requests only"),
            Delivery::Unwanted(answer) => answer,
        };
        self.discard(unwanted);
        Settlement::BufferBack
    }

    fn stay_awake(&mut self) {
        self.awake_until_turn = self.turn + 4 * STALE_TURNS;
    }

    fn relieve(&mut self) {
        let Self {
            slots,
            sessions,
            buffers,
            turn,
            ..
        } = self;
        for settled in sessions.answers() {
            settled.relieve(*turn, buffers);
        }
        for answer in slots.answers() {
            if let RawAnswer::Data(settled) = answer {
                settled.relieve(*turn, buffers);
            }
        }
    }

    /// Drops an answer that nobody wants; its buffer goes back to the pool.
    pub(super) fn discard(&mut self, answer: RawAnswer) {
        if let RawAnswer::Data(settled) = answer
            && let Some(buffer) = settled.memory.into_buffer()
        {
            self.buffers.give_back(buffer);
        }
    }
}

const REQUESTS_MAX_U32: u32 = 2 * 4096;
const BUFFER_WAITS_MAX_U32: u32 = 1024;
const SESSIONS_MAX_U32: u32 = 1024;
const _: () = assert!(REQUESTS_MAX_U32 as usize == REQUESTS_MAX);
const _: () = assert!(BUFFER_WAITS_MAX_U32 as usize == BUFFER_WAITS_MAX);
const _: () = assert!(SESSIONS_MAX_U32 as usize == SESSIONS_MAX);
