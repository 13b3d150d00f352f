//! What operators and their tools see.

use std::io::Write;
use std::process::{Command, Stdio};

use bytes::Bytes;
use lode_api::v1::{
    Durability, FlushRequest, GetInfoRequest, LimitVolumeRequest, ReadRequest, WriteRequest,
};
use lode_tests::{Daemon, Site, http, program};
use lode_units::limits::{IO_LENGTH_MAX_BYTES, VOLUME_SIZE_MAX_BYTES};
use prost::Message;
use serde_json::Value;

async fn work(daemon: &Daemon) {
    daemon.create_volume("busy", 8 << 20).await;
    let mut blocks = daemon.blocks().await;
    for _ in 0..3 {
        let write = WriteRequest {
            volume: "busy".to_owned(),
            data: Bytes::from(vec![1; 4096]),
            durability: Durability::Data.into(),
            ..WriteRequest::default()
        };
        blocks.write(write).await.expect("the write");
        let read = ReadRequest {
            volume: "busy".to_owned(),
            length_bytes: 4096,
            ..ReadRequest::default()
        };
        blocks.read(read).await.expect("the read");
    }
}

#[tokio::test]
async fn promtool_has_nothing_to_say_about_the_metrics() {
    let daemon = Site::new().start();
    work(&daemon).await;
    let answer = http::get(daemon.http(), "/metrics");
    assert_eq!(answer.status, 200);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by cargo xtask test");
    promtool
        .stdin
        .take()
        .expect("a pipe was asked for")
        .write_all(answer.body.as_bytes())
        .expect("promtool reads all");
    let said = promtool.wait_with_output().expect("promtool ends");
    let text =
        String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && text.is_empty(), "{text}");
}

#[tokio::test]
async fn the_metrics_count_the_routes_of_completions() {
    let daemon = Site::new().start();
    work(&daemon).await;
    let body = http::get(daemon.http(), "/metrics").body;
    let routes: f64 = body
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains("completions_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert!(routes >= 6.0, "six requests were completed: {body}");
    assert!(body.contains("route=\"inline\""), "{body}");
}

#[tokio::test]
async fn the_metrics_count_flushes_for_their_volume_as_for_its_core() {
    let daemon = Site::with_options("size=256MiB&create&cache=modelled").start();
    work(&daemon).await;
    let flush = FlushRequest {
        volume: "busy".to_owned(),
        ..FlushRequest::default()
    };
    daemon.blocks().await.flush(flush).await.expect("the flush");
    let body = http::get(daemon.http(), "/metrics").body;
    let sum = |name: &str| -> f64 {
        let lines = body.lines().filter(|line| line.starts_with(name));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    };
    for counted in ["flushes", "flush_waiters", "fua_writes"] {
        let of_cores = sum(&format!("lodestore_{counted}_total{{"));
        let of_volumes = sum(&format!("lodestore_volume_{counted}_total{{"));
        assert!(of_cores > 0.5, "{counted}: {body}");
        assert!((of_cores - of_volumes).abs() < 0.5, "{counted}: {body}");
    }
}

#[tokio::test]
async fn top_shows_cores_volumes_with_their_limits_and_routes_at_work() {
    let daemon = Site::new().start();
    daemon.create_volume("busy", 8 << 20).await;
    let mut volumes = daemon.volumes().await;
    let limit = LimitVolumeRequest {
        name: "busy".to_owned(),
        iops_max: Some(200),
        ..LimitVolumeRequest::default()
    };
    volumes.limit_volume(limit).await.expect("it is limited");
    let lodectl = || {
        let mut command = Command::new(program("lodectl"));
        command.arg("--address").arg(daemon.url());
        command
    };
    let mut load = lodectl()
        .args(["bench", "--volume", "busy", "--runtime", "1min"])
        .stdout(Stdio::null())
        .spawn()
        .expect("lodectl can be started");
    // Until the load has begun there is nothing to see.
    let shown = (0..100).find_map(|_| {
        let top = lodectl()
            .args(["top", "--once", "--interval", "200ms", "--json"])
            .output()
            .expect("lodectl can be started");
        let shown: Value = serde_json::from_slice(&top.stdout).ok()?;
        let reads = shown["volumes"][0]["operations"][0]["iops"].as_f64();
        (reads.is_some_and(|reads| reads > 0.0)).then_some(shown)
    });
    let ended = load.kill().and_then(|()| load.wait());
    ended.expect("the load ends with the test");
    let shown = shown.expect("the load was seen");
    let volume = &shown["volumes"][0];
    assert_eq!(volume["volume"], "busy");
    assert_eq!(volume["iops_max"], 200);
    assert_eq!(volume["operations"][0]["operation"], "read");
    assert!(
        volume["operations"][0]["latency_p99_ns"].is_u64(),
        "{shown}"
    );
    let polls = shown["cores"][0]["polls_per_second"].as_f64();
    assert!(polls.is_some_and(|polls| polls > 0.0), "{shown}");
    // Nothing was written: the home of the first pool, core 0, answers such reads on the spot, and
    // other cores ask it.
    let cores = shown["cores"].as_array().expect("a row for each core");
    let requests = |core: &Value| core["requests_per_second"].as_f64();
    let mut at_work = cores
        .iter()
        .filter(|core| requests(core).is_some_and(|rate| rate > 0.0));
    let core = at_work.next().expect("a core that completes the requests");
    assert_eq!(at_work.next(), None, "one connection is on one core");
    let expected = if core["core"] == 0 {
        ("inline", "none")
    } else {
        ("deferred", "home")
    };
    let routes = shown["routes"].as_array().expect("a row for each route");
    let [route] = routes.as_slice() else {
        panic!("reads of one kind take one route: {shown}");
    };
    assert_eq!(route["route"], expected.0, "{shown}");
    assert_eq!(route["reason"], expected.1, "{shown}");
}

#[tokio::test]
async fn the_probes_answer_and_an_unknown_page_does_not() {
    let daemon = Site::new().start();
    for probe in ["/healthz", "/readyz"] {
        let answer = http::get(daemon.http(), probe);
        assert_eq!(answer.status, 200, "{probe}: {}", answer.body);
    }
    assert_eq!(http::get(daemon.http(), "/no-such-page").status, 404);
    assert_eq!(
        http::request(daemon.http(), "DELETE", "/metrics").status,
        405
    );
}

#[tokio::test]
async fn the_advertised_limits_are_those_of_the_code() {
    let daemon = Site::new().start();
    let info = daemon
        .info()
        .await
        .get_info(GetInfoRequest::default())
        .await;
    let info = info.expect("the description").into_inner();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.emulated_device_count, 1);
    let limits = info.limits.expect("the description holds the limits");
    assert_eq!(limits.io_length_max_bytes, IO_LENGTH_MAX_BYTES);
    assert_eq!(limits.volume_size_max_bytes, VOLUME_SIZE_MAX_BYTES);
    assert_eq!(limits.block_sizes_bytes, [512, 4096]);
}

/// `grpc.health.v1.HealthCheckRequest`: the name of a service; empty for the whole server.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`: 1 is serving.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[tokio::test]
async fn the_standard_health_service_says_serving() {
    let daemon = Site::new().start();
    let mut grpc = tonic::client::Grpc::new(daemon.connect().await);
    for service in ["", "lodestore.v1.BlockService"] {
        grpc.ready().await.expect("the daemon is there");
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer: HealthCheckResponse = grpc
            .unary(
                tonic::Request::new(request),
                tonic::codegen::http::uri::PathAndQuery::from_static(
                    "/grpc.health.v1.Health/Check",
                ),
                lode_api::codec::BulkCodec::default(),
            )
            .await
            .expect("the health service answers")
            .into_inner();
        assert_eq!(answer.status, 1, "service {service:?}");
    }
}
