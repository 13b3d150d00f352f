//! Several clients at once, some of them badly behaved.

use std::time::Duration;

use bytes::Bytes;
use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as IoResult;
use lode_api::v1::{
    Durability, ErrorReason, IoOpen, IoRead, IoRequest, IoWrite, ReadRequest, WriteRequest,
};
use lode_tests::{Refusal, Site};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const VOLUME: &str = "shared";
const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;

fn opening(credits: u32) -> IoRequest {
    IoRequest {
        tag: 0,
        operation: Some(Operation::Open(IoOpen {
            volume: VOLUME.to_owned(),
            credits,
            ..IoOpen::default()
        })),
    }
}

fn writing(tag: u64) -> IoRequest {
    IoRequest {
        tag,
        operation: Some(Operation::Write(IoWrite {
            offset_bytes: (tag % 64) * (1 << 20),
            data: Bytes::from(vec![9; 1 << 20]),
            durability: Durability::Data.into(),
        })),
    }
}

/// Opens a stream, leaves writes in flight on it and drops the connection.
async fn vanish_midway(mut client: BlockServiceClient<Channel>) {
    let (requests, outgoing) = mpsc::channel(64);
    requests
        .send(opening(0))
        .await
        .expect("the receiver is alive");
    let mut answers = client
        .io(ReceiverStream::new(outgoing))
        .await
        .expect("the stream opens")
        .into_inner();
    answers.message().await.expect("the volume opens");
    for tag in 1..16 {
        requests
            .send(writing(tag))
            .await
            .expect("the stream takes it");
    }
    // One answer proves that the others are on their way.
    answers.message().await.expect("a write is answered");
}

#[tokio::test]
async fn a_client_that_vanishes_with_requests_in_flight_disturbs_nobody() {
    let mut daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut steady = daemon.blocks().await;
    for round in 0..20_u8 {
        let vanishing = tokio::spawn(vanish_midway(daemon.blocks().await));
        let data = Bytes::from(vec![round; BLOCK]);
        for _ in 0..20 {
            let request = WriteRequest {
                volume: VOLUME.to_owned(),
                offset_bytes: SIZE - 4096,
                data: data.clone(),
                ..WriteRequest::default()
            };
            steady
                .write(request)
                .await
                .expect("the other client goes on");
            let request = ReadRequest {
                volume: VOLUME.to_owned(),
                offset_bytes: SIZE - 4096,
                length_bytes: 4096,
                ..ReadRequest::default()
            };
            let read = steady
                .read(request)
                .await
                .expect("the other client goes on");
            assert_eq!(read.into_inner().data, data);
        }
        vanishing.await.expect("the client vanishes as planned");
    }
    assert!(daemon.is_running(), "{}", daemon.log());
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[tokio::test]
async fn requests_beyond_the_credits_are_refused_one_by_one() {
    const CREDITS: u64 = 4;
    const SENT: u64 = 400;
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut messages = vec![opening(u32::try_from(CREDITS).expect("small"))];
    messages.extend((1..=SENT).map(|tag| IoRequest {
        tag,
        operation: Some(Operation::Read(IoRead {
            offset_bytes: 0,
            length_bytes: 4096,
        })),
    }));
    let mut answers = daemon
        .blocks()
        .await
        .io(tokio_stream::iter(messages))
        .await
        .expect("the stream opens")
        .into_inner();
    let mut good = 0;
    let mut refused = 0;
    while let Some(answer) = answers.message().await.expect("the stream stays well") {
        match answer.result.expect("an answer has a result") {
            IoResult::Opened(opened) => assert!(u64::from(opened.credits) <= CREDITS),
            IoResult::Data(_) => good += 1,
            IoResult::Error(error) => {
                assert_eq!(Refusal::from(error), Refusal::of(ErrorReason::Credits));
                refused += 1;
            }
            IoResult::Durability(_) => panic!("no write was sent"),
        }
    }
    assert_eq!(good + refused, SENT, "each is answered once");
    assert!(
        good >= CREDITS,
        "the credits are good for {CREDITS}: {good}"
    );
}

#[tokio::test]
async fn a_stream_that_does_not_open_a_volume_first_ends_with_an_error() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut blocks = daemon.blocks().await;
    let outcome = match blocks.io(tokio_stream::iter([writing(1)])).await {
        Ok(answers) => answers.into_inner().message().await.map(|_| ()),
        Err(status) => Err(status),
    };
    let refused = Refusal::expected_in(outcome);
    assert_eq!(refused, Refusal::of(ErrorReason::StreamNotOpen));
}

#[tokio::test]
async fn many_streams_at_once_each_get_their_own_answers() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut tasks = Vec::new();
    for index in 0..16_u64 {
        let mut client = daemon.blocks().await;
        tasks.push(tokio::spawn(async move {
            let fill = u8::try_from(index + 1).expect("small");
            let offset_bytes = index * (1 << 20);
            let request = WriteRequest {
                volume: VOLUME.to_owned(),
                offset_bytes,
                data: Bytes::from(vec![fill; 1 << 20]),
                ..WriteRequest::default()
            };
            client.write(request).await.expect("the write");
            let request = ReadRequest {
                volume: VOLUME.to_owned(),
                offset_bytes,
                length_bytes: 1 << 20,
                ..ReadRequest::default()
            };
            let data = client
                .read(request)
                .await
                .expect("the read")
                .into_inner()
                .data;
            assert!(data.iter().all(|byte| *byte == fill), "stream {index}");
        }));
    }
    let all = async {
        for task in tasks {
            task.await.expect("a stream's data are its own");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .expect("sixteen small transfers end");
}
