//! What is written is what is read, by every way in and out.

use bytes::Bytes;
use lode_api::v1::read_stream_response::Content as ReadContent;
use lode_api::v1::write_stream_request::Content as WriteContent;
use lode_api::v1::{
    CompareAndWriteRequest, CreateVolumeRequest, DiscardRequest, Durability, ErrorReason,
    FlushRequest, ReadRequest, ReadStreamRequest, WriteRequest, WriteStreamOpen,
    WriteStreamRequest, WriteZeroesRequest,
};
use lode_tests::{Daemon, Refusal, Site};
use lode_units::{Random, SeededRandom};

const VOLUME: &str = "data";
const SIZE: u64 = 16 << 20;

fn random_bytes(seed: u64, length: usize) -> Bytes {
    let mut random = SeededRandom::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

async fn write(
    daemon: &Daemon,
    offset_bytes: u64,
    data: Bytes,
    durability: Durability,
) -> Durability {
    let request = WriteRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        data,
        durability: durability.into(),
        ..WriteRequest::default()
    };
    let answer = daemon
        .blocks()
        .await
        .write(request)
        .await
        .expect("the write");
    answer.into_inner().durability()
}

async fn read(daemon: &Daemon, offset_bytes: u64, length_bytes: u32) -> Bytes {
    let request = ReadRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        length_bytes,
        ..ReadRequest::default()
    };
    let answer = daemon.blocks().await.read(request).await.expect("the read");
    answer.into_inner().data
}

#[tokio::test]
async fn a_new_volume_reads_as_zeros_and_keeps_what_is_written() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    assert!(
        read(&daemon, SIZE - 8192, 8192)
            .await
            .iter()
            .all(|byte| *byte == 0)
    );
    let data = random_bytes(1, 1 << 20);
    write(&daemon, 4096, data.clone(), Durability::None).await;
    assert_eq!(read(&daemon, 4096, 1 << 20).await, data);
    assert!(read(&daemon, 0, 4096).await.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn a_volume_of_512_byte_blocks_keeps_each_of_them() {
    for lba in ["512", "4096"] {
        keeps_blocks_of_512_bytes_on(&format!("size=256MiB&create&lba={lba}")).await;
    }
}

async fn keeps_blocks_of_512_bytes_on(device_options: &str) {
    let daemon = Site::with_options(device_options).start();
    let request = CreateVolumeRequest {
        name: VOLUME.to_owned(),
        size_bytes: 1 << 20,
        block_size_bytes: 512,
        ..CreateVolumeRequest::default()
    };
    daemon
        .volumes()
        .await
        .create_volume(request)
        .await
        .expect("the volume is made");
    let whole = random_bytes(2, 8192);
    write(&daemon, 0, whole.clone(), Durability::None).await;
    let block = random_bytes(3, 512);
    write(&daemon, 1536, block.clone(), Durability::Data).await;
    let mut expected = whole.to_vec();
    expected[1536..2048].copy_from_slice(&block);
    assert_eq!(read(&daemon, 0, 8192).await, expected);
    // The first write to a unit that nothing was written to: its other blocks are zeros.
    write(&daemon, 65536 + 512, block.clone(), Durability::None).await;
    let unit = read(&daemon, 65536, 4096).await;
    assert_eq!(unit[512..1024], block);
    assert!(
        unit[..512]
            .iter()
            .chain(&unit[1024..])
            .all(|byte| *byte == 0)
    );
}

#[tokio::test]
async fn an_answer_says_at_least_the_durability_asked_for() {
    for options in ["size=64MiB&create", "size=64MiB&create&cache=modelled"] {
        let daemon = Site::with_options(options).start();
        daemon.create_volume(VOLUME, SIZE).await;
        for asked in [Durability::None, Durability::Data, Durability::Full] {
            for offset in [0, 0, 8192] {
                let achieved = write(&daemon, offset, random_bytes(4, 4096), asked).await;
                assert!(
                    achieved >= asked,
                    "{options}: {asked:?} became {achieved:?}"
                );
            }
        }
        let flush = FlushRequest {
            volume: VOLUME.to_owned(),
            ..FlushRequest::default()
        };
        let flushed = daemon.blocks().await.flush(flush).await.expect("the flush");
        assert!(flushed.into_inner().durability() >= Durability::Data);
    }
}

#[tokio::test]
async fn zeroes_and_discards_read_as_zeros_and_give_space_back() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let data = random_bytes(5, 1 << 20);
    write(&daemon, 0, data.clone(), Durability::Data).await;
    let zeroes = WriteZeroesRequest {
        volume: VOLUME.to_owned(),
        offset_bytes: 65536,
        length_bytes: 131_072,
        ..WriteZeroesRequest::default()
    };
    daemon
        .blocks()
        .await
        .write_zeroes(zeroes)
        .await
        .expect("the zeroes");
    let discard = DiscardRequest {
        volume: VOLUME.to_owned(),
        offset_bytes: 524_288,
        length_bytes: SIZE - 524_288,
        ..DiscardRequest::default()
    };
    daemon
        .blocks()
        .await
        .discard(discard)
        .await
        .expect("the discard");
    let mut expected = data.to_vec();
    expected[65536..65536 + 131_072].fill(0);
    expected[524_288..].fill(0);
    assert_eq!(read(&daemon, 0, 1 << 20).await, expected);
}

#[tokio::test]
async fn a_compare_and_write_changes_only_what_matches() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let old = random_bytes(6, 4096);
    let new = random_bytes(7, 4096);
    write(&daemon, 0, old.clone(), Durability::None).await;
    let request = CompareAndWriteRequest {
        volume: VOLUME.to_owned(),
        compare: old,
        data: new.clone(),
        ..CompareAndWriteRequest::default()
    };
    let mut blocks = daemon.blocks().await;
    blocks
        .compare_and_write(request.clone())
        .await
        .expect("it matches");
    assert_eq!(read(&daemon, 0, 4096).await, new);
    let refused = Refusal::expected_in(blocks.compare_and_write(request).await);
    assert_eq!(refused, Refusal::of(ErrorReason::CompareMismatch));
    assert_eq!(read(&daemon, 0, 4096).await, new);
}

#[tokio::test]
async fn a_streamed_write_comes_back_from_a_streamed_read_with_its_holes() {
    let daemon = Site::new().start();
    daemon.create_volume(VOLUME, SIZE).await;
    let data = random_bytes(8, 1 << 20);
    let open = WriteStreamOpen {
        volume: VOLUME.to_owned(),
        durability: Durability::Data.into(),
        ..WriteStreamOpen::default()
    };
    let messages: Vec<WriteStreamRequest> = [
        WriteContent::Open(open),
        WriteContent::Data(data.clone()),
        WriteContent::ZeroesBytes(4 << 20),
        WriteContent::Data(data.slice(..65536)),
        WriteContent::DiscardBytes(1 << 20),
    ]
    .map(|content| WriteStreamRequest {
        content: Some(content),
    })
    .into();
    let mut blocks = daemon.blocks().await;
    let summary = blocks
        .write_stream(tokio_stream::iter(messages))
        .await
        .expect("the stream")
        .into_inner();
    assert_eq!(summary.data_bytes, (1 << 20) + 65536);
    assert_eq!(summary.zeroes_bytes, 4 << 20);
    assert_eq!(summary.discarded_bytes, 1 << 20);
    assert!(summary.durability() >= Durability::Data);

    let request = ReadStreamRequest {
        volume: VOLUME.to_owned(),
        ..ReadStreamRequest::default()
    };
    let mut chunks = blocks
        .read_stream(request)
        .await
        .expect("the stream")
        .into_inner();
    let mut content = Vec::new();
    let mut sent = 0;
    while let Some(chunk) = chunks.message().await.expect("the stream stays well") {
        match chunk.content.expect("a chunk has a content") {
            ReadContent::Data(data) => {
                sent += data.len();
                content.extend_from_slice(&data);
            }
            ReadContent::ZeroesBytes(length) => {
                content.resize(content.len() + usize::try_from(length).expect("small"), 0);
            }
        }
    }
    let mut expected = vec![0; usize::try_from(SIZE).expect("small")];
    expected[..1 << 20].copy_from_slice(&data);
    expected[5 << 20..(5 << 20) + 65536].copy_from_slice(&data[..65536]);
    assert!(
        content == expected,
        "the volume differs from what was streamed"
    );
    assert!(
        sent < 2 << 20,
        "holes are told, not sent: {sent} bytes came"
    );
}
