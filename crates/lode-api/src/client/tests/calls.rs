//! Control calls and streamed transfers of the client.

use std::time::Duration;

use crate::client::{
    Chunk, ChunkContent, Client, ClientError, ClientOptions, ExtentQuery, IoOptions, NewVolume,
    Overwrite, RetryPolicy, Shrink, VolumeName,
};
use crate::memory_server::{Behaviour, Ignored, MemoryServer};
use crate::v1::{Durability, ErrorReason, ExtentKind};
use bytes::Bytes;
use tonic::Code;

async fn connect(server: &MemoryServer) -> Client {
    let options = ClientOptions {
        retry: RetryPolicy {
            attempts_max: 4,
            backoff: Duration::from_millis(1),
        },
        ..ClientOptions::default()
    };
    Client::connect_with(&server.address(), options)
        .await
        .expect("a server")
}

fn disk() -> VolumeName {
    VolumeName::new("", "disk")
}

async fn with_disk(server: &MemoryServer, size_bytes: u64) -> Client {
    let client = connect(server).await;
    let volume = NewVolume::new(disk(), size_bytes);
    client.create_volume(&volume).await.expect("a new volume");
    client
}

#[tokio::test]
async fn a_create_and_a_delete_whose_answers_are_lost_succeed_once_each() {
    let server = MemoryServer::start(Behaviour {
        lost_answers: 2,
        ..Behaviour::default()
    });
    let client = with_disk(&server, 4096).await;
    let volumes = client.list_volumes("").await.expect("a listing");
    assert_eq!(volumes.len(), 1);
    client.delete_volume(&disk()).await.expect("a volume");
    let error = client.volume(&disk()).await.expect_err("deleted");
    assert_eq!(error.reason(), ErrorReason::VolumeNotFound);
}

#[tokio::test]
async fn without_retries_the_lost_answer_is_told_and_another_id_finds_the_name_taken() {
    let server = MemoryServer::start(Behaviour {
        lost_answers: 1,
        ..Behaviour::default()
    });
    let once = ClientOptions {
        retry: RetryPolicy {
            attempts_max: 1,
            ..RetryPolicy::default()
        },
        ..ClientOptions::default()
    };
    let client = Client::connect_with(&server.address(), once)
        .await
        .expect("a server");
    let volume = NewVolume::new(disk(), 4096);
    let lost = client
        .create_volume_as(&volume, "first")
        .await
        .expect_err("lost");
    assert_eq!(lost.code(), Code::Unavailable);
    let taken = client
        .create_volume_as(&volume, "second")
        .await
        .expect_err("taken");
    assert_eq!(taken.code(), Code::AlreadyExists);
    let again = client
        .create_volume_as(&volume, "first")
        .await
        .expect("the first request");
    assert_eq!(again.name, "disk");
    let other = NewVolume::new(disk(), 8192);
    let reused = client
        .create_volume_as(&other, "first")
        .await
        .expect_err("other contents");
    assert_eq!(reused.reason(), ErrorReason::RequestIdReused);
}

#[tokio::test]
async fn a_listing_gathers_all_pages_in_order() {
    let server = MemoryServer::start(Behaviour::default());
    let client = connect(&server).await;
    for index in (0..10).rev() {
        let name = VolumeName::new("memory", format!("v{index}"));
        client
            .create_volume(&NewVolume::new(name, 4096))
            .await
            .expect("a new volume");
    }
    let volumes = client.list_volumes("").await.expect("a listing");
    let names: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(
        names,
        ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9"]
    );
    let page = client
        .list_volumes_page("memory", 4, "")
        .await
        .expect("a page");
    assert_eq!(page.volumes.len(), 4);
    let error = client
        .list_volumes_page("", 0, "nonsense")
        .await
        .expect_err("no token");
    assert_eq!(error.reason(), ErrorReason::InvalidPageToken);
}

#[tokio::test]
async fn a_volume_shrinks_only_when_that_is_allowed() {
    let server = MemoryServer::start(Behaviour::default());
    let client = with_disk(&server, 8192).await;
    let refused = client.resize_volume(&disk(), 4096, Shrink::Refused).await;
    assert_eq!(
        refused.expect_err("smaller").reason(),
        ErrorReason::ShrinkNotAllowed
    );
    let volume = client.resize_volume(&disk(), 4096, Shrink::Allowed).await;
    assert_eq!(volume.expect("allowed").size_bytes, 4096);
}

#[tokio::test]
async fn pools_are_made_listed_and_let_go_of() {
    let server = MemoryServer::start(Behaviour::default());
    let client = connect(&server).await;
    let devices = ["memory:1GiB".to_owned()];
    let pool = client
        .create_pool("second", &devices, Overwrite::Refused)
        .await;
    assert_eq!(pool.expect("a new pool").devices.len(), 1);
    let again = client
        .create_pool("second", &devices, Overwrite::Refused)
        .await;
    assert_eq!(again.expect_err("there").reason(), ErrorReason::PoolExists);
    assert_eq!(client.list_pools().await.expect("a listing").len(), 2);
    let ambiguous = client.pool("").await.expect_err("two pools");
    assert_eq!(ambiguous.reason(), ErrorReason::PoolAmbiguous);
    client.export_pool("second").await.expect("a pool");
    assert_eq!(client.pool("").await.expect("one pool").name, "memory");
}

#[tokio::test]
async fn a_streamed_image_comes_back_with_its_holes() {
    let server = MemoryServer::start(Behaviour::default());
    let size = 8_u64 << 20;
    let client = with_disk(&server, size).await;
    let long = Bytes::from(vec![5; (2 << 20) + 4096]);
    let mut writer = client
        .write_stream(&disk(), 4096, Durability::Data)
        .await
        .expect("a connection");
    writer.data(long.clone()).await.expect("room");
    writer.zeroes(1 << 20).await.expect("room");
    writer.data(Bytes::from(vec![6; 4096])).await.expect("room");
    writer.discard(4096).await.expect("room");
    let summary = writer.finish().await.expect("all chunks are in");
    assert_eq!(summary.data_bytes, (2 << 20) + 8192);
    assert_eq!(summary.zeroes_bytes, 1 << 20);
    assert_eq!(summary.discarded_bytes, 4096);
    assert_eq!(summary.durability(), Durability::Data);

    let (image, zeroes) = read_all(&client, size).await.expect("the volume");
    let end = 4096 + long.len();
    assert!(image[..4096].iter().all(|byte| *byte == 0));
    assert_eq!(image[4096..end], long);
    assert_eq!(image[end + (1 << 20)..][..4096], [6; 4096]);
    assert_eq!(zeroes, size - (2 << 20) - 8192, "holes are told, not sent");

    let query = ExtentQuery {
        name: disk(),
        offset_bytes: 0,
        length_bytes: None,
    };
    let page = client
        .list_extents_page(&query, 10, "")
        .await
        .expect("extents");
    let kinds: Vec<_> = page.extents.iter().map(|extent| extent.kind()).collect();
    let (hole, written) = (ExtentKind::Hole, ExtentKind::Written);
    assert_eq!(kinds, [hole, written, hole, written, hole]);
}

async fn read_all(client: &Client, size: u64) -> Result<(Vec<u8>, u64), ClientError> {
    let mut reader = client.read_stream(&disk(), 0, Some(size)).await?;
    let mut image = Vec::new();
    let mut zeroes = 0;
    while let Some(Chunk {
        offset_bytes,
        content,
    }) = reader.next_chunk().await?
    {
        assert_eq!(offset_bytes, u64::try_from(image.len()).expect("short"));
        match content {
            ChunkContent::Data(data) => image.extend_from_slice(&data),
            ChunkContent::Zeroes(length) => {
                zeroes += length;
                image.resize(image.len() + usize::try_from(length).expect("short"), 0);
            }
        }
    }
    Ok((image, zeroes))
}

#[tokio::test]
async fn a_streamed_write_into_a_full_pool_ends_with_the_servers_reason() {
    let server = MemoryServer::start(Behaviour {
        capacity_bytes: 2 << 20,
        ..Behaviour::default()
    });
    let client = with_disk(&server, 64 << 20).await;
    let mut writer = client
        .write_stream(&disk(), 0, Durability::None)
        .await
        .expect("a connection");
    let mut outcome = Ok(());
    for _ in 0..64 {
        outcome = writer.data(Bytes::from(vec![1; 1 << 20])).await;
        if outcome.is_err() {
            break;
        }
    }
    let error = outcome.expect_err("2 MiB of 64 fit");
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert_eq!(error.reason(), ErrorReason::NoSpace);
    let later = writer.zeroes(4096).await.expect_err("the call has ended");
    assert_eq!(later.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_dropped_writer_ends_its_call_on_the_server() {
    let server = MemoryServer::start(Behaviour::default());
    let client = with_disk(&server, 64 << 20).await;
    let mut writer = client
        .write_stream(&disk(), 0, Durability::None)
        .await
        .expect("a connection");
    for _ in 0..32 {
        writer
            .data(Bytes::from(vec![1; 1 << 20]))
            .await
            .expect("room");
    }
    drop(writer);
    let ended = async {
        while server.ended_writes() == 0 {
            tokio::task::yield_now().await;
        }
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, ended)
        .await
        .expect("the server notices");
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_a_connect_error() {
    let mut server = MemoryServer::start(Behaviour::default());
    server.stop();
    let error = Client::connect(&server.address())
        .await
        .expect_err("stopped");
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_server_on_a_unix_socket_is_reached_by_every_kind_of_call() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("lodestore.sock");
    let server = MemoryServer::start_at(&path, Behaviour::default());
    let client = with_disk(&server, 8192).await;
    let session = client.open_io(&disk(), IoOptions::default()).await;
    let session = session.expect("the volume");
    let data = Bytes::from(vec![3; 4096]);
    session
        .write(4096, data.clone(), Durability::None)
        .await
        .expect("a write");
    assert_eq!(
        client.read(&disk(), 4096, 4096).await.expect("a read"),
        data
    );
    let (image, _) = read_all(&client, 8192).await.expect("the volume");
    assert_eq!(image[4096..], data);
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_a_deadline_error() {
    let server = MemoryServer::start(Behaviour {
        ignored: Ignored::Volumes,
        ..Behaviour::default()
    });
    let hurried = ClientOptions {
        call_timeout: Duration::from_secs(1),
        ..ClientOptions::default()
    };
    let client = Client::connect_with(&server.address(), hurried)
        .await
        .expect("a server");
    let unary = client.volume(&disk()).await.expect_err("no answer");
    assert_eq!(unary.code(), Code::DeadlineExceeded, "{unary}");
    let stream = client
        .open_io(&disk(), IoOptions::default())
        .await
        .expect_err("no answer");
    assert_eq!(stream.code(), Code::DeadlineExceeded, "{stream}");
}

#[tokio::test]
async fn the_servers_limits_are_learnt_when_connecting() {
    let server = MemoryServer::start(Behaviour::default());
    let client = connect(&server).await;
    assert_eq!(client.limits().io_length_max_bytes, 1 << 20);
    assert_eq!(client.limits().stream_credits_max, 32);
    assert_eq!(client.info().await.expect("an answer").core_count, 1);
}
