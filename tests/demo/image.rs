//! A real ext4 file system in a file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

const SIZE_MIN: u64 = 256 << 20;
/// The tree may be this large: the demonstration is not a benchmark.
const TREE_MAX: u64 = 2 << 30;
/// A tree below this shows nothing.
const TREE_MIN: u64 = 16 << 20;

/// An image and what it was made of.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) sha256: String,
    tree: PathBuf,
    tree_bytes: u64,
    size_bytes: u64,
}

impl Image {
    /// Makes an image of the sources that this program was built from, or of another real tree.
    pub(crate) fn make(folder: &Path) -> Self {
        let (tree, tree_bytes) = candidates()
            .into_iter()
            .map(|tree| {
                let bytes = bytes_below(&tree);
                (tree, bytes)
            })
            .find(|(_, bytes)| (TREE_MIN..TREE_MAX).contains(bytes))
            .expect("some tree of a fitting size");
        // Small files take whole blocks, and inodes and tables take space as well.
        let size_bytes = (tree_bytes * 2 + (64 << 20)).max(SIZE_MIN);
        let path = folder.join("image.img");
        let made = Command::new("mke2fs")
            .env("PATH", path_with_system_programs())
            .args(["-q", "-F", "-t", "ext4", "-N", "200000", "-d"])
            .arg(&tree)
            .arg(&path)
            .arg(format!("{}K", size_bytes >> 10))
            .status()
            .expect("mke2fs is installed");
        assert!(made.success(), "mke2fs: {made}");
        let sha256 = sha256(&path);
        Self {
            path,
            sha256,
            tree,
            tree_bytes,
            size_bytes,
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} MiB of {} in a file system of {} MiB",
            self.tree_bytes >> 20,
            self.tree.display(),
            self.size_bytes >> 20
        )
    }
}

/// Trees that are there wherever this was built: the dependencies' sources first.
fn candidates() -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let mut trees: Vec<PathBuf> = cargo
        .into_iter()
        .map(|cargo| cargo.join("registry/src"))
        .collect();
    trees.extend(["/usr/share/doc", "/usr/include", "/usr/share"].map(PathBuf::from));
    trees
}

/// The bytes of all regular files below `folder`; what cannot be read counts nothing.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => 0,
        })
        .sum()
}

/// The SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256(path: &Path) -> String {
    let mut file = File::open(path).expect("the file is there");
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut buffer).expect("the file can be read");
        if length == 0 {
            break;
        }
        digest.update(
            buffer
                .get(..length)
                .expect("a read fills part of its buffer"),
        );
    }
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Checks the file system in `path` without changing it.
pub(crate) fn check(path: &Path) {
    let checked = Command::new("e2fsck")
        .env("PATH", path_with_system_programs())
        .arg("-fn")
        .arg(path)
        .status()
        .expect("e2fsck is installed");
    assert!(checked.success(), "e2fsck: {checked}");
}

/// The search path with the folders that hold mke2fs, which an ordinary user's lacks.
fn path_with_system_programs() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}
