//! The arguments of `lodectl volume`, and what other commands share with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use lode_api::client::VolumeName;
use lode_api::v1::Durability;

use crate::size::Size;

/// A volume by name.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The volume
    name: String,
    /// Its pool; not needed when there is only one
    #[arg(long, default_value = "", hide_default_value = true)]
    pool: String,
}

impl Target {
    pub(crate) fn volume(&self) -> VolumeName {
        VolumeName::new(self.pool.clone(), self.name.clone())
    }
}

/// What a new volume is like.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct VolumeOptions {
    /// The block size: 512 or 4096
    #[arg(long, value_name = "SIZE", default_value = "4096")]
    pub(crate) block_size: Size,
    /// The least durability of each write to the volume
    #[arg(long, value_enum, default_value_t)]
    pub(crate) durability: Level,
    #[command(flatten)]
    pub(crate) limits: LimitOptions,
}

/// How much a volume may do. Reads and writes count together; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LimitOptions {
    /// The most operations a second, reads and writes together; 0: no limit
    #[arg(long, value_name = "NUMBER")]
    pub(crate) iops_max: Option<u64>,
    /// The most bytes a second, read and written together; 0: no limit
    #[arg(long, value_name = "SIZE")]
    pub(crate) bandwidth_max: Option<Size>,
    /// For how long what is not used is saved up, to be used at once (1s for a new volume)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) burst: Option<Duration>,
}

/// A level of durability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// A power cut may lose a write until a later flush
    #[default]
    None,
    /// Data and the metadata that reach them survive a power cut
    Data,
    /// All attributes survive as well
    Full,
}

impl From<Level> for Durability {
    fn from(level: Level) -> Self {
        match level {
            Level::None => Self::None,
            Level::Data => Self::Data,
            Level::Full => Self::Full,
        }
    }
}

/// What to do with volumes.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume
    Create {
        #[command(flatten)]
        target: Target,
        /// Its size
        #[arg(long)]
        size: Size,
        #[command(flatten)]
        options: VolumeOptions,
    },
    /// List volumes
    List {
        /// Only those of this pool
        #[arg(long, default_value = "", hide_default_value = true)]
        pool: String,
    },
    /// Show one volume
    #[command(visible_alias = "get")]
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Change a volume's size
    Resize {
        #[command(flatten)]
        target: Target,
        /// The new size
        #[arg(long)]
        size: Size,
        /// Also when that cuts data off
        #[arg(long)]
        allow_shrink: bool,
    },
    /// Change how much a volume may do; what is not given stays as it is
    Limit {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        limits: LimitOptions,
    },
    /// Delete a volume and its data
    Delete {
        #[command(flatten)]
        target: Target,
    },
    /// List which parts of a volume hold data
    Extents {
        #[command(flatten)]
        target: Target,
        /// Where to start
        #[arg(long, default_value = "0")]
        offset: Size,
        /// How far to go; to the end when not given
        #[arg(long)]
        length: Option<Size>,
    },
    /// Write a raw image into a volume; runs of zeros stay holes
    Import(ImportArguments),
    /// Write a volume into a raw image file; holes stay holes
    Export(ExportArguments),
    /// Write a part of a volume to standard output
    Read(ReadArguments),
    /// Write standard input into a volume
    Write(WriteArguments),
}

/// A volume to be exported.
#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The image file, or - for standard output
    pub(crate) file: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// A part of a volume to be read.
#[derive(Debug, Args)]
pub(crate) struct ReadArguments {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Where to start
    #[arg(long, default_value = "0")]
    pub(crate) offset: Size,
    /// How much; to the end when not given
    #[arg(long)]
    pub(crate) length: Option<Size>,
    /// As a hex dump (also when standard output is a terminal)
    #[arg(long)]
    pub(crate) hex: bool,
}

/// A part of a volume to be written.
#[derive(Debug, Args)]
pub(crate) struct WriteArguments {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Where to start
    #[arg(long, default_value = "0")]
    pub(crate) offset: Size,
    /// How durable all of it is at the end
    #[arg(long, value_enum, default_value_t = Level::Data)]
    pub(crate) durability: Level,
}

/// An image to be imported.
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// The image: a file or a block device
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Make the volume, as large as the image
    #[arg(long)]
    pub(crate) create: bool,
    /// Keep the volume that was made when the import fails
    #[arg(long, requires = "create")]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) options: VolumeOptions,
}
