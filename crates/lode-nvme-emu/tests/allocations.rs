//! Commands on memory and on a file allocate nothing once the queues exist.

#![expect(unsafe_code, reason = "a counting allocator wraps the system's")]

#[path = "controller/host.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "shared with the other test binary"
)]
mod host;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use host::{Host, NSID, block};
use lode_nvme_emu::{Cache, ControllerOptions, EmulatedController, Media, NamespaceOptions};
use lode_nvme_spec::command::{BlockFlags, flush};
use lode_nvme_spec::{DataPointer, NvmOpcode};
use lode_units::BlockSize;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, that is from the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_over(media: Media, cache: Cache) -> u64 {
    let namespace = NamespaceOptions {
        cache,
        ..NamespaceOptions::new(BlockSize::B512, media)
    };
    let options = ControllerOptions::default();
    let controller = EmulatedController::new(options, vec![namespace]).expect("options");
    let mut host = Host::over(controller);
    host.enable();
    let mut pair = host.create_pair(1, 64);
    let buffer = host.allocate(65536);
    let base = buffer.iova().get();
    let whole = host.pages(&buffer, 0, 65536);
    let scattered = DataPointer::new(base + 4096, base);
    let mut round = |host: &Host| {
        let write = block(NvmOpcode::Write, 0, 8, BlockFlags::FORCE_UNIT_ACCESS);
        host.run_ok(&mut pair, write.with_data(DataPointer::new(base, 0)));
        for opcode in [NvmOpcode::Write, NvmOpcode::Read, NvmOpcode::Compare] {
            let long = block(opcode, 0, 128, BlockFlags::empty());
            host.run_ok(&mut pair, long.with_data(whole));
            let split = block(opcode, 0, 16, BlockFlags::empty());
            host.run_ok(&mut pair, split.with_data(scattered));
        }
        host.run_ok(
            &mut pair,
            block(NvmOpcode::WriteZeroes, 8, 8, BlockFlags::empty()),
        );
        host.run_ok(
            &mut pair,
            block(NvmOpcode::Verify, 0, 128, BlockFlags::empty()),
        );
        host.run_ok(&mut pair, flush(NSID));
    };
    round(&host);
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..20 {
        round(&host);
    }
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn commands_on_memory_allocate_nothing() {
    for cache in [Cache::None, Cache::MODELLED] {
        let media = Media::memory(1 << 20).expect("memory");
        assert_eq!(allocations_over(media, cache), 0, "{cache:?}");
    }
}

#[test]
fn commands_on_a_file_allocate_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let media = Media::create_file(&folder.path().join("disk"), 1 << 20, 512).expect("a file");
    assert_eq!(allocations_over(media, Cache::Host), 0);
}

#[test]
fn the_count_notices_an_allocation() {
    let before = ALLOCATIONS.with(Cell::get);
    let boxed = std::hint::black_box(Box::new(7));
    assert_eq!(*boxed, 7);
    assert!(ALLOCATIONS.with(Cell::get) > before);
}
