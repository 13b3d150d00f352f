//! What the blocks of the model's volumes are filled with: each block tells which request wrote
//! it and where it belongs.

/// The bytes of a block: `value` 0 is zeros.
pub(crate) fn fill(target: &mut Vec<u8>, place: Place, value: u64) {
    let word = word(place, value);
    for _ in 0..place.block_bytes / WORD_BYTES {
        target.extend_from_slice(&word.to_le_bytes());
    }
}

/// The value of a block, or what is wrong with it.
pub(crate) fn value(bytes: &[u8], place: Place) -> Result<u64, String> {
    let mut words = bytes.chunks_exact(WORD_BYTES).map(|bytes| {
        let bytes = <[u8; WORD_BYTES]>::try_from(bytes).expect("chunks of that length");
        u64::from_le_bytes(bytes)
    });
    let first = words.next().expect("a block is not empty");
    if let Some(other) = words.find(|word| *word != first) {
        return Err(format!("mixed content {first:#x} and {other:#x}"));
    }
    let value = first >> PLACE_BITS;
    if first == word(place, value) {
        Ok(value)
    } else {
        Err(format!("foreign content {first:#x}"))
    }
}

/// Where a block belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) volume: usize,
    pub(crate) block: usize,
    pub(crate) block_bytes: usize,
}

fn word(place: Place, value: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    let place = (place.volume << 16) | place.block;
    (value << PLACE_BITS) | u64::try_from(place).expect("a usize fits 64 bits")
}

const WORD_BYTES: usize = 8;
const PLACE_BITS: u32 = 20;
