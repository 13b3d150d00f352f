//! A raw image as a sequence of data and runs of zeros.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;

/// How much is read at once, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Zeros are found in units of this, in bytes: the unit in which a volume gives space back.
const GRANULE_BYTES: u64 = 4096;

const GRANULE: usize = 4096;

const ZEROES: [u8; GRANULE] = [0; GRANULE];

const _: () = assert!(GRANULE_BYTES == GRANULE as u64);
const _: () = assert!(CHUNK_BYTES.is_multiple_of(GRANULE_BYTES));

/// A part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// These bytes.
    Data(Bytes),
    /// So many zero bytes.
    Zeroes(u64),
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is neither a file nor a block device", path.display())]
    NotAnImage { path: PathBuf },
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
    #[error(
        "{} changed its size from {before_bytes} to {after_bytes} bytes while it was imported",
        path.display()
    )]
    Resized {
        path: PathBuf,
        before_bytes: u64,
        after_bytes: u64,
    },
}

/// An open image. Reading it blocks.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    block_size_bytes: u64,
    position_bytes: u64,
    zeroes_bytes: u64,
    buffer: BytesMut,
    ready: Option<Bytes>,
}

impl Source {
    /// Opens an image whose end is filled up to whole blocks of `block_size_bytes`, at most 4096.
    pub(crate) fn open(path: &Path) -> Result<Self, SourceError> {
        let failed = |source| SourceError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(SourceError::NotAnImage {
                path: path.to_owned(),
            });
        }
        let size_bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if size_bytes == 0 {
            return Err(SourceError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            size_bytes,
            block_size_bytes: GRANULE_BYTES,
            position_bytes: 0,
            zeroes_bytes: 0,
            buffer: BytesMut::new(),
            ready: None,
        })
    }

    /// The image's size in bytes when it was opened.
    pub(crate) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills the image's end up with zeros to whole blocks of `bytes`: 512 or 4096.
    pub(crate) fn fill_up_to_blocks_of(&mut self, bytes: u64) {
        self.block_size_bytes = bytes;
    }

    /// The size with its end filled up.
    pub(crate) fn filled_size_bytes(&self) -> u64 {
        self.size_bytes.next_multiple_of(self.block_size_bytes)
    }

    /// The next run; `None` at the end, when the size is still what it was.
    pub(crate) fn next_run(&mut self) -> Result<Option<Run>, SourceError> {
        loop {
            if let Some(run) = self.next_of_chunk() {
                return Ok(Some(run));
            }
            if self.position_bytes >= self.size_bytes {
                self.check_size()?;
                return Ok(self.take_zeroes());
            }
            self.skip_hole()?;
            if self.position_bytes < self.size_bytes {
                self.read_chunk()?;
            }
        }
    }

    /// The next run of the chunk that was read. Zeros are gathered over chunks.
    fn next_of_chunk(&mut self) -> Option<Run> {
        if let Some(data) = self.ready.take() {
            return Some(Run::Data(data));
        }
        let is_zero = |granule: &[u8]| granule == &ZEROES[..granule.len()];
        let zeroes = self
            .buffer
            .chunks(GRANULE)
            .take_while(|granule| is_zero(granule));
        let length: usize = zeroes.map(<[u8]>::len).sum();
        self.zeroes_bytes += count(self.buffer.split_to(length).len());
        let data = self
            .buffer
            .chunks(GRANULE)
            .take_while(|granule| !is_zero(granule));
        let length: usize = data.map(<[u8]>::len).sum();
        if length == 0 {
            return None;
        }
        self.ready = Some(self.buffer.split_to(length).freeze());
        self.take_zeroes()
            .or_else(|| self.ready.take().map(Run::Data))
    }

    fn take_zeroes(&mut self) -> Option<Run> {
        match std::mem::take(&mut self.zeroes_bytes) {
            0 => None,
            length => Some(Run::Zeroes(length)),
        }
    }

    /// Moves to the granule of the next data, if the file system can tell where they are.
    fn skip_hole(&mut self) -> Result<(), SourceError> {
        let from = self.position_bytes;
        let data = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(from)) {
            Ok(offset) => offset.min(self.size_bytes),
            // Nothing but a hole up to the end, wherever the end is by now.
            Err(Errno::NXIO) => self.size_bytes,
            Err(_) => from,
        };
        let next = if data == self.size_bytes {
            data
        } else {
            data / GRANULE_BYTES * GRANULE_BYTES
        };
        if next > from {
            self.position_bytes = next;
            let filled = if next == self.size_bytes {
                self.filled_size_bytes()
            } else {
                next
            };
            self.zeroes_bytes += filled - from;
        }
        if next == self.size_bytes {
            self.check_size()?;
        }
        Ok(())
    }

    fn read_chunk(&mut self) -> Result<(), SourceError> {
        let length = CHUNK_BYTES.min(self.size_bytes - self.position_bytes);
        let room = usize::try_from(length).expect("at most one chunk");
        self.buffer.resize(room, 0);
        match self
            .file
            .read_exact_at(&mut self.buffer, self.position_bytes)
        {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.check_size()?;
                return Err(self.failed(error));
            }
            Err(error) => return Err(self.failed(error)),
        }
        self.position_bytes += length;
        if self.position_bytes == self.size_bytes {
            let rest = self.filled_size_bytes() - self.size_bytes;
            let rest = usize::try_from(rest).expect("less than one block");
            self.buffer.resize(room + rest, 0);
        }
        Ok(())
    }

    fn check_size(&mut self) -> Result<(), SourceError> {
        let end = self.file.seek(SeekFrom::End(0));
        let after_bytes = end.map_err(|error| self.failed(error))?;
        if after_bytes == self.size_bytes {
            return Ok(());
        }
        Err(SourceError::Resized {
            path: self.path.clone(),
            before_bytes: self.size_bytes,
            after_bytes,
        })
    }

    fn failed(&self, source: io::Error) -> SourceError {
        SourceError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a buffer is shorter than 2^64 bytes")
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;

    fn image(size: u64, data: &[(u64, &[u8])]) -> NamedTempFile {
        let image = NamedTempFile::new().expect("a temporary file");
        image.as_file().set_len(size).expect("a sparse file");
        for (offset, bytes) in data {
            image.as_file().write_all_at(bytes, *offset).expect("room");
        }
        image
    }

    fn runs(source: &mut Source) -> Result<Vec<Run>, SourceError> {
        std::iter::from_fn(|| source.next_run().transpose()).collect()
    }

    fn open(image: &NamedTempFile) -> Source {
        Source::open(image.path()).expect("an image")
    }

    /// The runs put together, and how much of them is data.
    fn together(runs: &[Run]) -> (Vec<u8>, usize) {
        let mut whole = Vec::new();
        let mut data = 0;
        for run in runs {
            match run {
                Run::Data(bytes) => {
                    whole.extend_from_slice(bytes);
                    data += bytes.len();
                }
                Run::Zeroes(length) => {
                    whole.resize(whole.len() + usize::try_from(*length).expect("short"), 0);
                }
            }
        }
        (whole, data)
    }

    #[test]
    fn the_runs_together_are_the_image_and_zero_granules_are_never_data() {
        let places = [
            (0, [1; 100].as_slice()),
            (3 << 20, &[2; 9000]),
            ((5 << 20) - 1, &[3; 2]),
        ];
        let image = image(6 << 20, &places);
        let runs = runs(&mut open(&image)).expect("a quiet image");
        let (whole, data) = together(&runs);
        assert!(whole == std::fs::read(image.path()).expect("the image"));
        assert_eq!(data, (1 + 3 + 2) * 4096);
    }

    #[test]
    fn written_zeros_become_holes_like_real_ones() {
        let image = image(2 << 20, &[(0, &vec![0; 2 << 20])]);
        let runs = runs(&mut open(&image)).expect("a quiet image");
        assert_eq!(runs, [Run::Zeroes(2 << 20)]);
    }

    #[test]
    fn runs_of_zeros_are_gathered_over_chunks() {
        let image = image(8 << 20, &[(0, &vec![0; 3 << 20]), ((8 << 20) - 1, &[1])]);
        let runs = runs(&mut open(&image)).expect("a quiet image");
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert_eq!(runs[0], Run::Zeroes((8 << 20) - 4096));
    }

    #[test]
    fn the_end_is_filled_up_to_whole_blocks() {
        for (size, block, filled) in [(1, 4096, 4096), (1, 512, 512), (4097, 512, 4608)] {
            for data in [&[] as &[(u64, &[u8])], &[(size - 1, &[7])]] {
                let image = image(size, data);
                let mut source = open(&image);
                source.fill_up_to_blocks_of(block);
                assert_eq!(source.filled_size_bytes(), filled);
                let runs = runs(&mut source).expect("a quiet image");
                let (whole, _) = together(&runs);
                assert_eq!(whole.len(), usize::try_from(filled).expect("short"));
                let last = usize::try_from(size - 1).expect("short");
                assert_eq!(whole[last] == 7, !data.is_empty());
            }
        }
    }

    #[test]
    fn an_image_that_shrinks_or_grows_on_the_way_is_an_error_that_tells_both_sizes() {
        for after in [0, 4096, (4 << 20) - 1, (4 << 20) + 1] {
            for data in [&[] as &[(u64, &[u8])], &[(0, &[1; 4 << 20])]] {
                let image = image(4 << 20, data);
                let mut source = open(&image);
                if !data.is_empty() {
                    source.next_run().expect("the first chunk");
                }
                image.as_file().set_len(after).expect("another size");
                let error = runs(&mut source).expect_err("the size has changed");
                let SourceError::Resized {
                    before_bytes,
                    after_bytes,
                    ..
                } = error
                else {
                    panic!("{error}");
                };
                assert_eq!((before_bytes, after_bytes), (4 << 20, after));
            }
        }
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let empty = NamedTempFile::new().expect("a temporary file");
        let refused = Source::open(empty.path());
        assert!(matches!(refused, Err(SourceError::Empty { .. })));
        let refused = Source::open(Path::new("/dev/zero"));
        assert!(matches!(refused, Err(SourceError::NotAnImage { .. })));
        let refused = Source::open(Path::new("/nonexistent"));
        assert!(matches!(refused, Err(SourceError::Io { .. })));
    }
}
