//! The data path allocates nothing: proved by an allocator that counts.

#![expect(
    unsafe_code,
    reason = "a counting allocator implements GlobalAlloc, which is an unsafe trait"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use lode_block::{BlockDevice, Operation, Request, Tag};
use lode_bus::{DmaSpan, IovaSpace, PagePreference};
use lode_nvme::{Controller, ControllerOptions, QueueOptions};
use lode_nvme_emu::{Cache, EmulatedController, Media, NamespaceOptions};
use lode_units::{BlockSize, Clock, Instant, Iova, Lba, MonotonicClock, NamespaceId};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

#[test]
fn submit_kick_and_poll_allocate_nothing() {
    let space = IovaSpace::new();
    let media = Media::memory(8 << 20).expect("memory");
    let mut namespace = NamespaceOptions::new(BlockSize::B512, media);
    namespace.cache = Cache::Host;
    let emulator =
        EmulatedController::new(lode_nvme_emu::ControllerOptions::default(), vec![namespace])
            .expect("valid options");
    let mut controller =
        Controller::new(emulator, ControllerOptions::default(), &space).expect("memory");
    let data = space
        .allocate(2 << 20, PagePreference::Ordinary)
        .expect("memory");
    controller.map_memory(&data).expect("mapping");
    let clock = MonotonicClock::new();
    controller.bring_up(&clock).expect("ready");
    let mut queue = controller
        .open_queue(NamespaceId::new(1), QueueOptions::default(), &space)
        .expect("a queue");
    controller.settle(&clock).expect("created");
    let mut completions = Vec::with_capacity(64);
    let mut now = clock.now();
    let iova = data.iova().get();
    round(&mut queue, &mut now, &mut completions, iova);

    let before = allocations();
    for _ in 0..100 {
        round(&mut queue, &mut now, &mut completions, iova);
    }
    assert_eq!(allocations() - before, 0);

    // The counter counts.
    drop(std::hint::black_box(vec![0_u8; 100]));
    assert_eq!(allocations() - before, 1);
}

/// One batch of every operation and many sizes, to its end.
fn round(
    queue: &mut impl BlockDevice,
    now: &mut Instant,
    completions: &mut Vec<lode_block::Completion>,
    iova: u64,
) {
    let mut expected = 0;
    for operation in [
        Operation::Read,
        Operation::Write,
        Operation::WriteThrough,
        Operation::Compare,
        Operation::WriteZeroes,
        Operation::Deallocate,
        Operation::Flush,
    ] {
        for block_count in [1, 8, 17, 2048] {
            let moves = operation.moves_data();
            let length_bytes = if moves { block_count * 512 } else { 0 };
            let is_flush = operation == Operation::Flush;
            let request = Request {
                tag: Tag(1),
                operation,
                lba: Lba::new(3),
                block_count: if is_flush { 0 } else { block_count },
                data: DmaSpan {
                    iova: Iova::new(iova + 4),
                    length_bytes,
                },
            };
            queue.submit(request).expect("accepted");
            expected += 1;
        }
    }
    queue.kick();
    let mut ended = 0;
    for _ in 0..1000 {
        *now += Duration::from_millis(1);
        completions.clear();
        ended += queue.poll(*now, completions);
        if ended == expected {
            return;
        }
    }
    panic!("{ended} of {expected} requests ended");
}
