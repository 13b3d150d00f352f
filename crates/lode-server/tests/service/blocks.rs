//! The unary calls.

use lode_api::limits::MESSAGE_LENGTH_MAX_BYTES;
use lode_api::v1::{
    CompareAndWriteRequest, DiscardRequest, Durability, ErrorReason, FlushRequest, ReadRequest,
    WriteRequest, WriteZeroesRequest,
};
use lode_block::{DeviceError, ErrorKind};
use lode_engine::IoError;
use lode_units::DeviceIndex;
use prost::Message;
use tonic::Code;

use crate::fixture::{Fixture, VOLUME, VOLUME_BYTES, failed, run};

fn read(offset_bytes: u64, length_bytes: u32) -> ReadRequest {
    ReadRequest {
        volume: VOLUME.into(),
        offset_bytes,
        length_bytes,
        ..ReadRequest::default()
    }
}

fn write(offset_bytes: u64, data: Vec<u8>) -> WriteRequest {
    WriteRequest {
        volume: VOLUME.into(),
        offset_bytes,
        data: data.into(),
        ..WriteRequest::default()
    }
}

#[test]
fn what_is_written_is_read_back() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        let written = blocks
            .write(write(512, vec![7; 1024]))
            .await
            .expect("written");
        assert_eq!(written.into_inner().durability(), Durability::None);
        let back = blocks.read(read(0, 2048)).await.expect("read").into_inner();
        assert_eq!(back.data[..512], [0; 512]);
        assert_eq!(back.data[512..1536], [7; 1024]);
        assert_eq!(back.data[1536..], [0; 512]);
        fixture.stop().await;
    });
}

#[test]
fn the_durability_that_is_asked_for_is_reached_and_told() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        for level in [Durability::None, Durability::Data, Durability::Full] {
            let mut request = write(0, vec![1; 512]);
            request.durability = level.into();
            let written = blocks.write(request).await.expect("written");
            assert_eq!(written.into_inner().durability(), level);
        }
        let mut request = write(0, vec![1; 512]);
        request.durability = 9;
        let detail = failed(
            blocks.write(request).await,
            Code::InvalidArgument,
            ErrorReason::InvalidField,
        );
        assert_eq!(detail.field, "durability");
        let request = FlushRequest {
            volume: VOLUME.into(),
            ..FlushRequest::default()
        };
        let flushed = blocks.flush(request).await.expect("flushed");
        assert_eq!(flushed.into_inner().durability(), Durability::Data);
        fixture.stop().await;
    });
}

#[test]
fn zeroes_and_discards_and_compares_reach_the_volume() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        blocks
            .write(write(0, vec![1; 12288]))
            .await
            .expect("written");
        let zeroes = WriteZeroesRequest {
            volume: VOLUME.into(),
            length_bytes: 4096,
            ..WriteZeroesRequest::default()
        };
        blocks.write_zeroes(zeroes).await.expect("zeroed");
        let discard = DiscardRequest {
            volume: VOLUME.into(),
            offset_bytes: 4096,
            length_bytes: 4096,
            ..DiscardRequest::default()
        };
        blocks.discard(discard).await.expect("discarded");
        let back = blocks
            .read(read(0, 12288))
            .await
            .expect("read")
            .into_inner();
        assert!(back.data[..8192].iter().all(|byte| *byte == 0));
        assert!(back.data[8192..].iter().all(|byte| *byte == 1));

        let compare = CompareAndWriteRequest {
            volume: VOLUME.into(),
            offset_bytes: 8192,
            compare: vec![1; 512].into(),
            data: vec![2; 512].into(),
            ..CompareAndWriteRequest::default()
        };
        blocks
            .compare_and_write(compare.clone())
            .await
            .expect("equal");
        let detail = failed(
            blocks.compare_and_write(compare).await,
            Code::Aborted,
            ErrorReason::CompareMismatch,
        );
        assert_eq!(detail.offset_bytes, Some(8192));
        fixture.stop().await;
    });
}

#[test]
fn the_longest_request_is_served_and_one_byte_more_is_refused() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        let longest = vec![5; 1 << 20];
        blocks.write(write(0, longest)).await.expect("1 MiB");
        let back = blocks
            .read(read(0, 1 << 20))
            .await
            .expect("1 MiB")
            .into_inner();
        assert_eq!(back.data.len(), 1 << 20);
        for detail in [
            failed(
                blocks.read(read(0, (1 << 20) + 1)).await,
                Code::InvalidArgument,
                ErrorReason::LengthTooLong,
            ),
            failed(
                blocks.write(write(0, vec![5; (1 << 20) + 1])).await,
                Code::InvalidArgument,
                ErrorReason::LengthTooLong,
            ),
        ] {
            assert_eq!(detail.limit, Some(1 << 20));
        }
        let half = 512 << 10;
        let compare = |length: usize| CompareAndWriteRequest {
            volume: VOLUME.into(),
            compare: vec![5; length].into(),
            data: vec![6; length].into(),
            ..CompareAndWriteRequest::default()
        };
        blocks
            .compare_and_write(compare(half))
            .await
            .expect("512 KiB");
        let detail = failed(
            blocks.compare_and_write(compare(half + 512)).await,
            Code::InvalidArgument,
            ErrorReason::LengthTooLong,
        );
        assert_eq!(detail.limit, Some(512 << 10));
        fixture.stop().await;
    });
}

#[test]
fn a_message_as_long_as_the_limit_is_read_and_one_byte_more_is_not() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        let empty = write(0, vec![1; 1 << 21]);
        let head = empty.encoded_len() - (1 << 21);
        let longest = write(0, vec![1; MESSAGE_LENGTH_MAX_BYTES - head]);
        assert_eq!(longest.encoded_len(), MESSAGE_LENGTH_MAX_BYTES);
        // It is read, and found to hold too much data for one write.
        let refused = blocks.write(longest).await;
        failed(refused, Code::InvalidArgument, ErrorReason::LengthTooLong);
        let longer = write(0, vec![1; MESSAGE_LENGTH_MAX_BYTES - head + 1]);
        let status = blocks.write(longer).await.expect_err("not read");
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        blocks
            .read(read(0, 512))
            .await
            .expect("the connection goes on");
        fixture.stop().await;
    });
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        let invalid = Code::InvalidArgument;
        failed(
            blocks.read(read(0, 0)).await,
            invalid,
            ErrorReason::ZeroLength,
        );
        let write_nothing = blocks.write(write(0, Vec::new())).await;
        failed(write_nothing, invalid, ErrorReason::ZeroLength);
        let detail = failed(
            blocks.read(read(1, 512)).await,
            invalid,
            ErrorReason::Unaligned,
        );
        assert_eq!(
            (detail.pool.as_str(), detail.volume.as_str()),
            ("tank", VOLUME)
        );
        assert_eq!(
            (detail.offset_bytes, detail.length_bytes),
            (Some(1), Some(512))
        );
        let beyond = blocks.read(read(VOLUME_BYTES, 512)).await;
        let detail = failed(beyond, Code::OutOfRange, ErrorReason::BeyondEnd);
        assert_eq!(detail.limit, Some(VOLUME_BYTES));
        let overflowing = blocks.read(read(u64::MAX - 511, 512)).await;
        failed(overflowing, Code::OutOfRange, ErrorReason::BeyondEnd);

        let mut absent = read(0, 512);
        absent.volume = "absent".into();
        let detail = failed(
            blocks.read(absent.clone()).await,
            Code::NotFound,
            ErrorReason::VolumeNotFound,
        );
        assert_eq!(detail.volume, "absent");
        absent.volume = String::new();
        failed(blocks.read(absent).await, invalid, ErrorReason::InvalidName);
        let mut elsewhere = read(0, 512);
        elsewhere.pool = "other".into();
        let elsewhere = blocks.read(elsewhere).await;
        failed(elsewhere, Code::NotFound, ErrorReason::PoolNotFound);
        let unequal = CompareAndWriteRequest {
            volume: VOLUME.into(),
            compare: vec![1; 512].into(),
            data: vec![2; 1024].into(),
            ..CompareAndWriteRequest::default()
        };
        let unequal = blocks.compare_and_write(unequal).await;
        failed(unequal, invalid, ErrorReason::LengthMismatch);
        fixture.stop().await;
    });
}

#[test]
fn a_device_error_reaches_the_client_with_its_status_and_the_next_call_works() {
    run(async {
        let fixture = Fixture::new().await;
        let mut blocks = fixture.blocks();
        fixture.fail(Some(IoError::Device {
            device: DeviceIndex::new(0),
            offset_bytes: 512,
            length_bytes: 512,
            error: DeviceError {
                kind: ErrorKind::Media,
                status: Some(0x281),
            },
        }));
        let failure = blocks.read(read(0, 4096)).await;
        let detail = failed(failure, Code::DataLoss, ErrorReason::MediaError);
        assert_eq!(detail.device_status, Some(0x281));
        assert_eq!(
            (detail.offset_bytes, detail.length_bytes),
            (Some(512), Some(512))
        );
        fixture.fail(None);
        blocks.read(read(0, 4096)).await.expect("the call works");
        fixture.stop().await;
    });
}

#[test]
fn the_buffer_of_a_call_that_its_client_gives_up_comes_back_with_the_completion() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.hold(true);
        let mut blocks = fixture.blocks();
        let call = tokio::spawn(async move { blocks.read(read(0, 4096)).await });
        while fixture.core.stats().buffers_lent.read() == 0 {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.expect_err("aborted").is_cancelled());
        fixture.hold(false);
        fixture.stop().await;
    });
}
