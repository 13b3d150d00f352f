//! The other cores as a shard sees them: what is to be sent to them, and what came from them and
//! has to wait.

use std::collections::VecDeque;

use lode_units::CoreId;
use lode_units::limits::{CORE_REQUESTS_MAX, CORES_MAX};

use crate::port::{Body, Errand, Letter, PeerIndex, Port};

/// The cores that a shard is connected to.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    list: Vec<Peer>,
}

#[derive(Debug)]
struct Peer {
    core: CoreId,
    port: Box<dyn Port>,
    /// What the port has not taken yet.
    outbox: VecDeque<Letter>,
    /// Errands that found no free slot: what comes behind them is not held up by that. Bounded
    /// by the peer's own slots, each of which has one errand under way at most.
    waiting: VecDeque<Errand>,
}

impl Peers {
    /// Adds a core.
    ///
    /// # Panics
    /// When there are [`CORES_MAX`] already, or it is there.
    pub(crate) fn add(&mut self, core: CoreId, port: Box<dyn Port>) {
        assert!(self.list.len() + 1 < CORES_MAX, "there are few cores");
        assert!(self.find(core).is_none(), "a core is connected once");
        self.list.push(Peer {
            core,
            port,
            outbox: VecDeque::with_capacity(CORE_REQUESTS_MAX),
            waiting: VecDeque::with_capacity(CORE_REQUESTS_MAX),
        });
    }

    pub(crate) fn find(&self, core: CoreId) -> Option<PeerIndex> {
        let position = self.list.iter().position(|peer| peer.core == core)?;
        PeerIndex::try_from(position).ok()
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = PeerIndex> + use<> {
        (0..self.list.len()).filter_map(|position| PeerIndex::try_from(position).ok())
    }

    /// The next letter from a peer.
    #[inline]
    pub(crate) fn receive(&mut self, peer: PeerIndex) -> Option<Body> {
        let Letter(body) = self.list[usize::from(peer)].port.receive()?;
        Some(body)
    }

    /// Sends a letter with the next [`Peers::flush`], behind those that wait.
    pub(crate) fn post(&mut self, peer: PeerIndex, body: Body) {
        self.list[usize::from(peer)].outbox.push_back(Letter(body));
    }

    /// Keeps an errand until a slot is free.
    pub(crate) fn keep(&mut self, peer: PeerIndex, errand: Errand) {
        self.list[usize::from(peer)].waiting.push_back(errand);
    }

    /// Keeps an errand that was taken before its turn had come.
    pub(crate) fn keep_first(&mut self, peer: PeerIndex, errand: Errand) {
        self.list[usize::from(peer)].waiting.push_front(errand);
    }

    /// The errand of a peer that has waited longest.
    #[inline]
    pub(crate) fn take_waiting(&mut self, peer: PeerIndex) -> Option<Errand> {
        self.list[usize::from(peer)].waiting.pop_front()
    }

    /// Hands what was posted to the ports, as far as they take it.
    #[inline]
    pub(crate) fn flush(&mut self) {
        for peer in &mut self.list {
            let before = peer.outbox.len();
            while let Some(letter) = peer.outbox.pop_front() {
                if let Err(letter) = peer.port.send(letter) {
                    peer.outbox.push_front(letter);
                    break;
                }
            }
            if peer.outbox.len() < before {
                peer.port.flush();
            }
        }
    }

    /// Whether something waits to be sent or to be carried out.
    pub(crate) fn has_work(&self) -> bool {
        self.list
            .iter()
            .any(|peer| !peer.outbox.is_empty() || !peer.waiting.is_empty())
    }
}
