//! Metrics in the text format of Prometheus.
//!
//! Whoever counts something implements [`MetricsSource`]; a scrape gathers all sources into
//! [`Families`], where figures of several cores under one name and the same labels are added up.

mod core;
mod process;
mod shard;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lode_stats::{BUCKET_COUNT, HistogramSnapshot, bucket_upper_nanoseconds};

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
    samples: BTreeMap<String, Sample>,
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
    /// A sum of durations.
    Nanoseconds(u64),
    Histogram(Box<HistogramSnapshot>),
}

/// Labels of a figure: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

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
        let labels = encode_labels(labels);
        match family.samples.get_mut(&labels) {
            Some(present) => present.merge(sample),
            None => {
                family.samples.insert(labels, sample);
            }
        }
    }

    /// The text of the scrape.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            line(&mut text, format_args!("# HELP {name} {}", family.help));
            line(&mut text, format_args!("# TYPE {name} {kind}"));
            for (labels, sample) in &family.samples {
                sample.encode(&mut text, name, labels);
            }
        }
        text
    }
}

impl Sample {
    fn merge(&mut self, other: Self) {
        match (self, other) {
            (Self::Whole(sum), Self::Whole(value))
            | (Self::Nanoseconds(sum), Self::Nanoseconds(value)) => {
                *sum = sum.wrapping_add(value);
            }
            (Self::Histogram(sum), Self::Histogram(value)) => {
                for (sum, value) in sum.buckets.iter_mut().zip(value.buckets) {
                    *sum = sum.wrapping_add(value);
                }
                sum.sum_nanoseconds = sum.sum_nanoseconds.wrapping_add(value.sum_nanoseconds);
            }
            (one, other) => panic!("{one:?} and {other:?} are figures of one kind"),
        }
    }

    fn encode(&self, text: &mut String, name: &str, labels: &str) {
        match self {
            Self::Whole(value) => {
                line(text, format_args!("{name}{} {value}", braced(labels, "")));
            }
            Self::Nanoseconds(value) => {
                let seconds = Seconds(*value);
                line(text, format_args!("{name}{} {seconds}", braced(labels, "")));
            }
            Self::Histogram(snapshot) => encode_histogram(text, name, labels, snapshot),
        }
    }
}

/// Cumulative buckets, one for each power of two: half of those recorded, which is fine enough.
fn encode_histogram(text: &mut String, name: &str, labels: &str, snapshot: &HistogramSnapshot) {
    let mut count = 0;
    for (index, bucket) in snapshot.buckets.iter().enumerate() {
        count += bucket;
        if index % 2 == 0
            && let Some(upper) = bucket_upper_nanoseconds(index)
        {
            let bound = format!("le=\"{}\"", Seconds(upper));
            let labels = braced(labels, &bound);
            line(text, format_args!("{name}_bucket{labels} {count}"));
        }
    }
    let endless = braced(labels, "le=\"+Inf\"");
    line(text, format_args!("{name}_bucket{endless} {count}"));
    let labels = braced(labels, "");
    let sum = Seconds(snapshot.sum_nanoseconds);
    line(text, format_args!("{name}_sum{labels} {sum}"));
    line(text, format_args!("{name}_count{labels} {count}"));
}

/// A duration in seconds, exact, without the zeros that say nothing.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, fraction) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if fraction == 0 {
            return write!(formatter, "{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(formatter, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    writeln!(text, "{content}").expect("a string takes whatever is written to it");
}

/// Labels in braces, with one more.
fn braced(labels: &str, more: &str) -> String {
    match (labels, more) {
        ("", "") => String::new(),
        ("", only) | (only, "") => format!("{{{only}}}"),
        (labels, more) => format!("{{{labels},{more}}}"),
    }
}

fn encode_labels(labels: Labels<'_>) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        value.chars().for_each(|letter| match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        });
        text.push('"');
    }
    text
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
