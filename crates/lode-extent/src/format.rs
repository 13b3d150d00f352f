//! The on-device format (`docs/format.md` is its source): bytes only, no policy.

pub(crate) mod block;
pub(crate) mod geometry;
pub(crate) mod journal_block;
pub(crate) mod object;
pub(crate) mod record;
pub(crate) mod request;
pub(crate) mod superblock;
