//! InfoService and PoolService.

use lode_api::v1::info_service_client::InfoServiceClient;
use lode_api::v1::pool_service_client::PoolServiceClient;
use lode_api::v1::{
    CreatePoolRequest, ErrorReason, ExportPoolRequest, GetInfoRequest, GetPoolRequest,
    ImportPoolRequest, Limits, ListPoolsRequest, PoolState,
};
use lode_extent::ExtentError;
use lode_server::PoolManagerError;
use lode_units::DeviceIndex;
use tonic::Code;

use crate::fixture::{Fixture, failed, run};

#[test]
fn the_limits_are_told() {
    run(async {
        let fixture = Fixture::new().await;
        let mut info = InfoServiceClient::new(fixture.channel.clone());
        let told = info
            .get_info(GetInfoRequest {})
            .await
            .expect("told")
            .into_inner();
        assert_eq!(told.limits, Some(Limits::of_this_build()));
        assert_eq!(told.core_count, 1);
        assert_eq!(told.version, env!("CARGO_PKG_VERSION"));
        fixture.stop().await;
    });
}

#[test]
fn a_pool_is_found_by_its_name_and_as_the_only_one() {
    run(async {
        let fixture = Fixture::new().await;
        let mut pools = PoolServiceClient::new(fixture.channel.clone());
        let listed = pools.list_pools(ListPoolsRequest {}).await.expect("listed");
        let listed = listed.into_inner().pools;
        assert_eq!(listed.len(), 1);
        for name in ["", "tank"] {
            let request = GetPoolRequest { name: name.into() };
            let found = pools.get_pool(request).await.expect("found").into_inner();
            let found = found.pool.expect("a pool");
            assert_eq!(
                (found.name.as_str(), found.uuid.as_str()),
                ("tank", "a-uuid")
            );
            assert_eq!(found.state(), PoolState::Ready);
            assert_eq!(found.volume_count, 1);
        }
        let request = GetPoolRequest {
            name: "other".into(),
        };
        let detail = failed(
            pools.get_pool(request).await,
            Code::NotFound,
            ErrorReason::PoolNotFound,
        );
        assert_eq!(detail.pool, "other");
        fixture.stop().await;
    });
}

#[test]
fn pools_are_made_imported_and_exported_by_the_pool_manager() {
    run(async {
        let fixture = Fixture::new().await;
        let mut pools = PoolServiceClient::new(fixture.channel.clone());
        let request = CreatePoolRequest {
            name: "tank".into(),
            devices: vec!["memory:1GiB".into()],
            request_id: "r".into(),
            allow_overwrite: true,
        };
        let made = pools.create_pool(request).await.expect("made").into_inner();
        assert_eq!(made.pool.expect("a pool").name, "tank");
        let request = ImportPoolRequest {
            devices: vec!["file:a".into()],
        };
        pools.import_pool(request).await.expect("imported");
        let request = ExportPoolRequest {
            name: "tank".into(),
        };
        pools.export_pool(request).await.expect("exported");
        let asked = fixture.pools.asked.lock().expect("not poisoned").clone();
        assert!(
            asked[0].contains("memory:1GiB") && asked[0].contains("Overwrite"),
            "{asked:?}"
        );
        assert_eq!(asked[1..], [r#"import ["file:a"]"#, "export tank"]);
        fixture.stop().await;
    });
}

#[test]
fn a_failure_of_the_pool_manager_names_the_device() {
    run(async {
        let fixture = Fixture::new().await;
        let mut pools = PoolServiceClient::new(fixture.channel.clone());
        let holds = ExtentError::HoldsPool {
            device: DeviceIndex::new(1),
        };
        *fixture.pools.fail.lock().expect("not poisoned") = Some(PoolManagerError::Pool(holds));
        let request = CreatePoolRequest {
            name: "new".into(),
            devices: vec!["file:a".into(), "file:b".into()],
            ..CreatePoolRequest::default()
        };
        let detail = failed(
            pools.create_pool(request).await,
            Code::FailedPrecondition,
            ErrorReason::DeviceHoldsPool,
        );
        assert_eq!(
            (detail.pool.as_str(), detail.device.as_str()),
            ("new", "file:b")
        );
        fixture.stop().await;
    });
}

#[test]
fn wrong_requests_never_reach_the_pool_manager() {
    run(async {
        let fixture = Fixture::new().await;
        let mut pools = PoolServiceClient::new(fixture.channel.clone());
        let invalid = Code::InvalidArgument;
        let mut request = CreatePoolRequest::default();
        let unnamed = pools.create_pool(request.clone()).await;
        failed(unnamed, invalid, ErrorReason::InvalidName);
        request.name = "new".into();
        let without = pools.create_pool(request.clone()).await;
        failed(without, invalid, ErrorReason::InvalidField);
        request.devices = vec!["memory:1".into(); 17];
        let many = pools.create_pool(request.clone()).await;
        failed(many, invalid, ErrorReason::InvalidField);
        request.devices.truncate(1);
        request.request_id = "r".repeat(65);
        let long = pools.create_pool(request).await;
        failed(long, invalid, ErrorReason::InvalidRequestId);
        let nothing = pools.import_pool(ImportPoolRequest::default()).await;
        failed(nothing, invalid, ErrorReason::InvalidField);
        let unnamed = pools.export_pool(ExportPoolRequest::default()).await;
        failed(unnamed, invalid, ErrorReason::InvalidName);
        assert!(fixture.pools.asked.lock().expect("not poisoned").is_empty());
        fixture.stop().await;
    });
}
