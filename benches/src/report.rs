//! Figures: one line each, for people or as JSON.

use std::io::{self, Write};

/// How figures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `id  name=value …`
    Text,
    /// One JSON object a line.
    Json,
}

/// Where figures go.
#[derive(Debug)]
pub(crate) struct Report {
    form: Form,
}

/// One named value of a line.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    name: &'static str,
    value: f64,
}

/// A figure.
pub(crate) const fn figure(name: &'static str, value: f64) -> Figure {
    Figure { name, value }
}

impl Report {
    pub(crate) const fn new(form: Form) -> Self {
        Self { form }
    }

    /// Writes one line: an id and its figures.
    pub(crate) fn line(&self, id: &str, figures: &[Figure]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match self.form {
            Form::Text => {
                write!(out, "{id:<28}")?;
                for figure in figures {
                    write!(out, " {}={}", figure.name, short(figure.value))?;
                }
                writeln!(out)?;
            }
            Form::Json => {
                let mut object = serde_json::Map::new();
                object.insert("id".to_owned(), id.into());
                for figure in figures {
                    object.insert(figure.name.to_owned(), figure.value.into());
                }
                writeln!(out, "{}", serde_json::Value::Object(object))?;
            }
        }
        Ok(out.flush()?)
    }

    /// Writes a remark that is no figure.
    pub(crate) fn note(&self, text: &str) -> anyhow::Result<()> {
        if self.form == Form::Text {
            writeln!(io::stdout().lock(), "# {text}")?;
        }
        Ok(())
    }
}

/// A value in a few digits.
fn short(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.4}")
    }
}
