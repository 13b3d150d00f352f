//! One daemon on two cores: connections alternate between them, and so do the homes of pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::volume_service_client::VolumeServiceClient;
use lode_api::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, DiscardRequest, Durability, ErrorReason,
    ExportPoolRequest, GetVolumeRequest, ImportPoolRequest, ListPoolsRequest, ReadRequest,
    ResizeVolumeRequest, WriteRequest,
};
use lode_tests::{Daemon, Refusal, Site, http};
use tonic::Status;
use tonic::transport::Channel;

const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 65536;
/// How often the end of earlier connections is looked for.
const LOOKS_MAX: usize = 10_000;
/// The site's pools; the first lives on core 0, the second on core 1.
const POOLS: [&str; 2] = ["tank", "second"];

fn site(options: &str) -> Site {
    Site::with_options(options)
        .and_pool("second", "memory:128MiB")
        .on_cores(2)
}

/// A client with one connection for everything, which one core serves.
#[derive(Clone)]
struct Client {
    blocks: BlockServiceClient<Channel>,
    volumes: VolumeServiceClient<Channel>,
}

impl Client {
    async fn of(daemon: &Daemon) -> Self {
        let channel = daemon.connect().await;
        Self {
            blocks: BlockServiceClient::new(channel.clone()),
            volumes: VolumeServiceClient::new(channel),
        }
    }

    /// Two clients, on different cores: a connection goes to the core that has fewer, and all
    /// earlier ones end first.
    async fn pair(daemon: &Daemon) -> [Self; 2] {
        for _ in 0..LOOKS_MAX {
            if figure(daemon, &["lodestore_core_connections{"]) < 0.5 {
                return [Self::of(daemon).await, Self::of(daemon).await];
            }
            tokio::task::yield_now().await;
        }
        panic!("connections of clients that are gone stay open");
    }

    async fn create(&mut self, pool: &str, name: &str) {
        let request = CreateVolumeRequest {
            pool: pool.to_owned(),
            name: name.to_owned(),
            size_bytes: SIZE,
            ..CreateVolumeRequest::default()
        };
        let made = self.volumes.create_volume(request).await;
        made.expect("the volume is made");
    }

    async fn write(
        &mut self,
        pool: &str,
        volume: &str,
        block: u64,
        fill: u8,
        durability: Durability,
    ) -> Result<(), Status> {
        let request = WriteRequest {
            pool: pool.to_owned(),
            volume: volume.to_owned(),
            offset_bytes: block * BLOCK,
            data: Bytes::from(vec![fill; 65536]),
            durability: durability.into(),
        };
        self.blocks.write(request).await.map(|_| ())
    }

    /// The byte that fills a block.
    async fn read(&mut self, pool: &str, volume: &str, block: u64) -> Result<u8, Status> {
        let request = ReadRequest {
            pool: pool.to_owned(),
            volume: volume.to_owned(),
            offset_bytes: block * BLOCK,
            length_bytes: 65536,
        };
        let data = self.blocks.read(request).await?.into_inner().data;
        let first = *data.first().expect("data");
        assert!(data.iter().all(|byte| *byte == first), "one write's data");
        Ok(first)
    }
}

/// The sum of the series whose name and labels hold all of `parts`.
fn figure(daemon: &Daemon, parts: &[&str]) -> f64 {
    let body = http::get(daemon.http(), "/metrics").body;
    body.lines()
        .filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn of_core(daemon: &Daemon, name: &str, core: u16) -> f64 {
    figure(daemon, &[name, &format!("core=\"{core}\"")])
}

#[tokio::test]
async fn every_connection_sees_what_another_did_whatever_the_home() {
    let daemon = site("size=256MiB&create").start();
    let mut clients = Client::pair(&daemon).await;
    for pool in POOLS {
        for (writer, reader) in [(0, 1), (1, 0)] {
            let name = format!("from{writer}");
            let name = name.as_str();
            clients[writer].create(pool, name).await;
            for block in 0..4 {
                let written = clients[writer].write(pool, name, block, 1, Durability::None);
                written.await.expect("a write");
                assert_eq!(
                    clients[reader].read(pool, name, block).await.expect("read"),
                    1
                );
                let written = clients[reader].write(pool, name, block, 2, Durability::Data);
                written.await.expect("an overwrite");
                assert_eq!(
                    clients[writer].read(pool, name, block).await.expect("read"),
                    2
                );
            }
            changes_reach_the_other(&mut clients, [writer, reader], pool, name).await;
        }
    }
    for core in [0, 1] {
        assert!(of_core(&daemon, "lodestore_hand_offs_total{", core) > 0.0);
    }
}

/// A discard, a resize and a deletion by one client are what the other meets.
async fn changes_reach_the_other(
    clients: &mut [Client; 2],
    [one, other]: [usize; 2],
    pool: &str,
    name: &str,
) {
    let discard = DiscardRequest {
        pool: pool.to_owned(),
        volume: name.to_owned(),
        offset_bytes: BLOCK,
        length_bytes: BLOCK,
        ..DiscardRequest::default()
    };
    let discarded = clients[one].blocks.discard(discard).await;
    discarded.expect("a discard");
    assert_eq!(clients[other].read(pool, name, 1).await.expect("read"), 0);
    assert_eq!(clients[other].read(pool, name, 2).await.expect("read"), 2);
    let resize = ResizeVolumeRequest {
        pool: pool.to_owned(),
        name: name.to_owned(),
        size_bytes: 2 * BLOCK,
        allow_shrink: true,
    };
    let resized = clients[other].volumes.resize_volume(resize).await;
    resized.expect("a resize");
    let beyond = Refusal::expected_in(clients[one].read(pool, name, 2).await);
    assert_eq!(beyond, Refusal::of(ErrorReason::BeyondEnd));
    let delete = DeleteVolumeRequest {
        pool: pool.to_owned(),
        name: name.to_owned(),
        ..DeleteVolumeRequest::default()
    };
    let deleted = clients[one].volumes.delete_volume(delete).await;
    deleted.expect("a deletion");
    let gone = Refusal::expected_in(clients[other].read(pool, name, 0).await);
    assert_eq!(gone, Refusal::of(ErrorReason::VolumeNotFound));
    let get = GetVolumeRequest {
        pool: pool.to_owned(),
        name: name.to_owned(),
    };
    let gone = Refusal::expected_in(clients[other].volumes.get_volume(get).await);
    assert_eq!(gone, Refusal::of(ErrorReason::VolumeNotFound));
}

#[tokio::test]
async fn overwrites_and_reads_stay_on_the_core_of_their_connection() {
    let daemon = site("size=256MiB&create").start();
    let mut clients = Client::pair(&daemon).await;
    clients[0].create("tank", "steady").await;
    for client in &mut clients {
        // The first round allocates, or fetches the leases.
        for block in 0..8 {
            let written = client.write("tank", "steady", block, 1, Durability::Data);
            written.await.expect("a write");
            client.read("tank", "steady", block).await.expect("a read");
        }
    }
    let names = ["lodestore_completions_total{", "lodestore_hand_offs_total{"];
    let figures = |name| [0, 1].map(|core| of_core(&daemon, name, core));
    let before = names.map(figures);
    for round in 0..10 {
        for client in &mut clients {
            for block in 0..8 {
                let written = client.write("tank", "steady", block, round, Durability::None);
                written.await.expect("a write");
                client.read("tank", "steady", block).await.expect("a read");
            }
        }
    }
    let after = names.map(figures);
    for core in [0, 1] {
        let [completed, handed] = [0, 1].map(|name: usize| after[name][core] - before[name][core]);
        assert!(
            (completed - 160.0).abs() < 0.5,
            "each counted once: {completed}"
        );
        assert!(handed < 0.5, "nothing went to the other core: {handed}");
    }
}

#[tokio::test]
async fn a_kill_under_load_on_both_cores_keeps_what_was_acknowledged() {
    let site = site("size=256MiB&create&cache=modelled");
    let mut daemon = site.start();
    Client::of(&daemon).await.create("tank", "lasting").await;
    for round in 1..4 {
        let load = Load::start(&daemon).await;
        load.until(200).await;
        daemon.kill();
        let acknowledged = load.stop().await;
        // Any number of cores takes over what another left.
        daemon = if round == 2 {
            site.start_on_cores(1)
        } else {
            site.start()
        };
        check(&daemon, &acknowledged).await;
    }
}

#[tokio::test]
async fn a_graceful_stop_under_load_on_both_cores_ends_well() {
    let site = site("size=256MiB&create&cache=modelled");
    let daemon = site.start();
    Client::of(&daemon).await.create("tank", "lasting").await;
    let load = Load::start(&daemon).await;
    load.until(200).await;
    let status = daemon.terminate();
    assert!(status.success(), "{status}: {}", site.read("daemon.log"));
    let acknowledged = load.stop().await;
    check(&site.start(), &acknowledged).await;
}

#[tokio::test]
async fn a_pool_is_exported_and_imported_under_load_on_both_cores() {
    let site = site("size=256MiB&create");
    let daemon = site.start();
    Client::of(&daemon).await.create("tank", "lasting").await;
    for _ in 0..3 {
        let load = Load::start(&daemon).await;
        load.until(50).await;
        let name = "tank".to_owned();
        let request = ExportPoolRequest { name };
        let exported = daemon.pools().await.export_pool(request).await;
        exported.expect("an export");
        let acknowledged = load.stop().await;
        let devices = vec![format!("file:{}", site.device_file().display())];
        let request = ImportPoolRequest { devices };
        let imported = daemon.pools().await.import_pool(request).await;
        imported.expect("an import");
        check(&daemon, &acknowledged).await;
    }
    let mut pools = daemon.pools().await;
    let listed = pools.list_pools(ListPoolsRequest::default()).await;
    let mut names: Vec<_> = listed.expect("a list").into_inner().pools;
    names.sort_by(|left, right| left.name.cmp(&right.name));
    let names: Vec<_> = names.into_iter().map(|pool| pool.name).collect();
    assert_eq!(names, ["second", "tank"]);
}

#[tokio::test]
async fn a_core_without_queue_pairs_of_its_own_is_served_by_the_home() {
    let site = site("size=256MiB&create&queues=1");
    let daemon = site.start();
    let mut clients = Client::pair(&daemon).await;
    clients[0].create("tank", "shared").await;
    for (one, other) in [(0, 1), (1, 0)] {
        let written = clients[one].write("tank", "shared", 0, 7, Durability::Data);
        written.await.expect("a write");
        assert_eq!(
            clients[other]
                .read("tank", "shared", 0)
                .await
                .expect("read"),
            7
        );
    }
    let pairs = |core: &str| figure(&daemon, &["lodestore_core_queue_pairs{", core, "tank"]);
    assert!((pairs("core=\"0\"") - 1.0).abs() < 0.5);
    assert!(pairs("core=\"1\"") < 0.5);
    let granted = ["lodestore_nvme_queue_pairs_granted{", "disk0.img"];
    assert!((figure(&daemon, &granted) - 1.0).abs() < 0.5);
    let home = ["lodestore_hand_offs_total{", "core=\"1\"", "no_queues"];
    assert!(figure(&daemon, &home) > 0.0);
    let log = daemon.log();
    let told = log.matches("no queue pairs of its own").count();
    assert_eq!(told, 1, "{log}");
    assert!(log.contains("all 1 queue pairs are in use"), "{log}");
}

#[test]
fn cores_that_this_machine_does_not_have_are_refused_in_words() {
    let said = Site::new().on_cores(1000).start_refused();
    assert!(said.contains("core.cores"), "{said}");
    assert!(said.contains("1000 cores; there are 1 to 64"), "{said}");
}

/// Two clients, on different cores, that overwrite blocks of their own until they are stopped or
/// refused.
struct Load {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<Vec<(u64, u8)>>>,
}

impl Load {
    async fn start(daemon: &Daemon) -> Self {
        let (is_over, done) = (Arc::default(), Arc::default());
        let mut clients = Vec::new();
        for (number, client) in (0..).zip(Client::pair(daemon).await) {
            let (is_over, done) = (Arc::clone(&is_over), Arc::clone(&done));
            clients.push(tokio::spawn(overwrite(client, number, is_over, done)));
        }
        Self {
            is_over,
            done,
            clients,
        }
    }

    /// Waits until so many writes are acknowledged.
    async fn until(&self, count: u64) {
        while self.done.load(Ordering::Relaxed) < count {
            assert!(self.clients.iter().all(|client| !client.is_finished()));
            tokio::task::yield_now().await;
        }
    }

    /// Each block with what was last acknowledged for it.
    async fn stop(self) -> Vec<(u64, u8)> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut acknowledged = Vec::new();
        for client in self.clients {
            acknowledged.extend(client.await.expect("no panic"));
        }
        acknowledged
    }
}

/// Writes growing numbers to eight blocks in turn. A write that was not acknowledged may have
/// happened all the same: its block is left out.
async fn overwrite(
    mut client: Client,
    number: u64,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Vec<(u64, u8)> {
    let mut acknowledged = [None; 8];
    'load: for fill in (1..=u8::MAX).cycle() {
        for (place, last) in acknowledged.iter_mut().enumerate() {
            if is_over.load(Ordering::Relaxed) {
                break 'load;
            }
            let block = number * 8 + place as u64;
            let written = client.write("tank", "lasting", block, fill, Durability::Data);
            if written.await.is_err() {
                *last = None;
                break 'load;
            }
            *last = Some((block, fill));
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    acknowledged.into_iter().flatten().collect()
}

async fn check(daemon: &Daemon, acknowledged: &[(u64, u8)]) {
    assert!(acknowledged.len() >= 14, "{acknowledged:?}");
    for mut client in Client::pair(daemon).await {
        for (block, fill) in acknowledged {
            let found = client
                .read("tank", "lasting", *block)
                .await
                .expect("a read");
            assert_eq!(found, *fill, "block {block}");
        }
    }
}
