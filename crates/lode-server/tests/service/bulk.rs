//! Streamed reads and writes.

use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::read_stream_response::Content as ReadContent;
use lode_api::v1::write_stream_request::Content;
use lode_api::v1::{
    Durability, ErrorReason, ReadRequest, ReadStreamRequest, ReadStreamResponse, WriteStreamOpen,
    WriteStreamRequest, WriteStreamResponse,
};
use lode_engine::IoError;
use tonic::{Code, Status, Streaming};

use crate::fixture::{Fixture, VOLUME, VOLUME_BYTES, connect, failed, run};

fn opening(offset_bytes: u64, durability: Durability) -> Content {
    Content::Open(WriteStreamOpen {
        volume: VOLUME.into(),
        offset_bytes,
        durability: durability.into(),
        ..WriteStreamOpen::default()
    })
}

async fn write(fixture: &Fixture, messages: Vec<Content>) -> Result<WriteStreamResponse, Status> {
    let messages: Vec<_> = messages
        .into_iter()
        .map(|content| WriteStreamRequest {
            content: Some(content),
        })
        .collect();
    let called = fixture
        .blocks()
        .write_stream(tokio_stream::iter(messages))
        .await?;
    Ok(called.into_inner())
}

async fn read(
    fixture: &Fixture,
    offset_bytes: u64,
    length_bytes: Option<u64>,
) -> Result<Streaming<ReadStreamResponse>, Status> {
    let request = ReadStreamRequest {
        volume: VOLUME.into(),
        offset_bytes,
        length_bytes,
        ..ReadStreamRequest::default()
    };
    Ok(fixture.blocks().read_stream(request).await?.into_inner())
}

/// All bytes of a streamed read, and how many of them were told as zeros.
async fn collect(mut stream: Streaming<ReadStreamResponse>) -> (Vec<u8>, u64) {
    let (mut bytes, mut zeroes) = (Vec::new(), 0);
    while let Some(chunk) = stream.message().await.expect("no failure") {
        match chunk.content.expect("content") {
            ReadContent::Data(data) => bytes.extend_from_slice(&data),
            ReadContent::ZeroesBytes(count) => {
                zeroes += count;
                let length = bytes.len() + usize::try_from(count).expect("small volumes");
                bytes.resize(length, 0);
            }
        }
    }
    (bytes, zeroes)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| u8::try_from(index * 31 % 251).expect("below 251"))
        .collect()
}

#[test]
fn an_image_that_is_streamed_in_is_streamed_out_with_its_holes() {
    run(async {
        let fixture = Fixture::new().await;
        let first = pattern(1 << 20);
        let second = pattern(100_352);
        let messages = vec![
            opening(0, Durability::Data),
            Content::Data(first.clone().into()),
            Content::ZeroesBytes(2 << 20),
            Content::DiscardBytes(1 << 20),
            Content::Data(second.clone().into()),
        ];
        let summary = write(&fixture, messages).await.expect("written");
        let expected = WriteStreamResponse {
            data_bytes: (1 << 20) + 100_352,
            zeroes_bytes: 2 << 20,
            discarded_bytes: 1 << 20,
            durability: Durability::Data.into(),
        };
        assert_eq!(summary, expected);

        let mut image = first;
        image.resize(4 << 20, 0);
        image.extend_from_slice(&second);
        image.resize(8 << 20, 0);
        let (bytes, zeroes) = collect(read(&fixture, 0, None).await.expect("read")).await;
        assert!(bytes == image, "the image comes back");
        // 100352 bytes are 24.5 units; the last half unit is sent, not told.
        assert_eq!(zeroes, VOLUME_BYTES - (1 << 20) - 25 * 4096);
        fixture.stop().await;
    });
}

#[test]
fn a_part_of_a_volume_is_streamed_from_and_to_where_it_was_asked() {
    run(async {
        let fixture = Fixture::new().await;
        let data = pattern(1536);
        let messages = vec![
            opening(512, Durability::Unspecified),
            Content::Data(data.clone().into()),
        ];
        let summary = write(&fixture, messages).await.expect("written");
        assert_eq!(summary.durability(), Durability::None);
        let stream = read(&fixture, 1024, Some(512)).await.expect("read");
        let (bytes, zeroes) = collect(stream).await;
        assert_eq!((bytes.as_slice(), zeroes), (&data[512..1024], 0));
        let at_the_end = read(&fixture, VOLUME_BYTES, None).await.expect("read");
        assert_eq!(collect(at_the_end).await, (Vec::new(), 0));
        fixture.stop().await;
    });
}

#[test]
fn wrong_ranges_of_a_streamed_read_are_refused() {
    run(async {
        let fixture = Fixture::new().await;
        for (offset, length, code, reason) in [
            (0, Some(0), Code::InvalidArgument, ErrorReason::ZeroLength),
            (1, None, Code::InvalidArgument, ErrorReason::Unaligned),
            (0, Some(100), Code::InvalidArgument, ErrorReason::Unaligned),
            (
                VOLUME_BYTES + 512,
                None,
                Code::OutOfRange,
                ErrorReason::BeyondEnd,
            ),
            (
                512,
                Some(VOLUME_BYTES),
                Code::OutOfRange,
                ErrorReason::BeyondEnd,
            ),
            (
                512,
                Some(u64::MAX - 511),
                Code::OutOfRange,
                ErrorReason::BeyondEnd,
            ),
        ] {
            let refused = read(&fixture, offset, length).await.map(|_| ());
            failed(refused, code, reason);
        }
        fixture.stop().await;
    });
}

#[test]
fn wrong_messages_of_a_streamed_write_are_refused() {
    run(async {
        let fixture = Fixture::new().await;
        let open = || opening(0, Durability::None);
        let invalid = Code::InvalidArgument;
        let early = Code::FailedPrecondition;
        for (messages, code, reason) in [
            (Vec::new(), early, ErrorReason::StreamNotOpen),
            (
                vec![Content::Data(vec![1; 512].into())],
                early,
                ErrorReason::StreamNotOpen,
            ),
            (vec![open(), open()], early, ErrorReason::StreamNotOpen),
            (
                vec![open(), Content::Data(Vec::new().into())],
                invalid,
                ErrorReason::ZeroLength,
            ),
            (
                vec![open(), Content::ZeroesBytes(0)],
                invalid,
                ErrorReason::ZeroLength,
            ),
            (
                vec![open(), Content::DiscardBytes(100)],
                invalid,
                ErrorReason::Unaligned,
            ),
            (
                vec![open(), Content::Data(vec![1; 100].into())],
                invalid,
                ErrorReason::Unaligned,
            ),
            (
                vec![open(), Content::Data(vec![1; (1 << 20) + 512].into())],
                invalid,
                ErrorReason::LengthTooLong,
            ),
            (
                vec![open(), Content::ZeroesBytes(VOLUME_BYTES + 512)],
                Code::OutOfRange,
                ErrorReason::BeyondEnd,
            ),
            (
                vec![
                    open(),
                    Content::ZeroesBytes(512),
                    Content::ZeroesBytes(u64::MAX - 511),
                ],
                Code::OutOfRange,
                ErrorReason::BeyondEnd,
            ),
        ] {
            failed(write(&fixture, messages).await, code, reason);
        }
        fixture.stop().await;
    });
}

#[test]
fn a_failure_in_the_middle_ends_a_streamed_write_and_a_streamed_read() {
    run(async {
        let fixture = Fixture::new().await;
        let data = || Content::Data(pattern(1 << 20).into());
        let messages = || vec![opening(0, Durability::None), data(), data(), data()];
        write(&fixture, messages()).await.expect("written");
        fixture.fail(Some(IoError::NoSpace));
        failed(
            write(&fixture, messages()).await,
            Code::ResourceExhausted,
            ErrorReason::NoSpace,
        );
        fixture.fail(Some(IoError::Damaged));
        let mut stream = read(&fixture, 0, None).await.expect("it begins");
        let broken = loop {
            match stream.message().await {
                Ok(Some(_chunk)) => {}
                Ok(None) => panic!("it ends well"),
                Err(status) => break status,
            }
        };
        failed(Err::<(), _>(broken), Code::DataLoss, ErrorReason::Corrupt);
        fixture.stop().await;
    });
}

#[test]
fn a_client_that_leaves_a_streamed_read_leaves_nothing_behind() {
    run(async {
        let fixture = Fixture::new().await;
        let data = || Content::Data(pattern(1 << 20).into());
        let messages = vec![opening(0, Durability::None), data(), data(), data()];
        write(&fixture, messages).await.expect("written");
        fixture.hold(true);
        let stream = read(&fixture, 0, None).await.expect("it begins");
        while fixture.core.stats().requests.read() == 0 {
            tokio::task::yield_now().await;
        }
        drop(stream);
        fixture.hold(false);
        fixture.stop().await;
    });
}

#[test]
fn clients_that_do_not_read_their_chunks_keep_no_buffers_from_others() {
    run(async {
        let fixture = Fixture::new().await;
        let mut messages = vec![opening(0, Durability::None)];
        messages.extend((0..8).map(|_| Content::Data(pattern(1 << 20).into())));
        write(&fixture, messages).await.expect("written");
        let mut streams = Vec::new();
        for _ in 0..4 {
            // Streams of one connection would wait for its window, not for a buffer.
            let mut blocks = BlockServiceClient::new(connect(fixture.address).await);
            let request = ReadStreamRequest {
                volume: VOLUME.into(),
                ..ReadStreamRequest::default()
            };
            let begun = blocks.read_stream(request).await.expect("it begins");
            streams.push(begun.into_inner());
        }
        // Together they ask for more buffers than there are.
        while fixture.core.stats().buffer_waits.read() == 0 {
            tokio::task::yield_now().await;
        }
        let mut blocks = BlockServiceClient::new(connect(fixture.address).await);
        for _ in 0..20 {
            let request = ReadRequest {
                volume: VOLUME.into(),
                length_bytes: 1 << 20,
                ..ReadRequest::default()
            };
            blocks.read(request).await.expect("a buffer is found");
        }
        for stream in streams {
            let (bytes, zeroes) = collect(stream).await;
            assert_eq!((bytes.len() as u64, zeroes), (VOLUME_BYTES, 0));
        }
        fixture.stop().await;
    });
}
