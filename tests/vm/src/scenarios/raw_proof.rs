//! What Lodestore's driver writes the kernel's driver reads, and the other way round.

use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use lode_nvme::QueueOptions;
use lode_vfio::PciAddress;

use super::plain;
use crate::kernel;
use crate::pattern;
use crate::rig::Rig;

/// First and last blocks and those across 4 GiB, on 512-byte and 4096-byte blocks, both ways.
pub(super) fn raw_proof() -> Result<String> {
    let address = plain()?;
    let mut bytes = 0;
    for (id, round) in [(1, 21), (2, 22)] {
        let places = ours_to_kernel(address, id, round)?;
        for (lba, count, block) in &places {
            bytes += u64::from(*count) * u64::from(*block);
            ensure!(*lba < u64::MAX, "a place");
        }
        kernel_to_ours(address, id, round + 100, &places)?;
    }
    Ok(format!("{bytes} bytes each way, byte for byte"))
}

/// A place: first block, blocks, bytes of a block.
type Place = (u64, u32, u32);

fn ours_to_kernel(address: PciAddress, id: u32, round: u64) -> Result<Vec<Place>> {
    let mut rig = Rig::start(address)?;
    let geometry = rig.namespace(id)?.geometry;
    let block = geometry.block_size.bytes();
    let mut places = vec![
        (0, 16, block),
        (geometry.block_count - 16, 16, block),
        (geometry.block_count / 2, 64, block),
    ];
    let border = (4 << 30) / u64::from(block);
    if geometry.block_count > border + 8 {
        places.push((border - 8, 16, block));
    }
    let mut queue = rig.queue(id, QueueOptions::default())?;
    for (lba, count, _) in &places {
        rig.write(&mut queue, (*lba, *count), round)??;
    }
    rig.flush(&mut queue)??;
    drop(queue);
    rig.close()?;
    let disk = kernel::open_disk(address, id)?;
    for (lba, count, block) in &places {
        let expected = pattern::blocks(*lba, *count, round, *block);
        let mut found = vec![0; expected.len()];
        disk.read_exact_at(&mut found, lba * u64::from(*block))?;
        ensure!(
            found == expected,
            "the kernel reads something else at {lba}"
        );
    }
    Ok(places)
}

fn kernel_to_ours(address: PciAddress, id: u32, round: u64, places: &[Place]) -> Result<()> {
    let disk = kernel::open_disk(address, id)?;
    for (lba, count, block) in places {
        let content = pattern::blocks(*lba, *count, round, *block);
        disk.write_all_at(&content, lba * u64::from(*block))?;
    }
    disk.sync_all()?;
    drop(disk);
    let mut rig = Rig::start(address)?;
    let mut queue = rig.queue(id, QueueOptions::default())?;
    for (lba, count, _) in places {
        rig.verify(&mut queue, (*lba, *count), round)?;
    }
    drop(queue);
    rig.close()
}
