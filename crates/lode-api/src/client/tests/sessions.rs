//! What an Io session promises, against a server that orders, limits and breaks as told.

use crate::client::{Client, ClientError, IoOptions, IoSession, NewVolume, VolumeName, Wait};
use crate::memory_server::{Behaviour, MemoryServer};
use crate::v1::{Durability, ErrorReason};
use bytes::Bytes;
use tonic::Code;

async fn open(server: &MemoryServer, options: IoOptions) -> IoSession {
    let client = Client::connect(&server.address()).await.expect("a server");
    let name = VolumeName::new("", "disk");
    client
        .create_volume(&NewVolume::new(name.clone(), 1 << 20))
        .await
        .expect("a new volume");
    for block in 0..16_u8 {
        let data = Bytes::from(vec![block; 4096]);
        client
            .write(&name, u64::from(block) * 4096, data, Durability::None)
            .await
            .expect("in range");
    }
    client.open_io(&name, options).await.expect("the volume")
}

/// Polls `count` reads of the blocks from 0 on at the same time.
async fn read_blocks(session: &IoSession, count: u8) -> Vec<Result<Bytes, ClientError>> {
    let reads = (0..count).map(|block| session.read(u64::from(block) * 4096, 4096));
    futures_util::future::join_all(reads).await
}

#[tokio::test]
async fn answers_in_another_order_reach_the_requests_they_belong_to() {
    let server = MemoryServer::start(Behaviour {
        io_batch: 8,
        ..Behaviour::default()
    });
    let session = open(&server, IoOptions::default()).await;
    for (block, data) in (0..8_u8).zip(read_blocks(&session, 8).await) {
        assert_eq!(data.expect("a read"), vec![block; 4096]);
    }
    assert_eq!(server.outstanding_max(), 8, "all eight were in flight");
}

#[tokio::test]
async fn no_more_requests_are_outstanding_than_credits_were_granted() {
    let server = MemoryServer::start(Behaviour {
        credits: 3,
        io_batch: 3,
        ..Behaviour::default()
    });
    let session = open(&server, IoOptions::default()).await;
    assert_eq!(session.credits(), 3);
    let reads = read_blocks(&session, 12).await;
    assert!(reads.iter().all(Result::is_ok));
    assert_eq!(server.outstanding_max(), 3);
}

#[tokio::test]
async fn fewer_credits_can_be_asked_for_than_the_server_offers() {
    let server = MemoryServer::start(Behaviour::default());
    let options = IoOptions {
        credits: 2,
        ..IoOptions::default()
    };
    assert_eq!(open(&server, options).await.credits(), 2);
}

#[tokio::test]
async fn a_broken_connection_fails_outstanding_and_later_requests_as_unavailable() {
    let mut server = MemoryServer::start(Behaviour {
        io_batch: 100,
        ..Behaviour::default()
    });
    let session = open(&server, IoOptions::default()).await;
    let (reads, ()) = tokio::join!(read_blocks(&session, 5), async { server.stop() });
    let later = session.read(0, 4096).await;
    for read in reads.into_iter().chain([later]) {
        let error = read.expect_err("nothing was answered");
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(error.reason(), ErrorReason::ConnectionLost, "{error}");
    }
}

#[tokio::test]
async fn a_refused_request_leaves_the_others_and_the_stream_alone() {
    let server = MemoryServer::start(Behaviour::default());
    let session = open(&server, IoOptions::default()).await;
    let (unaligned, beyond, good) = tokio::join!(
        session.read(1, 4096),
        session.read(1 << 20, 4096),
        session.read(4096, 4096)
    );
    let unaligned = unaligned.expect_err("offset 1");
    assert_eq!(unaligned.code(), Code::InvalidArgument);
    assert_eq!(unaligned.reason(), ErrorReason::Unaligned);
    let beyond = beyond.expect_err("the end");
    assert_eq!(beyond.code(), Code::OutOfRange);
    let detail = beyond.failure().and_then(|failure| failure.detail.clone());
    assert_eq!(detail.expect("a detail").offset_bytes, Some(1 << 20));
    assert_eq!(good.expect("a read"), vec![1; 4096]);
    assert_eq!(
        session.read(0, 512).await.expect_err("half a block").code(),
        Code::InvalidArgument
    );
    assert!(session.read(0, 4096).await.is_ok());
}

#[tokio::test]
async fn a_request_whose_future_is_dropped_still_takes_effect_before_close_returns() {
    let server = MemoryServer::start(Behaviour::default());
    let session = open(&server, IoOptions::default()).await;
    {
        let data = Bytes::from(vec![0xAB; 4096]);
        let mut write = std::pin::pin!(session.write(0, data, Durability::None));
        let waker = std::task::Waker::noop();
        let first = write
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
        assert!(first.is_pending());
    }
    session.close().await;
    let client = Client::connect(&server.address()).await.expect("a server");
    let data = client.read(&VolumeName::new("", "disk"), 0, 4096).await;
    assert_eq!(data.expect("a read"), vec![0xAB; 4096]);
}

#[tokio::test]
async fn every_operation_works_and_tells_its_durability() {
    let server = MemoryServer::start(Behaviour::default());
    let session = open(&server, IoOptions::default()).await;
    let data = Bytes::from(vec![9; 8192]);
    let level = session.write(0, data.clone(), Durability::Full).await;
    assert_eq!(level.expect("a write"), Durability::Full);
    let level = session.write_zeroes(4096, 4096, Durability::Data).await;
    assert_eq!(level.expect("zeros"), Durability::Data);
    assert_eq!(
        session.read(4096, 4096).await.expect("a read"),
        vec![0; 4096]
    );
    let level = session.discard(0, 4096, Durability::None).await;
    assert_eq!(level.expect("a discard"), Durability::None);
    assert!(session.flush().await.expect("a flush") >= Durability::Data);

    let zeros = Bytes::from(vec![0; 8192]);
    let swapped = session
        .compare_and_write(0, zeros.clone(), data, Durability::None)
        .await;
    assert_eq!(swapped.expect("the range held zeros"), Durability::None);
    let refused = session
        .compare_and_write(0, zeros.clone(), zeros, Durability::None)
        .await;
    let refused = refused.expect_err("the range holds nines");
    assert_eq!(refused.code(), Code::Aborted);
    assert_eq!(refused.reason(), ErrorReason::CompareMismatch);
}

#[tokio::test]
async fn a_busy_polled_session_answers_like_a_sleeping_one() {
    let server = MemoryServer::start(Behaviour::default());
    let options = IoOptions {
        wait: Wait::BusyPoll,
        ..IoOptions::default()
    };
    let session = open(&server, options).await;
    assert!(read_blocks(&session, 16).await.iter().all(Result::is_ok));
    session.close().await;
}

#[tokio::test]
async fn a_volume_that_is_not_there_cannot_be_opened() {
    let server = MemoryServer::start(Behaviour::default());
    let client = Client::connect(&server.address()).await.expect("a server");
    let name = VolumeName::new("", "nothing");
    let error = client
        .open_io(&name, IoOptions::default())
        .await
        .expect_err("no volume");
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.reason(), ErrorReason::VolumeNotFound);
}
