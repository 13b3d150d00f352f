//! A shard among others: the pools that live elsewhere, and the letters between cores.

use lode_block::BlockDevice;
use lode_units::CoreId;

use super::Shard;
use crate::control::{Asker, ControlError, ControlReply, ControlRequest, PoolStatus};
use crate::core::ShardCore;
use crate::error::IoError;
use crate::guest::PoolGuest;
use crate::host::PoolHost;
use crate::port::{Body, Errand, GuestSpec, PeerIndex, Port};
use crate::request::{PoolIndex, Token};

impl<D: BlockDevice> Shard<D> {
    /// Connects this shard to that of another core. Done at the start, on both sides.
    ///
    /// # Panics
    /// When it is connected already, or there are more cores than
    /// [`CORES_MAX`](lode_units::limits::CORES_MAX).
    pub fn connect(&mut self, peer: CoreId, port: Box<dyn Port>) {
        self.core.peers.add(peer, port);
    }

    /// What other cores have to know of a pool that lives here; `None` until it serves.
    #[must_use]
    pub fn guest_spec(&self, pool: PoolIndex) -> Option<GuestSpec> {
        self.host(pool)?.guest_spec()
    }

    /// Takes a pool that lives on another core as a guest, at the place that it has there.
    /// `devices` are this core's own ways to its devices, in the order in which they were attached
    /// at home; without any, everything is sent home. Every memory of this shard must be mapped
    /// for the devices all the same.
    ///
    /// # Panics
    /// When the place is taken, or the home is not connected.
    pub fn attach_guest(&mut self, home: CoreId, spec: GuestSpec, devices: Vec<(String, D)>) {
        let position = usize::from(spec.index().0);
        let peer = self.core.peers.find(home).expect("the home is connected");
        if position >= self.guests.len() {
            self.guests.resize_with(position + 1, || None);
        }
        let is_free = self.host(spec.index()).is_none() && self.guests[position].is_none();
        assert!(is_free, "a pool has the same place on every core");
        self.guests[position] = Some(PoolGuest::new(spec, peer, devices));
    }

    /// Begins to take a guest off: new requests to it are refused, those under way end.
    pub fn close_guest(&mut self, pool: PoolIndex) {
        if let Some(Some(guest)) = self.guests.get_mut(usize::from(pool.0)) {
            guest.close();
        }
    }

    /// Takes a closed guest off and gives its devices back; `None` while something of it is under
    /// way, or when there is no such guest. The pool's home lets go of it after all its guests.
    pub fn detach_guest(&mut self, pool: PoolIndex) -> Option<Vec<D>> {
        let slot = self.guests.get_mut(usize::from(pool.0))?;
        if !slot.as_ref()?.is_closed() {
            return None;
        }
        slot.take().map(|guest| guest.into_devices(&self.core))
    }

    /// Reads what other cores have sent, and goes on with what had to wait for a slot. Returns how
    /// much there was.
    #[inline]
    pub(super) fn receive(&mut self) -> usize {
        let mut found = 0;
        for peer in self.core.peers.indices() {
            for _ in 0..LETTERS_PER_POLL {
                let Some(body) = self.core.peers.receive(peer) else {
                    break;
                };
                self.read(peer, body);
                found += 1;
            }
            while let Some(errand) = self.core.peers.take_waiting(peer) {
                if let Err(errand) = self.run_errand(peer, errand) {
                    self.core.peers.keep_first(peer, errand);
                    break;
                }
                found += 1;
            }
        }
        found
    }

    fn read(&mut self, peer: PeerIndex, body: Body) {
        match body {
            Body::Request(errand) => self.core.peers.keep(peer, errand),
            Body::Done(answer) => {
                if let Some((guest, core)) = self.guest_at(answer.pool) {
                    guest.answered(answer, core);
                }
            }
            Body::Recall(recall) => match self.guest_at(recall.volume.pool) {
                Some((guest, core)) => guest.recall(recall, core),
                None => {
                    let (pool, serial) = (recall.volume.pool, recall.serial);
                    self.core.peers.post(peer, Body::Recalled { pool, serial });
                }
            },
            Body::Recalled { pool, serial } => {
                if let Some((host, core)) = self.host_at(pool) {
                    host.recalled(serial, core);
                }
            }
            Body::RecallPool { pool } => {
                if let Some((guest, _)) = self.guest_at(pool) {
                    guest.recall_pool();
                }
            }
            Body::Control { token, request } => self.control_for(peer, token, *request),
            Body::ControlDone { token, result } => {
                self.core.answer(Asker::Client(token), result);
            }
            Body::ListPools { listing } => {
                let pools = self.hosts().map(PoolHost::status).collect();
                self.core.peers.post(peer, Body::Pools { listing, pools });
            }
            Body::Pools { listing, pools } => {
                if let Some((token, pools)) = self.listings.add(listing, pools) {
                    let result = Box::new(Ok(ControlReply::Pools(pools)));
                    self.core.answer(Asker::Client(token), result);
                }
            }
        }
    }

    /// Carries an errand out, or lets it wait for its turn.
    fn run_errand(&mut self, peer: PeerIndex, errand: Errand) -> Result<(), Errand> {
        let pool = errand.request.volume.pool;
        if !self.core.is_uncontended() {
            return self.core.room.queue_errand(peer, errand, self.core.now);
        }
        if let Some((host, core)) = self.host_at(pool) {
            host.charge(&errand, core.now);
            host.run_errand(peer, errand, core);
        } else {
            let answer = errand.refused(IoError::UnknownVolume);
            self.core.peers.post(peer, Body::Done(answer));
        }
        Ok(())
    }

    /// Carries out a control request that another core sent, for a pool that lives here.
    fn control_for(&mut self, peer: PeerIndex, token: Token, request: ControlRequest) {
        let asker = Asker::Peer(peer, token);
        match self.find(&request) {
            Ok(position) => match self.pools.get_mut(position) {
                Some(Some(host)) => host.control(asker, request, &mut self.core),
                _ => self
                    .core
                    .answer(asker, Box::new(Err(ControlError::StaleHandle))),
            },
            Err(error) => self.core.answer(asker, Box::new(Err(error))),
        }
    }

    /// Carries out a control request for the pool at `position`, or sends it home.
    pub(super) fn control_at(&mut self, position: usize, token: Token, request: ControlRequest) {
        if let Some(Some(host)) = self.pools.get_mut(position) {
            host.control(Asker::Client(token), request, &mut self.core);
        } else if let Some(Some(guest)) = self.guests.get(position) {
            let request = Box::new(request);
            let body = Body::Control { token, request };
            self.core.peers.post(guest.home(), body);
        } else {
            self.core.answer(
                Asker::Client(token),
                Box::new(Err(ControlError::StaleHandle)),
            );
        }
    }

    /// Describes every pool: those that live here, and what their homes say of the others.
    pub(super) fn list_pools(&mut self, token: Token) {
        let mut homes: Vec<_> = self.guests().map(PoolGuest::home).collect();
        homes.sort_unstable();
        homes.dedup();
        let pools: Vec<_> = self.hosts().map(PoolHost::status).collect();
        if homes.is_empty() {
            let result = Box::new(Ok(ControlReply::Pools(pools)));
            self.core.answer(Asker::Client(token), result);
            return;
        }
        let listing = self.listings.begin(token, pools, homes.len());
        for home in homes {
            self.core.peers.post(home, Body::ListPools { listing });
        }
    }

    fn guest_at(&mut self, pool: PoolIndex) -> Option<(&mut PoolGuest<D>, &mut ShardCore)> {
        let guest = self.guests.get_mut(usize::from(pool.0))?.as_mut()?;
        Some((guest, &mut self.core))
    }

    fn host_at(&mut self, pool: PoolIndex) -> Option<(&mut PoolHost<D>, &mut ShardCore)> {
        let host = self.pools.get_mut(usize::from(pool.0))?.as_mut()?;
        Some((host, &mut self.core))
    }
}

/// Lists of pools that are being gathered from several cores.
#[derive(Debug, Default)]
pub(super) struct Listings {
    last: u32,
    running: Vec<Listing>,
}

#[derive(Debug)]
struct Listing {
    number: u32,
    token: Token,
    /// Cores that have not answered.
    outstanding: usize,
    pools: Vec<PoolStatus>,
}

impl Listings {
    fn begin(&mut self, token: Token, pools: Vec<PoolStatus>, outstanding: usize) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.running.push(Listing {
            number: self.last,
            token,
            outstanding,
            pools,
        });
        self.last
    }

    /// Takes one core's part; the whole, in the order of the pools' places, when it was the last.
    fn add(&mut self, number: u32, pools: Vec<PoolStatus>) -> Option<(Token, Vec<PoolStatus>)> {
        let position = self
            .running
            .iter()
            .position(|listing| listing.number == number)?;
        let listing = &mut self.running[position];
        listing.pools.extend(pools);
        listing.outstanding -= 1;
        if listing.outstanding > 0 {
            return None;
        }
        let mut whole = self.running.swap_remove(position);
        whole.pools.sort_by_key(|pool| pool.index);
        Some((whole.token, whole.pools))
    }
}

/// The most letters of one peer that are read before the devices are looked at.
const LETTERS_PER_POLL: usize = 256;
