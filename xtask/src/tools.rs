//! The tools that the checks and tests call: looked for first, installed only when missing.
//!
//! Versions are pinned here. What is not a Debian package or a cargo program goes below the
//! target directory, so that removing that directory removes it.

mod buf;
mod debian;
mod nextest;
mod python;

pub(crate) use buf::Buf;
pub(crate) use debian::{apt_get, find as find_program, install_debian_packages};
pub(crate) use nextest::install_nextest;
pub(crate) use python::Python;
