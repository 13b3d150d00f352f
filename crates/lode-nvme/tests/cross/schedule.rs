//! Random schedules of everything that can happen to a controller and two queues. Whatever the
//! order, each request ends exactly once, in bounded time, and the device does not touch its
//! memory afterwards.

use std::time::Duration;

use lode_block::{BlockDevice, Completion, ErrorKind, Operation};
use lode_nvme::{ControllerState, QueueOptions};
use lode_nvme_emu::DeviceFault;
use lode_units::{Instant, Random, SeededRandom};
use proptest::prelude::*;

use crate::rig::{Queue, Rig, RigSpec, transfer};

/// A request has its own buffer, which is its tag.
const BUFFERS: usize = 64;
const BUFFER_BYTES: usize = 4096;

/// What the test knows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    /// Nobody uses it, and nobody but the test may write to it: it is filled with this.
    Mine(u8),
    /// A request has it since then.
    InFlight(Instant),
}

struct Play {
    rig: Rig,
    random: SeededRandom,
    queues: Vec<Queue>,
    buffers: Vec<Buffer>,
    submitted: u64,
    ended: u64,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut spec = RigSpec::default();
        spec.emulator.shadow_doorbells = random.below(2) == 0;
        spec.emulator.disable_delay = Duration::from_millis(random.below(40));
        spec.emulator.enable_delay = Duration::from_millis(random.below(40));
        spec.driver.stable_after = Duration::from_millis(50);
        spec.driver.watch_interval = Duration::from_millis(5);
        let mut rig = spec.build().ready();
        let options = QueueOptions {
            entries: 40,
            command_timeout: Duration::from_millis(300),
            abort_timeout: Duration::from_millis(100),
            interrupt_vector: None,
        };
        let queues = vec![rig.open_with(options), rig.open_with(options)];
        let mut play = Self {
            rig,
            random,
            queues,
            buffers: vec![Buffer::Mine(0); BUFFERS],
            submitted: 0,
            ended: 0,
        };
        (0..BUFFERS).for_each(|index| play.reclaim(index));
        play
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..30 => self.submit(),
            30..45 => {
                let at = self.pick();
                self.queues[at].kick();
            }
            45..70 => self.poll(),
            70..95 => self.rig.tick(),
            95..97 => self.spoil(),
            97 => self.rig.emulator.clear_faults(),
            98 => self.rig.emulator.apply(DeviceFault::AllOnes(3)),
            _ => self.rig.emulator.apply(DeviceFault::FatalStatus),
        }
    }

    fn spoil(&mut self) {
        let rules = [
            "queue=io opcode=read count=1 -> drop",
            "queue=io opcode=read count=3 -> delay=150ms",
            "queue=io count=2 -> duplicate",
            "queue=io count=1 -> lose",
            "queue=io count=1 -> wrong_id",
            "queue=admin opcode=abort count=1 -> drop",
            "queue=admin opcode=identify count=1 -> status=0x006",
        ];
        let at = self.random.below(u64::try_from(rules.len()).expect("few"));
        self.rig.emulator.clear_faults();
        self.rig.fault(rules[usize::try_from(at).expect("few")]);
    }

    fn pick(&mut self) -> usize {
        usize::try_from(self.random.below(2)).expect("0 or 1")
    }

    fn submit(&mut self) {
        let at = self.pick();
        let free = |buffer: &Buffer| matches!(buffer, Buffer::Mine(_));
        let Some(index) = self.buffers.iter().position(free) else {
            return;
        };
        let data = self.rig.span(index * BUFFER_BYTES, 4096);
        let tag = u64::try_from(index).expect("few");
        let request = transfer(Operation::Read, tag, 8 * tag, 8, data);
        if self.queues[at].submit(request).is_ok() {
            self.submitted += 1;
            self.buffers[index] = Buffer::InFlight(self.rig.now);
        }
    }

    fn poll(&mut self) {
        let at = self.pick();
        let room = usize::try_from(self.random.below(8)).expect("few");
        let mut completions = Vec::with_capacity(room);
        self.queues[at].poll(self.rig.now, &mut completions);
        completions
            .iter()
            .for_each(|completion| self.end(completion));
    }

    fn end(&mut self, completion: &Completion) {
        let index = usize::try_from(completion.tag.0).expect("few");
        let Buffer::InFlight(since) = self.buffers[index] else {
            panic!("{completion:?} ended twice");
        };
        if let Err(error) = completion.result {
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Retry | ErrorKind::TimedOut | ErrorKind::Gone
                ),
                "{error:?}"
            );
        }
        let took = self.rig.now.saturating_duration_since(since);
        assert!(took < Duration::from_secs(60), "{took:?}");
        self.ended += 1;
        self.reclaim(index);
    }

    /// Fills a buffer that no request has any more.
    fn reclaim(&mut self, index: usize) {
        let value = 1 + u8::try_from(self.random.below(255)).expect("a byte");
        let bytes = [value; BUFFER_BYTES];
        self.rig.data.copy_from_slice(index * BUFFER_BYTES, &bytes);
        self.buffers[index] = Buffer::Mine(value);
    }

    /// Nothing but the test wrote to a buffer that is the test's.
    fn check(&self) {
        for (index, buffer) in self.buffers.iter().enumerate() {
            if let Buffer::Mine(value) = buffer {
                let untouched = [*value; BUFFER_BYTES];
                let at = index * BUFFER_BYTES;
                assert!(self.rig.data.equals(at, &untouched), "buffer {index}");
            }
        }
    }

    /// Lets everything come to its end.
    fn settle(&mut self) {
        self.rig.emulator.clear_faults();
        for _ in 0..200_000 {
            if self.queues.iter().all(|queue| queue.in_flight() == 0) {
                return;
            }
            self.rig.tick();
            for at in 0..self.queues.len() {
                let mut completions = Vec::with_capacity(8);
                self.queues[at].kick();
                self.queues[at].poll(self.rig.now, &mut completions);
                completions
                    .iter()
                    .for_each(|completion| self.end(completion));
            }
        }
        panic!("no end: {:?} {:?}", self.queues, self.rig.controller);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_schedule_ends_each_request_once_and_leaves_its_memory_alone(seed: u64) {
        let mut play = Play::new(seed);
        for step in 0..3000 {
            play.act();
            if step % 50 == 0 {
                play.check();
            }
        }
        play.settle();
        play.rig.run_for(Duration::from_millis(500));
        play.check();
        prop_assert_eq!(play.submitted, play.ended);
        let state = play.rig.controller.state();
        let is_gone = state == ControllerState::Gone;
        prop_assert!(is_gone || play.rig.controller.stats().resets > 0);
    }
}
