//! A daemon killed under load, again and again, and what must survive each time.
//!
//! The device's volatile cache is modelled in the daemon's memory, so killing the process loses
//! what was written but not flushed: a kill is a power cut.
//!
//! 1. A block holds a content that was issued, and none older than its last acknowledged durable
//!    one (`ledger.rs`).
//! 2. A volume whose creation was acknowledged is there, one whose deletion was is not
//!    (`churn.rs`).
//! 3. The daemon starts after every kill, also after one in the middle of a start.

mod churn;
mod ledger;
mod stamp;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use lode_units::{Random, SeededRandom};
use tokio::sync::Notify;

use crate::{Daemon, Site};
use churn::Churn;
use writer::Writer;

/// Each writer's volume, in bytes.
const VOLUME_BYTES: u64 = 1 << 20;
const WRITERS: u64 = 3;
/// The longest time between the writers' start, or their first success, and the kill.
const LOAD_MAX_MS: u64 = 40;
/// How long the first success may take.
const PROGRESS_LIMIT: Duration = Duration::from_secs(60);
/// One kill of so many comes in the middle of a start.
const START_KILLS_ONE_IN: u64 = 8;
/// The longest time between a start and a kill in the middle of it.
const START_MAX_MS: u64 = 30;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often to kill.
    pub rounds: u32,
    /// The seed of moments and operations. The operating system's scheduling is not repeatable.
    pub seed: u64,
    /// The options of the device.
    pub device_options: &'static str,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// Kills under load that were survived or led to the loss.
    pub rounds: u32,
    /// Kills in the middle of a start.
    pub start_kills: u32,
    /// Blocks whose content was acknowledged as durable.
    pub durable_blocks: u64,
    /// Requests that were in flight when a kill came.
    pub in_flight_at_kill: u64,
    /// Acknowledged creations and deletions.
    pub churned_volumes: u64,
    /// What was acknowledged and is gone. The loop ends with the first.
    pub losses: Vec<String>,
}

/// Kills a daemon as `plan` says and judges after each start what survived.
///
/// # Panics
/// When the daemon does not start for the first time or refuses ordinary work.
pub async fn run(plan: Plan) -> Report {
    let site = Site::with_options(plan.device_options);
    let mut random = SeededRandom::new(plan.seed);
    let mut report = Report::default();
    let mut writers: Vec<Writer> = Vec::new();
    let mut churn = Churn::default();

    let first = site.start();
    for index in 0..WRITERS {
        let name = format!("written-{index}");
        first.create_volume(&name, VOLUME_BYTES).await;
        writers.push(Writer::new(name, VOLUME_BYTES, random.next_u64()));
    }
    let mut daemon = Some(first);
    while report.rounds < plan.rounds && report.losses.is_empty() {
        let running = match daemon.take() {
            Some(running) => running,
            None => match site.try_start() {
                Ok(running) => running,
                Err(failure) => {
                    report
                        .losses
                        .push(format!("the daemon does not start: {failure}"));
                    break;
                }
            },
        };
        judge(&running, &mut writers, &mut churn, &mut report).await;
        if report.losses.is_empty() {
            let moment = Moment::choose(&mut random);
            (writers, churn) = one_round(running, writers, churn, moment).await;
            report.rounds += 1;
            if random.below(START_KILLS_ONE_IN) == 0 {
                site.kill_while_starting(Duration::from_micros(
                    1 + random.below(START_MAX_MS * 1000),
                ));
                report.start_kills += 1;
            }
        }
    }
    for writer in &writers {
        report.durable_blocks += writer.durable_blocks();
        report.in_flight_at_kill += writer.in_flight_at_kill();
    }
    report.churned_volumes = churn.acknowledged();
    report
}

/// Compares what the daemon serves with what was acknowledged before.
async fn judge(daemon: &Daemon, writers: &mut [Writer], churn: &mut Churn, report: &mut Report) {
    for writer in writers {
        report.losses.extend(writer.judge(daemon).await);
    }
    report.losses.extend(churn.judge(daemon).await);
}

/// When a kill comes.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after the writers' start.
    AnyTime(Duration),
    /// So long after the first acknowledgement that something is durable, so that a slow machine
    /// has something to lose as well.
    AfterProgress(Duration),
}

impl Moment {
    fn choose(random: &mut SeededRandom) -> Self {
        let load = Duration::from_micros(1 + random.below(LOAD_MAX_MS * 1000));
        match random.below(4) {
            0 => Self::AnyTime(load),
            _ => Self::AfterProgress(load),
        }
    }
}

/// Lets the writers write until `moment`, then kills the daemon.
async fn one_round(
    daemon: Daemon,
    writers: Vec<Writer>,
    churn: Churn,
    moment: Moment,
) -> (Vec<Writer>, Churn) {
    let mut tasks = Vec::new();
    let progress = Arc::new(Notify::new());
    for writer in writers {
        let client = daemon.blocks().await;
        let progress = Arc::clone(&progress);
        tasks.push(tokio::spawn(writer.write_until_cut(client, progress)));
    }
    let churning = tokio::spawn(churn.until_cut(daemon.volumes().await));
    if matches!(moment, Moment::AfterProgress(_)) {
        tokio::time::timeout(PROGRESS_LIMIT, progress.notified())
            .await
            .expect("something becomes durable");
    }
    let (Moment::AnyTime(load) | Moment::AfterProgress(load)) = moment;
    tokio::time::sleep(load).await;
    daemon.kill();
    let mut writers = Vec::new();
    for task in tasks {
        writers.push(task.await.expect("a writer ends when its stream breaks"));
    }
    (
        writers,
        churning
            .await
            .expect("the churn ends when its connection breaks"),
    )
}
