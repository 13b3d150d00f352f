//! What the HTTP server shows: the sources of metrics, and whether the cores answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lode_engine::ShardStats;
use lode_reactor::{CoreHandle, CoreStats, Hosted};
use lode_units::CoreId;

use crate::metrics::{Families, MetricsSource, ProcessSource, ShardSource, collect_core};

/// Whether a core answered.
pub type Pinged = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A core, whatever it hosts.
pub trait CoreProbe: Send + Sync {
    /// Which core.
    fn core(&self) -> CoreId;

    /// Its account.
    fn stats(&self) -> &CoreStats;

    /// Jobs in its mailbox.
    fn mailbox_depth(&self) -> usize;

    /// Connections that it serves.
    fn connections(&self) -> usize;

    /// Asks it to answer; waits as long as it takes.
    fn ping(&self) -> Pinged;
}

impl<H: Hosted> CoreProbe for CoreHandle<H> {
    fn core(&self) -> CoreId {
        Self::core(self)
    }

    fn stats(&self) -> &CoreStats {
        Self::stats(self)
    }

    fn mailbox_depth(&self) -> usize {
        Self::mailbox_depth(self)
    }

    fn connections(&self) -> usize {
        Self::connections(self)
    }

    fn ping(&self) -> Pinged {
        let core = self.clone();
        Box::pin(async move { core.call(|_hosted| ()).await.is_ok() })
    }
}

/// Everything that is shown. The daemon adds what it has before it serves.
pub struct Monitor {
    cores: Vec<Box<dyn CoreProbe>>,
    shards: Vec<Arc<ShardStats>>,
    sources: Vec<Box<dyn MetricsSource>>,
    is_serving: AtomicBool,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Monitor")
            .field("cores", &self.cores.len())
            .field("sources", &self.sources.len())
            .field("is_serving", &self.is_serving)
            .finish_non_exhaustive()
    }
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new()
    }
}

impl Monitor {
    /// Shows the process, and is not ready.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cores: Vec::new(),
            shards: Vec::new(),
            sources: vec![Box::new(ProcessSource)],
            is_serving: AtomicBool::new(false),
        }
    }

    /// Adds a core and the figures of its shard.
    pub fn add_core(&mut self, core: impl CoreProbe + 'static, shard: Arc<ShardStats>) {
        self.add_source(ShardSource {
            core: core.core(),
            stats: Arc::clone(&shard),
        });
        self.cores.push(Box::new(core));
        self.shards.push(shard);
    }

    /// Adds any other source of metrics.
    pub fn add_source(&mut self, source: impl MetricsSource + 'static) {
        self.sources.push(Box::new(source));
    }

    /// Says whether the daemon takes requests: after its start and before its stop.
    pub fn set_serving(&self, is_serving: bool) {
        self.is_serving.store(is_serving, Ordering::Release);
    }

    /// The text of a scrape.
    pub(super) fn metrics(&self) -> String {
        let mut families = Families::default();
        for core in &self.cores {
            collect_core(core.as_ref(), &mut families);
        }
        for source in &self.sources {
            source.collect(&mut families);
        }
        families.encode()
    }

    /// Whether every core answers in time, or which does not.
    pub(super) async fn health(&self) -> Result<(), String> {
        let pinged = self.cores.iter().map(|core| async move {
            let answered = tokio::time::timeout(PING_TIMEOUT, core.ping()).await;
            (core.core(), answered)
        });
        let silent = join_all(pinged).await.into_iter();
        let silent = silent.filter_map(|(core, answered)| match answered {
            Ok(true) => None,
            Ok(false) => Some(format!("core {core} has ended")),
            Err(_) => Some(format!("core {core} does not answer")),
        });
        let silent: Vec<_> = silent.collect();
        if silent.is_empty() {
            Ok(())
        } else {
            Err(silent.join("; "))
        }
    }

    /// Whether requests are taken and every pool serves, or what is missing.
    pub(super) fn readiness(&self) -> Result<(), String> {
        if !self.is_serving.load(Ordering::Acquire) {
            return Err("not serving".to_owned());
        }
        let pools = self.shards.iter().flat_map(|shard| shard.pools());
        let missing: Vec<_> = pools
            .filter(|pool| pool.is_ready.read() == 0)
            .map(|pool| format!("pool {:?} is not ready", pool.pool))
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(missing.join("; "))
        }
    }
}

/// How long a core may take to answer.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
