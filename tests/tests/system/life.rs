//! Starting and stopping.

use bytes::Bytes;
use lode_api::v1::{Durability, FlushRequest, ReadRequest, WriteRequest};
use lode_tests::{Daemon, Site};

const VOLUME: &str = "lasting";
const SIZE: u64 = 8 << 20;
const CACHED: &str = "size=256MiB&create&cache=modelled";

async fn write(daemon: &Daemon, offset_bytes: u64, fill: u8, durability: Durability) {
    let request = WriteRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        data: Bytes::from(vec![fill; 65536]),
        durability: durability.into(),
        ..WriteRequest::default()
    };
    daemon
        .blocks()
        .await
        .write(request)
        .await
        .expect("the write");
}

async fn holds(daemon: &Daemon, offset_bytes: u64, fill: u8) -> bool {
    let request = ReadRequest {
        volume: VOLUME.to_owned(),
        offset_bytes,
        length_bytes: 65536,
        ..ReadRequest::default()
    };
    let answer = daemon.blocks().await.read(request).await.expect("the read");
    answer.into_inner().data.iter().all(|byte| *byte == fill)
}

#[tokio::test]
async fn a_kill_keeps_what_was_acknowledged_as_durable() {
    let site = Site::with_options(CACHED);
    let daemon = site.start();
    daemon.create_volume(VOLUME, SIZE).await;
    write(&daemon, 0, 1, Durability::Data).await;
    write(&daemon, 65536, 2, Durability::None).await;
    let flush = FlushRequest {
        volume: VOLUME.to_owned(),
        ..FlushRequest::default()
    };
    daemon.blocks().await.flush(flush).await.expect("the flush");
    // An overwrite in place, made durable by itself.
    write(&daemon, 0, 3, Durability::Data).await;
    daemon.kill();

    let daemon = site.start();
    assert!(holds(&daemon, 0, 3).await, "a durable overwrite");
    assert!(holds(&daemon, 65536, 2).await, "a flushed write");
}

#[tokio::test]
async fn a_graceful_stop_keeps_everything_and_ends_well() {
    let site = Site::with_options(CACHED);
    let daemon = site.start();
    daemon.create_volume(VOLUME, SIZE).await;
    write(&daemon, 0, 1, Durability::None).await;
    let status = daemon.terminate();
    assert!(status.success(), "{status}: {}", site.read("daemon.log"));

    let daemon = site.start();
    assert!(
        holds(&daemon, 0, 1).await,
        "an unflushed write survives a graceful stop"
    );
}

#[tokio::test]
async fn a_daemon_starts_and_stops_many_times_over_one_pool() {
    let site = Site::new();
    for round in 0..10_u8 {
        let daemon = site.start();
        if round == 0 {
            daemon.create_volume(VOLUME, SIZE).await;
        } else {
            assert!(holds(&daemon, 0, round - 1).await, "round {round}");
        }
        write(&daemon, 0, round, Durability::None).await;
        assert!(daemon.terminate().success());
    }
}

#[tokio::test]
async fn a_second_daemon_on_the_same_file_is_refused_and_the_first_goes_on() {
    let site = Site::new();
    let daemon = site.start();
    daemon.create_volume(VOLUME, SIZE).await;
    let said = site.start_refused();
    assert!(
        said.contains("disk0.img"),
        "the error names the file: {said}"
    );
    write(&daemon, 0, 1, Durability::Data).await;
    assert!(holds(&daemon, 0, 1).await);
}

#[tokio::test]
async fn the_embedded_default_works_without_a_configuration_and_keeps_its_data() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let daemon = Daemon::start_dev(folder.path()).expect("the daemon starts");
    daemon.create_volume(VOLUME, SIZE).await;
    write(&daemon, 0, 1, Durability::Data).await;
    daemon.kill();
    let daemon = Daemon::start_dev(folder.path()).expect("the daemon recovers");
    assert!(holds(&daemon, 0, 1).await);
}

#[tokio::test]
async fn what_survived_one_kill_survives_the_next_ones() {
    let site = Site::with_options(CACHED);
    let mut daemon = site.start();
    daemon.create_volume(VOLUME, SIZE).await;
    for round in 1..10_u8 {
        write(&daemon, u64::from(round) * 65536, round, Durability::Data).await;
        daemon.kill();
        daemon = site.start();
        for earlier in 1..=round {
            assert!(
                holds(&daemon, u64::from(earlier) * 65536, earlier).await,
                "the write of round {earlier} after kill {round}"
            );
        }
    }
}
