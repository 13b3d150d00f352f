//! The gRPC API of Lodestore: the types generated from `proto/`, how errors and limits cross the
//! wire, and the client library.
//!
//! Owns: [`v1`], the generated messages, clients and server traits; [`FILE_DESCRIPTOR_SET`], for
//! reflection; [`codec`], the codec that both sides use; [`ErrorDetail`](v1::ErrorDetail) and
//! the one table from reason to gRPC code; [`client`], the client library.
//!
//! Payloads are [`bytes::Bytes`]; a message is copied once on its way in and once on its way out.

pub mod client;
pub mod codec;
mod convert;
mod error;
pub mod heap;
pub mod limits;
#[cfg(any(test, feature = "memory-server"))]
pub mod memory_server;

pub use client::Client;
pub use error::status_with_detail;

/// The messages, clients and server traits of package `lodestore.v1`.
#[expect(
    unused_qualifications,
    clippy::allow_attributes,
    clippy::excessive_nesting,
    clippy::missing_errors_doc,
    clippy::too_many_lines,
    clippy::allow_attributes_without_reason,
    reason = "generated code spells names and lints its own way"
)]
pub mod v1 {
    tonic::include_proto!("lodestore.v1");
}

/// The descriptors of package `lodestore.v1` and all it imports: an encoded
/// `google.protobuf.FileDescriptorSet`, without comments.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/lodestore.v1.bin"));
