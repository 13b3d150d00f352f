//! Metrics and health over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lode_engine::ShardStats;
use lode_server::{HttpServer, ListenError, Monitor, RemoteAccess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Fixture, run};

/// A monitor over the fixture's core, served.
async fn serve(fixture: &Fixture) -> (Arc<Monitor>, SocketAddr) {
    let mut monitor = Monitor::new();
    monitor.add_core(fixture.core.clone(), Arc::new(ShardStats::default()));
    let monitor = Arc::new(monitor);
    let loopback = "127.0.0.1:0".parse().expect("an address");
    let server = HttpServer::bind(loopback, RemoteAccess::Refused).expect("a port");
    let address = server.local_address().expect("bound");
    tokio::spawn(server.serve(Arc::clone(&monitor)));
    (monitor, address)
}

/// Sends `request` and returns status line with headers, and the body.
async fn send(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // A server that refuses a request may reset the connection after its answer.
    let _reset = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

async fn get(address: SocketAddr, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    send(address, &request).await
}

#[test]
fn the_metrics_are_well_formed() {
    run(async {
        let fixture = Fixture::new().await;
        let (_monitor, address) = serve(&fixture).await;
        let (head, body) = get(address, "/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        check_exposition(&body);
        for name in [
            "lodestore_core_polls_total{core=\"0\",result=\"useful\"}",
            "lodestore_core_time_seconds_total{core=\"0\",state=\"asleep\"}",
            "lodestore_core_wakes_total{core=\"0\",reason=\"signal\"} 0",
            "lodestore_core_wakes_spurious_total{core=\"0\"} 0",
            "lodestore_core_wake_latency_seconds_bucket{core=\"0\",le=\"+Inf\"}",
            "lodestore_completions_total{core=\"0\",route=\"inline\",reason=\"none\"}",
            "lodestore_fua_writes_total{core=\"0\"} 0",
            "process_cpu_seconds_total ",
        ] {
            assert!(body.contains(name), "{name} in {body}");
        }
        fixture.stop().await;
    });
}

/// The rules that promtool checks: help and type of each name once and first, counters and only
/// they end in `_total`, no series twice.
fn check_exposition(text: &str) {
    let mut types = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut current = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(help.ends_with('.'), "{line}");
            current = (name, "");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, current.0, "the help comes first");
            assert!(types.insert(name), "{name} twice");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            current = (name, kind);
        } else {
            let (figure, value) = line.rsplit_once(' ').expect("a value");
            assert!(figure.starts_with(current.0), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(series.insert(figure), "{figure} twice");
        }
    }
    assert!(types.len() > 20, "{types:?}");
}

#[test]
fn the_daemon_is_healthy_while_its_cores_answer() {
    run(async {
        let fixture = Fixture::new().await;
        let (_monitor, address) = serve(&fixture).await;
        let (head, body) = get(address, "/healthz").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(body, "ok\n");
        fixture.core.shutdown(Duration::from_secs(10)).await;
        let (head, body) = get(address, "/healthz").await;
        assert!(head.starts_with("HTTP/1.1 503"), "{head}");
        assert_eq!(body, "core 0 has ended\n");
    });
}

#[test]
fn the_daemon_is_ready_when_it_says_so() {
    run(async {
        let fixture = Fixture::new().await;
        let (monitor, address) = serve(&fixture).await;
        assert!(get(address, "/readyz").await.0.starts_with("HTTP/1.1 503"));
        monitor.set_serving(true);
        assert!(get(address, "/readyz").await.0.starts_with("HTTP/1.1 200"));
        fixture.stop().await;
    });
}

#[test]
fn anything_else_is_refused() {
    run(async {
        let fixture = Fixture::new().await;
        let (_monitor, address) = serve(&fixture).await;
        assert!(get(address, "/").await.0.starts_with("HTTP/1.1 404"));
        let post =
            "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (head, _body) = send(address, post).await;
        assert!(head.starts_with("HTTP/1.1 405"), "{head}");
        assert!(head.contains("allow: GET, HEAD"), "{head}");
        let head_only = "HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (head, body) = send(address, head_only).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(body, "");
        let filler = "x".repeat(32 << 10);
        let long = format!("GET /metrics HTTP/1.1\r\nhost: x\r\nfiller: {filler}\r\n\r\n");
        let (head, _body) = send(address, &long).await;
        assert!(head.starts_with("HTTP/1.1 431"), "{head}");
        assert!(get(address, "/healthz").await.0.starts_with("HTTP/1.1 200"));
        fixture.stop().await;
    });
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    run(async {
        let anywhere = "0.0.0.0:0".parse().expect("an address");
        let refused = HttpServer::bind(anywhere, RemoteAccess::Refused);
        assert!(matches!(
            refused,
            Err(ListenError::RemoteWithoutAuth { .. })
        ));
    });
}
