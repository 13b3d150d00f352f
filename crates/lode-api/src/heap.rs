//! Memory for messages: freed and taken again many thousand times a second.

/// Lets the process keep the memory that it frees, for the messages to come. Call it once, first
/// of all; calling it again changes nothing.
///
/// glibc gives memory at the end of its heap back to the system as soon as there are 128 KiB of
/// it, and longer blocks at once; a buffer that a connection reads into then costs a page fault
/// for every 4 KiB, each time. Both thresholds rise to the length of the longest such block that
/// was freed, 32 MiB at most (mallopt(3), `M_MMAP_THRESHOLD`), so one is freed here. It is never
/// touched and so takes no memory. With another C library this does nothing.
///
/// Another allocator instead was tried: mimalloc saves the same page faults, but hands out memory
/// that is no longer in the cache, which halves the rate of an export.
///
/// Does not block.
pub fn keep_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(
        LONGEST_BYTES,
    )));
}

/// Below glibc's bound of 32 MiB by more than its own head and a page.
const LONGEST_BYTES: usize = (32 << 20) - (64 << 10);

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Minor page faults of this thread so far (proc(5), `stat`, the eighth after the name).
    fn page_faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a process file");
        let (_name, fields) = stat.rsplit_once(") ").expect("a name");
        let field = fields.split(' ').nth(7).expect("the field");
        field.parse().expect("a number")
    }

    fn use_memory() {
        drop(std::hint::black_box(vec![1_u8; LENGTH_BYTES]));
    }

    const LENGTH_BYTES: usize = 8 << 20;
    const PAGES: u64 = LENGTH_BYTES as u64 / 4096;

    #[test]
    fn memory_that_was_freed_is_used_again_without_page_faults() {
        keep_freed();
        use_memory();
        let before = page_faults();
        use_memory();
        let faults = page_faults() - before;
        assert!(faults < PAGES / 8, "{faults} page faults in {PAGES} pages");
    }
}
