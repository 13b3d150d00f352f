//! BlockService: reads and writes of volumes.
//!
//! ```text
//!  unary.rs         one request a call
//!  io.rs            one stream: requests in, answers out, in the order in which they end
//!  read_stream.rs   a range as a sequence of chunks
//!  write_stream.rs  a sequence of chunks to a range
//!  outgoing.rs      a codec that writes data from DMA buffers
//!  routes.rs        the generated service, with that codec for the two streams of data
//!  transfer.rs      one request to the shard, and its failure with all that is known about it
//! ```

mod io;
mod outgoing;
mod read_stream;
mod routes;
mod transfer;
mod unary;
mod write_stream;

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt;
use lode_api::v1::block_service_server::BlockService;
use lode_api::v1::{
    CompareAndWriteRequest, CompareAndWriteResponse, DiscardRequest, DiscardResponse, FlushRequest,
    FlushResponse, IoRequest, IoResponse, ReadRequest, ReadResponse, ReadStreamRequest,
    ReadStreamResponse, WriteRequest, WriteResponse, WriteStreamRequest, WriteStreamResponse,
    WriteZeroesRequest, WriteZeroesResponse,
};
use tonic::{Request, Response, Status, Streaming};

use crate::block::io::IoStream;
use crate::block::outgoing::Outgoing;

pub(crate) use routes::BlockRoutes;

/// Asks the shard of the core that the call arrived on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blocks;

#[tonic::async_trait]
impl BlockService for Blocks {
    type IoStream = Pin<Box<dyn Stream<Item = Result<IoResponse, Status>> + Send>>;
    type ReadStreamStream = Pin<Box<dyn Stream<Item = Result<ReadStreamResponse, Status>> + Send>>;

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        Ok(Response::new(unary::read(request.into_inner()).await?))
    }

    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        Ok(Response::new(unary::write(request.into_inner()).await?))
    }

    async fn flush(
        &self,
        request: Request<FlushRequest>,
    ) -> Result<Response<FlushResponse>, Status> {
        Ok(Response::new(unary::flush(request.into_inner()).await?))
    }

    async fn discard(
        &self,
        request: Request<DiscardRequest>,
    ) -> Result<Response<DiscardResponse>, Status> {
        Ok(Response::new(unary::discard(request.into_inner()).await?))
    }

    async fn write_zeroes(
        &self,
        request: Request<WriteZeroesRequest>,
    ) -> Result<Response<WriteZeroesResponse>, Status> {
        Ok(Response::new(
            unary::write_zeroes(request.into_inner()).await?,
        ))
    }

    async fn compare_and_write(
        &self,
        request: Request<CompareAndWriteRequest>,
    ) -> Result<Response<CompareAndWriteResponse>, Status> {
        Ok(Response::new(
            unary::compare_and_write(request.into_inner()).await?,
        ))
    }

    async fn io(
        &self,
        request: Request<Streaming<IoRequest>>,
    ) -> Result<Response<Self::IoStream>, Status> {
        // Calls over a connection pass by here and by `read_stream`: see routes.rs.
        let stream = IoStream::open(request.into_inner()).await?;
        let messages = stream.map(|answer| answer.and_then(Outgoing::into_message));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn read_stream(
        &self,
        request: Request<ReadStreamRequest>,
    ) -> Result<Response<Self::ReadStreamStream>, Status> {
        let stream = read_stream::open(request.into_inner()).await?;
        let messages = stream.map(|chunk| chunk.and_then(Outgoing::into_message));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn write_stream(
        &self,
        request: Request<Streaming<WriteStreamRequest>>,
    ) -> Result<Response<WriteStreamResponse>, Status> {
        let summary = write_stream::run(request.into_inner()).await?;
        Ok(Response::new(summary))
    }
}
