//! The life of volumes.

use bytes::Bytes;
use lode_api::v1::{
    CreateVolumeRequest, Durability, ErrorReason, ExtentKind, GetVolumeRequest, ListExtentsRequest,
    ListVolumesRequest, ReadRequest, ResizeVolumeRequest, WriteRequest,
};
use lode_tests::{Refusal, Site};

const SIZE: u64 = 8 << 20;

#[tokio::test]
async fn a_volume_is_described_as_it_was_made() {
    let daemon = Site::with_options("size=256MiB&create&lba=512").start();
    let request = CreateVolumeRequest {
        pool: "tank".to_owned(),
        name: "described".to_owned(),
        size_bytes: SIZE,
        block_size_bytes: 512,
        durability: Durability::Data.into(),
        ..CreateVolumeRequest::default()
    };
    let mut volumes = daemon.volumes().await;
    let made = volumes
        .create_volume(request)
        .await
        .expect("it is made")
        .into_inner();
    let made = made.volume.expect("the answer holds the volume");
    assert_eq!(made.name, "described");
    assert_eq!(made.pool, "tank");
    assert_eq!(made.size_bytes, SIZE);
    assert_eq!(made.block_size_bytes, 512);
    assert_eq!(made.durability(), Durability::Data);
    let request = GetVolumeRequest {
        name: "described".to_owned(),
        ..GetVolumeRequest::default()
    };
    let found = volumes
        .get_volume(request)
        .await
        .expect("it is there")
        .into_inner();
    assert_eq!(found.volume, Some(made));
}

#[tokio::test]
async fn a_listing_shows_every_volume_once_page_by_page_in_order() {
    let daemon = Site::new().start();
    let names: Vec<String> = (0..25).map(|index| format!("v{index:02}")).collect();
    for name in names.iter().rev() {
        daemon.create_volume(name, SIZE).await;
    }
    let mut volumes = daemon.volumes().await;
    let mut found = Vec::new();
    let mut page_token = String::new();
    for _ in 0..names.len() {
        let request = ListVolumesRequest {
            page_size: 10,
            page_token,
            ..ListVolumesRequest::default()
        };
        let page = volumes
            .list_volumes(request)
            .await
            .expect("a page")
            .into_inner();
        assert!(page.volumes.len() <= 10);
        found.extend(page.volumes.into_iter().map(|volume| volume.name));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, names);
    let request = ListVolumesRequest {
        page_token: "no-token-of-this-server".to_owned(),
        ..ListVolumesRequest::default()
    };
    let refused = Refusal::expected_in(volumes.list_volumes(request).await);
    assert_eq!(refused, Refusal::of(ErrorReason::InvalidPageToken));
}

#[tokio::test]
async fn a_resize_goes_both_ways_and_what_grows_back_reads_as_zeros() {
    let daemon = Site::new().start();
    daemon.create_volume("elastic", SIZE).await;
    let mut volumes = daemon.volumes().await;
    let mut blocks = daemon.blocks().await;
    let write = WriteRequest {
        volume: "elastic".to_owned(),
        offset_bytes: SIZE - 8192,
        data: Bytes::from(vec![5; 8192]),
        durability: Durability::Data.into(),
        ..WriteRequest::default()
    };
    blocks.write(write).await.expect("the write");
    let resize = |size_bytes, allow_shrink| ResizeVolumeRequest {
        name: "elastic".to_owned(),
        size_bytes,
        allow_shrink,
        ..ResizeVolumeRequest::default()
    };
    let refused = Refusal::expected_in(volumes.resize_volume(resize(SIZE - 4096, false)).await);
    assert_eq!(refused, Refusal::of(ErrorReason::ShrinkNotAllowed));
    volumes
        .resize_volume(resize(SIZE - 4096, true))
        .await
        .expect("the shrink");
    let read = |offset_bytes| ReadRequest {
        volume: "elastic".to_owned(),
        offset_bytes,
        length_bytes: 4096,
        ..ReadRequest::default()
    };
    let refused = Refusal::expected_in(blocks.read(read(SIZE - 4096)).await);
    assert_eq!(refused, Refusal::of(ErrorReason::BeyondEnd));
    volumes
        .resize_volume(resize(2 * SIZE, false))
        .await
        .expect("the growth");
    let kept = blocks
        .read(read(SIZE - 8192))
        .await
        .expect("the read")
        .into_inner()
        .data;
    assert!(kept.iter().all(|byte| *byte == 5));
    let cut = blocks
        .read(read(SIZE - 4096))
        .await
        .expect("the read")
        .into_inner()
        .data;
    assert!(
        cut.iter().all(|byte| *byte == 0),
        "what was cut off must not come back"
    );
}

#[tokio::test]
async fn extents_cover_a_volume_and_tell_data_from_holes() {
    let daemon = Site::new().start();
    daemon.create_volume("sparse", SIZE).await;
    let write = WriteRequest {
        volume: "sparse".to_owned(),
        offset_bytes: 1 << 20,
        data: Bytes::from(vec![5; 65536]),
        durability: Durability::Data.into(),
        ..WriteRequest::default()
    };
    daemon.blocks().await.write(write).await.expect("the write");
    let request = ListExtentsRequest {
        name: "sparse".to_owned(),
        ..ListExtentsRequest::default()
    };
    let page = daemon
        .volumes()
        .await
        .list_extents(request)
        .await
        .expect("a page")
        .into_inner();
    assert!(page.next_page_token.is_empty());
    let mut end = 0;
    let mut written = 0;
    for extent in &page.extents {
        assert_eq!(extent.offset_bytes, end, "no gap and no overlap");
        end += extent.length_bytes;
        if extent.kind() == ExtentKind::Written {
            written += extent.length_bytes;
        }
    }
    assert_eq!(end, SIZE);
    assert_eq!(written, 65536);
}
