//! The ELF image inside a compressed x86 kernel. QEMU starts it two seconds sooner than the
//! kernel would unpack itself under emulation.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

/// Unpacks `packed`, a bzImage, to `target`. Blocks for about a second.
///
/// # Errors
/// When the file is no kernel, is packed in an unknown way, or the unpacker is missing.
pub(super) fn extract(packed: &Path, target: &Path) -> Result<()> {
    let image = fs::read(packed).with_context(|| format!("reading {}", packed.display()))?;
    let payload = payload(&image)?;
    let [program, arguments @ ..] = unpacker(payload.bytes)? else {
        bail!("no unpacker");
    };
    // The unpackers stumble over the length that follows the data; the ELF's own mark and the
    // length tell whether all of it is there.
    let unpacked = feed(Command::new(program).args(arguments), payload.bytes)?;
    ensure!(
        unpacked.starts_with(b"\x7FELF") && unpacked.len() == payload.unpacked_length,
        "{program} unpacked {} of {} bytes",
        unpacked.len(),
        payload.unpacked_length
    );
    let partial = target.with_extension("partial");
    fs::write(&partial, unpacked)?;
    fs::rename(&partial, target)?;
    Ok(())
}

struct Payload<'a> {
    bytes: &'a [u8],
    unpacked_length: usize,
}

/// Finds the compressed part by the boot protocol's header: sectors of set-up code at 0x1F1, the
/// payload's offset and length at 0x248 (boot protocol 2.08); its last four bytes are the
/// unpacked length.
fn payload(image: &[u8]) -> Result<Payload<'_>> {
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "no x86 kernel");
    let sectors = match image.get(0x1F1) {
        Some(0) | None => 4,
        Some(sectors) => usize::from(*sectors),
    };
    let offset = (sectors + 1) * 512 + word(image, 0x248)?;
    let length = word(image, 0x24C)?;
    let bytes = offset
        .checked_add(length)
        .and_then(|end| image.get(offset..end))
        .context("the kernel ends before its payload")?;
    let unpacked_length = word(bytes, length.checked_sub(4).context("an empty payload")?)?;
    Ok(Payload {
        bytes,
        unpacked_length,
    })
}

fn word(bytes: &[u8], offset: usize) -> Result<usize> {
    let four = bytes
        .get(offset..offset + 4)
        .and_then(|four| <[u8; 4]>::try_from(four).ok())
        .context("the kernel is cut short")?;
    Ok(usize::try_from(u32::from_le_bytes(four))?)
}

fn unpacker(payload: &[u8]) -> Result<&'static [&'static str]> {
    const KNOWN: &[(&[u8], &[&str])] = &[
        (b"\x28\xB5\x2F\xFD", &["zstd", "-dcq"]),
        (b"\xFD7zXZ", &["xz", "-dc", "--single-stream"]),
        (b"\x02\x21\x4C\x18", &["lz4", "-dc"]),
        (b"\x1F\x8B", &["gzip", "-dcq"]),
    ];
    KNOWN
        .iter()
        .find(|(mark, _)| payload.starts_with(mark))
        .map(|(_, command)| *command)
        .context("the kernel is packed in an unknown way")
}

/// Runs `command` with `input`; its output, however it ended.
fn feed(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let shown = format!("{command:?}");
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    process::feed(child, input).with_context(|| shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of one sector of set-up code with `payload` after it.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * 512];
        image[0x1F1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        let length = u32::try_from(payload.len()).expect("small");
        image[0x24C..0x250].copy_from_slice(&length.to_le_bytes());
        image.extend(payload);
        image
    }

    #[test]
    fn the_payload_is_found_behind_the_header() {
        let image = image(b"\x1F\x8B..\x2A\x00\x00\x00");
        let found = payload(&image).expect("a payload");
        assert_eq!(found.unpacked_length, 42);
        assert_eq!(unpacker(found.bytes).expect("gzip")[0], "gzip");
    }

    #[test]
    fn what_is_cut_or_no_kernel_is_an_error() {
        assert!(payload(b"").is_err());
        assert!(payload(&vec![0; 4096]).is_err());
        let whole = image(b"\x1F\x8B..\x2A\x00\x00\x00");
        assert!(payload(&whole[..whole.len() - 1]).is_err());
        assert!(unpacker(b"????").is_err());
    }
}
