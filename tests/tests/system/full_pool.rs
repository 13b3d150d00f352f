//! A pool without space.

use bytes::Bytes;
use lode_api::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, Durability, ErrorReason, GetPoolRequest, Pool,
    ReadRequest, WriteRequest,
};
use lode_tests::{Daemon, Refusal, Site};
use tonic::Status;

const CHUNK: u64 = 1 << 20;
const SMALL: &str = "size=64MiB&create";

async fn write(daemon: &Daemon, volume: &str, offset_bytes: u64) -> Result<(), Status> {
    let request = WriteRequest {
        volume: volume.to_owned(),
        offset_bytes,
        data: Bytes::from(vec![3; 1 << 20]),
        durability: Durability::Data.into(),
        ..WriteRequest::default()
    };
    daemon.blocks().await.write(request).await?;
    Ok(())
}

/// Writes until the pool is full; how many chunks fitted.
async fn fill(daemon: &Daemon, volume: &str) -> u64 {
    for chunk in 0..128 {
        if let Err(status) = write(daemon, volume, chunk * CHUNK).await {
            let refused = Refusal::expected_in(Err::<(), _>(status));
            assert_eq!(refused, Refusal::of(ErrorReason::NoSpace));
            return chunk;
        }
    }
    panic!("a pool of 64 MiB took 128 MiB");
}

async fn pool(daemon: &Daemon) -> Pool {
    let answer = daemon
        .pools()
        .await
        .get_pool(GetPoolRequest::default())
        .await;
    answer
        .expect("the pool")
        .into_inner()
        .pool
        .expect("the answer holds the pool")
}

async fn delete(daemon: &Daemon, name: &str) {
    let request = DeleteVolumeRequest {
        name: name.to_owned(),
        ..DeleteVolumeRequest::default()
    };
    daemon
        .volumes()
        .await
        .delete_volume(request)
        .await
        .expect("a full pool deletes");
}

/// Writes once more, as often as the space of deleted volumes takes to come back.
async fn write_when_there_is_space(daemon: &Daemon, volume: &str) {
    for _ in 0..500 {
        match write(daemon, volume, 0).await {
            Ok(()) => return,
            Err(status) => {
                let refused = Refusal::expected_in(Err::<(), _>(status));
                assert_eq!(refused, Refusal::of(ErrorReason::NoSpace));
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the space of a deleted volume does not come back");
}

#[tokio::test]
async fn a_full_pool_says_so_serves_what_it_holds_and_recovers_by_deletion() {
    let daemon = Site::with_options(SMALL).start();
    daemon.create_volume("greedy", 1 << 40).await;
    let chunks = fill(&daemon, "greedy").await;
    assert!(
        chunks >= 32,
        "most of the pool is for data: {chunks} MiB of 64"
    );
    write(&daemon, "greedy", 0)
        .await
        .expect("an overwrite needs no space");
    let request = ReadRequest {
        volume: "greedy".to_owned(),
        offset_bytes: (chunks - 1) * CHUNK,
        length_bytes: 1 << 20,
        ..ReadRequest::default()
    };
    let data = daemon
        .blocks()
        .await
        .read(request)
        .await
        .expect("the read")
        .into_inner()
        .data;
    assert!(data.iter().all(|byte| *byte == 3));
    assert!(pool(&daemon).await.free_bytes < CHUNK);

    daemon.create_volume("other", 1 << 30).await;
    delete(&daemon, "greedy").await;
    write_when_there_is_space(&daemon, "other").await;
}

#[tokio::test]
async fn a_full_pool_starts_again_after_a_kill_and_still_deletes() {
    let site = Site::with_options(SMALL);
    let daemon = site.start();
    daemon.create_volume("greedy", 1 << 40).await;
    let chunks = fill(&daemon, "greedy").await;
    daemon.kill();

    let daemon = site.start();
    let request = ReadRequest {
        volume: "greedy".to_owned(),
        offset_bytes: (chunks - 1) * CHUNK,
        length_bytes: 1 << 20,
        ..ReadRequest::default()
    };
    let data = daemon
        .blocks()
        .await
        .read(request)
        .await
        .expect("the read")
        .into_inner()
        .data;
    assert!(data.iter().all(|byte| *byte == 3), "the last durable write");
    delete(&daemon, "greedy").await;
    let request = CreateVolumeRequest {
        name: "next".to_owned(),
        size_bytes: 1 << 30,
        ..CreateVolumeRequest::default()
    };
    daemon
        .volumes()
        .await
        .create_volume(request)
        .await
        .expect("there is space again");
    write_when_there_is_space(&daemon, "next").await;
}
