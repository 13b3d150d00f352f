//! Data there and back: every namespace, every size, every operation.

use anyhow::{Context, Result, anyhow, ensure};
use lode_block::{BlockDevice, ErrorKind, Operation, WriteCache};
use lode_bus::DmaSpan;
use lode_nvme::{ControllerOptions, QueueOptions, QueueStats, WriteCachePolicy};

use super::{plain, shadow};
use crate::pattern;
use crate::rig::{Rig, bind, code, expect_error, length_of, request};

/// First and last block of each namespace, and across 4 GiB where there is such a place.
pub(super) fn namespaces() -> Result<String> {
    let mut rig = Rig::start(plain()?)?;
    let mut places = 0;
    for id in 1..=5 {
        let geometry = rig.namespace(id)?.geometry;
        let mut queue = rig.queue(id, QueueOptions::default())?;
        let border = (4 << 30) / u64::from(geometry.block_size.bytes());
        let mut starts = vec![0, geometry.block_count - 4];
        if geometry.block_count > border + 4 {
            starts.push(border - 2);
        }
        for (round, start) in (1..).zip(&starts) {
            rig.write(&mut queue, (*start, 4), round * 10 + u64::from(id))??;
        }
        rig.flush(&mut queue)??;
        for (round, start) in (1..).zip(&starts) {
            rig.verify(&mut queue, (*start, 4), round * 10 + u64::from(id))?;
            places += 1;
        }
        let outside = queue.submit(request(
            Operation::Read,
            (geometry.block_count, 1),
            rig.span(0, length_of(&queue, 1)),
        ));
        ensure!(outside.is_err(), "a read past the end was taken");
    }
    rig.close()?;
    Ok(format!("{places} places verified on 5 namespaces"))
}

/// Every transfer length up to the limit, from every offset in a page that matters.
pub(super) fn transfer_sizes() -> Result<String> {
    let mut rig = Rig::start(plain()?)?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    let limit = queue.geometry().transfer_max_bytes / queue.geometry().block_size.bytes();
    let mut transfers = 0;
    for count in [1, 7, 8, 9, 16, 17, 255, 256, 1024, limit] {
        for offset in [0, 4, 512, 2048, 4092] {
            let count = count.min(limit);
            let length = length_of(&queue, count);
            let content = pattern::blocks(1000, count, transfers, 512);
            rig.data.copy_from_slice(offset, &content);
            let span = rig.span(offset, length);
            rig.run(&mut queue, request(Operation::Write, (1000, count), span))??;
            rig.data.fill_zero(offset, length);
            rig.run(&mut queue, request(Operation::Read, (1000, count), span))??;
            ensure!(
                rig.data.equals(offset, &content),
                "{count} blocks at offset {offset}"
            );
            transfers += 1;
        }
    }
    drop(queue);
    rig.close()?;
    Ok(format!("{transfers} transfers, the longest {limit} blocks"))
}

/// Compare, write zeroes, deallocate, write-through.
pub(super) fn operations() -> Result<String> {
    let mut rig = Rig::start(plain()?)?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    let geometry = queue.geometry().clone();
    ensure!(
        geometry.supports_compare && geometry.supports_write_zeroes && geometry.supports_deallocate,
        "{geometry:?}"
    );
    rig.write(&mut queue, (64, 8), 1)??;
    let span = rig.span(0, length_of(&queue, 8));
    rig.run(&mut queue, request(Operation::Compare, (64, 8), span))??;
    rig.data.fill_zero(5, 1);
    let mismatch = rig.run(&mut queue, request(Operation::Compare, (64, 8), span))?;
    expect_error("a compare with other data", mismatch, |error| {
        error.kind == ErrorKind::CompareMismatch && code(error) == 0x285
    })?;
    rig.run(
        &mut queue,
        request(Operation::WriteZeroes, (66, 2), DmaSpan::EMPTY),
    )??;
    let found = rig.read(&mut queue, (64, 8))??;
    let mut expected = pattern::blocks(64, 8, 1, 512);
    expected[1024..2048].fill(0);
    ensure!(found == expected, "write zeroes touched its range alone");
    rig.run(
        &mut queue,
        request(Operation::Deallocate, (64, 8), DmaSpan::EMPTY),
    )??;
    let content = pattern::blocks(64, 8, 2, 512);
    rig.data.copy_from_slice(0, &content);
    rig.run(&mut queue, request(Operation::WriteThrough, (64, 8), span))??;
    rig.verify(&mut queue, (64, 8), 2)?;
    ensure!(queue.stats().fua_writes == 1, "{:?}", queue.stats());
    drop(queue);
    rig.close()?;
    Ok("compare and its mismatch 0x285, write zeroes, deallocate, write-through".to_owned())
}

/// The doorbells that 1,024 reads take, one at a time and 32 at a time.
pub(super) fn shadow_doorbells() -> Result<String> {
    bind(plain()?)?;
    bind(shadow()?)?;
    let mut findings = Vec::new();
    let mut batched = Vec::new();
    for (name, address, has_shadow) in [("off", plain()?, false), ("on", shadow()?, true)] {
        let mut rig = Rig::open(address, ControllerOptions::default())?;
        let uses = rig
            .controller
            .identity()
            .is_some_and(|i| i.uses_shadow_doorbells);
        ensure!(uses == has_shadow, "{address}: shadow doorbells {uses}");
        let single = reads(&mut rig, 1)?;
        let many = reads(&mut rig, 32)?;
        findings.push(format!("{name}: {single:.3} at 1, {many:.3} at 32"));
        batched.push(many);
        rig.close()?;
    }
    ensure!(
        batched.iter().all(|many| *many <= 0.04),
        "doorbells per read at 32: {batched:?}"
    );
    Ok(format!(
        "doorbell writes per read, shadows {}",
        findings.join("; ")
    ))
}

/// Reads 1,024 times with `depth` in flight, in whole batches; doorbell writes per read.
fn reads(rig: &mut Rig, depth: u64) -> Result<f64> {
    let mut queue = rig.queue(1, QueueOptions::default())?;
    let before = doorbells(&queue.stats());
    let mut completions = Vec::with_capacity(64);
    let length = length_of(&queue, 1);
    for batch in 0..READS / depth {
        for index in 0..depth {
            let offset = usize::try_from(index).context("small")? * length;
            let lba = batch * depth + index;
            let read = request(Operation::Read, (lba, 1), rig.span(offset, length));
            queue
                .submit(read)
                .map_err(|rejected| anyhow!("{:?}", rejected.reason))?;
        }
        queue.kick();
        completions.clear();
        rig.until("completions of a batch", |rig| {
            // As a poller under load does: completions are taken when all of them are there.
            if queue.poll(rig.now(), &mut completions) == 0 {
                return Ok(false);
            }
            Ok(u64::try_from(completions.len())? == depth)
        })?;
        ensure!(
            completions.iter().all(|done| done.result.is_ok()),
            "a read failed"
        );
    }
    let rung = doorbells(&queue.stats()) - before;
    #[expect(clippy::cast_precision_loss, reason = "two small counts")]
    Ok(rung as f64 / READS as f64)
}

fn doorbells(stats: &QueueStats) -> u64 {
    stats.submission_doorbells + stats.completion_doorbells
}

/// A cache that is there is seen, switched off and on again, and flushed.
pub(super) fn write_cache() -> Result<String> {
    bind(plain()?)?;
    let mut seen = Vec::new();
    for policy in [
        WriteCachePolicy::Enable,
        WriteCachePolicy::Disable,
        WriteCachePolicy::Keep,
        WriteCachePolicy::Enable,
    ] {
        let options = ControllerOptions {
            write_cache: policy,
            ..ControllerOptions::default()
        };
        let mut rig = Rig::open(plain()?, options)?;
        let cache = rig.namespace(1)?.geometry.write_cache;
        let expected: &[WriteCache] = match policy {
            WriteCachePolicy::Enable => &[WriteCache::Volatile],
            WriteCachePolicy::Disable => &[WriteCache::Disabled],
            // What a reset makes of the switch is the device's business.
            WriteCachePolicy::Keep => &[WriteCache::Volatile, WriteCache::Disabled],
        };
        ensure!(expected.contains(&cache), "{policy:?}: {cache:?}");
        seen.push(format!("{policy:?}: {cache:?}"));
        let mut queue = rig.queue(1, QueueOptions::default())?;
        rig.write(&mut queue, (8, 8), 3)??;
        rig.flush(&mut queue)??;
        rig.verify(&mut queue, (8, 8), 3)?;
        drop(queue);
        rig.close()?;
    }
    Ok(seen.join(", "))
}

const READS: u64 = 1024;
