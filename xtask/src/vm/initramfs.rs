//! The guest's first and only file system: a cpio archive ("newc" format) with its programs
//! (one of them is `/init`) and the kernel's modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::modules::Module;

/// A program or a library: where it is in the archive, and the file that it is made of.
pub(super) type Program = (String, PathBuf);

/// Writes the archive to `target`, at once: a guest that starts meanwhile gets the old one whole.
///
/// # Errors
/// When a program cannot be read or the archive not written.
pub(super) fn write(target: &Path, programs: &[Program], modules: &[Module]) -> Result<()> {
    let mut archive = Archive::default();
    for directory in directories(programs) {
        archive.add(&directory, DIRECTORY, b"")?;
    }
    for (place, file) in programs {
        let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        archive.add(place, PROGRAM, &content)?;
    }
    let order: String = modules
        .iter()
        .map(|module| format!("{}\n", module.file))
        .collect();
    archive.add("modules/order", FILE, order.as_bytes())?;
    for module in modules {
        archive.add(&format!("modules/{}", module.file), FILE, &module.bytes)?;
    }
    archive.add("TRAILER!!!", 0, b"")?;
    let partial = target.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, archive.bytes)
        .and_then(|()| fs::rename(&partial, target))
        .with_context(|| format!("writing {}", target.display()))
}

/// The folders of the archive, each after the one that it lies in.
fn directories(programs: &[Program]) -> BTreeSet<String> {
    let above = |place: &str| -> Vec<String> {
        let ends = place.match_indices('/').map(|(end, _)| end);
        ends.filter_map(|end| Some(place.get(..end)?.to_owned()))
            .collect()
    };
    ["dev", "proc", "sys", "tmp", "modules"]
        .map(str::to_owned)
        .into_iter()
        .chain(programs.iter().flat_map(|(place, _)| above(place)))
        .collect()
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    /// Appends an entry: a header of 13 fields of 8 hexadecimal digits after the mark, the name
    /// with its zero, the content; name and content each padded to four bytes.
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.count += 1;
        let length = u32::try_from(content.len()).context("an entry below 4 GiB")?;
        let name_length = u32::try_from(name.len() + 1)?;
        let fields = [
            self.count,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
    }
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_after_the_one_that_it_lies_in() {
        let programs = [("lib/x86_64-linux-gnu/libc.so.6".to_owned(), PathBuf::new())];
        let all: Vec<_> = directories(&programs).into_iter().collect();
        let expected = [
            "dev",
            "lib",
            "lib/x86_64-linux-gnu",
            "modules",
            "proc",
            "sys",
            "tmp",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn an_entry_is_a_header_a_name_and_its_content_padded() {
        let mut archive = Archive::default();
        archive.add("init", PROGRAM, b"abcde").expect("an entry");
        let text = String::from_utf8(archive.bytes).expect("text");
        assert_eq!(text.len(), 110 + 6 + 8);
        assert!(text.starts_with("07070100000001000081ED"));
        assert_eq!(&text[54..62], "00000005");
        assert_eq!(&text[94..102], "00000005");
        assert_eq!(&text[110..], "init\0\0abcde\0\0\0");
    }
}
