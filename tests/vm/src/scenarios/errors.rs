//! Media that fail, and a command that never ends.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lode_block::{BlockDevice, ErrorKind, Operation};
use lode_nvme::{ControllerEvent, ControllerOptions, QueueOptions, error_index};

use super::faulty;
use crate::host;
use crate::kernel;
use crate::rig::{Rig, bind, code, expect_error, length_of, request};

/// One block of namespace 1 cannot be read; the others can, and the error says so.
pub(super) fn read() -> Result<String> {
    let mut rig = Rig::start(faulty()?)?;
    let mut queue = rig.queue(1, QueueOptions::default())?;
    rig.write(&mut queue, (BAD_BLOCK - 8, 16), 4)??;
    let outcome = rig.read(&mut queue, (BAD_BLOCK, 1))?.map(drop);
    let error = expect_error("a read of the bad block", outcome, |error| {
        error.kind == ErrorKind::Media && code(error) == 0x281
    })?;
    expect_error(
        "a read across the bad block",
        rig.read(&mut queue, (BAD_BLOCK - 8, 16))?.map(drop),
        |error| error.kind == ErrorKind::Media,
    )?;
    rig.verify(&mut queue, (BAD_BLOCK - 8, 8), 4)?;
    rig.verify(&mut queue, (BAD_BLOCK + 1, 7), 4)?;
    let counted = queue.stats().errors[error_index(ErrorKind::Media)];
    ensure!(counted == 2, "{:?}", queue.stats());
    ensure!(
        rig.controller.stats().resets == 0,
        "no reset for a media error"
    );
    drop(queue);
    rig.close()?;
    Ok(format!(
        "{error}; its neighbours are fine; counted {counted}"
    ))
}

/// One block of namespace 2 cannot be written.
pub(super) fn write() -> Result<String> {
    let mut rig = Rig::start(faulty()?)?;
    let mut queue = rig.queue(2, QueueOptions::default())?;
    let outcome = rig.write(&mut queue, (BAD_BLOCK, 1), 4)?;
    let error = expect_error("a write to the bad block", outcome, |error| {
        error.kind == ErrorKind::Media && code(error) == 0x280
    })?;
    rig.write(&mut queue, (BAD_BLOCK - 8, 8), 4)??;
    rig.verify(&mut queue, (BAD_BLOCK - 8, 8), 4)?;
    drop(queue);
    rig.close()?;
    Ok(format!("{error}; its neighbours can be written"))
}

/// A read never completes: deadline, Abort, reset, and the request comes back for a retry; no
/// byte arrives in its memory afterwards.
pub(super) fn hung() -> Result<String> {
    bind(faulty()?)?;
    let mut rig = Rig::open(faulty()?, ControllerOptions::default())?;
    let options = QueueOptions {
        command_timeout: Duration::from_millis(500),
        abort_timeout: Duration::from_millis(500),
        ..QueueOptions::default()
    };
    let mut queue = rig.queue(3, options)?;
    rig.write(&mut queue, (16, 8), 6)??;
    host::monitor_quietly("qemu-io -d hang \"break read_aio A\"")?;
    let length = length_of(&queue, 8);
    let span = rig.span(0, length);
    rig.data.fill_zero(0, length);
    queue
        .submit(request(Operation::Read, (16, 8), span))
        .map_err(|rejected| anyhow!("{:?}", rejected.reason))?;
    queue.kick();
    let mut completions = Vec::with_capacity(1);
    let mut resumed = false;
    rig.until("end of the hung read", |rig| {
        queue.poll(rig.now(), &mut completions);
        // The emulated device cannot stop while its read hangs: it is let go when deadline and
        // Abort have passed and the queue has asked for the reset, which the controller begins
        // at its next poll.
        if queue.stats().resets_requested > 0 && !resumed {
            resumed = true;
            host::monitor_quietly("qemu-io -d hang \"resume A\"")?;
        }
        Ok(!completions.is_empty())
    })?;
    let ended = completions[0].result;
    expect_error("the hung read", ended, |error| {
        matches!(error.kind, ErrorKind::Retry | ErrorKind::TimedOut)
    })?;
    rig.event("recovery", |event| {
        matches!(event, ControllerEvent::Recovered)
    })?;
    rig.verify(&mut queue, (16, 8), 6)?;
    let stats = rig.controller.stats();
    ensure!(
        queue.stats().timeouts >= 1 && stats.aborts_sent >= 1 && stats.resets_completed == 1,
        "{stats:?} {:?}",
        queue.stats()
    );
    let blocked = kernel::blocked_accesses()?;
    ensure!(blocked.is_empty(), "stray accesses: {blocked:?}");
    drop(queue);
    rig.close()?;
    Ok(format!(
        "{ended:?} after {} aborts and {} reset; no stray access",
        stats.aborts_sent, stats.resets_completed
    ))
}

/// The block that the host makes fail (see `xtask/src/vm/guests.rs`).
const BAD_BLOCK: u64 = 1024;
