//! What an emulated controller is like.

use std::time::Duration;

use lode_units::BlockSize;

use crate::backing::Media;
use crate::error::EmulatorError;
use crate::latency::Latency;

/// The properties of a controller.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The name for logs and errors.
    pub name: String,
    /// The serial number: at most 20 characters of ASCII.
    pub serial_number: String,
    /// I/O queue pairs: 1 to 1024.
    pub queue_pairs_max: u16,
    /// Entries of the largest queue (CAP.MQES + 1): 2 to 65536.
    pub queue_entries_max: u32,
    /// MDTS: the longest transfer is `4096 << this` bytes; 1 to 12, that is 8 KiB to 16 MiB.
    pub transfer_max_shift: u8,
    /// CAP.DSTRD: doorbells are `4 << this` bytes apart; 0 to 9.
    pub doorbell_stride: u8,
    /// CAP.MPSMAX: the largest host page is `4096 << this` bytes; 0 to 4.
    pub page_size_max_shift: u8,
    /// CAP.TO, in units of 500 ms: at least 1.
    pub ready_timeout_500ms: u8,
    /// From CC.EN = 1 to CSTS.RDY = 1.
    pub enable_delay: Duration,
    /// From CC.EN = 0 to CSTS.RDY = 0, at the least: operations on files are waited for.
    pub disable_delay: Duration,
    /// From CC.SHN to CSTS.SHST = 10b.
    pub shutdown_delay: Duration,
    /// Whether Doorbell Buffer Config is there.
    pub shadow_doorbells: bool,
    /// Interrupt vectors: 1 to 2048.
    pub interrupt_count: u16,
    /// Which completions fire an interrupt.
    pub signal_policy: SignalPolicy,
    /// The optional commands.
    pub commands: OptionalCommands,
    /// How long each command takes.
    pub latency: Latency,
}

/// Which completions fire the interrupt of their queue, given that it is enabled there and not
/// masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalPolicy {
    /// Every batch of completions, whoever calls [`lode_bus::Bus::advance`].
    Always,
    /// Only batches that are posted while a thread other than the queue's own works: the thread
    /// that rang the queue's doorbell last and now calls `advance` itself looks at its completion
    /// queue afterwards, and waking it would be a system call for nothing.
    OtherThreads,
}

/// Optional NVM commands that a controller has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one independent capability bit of ONCS"
)]
pub struct OptionalCommands {
    /// Compare.
    pub compare: bool,
    /// Write Zeroes.
    pub write_zeroes: bool,
    /// Dataset Management.
    pub dataset_management: bool,
    /// Verify.
    pub verify: bool,
}

impl OptionalCommands {
    /// All of them.
    pub const ALL: Self = Self {
        compare: true,
        write_zeroes: true,
        dataset_management: true,
        verify: true,
    };
    /// None of them.
    pub const NONE: Self = Self {
        compare: false,
        write_zeroes: false,
        dataset_management: false,
        verify: false,
    };
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            name: "emulated".to_owned(),
            serial_number: "LODE0001".to_owned(),
            queue_pairs_max: 64,
            queue_entries_max: 4096,
            transfer_max_shift: 8,
            doorbell_stride: 0,
            page_size_max_shift: 4,
            ready_timeout_500ms: 20,
            enable_delay: Duration::ZERO,
            disable_delay: Duration::ZERO,
            shutdown_delay: Duration::ZERO,
            shadow_doorbells: false,
            interrupt_count: 65,
            signal_policy: SignalPolicy::Always,
            commands: OptionalCommands::ALL,
            latency: Latency::NONE,
        }
    }
}

impl ControllerOptions {
    /// The longest transfer in bytes.
    #[must_use]
    pub const fn transfer_max_bytes(&self) -> u32 {
        4096 << self.transfer_max_shift
    }

    /// Checks every bound.
    pub(crate) fn validate(&self) -> Result<(), EmulatorError> {
        let bounds: [(&'static str, u64, u64, u64, &'static str); 8] = [
            (
                "queue_pairs_max",
                self.queue_pairs_max.into(),
                1,
                1024,
                "1 to 1024",
            ),
            (
                "queue_entries_max",
                self.queue_entries_max.into(),
                2,
                65536,
                "2 to 65536",
            ),
            (
                "transfer_max_shift",
                self.transfer_max_shift.into(),
                1,
                12,
                "1 to 12",
            ),
            (
                "doorbell_stride",
                self.doorbell_stride.into(),
                0,
                9,
                "0 to 9",
            ),
            (
                "page_size_max_shift",
                self.page_size_max_shift.into(),
                0,
                4,
                "0 to 4",
            ),
            (
                "ready_timeout_500ms",
                self.ready_timeout_500ms.into(),
                1,
                255,
                "1 to 255",
            ),
            (
                "interrupt_count",
                self.interrupt_count.into(),
                1,
                2048,
                "1 to 2048",
            ),
            (
                "serial_number",
                self.serial_number.len() as u64,
                0,
                20,
                "at most 20 characters",
            ),
        ];
        for (option, value, lowest, highest, allowed) in bounds {
            if value < lowest || value > highest {
                return Err(EmulatorError::Option {
                    option,
                    value,
                    allowed,
                });
            }
        }
        Ok(())
    }
}

/// The write cache in front of a namespace's media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// There is none: a completed write is on the media. On a file, every write is synced.
    None,
    /// The host's own: its page cache and disk. Flush and FUA sync the file. Memory has no such
    /// cache, so that nothing is lost there, but the controller reports one.
    Host,
    /// A volatile one of the emulator's: unflushed writes sit in memory of this process and are
    /// lost when the power is cut or the process ends. Its work is done by blocking calls.
    Modelled {
        /// Its size; at the bound the oldest writes go to the media.
        capacity_bytes: usize,
    },
}

impl Cache {
    /// A modelled cache of 32 MiB.
    pub const MODELLED: Self = Self::Modelled {
        capacity_bytes: 32 << 20,
    };
}

/// The properties of one namespace.
#[derive(Clone, Debug)]
pub struct NamespaceOptions {
    /// The logical block.
    pub block_size: BlockSize,
    /// The bytes behind it. A length that is no multiple of the block is an error.
    pub media: Media,
    /// The cache in front of them.
    pub cache: Cache,
    /// Whether Flush and FUA complete without doing anything: the negative control of tests of
    /// durability.
    pub lies_about_flush: bool,
    /// Its NGUID; `None` for one that stays the same under the same serial number and identifier.
    /// A namespace that is made anew has another.
    pub nguid: Option<[u8; 16]>,
}

impl NamespaceOptions {
    /// A namespace on `media` without a cache.
    #[must_use]
    pub const fn new(block_size: BlockSize, media: Media) -> Self {
        Self {
            block_size,
            media,
            cache: Cache::None,
            lies_about_flush: false,
            nguid: None,
        }
    }
}
