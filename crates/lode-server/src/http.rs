//! Metrics and health over HTTP, for machines of the operator.
//!
//! Runs on the control thread, apart from the cores. GET and HEAD only; nothing that a client
//! sends besides the request line is looked at, and every request and connection has a bound.

mod monitor;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::listen::{ListenError, RemoteAccess, bind_tcp, check_reach};

pub use monitor::{CoreProbe, Monitor, Pinged};

/// The HTTP server, bound and not yet serving.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
}

impl HttpServer {
    /// Listens on `address`. Runs on the runtime that will serve.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(address: SocketAddr, remote: RemoteAccess) -> Result<Self, ListenError> {
        check_reach(address, remote)?;
        let listener = bind_tcp(address).map_err(|source| ListenError::Bind {
            address: address.to_string(),
            source,
        })?;
        Ok(Self { listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's word.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves for ever.
    pub async fn serve(self, monitor: Arc<Monitor>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Who comes while all places are taken waits in the listener's own queue.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match self.listener.accept().await {
                Ok((stream, _peer)) => {
                    let monitor = Arc::clone(&monitor);
                    tokio::spawn(async move {
                        serve_connection(stream, monitor).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be taken in");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, monitor: Arc<Monitor>) {
    let service = service_fn(move |request| {
        let monitor = Arc::clone(&monitor);
        async move { Ok::<_, Infallible>(answer(&request, &monitor).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIME_MAX, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection ended with an error"),
        Err(_) => tracing::debug!("an HTTP connection was ended after its time"),
    }
}

/// The answer to one request. A HEAD request is answered as a GET, and hyper leaves the body out.
async fn answer<B>(request: &Request<B>, monitor: &Monitor) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
        let allowed = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let mut response = text(StatusCode::OK, monitor.metrics());
            let format = HeaderValue::from_static(EXPOSITION_FORMAT);
            response.headers_mut().insert(CONTENT_TYPE, format);
            response
        }
        "/healthz" => verdict(monitor.health().await),
        "/readyz" => verdict(monitor.readiness()),
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; there are /metrics, /healthz and /readyz\n",
        ),
    }
}

fn verdict(verdict: Result<(), String>) -> Response<Full<Bytes>> {
    match verdict {
        Ok(()) => text(StatusCode::OK, "ok\n"),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn text(status: StatusCode, content: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(content.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

const EXPOSITION_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const CONNECTIONS_MAX: usize = 64;
/// How long a client may take over the head of a request, and between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_BYTES_MAX: usize = 16 << 10;
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(300);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
