//! The opening of an Io stream: its first message, and the answer to it.

use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as Outcome;
use lode_api::v1::{Durability, ErrorReason, IoOpened, IoRequest, IoResponse};
use lode_reactor::gateway::Session;
use lode_units::limits::STREAM_REQUESTS_MAX;
use tonic::{Status, Streaming};

use crate::block::io::IoStream;
use crate::block::io::outstanding::Outstanding;
use crate::block::outgoing::Outgoing;
use crate::block::transfer::Target;
use crate::failure::Failure;
use crate::open;
use crate::volume::durability_of;

impl IoStream {
    /// Waits for the first message and opens the volume that it names.
    pub(in crate::block) async fn open(mut inbound: Streaming<IoRequest>) -> Result<Self, Status> {
        let Some(IoRequest {
            tag,
            operation: Some(Operation::Open(opening)),
        }) = inbound.message().await?
        else {
            return Err(not_open().into());
        };
        let (target, status) = Target::open(&opening.pool, &opening.volume).await?;
        let credits = granted(opening.credits);
        let session = Session::open(credits).map_err(|reason| {
            Failure::new(ErrorReason::TableFull, reason.to_string())
                .about(&target.pool, &target.volume)
        })?;
        let opened = IoOpened {
            credits: u32::try_from(credits).expect("at most STREAM_REQUESTS_MAX"),
            size_bytes: status.info.size_bytes,
            block_size_bytes: status.info.block_size.bytes(),
            durability: Durability::from(durability_of(status.info.sync)).into(),
        };
        let ready = Outgoing::Plain(IoResponse {
            tag,
            result: Some(Outcome::Opened(opened)),
        });
        Ok(Self {
            device_names: open::device_names(target.handle.pool()).await,
            inbound: Some(inbound),
            failed: None,
            target,
            session,
            outstanding: Outstanding::new(credits),
            ready: Some(ready),
            waiting: None,
        })
    }
}

/// The credits for a client that would like `asked`, 0 meaning as many as there are.
fn granted(asked: u32) -> usize {
    match usize::try_from(asked).unwrap_or(usize::MAX) {
        0 => STREAM_REQUESTS_MAX,
        asked => asked.min(STREAM_REQUESTS_MAX),
    }
}

fn not_open() -> Failure {
    let message = "the first message of an Io stream opens a volume";
    Failure::new(ErrorReason::StreamNotOpen, message).with_field("open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_bounded_and_zero_means_all() {
        assert_eq!(granted(0), STREAM_REQUESTS_MAX);
        assert_eq!(granted(1), 1);
        assert_eq!(granted(u32::MAX), STREAM_REQUESTS_MAX);
    }
}
