//! Compiles `proto/` into Rust, without protoc, and keeps the descriptors for reflection.

use std::path::{Path, PathBuf};
use std::{env, error, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn error::Error>> {
    let manifest = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = manifest.join("../../proto");
    let sources = proto_files(&root.join("lodestore/v1"))?;
    println!("cargo:rerun-if-changed={}", root.display());

    let mut descriptors = protox::compile(&sources, [&root])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BulkCodec")
        .compile_fds(descriptors.clone())?;

    // Reflection needs no comments: without them the descriptors are a third as long.
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let target = PathBuf::from(env::var("OUT_DIR")?).join("lodestore.v1.bin");
    fs::write(target, descriptors.encode_to_vec())?;
    Ok(())
}

fn proto_files(folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
