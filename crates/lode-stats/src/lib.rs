//! Counters, gauges and histograms with one writer and any number of readers.
//!
//! A core writes its own figures with plain loads and stores, never with a locked instruction;
//! the scrape reads them from another thread, each figure whole, the figures among each other
//! not at one instant. Nothing here blocks or allocates after it was made.

mod counter;
mod histogram;

pub use counter::{Counter, Gauge};
pub use histogram::{BUCKET_COUNT, Histogram, HistogramSnapshot, bucket_upper_nanoseconds};
