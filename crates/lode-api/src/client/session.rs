//! Many requests in flight on one volume over one stream.

mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use lode_units::limits::STREAM_REQUESTS_MAX;

use super::VolumeName;
use super::failure::{ClientError, Failure};
use crate::v1::block_service_client::BlockServiceClient;
use crate::v1::io_request::Operation;
use crate::v1::io_response::Result as Answer;
use crate::v1::{
    Durability, IoCompareAndWrite, IoDiscard, IoFlush, IoOpen, IoOpened, IoRead, IoRequest,
    IoResponse, IoWrite, IoWriteZeroes,
};
use table::Table;

/// The most requests that a session has outstanding, whatever a server grants.
const CREDITS_MAX: u32 = 1024;

/// Room for each outstanding request and the opening one, so that sending never waits.
const QUEUE_LENGTH: usize = 1024 + 1;

const _: () = assert!(QUEUE_LENGTH == CREDITS_MAX as usize + 1);
const _: () = assert!(STREAM_REQUESTS_MAX <= CREDITS_MAX as usize);

/// How long [`IoSession::close`] waits for the server to end the stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How a session behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoOptions {
    /// How many requests to have outstanding at most; 0 means as many as the server allows.
    pub credits: u32,
    /// How the session waits for answers.
    pub wait: Wait,
}

/// How a session waits for answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// The runtime's thread sleeps when it has nothing to do.
    #[default]
    Sleep,
    /// The runtime's thread keeps looking while a request is outstanding: about twice the rate
    /// with one request in flight, for all of a core's time.
    BusyPoll,
}

/// A volume opened for many requests in flight. All methods take `&self`: call them from as many
/// tasks as wanted, or keep many futures; each waits for a credit when all are in use.
///
/// Answers come in any order. A future that is dropped gives up its answer; its request still
/// takes effect or fails, and keeps its credit until the server has answered. When the stream
/// breaks, every outstanding request fails with code `UNAVAILABLE` and reason `CONNECTION_LOST`:
/// whether it took effect is unknown. Dropping the session ends the stream at once.
#[derive(Debug)]
pub struct IoSession {
    table: Arc<Table>,
    /// Until the session is closed.
    sender: Option<mpsc::Sender<IoRequest>>,
    driver: JoinHandle<()>,
    opened: IoOpened,
}

impl IoSession {
    pub(crate) async fn open(
        mut client: BlockServiceClient<Channel>,
        name: &VolumeName,
        options: IoOptions,
    ) -> Result<Self, ClientError> {
        // The first message is in the queue before the call is made: a server may want to see it
        // before it answers with its own headers.
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        let open = Operation::Open(IoOpen {
            pool: name.pool.clone(),
            volume: name.volume.clone(),
            credits: options.credits,
        });
        let request = IoRequest {
            tag: 0,
            operation: Some(open),
        };
        sender
            .try_send(request)
            .map_err(|_| Failure::protocol("a new queue has room"))?;
        let mut answers = client.io(ReceiverStream::new(receiver)).await?.into_inner();
        let opened = opened(answers.message().await?)?;
        let table = Arc::new(Table::new(opened.credits.min(CREDITS_MAX)));
        let driver = tokio::spawn(drive(answers, Arc::clone(&table), options.wait));
        Ok(Self {
            table,
            sender: Some(sender),
            driver,
            opened,
        })
    }

    /// How many requests may be outstanding.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.table.credit_count()
    }

    /// The volume's size in bytes when it was opened.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.opened.size_bytes
    }

    /// The volume's block size in bytes.
    #[must_use]
    pub const fn block_size_bytes(&self) -> u32 {
        self.opened.block_size_bytes
    }

    /// Reads `length_bytes` at `offset_bytes`.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume, cannot be read, or the stream broke.
    pub async fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Bytes, ClientError> {
        let operation = Operation::Read(IoRead {
            offset_bytes,
            length_bytes,
        });
        match self.ask(operation).await? {
            Answer::Data(data) if u32::try_from(data.len()).ok() == Some(length_bytes) => Ok(data),
            _ => Err(Failure::protocol("the server's answer does not fit a read").into()),
        }
    }

    /// Writes `data` at `offset_bytes`. Returns how durable it is.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume, cannot be written, or the stream broke.
    pub async fn write(
        &self,
        offset_bytes: u64,
        data: Bytes,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        self.change(Operation::Write(IoWrite {
            offset_bytes,
            data,
            durability: durability.into(),
        }))
        .await
    }

    /// Makes durable every write that was answered before this is first polled.
    ///
    /// # Errors
    /// When a device fails or the stream broke.
    pub async fn flush(&self) -> Result<Durability, ClientError> {
        self.change(Operation::Flush(IoFlush {})).await
    }

    /// Gives up the content of a range.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume or the stream broke.
    pub async fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        self.change(Operation::Discard(IoDiscard {
            offset_bytes,
            length_bytes,
            durability: durability.into(),
        }))
        .await
    }

    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// When the range breaks the rules of the volume, cannot be written, or the stream broke.
    pub async fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        self.change(Operation::WriteZeroes(IoWriteZeroes {
            offset_bytes,
            length_bytes,
            durability: durability.into(),
        }))
        .await
    }

    /// Writes `data` if the range holds `compare`.
    ///
    /// # Errors
    /// Reason `COMPARE_MISMATCH` when the range holds other data; else as [`IoSession::write`].
    pub async fn compare_and_write(
        &self,
        offset_bytes: u64,
        compare: Bytes,
        data: Bytes,
        durability: Durability,
    ) -> Result<Durability, ClientError> {
        self.change(Operation::CompareAndWrite(IoCompareAndWrite {
            offset_bytes,
            compare,
            data,
            durability: durability.into(),
        }))
        .await
    }

    /// Waits for every outstanding request, dropped ones included, and ends the stream in order.
    pub async fn close(mut self) {
        self.table.idle().await;
        self.sender = None;
        // On a timeout the stream is cut when `self` is dropped.
        let _ended = tokio::time::timeout(CLOSE_TIMEOUT, &mut self.driver).await;
    }

    async fn change(&self, operation: Operation) -> Result<Durability, ClientError> {
        match self.ask(operation).await? {
            Answer::Durability(level) => Ok(Durability::try_from(level).unwrap_or_default()),
            _ => Err(Failure::protocol("the server's answer does not fit a change").into()),
        }
    }

    async fn ask(&self, operation: Operation) -> Result<Answer, ClientError> {
        let pending = self.table.reserve().await?;
        let request = IoRequest {
            tag: pending.tag(),
            operation: Some(operation),
        };
        let sent = self.sender.as_ref().map(|sender| sender.try_send(request));
        if !matches!(sent, Some(Ok(()))) {
            pending.withdraw();
            return Err(Failure::connection_lost("the stream has ended").into());
        }
        Ok(pending.await?)
    }
}

impl Drop for IoSession {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Takes answers in until the stream ends, and then fails what is outstanding.
async fn drive(mut answers: Streaming<IoResponse>, table: Arc<Table>, wait: Wait) {
    let failure = loop {
        let next = match wait {
            Wait::BusyPoll => look_out(&table, answers.message()).await,
            Wait::Sleep => answers.message().await,
        };
        match next {
            Ok(Some(response)) => {
                if let Err(failure) = take(&table, response) {
                    break failure;
                }
            }
            Ok(None) => break Failure::connection_lost("the server has ended the stream"),
            Err(status) => break Failure::from(status),
        }
    };
    table.fail(failure);
}

/// Waits for the next answer; the runtime's thread does not sleep while a request is outstanding.
async fn look_out<T>(table: &Table, next: impl Future<Output = T>) -> T {
    let mut next = std::pin::pin!(next);
    loop {
        if table.is_idle() {
            tokio::select! {
                biased;
                answer = &mut next => return answer,
                () = table.begun() => {}
            }
        } else {
            tokio::select! {
                biased;
                answer = &mut next => return answer,
                () = tokio::task::yield_now() => {}
            }
        }
    }
}

fn take(table: &Table, response: IoResponse) -> Result<(), Failure> {
    let answer = match response.result {
        Some(Answer::Error(error)) => Err(Failure::from(error)),
        Some(answer) => Ok(answer),
        None => return Err(Failure::protocol("the server's answer is empty")),
    };
    table.answer(response.tag, answer)
}

fn opened(response: Option<IoResponse>) -> Result<IoOpened, ClientError> {
    match response.and_then(|response| response.result) {
        Some(Answer::Opened(opened)) if opened.credits > 0 => Ok(opened),
        Some(Answer::Error(error)) => Err(Failure::from(error).into()),
        _ => Err(Failure::protocol("the server did not open the volume").into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn busy_polling_sleeps_while_nothing_is_outstanding_and_looks_again_while_something_is() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let table = Table::new(1);
        let mut waiting = std::pin::pin!(look_out(&table, std::future::pending::<()>()));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "idle: it sleeps");

        let request = std::pin::pin!(table.reserve()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(request.is_ready());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "woken by the request");
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(
            wakes.0.load(Ordering::Relaxed),
            2,
            "outstanding: it looks again"
        );
    }
}
