//! One HTTP request, as plain as a scraper or a probe makes it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The head: status line and header lines.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Gets `path` from `server`. Blocks for 10 s at most.
///
/// # Panics
/// When the server does not answer, or not with HTTP.
#[must_use]
pub fn get(server: SocketAddr, path: &str) -> Answer {
    request(server, "GET", path)
}

/// Sends a request without a body to `server`. Blocks for 10 s at most.
///
/// # Panics
/// When the server does not answer, or not with HTTP.
#[must_use]
pub fn request(server: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect_timeout(&server, LIMIT).expect("the server accepts");
    stream
        .set_read_timeout(Some(LIMIT))
        .expect("the limit is not zero");
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .expect("the server takes the request");
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .expect("the answer is text and ends");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .expect("a status line");
    Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    }
}
