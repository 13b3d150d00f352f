//! The configuration: one TOML file, with environment and flags above it.

mod check;
mod cores;
mod listen;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use lode_reactor::PollMode;
use serde::{Deserialize, Serialize};

pub(crate) use cores::Cores;
pub(crate) use listen::Listen;

/// Everything that the daemon can be told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where it listens.
    pub(crate) server: Server,
    /// How its cores work.
    pub(crate) core: Core,
    /// How much memory it takes.
    pub(crate) memory: Memory,
    /// Its pools.
    #[serde(rename = "pool")]
    pub(crate) pools: Vec<Pool>,
    /// What it logs.
    pub(crate) log: Log,
}

/// Where the daemon listens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// TCP addresses of the gRPC API.
    pub(crate) grpc: Vec<Listen>,
    /// A Unix socket of the gRPC API; replaced when a stale one is there.
    pub(crate) unix: Option<PathBuf>,
    /// The TCP address of /metrics, /healthz and /readyz.
    pub(crate) http: Listen,
    /// Whether addresses beyond loopback are allowed although nothing asks who calls.
    pub(crate) allow_remote_without_auth: bool,
    /// How long requests under way may take when the daemon stops.
    #[serde(with = "humantime_serde")]
    pub(crate) stop_grace: Duration,
}

/// How the cores work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Core {
    /// How many there are, or the operating system's processor that each is pinned to.
    pub(crate) cores: Cores,
    /// When a core sleeps.
    pub(crate) poll: Poll,
    /// How long it polls on after the last request or completion.
    #[serde(with = "humantime_serde")]
    pub(crate) idle_budget: Duration,
}

/// When a core sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Poll {
    /// Never: uses a whole processor, and devices raise no interrupts
    Always,
    /// When nothing came in and nothing completed for the idle budget
    #[default]
    Adaptive,
    /// As soon as there is nothing to do: least processor time, a wake-up for each batch
    Interrupt,
}

impl From<Poll> for PollMode {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Always => Self::Always,
            Poll::Adaptive => Self::Adaptive,
            Poll::Interrupt => Self::Interrupt,
        }
    }
}

/// How much memory the daemon takes for data in flight.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Memory {
    /// Whether to use huge pages.
    pub(crate) huge_pages: HugePages,
    /// Buffers of 4 KiB.
    pub(crate) small_buffers: usize,
    /// Buffers of 64 KiB.
    pub(crate) medium_buffers: usize,
    /// Buffers of 1 MiB.
    pub(crate) large_buffers: usize,
}

/// Whether to use huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HugePages {
    /// Where the system has reserved enough of them.
    #[default]
    IfReserved,
    /// Not at all.
    Never,
}

/// A pool that the daemon opens when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pool {
    /// Its name.
    pub(crate) name: String,
    /// Its devices, as `file:PATH`, `memory:SIZE` or `vfio:ADDRESS` with options.
    pub(crate) devices: Vec<String>,
    /// Whether to make the pool when its devices hold none.
    #[serde(default)]
    pub(crate) create: bool,
}

/// What the daemon logs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    /// Which events, as `level` or `target=level,…`.
    pub(crate) filter: String,
    /// In which form.
    pub(crate) format: LogFormat,
}

/// In which form events are logged, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            grpc: vec![Listen::loopback(7070)],
            unix: None,
            http: Listen::loopback(9464),
            allow_remote_without_auth: false,
            stop_grace: Duration::from_secs(10),
        }
    }
}

impl Default for Core {
    fn default() -> Self {
        Self {
            cores: Cores::default(),
            poll: Poll::default(),
            idle_budget: Duration::from_micros(200),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            huge_pages: HugePages::default(),
            small_buffers: 1024,
            medium_buffers: 256,
            large_buffers: 64,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
            format: LogFormat::default(),
        }
    }
}

impl Config {
    /// Reads and parses a file. Unknown keys are errors.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Parses the text of a file.
    pub(crate) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// What `--dev` stands for: one pool on a file in `directory`.
    pub(crate) fn dev(directory: &Path) -> Self {
        let disk = directory.join("disk0.img");
        let pool = Pool {
            name: "dev".to_owned(),
            devices: vec![format!("file:{}?size=8GiB&create", disk.display())],
            create: true,
        };
        Self {
            pools: vec![pool],
            ..Self::default()
        }
    }

    /// The configuration as TOML.
    pub(crate) fn to_toml(&self) -> anyhow::Result<String> {
        Ok(toml::to_string_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        for text in [
            "[server]\ngrcp = []\n",
            "[[pool]]\nname = 'a'\ndevices = []\nsize = 1\n",
        ] {
            let error = Config::parse(text).expect_err("an unknown key");
            assert!(error.to_string().contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let config = Config::parse("").expect("an empty file is a configuration");
        assert_eq!(config, Config::default());
        let config = Config::parse("[core]\npoll = 'interrupt'\n").expect("one key");
        assert_eq!(config.core.poll, Poll::Interrupt);
        assert_eq!(config.core.idle_budget, Duration::from_micros(200));
        assert_eq!(config.core.cores, Cores::Count(1));
    }

    #[test]
    fn cores_are_a_number_or_a_list_of_processors() {
        let cores = |text| Config::parse(text).map(|config| config.core.cores);
        assert_eq!(cores("[core]\ncores = 2\n"), Ok(Cores::Count(2)));
        let list = Cores::Processors(vec![0, 1]);
        assert_eq!(cores("[core]\ncores = [0, 1]\n"), Ok(list));
        assert!(cores("[core]\ncores = 'all'\n").is_err());
    }

    #[test]
    fn a_printed_configuration_reads_back_alike() {
        let config = Config::dev(Path::new("/somewhere"));
        let text = config.to_toml().expect("it can be printed");
        assert_eq!(Config::parse(&text).expect("it can be read"), config);
    }
}
