//! `lodectl volume read` and `write`: parts of a volume through pipes.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use lode_api::Client;
use lode_api::client::ChunkContent;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::cli::{ReadArguments, WriteArguments};
use crate::output::{self, Output};
use crate::size::Size;
use crate::volume::durability_name;

/// How much of standard input is taken at once, in bytes: a multiple of every block size.
const CHUNK_BYTES: usize = 256 << 10;

/// How much is shown on a line of a dump, in bytes.
const LINE_BYTES: usize = 16;

pub(crate) async fn read(client: &Client, arguments: &ReadArguments) -> Result<()> {
    let is_dump = arguments.hex || io::stdout().is_terminal();
    let name = arguments.target.volume();
    let length = arguments.length.map(|Size(length)| length);
    let mut reader = client
        .read_stream(&name, arguments.offset.0, length)
        .await?;
    while let Some(chunk) = reader.next_chunk().await? {
        match chunk.content {
            ChunkContent::Data(data) => put(chunk.offset_bytes, &data, is_dump)?,
            ChunkContent::Zeroes(length) if is_dump => {
                let line = format!("{:012x}  {length} zero bytes\n", chunk.offset_bytes);
                output::write_all(line.as_bytes())?;
            }
            ChunkContent::Zeroes(length) => output::write_zeroes(length)?,
        }
    }
    Ok(())
}

fn put(offset_bytes: u64, data: &[u8], is_dump: bool) -> Result<()> {
    if is_dump {
        output::write_all(dump(offset_bytes, data).as_bytes())
    } else {
        output::write_all(data)
    }
}

/// A hex dump: place, bytes, and what of them is printable.
fn dump(mut offset_bytes: u64, data: &[u8]) -> String {
    let mut text = String::new();
    for line in data.chunks(LINE_BYTES) {
        let mut hex = String::new();
        let mut readable = String::new();
        for byte in line {
            // Writing to a string cannot fail.
            let _written = write!(hex, "{byte:02x} ");
            let is_plain = byte.is_ascii_graphic() || *byte == b' ';
            readable.push(if is_plain { char::from(*byte) } else { '.' });
        }
        let _written = writeln!(text, "{offset_bytes:012x}  {hex:48} {readable}");
        offset_bytes = offset_bytes.saturating_add(16);
    }
    text
}

pub(crate) async fn write(
    client: &Client,
    output: &Output,
    arguments: &WriteArguments,
) -> Result<()> {
    let name = arguments.target.volume();
    let volume = client.volume(&name).await?;
    let block = usize::try_from(volume.block_size_bytes)?;
    let durability = arguments.durability.into();
    let mut writer = client
        .write_stream(&name, arguments.offset.0, durability)
        .await?;
    let (sender, mut chunks) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || take_input(&sender));
    while let Some(chunk) = chunks.recv().await {
        let chunk: Bytes = chunk.context("cannot read standard input")?;
        if block == 0 || !chunk.len().is_multiple_of(block) {
            bail!("standard input is no multiple of the volume's block size of {block} bytes");
        }
        writer.data(chunk).await?;
    }
    let summary = writer.finish().await?;
    let view = WriteView {
        written_bytes: summary.data_bytes,
        durability: durability_name(summary.durability()),
    };
    output.show(&view, WriteView::line)
}

/// Hands standard input over in whole chunks; only the last is shorter.
fn take_input(chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let mut input = io::stdin().lock();
    loop {
        let mut chunk = Vec::new();
        let limit = u64::try_from(CHUNK_BYTES).expect("a chunk fits 64 bits");
        let read = (&mut input).take(limit).read_to_end(&mut chunk);
        let is_last = !matches!(read, Ok(CHUNK_BYTES));
        let item = read.map(|_| Bytes::from(chunk));
        let is_empty = matches!(&item, Ok(chunk) if chunk.is_empty());
        if !is_empty && chunks.blocking_send(item).is_err() || is_last {
            return;
        }
    }
}

#[derive(Serialize)]
struct WriteView {
    written_bytes: u64,
    durability: &'static str,
}

impl WriteView {
    fn line(&self) -> String {
        format!(
            "wrote {} bytes, durability {}",
            self.written_bytes, self.durability
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_shows_place_bytes_and_letters() {
        let text = dump(4096, b"Lodestore!\x00\xff 123456");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "000000001000  4c 6f 64 65 73 74 6f 72 65 21 00 ff 20 31 32 33  Lodestore!.. 123"
        );
        assert!(lines[1].starts_with("000000001010  34 35 36 "));
        assert_eq!(lines.len(), 2);
    }
}
