//! Device strings: what is read, and what is refused with the part that is wrong.

use std::time::Duration;

use super::*;

fn parsed(text: &str) -> EmulatorSpec {
    text.parse().expect(text)
}

#[test]
fn memory_needs_no_more_than_a_size() {
    let spec = parsed("memory:64MiB");
    let length_bytes = 64 << 20;
    assert_eq!(spec.media, MediaSpec::Memory { length_bytes });
    assert_eq!(spec.block_size, BlockSize::B4096);
    assert_eq!(spec.cache, Cache::None);
    assert_eq!(spec.controller.name, "memory:64MiB");
    assert_eq!(spec.controller.serial_number.len(), 20);
}

#[test]
fn every_option_of_a_file_is_read() {
    let spec = parsed(
        "file:/var/lib/pool.img?lba=512&size=1GiB&create&namespaces=2&cache=modelled&\
         cache_size=1MiB&flush=lie&mdts=128KiB&queues=4&depth=256&stride=1&shadow&\
         latency=80us+20us&bandwidth=500MB&seed=7&serial=ABC&fault=opcode=read nth=3 -> drop&\
         fault=-> delay=1ms",
    );
    let media = MediaSpec::File {
        path: "/var/lib/pool.img".into(),
        length_bytes: Some(1 << 30),
        create: true,
    };
    assert_eq!(spec.media, media);
    assert_eq!(
        (spec.block_size, spec.namespace_count),
        (BlockSize::B512, 2)
    );
    let capacity_bytes = 1 << 20;
    assert_eq!(spec.cache, Cache::Modelled { capacity_bytes });
    assert!(spec.lies_about_flush);
    let controller = &spec.controller;
    assert_eq!(controller.transfer_max_bytes(), 128 << 10);
    assert_eq!(
        (controller.queue_pairs_max, controller.queue_entries_max),
        (4, 256)
    );
    assert!(controller.shadow_doorbells && controller.doorbell_stride == 1);
    assert_eq!(controller.latency.read, Duration::from_micros(80));
    assert_eq!(controller.latency.jitter, Duration::from_micros(20));
    assert_eq!(controller.latency.bytes_per_second, 500_000_000);
    assert_eq!(controller.serial_number, "ABC");
    assert_eq!(spec.faults.len(), 2);
}

#[test]
fn a_file_has_the_hosts_cache_unless_told_otherwise() {
    assert_eq!(parsed("file:x").cache, Cache::Host);
    assert_eq!(parsed("file:x?cache=none").cache, Cache::None);
}

#[test]
fn what_is_wrong_is_named() {
    for (text, part) in [
        ("disk:x", "disk:x"),
        ("memory", "memory"),
        ("memory:lots", "lots"),
        ("file:", "file:"),
        ("memory:1GiB?lba=1000", "1000"),
        ("memory:1GiB?lba", "lba"),
        ("memory:1GiB?colour=red", "colour"),
        ("memory:1GiB?cache=warm", "warm"),
        ("memory:1GiB?cache_size=1MiB", "cache_size"),
        ("memory:1GiB?mdts=3MiB", "3MiB"),
        ("memory:1GiB?namespaces=0", "0"),
        ("file:x?create", "create"),
        ("file:x?create=yes&size=1GiB", "create"),
        ("memory:1GiB?latency=fast", "fast"),
        ("memory:1GiB?fault=nonsense", "nonsense"),
    ] {
        let outcome = text.parse::<EmulatorSpec>();
        let Err(EmulatorError::Syntax { text: named, .. }) = outcome else {
            panic!("{text:?} is refused");
        };
        assert_eq!(named, part, "{text}");
    }
    assert!(matches!(
        "memory:1GiB?queues=5000".parse::<EmulatorSpec>(),
        Err(EmulatorError::Option { .. })
    ));
}

#[test]
fn namespaces_share_the_media_in_equal_whole_parts() {
    let controller =
        EmulatedController::open(&parsed("memory:100KiB?namespaces=3&lba=4096")).expect("memory");
    for id in 1..=3 {
        let blocks = controller.block_count(lode_units::NamespaceId::new(id));
        assert_eq!(blocks, Some(8));
    }
}

#[test]
fn a_size_that_is_no_whole_number_of_blocks_is_an_error() {
    let outcome = EmulatedController::open(&parsed("memory:10001"));
    assert!(matches!(outcome, Err(EmulatorError::SizeNotBlocks { .. })));
    let outcome = EmulatedController::open(&parsed("memory:4KiB?namespaces=2"));
    assert!(matches!(outcome, Err(EmulatorError::SizeNotBlocks { .. })));
}
