//! Retried mutations, also across a restart.

use lode_api::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, ErrorReason, GetVolumeRequest, Volume,
};
use lode_tests::{Daemon, Refusal, Site};
use tonic::Status;

const SIZE: u64 = 8 << 20;

fn creation(name: &str, request_id: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        size_bytes: SIZE,
        request_id: request_id.to_owned(),
        ..CreateVolumeRequest::default()
    }
}

async fn create(daemon: &Daemon, request: CreateVolumeRequest) -> Result<Volume, Status> {
    let answer = daemon.volumes().await.create_volume(request).await?;
    Ok(answer
        .into_inner()
        .volume
        .expect("the answer holds the volume"))
}

async fn delete(daemon: &Daemon, name: &str, request_id: &str) -> Result<(), Status> {
    let request = DeleteVolumeRequest {
        name: name.to_owned(),
        request_id: request_id.to_owned(),
        ..DeleteVolumeRequest::default()
    };
    daemon.volumes().await.delete_volume(request).await?;
    Ok(())
}

async fn exists(daemon: &Daemon, name: &str) -> bool {
    let request = GetVolumeRequest {
        name: name.to_owned(),
        ..GetVolumeRequest::default()
    };
    daemon.volumes().await.get_volume(request).await.is_ok()
}

#[tokio::test]
async fn a_retried_creation_is_answered_as_the_first_time_also_after_a_kill() {
    let site = Site::with_options("size=256MiB&create&cache=modelled");
    let daemon = site.start();
    let first = create(&daemon, creation("once", "id-1"))
        .await
        .expect("it is made");
    let again = create(&daemon, creation("once", "id-1"))
        .await
        .expect("a retry");
    assert_eq!(again.id, first.id);
    let refused = Refusal::expected_in(create(&daemon, creation("once", "id-2")).await);
    assert_eq!(refused, Refusal::of(ErrorReason::VolumeExists));
    let refused = Refusal::expected_in(create(&daemon, creation("once", "")).await);
    assert_eq!(refused, Refusal::of(ErrorReason::VolumeExists));
    daemon.kill();

    let daemon = site.start();
    let after = create(&daemon, creation("once", "id-1"))
        .await
        .expect("a retry");
    assert_eq!(after.id, first.id);
}

#[tokio::test]
async fn a_request_id_used_for_something_else_is_refused() {
    let daemon = Site::new().start();
    create(&daemon, creation("one", "id-1"))
        .await
        .expect("it is made");
    let refused = Refusal::expected_in(create(&daemon, creation("two", "id-1")).await);
    assert_eq!(refused, Refusal::of(ErrorReason::RequestIdReused));
    assert!(!exists(&daemon, "two").await);
}

#[tokio::test]
async fn a_retried_deletion_spares_a_new_volume_of_the_same_name_also_after_a_kill() {
    let site = Site::with_options("size=256MiB&create&cache=modelled");
    let daemon = site.start();
    let old = create(&daemon, creation("name", "id-1"))
        .await
        .expect("it is made");
    delete(&daemon, "name", "id-2").await.expect("it is there");
    delete(&daemon, "name", "id-2").await.expect("a retry");
    let new = create(&daemon, creation("name", "id-3"))
        .await
        .expect("the name is free");
    assert_ne!(new.id, old.id);
    delete(&daemon, "name", "id-2").await.expect("a retry");
    assert!(
        exists(&daemon, "name").await,
        "the retry spared the new volume"
    );
    daemon.kill();

    let daemon = site.start();
    delete(&daemon, "name", "id-2").await.expect("a retry");
    assert!(
        exists(&daemon, "name").await,
        "the retry spared the new volume"
    );
    delete(&daemon, "name", "id-4").await.expect("it is there");
    assert!(!exists(&daemon, "name").await);
}
