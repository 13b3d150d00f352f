//! The ring and its blocking substitute, on a real file.

use super::*;
use crate::backing::staging;

fn finish(ring: &mut FileRing, token: u16) -> Result<usize, MediaError> {
    ring.submit();
    assert!(ring.settle(), "the file answers");
    assert!(ring.has_finished());
    let finished = ring.reap().expect("one has ended");
    assert_eq!(finished.token, token);
    finished.outcome
}

fn data(memory: &DmaMemory, position: u64, length: usize) -> FileData {
    FileData {
        memory: memory.clone(),
        offset: 0,
        length,
        position,
    }
}

/// Writes, zeroes and reads a file of 64 KiB, and reads beyond its end.
fn exercise(ring: &mut FileRing) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let media = Media::create_file(&path, 65536, 512).expect("a file");
    let memory = staging(65536).expect("memory");
    memory.copy_from_slice(0, &[7; 8192]);
    let write = FileOp::Write(data(&memory, 4096, 8192), Reach::Stable);
    ring.start(3, &media, &write);
    assert_eq!((ring.in_flight(), finish(ring, 3)), (1, Ok(8192)));
    let zero = FileOp::Zero {
        position: 4096,
        length: 4096,
        space: Space::Keep,
    };
    for op in [zero, FileOp::Sync] {
        ring.start(0, &media, &op);
        assert_eq!(finish(ring, 0), Ok(0));
    }
    ring.start(1, &media, &FileOp::Read(data(&memory, 4096, 8192)));
    assert_eq!(finish(ring, 1), Ok(8192));
    assert!(memory.equals(0, &[0; 4096]) && memory.equals(4096, &[7; 4096]));
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.expect("the file").set_len(4096).expect("a cut");
    ring.start(1, &media, &FileOp::Read(data(&memory, 32768, 512)));
    assert!(matches!(finish(ring, 1), Ok(0) | Err(MediaError::Failed)));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_ring_and_calls_that_block_do_the_same() {
    exercise(&mut FileRing::with_capacity(4));
    let blocking = Engine::Blocking(VecDeque::with_capacity(4));
    exercise(&mut FileRing::over(blocking, 4));
}

#[test]
fn dropping_a_ring_waits_for_what_is_in_flight() {
    let folder = tempfile::tempdir().expect("a folder");
    let media = Media::create_file(&folder.path().join("disk"), 1 << 20, 512).expect("a file");
    let memory = staging(65536).expect("memory");
    memory.copy_from_slice(0, &[9; 65536]);
    let mut ring = FileRing::with_capacity(16);
    for token in 0..16 {
        let position = u64::from(token) * 65536;
        let write = FileOp::Write(data(&memory, position, 65536), Reach::Cache);
        ring.start(token, &media, &write);
    }
    drop(ring);
    assert!(media.snapshot(0, 1 << 20).iter().all(|byte| *byte == 9));
}

#[test]
#[should_panic(expected = "a token is in flight once")]
fn a_token_is_not_started_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let media = Media::create_file(&folder.path().join("disk"), 4096, 512).expect("a file");
    let mut ring = FileRing::with_capacity(2);
    ring.start(0, &media, &FileOp::Sync);
    ring.start(0, &media, &FileOp::Sync);
}
