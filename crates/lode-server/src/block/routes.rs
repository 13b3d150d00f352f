//! The generated service, except that Io and ReadStream have a codec of their own: generated code
//! fixes one codec and one message type for all methods of a service.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use http::{Request as HttpRequest, Response as HttpResponse};
use lode_api::limits::MESSAGE_LENGTH_MAX_BYTES;
use lode_api::v1::block_service_server::BlockServiceServer;
use lode_api::v1::{IoRequest, ReadStreamRequest};
use prost::Message;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

use crate::block::Blocks;
use crate::block::io::{IoMessage, IoStream};
use crate::block::outgoing::OutgoingCodec;
use crate::block::read_stream::{self, ChunkMessage};

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
        match request.uri().path() {
            IO_PATH => Box::pin(async move { Ok(grpc().streaming(IoMethod, request).await) }),
            READ_STREAM_PATH => {
                Box::pin(
                    async move { Ok(grpc().server_streaming(ReadStreamMethod, request).await) },
                )
            }
            _ => self.generated.call(request),
        }
    }
}

/// The machinery of one call.
fn grpc<T, U>() -> Grpc<OutgoingCodec<T, U>>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    let limit = Some(MESSAGE_LENGTH_MAX_BYTES);
    Grpc::new(OutgoingCodec::default()).apply_max_message_size_config(limit, limit)
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

/// The ReadStream method, as [`IoMethod`].
struct ReadStreamMethod;

type Chunks = Pin<Box<dyn Stream<Item = Result<ChunkMessage, Status>> + Send>>;

impl ServerStreamingService<ReadStreamRequest> for ReadStreamMethod {
    type Response = ChunkMessage;
    type ResponseStream = Chunks;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Chunks>, Status>> + Send>>;

    fn call(&mut self, request: Request<ReadStreamRequest>) -> Self::Future {
        Box::pin(async move {
            let stream = read_stream::open(request.into_inner()).await?;
            Ok(Response::new(Box::pin(stream) as Chunks))
        })
    }
}

const READ_STREAM_PATH: &str = "/lodestore.v1.BlockService/ReadStream";
const IO_PATH: &str = "/lodestore.v1.BlockService/Io";
