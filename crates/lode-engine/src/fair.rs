//! A queue that gives the volumes which wait in it equal turns, whatever each has queued: deficit
//! round robin.
//!
//! ```text
//!  ring of flows:  volume a ─► volume b ─► volume c ─► (a)
//!                  │ items     │ items     │ items          in the order of their arrival
//! ```
//! A flow's turn gives it a quantum of bytes; it takes items as long as their cost is covered, and
//! keeps what is left for its next turn. A flow exists while it has items. All memory is made at
//! the start; pushing and taking do not allocate.

use crate::request::VolumeHandle;
use crate::throttle::Reservation;

/// Items that wait, by volume.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    items: Vec<Item<T>>,
    free_item: Link,
    flows: Vec<Flow>,
    free_flow: Link,
    /// The first flow of each hash value.
    buckets: Vec<Link>,
    /// The flow whose turn it is, and the one whose turn comes last.
    turn: Link,
    last: Link,
    length: usize,
    flow_count: usize,
    flow_length_max: usize,
}

/// What a flow keeps about its first item.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    pub(crate) reservation: Option<Reservation>,
}

/// Why an item was not queued; it is given back.
#[derive(Debug)]
pub(crate) enum Refused<T> {
    /// The queue has no place left.
    Full(T),
    /// The volume has as many items queued as one may have.
    FlowFull(T),
}

type Link = Option<u16>;

#[derive(Debug)]
struct Item<T> {
    value: Option<T>,
    cost: u32,
    next: Link,
}

#[derive(Debug)]
struct Flow {
    volume: VolumeHandle,
    first: Link,
    last: Link,
    length: usize,
    /// What its items cost together.
    cost: u64,
    deficit: u32,
    has_turn: bool,
    gate: Gate,
    next_in_ring: Link,
    next_in_bucket: Link,
}

impl<T> FairQueue<T> {
    /// A queue with places for `capacity` items, at most 65535, of which one volume takes at most
    /// `flow_length_max`.
    pub(crate) fn new(capacity: usize, flow_length_max: usize) -> Self {
        let last = u16::try_from(capacity).expect("a queue has at most 65535 places");
        let next = |index: u16| (index + 1 < last).then_some(index + 1);
        let item = |index| Item {
            value: None,
            cost: 0,
            next: next(index),
        };
        let flow = |index| Flow {
            next_in_ring: next(index),
            ..Flow::VACANT
        };
        Self {
            items: (0..last).map(item).collect(),
            free_item: (capacity > 0).then_some(0),
            flows: (0..last).map(flow).collect(),
            free_flow: (capacity > 0).then_some(0),
            buckets: vec![None; capacity.next_power_of_two().min(BUCKETS_MAX)],
            turn: None,
            last: None,
            length: 0,
            flow_count: 0,
            flow_length_max,
        }
    }

    /// Items queued.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// Whether no item is queued.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many items of a volume are queued, and how many bytes they cost.
    pub(crate) fn load(&self, volume: VolumeHandle) -> (usize, u64) {
        self.find(volume).map_or((0, 0), |flow| {
            let flow = &self.flows[usize::from(flow)];
            (flow.length, flow.cost)
        })
    }

    /// Queues an item behind those of its volume. `length_bytes` is what it moves.
    pub(crate) fn push(
        &mut self,
        volume: VolumeHandle,
        length_bytes: u64,
        value: T,
    ) -> Result<(), Refused<T>> {
        let Some(index) = self.free_item else {
            return Err(Refused::Full(value));
        };
        let flow = self.find(volume).unwrap_or_else(|| self.open(volume));
        if self.flow(flow).length >= self.flow_length_max {
            return Err(Refused::FlowFull(value));
        }
        let item = &mut self.items[usize::from(index)];
        self.free_item = item.next.take();
        item.value = Some(value);
        item.cost = cost_of(length_bytes);
        let flow = self.flow(flow);
        flow.length += 1;
        flow.cost += u64::from(cost_of(length_bytes));
        match flow.last.replace(index) {
            Some(before) => self.items[usize::from(before)].next = Some(index),
            None => flow.first = Some(index),
        }
        self.length += 1;
        Ok(())
    }

    /// Takes the item whose turn it is. `None` when the queue is empty.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_where(|_, _, _| true)
    }

    /// Takes the next item that `may` lets go. It is asked about the first item of a flow, whose
    /// gate it may change; a flow whose first item may not go misses its turn. `None` when no
    /// flow's may.
    pub(crate) fn pop_where(
        &mut self,
        mut may: impl FnMut(&mut Gate, VolumeHandle, &T) -> bool,
    ) -> Option<T> {
        let mut refused = 0;
        while refused < self.flow_count {
            let index = self.turn?;
            let flow = &mut self.flows[usize::from(index)];
            let first = &self.items[usize::from(flow.first?)];
            if !may(&mut flow.gate, flow.volume, first.value.as_ref()?) {
                // Turns that it could not use must not add up.
                flow.deficit = 0;
                refused += 1;
                self.rotate();
                continue;
            }
            refused = 0;
            if !std::mem::replace(&mut flow.has_turn, true) {
                flow.deficit += QUANTUM_BYTES;
            }
            if flow.deficit < first.cost {
                self.rotate();
                continue;
            }
            flow.deficit -= first.cost;
            return self.take_first(index);
        }
        None
    }

    /// Ends the turn of the flow that has it.
    fn rotate(&mut self) {
        let (Some(turn), Some(last)) = (self.turn, self.last) else {
            return;
        };
        let flow = self.flow(turn);
        flow.has_turn = false;
        if turn == last {
            return;
        }
        self.turn = self.flow(turn).next_in_ring.take();
        self.flow(last).next_in_ring = Some(turn);
        self.last = Some(turn);
    }

    /// Takes the first item of the flow whose turn it is.
    fn take_first(&mut self, flow_index: u16) -> Option<T> {
        let flow = &mut self.flows[usize::from(flow_index)];
        let index = flow.first?;
        let item = &mut self.items[usize::from(index)];
        let value = item.value.take();
        flow.first = std::mem::replace(&mut item.next, self.free_item);
        flow.length -= 1;
        flow.cost -= u64::from(item.cost);
        flow.gate = Gate::default();
        self.free_item = Some(index);
        self.length -= 1;
        if self.flow(flow_index).first.is_none() {
            self.close(flow_index);
        }
        value
    }

    fn find(&self, volume: VolumeHandle) -> Link {
        let mut link = self.buckets[self.bucket(volume)];
        while let Some(index) = link {
            let flow = &self.flows[usize::from(index)];
            if flow.volume == volume {
                return link;
            }
            link = flow.next_in_bucket;
        }
        None
    }

    /// Makes a flow; its turn comes last. There is one: a place for an item is free, and each flow
    /// holds an item.
    fn open(&mut self, volume: VolumeHandle) -> u16 {
        let index = self.free_flow.expect("as many flows as items");
        let bucket = self.bucket(volume);
        let next_in_bucket = self.buckets[bucket].replace(index);
        self.free_flow = self.flow(index).next_in_ring.take();
        *self.flow(index) = Flow {
            volume,
            next_in_bucket,
            ..Flow::VACANT
        };
        match self.last.replace(index) {
            Some(last) => self.flow(last).next_in_ring = Some(index),
            None => self.turn = Some(index),
        }
        self.flow_count += 1;
        index
    }

    /// Removes the flow whose turn it is, which has no items any more.
    fn close(&mut self, index: u16) {
        let bucket = self.bucket(self.flows[usize::from(index)].volume);
        let next = self.flow(index).next_in_bucket;
        if self.buckets[bucket] == Some(index) {
            self.buckets[bucket] = next;
        } else {
            let mut link = self.buckets[bucket];
            while let Some(at) = link {
                link = self.flow(at).next_in_bucket;
                if link == Some(index) {
                    self.flow(at).next_in_bucket = next;
                    break;
                }
            }
        }
        let free = self.free_flow.replace(index);
        self.turn = std::mem::replace(&mut self.flow(index).next_in_ring, free);
        if self.turn.is_none() {
            self.last = None;
        }
        self.flow_count -= 1;
    }

    fn flow(&mut self, index: u16) -> &mut Flow {
        &mut self.flows[usize::from(index)]
    }

    fn bucket(&self, volume: VolumeHandle) -> usize {
        let spread = usize::from(volume.slot) ^ (usize::from(volume.pool.0) << 4);
        spread & (self.buckets.len() - 1)
    }
}

impl Flow {
    const VACANT: Self = Self {
        volume: VolumeHandle::NONE,
        first: None,
        last: None,
        length: 0,
        cost: 0,
        deficit: 0,
        has_turn: false,
        gate: Gate { reservation: None },
        next_in_ring: None,
        next_in_bucket: None,
    };
}

/// What an item costs its flow: its bytes, and as much as a short transfer for the command itself.
fn cost_of(length_bytes: u64) -> u32 {
    let length = u32::try_from(length_bytes).unwrap_or(u32::MAX);
    length.min(COST_MAX_BYTES) + COMMAND_COST_BYTES
}

/// What a command costs beside its bytes.
const COMMAND_COST_BYTES: u32 = 4096;
/// The longest transfer; what moves no data, however long its range, costs no more.
const COST_MAX_BYTES: u32 = 1 << 20;
/// What a turn gives: two requests of 4 KiB.
const QUANTUM_BYTES: u32 = 16 << 10;
const BUCKETS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
