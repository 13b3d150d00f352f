//! One client that writes over an Io stream until it breaks.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lode_api::v1::block_service_client::BlockServiceClient;
use lode_api::v1::io_request::Operation;
use lode_api::v1::io_response::Result as IoResult;
use lode_api::v1::{
    Durability, IoDiscard, IoFlush, IoOpen, IoRequest, IoResponse, IoWrite, IoWriteZeroes,
    ReadRequest,
};
use lode_units::{Random, SeededRandom};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::ledger::{Content, Covered, Ledger};
use super::stamp::{self, BLOCK_BYTES};
use crate::Daemon;

/// How many requests a writer keeps in flight.
const DEPTH: usize = 16;
/// The most blocks of one write.
const BLOCKS_MAX: u64 = 4;
const OPEN_TAG: u64 = 0;

/// A writer, its volume and what it knows of it.
#[derive(Debug)]
pub(super) struct Writer {
    volume: String,
    ledger: Ledger,
    random: SeededRandom,
    next_tag: u64,
    in_flight: HashMap<u64, InFlight>,
    in_flight_at_kill: u64,
}

#[derive(Debug)]
enum InFlight {
    Write {
        start: usize,
        count: usize,
        sequence: u64,
    },
    Flush(Covered),
}

impl Writer {
    pub(super) fn new(volume: String, size_bytes: u64, seed: u64) -> Self {
        let size = usize::try_from(size_bytes).expect("a small volume");
        Self {
            volume,
            ledger: Ledger::new(size / BLOCK_BYTES),
            random: SeededRandom::new(seed),
            next_tag: OPEN_TAG + 1,
            in_flight: HashMap::new(),
            in_flight_at_kill: 0,
        }
    }

    pub(super) fn durable_blocks(&self) -> u64 {
        self.ledger.durable_count()
    }

    pub(super) fn in_flight_at_kill(&self) -> u64 {
        self.in_flight_at_kill
    }

    /// Reads the volume back and compares.
    pub(super) async fn judge(&mut self, daemon: &Daemon) -> Vec<String> {
        let length_bytes = u32::try_from(self.ledger.block_count() * BLOCK_BYTES)
            .expect("the volume is as long as one read at most");
        let request = ReadRequest {
            volume: self.volume.clone(),
            length_bytes,
            ..ReadRequest::default()
        };
        match daemon.blocks().await.read(request).await {
            Ok(answer) => self
                .ledger
                .judge(&answer.into_inner().data)
                .into_iter()
                .map(|loss| format!("{}: {loss}", self.volume))
                .collect(),
            Err(status) => vec![format!("{} cannot be read: {status}", self.volume)],
        }
    }

    /// Writes until the connection breaks; tells `progress` when something new is durable.
    ///
    /// # Panics
    /// When the daemon refuses a request while it is up.
    pub(super) async fn write_until_cut(
        mut self,
        mut client: BlockServiceClient<Channel>,
        progress: Arc<Notify>,
    ) -> Self {
        let (requests, outgoing) = mpsc::channel(DEPTH + 1);
        let open = IoRequest {
            tag: OPEN_TAG,
            operation: Some(Operation::Open(IoOpen {
                volume: self.volume.clone(),
                ..IoOpen::default()
            })),
        };
        requests.send(open).await.expect("the receiver is alive");
        if let Ok(answers) = client.io(ReceiverStream::new(outgoing)).await {
            self.drive(&requests, answers.into_inner(), &progress).await;
        }
        self.in_flight_at_kill += u64::try_from(self.in_flight.len()).expect("a few");
        self.in_flight.clear();
        self
    }

    async fn drive(
        &mut self,
        requests: &mpsc::Sender<IoRequest>,
        mut answers: Streaming<IoResponse>,
        progress: &Notify,
    ) {
        let durable_before = self.ledger.durable_count();
        // Whatever the stream ends with, the daemon was killed: the judge decides what that means.
        while let Ok(Some(answer)) = answers.message().await {
            self.take(answer);
            if self.ledger.durable_count() > durable_before {
                progress.notify_one();
            }
            while self.in_flight.len() < DEPTH {
                let request = self.next_request();
                if requests.send(request).await.is_err() {
                    return;
                }
            }
        }
    }

    fn take(&mut self, answer: IoResponse) {
        let durability = match answer.result.expect("an answer has a result") {
            IoResult::Opened(_) => return,
            IoResult::Durability(durability) => {
                Durability::try_from(durability).expect("a level that this version knows")
            }
            IoResult::Data(_) => panic!("no read was sent"),
            IoResult::Error(error) => panic!("an ordinary write was refused: {error:?}"),
        };
        let request = self.in_flight.remove(&answer.tag);
        match request.expect("an answer to a request that is in flight") {
            InFlight::Write {
                start,
                count,
                sequence,
            } => {
                let is_durable = durability >= Durability::Data;
                self.ledger.answer(start, count, sequence, is_durable);
            }
            InFlight::Flush(covered) => self.ledger.flushed(&covered),
        }
    }

    fn next_request(&mut self) -> IoRequest {
        let tag = self.next_tag;
        self.next_tag += 1;
        let operation = match self.random.below(16) {
            0 => self.flush(tag),
            1 => self.zeros(tag),
            _ => self.write(tag),
        };
        IoRequest {
            tag,
            operation: Some(operation),
        }
    }

    fn flush(&mut self, tag: u64) -> Operation {
        self.in_flight
            .insert(tag, InFlight::Flush(self.ledger.covered()));
        Operation::Flush(IoFlush {})
    }

    fn write(&mut self, tag: u64) -> Operation {
        let (start, count, sequence) = self.issue(tag, Content::Stamp);
        let data: Vec<u8> = (start..start + count)
            .flat_map(|block| stamp::block(u64::try_from(block).expect("small"), sequence))
            .collect();
        Operation::Write(IoWrite {
            offset_bytes: bytes_of(start),
            data: Bytes::from(data),
            durability: self.durability().into(),
        })
    }

    fn zeros(&mut self, tag: u64) -> Operation {
        let (start, count, _) = self.issue(tag, Content::Zeros);
        let offset_bytes = bytes_of(start);
        let length_bytes = bytes_of(count);
        let durability = self.durability().into();
        if self.random.below(2) == 0 {
            Operation::Discard(IoDiscard {
                offset_bytes,
                length_bytes,
                durability,
            })
        } else {
            Operation::WriteZeroes(IoWriteZeroes {
                offset_bytes,
                length_bytes,
                durability,
            })
        }
    }

    /// Chooses blocks that have no write in flight. There are more than `DEPTH` times `BLOCKS_MAX`.
    fn issue(&mut self, tag: u64, content: Content) -> (usize, usize, u64) {
        let blocks = u64::try_from(self.ledger.block_count()).expect("a small volume");
        loop {
            let count = usize::try_from(1 + self.random.below(BLOCKS_MAX)).expect("small");
            let start = usize::try_from(self.random.below(blocks)).expect("small");
            if let Some(sequence) = self.ledger.issue(start, count, content) {
                let write = InFlight::Write {
                    start,
                    count,
                    sequence,
                };
                self.in_flight.insert(tag, write);
                return (start, count, sequence);
            }
        }
    }

    fn durability(&mut self) -> Durability {
        match self.random.below(8) {
            0 => Durability::Full,
            1 => Durability::Data,
            _ => Durability::None,
        }
    }
}

fn bytes_of(blocks: usize) -> u64 {
    u64::try_from(blocks * BLOCK_BYTES).expect("a small volume")
}
