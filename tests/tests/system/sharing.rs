//! Pools on namespaces of one controller.

use bytes::Bytes;
use lode_api::v1::{
    CreatePoolRequest, CreateVolumeRequest, Durability, ErrorReason, ExportPoolRequest,
    ImportPoolRequest, ReadRequest, WriteRequest,
};
use lode_tests::{Daemon, Refusal, Site, http};

const OPTIONS: &str = "size=192MiB&create&namespaces=3";

/// The devices of this site, one for each namespace.
fn devices(site: &Site) -> [String; 3] {
    let file = site.device_file();
    [1, 2, 3].map(|namespace| format!("file:{}?{OPTIONS}&namespace={namespace}", file.display()))
}

async fn create(daemon: &Daemon, pool: &str, devices: &[String]) -> Result<(), tonic::Status> {
    let request = CreatePoolRequest {
        name: pool.to_owned(),
        devices: devices.to_vec(),
        ..CreatePoolRequest::default()
    };
    let created = daemon.pools().await.create_pool(request).await;
    created.map(|_| ())
}

async fn fill(daemon: &Daemon, pool: &str, fill: u8) {
    let request = CreateVolumeRequest {
        pool: pool.to_owned(),
        name: pool.to_owned(),
        size_bytes: 8 << 20,
        ..CreateVolumeRequest::default()
    };
    let created = daemon.volumes().await.create_volume(request).await;
    created.expect("a volume");
    let request = WriteRequest {
        pool: pool.to_owned(),
        volume: pool.to_owned(),
        data: Bytes::from(vec![fill; 65536]),
        durability: Durability::Data.into(),
        ..WriteRequest::default()
    };
    daemon.blocks().await.write(request).await.expect("a write");
}

async fn holds(daemon: &Daemon, pool: &str, fill: u8) -> bool {
    let request = ReadRequest {
        pool: pool.to_owned(),
        volume: pool.to_owned(),
        length_bytes: 65536,
        ..ReadRequest::default()
    };
    let answer = daemon.blocks().await.read(request).await.expect("a read");
    answer.into_inner().data.iter().all(|byte| *byte == fill)
}

async fn export(daemon: &Daemon, pool: &str) {
    let name = pool.to_owned();
    let exported = daemon
        .pools()
        .await
        .export_pool(ExportPoolRequest { name })
        .await;
    exported.expect("an export");
}

/// How many controllers the metrics show.
fn controllers(daemon: &Daemon) -> usize {
    let body = http::get(daemon.http(), "/metrics").body;
    body.lines()
        .filter(|line| line.starts_with("lodestore_nvme_resets_total{"))
        .count()
}

#[tokio::test]
async fn two_pools_share_a_controller_until_the_last_lets_go_of_it() {
    let site = Site::without_pools();
    let daemon = site.start();
    let [first, second, third] = devices(&site);
    create(&daemon, "pair", &[first.clone(), second.clone()])
        .await
        .expect("a pool on two namespaces");
    create(&daemon, "single", std::slice::from_ref(&third))
        .await
        .expect("a pool on the third");
    assert_eq!(controllers(&daemon), 1, "opened once");
    fill(&daemon, "pair", 1).await;
    fill(&daemon, "single", 2).await;

    export(&daemon, "pair").await;
    assert_eq!(controllers(&daemon), 1, "the other pool still has it");
    assert!(holds(&daemon, "single", 2).await);
    let devices = vec![second, first];
    let imported = daemon
        .pools()
        .await
        .import_pool(ImportPoolRequest { devices })
        .await;
    imported.expect("an import beside a pool in use");
    assert!(holds(&daemon, "pair", 1).await);

    export(&daemon, "single").await;
    export(&daemon, "pair").await;
    assert_eq!(controllers(&daemon), 0, "nobody has it");
    let devices = vec![third];
    let imported = daemon
        .pools()
        .await
        .import_pool(ImportPoolRequest { devices })
        .await;
    imported.expect("an import of a controller that was let go of");
    assert!(holds(&daemon, "single", 2).await);
}

#[tokio::test]
async fn a_namespace_belongs_to_one_pool_whatever_it_is_called() {
    let site = Site::without_pools();
    let daemon = site.start();
    let [first, second, _] = devices(&site);
    create(&daemon, "tank", std::slice::from_ref(&first))
        .await
        .expect("a pool");
    let unnamed = format!("file:{}?{OPTIONS}", site.device_file().display());
    for again in [first.clone(), unnamed] {
        let refused = create(&daemon, "other", &[second.clone(), again]).await;
        let expected = Refusal::of(ErrorReason::DeviceInUse);
        assert_eq!(Refusal::expected_in(refused), expected);
    }
    create(&daemon, "other", &[second])
        .await
        .expect("what was refused holds nothing");
}
