//! Metrics in the text format of Prometheus.
//!
//! Whoever counts something implements [`MetricsSource`]; a scrape gathers all sources into
//! [`Families`], where figures of several cores under one name and the same labels are added up.

mod admission;
mod core;
mod process;
mod shard;

use std::collections::BTreeMap;

use lode_stats::{BUCKET_COUNT, HistogramSnapshot, bucket_upper_nanoseconds};
use prometheus::{TextEncoder, proto};

pub use process::ProcessSource;
pub use shard::ShardSource;

pub(crate) use self::core::collect as collect_core;

/// Something that counts.
pub trait MetricsSource: Send + Sync {
    /// Adds its figures. Called from the control thread; reads what the cores write without
    /// disturbing them.
    fn collect(&self, into: &mut Families);
}

/// The figures of one scrape, by name.
#[derive(Debug, Default)]
pub struct Families {
    families: BTreeMap<String, Family>,
}

#[derive(Debug)]
struct Family {
    help: &'static str,
    kind: Kind,
    samples: BTreeMap<Vec<(String, String)>, Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone, Debug, PartialEq)]
enum Sample {
    Whole(u64),
    /// The same on every core.
    Setting(u64),
    /// A sum of durations.
    Nanoseconds(u64),
    Histogram(Box<HistogramSnapshot>),
}

/// A label of a figure: its name and its value.
pub type Label<'a> = (&'a str, &'a str);

/// Labels of a figure.
pub type Labels<'a> = &'a [Label<'a>];

impl Families {
    /// Adds a figure that only grows. `name` ends in `_total`.
    ///
    /// # Panics
    /// When the name is that of a figure of another kind, as with every method here.
    pub fn counter(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: u64) {
        self.add(name, help, Kind::Counter, labels, Sample::Whole(value));
    }

    /// Adds a sum of durations, shown in seconds. `name` ends in `_seconds_total`.
    ///
    /// # Panics
    /// As [`Families::counter`].
    pub fn counter_of_time(
        &mut self,
        name: &str,
        help: &'static str,
        labels: Labels<'_>,
        nanoseconds: u64,
    ) {
        let sample = Sample::Nanoseconds(nanoseconds);
        self.add(name, help, Kind::Counter, labels, sample);
    }

    /// Adds a figure that goes both ways.
    ///
    /// # Panics
    /// As [`Families::counter`].
    pub fn gauge(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: u64) {
        self.add(name, help, Kind::Gauge, labels, Sample::Whole(value));
    }

    /// Adds a figure that every core shows alike: it is not added up.
    ///
    /// # Panics
    /// As [`Families::counter`].
    pub fn setting(&mut self, name: &str, help: &'static str, labels: Labels<'_>, value: u64) {
        self.add(name, help, Kind::Gauge, labels, Sample::Setting(value));
    }

    /// Adds a distribution of durations. `name` ends in `_seconds`.
    ///
    /// # Panics
    /// As [`Families::counter`].
    pub fn histogram(
        &mut self,
        name: &str,
        help: &'static str,
        labels: Labels<'_>,
        snapshot: HistogramSnapshot,
    ) {
        let sample = Sample::Histogram(Box::new(snapshot));
        self.add(name, help, Kind::Histogram, labels, sample);
    }

    fn add(
        &mut self,
        name: &str,
        help: &'static str,
        kind: Kind,
        labels: Labels<'_>,
        sample: Sample,
    ) {
        if !self.families.contains_key(name) {
            let family = Family {
                help,
                kind,
                samples: BTreeMap::new(),
            };
            self.families.insert(name.to_owned(), family);
        }
        let family = self.families.get_mut(name).expect("just made sure");
        assert!(family.kind == kind, "{name} is of one kind");
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        match family.samples.get_mut(&labels) {
            Some(present) => present.merge(sample),
            None => {
                family.samples.insert(labels, sample);
            }
        }
    }

    /// The text of the scrape.
    ///
    /// # Panics
    /// Never: a family is made together with its name and its first figure.
    #[must_use]
    pub fn encode(&self) -> String {
        let families: Vec<_> = self
            .families
            .iter()
            .map(|(name, family)| family.exposed(name))
            .collect();
        let text = TextEncoder::new().encode_to_string(&families);
        text.expect("a family has a name and at least one figure")
    }
}

impl Family {
    /// The family in the words of the exposition format.
    fn exposed(&self, name: &str) -> proto::MetricFamily {
        let mut family = proto::MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(match self.kind {
            Kind::Counter => proto::MetricType::COUNTER,
            Kind::Gauge => proto::MetricType::GAUGE,
            Kind::Histogram => proto::MetricType::HISTOGRAM,
        });
        let samples = self.samples.iter();
        let exposed = samples.map(|(labels, sample)| sample.exposed(self.kind, labels));
        family.set_metric(exposed.collect());
        family
    }
}

impl Sample {
    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Whole(sum), Self::Whole(value))
            | (Self::Nanoseconds(sum), Self::Nanoseconds(value)) => {
                *sum = sum.wrapping_add(value);
            }
            // One core may have seen a change that the other has not.
            (Self::Setting(value), Self::Setting(newer)) => *value = newer,
            (Self::Histogram(sum), Self::Histogram(value)) => sum.add(&value),
            (one, other) => panic!("{one:?} and {other:?} are figures of one kind"),
        }
    }

    fn exposed(&self, kind: Kind, labels: &[(String, String)]) -> proto::Metric {
        let value = match self {
            Self::Whole(value) | Self::Setting(value) => float(*value),
            Self::Nanoseconds(value) => seconds(*value),
            Self::Histogram(_) => 0.0,
        };
        let mut metric = proto::Metric::from_label(labels.iter().map(pair).collect());
        match (self, kind) {
            (Self::Histogram(snapshot), _) => metric.set_histogram(distribution(snapshot)),
            (_, Kind::Gauge) => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            (_, Kind::Counter | Kind::Histogram) => {
                let mut counter = proto::Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
        }
        metric
    }
}

fn pair((name, value): &(String, String)) -> proto::LabelPair {
    let mut pair = proto::LabelPair::default();
    pair.set_name(name.clone());
    pair.set_value(value.clone());
    pair
}

/// Cumulative buckets, one for each power of two: half of those recorded, which is fine enough.
fn distribution(snapshot: &HistogramSnapshot) -> proto::Histogram {
    let mut count = 0;
    let mut buckets = Vec::with_capacity(BUCKET_COUNT / 2);
    for (index, bucket) in snapshot.buckets.iter().enumerate() {
        count += bucket;
        if index % 2 == 0
            && let Some(upper) = bucket_upper_nanoseconds(index)
        {
            let mut exposed = proto::Bucket::default();
            exposed.set_upper_bound(seconds(upper));
            exposed.set_cumulative_count(count);
            buckets.push(exposed);
        }
    }
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(count);
    histogram.set_sample_sum(seconds(snapshot.sum_nanoseconds));
    histogram
}

fn seconds(nanoseconds: u64) -> f64 {
    float(nanoseconds) / 1e9
}

#[expect(
    clippy::cast_precision_loss,
    reason = "the exposition format knows floats only; 53 bits are its precision"
)]
const fn float(value: u64) -> f64 {
    value as f64
}

const _: () = assert!(BUCKET_COUNT.is_multiple_of(2));

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lode_stats::Histogram;

    use super::*;

    #[test]
    fn figures_are_grouped_by_name_with_help_and_type() {
        let mut families = Families::default();
        families.counter("b_total", "Things.", &[("core", "1")], 2);
        families.gauge("a", "Others.", &[], 7);
        families.counter("b_total", "Things.", &[("core", "0")], 1);
        let expected = "# HELP a Others.\n# TYPE a gauge\na 7\n# HELP b_total Things.\n\
                        # TYPE b_total counter\nb_total{core=\"0\"} 1\nb_total{core=\"1\"} 2\n";
        assert_eq!(families.encode(), expected);
    }

    #[test]
    fn figures_of_several_cores_are_added_up() {
        let mut families = Families::default();
        families.counter("a_total", "Things.", &[("volume", "v")], 2);
        families.counter("a_total", "Things.", &[("volume", "v")], 3);
        families.counter_of_time("b_seconds_total", "Time.", &[], 1_500_000_000);
        families.counter_of_time("b_seconds_total", "Time.", &[], 250_000_000);
        let text = families.encode();
        assert!(text.contains("a_total{volume=\"v\"} 5\n"), "{text}");
        assert!(text.contains("b_seconds_total 1.75\n"), "{text}");
    }

    #[test]
    fn a_setting_that_several_cores_show_is_shown_once() {
        let mut families = Families::default();
        families.setting("a", "A limit.", &[("volume", "v")], 500);
        families.setting("a", "A limit.", &[("volume", "v")], 500);
        assert!(families.encode().contains("a{volume=\"v\"} 500\n"));
    }

    #[test]
    fn a_label_value_is_escaped() {
        let mut families = Families::default();
        families.gauge("a", "Things.", &[("volume", "a\"b\\c\nd")], 1);
        assert!(
            families
                .encode()
                .contains("a{volume=\"a\\\"b\\\\c\\nd\"} 1\n")
        );
    }

    #[test]
    fn a_histogram_is_cumulative_in_seconds() {
        let histogram = Histogram::new();
        histogram.record(Duration::from_nanos(300));
        histogram.record(Duration::from_nanos(200));
        histogram.record(Duration::from_secs(1000));
        let mut families = Families::default();
        families.histogram("a_seconds", "Time.", &[("op", "r")], histogram.snapshot());
        families.histogram("a_seconds", "Time.", &[("op", "r")], histogram.snapshot());
        let text = families.encode();
        for expected in [
            "a_seconds_bucket{op=\"r\",le=\"0.000000256\"} 2\n",
            "a_seconds_bucket{op=\"r\",le=\"0.000000512\"} 4\n",
            "a_seconds_bucket{op=\"r\",le=\"34.359738368\"} 4\n",
            "a_seconds_bucket{op=\"r\",le=\"+Inf\"} 6\n",
            "a_seconds_sum{op=\"r\"} 2000.000001\n",
            "a_seconds_count{op=\"r\"} 6\n",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
    }
}
