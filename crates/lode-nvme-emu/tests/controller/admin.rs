//! Admin commands: what they return, and what they refuse.

use lode_bus::Bus;
use lode_nvme_emu::{
    Cache, ControllerOptions, EmulatedController, Media, NamespaceOptions, OptionalCommands,
};
use lode_nvme_spec::command::{
    BlockFlags, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue, GetFeatures, GetLogPage,
    Identify, SetFeatures, flush,
};
use lode_nvme_spec::feature::{FeatureId, QueueCounts};
use lode_nvme_spec::identify::{
    Cns, ControllerFeatures, IdentifyController, IdentifyNamespace, NamespaceDescriptors,
    NamespaceList,
};
use lode_nvme_spec::log_page::{ErrorEntry, FirmwareSlotLog, HealthLog, LogPageId};
use lode_nvme_spec::registers::Configuration;
use lode_nvme_spec::{
    AdminOpcode, GenericStatus, NvmOpcode, SpecificStatus, Status, StatusCode, SubmissionEntry,
};
use lode_units::{BlockSize, Iova, NamespaceId, QueueId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::host::{Host, NSID, block};

type Page<T> = Result<T, StatusCode>;

/// Runs a command that returns a data structure.
fn fetch<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
    host: &mut Host,
    entry: SubmissionEntry,
) -> Page<T> {
    let buffer = host.allocate(8192);
    let pages = host.pages(&buffer, 0, size_of::<T>().max(4096));
    let status = host.admin(entry.with_data(pages)).status();
    if status.is_success() {
        Ok(buffer.read(0))
    } else {
        Err(status.code())
    }
}

fn identify<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
    host: &mut Host,
    cns: Cns,
    namespace: u32,
) -> Page<T> {
    fetch(
        host,
        Identify::new(cns, NamespaceId::new(namespace)).encode(),
    )
}

fn log<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
    host: &mut Host,
    page: LogPageId,
    offset_bytes: u64,
) -> Page<T> {
    let command = GetLogPage {
        page,
        namespace: NamespaceId::new(u32::MAX),
        retains_event: false,
        length_bytes: u32::try_from(size_of::<T>()).expect("small"),
        offset_bytes,
    };
    fetch(host, command.encode())
}

fn code(host: &mut Host, entry: SubmissionEntry) -> StatusCode {
    host.admin(entry).status().code()
}

const fn generic(status: GenericStatus) -> StatusCode {
    StatusCode::Generic(status)
}

const fn specific(status: SpecificStatus) -> StatusCode {
    StatusCode::Specific(status)
}

fn several(count: u32) -> Host {
    let namespaces = (0..count).map(|index| {
        let media = Media::memory(u64::from(index + 1) << 20).expect("memory");
        let size = if index % 2 == 0 {
            BlockSize::B512
        } else {
            BlockSize::B4096
        };
        NamespaceOptions::new(size, media)
    });
    let controller = EmulatedController::new(ControllerOptions::default(), namespaces.collect());
    let mut host = Host::over(controller.expect("options"));
    host.enable();
    host
}

#[test]
fn the_controller_describes_itself() {
    let options = ControllerOptions {
        serial_number: "SERIAL-7".to_owned(),
        transfer_max_shift: 6,
        commands: OptionalCommands {
            compare: false,
            ..OptionalCommands::ALL
        },
        ..ControllerOptions::default()
    };
    let mut host = Host::with_cache(options, BlockSize::B512, 64, Cache::MODELLED);
    let identify: IdentifyController = identify(&mut host, Cns::Controller, 0).expect("identify");
    assert_eq!(&identify.serial_number, b"SERIAL-7            ");
    assert_eq!(identify.transfer_size_max, 6);
    assert!(identify.has_volatile_write_cache());
    assert!(!identify.features().contains(ControllerFeatures::COMPARE));
    assert!(identify.features().contains(ControllerFeatures::VERIFY));
    assert_eq!(
        (
            identify.submission_entry_sizes,
            identify.completion_entry_sizes
        ),
        (0x66, 0x44)
    );
    assert!(identify.admin_features().is_empty());
}

#[test]
fn namespaces_are_listed_and_described() {
    let mut host = several(5);
    let list: NamespaceList = identify(&mut host, Cns::ActiveNamespaces, 2).expect("a list");
    assert_eq!(
        list.iter().map(NamespaceId::get).collect::<Vec<_>>(),
        [3, 4, 5]
    );
    let second: IdentifyNamespace = identify(&mut host, Cns::Namespace, 2).expect("a namespace");
    assert_eq!(second.size.get(), 512);
    assert_eq!(second.lba_format().expect("a format").block_shift, 12);
    let empty: IdentifyNamespace = identify(&mut host, Cns::Namespace, 9).expect("not active");
    assert_eq!(empty.size.get(), 0);
    let first: NamespaceDescriptors =
        identify(&mut host, Cns::NamespaceDescriptors, 1).expect("descriptors");
    let other: NamespaceDescriptors =
        identify(&mut host, Cns::NamespaceDescriptors, 2).expect("descriptors");
    assert_eq!(first.iter().count(), 2);
    assert_ne!(first.bytes, other.bytes, "each namespace has its own name");
}

#[test]
fn what_identify_does_not_know_is_an_invalid_field() {
    let mut host = several(1);
    type Raw = [u8; 4096];
    for cns in [Cns::CommandSets, Cns::Other(0xEE)] {
        let outcome = identify::<Raw>(&mut host, cns, 0);
        assert_eq!(outcome.err(), Some(generic(GenericStatus::InvalidField)));
    }
    let invalid = Some(generic(GenericStatus::InvalidNamespaceOrFormat));
    assert_eq!(identify::<Raw>(&mut host, Cns::Namespace, 0).err(), invalid);
    assert_eq!(
        identify::<Raw>(&mut host, Cns::Namespace, 5000).err(),
        invalid
    );
    assert_eq!(
        identify::<Raw>(&mut host, Cns::ActiveNamespaces, u32::MAX).err(),
        invalid
    );
}

#[test]
fn commands_that_are_not_there_have_an_invalid_opcode() {
    let mut host = several(1);
    for opcode in [
        AdminOpcode::FormatNvm,
        AdminOpcode::FirmwareCommit,
        AdminOpcode::KeepAlive,
        AdminOpcode::DoorbellBufferConfig,
        AdminOpcode::Sanitize,
        AdminOpcode::Other(0xC1),
    ] {
        let status = host.admin(SubmissionEntry::new(opcode.raw())).status();
        assert_eq!(
            status.code(),
            generic(GenericStatus::InvalidOpcode),
            "{opcode:?}"
        );
        assert!(status.forbids_retry());
    }
}

#[test]
fn a_scatter_gather_list_or_a_fused_command_is_an_invalid_field() {
    let mut host = several(1);
    let mut pair = host.create_pair(1, 4);
    for flags in [0x40, 0x80, 0x01, 0x02] {
        let mut entry = Identify::new(Cns::Controller, NamespaceId::new(0)).encode();
        entry.flags = flags;
        assert_eq!(code(&mut host, entry), generic(GenericStatus::InvalidField));
        let mut entry = flush(NSID);
        entry.flags = flags;
        let status = host.run(&mut pair, entry).status();
        assert_eq!(status.code(), generic(GenericStatus::InvalidField));
    }
}

#[test]
fn the_number_of_queues_is_negotiated_before_any_exists() {
    let options = ControllerOptions {
        queue_pairs_max: 3,
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 64);
    let set = |value| SetFeatures {
        feature: FeatureId::NumberOfQueues,
        is_saved: false,
        value,
    };
    let asked = QueueCounts {
        submission: 8,
        completion: 2,
    };
    let granted = host.admin_ok(set(asked.to_dword()).encode()).dword_0.get();
    let granted = QueueCounts::from_dword(granted);
    assert_eq!((granted.submission, granted.completion), (3, 2));
    let read = GetFeatures::current(FeatureId::NumberOfQueues).encode();
    assert_eq!(
        QueueCounts::from_dword(host.admin_ok(read).dword_0.get()),
        granted
    );
    let too_many = set(0xFFFF_FFFF).encode();
    assert_eq!(
        code(&mut host, too_many),
        generic(GenericStatus::InvalidField)
    );
    host.create_pair(1, 4);
    let late = set(0).encode();
    assert_eq!(
        code(&mut host, late),
        generic(GenericStatus::CommandSequenceError)
    );
}

fn completion_queue(host: &Host) -> CreateCompletionQueue {
    CreateCompletionQueue {
        base: host.allocate(65536).iova(),
        queue: QueueId::new(1),
        entries: 16,
        is_contiguous: true,
        enables_interrupts: false,
        interrupt_vector: 0,
    }
}

fn submission_queue(host: &Host) -> CreateSubmissionQueue {
    CreateSubmissionQueue {
        base: host.allocate(65536).iova(),
        queue: QueueId::new(1),
        entries: 16,
        is_contiguous: true,
        priority: 0,
        completion_queue: QueueId::new(1),
    }
}

#[test]
fn a_completion_queue_that_cannot_be_is_refused_with_the_reason() {
    let options = ControllerOptions {
        queue_pairs_max: 2,
        queue_entries_max: 64,
        interrupt_count: 3,
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 64);
    let good = completion_queue(&host);
    let queue = QueueId::new;
    type Create = CreateCompletionQueue;
    let id = specific(SpecificStatus::InvalidQueueId);
    let size = specific(SpecificStatus::InvalidQueueSize);
    let field = generic(GenericStatus::InvalidField);
    for (command, expected) in [
        (
            Create {
                queue: queue(0),
                ..good
            },
            id,
        ),
        (
            Create {
                queue: queue(3),
                ..good
            },
            id,
        ),
        (Create { entries: 1, ..good }, size),
        (
            Create {
                entries: 65,
                ..good
            },
            size,
        ),
        (
            Create {
                is_contiguous: false,
                ..good
            },
            field,
        ),
        (
            Create {
                base: Iova::new(good.base.get() + 64),
                ..good
            },
            generic(GenericStatus::InvalidPrpOffset),
        ),
        (
            Create {
                enables_interrupts: true,
                interrupt_vector: 3,
                ..good
            },
            specific(SpecificStatus::InvalidInterruptVector),
        ),
    ] {
        assert_eq!(code(&mut host, command.encode()), expected, "{command:?}");
    }
    host.admin_ok(good.encode());
    assert_eq!(code(&mut host, good.encode()), id, "it exists already");
}

#[test]
fn a_submission_queue_that_cannot_be_is_refused_with_the_reason() {
    let mut host = Host::ready();
    let good = submission_queue(&host);
    let invalid = specific(SpecificStatus::CompletionQueueInvalid);
    assert_eq!(code(&mut host, good.encode()), invalid);
    let completion = completion_queue(&host).encode();
    host.admin_ok(completion);
    let queue = QueueId::new;
    type Create = CreateSubmissionQueue;
    let id = specific(SpecificStatus::InvalidQueueId);
    let size = specific(SpecificStatus::InvalidQueueSize);
    for (command, expected) in [
        (
            Create {
                queue: queue(0),
                ..good
            },
            id,
        ),
        (
            Create {
                queue: queue(999),
                ..good
            },
            id,
        ),
        (
            Create {
                completion_queue: queue(0),
                ..good
            },
            id,
        ),
        (
            Create {
                completion_queue: queue(999),
                ..good
            },
            id,
        ),
        (
            Create {
                completion_queue: queue(2),
                ..good
            },
            invalid,
        ),
        (
            Create {
                entries: 4097,
                ..good
            },
            size,
        ),
        (
            Create {
                is_contiguous: false,
                ..good
            },
            generic(GenericStatus::InvalidField),
        ),
    ] {
        assert_eq!(code(&mut host, command.encode()), expected, "{command:?}");
    }
    host.admin_ok(good.encode());
    assert_eq!(code(&mut host, good.encode()), id, "it exists already");
}

#[test]
fn queues_need_the_entry_sizes_of_the_specification() {
    let mut host = Host::ready();
    host.configure(Configuration {
        submission_entry_shift: 7,
        ..Host::enabled()
    });
    let create = completion_queue(&host).encode();
    assert_eq!(
        code(&mut host, create),
        generic(GenericStatus::InvalidField)
    );
}

#[test]
fn queues_are_deleted_submission_first_and_can_be_created_again() {
    let mut host = Host::ready();
    let queue = QueueId::new(1);
    let delete = DeleteQueue { queue };
    let invalid = specific(SpecificStatus::InvalidQueueId);
    assert_eq!(code(&mut host, delete.encode_submission()), invalid);
    assert_eq!(code(&mut host, delete.encode_completion()), invalid);
    for _ in 0..3 {
        let mut pair = host.create_pair(1, 8);
        host.run_ok(&mut pair, flush(NSID));
        let used = specific(SpecificStatus::InvalidQueueDeletion);
        assert_eq!(code(&mut host, delete.encode_completion()), used);
        host.admin_ok(delete.encode_submission());
        host.admin_ok(delete.encode_completion());
    }
    assert_eq!(host.controller.counters().operations.flushes, 3);
}

#[test]
fn several_submission_queues_share_a_completion_queue() {
    let mut host = Host::ready();
    let completion = completion_queue(&host).encode();
    host.admin_ok(completion);
    let mut pairs = Vec::new();
    for id in 1..=3 {
        let pair = host.pair_memory(QueueId::new(id), 16, 16);
        let submission = CreateSubmissionQueue {
            base: pair.submission.iova(),
            queue: pair.id,
            ..submission_queue(&host)
        };
        host.admin_ok(submission.encode());
        pairs.push(pair);
    }
    for pair in &mut pairs {
        host.submit(pair, flush(NSID));
    }
    host.advance();
    assert_eq!(host.controller.counters().operations.flushes, 3);
}

#[test]
fn features_keep_what_was_set_until_a_reset() {
    let mut host = Host::ready();
    for (feature, value) in [
        (FeatureId::Arbitration, 0x0102_0303),
        (FeatureId::TemperatureThreshold, 350),
        (FeatureId::ErrorRecovery, 5),
        (FeatureId::WriteAtomicity, 1),
        (FeatureId::AsyncEventConfiguration, 0x101),
    ] {
        let set = SetFeatures {
            feature,
            is_saved: false,
            value,
        };
        host.admin_ok(set.encode());
        let read = GetFeatures::current(feature).encode();
        assert_eq!(host.admin_ok(read).dword_0.get(), value, "{feature:?}");
    }
    host.disable();
    host.enable();
    let read = GetFeatures::current(FeatureId::AsyncEventConfiguration).encode();
    assert_eq!(host.admin_ok(read).dword_0.get(), 0);
}

#[test]
fn features_that_cannot_be_are_refused() {
    let mut host = Host::ready();
    let field = generic(GenericStatus::InvalidField);
    for feature in [FeatureId::HostMemoryBuffer, FeatureId::Other(0xD0)] {
        assert_eq!(
            code(&mut host, GetFeatures::current(feature).encode()),
            field
        );
    }
    let no_cache = GetFeatures::current(FeatureId::VolatileWriteCache).encode();
    assert_eq!(code(&mut host, no_cache), field, "there is no cache");
    let saved = SetFeatures {
        feature: FeatureId::Arbitration,
        is_saved: true,
        value: 0,
    };
    let expected = specific(SpecificStatus::FeatureNotSaveable);
    assert_eq!(code(&mut host, saved.encode()), expected);
}

#[test]
fn failed_commands_are_in_the_error_log_newest_first() {
    let mut host = Host::ready();
    let mut pair = host.create_pair(1, 8);
    for lba in [1 << 40, 2 << 40] {
        let buffer = host.allocate(512);
        let read = block(NvmOpcode::Read, lba, 1, BlockFlags::empty());
        let status = host
            .run(&mut pair, read.with_data(host.pages(&buffer, 0, 512)))
            .status();
        assert_eq!(status.code(), generic(GenericStatus::LbaOutOfRange));
    }
    let entries: [[u8; 64]; 4] = log(&mut host, LogPageId::ErrorInformation, 0).expect("the log");
    let entry = |index: usize| ErrorEntry::read_from_bytes(&entries[index]).expect("64 bytes");
    assert_eq!((entry(0).lba.get(), entry(1).lba.get()), (2 << 40, 1 << 40));
    assert_eq!(entry(0).submission_queue_id.get(), 1);
    assert_eq!(
        entry(0).status().code(),
        generic(GenericStatus::LbaOutOfRange)
    );
    assert_eq!(entry(2).error_count.get(), 0);
}

#[test]
fn log_pages_are_read_in_parts_and_not_beyond_their_end() {
    let mut host = Host::ready();
    let health: HealthLog = log(&mut host, LogPageId::Health, 0).expect("the log");
    assert_eq!(health.available_spare_percent, 100);
    let tail: [u8; 8] = log(&mut host, LogPageId::FirmwareSlot, 8).expect("the log");
    let whole: FirmwareSlotLog = log(&mut host, LogPageId::FirmwareSlot, 0).expect("the log");
    assert_eq!(tail, whole.revisions[0]);
    let beyond = log::<[u8; 8]>(&mut host, LogPageId::Health, 1024);
    assert_eq!(beyond, Err(generic(GenericStatus::InvalidField)));
    let unknown = log::<[u8; 8]>(&mut host, LogPageId::Other(0xC0), 0);
    assert_eq!(unknown, Err(specific(SpecificStatus::InvalidLogPage)));
}

#[test]
fn a_namespace_that_is_not_there_is_told_apart_from_one_that_cannot_be() {
    let mut host = several(2);
    let mut pair = host.create_pair(1, 8);
    let mut status = |id| host.run(&mut pair, flush(NamespaceId::new(id))).status();
    assert_eq!(status(2), Status::SUCCESS);
    assert_eq!(status(u32::MAX), Status::SUCCESS);
    assert_eq!(status(3).code(), generic(GenericStatus::InvalidField));
    assert_eq!(
        status(0).code(),
        generic(GenericStatus::InvalidNamespaceOrFormat)
    );
    assert_eq!(
        status(5000).code(),
        generic(GenericStatus::InvalidNamespaceOrFormat)
    );
}

#[test]
fn optional_commands_are_there_only_where_they_are_told() {
    let options = ControllerOptions {
        commands: OptionalCommands::NONE,
        ..ControllerOptions::default()
    };
    let mut host = Host::with_memory(options, BlockSize::B512, 64);
    let mut pair = host.create_pair(1, 8);
    for opcode in [
        NvmOpcode::Compare,
        NvmOpcode::WriteZeroes,
        NvmOpcode::DatasetManagement,
        NvmOpcode::Verify,
        NvmOpcode::Copy,
        NvmOpcode::Other(0x7F),
    ] {
        let status = host
            .run(&mut pair, block(opcode, 0, 1, BlockFlags::empty()))
            .status();
        assert_eq!(
            status.code(),
            generic(GenericStatus::InvalidOpcode),
            "{opcode:?}"
        );
    }
    assert!(host.controller.is_present());
}
