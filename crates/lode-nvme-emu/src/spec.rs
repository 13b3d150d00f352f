//! Emulated controllers as a configuration names them.
//!
//! `memory:SIZE[?OPTIONS]` or `file:PATH[?OPTIONS]`, options joined with `&`:
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `lba=512` … `65536` | the logical block | 4096 |
//! | `size=1GiB` | the file's size: checked, or what it is created with | as it is |
//! | `create` | create the file, sparse, when it is missing; needs `size` | must exist |
//! | `namespaces=N` | cut the media into N namespaces | 1 |
//! | `cache=none\|host\|modelled` | the write cache | `none` for memory, `host` for a file |
//! | `cache_size=32MiB` | the size of a modelled cache | 32 MiB |
//! | `flush=ok\|lie` | whether Flush and FUA do what they say | `ok` |
//! | `mdts=1MiB` | the longest transfer, a power of two | 1 MiB |
//! | `queues=N` | I/O queue pairs | 64 |
//! | `depth=N` | entries of the largest queue | 4096 |
//! | `stride=N` | CAP.DSTRD | 0 |
//! | `shadow` | Doorbell Buffer Config is there | absent |
//! | `latency=80us` or `80us+20us` | each command's time, plus jitter | none |
//! | `bandwidth=500MB` | bytes in a second | no limit |
//! | `seed=N` | of the jitter | 0 |
//! | `serial=TEXT` | the serial number | made from the name |
//! | `fault=RULE` | a fault rule, see [`crate::FaultRule`]; may be repeated | none |

pub(crate) mod quantity;

use std::path::PathBuf;
use std::str::FromStr;

use lode_units::BlockSize;

use crate::backing::Media;
use crate::controller::EmulatedController;
use crate::error::EmulatorError;
use crate::fault::FaultRule;
use crate::options::{Cache, ControllerOptions, NamespaceOptions, SignalPolicy};
use quantity::{duration, integer, narrow, positive, size_bytes, syntax};

/// A whole emulated controller in words.
#[derive(Clone, Debug)]
pub struct EmulatorSpec {
    /// What its blocks are kept in.
    pub media: MediaSpec,
    /// The logical block.
    pub block_size: BlockSize,
    /// How many namespaces share the media.
    pub namespace_count: u32,
    /// The cache in front of each.
    pub cache: Cache,
    /// Whether Flush and FUA are lies.
    pub lies_about_flush: bool,
    /// The controller's own properties.
    pub controller: ControllerOptions,
    /// The fault script.
    pub faults: Vec<FaultRule>,
}

/// What the blocks of a controller are kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaSpec {
    /// Memory of this process.
    Memory {
        /// How much.
        length_bytes: u64,
    },
    /// A file or block device.
    File {
        /// Where.
        path: PathBuf,
        /// The size that it has to have.
        length_bytes: Option<u64>,
        /// Whether to create it when it is missing.
        create: bool,
    },
}

impl EmulatedController {
    /// Makes the controller that `spec` describes: opens or creates its file, installs its
    /// faults. Blocks.
    ///
    /// # Errors
    /// When the file cannot be had, a size does not fit, or an option is out of bounds.
    pub fn open(spec: &EmulatorSpec) -> Result<Self, EmulatorError> {
        let block_bytes = spec.block_size.bytes();
        let media = match &spec.media {
            MediaSpec::Memory { length_bytes } => Media::memory(*length_bytes)?,
            MediaSpec::File {
                path,
                length_bytes: Some(length_bytes),
                create: true,
            } => Media::create_file(path, *length_bytes, block_bytes)?,
            MediaSpec::File {
                path, length_bytes, ..
            } => Media::open_file(path, *length_bytes, block_bytes)?,
        };
        let parts = match spec.namespace_count {
            1 => vec![media],
            count => media.split(count, block_bytes),
        };
        let namespaces = parts
            .into_iter()
            .map(|media| NamespaceOptions {
                block_size: spec.block_size,
                media,
                cache: spec.cache,
                lies_about_flush: spec.lies_about_flush,
                nguid: None,
            })
            .collect();
        let controller = Self::new(spec.controller.clone(), namespaces)?;
        for rule in &spec.faults {
            controller.install_fault(rule.clone())?;
        }
        Ok(controller)
    }
}

impl FromStr for EmulatorSpec {
    type Err = EmulatorError;

    fn from_str(text: &str) -> Result<Self, EmulatorError> {
        let (device, options) = text.split_once('?').unwrap_or((text, ""));
        let mut spec = parse_device(device)?;
        let mut draft = Draft::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            spec.set(&mut draft, key, value)?;
        }
        spec.finish(&draft, text)
    }
}

/// Options that only make sense together.
#[derive(Debug, Default)]
struct Draft {
    cache_bytes: Option<u64>,
    size: Option<u64>,
    create: bool,
}

impl EmulatorSpec {
    fn set(
        &mut self,
        draft: &mut Draft,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), EmulatorError> {
        match (key, value) {
            ("create", None) => draft.create = true,
            ("shadow", None) => self.controller.shadow_doorbells = true,
            ("size", Some(value)) => draft.size = Some(size_bytes(value)?),
            ("cache_size", Some(value)) => draft.cache_bytes = Some(size_bytes(value)?),
            ("lba", Some(value)) => self.block_size = block_size(value)?,
            ("namespaces", Some(value)) => self.namespace_count = positive(value)?,
            ("cache", Some(value)) => self.cache = cache(value)?,
            ("flush", Some(value)) => self.lies_about_flush = is_lie(value)?,
            ("mdts", Some(value)) => self.controller.transfer_max_shift = transfer_shift(value)?,
            ("queues", Some(value)) => self.controller.queue_pairs_max = positive(value)?,
            ("depth", Some(value)) => self.controller.queue_entries_max = positive(value)?,
            ("stride", Some(value)) => self.controller.doorbell_stride = narrow(value)?,
            ("latency", Some(value)) => self.set_latency(value)?,
            ("bandwidth", Some(value)) => {
                self.controller.latency.bytes_per_second = size_bytes(value)?;
            }
            ("seed", Some(value)) => self.controller.latency.seed = integer(value)?,
            ("serial", Some(value)) => value.clone_into(&mut self.controller.serial_number),
            ("fault", Some(value)) => self.faults.push(value.parse()?),
            ("create" | "shadow", Some(_)) => return Err(syntax(key, "takes no value")),
            (key, _) if KEYS.contains(&key) => return Err(syntax(key, "needs a value")),
            (key, _) => {
                return Err(syntax(
                    key,
                    "expected one of lba, size, create, namespaces, cache, cache_size, flush, \
                     mdts, queues, depth, stride, shadow, latency, bandwidth, seed, serial, fault",
                ));
            }
        }
        Ok(())
    }

    fn set_latency(&mut self, value: &str) -> Result<(), EmulatorError> {
        let (fixed, jitter) = match value.split_once('+') {
            Some((fixed, jitter)) => (fixed, Some(jitter)),
            None => (value, None),
        };
        let latency = &mut self.controller.latency;
        let fixed = duration(fixed)?;
        (latency.read, latency.write, latency.flush) = (fixed, fixed, fixed);
        if let Some(jitter) = jitter {
            latency.jitter = duration(jitter)?;
        }
        Ok(())
    }

    /// Puts together what belongs together.
    fn finish(mut self, draft: &Draft, text: &str) -> Result<Self, EmulatorError> {
        match (&mut self.cache, draft.cache_bytes) {
            (_, None) => {}
            (Cache::Modelled { capacity_bytes }, Some(bytes)) => {
                *capacity_bytes = usize::try_from(bytes)
                    .map_err(|_error| syntax("cache_size", "the size is too large"))?;
            }
            (Cache::None | Cache::Host, Some(_)) => {
                return Err(syntax("cache_size", "only a modelled cache has a size"));
            }
        }
        match &mut self.media {
            MediaSpec::Memory { .. } if draft.create || draft.size.is_some() => {
                return Err(syntax(text, "size and create are for files"));
            }
            MediaSpec::Memory { .. } => {}
            MediaSpec::File { .. } if draft.create && draft.size.is_none() => {
                return Err(syntax("create", "needs size=SIZE"));
            }
            MediaSpec::File {
                length_bytes,
                create,
                ..
            } => {
                *length_bytes = draft.size;
                *create = draft.create;
            }
        }
        self.controller.validate()?;
        Ok(self)
    }
}

fn parse_device(device: &str) -> Result<EmulatorSpec, EmulatorError> {
    let (media, cache) = match device.split_once(':') {
        Some(("memory", size)) => {
            let length_bytes = size_bytes(size)?;
            (MediaSpec::Memory { length_bytes }, Cache::None)
        }
        Some(("file", path)) if !path.is_empty() => {
            let media = MediaSpec::File {
                path: path.into(),
                length_bytes: None,
                create: false,
            };
            (media, Cache::Host)
        }
        _ => return Err(syntax(device, "expected memory:SIZE or file:PATH")),
    };
    Ok(EmulatorSpec {
        media,
        block_size: BlockSize::B4096,
        namespace_count: 1,
        cache,
        lies_about_flush: false,
        controller: ControllerOptions {
            name: device.to_owned(),
            serial_number: serial_of(device),
            signal_policy: SignalPolicy::OtherThreads,
            ..ControllerOptions::default()
        },
        faults: Vec::new(),
    })
}

/// Twenty characters that are the same for the same device name.
fn serial_of(device: &str) -> String {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in device.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    format!("LODE{hash:016X}")
}

fn block_size(value: &str) -> Result<BlockSize, EmulatorError> {
    BlockSize::new(integer(value)?)
        .map_err(|_error| syntax(value, "expected a power of two from 512 to 65536"))
}

fn cache(value: &str) -> Result<Cache, EmulatorError> {
    match value {
        "none" => Ok(Cache::None),
        "host" => Ok(Cache::Host),
        "modelled" => Ok(Cache::MODELLED),
        _ => Err(syntax(value, "expected none, host or modelled")),
    }
}

fn is_lie(value: &str) -> Result<bool, EmulatorError> {
    match value {
        "ok" => Ok(false),
        "lie" => Ok(true),
        _ => Err(syntax(value, "expected ok or lie")),
    }
}

fn transfer_shift(value: &str) -> Result<u8, EmulatorError> {
    let bytes = size_bytes(value)?;
    let is_possible = bytes.is_power_of_two() && (8 << 10..=16 << 20).contains(&bytes);
    if !is_possible {
        return Err(syntax(value, "expected a power of two from 8KiB to 16MiB"));
    }
    Ok(u8::try_from(bytes.trailing_zeros() - 12).expect("at most 12"))
}

const KEYS: [&str; 15] = [
    "size",
    "cache_size",
    "lba",
    "namespaces",
    "cache",
    "flush",
    "mdts",
    "queues",
    "depth",
    "stride",
    "latency",
    "bandwidth",
    "seed",
    "serial",
    "fault",
];

#[cfg(test)]
mod tests;
