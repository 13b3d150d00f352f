//! Input that no correct client sends: each is refused with its code and reason, nothing is lost.

use bytes::Bytes;
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as IoResult;
use lode_api::v1::{
    CompareAndWriteRequest, CreateVolumeRequest, DeleteVolumeRequest, DiscardRequest, ErrorReason,
    IoOpen, IoRead, IoRequest, IoWrite, ReadRequest, ResizeVolumeRequest, WriteRequest,
    WriteZeroesRequest,
};
use lode_tests::{RawCodec, Refusal, Site};
use lode_units::limits::{
    IO_LENGTH_MAX_BYTES, NAME_LENGTH_MAX_BYTES, RANGE_LENGTH_MAX_BYTES, VOLUME_SIZE_MAX_BYTES,
};
use prost::Message;
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;

const VOLUME: &str = "victim";
const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 4096;

fn read(offset_bytes: u64, length_bytes: u64) -> ReadRequest {
    ReadRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        length_bytes: u32::try_from(length_bytes).expect("a length of a test"),
        ..ReadRequest::default()
    }
}

fn write(offset_bytes: u64, length_bytes: u64) -> WriteRequest {
    WriteRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        data: Bytes::from(vec![
            7;
            usize::try_from(length_bytes)
                .expect("a length of a test")
        ]),
        ..WriteRequest::default()
    }
}

/// Ranges that no volume of `SIZE` bytes with blocks of `BLOCK` bytes takes, and why.
const BAD_RANGES: &[(u64, u64, ErrorReason)] = &[
    (0, 0, ErrorReason::ZeroLength),
    (1, BLOCK, ErrorReason::Unaligned),
    (512, BLOCK, ErrorReason::Unaligned),
    (0, BLOCK - 1, ErrorReason::Unaligned),
    (0, 512, ErrorReason::Unaligned),
    (SIZE, BLOCK, ErrorReason::BeyondEnd),
    (SIZE - BLOCK, 2 * BLOCK, ErrorReason::BeyondEnd),
    (u64::MAX - BLOCK + 1, BLOCK, ErrorReason::BeyondEnd),
];

#[tokio::test]
async fn a_bad_range_is_refused_by_every_call_with_the_same_reason() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut blocks = daemon.blocks().await;
    for &(offset, length, reason) in BAD_RANGES {
        let expected = Refusal::of(reason);
        let refused = Refusal::expected_in(blocks.read(read(offset, length)).await);
        assert_eq!(refused, expected, "read of {length} at {offset}");
        let refused = Refusal::expected_in(blocks.write(write(offset, length)).await);
        assert_eq!(refused, expected, "write of {length} at {offset}");
        let zeroes = WriteZeroesRequest {
            volume: VOLUME.to_owned(),
            offset_bytes: offset,
            length_bytes: length,
            ..WriteZeroesRequest::default()
        };
        let refused = Refusal::expected_in(blocks.write_zeroes(zeroes).await);
        assert_eq!(refused, expected, "zeroes of {length} at {offset}");
        let discard = DiscardRequest {
            volume: VOLUME.to_owned(),
            offset_bytes: offset,
            length_bytes: length,
            ..DiscardRequest::default()
        };
        let refused = Refusal::expected_in(blocks.discard(discard).await);
        assert_eq!(refused, expected, "discard of {length} at {offset}");
    }
    blocks
        .write(write(0, BLOCK))
        .await
        .expect("good input goes on");
}

#[tokio::test]
async fn the_longest_length_is_accepted_and_one_block_more_is_not() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut blocks = daemon.blocks().await;
    blocks
        .write(write(0, IO_LENGTH_MAX_BYTES))
        .await
        .expect("the longest write");
    blocks
        .read(read(0, IO_LENGTH_MAX_BYTES))
        .await
        .expect("the longest read");
    let too_long = Refusal::of(ErrorReason::LengthTooLong);
    let length = IO_LENGTH_MAX_BYTES + BLOCK;
    assert_eq!(
        Refusal::expected_in(blocks.read(read(0, length)).await),
        too_long
    );
    assert_eq!(
        Refusal::expected_in(blocks.write(write(0, length)).await),
        too_long
    );
    let range = WriteZeroesRequest {
        volume: VOLUME.to_owned(),
        length_bytes: RANGE_LENGTH_MAX_BYTES + BLOCK,
        ..WriteZeroesRequest::default()
    };
    assert_eq!(
        Refusal::expected_in(blocks.write_zeroes(range).await),
        too_long
    );
}

#[tokio::test]
async fn a_compare_of_unequal_lengths_is_refused() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let request = CompareAndWriteRequest {
        volume: VOLUME.to_owned(),
        compare: Bytes::from(vec![0; 4096]),
        data: Bytes::from(vec![0; 8192]),
        ..CompareAndWriteRequest::default()
    };
    let refused = Refusal::expected_in(daemon.blocks().await.compare_and_write(request).await);
    assert_eq!(refused, Refusal::of(ErrorReason::LengthMismatch));
}

fn creation(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        size_bytes: SIZE,
        ..CreateVolumeRequest::default()
    }
}

#[tokio::test]
async fn a_name_that_is_empty_or_too_long_is_refused_and_the_longest_is_not() {
    let daemon = Site::new().start();
    let mut volumes = daemon.volumes().await;
    let invalid = Refusal::of(ErrorReason::InvalidName);
    let too_long = "n".repeat(NAME_LENGTH_MAX_BYTES + 1);
    for name in ["", too_long.as_str()] {
        let refused = Refusal::expected_in(volumes.create_volume(creation(name)).await);
        assert_eq!(refused, invalid, "a name of {} bytes", name.len());
    }
    let longest = "n".repeat(NAME_LENGTH_MAX_BYTES);
    volumes
        .create_volume(creation(&longest))
        .await
        .expect("the longest name");
}

#[tokio::test]
async fn a_name_that_is_not_utf_8_is_refused_and_the_connection_goes_on() {
    let daemon = Site::new().start();
    let channel = daemon.connect().await;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("the daemon is there");
    // Field 2 is the name, a string of four bytes; 0xff begins no character.
    let mut message = vec![0x12, 4, b'a', 0xff, 0xfe, b'b'];
    message.extend(creation("").encode_to_vec());
    let path = PathAndQuery::from_static("/lodestore.v1.VolumeService/CreateVolume");
    let request = tonic::Request::new(Bytes::from(message));
    let refused = Refusal::expected_in(grpc.unary(request, path.clone(), RawCodec).await);
    assert_eq!(refused.code, Code::InvalidArgument);

    grpc.ready().await.expect("the connection is there");
    let good = tonic::Request::new(Bytes::from(creation("fine").encode_to_vec()));
    grpc.unary(good, path, RawCodec)
        .await
        .expect("good input goes on");
}

#[tokio::test]
async fn a_volume_of_an_impossible_shape_is_refused() {
    let daemon = Site::new().start();
    let mut volumes = daemon.volumes().await;
    for (size_bytes, block_size_bytes, reason) in [
        (0, 4096, ErrorReason::InvalidSize),
        (SIZE + 512, 4096, ErrorReason::InvalidSize),
        (VOLUME_SIZE_MAX_BYTES + 4096, 4096, ErrorReason::InvalidSize),
        (SIZE, 1024, ErrorReason::InvalidBlockSize),
        (SIZE, 1, ErrorReason::InvalidBlockSize),
    ] {
        let request = CreateVolumeRequest {
            size_bytes,
            block_size_bytes,
            ..creation("shape")
        };
        let refused = Refusal::expected_in(volumes.create_volume(request).await);
        assert_eq!(
            refused,
            Refusal::of(reason),
            "{size_bytes} in {block_size_bytes}"
        );
    }
    let largest = CreateVolumeRequest {
        size_bytes: VOLUME_SIZE_MAX_BYTES,
        ..creation("largest")
    };
    volumes
        .create_volume(largest)
        .await
        .expect("thin volumes may be larger than the pool");
}

#[tokio::test]
async fn a_volume_that_is_not_there_or_was_deleted_is_not_found() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let mut blocks = daemon.blocks().await;
    let mut volumes = daemon.volumes().await;
    blocks
        .write(write(0, BLOCK))
        .await
        .expect("the volume is there");
    let deletion = DeleteVolumeRequest {
        name: VOLUME.to_owned(),
        ..DeleteVolumeRequest::default()
    };
    volumes
        .delete_volume(deletion.clone())
        .await
        .expect("the volume is there");

    let missing = Refusal::of(ErrorReason::VolumeNotFound);
    assert_eq!(
        Refusal::expected_in(blocks.read(read(0, BLOCK)).await),
        missing
    );
    assert_eq!(
        Refusal::expected_in(blocks.write(write(0, BLOCK)).await),
        missing
    );
    assert_eq!(
        Refusal::expected_in(volumes.delete_volume(deletion).await),
        missing
    );
    let resize = ResizeVolumeRequest {
        name: VOLUME.to_owned(),
        size_bytes: SIZE,
        ..ResizeVolumeRequest::default()
    };
    assert_eq!(
        Refusal::expected_in(volumes.resize_volume(resize).await),
        missing
    );
    let elsewhere = ReadRequest {
        pool: "no-such-pool".to_owned(),
        ..read(0, BLOCK)
    };
    let refused = Refusal::expected_in(blocks.read(elsewhere).await);
    assert_eq!(refused, Refusal::of(ErrorReason::PoolNotFound));
}

#[tokio::test]
async fn an_error_on_a_stream_answers_its_own_request_and_leaves_the_stream_open() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let requests = vec![
        Operation::Open(IoOpen {
            volume: VOLUME.to_owned(),
            ..IoOpen::default()
        }),
        Operation::Read(IoRead {
            offset_bytes: 1,
            length_bytes: 4096,
        }),
        Operation::Read(IoRead {
            offset_bytes: SIZE,
            length_bytes: 4096,
        }),
        Operation::Write(IoWrite {
            offset_bytes: 0,
            data: Bytes::new(),
            ..IoWrite::default()
        }),
        Operation::Write(IoWrite {
            offset_bytes: 0,
            data: Bytes::from(vec![1; 4096]),
            ..IoWrite::default()
        }),
    ];
    let messages = (0..).zip(requests).map(|(tag, operation)| IoRequest {
        tag,
        operation: Some(operation),
    });
    let mut answers = daemon
        .blocks()
        .await
        .io(tokio_stream::iter(messages.collect::<Vec<_>>()))
        .await
        .expect("the stream opens")
        .into_inner();
    let mut found = Vec::new();
    while let Some(answer) = answers.message().await.expect("the stream stays well") {
        let refusal = match answer.result.expect("an answer has a result") {
            IoResult::Error(error) => Some(Refusal::from(error)),
            IoResult::Opened(_) | IoResult::Data(_) | IoResult::Durability(_) => None,
        };
        found.push((answer.tag, refusal));
    }
    found.sort_by_key(|(tag, _)| *tag);
    let expected = [
        (0, None),
        (1, Some(Refusal::of(ErrorReason::Unaligned))),
        (2, Some(Refusal::of(ErrorReason::BeyondEnd))),
        (3, Some(Refusal::of(ErrorReason::ZeroLength))),
        (4, None),
    ];
    assert_eq!(found, expected);
}
