//! VolumeService.

use lode_api::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, Durability, ErrorReason, ExtentKind,
    GetVolumeRequest, LimitVolumeRequest, ListExtentsRequest, ListVolumesRequest,
    ResizeVolumeRequest, VolumeLimits, WriteRequest,
};
use tonic::Code;

use crate::fixture::{Fixture, VOLUME, VOLUME_BYTES, failed, run};

fn create(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        size_bytes: 1 << 20,
        ..CreateVolumeRequest::default()
    }
}

#[test]
fn a_volume_is_described_as_it_was_made() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let mut request = create("made");
        request.durability = Durability::Data.into();
        let made = volumes
            .create_volume(request)
            .await
            .expect("made")
            .into_inner();
        let made = made.volume.expect("a volume");
        assert_eq!((made.pool.as_str(), made.name.as_str()), ("tank", "made"));
        assert_eq!((made.size_bytes, made.block_size_bytes), (1 << 20, 4096));
        assert_eq!(made.durability(), Durability::Data);
        let request = GetVolumeRequest {
            pool: "tank".into(),
            name: "made".into(),
        };
        let found = volumes
            .get_volume(request)
            .await
            .expect("found")
            .into_inner();
        assert_eq!(found.volume, Some(made));
        fixture.stop().await;
    });
}

#[test]
fn limits_are_set_at_creation_and_each_can_be_changed_alone() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let limits = VolumeLimits {
            iops_max: 500,
            bandwidth_max_bytes: 1 << 20,
            burst_ms: 250,
        };
        let request = CreateVolumeRequest {
            limits: Some(limits),
            ..create("limited")
        };
        let made = volumes.create_volume(request).await.expect("made");
        assert_eq!(
            made.into_inner().volume.and_then(|made| made.limits),
            Some(limits)
        );
        let request = LimitVolumeRequest {
            name: "limited".into(),
            iops_max: Some(0),
            ..LimitVolumeRequest::default()
        };
        let changed = volumes.limit_volume(request).await.expect("changed");
        let changed = changed.into_inner().volume.and_then(|volume| volume.limits);
        let expected = VolumeLimits {
            iops_max: 0,
            ..limits
        };
        assert_eq!(changed, Some(expected));
        let request = LimitVolumeRequest {
            name: "nobody".into(),
            ..LimitVolumeRequest::default()
        };
        let refused = volumes.limit_volume(request).await;
        failed(refused, Code::NotFound, ErrorReason::VolumeNotFound);
        fixture.stop().await;
    });
}

#[test]
fn a_retried_create_is_answered_as_the_first_and_another_one_is_refused() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let mut request = create("once");
        request.request_id = "r1".into();
        let first = volumes.create_volume(request.clone()).await.expect("made");
        let again = volumes
            .create_volume(request.clone())
            .await
            .expect("the same");
        assert_eq!(first.into_inner(), again.into_inner());
        request.request_id = "r2".into();
        let detail = failed(
            volumes.create_volume(request).await,
            Code::AlreadyExists,
            ErrorReason::VolumeExists,
        );
        assert_eq!(detail.volume, "once");
        fixture.stop().await;
    });
}

#[test]
fn wrong_creates_are_told_what_is_wrong() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let ok = create("x");
        let with = |change: fn(&mut CreateVolumeRequest)| {
            let mut request = ok.clone();
            change(&mut request);
            request
        };
        for (request, reason, field) in [
            (with(|r| r.name.clear()), ErrorReason::InvalidName, "name"),
            (
                with(|r| r.name = "n".repeat(256)),
                ErrorReason::InvalidName,
                "name",
            ),
            (
                with(|r| r.name = "a\nb".into()),
                ErrorReason::InvalidName,
                "name",
            ),
            (
                with(|r| r.block_size_bytes = 1024),
                ErrorReason::InvalidBlockSize,
                "block_size_bytes",
            ),
            (
                with(|r| r.size_bytes = 0),
                ErrorReason::InvalidSize,
                "size_bytes",
            ),
            (
                with(|r| r.size_bytes = 4097),
                ErrorReason::InvalidSize,
                "size_bytes",
            ),
            (
                with(|r| r.durability = 7),
                ErrorReason::InvalidField,
                "durability",
            ),
            (
                with(|r| r.request_id = "r".repeat(65)),
                ErrorReason::InvalidRequestId,
                "request_id",
            ),
        ] {
            let refused = volumes.create_volume(request).await;
            let detail = failed(refused, Code::InvalidArgument, reason);
            assert_eq!(detail.field, field);
        }
        let longest = with(|r| r.name = "n".repeat(255));
        volumes
            .create_volume(longest)
            .await
            .expect("255 bytes are a name");
        fixture.stop().await;
    });
}

#[test]
fn a_volume_shrinks_only_when_that_is_allowed() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let mut request = ResizeVolumeRequest {
            name: VOLUME.into(),
            size_bytes: 2 * VOLUME_BYTES,
            ..ResizeVolumeRequest::default()
        };
        let grown = volumes.resize_volume(request.clone()).await.expect("grown");
        let grown = grown.into_inner().volume.expect("a volume");
        assert_eq!(grown.size_bytes, 2 * VOLUME_BYTES);
        request.size_bytes = 4096;
        failed(
            volumes.resize_volume(request.clone()).await,
            Code::FailedPrecondition,
            ErrorReason::ShrinkNotAllowed,
        );
        request.allow_shrink = true;
        volumes.resize_volume(request).await.expect("shrunk");
        fixture.stop().await;
    });
}

#[test]
fn a_deleted_volume_is_not_found() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        let request = DeleteVolumeRequest {
            name: VOLUME.into(),
            ..DeleteVolumeRequest::default()
        };
        volumes
            .delete_volume(request.clone())
            .await
            .expect("deleted");
        let detail = failed(
            volumes.delete_volume(request).await,
            Code::NotFound,
            ErrorReason::VolumeNotFound,
        );
        assert_eq!(detail.volume, VOLUME);
        fixture.stop().await;
    });
}

#[test]
fn the_pages_of_a_listing_hold_every_volume_once_in_order() {
    run(async {
        let fixture = Fixture::new().await;
        let mut volumes = fixture.volumes();
        for index in 0..10 {
            fixture.create(&format!("a{index}"), 4096, 4096).await;
        }
        let mut request = ListVolumesRequest {
            page_size: 4,
            ..ListVolumesRequest::default()
        };
        let mut names = Vec::new();
        let mut pages = 0;
        loop {
            let page = volumes.list_volumes(request.clone()).await.expect("a page");
            let page = page.into_inner();
            names.extend(page.volumes.into_iter().map(|volume| volume.name));
            pages += 1;
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(pages, 3);
        let mut expected: Vec<_> = (0..10).map(|index| format!("a{index}")).collect();
        expected.push(VOLUME.into());
        assert_eq!(names, expected);
        request.page_token = "nonsense".into();
        failed(
            volumes.list_volumes(request.clone()).await,
            Code::InvalidArgument,
            ErrorReason::InvalidPageToken,
        );
        request.page_token.clear();
        request.pool = "other".into();
        failed(
            volumes.list_volumes(request).await,
            Code::NotFound,
            ErrorReason::PoolNotFound,
        );
        fixture.stop().await;
    });
}

#[test]
fn the_pages_of_extents_cover_the_range_without_a_gap() {
    run(async {
        let fixture = Fixture::new().await;
        // Every other unit of the first sixteen holds data.
        for unit in (0..16).step_by(2) {
            let request = WriteRequest {
                volume: VOLUME.into(),
                offset_bytes: unit * 4096,
                data: vec![1; 4096].into(),
                ..WriteRequest::default()
            };
            fixture.blocks().write(request).await.expect("written");
        }
        let mut request = ListExtentsRequest {
            name: VOLUME.into(),
            offset_bytes: 512,
            page_size: 3,
            ..ListExtentsRequest::default()
        };
        let mut next = 512;
        let mut kinds = Vec::new();
        loop {
            let page = fixture
                .volumes()
                .list_extents(request.clone())
                .await
                .expect("a page");
            let page = page.into_inner();
            assert!(page.extents.len() <= 3);
            for extent in page.extents {
                assert_eq!(extent.offset_bytes, next);
                next += extent.length_bytes;
                kinds.push(extent.kind());
            }
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(next, VOLUME_BYTES);
        assert_eq!(kinds.len(), 16);
        assert!(
            kinds
                .iter()
                .step_by(2)
                .all(|kind| *kind == ExtentKind::Written)
        );
        assert!(
            kinds
                .iter()
                .skip(1)
                .step_by(2)
                .all(|kind| *kind == ExtentKind::Hole)
        );
        fixture.stop().await;
    });
}
