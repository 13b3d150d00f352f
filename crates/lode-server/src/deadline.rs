//! Deadlines: a call whose `grpc-timeout` has passed ends with DEADLINE_EXCEEDED, its response
//! stream included. What it had in flight goes on and gives its buffers back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

/// Ends the calls of `inner` at their deadlines.
#[derive(Clone, Debug)]
pub(crate) struct Deadlines<S> {
    inner: S,
}

impl<S> Deadlines<S> {
    pub(crate) const fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B> Service<Request<B>> for Deadlines<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let timeout = timeout_of(request.headers());
        let answered = self.inner.call(request);
        let Some(deadline) = timeout.and_then(|timeout| Instant::now().checked_add(timeout)) else {
            return Box::pin(answered);
        };
        Box::pin(async move {
            match tokio::time::timeout_at(deadline, answered).await {
                Ok(answered) => answered.map(|response| bound(response, deadline)),
                Err(_) => Ok(exceeded().into_http()),
            }
        })
    }
}

/// `response` with a body that ends at `deadline`.
fn bound(response: Response<Body>, deadline: Instant) -> Response<Body> {
    response.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(BoundBody {
            body,
            deadline: Box::pin(tokio::time::sleep_until(deadline)),
            is_over: false,
        })
    })
}

/// A body that ends at a deadline.
struct BoundBody {
    body: Body,
    deadline: Pin<Box<Sleep>>,
    is_over: bool,
}

impl HttpBody for BoundBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.deadline.as_mut().poll(context).is_ready() {
            self.is_over = true;
            // What the body holds is given up now, not when the connection ends.
            self.body = Body::empty();
            return Poll::Ready(Some(Ok(Frame::trailers(trailers()))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

fn exceeded() -> Status {
    Status::deadline_exceeded("the deadline of the call has passed")
}

fn trailers() -> HeaderMap {
    let (head, _body) = exceeded().into_http::<Body>().into_parts();
    let mut trailers = head.headers;
    trailers.remove(http::header::CONTENT_TYPE);
    trailers
}

/// The timeout of a call, if it names one: at most eight digits and a unit (gRPC over HTTP/2,
/// "Timeout").
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use http_body_util::BodyExt;
    use tower::{ServiceExt, service_fn};

    use super::*;

    fn request(timeout: &str) -> Request<()> {
        let builder = Request::builder().header("grpc-timeout", timeout);
        builder.body(()).expect("a request")
    }

    /// A body that never ends.
    fn endless() -> Body {
        let stream = futures_util::stream::pending::<Result<Frame<Bytes>, Status>>();
        Body::new(http_body_util::StreamBody::new(stream))
    }

    #[tokio::test]
    async fn a_call_that_is_not_answered_in_time_fails() {
        let service =
            service_fn(|_request: Request<()>| pending::<Result<Response<Body>, Infallible>>());
        let answer = Deadlines::new(service).oneshot(request("1m")).await;
        let answer = answer.expect("infallible");
        assert_eq!(answer.headers()["grpc-status"], "4");
    }

    #[tokio::test]
    async fn a_response_that_does_not_end_in_time_ends_with_the_deadline() {
        let service = service_fn(|_request: Request<()>| async {
            Ok::<_, Infallible>(Response::new(endless()))
        });
        let answer = Deadlines::new(service).oneshot(request("1m")).await;
        let body = answer.expect("infallible").into_body();
        let collected = body.collect().await.expect("no failure");
        let trailers = collected.trailers().expect("trailers");
        assert_eq!(trailers["grpc-status"], "4");
        assert!(collected.to_bytes().is_empty());
    }

    #[tokio::test]
    async fn a_call_without_a_timeout_is_passed_on() {
        let service = service_fn(|_request: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let request = Request::new(());
        let answer = Deadlines::new(service).oneshot(request).await;
        assert!(answer.expect("infallible").headers().is_empty());
    }

    fn parse(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().expect("a header value"));
        timeout_of(&headers)
    }

    #[test]
    fn a_timeout_has_digits_and_a_unit() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("4S"), Some(Duration::from_secs(4)));
        assert_eq!(parse("5m"), Some(Duration::from_millis(5)));
        assert_eq!(parse("6u"), Some(Duration::from_micros(6)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
    }

    #[test]
    fn what_is_no_timeout_sets_no_deadline() {
        for text in ["", "S", "1", "1x", "-1S", "+1S", "123456789S", "1 S", "1SS"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(timeout_of(&HeaderMap::new()), None);
    }
}
