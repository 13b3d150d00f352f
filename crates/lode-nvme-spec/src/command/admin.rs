//! Admin commands other than those that manage queues.

use lode_units::{CommandId, Iova, NamespaceId, QueueId};
use zerocopy::little_endian::U32;

use crate::bits::{bit, byte_at, field, word_at};
use crate::feature::FeatureId;
use crate::identify::Cns;
use crate::log_page::LogPageId;
use crate::opcode::AdminOpcode;
use crate::submission::{DataPointer, SubmissionEntry};

/// Identify (Base 2.0 §5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Dword 10 bits 7:0.
    pub cns: Cns,
    /// The namespace, or where a list begins.
    pub namespace: NamespaceId,
    /// Dword 10 bits 31:16, CNTID.
    pub controller_id: u16,
    /// Dword 11 bits 31:24, CSI: 0 is the NVM command set.
    pub command_set: u8,
}

impl Identify {
    /// What `cns` says of `namespace` under the NVM command set.
    #[must_use]
    pub const fn new(cns: Cns, namespace: NamespaceId) -> Self {
        Self {
            cns,
            namespace,
            controller_id: 0,
            command_set: 0,
        }
    }

    /// Encodes the command; the caller adds where the data go.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry =
            SubmissionEntry::new(AdminOpcode::Identify.raw()).with_namespace(self.namespace);
        entry.dword_10 = U32::new(u32::from(self.cns.raw()) | u32::from(self.controller_id) << 16);
        entry.dword_11 = U32::new(u32::from(self.command_set) << 24);
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_10 = u64::from(entry.dword_10.get());
        Self {
            cns: Cns::from_raw(byte_at(dword_10, 0)),
            namespace: entry.namespace_id(),
            controller_id: word_at(dword_10, 16),
            command_set: byte_at(u64::from(entry.dword_11.get()), 24),
        }
    }
}

/// Abort (Base 2.0 §5.1). Bit 0 of the completion's dword 0 is set when nothing was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Dword 10 bits 15:0, SQID.
    pub queue: QueueId,
    /// Dword 10 bits 31:16, CID.
    pub command_id: CommandId,
}

impl Abort {
    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(AdminOpcode::Abort.raw());
        entry.dword_10 =
            U32::new(u32::from(self.queue.get()) | u32::from(self.command_id.get()) << 16);
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_10 = u64::from(entry.dword_10.get());
        Self {
            queue: QueueId::new(word_at(dword_10, 0)),
            command_id: CommandId::new(word_at(dword_10, 16)),
        }
    }
}

/// Set Features (Base 2.0 §5.27) for a feature whose value is dword 11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Dword 10 bits 7:0, FID.
    pub feature: FeatureId,
    /// Dword 10 bit 31, SV: keep the value over a power cycle.
    pub is_saved: bool,
    /// Dword 11.
    pub value: u32,
}

impl SetFeatures {
    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(AdminOpcode::SetFeatures.raw());
        entry.dword_10 = U32::new(u32::from(self.feature.raw()) | u32::from(self.is_saved) << 31);
        entry.dword_11 = U32::new(self.value);
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_10 = u64::from(entry.dword_10.get());
        Self {
            feature: FeatureId::from_raw(byte_at(dword_10, 0)),
            is_saved: bit(dword_10, 31),
            value: entry.dword_11.get(),
        }
    }
}

/// Get Features (Base 2.0 §5.15); the value is the completion's dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Dword 10 bits 7:0, FID.
    pub feature: FeatureId,
    /// Dword 10 bits 10:8, SEL: 000b current, 001b default, 010b saved, 011b capabilities.
    pub select: u8,
    /// Dword 11.
    pub argument: u32,
}

impl GetFeatures {
    /// The current value of `feature`.
    #[must_use]
    pub const fn current(feature: FeatureId) -> Self {
        Self {
            feature,
            select: 0,
            argument: 0,
        }
    }

    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry = SubmissionEntry::new(AdminOpcode::GetFeatures.raw());
        entry.dword_10 =
            U32::new(u32::from(self.feature.raw()) | u32::from(self.select & 0x7) << 8);
        entry.dword_11 = U32::new(self.argument);
        entry
    }

    /// Decodes the command.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_10 = u64::from(entry.dword_10.get());
        Self {
            feature: FeatureId::from_raw(byte_at(dword_10, 0)),
            select: field(dword_10, 8, 3),
            argument: entry.dword_11.get(),
        }
    }
}

/// Get Log Page (Base 2.0 §5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Dword 10 bits 7:0, LID.
    pub page: LogPageId,
    /// The namespace, or 0xFFFF_FFFF for the whole controller.
    pub namespace: NamespaceId,
    /// Dword 10 bit 15, RAE: leave the asynchronous event uncleared.
    pub retains_event: bool,
    /// NUMDU and NUMDL, plus one: how much to return, in bytes: a multiple of 4.
    pub length_bytes: u32,
    /// Dwords 12 and 13: where to begin, in bytes.
    pub offset_bytes: u64,
}

impl GetLogPage {
    /// Encodes the command; the caller adds where the data go.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        let mut entry =
            SubmissionEntry::new(AdminOpcode::GetLogPage.raw()).with_namespace(self.namespace);
        let dwords = (self.length_bytes / 4).saturating_sub(1);
        entry.dword_10 = U32::new(
            u32::from(self.page.raw())
                | u32::from(self.retains_event) << 15
                | (dwords & 0xFFFF) << 16,
        );
        entry.dword_11 = U32::new(dwords >> 16);
        entry.dword_12 = U32::new(crate::bits::dword_at(self.offset_bytes, 0));
        entry.dword_13 = U32::new(crate::bits::dword_at(self.offset_bytes, 32));
        entry
    }

    /// Decodes the command. A length beyond 4 GiB is cut to it.
    #[must_use]
    pub fn decode(entry: &SubmissionEntry) -> Self {
        let dword_10 = u64::from(entry.dword_10.get());
        let upper = u64::from(word_at(u64::from(entry.dword_11.get()), 0));
        let dwords = (u64::from(word_at(dword_10, 16)) | upper << 16) + 1;
        Self {
            page: LogPageId::from_raw(byte_at(dword_10, 0)),
            namespace: entry.namespace_id(),
            retains_event: bit(dword_10, 15),
            length_bytes: u32::try_from(dwords * 4).unwrap_or(LOG_LENGTH_MAX_BYTES),
            offset_bytes: u64::from(entry.dword_12.get()) | u64::from(entry.dword_13.get()) << 32,
        }
    }
}

/// The longest length of a log page that fits 32 bits in whole dwords.
const LOG_LENGTH_MAX_BYTES: u32 = u32::MAX - 3;

/// Doorbell Buffer Config (Base 2.0 §5.9): two pages, laid out as the doorbells are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellBufferConfig {
    /// PRP entry 1: where the host writes doorbell values.
    pub shadow: Iova,
    /// PRP entry 2: where the controller writes the values at which it wants to be told.
    pub event_index: Iova,
}

impl DoorbellBufferConfig {
    /// Encodes the command.
    #[must_use]
    pub fn encode(self) -> SubmissionEntry {
        SubmissionEntry::new(AdminOpcode::DoorbellBufferConfig.raw())
            .with_data(DataPointer::new(self.shadow.get(), self.event_index.get()))
    }

    /// Decodes the command.
    #[must_use]
    pub const fn decode(entry: &SubmissionEntry) -> Self {
        Self {
            shadow: Iova::new(entry.data_pointer.prp1.get()),
            event_index: Iova::new(entry.data_pointer.prp2.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_comes_back() {
        for cns in Cns::NAMED {
            let command = Identify {
                controller_id: 0xABCD,
                command_set: 3,
                ..Identify::new(*cns, NamespaceId::new(7))
            };
            assert_eq!(Identify::decode(&command.encode()), command);
        }
    }

    #[test]
    fn abort_names_queue_and_command() {
        let command = Abort {
            queue: QueueId::new(2),
            command_id: CommandId::new(0xFF01),
        };
        assert_eq!(command.encode().dword_10.get(), 0xFF01_0002);
        assert_eq!(Abort::decode(&command.encode()), command);
    }

    #[test]
    fn features_come_back() {
        let set = SetFeatures {
            feature: FeatureId::VolatileWriteCache,
            is_saved: true,
            value: 1,
        };
        assert_eq!(SetFeatures::decode(&set.encode()), set);
        let read = GetFeatures {
            select: 1,
            argument: 5,
            ..GetFeatures::current(FeatureId::NumberOfQueues)
        };
        assert_eq!(GetFeatures::decode(&read.encode()), read);
    }

    #[test]
    fn a_log_page_of_any_length_comes_back() {
        for length_bytes in [4, 512, 4096, 1 << 20, LOG_LENGTH_MAX_BYTES] {
            let command = GetLogPage {
                page: LogPageId::Health,
                namespace: NamespaceId::new(u32::MAX),
                retains_event: length_bytes == 512,
                length_bytes,
                offset_bytes: 0x1_0000_0200,
            };
            assert_eq!(GetLogPage::decode(&command.encode()), command);
        }
        let longest = SubmissionEntry {
            dword_10: U32::new(u32::MAX),
            dword_11: U32::new(u32::MAX),
            ..SubmissionEntry::default()
        };
        assert_eq!(
            GetLogPage::decode(&longest).length_bytes,
            LOG_LENGTH_MAX_BYTES
        );
    }

    #[test]
    fn doorbell_buffers_come_back() {
        let command = DoorbellBufferConfig {
            shadow: Iova::new(0x1000),
            event_index: Iova::new(0x2000),
        };
        assert_eq!(DoorbellBufferConfig::decode(&command.encode()), command);
    }
}
