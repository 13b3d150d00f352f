//! Health, reflection, sockets, and the end of a server.

use hyper_util::rt::TokioIo;
use lode_api::v1::info_service_client::InfoServiceClient;
use lode_api::v1::{GetInfoRequest, ReadRequest};
use lode_server::{ListenAddress, RemoteAccess, Serving};
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Endpoint, Uri};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};
use tower::service_fn;

use crate::fixture::{Fixture, VOLUME, connect, run};

#[test]
fn health_is_told_for_the_server_and_each_service() {
    run(async {
        let fixture = Fixture::new().await;
        let mut health = HealthClient::new(fixture.channel.clone());
        let mut check = async |service: &str| {
            let service = service.to_owned();
            let checked = health.check(HealthCheckRequest { service }).await;
            checked.map(|answer| answer.into_inner().status())
        };
        for service in [
            "",
            "lodestore.v1.BlockService",
            "lodestore.v1.VolumeService",
        ] {
            let status = check(service).await.expect("known");
            assert_eq!(status, ServingStatus::Serving, "{service:?}");
        }
        let unknown = check("lodestore.v1.Other").await.expect_err("unknown");
        assert_eq!(unknown.code(), Code::NotFound);
        fixture.server.set_serving(Serving::No).await;
        let status = check("lodestore.v1.BlockService").await.expect("known");
        assert_eq!(status, ServingStatus::NotServing);
        fixture.stop().await;
    });
}

#[test]
fn reflection_lists_the_services_in_both_versions() {
    run(async {
        let fixture = Fixture::new().await;
        let mut client =
            v1::server_reflection_client::ServerReflectionClient::new(fixture.channel.clone());
        let request = v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
                String::new(),
            )),
        };
        let answers = client
            .server_reflection_info(tokio_stream::once(request))
            .await;
        let answer = answers
            .expect("v1")
            .into_inner()
            .message()
            .await
            .expect("an answer");
        let newer = format!("{answer:?}");

        let mut client =
            v1alpha::server_reflection_client::ServerReflectionClient::new(fixture.channel.clone());
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
            ),
        };
        let answers = client
            .server_reflection_info(tokio_stream::once(request))
            .await;
        let answer = answers
            .expect("v1alpha")
            .into_inner()
            .message()
            .await
            .expect("an answer");
        let older = format!("{answer:?}");

        for service in ["Info", "Pool", "Volume", "Block"] {
            let name = format!("\"lodestore.v1.{service}Service\"");
            assert!(newer.contains(&name), "{name} in {newer}");
            assert!(older.contains(&name), "{name} in {older}");
        }
        assert!(newer.contains("\"grpc.health.v1.Health\""), "{newer}");
        fixture.stop().await;
    });
}

#[test]
fn a_unix_socket_is_served_as_well() {
    run(async {
        let fixture = Fixture::new().await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = ListenAddress::Unix(path.clone()).bind(RemoteAccess::Refused);
        let listener = listener.expect("a listener");
        let cores = vec![fixture.core.clone()];
        tokio::spawn(fixture.server.clone().serve(listener, cores));
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }))
            .await
            .expect("it listens");
        let mut info = InfoServiceClient::new(channel);
        info.get_info(GetInfoRequest {}).await.expect("told");
        drop(info);
        fixture.stop().await;
    });
}

#[test]
fn a_call_under_way_when_the_server_stops_is_answered_and_no_more_are_taken() {
    run(async {
        let fixture = Fixture::new().await;
        fixture.hold(true);
        let request = ReadRequest {
            volume: VOLUME.into(),
            length_bytes: 512,
            ..ReadRequest::default()
        };
        let mut blocks = fixture.blocks();
        let call = tokio::spawn(async move { blocks.read(request).await });
        fixture.until_requests(1).await;
        fixture.server.stop().await;
        fixture.hold(false);
        call.await.expect("no panic").expect("answered");
        let address = format!("http://{}", fixture.address);
        let endpoint = Endpoint::from_shared(address).expect("an address");
        while endpoint.connect().await.is_ok() {
            tokio::task::yield_now().await;
        }
        fixture.stop().await;
    });
}

#[test]
fn connections_are_independent_of_each_other() {
    run(async {
        let fixture = Fixture::new().await;
        let other = connect(fixture.address).await;
        let mut info = InfoServiceClient::new(other);
        fixture.hold(true);
        let request = ReadRequest {
            volume: VOLUME.into(),
            length_bytes: 512,
            ..ReadRequest::default()
        };
        let mut blocks = fixture.blocks();
        let held = tokio::spawn(async move { blocks.read(request).await });
        fixture.until_requests(1).await;
        info.get_info(GetInfoRequest {}).await.expect("not held up");
        fixture.hold(false);
        held.await.expect("no panic").expect("answered");
        fixture.stop().await;
    });
}
