//! DMA memory: allocated once, mapped for every controller, copied into and out of.

mod buffer;
mod iova_space;
mod mapping;
mod pages;

pub use buffer::{DmaBuffer, DmaSpan};
pub use iova_space::IovaSpace;
pub use mapping::DmaMemory;
pub use pages::{PageKind, PagePreference};
