//! The generated service, except that Io has a codec of its own: generated code fixes one codec
//! and one message type for all methods of a service.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request as HttpRequest, Response as HttpResponse};
use lode_api::limits::MESSAGE_LENGTH_MAX_BYTES;
use lode_api::v1::IoRequest;
use lode_api::v1::block_service_server::BlockServiceServer;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

use crate::block::Blocks;
use crate::block::io::{IoCodec, IoMessage, IoStream};

/// BlockService as it is served.
#[derive(Clone, Debug)]
pub(crate) struct BlockRoutes {
    generated: BlockServiceServer<Blocks>,
}

type Answer = Pin<Box<dyn Future<Output = Result<HttpResponse<Body>, Infallible>> + Send>>;

impl BlockRoutes {
    pub(crate) fn new() -> Self {
        Self {
            generated: BlockServiceServer::new(Blocks)
                .max_decoding_message_size(MESSAGE_LENGTH_MAX_BYTES)
                .max_encoding_message_size(MESSAGE_LENGTH_MAX_BYTES),
        }
    }
}

impl NamedService for BlockRoutes {
    const NAME: &'static str = BlockServiceServer::<Blocks>::NAME;
}

impl Service<HttpRequest<Body>> for BlockRoutes {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Answer {
        if request.uri().path() != IO_PATH {
            return self.generated.call(request);
        }
        Box::pin(async move {
            let limit = Some(MESSAGE_LENGTH_MAX_BYTES);
            let mut grpc = Grpc::new(IoCodec).apply_max_message_size_config(limit, limit);
            Ok(grpc.streaming(IoMethod, request).await)
        })
    }
}

/// The Io method for the machinery that the generated service uses as well.
struct IoMethod;

impl StreamingService<IoRequest> for IoMethod {
    type Response = IoMessage;
    type ResponseStream = IoStream;
    type Future = Pin<Box<dyn Future<Output = Result<Response<IoStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<IoRequest>>) -> Self::Future {
        Box::pin(async move {
            let stream = IoStream::open(request.into_inner()).await?;
            Ok(Response::new(stream))
        })
    }
}

const IO_PATH: &str = "/lodestore.v1.BlockService/Io";
