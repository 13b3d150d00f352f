//! What the controller saw, so that a test can prove what went over the wire.

use lode_nvme_spec::{NvmOpcode, SubmissionEntry, command::BlockFlags};

/// Commands of one submission queue, counted as they are fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounters {
    /// Reads.
    pub reads: u64,
    /// Writes with and without FUA.
    pub writes: u64,
    /// Those of the writes that had FUA set.
    pub writes_fua: u64,
    /// Flushes.
    pub flushes: u64,
    /// Write-zeroes commands.
    pub write_zeroes: u64,
    /// Dataset management commands.
    pub deallocates: u64,
    /// Compares.
    pub compares: u64,
    /// Verifies.
    pub verifies: u64,
    /// Any other I/O command.
    pub others: u64,
    /// Admin commands.
    pub admin: u64,
    /// Bytes that reads of active namespaces named.
    pub bytes_read: u64,
    /// Bytes that writes to active namespaces named.
    pub bytes_written: u64,
}

impl OperationCounters {
    /// Counts an I/O command whose blocks are together `bytes` long.
    pub(crate) fn count(&mut self, entry: &SubmissionEntry, bytes: u64) {
        let field = match NvmOpcode::from_raw(entry.opcode) {
            NvmOpcode::Read => {
                self.bytes_read += bytes;
                &mut self.reads
            }
            NvmOpcode::Write => {
                self.bytes_written += bytes;
                let flags = BlockFlags::from_bits_retain(entry.dword_12.get());
                if flags.contains(BlockFlags::FORCE_UNIT_ACCESS) {
                    self.writes_fua += 1;
                }
                &mut self.writes
            }
            NvmOpcode::Flush => &mut self.flushes,
            NvmOpcode::WriteZeroes => &mut self.write_zeroes,
            NvmOpcode::DatasetManagement => &mut self.deallocates,
            NvmOpcode::Compare => &mut self.compares,
            NvmOpcode::Verify => &mut self.verifies,
            NvmOpcode::WriteUncorrectable | NvmOpcode::Copy | NvmOpcode::Other(_) => {
                &mut self.others
            }
        };
        *field += 1;
    }

    /// Adds another queue's numbers.
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.writes_fua += other.writes_fua;
        self.flushes += other.flushes;
        self.write_zeroes += other.write_zeroes;
        self.deallocates += other.deallocates;
        self.compares += other.compares;
        self.verifies += other.verifies;
        self.others += other.others;
        self.admin += other.admin;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
    }
}

/// Everything that the controller has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands by kind, over all queues, deleted ones included.
    pub operations: OperationCounters,
    /// Writes to submission doorbells.
    pub submission_doorbells: u64,
    /// Writes to completion doorbells.
    pub completion_doorbells: u64,
    /// Accesses to memory that was not mapped.
    pub dma_faults: u64,
    /// Fault rules that fired.
    pub faults_injected: u64,
    /// Controller resets (CC.EN from 1 to 0).
    pub resets: u64,
    /// Commands that vanished in a reset, removal or power cut.
    pub commands_vanished: u64,
}
