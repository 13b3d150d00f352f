//! Pool files that were cut short, damaged or made by another version.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use lode_api::v1::{Durability, WriteRequest};
use lode_tests::Site;

const BLOCK_BYTES: usize = 4096;

/// A site whose pool was used and stopped.
async fn used_site() -> Site {
    let site = Site::with_options("size=64MiB&create");
    let daemon = site.start();
    daemon.create_volume("kept", 8 << 20).await;
    let request = WriteRequest {
        volume: "kept".to_owned(),
        data: Bytes::from(vec![1; 65536]),
        durability: Durability::Data.into(),
        ..WriteRequest::default()
    };
    daemon
        .blocks()
        .await
        .write(request)
        .await
        .expect("the write");
    assert!(daemon.terminate().success());
    site
}

fn device(site: &Site) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(site.device_file())
        .expect("the daemon made the file")
}

/// Changes every block of the file that holds anything, from byte `from` of the block on.
fn corrupt_all(file: &File, from: usize) {
    let length = file.metadata().expect("an open file").len();
    let mut block = vec![0; BLOCK_BYTES];
    for offset in (0..length).step_by(BLOCK_BYTES) {
        file.read_exact_at(&mut block, offset)
            .expect("within the file");
        if block.iter().any(|byte| *byte != 0) {
            for byte in block.iter_mut().skip(from) {
                *byte ^= 0x5a;
            }
            file.write_all_at(&block, offset).expect("within the file");
        }
    }
}

/// Says in every superblock that a later version wrote it (`docs/format.md`: the version is the
/// number at byte 10 of each metadata block, superblocks lie at both ends of a device).
fn raise_version(file: &File) {
    let length = file.metadata().expect("an open file").len();
    let block = u64::try_from(BLOCK_BYTES).expect("4096 fits");
    let mut raised = 0;
    for offset in [0, block, length - 2 * block, length - block] {
        let mut header = [0; 12];
        file.read_exact_at(&mut header, offset)
            .expect("within the file");
        if &header[4..8] == b"LODE" {
            file.write_all_at(&[9, 0], offset + 10)
                .expect("within the file");
            raised += 1;
        }
    }
    assert!(raised > 0, "the device has superblocks");
}

#[tokio::test]
async fn a_pool_file_that_was_cut_short_is_refused_with_the_reason() {
    let mut site = used_site().await;
    site.set_options("");
    device(&site)
        .set_len(32 << 20)
        .expect("the file can be cut");
    let said = site.start_refused();
    assert!(
        said.contains("disk0.img"),
        "the error names the file: {said}"
    );
}

#[tokio::test]
async fn a_pool_file_that_was_cut_to_nothing_is_refused_and_not_made_anew() {
    let mut site = used_site().await;
    site.set_options("");
    device(&site).set_len(0).expect("the file can be cut");
    let said = site.start_refused();
    assert!(
        said.contains("disk0.img"),
        "the error names the file: {said}"
    );
    let length = device(&site).metadata().expect("an open file").len();
    assert_eq!(length, 0, "a refused file is left as it was");
}

#[tokio::test]
async fn a_pool_whose_every_block_is_damaged_is_refused_and_not_made_anew() {
    // The headers stay: it can be seen that this was a pool. The site's configuration would make
    // one where there is none.
    let site = used_site().await;
    corrupt_all(&device(&site), 512);
    assert_refused_and_left_alone(&site);
}

#[tokio::test]
async fn a_file_of_something_else_is_refused_by_a_configuration_that_makes_no_pool() {
    let mut site = used_site().await;
    site.forbid_creation();
    corrupt_all(&device(&site), 0);
    assert_refused_and_left_alone(&site);
}

fn assert_refused_and_left_alone(site: &Site) {
    let before = std::fs::read(site.device_file()).expect("the file can be read");
    let said = site.start_refused();
    assert!(
        said.contains("disk0.img"),
        "the error names the file: {said}"
    );
    let after = std::fs::read(site.device_file()).expect("the file can be read");
    assert!(before == after, "a refused file is left as it was");
}

#[tokio::test]
async fn a_pool_of_another_version_is_refused_as_such() {
    let site = used_site().await;
    raise_version(&device(&site));
    let said = site.start_refused().to_lowercase();
    assert!(
        said.contains("version"),
        "the error speaks of the version: {said}"
    );
}

#[tokio::test]
async fn a_file_of_something_else_is_never_made_a_pool() {
    // The site's configuration makes a pool where there is none.
    let site = Site::with_options("size=64MiB&create");
    let file = File::create(site.device_file()).expect("the folder takes a file");
    file.set_len(64 << 20).expect("the file can be sparse");
    // Where an ext4 file system says what it is: the first KiB is left to boot loaders.
    file.write_all_at(&[0x53, 0xef], 1024 + 56)
        .expect("within the file");
    assert_refused_and_left_alone(&site);
}
