//! What the first bytes of a disk say it holds.

/// How much of a disk has to be read for [`recognise`].
pub(super) const PROBE_BYTES: usize = 0x1_1000;

/// A mark at a fixed place.
struct Mark {
    offset: usize,
    bytes: &'static [u8],
    name: &'static str,
}

/// The formats that are met on disks in practice. Offsets and values from the formats' own
/// documents; where a mark follows the block size, both places are listed.
const MARKS: &[Mark] = &[
    mark(0x438, b"\x53\xEF", "an ext2/3/4 file system"),
    mark(0, b"XFSB", "an XFS file system"),
    mark(0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    mark(0x400, b"\x10\x20\xF5\xF2", "an F2FS file system"),
    mark(3, b"NTFS    ", "an NTFS file system"),
    mark(3, b"EXFAT   ", "an exFAT file system"),
    mark(82, b"FAT32   ", "a FAT file system"),
    mark(54, b"FAT1", "a FAT file system"),
    mark(0x8001, b"CD001", "an ISO 9660 file system"),
    mark(0, b"LUKS\xBA\xBE", "a LUKS volume"),
    mark(0x200, b"LABELONE", "an LVM physical volume"),
    mark(0x1000, b"\xFC\x4E\x2B\xA9", "a member of a RAID array"),
    mark(0, b"\xFC\x4E\x2B\xA9", "a member of a RAID array"),
    mark(0xFF6, b"SWAPSPACE2", "swap space"),
    mark(
        0x1018,
        b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA",
        "a bcache device",
    ),
    mark(0x200, b"EFI PART", "a partition table (GPT)"),
    mark(0x1000, b"EFI PART", "a partition table (GPT)"),
    mark(0x1FE, b"\x55\xAA", "a boot sector or partition table (MBR)"),
];

const fn mark(offset: usize, bytes: &'static [u8], name: &'static str) -> Mark {
    Mark {
        offset,
        bytes,
        name,
    }
}

/// The formats whose marks are in `start`, the beginning of a disk; each is named once.
pub(super) fn recognise(start: &[u8]) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = MARKS
        .iter()
        .filter(|mark| {
            start
                .get(mark.offset..)
                .is_some_and(|rest| rest.starts_with(mark.bytes))
        })
        .map(|mark| mark.name)
        .collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_recognised_at_its_place_and_lies_within_what_is_read() {
        for mark in MARKS {
            let mut disk = vec![0; PROBE_BYTES];
            disk[mark.offset..mark.offset + mark.bytes.len()].copy_from_slice(mark.bytes);
            assert_eq!(recognise(&disk), [mark.name]);
        }
    }

    #[test]
    fn an_empty_disk_and_a_short_one_hold_nothing() {
        assert!(recognise(&vec![0; PROBE_BYTES]).is_empty());
        assert!(recognise(&[]).is_empty());
        assert!(recognise(b"XFS").is_empty());
    }

    #[test]
    fn a_partition_table_is_told_with_its_boot_sector() {
        let mut disk = vec![0; PROBE_BYTES];
        disk[0x1FE..0x200].copy_from_slice(b"\x55\xAA");
        disk[0x200..0x208].copy_from_slice(b"EFI PART");
        assert_eq!(recognise(&disk).len(), 2);
    }
}
