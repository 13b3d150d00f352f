//! The daemon's metrics, read as a scraper does.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::kernel;

/// One answer of `/metrics`.
pub(crate) struct Metrics(String);

impl Metrics {
    /// Asks the daemon for them.
    pub(crate) fn read() -> Result<Self> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let mut stream = TcpStream::connect_timeout(&server, LIMIT).context("metrics")?;
        stream.set_read_timeout(Some(LIMIT))?;
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
        Ok(Self(text))
    }

    /// Asks until `is_so` of the series `name` with a label that contains `label`, within a
    /// bound that outlasts every deadline of the driver together; the value.
    pub(crate) fn until(name: &str, label: &str, is_so: impl Fn(f64) -> bool) -> Result<f64> {
        let mut last = None;
        for _ in 0..ASKS {
            last = Self::read()?.value(name, label);
            if let Some(value) = last.filter(|value| is_so(*value)) {
                return Ok(value);
            }
            for _ in 0..PAUSES {
                kernel::pause();
            }
        }
        bail!("{name} of {label} stayed {last:?}")
    }

    /// The sum of the series of this name whose labels contain `label`; `None` without any.
    pub(crate) fn value(&self, name: &str, label: &str) -> Option<f64> {
        let values = self.0.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.strip_prefix(name)?;
            let is_it = labels.is_empty() || labels.starts_with('{');
            (is_it && labels.contains(label)).then_some(value)
        });
        let values: Vec<f64> = values.filter_map(|value| value.parse().ok()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// [`Metrics::value`] of a series that must be there.
    pub(crate) fn expect(&self, name: &str, label: &str) -> Result<f64> {
        self.value(name, label)
            .with_context(|| format!("no series {name} of {label}"))
    }
}

const PORT: u16 = 9464;
const LIMIT: Duration = Duration::from_secs(20);
/// A fifth of a second between two questions.
const PAUSES: usize = 10;
const ASKS: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_label_and_added_up() {
        let text = "# TYPE a counter\na{x=\"1\"} 2\na{x=\"2\"} 3\na_b{x=\"1\"} 7\nc 4\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.value("a", ""), Some(5.0));
        assert_eq!(metrics.value("a", "x=\"2\""), Some(3.0));
        assert_eq!(metrics.value("c", ""), Some(4.0));
        assert_eq!(metrics.value("b", ""), None);
    }
}
