//! The Io stream.

use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::{
    Durability, ErrorReason, IoFlush, IoOpen, IoRead, IoRequest, IoResponse, IoWrite, ReadRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::fixture::{Fixture, VOLUME, VOLUME_BYTES, connect, failed, run};

/// The two ends of a stream.
struct Ends {
    requests: mpsc::Sender<IoRequest>,
    answers: Streaming<IoResponse>,
}

fn message(tag: u64, operation: Operation) -> IoRequest {
    IoRequest {
        tag,
        operation: Some(operation),
    }
}

fn opening(volume: &str, credits: u32) -> Operation {
    Operation::Open(IoOpen {
        volume: volume.into(),
        credits,
        ..IoOpen::default()
    })
}

fn read(offset_bytes: u64, length_bytes: u32) -> Operation {
    Operation::Read(IoRead {
        offset_bytes,
        length_bytes,
    })
}

fn write(offset_bytes: u64, data: Vec<u8>) -> Operation {
    Operation::Write(IoWrite {
        offset_bytes,
        data: data.into(),
        durability: 0,
    })
}

impl Ends {
    /// Sends the first message and waits for the headers.
    async fn begin(fixture: &Fixture, first: IoRequest) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(1024);
        requests.send(first).await.expect("room");
        let called = fixture.blocks().io(ReceiverStream::new(receiver)).await?;
        Ok(Self {
            requests,
            answers: called.into_inner(),
        })
    }

    async fn open(fixture: &Fixture, credits: u32) -> Self {
        let first = message(99, opening(VOLUME, credits));
        let mut ends = Self::begin(fixture, first).await.expect("open");
        let (tag, outcome) = ends.answer().await;
        assert_eq!(tag, 99);
        let Outcome::Opened(opened) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(opened.size_bytes, VOLUME_BYTES);
        assert_eq!(opened.block_size_bytes, 512);
        assert_eq!(opened.durability(), Durability::None);
        let granted = if credits == 0 { 256 } else { credits.min(256) };
        assert_eq!(opened.credits, granted);
        ends
    }

    async fn send(&self, tag: u64, operation: Operation) {
        let sent = self.requests.send(message(tag, operation)).await;
        sent.expect("the stream is open");
    }

    async fn answer(&mut self) -> (u64, Outcome) {
        let answer = self.answers.message().await.expect("no failure");
        let answer = answer.expect("an answer");
        (answer.tag, answer.result.expect("a result"))
    }

    async fn refusal(&mut self, tag: u64) -> ErrorReason {
        let (answered, outcome) = self.answer().await;
        assert_eq!(answered, tag);
        let Outcome::Error(error) = outcome else {
            panic!("{outcome:?}");
        };
        let reason = error.detail.as_ref().expect("a detail").reason();
        assert_eq!(i32::try_from(error.code), Ok(i32::from(reason.code())));
        reason
    }

    /// Says that no request follows, and expects the end.
    async fn close(mut self) {
        drop(self.requests);
        assert_eq!(self.answers.message().await.expect("no failure"), None);
    }
}

#[test]
fn a_stream_carries_every_kind_of_request() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 0).await;
        ends.send(0, write(512, vec![3; 4096])).await;
        let written = ends.answer().await;
        assert_eq!(written, (0, Outcome::Durability(Durability::None.into())));
        ends.send(1, read(512, 4096)).await;
        assert_eq!(
            ends.answer().await,
            (1, Outcome::Data(vec![3; 4096].into()))
        );
        ends.send(2, Operation::Flush(IoFlush {})).await;
        let flushed = ends.answer().await;
        assert_eq!(flushed, (2, Outcome::Durability(Durability::Data.into())));
        let compare = lode_api::v1::IoCompareAndWrite {
            offset_bytes: 512,
            compare: vec![3; 512].into(),
            data: vec![4; 512].into(),
            durability: Durability::Full.into(),
        };
        ends.send(3, Operation::CompareAndWrite(compare)).await;
        let compared = ends.answer().await;
        assert_eq!(compared, (3, Outcome::Durability(Durability::Full.into())));
        let zeroes = lode_api::v1::IoWriteZeroes {
            offset_bytes: 0,
            length_bytes: 4096,
            durability: 0,
        };
        ends.send(4, Operation::WriteZeroes(zeroes)).await;
        assert!(matches!(ends.answer().await, (4, Outcome::Durability(_))));
        let discard = lode_api::v1::IoDiscard {
            offset_bytes: 0,
            length_bytes: VOLUME_BYTES,
            durability: 0,
        };
        ends.send(5, Operation::Discard(discard)).await;
        assert!(matches!(ends.answer().await, (5, Outcome::Durability(_))));
        ends.send(6, read(0, 512)).await;
        assert_eq!(ends.answer().await, (6, Outcome::Data(vec![0; 512].into())));
        ends.close().await;
        fixture.stop().await;
    });
}

#[test]
fn answers_come_in_the_order_in_which_requests_end() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 8).await;
        fixture.hold(true);
        for tag in [10, 11, 12] {
            ends.send(tag, read(0, 512)).await;
        }
        fixture.until_requests(3).await;
        fixture.hold(false);
        for tag in [12, 11, 10] {
            assert_eq!(ends.answer().await.0, tag);
        }
        fixture.stop().await;
    });
}

#[test]
fn a_request_without_a_credit_is_refused_and_the_others_go_on() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 2).await;
        fixture.hold(true);
        ends.send(1, read(0, 512)).await;
        ends.send(2, read(512, 512)).await;
        ends.send(3, read(1024, 512)).await;
        assert_eq!(ends.refusal(3).await, ErrorReason::Credits);
        fixture.hold(false);
        let mut tags = [ends.answer().await.0, ends.answer().await.0];
        tags.sort_unstable();
        assert_eq!(tags, [1, 2]);
        ends.send(3, read(1024, 512)).await;
        assert!(matches!(ends.answer().await, (3, Outcome::Data(_))));
        fixture.stop().await;
    });
}

#[test]
fn wrong_requests_are_answered_under_their_tags_and_leave_the_stream_open() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 8).await;
        fixture.hold(true);
        ends.send(7, read(0, 512)).await;
        ends.send(7, read(0, 512)).await;
        assert_eq!(ends.refusal(7).await, ErrorReason::TagInUse);
        fixture.hold(false);
        assert!(matches!(ends.answer().await, (7, Outcome::Data(_))));
        for (tag, operation, reason) in [
            (1, read(0, 0), ErrorReason::ZeroLength),
            (2, read(1, 512), ErrorReason::Unaligned),
            (3, read(VOLUME_BYTES, 512), ErrorReason::BeyondEnd),
            (4, read(0, (1 << 20) + 512), ErrorReason::LengthTooLong),
            (
                5,
                write(0, vec![0; (1 << 20) + 1]),
                ErrorReason::LengthTooLong,
            ),
            (6, opening(VOLUME, 1), ErrorReason::StreamNotOpen),
        ] {
            ends.send(tag, operation).await;
            assert_eq!(ends.refusal(tag).await, reason);
        }
        let empty = IoRequest {
            tag: 8,
            operation: None,
        };
        ends.requests.send(empty).await.expect("open");
        assert_eq!(ends.refusal(8).await, ErrorReason::InvalidField);
        ends.send(9, read(0, 512)).await;
        assert!(matches!(ends.answer().await, (9, Outcome::Data(_))));
        ends.close().await;
        fixture.stop().await;
    });
}

#[test]
fn a_first_message_that_opens_no_volume_ends_the_call() {
    run(async {
        let fixture = Fixture::new().await;
        let began = Ends::begin(&fixture, message(1, read(0, 512))).await;
        failed(
            began.map(|_| ()),
            Code::FailedPrecondition,
            ErrorReason::StreamNotOpen,
        );
        let began = Ends::begin(&fixture, message(1, opening("absent", 0))).await;
        failed(
            began.map(|_| ()),
            Code::NotFound,
            ErrorReason::VolumeNotFound,
        );
        fixture.stop().await;
    });
}

#[test]
fn a_deleted_volume_is_not_found_and_its_name_is_not_taken_for_it() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 8).await;
        let delete = lode_api::v1::DeleteVolumeRequest {
            name: VOLUME.into(),
            ..lode_api::v1::DeleteVolumeRequest::default()
        };
        fixture
            .volumes()
            .delete_volume(delete)
            .await
            .expect("deleted");
        fixture.create(VOLUME, VOLUME_BYTES, 512).await;
        ends.send(1, read(0, 512)).await;
        assert_eq!(ends.refusal(1).await, ErrorReason::VolumeNotFound);
        fixture.stop().await;
    });
}

#[test]
fn requests_under_way_are_answered_after_the_client_has_sent_its_last() {
    run(async {
        let fixture = Fixture::new().await;
        let ends = Ends::open(&fixture, 8).await;
        fixture.hold(true);
        ends.send(1, read(0, 512)).await;
        ends.send(2, read(0, 512)).await;
        fixture.until_requests(2).await;
        let Ends {
            requests,
            mut answers,
        } = ends;
        drop(requests);
        fixture.hold(false);
        for _ in 0..2 {
            assert!(answers.message().await.expect("no failure").is_some());
        }
        assert_eq!(answers.message().await.expect("no failure"), None);
        fixture.stop().await;
    });
}

#[test]
fn a_client_that_vanishes_leaves_nothing_behind() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.hold(true);
        // The first vanishes with as many bytes under way as a stream may have, the second while
        // it waits for a buffer.
        for is_second in [false, true] {
            let ends = Ends::open(&fixture, 0).await;
            for tag in 0..16 {
                ends.send(tag, write(tag * 4096, vec![1; 4096])).await;
            }
            for tag in 16..64 {
                ends.send(tag, read(0, 1 << 20)).await;
            }
            while !is_second && fixture.core.stats().requests.read() < 16 + 15 {
                tokio::task::yield_now().await;
            }
            while is_second && fixture.core.stats().buffer_waits.read() == 0 {
                tokio::task::yield_now().await;
            }
            drop(ends);
        }
        fixture.hold(false);
        fixture.until_requests(0).await;
        let mut ends = Ends::open(&fixture, 0).await;
        ends.send(1, read(0, 1 << 20)).await;
        assert!(matches!(ends.answer().await, (1, Outcome::Data(_))));
        fixture.stop().await;
    });
}

#[test]
fn more_requests_than_buffers_all_end() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 0).await;
        for tag in 0..200 {
            ends.send(tag, read(0, 128 << 10)).await;
        }
        for _ in 0..200 {
            assert!(matches!(ends.answer().await.1, Outcome::Data(_)));
        }
        ends.close().await;
        fixture.stop().await;
    });
}

#[test]
fn a_client_that_does_not_read_its_answers_keeps_no_buffers_from_others() {
    run(async {
        let fixture = Fixture::new().await;
        let ends = Ends::open(&fixture, 0).await;
        for tag in 0..100 {
            ends.send(tag, read(0, 1 << 20)).await;
        }
        // All buffers of that length lie in answers that are not read.
        while fixture.core.stats().buffers_lent.read() < 16 {
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
        let Ends {
            requests,
            mut answers,
        } = ends;
        drop(requests);
        let mut count = 0;
        while let Some(answer) = answers.message().await.expect("no failure") {
            assert!(matches!(answer.result, Some(Outcome::Data(data)) if data.len() == 1 << 20));
            count += 1;
        }
        assert_eq!(count, 100);
        fixture.stop().await;
    });
}

#[test]
fn a_message_beyond_the_limit_ends_the_stream_after_the_requests_before_it() {
    run(async {
        let fixture = Fixture::new().await;
        let mut ends = Ends::open(&fixture, 8).await;
        fixture.hold(true);
        ends.send(1, read(0, 512)).await;
        ends.send(2, write(0, vec![0; 3 << 20])).await;
        fixture.until_requests(1).await;
        fixture.hold(false);
        assert!(matches!(ends.answer().await, (1, Outcome::Data(_))));
        let status = ends.answers.message().await.expect_err("too long");
        assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
        fixture.stop().await;
    });
}
