//! Kernel modules with everything that they depend on, in the order in which they load.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A module, unpacked.
#[derive(Debug)]
pub(super) struct Module {
    /// Its file's name (`vfio.ko`).
    pub(super) file: String,
    /// The object.
    pub(super) bytes: Vec<u8>,
}

/// Reads the modules called `names` and their dependencies from `directory`; those that are
/// built into the kernel are left out. Blocks.
///
/// # Errors
/// When one is missing or cannot be unpacked.
pub(super) fn load(directory: &Path, names: &[&str]) -> Result<Vec<Module>> {
    let built_in = fs::read_to_string(directory.join("modules.builtin"))
        .context("the list of what is built in")?;
    let mut shelf = Shelf {
        files: BTreeMap::new(),
        built_in: built_in.lines().filter_map(name_of).collect(),
        loaded: Vec::new(),
    };
    shelf.index(directory)?;
    for name in names {
        shelf.add(&normal(name), DEPTH_MAX)?;
    }
    Ok(shelf.loaded)
}

struct Shelf {
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
    loaded: Vec<Module>,
}

impl Shelf {
    fn index(&mut self, directory: &Path) -> Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() && !path.is_symlink() {
                self.index(&path)?;
            } else if let Some(name) = path.to_str().and_then(name_of) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, depth: usize) -> Result<()> {
        let file = format!("{name}.ko");
        let is_there = self.built_in.iter().any(|known| known == name)
            || self.loaded.iter().any(|module| module.file == file);
        if is_there {
            return Ok(());
        }
        ensure!(depth > 0, "{name}: modules that depend on one another");
        let path = self
            .files
            .get(name)
            .with_context(|| format!("the kernel has no module {name}"))?;
        let bytes = unpack(path)?;
        for dependency in dependencies(&bytes) {
            self.add(&dependency, depth - 1)?;
        }
        self.loaded.push(Module { file, bytes });
        Ok(())
    }
}

fn unpack(path: &Path) -> Result<Vec<u8>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let program = match extension {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return Ok(fs::read(path)?),
    };
    let output = Command::new(program).arg("-dc").arg(path).output()?;
    ensure!(
        output.status.success(),
        "{program} could not unpack {}",
        path.display()
    );
    Ok(output.stdout)
}

/// A module tells its dependencies in its own text: `depends=a,b`, after a zero.
fn dependencies(bytes: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let Some(start) = bytes.windows(MARK.len()).position(|window| window == MARK) else {
        return Vec::new();
    };
    let text = bytes.get(start + MARK.len()..).unwrap_or_default();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(normal)
        .collect()
}

/// The module's name in a path (`a/vfio-pci.ko.xz` → `vfio_pci`).
fn name_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (name, _) = file.split_once(".ko")?;
    Some(normal(name))
}

/// The kernel takes `-` and `_` for the same.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_modules_text() {
        let object = b"\x7FELF..license=GPL\0depends=vfio,vfio-pci-core\0name=vfio_pci\0";
        assert_eq!(dependencies(object), ["vfio", "vfio_pci_core"]);
        assert!(dependencies(b"..\0depends=\0..").is_empty());
        assert!(dependencies(b"..\0depends=").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn a_modules_name_is_what_its_file_is_called() {
        assert_eq!(
            name_of("kernel/vfio-pci.ko.xz").as_deref(),
            Some("vfio_pci")
        );
        assert_eq!(name_of("kernel/modules.dep"), None);
    }
}
