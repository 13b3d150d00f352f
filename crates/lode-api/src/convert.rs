//! Conversions between the wire's enums and the storage seam's.

use lode_block::{Durability as BlockDurability, WriteCache as BlockWriteCache};

use crate::v1::{Durability, ErrorDetail, ErrorReason, WriteCache};

impl Durability {
    /// The level that a request names: `None` when it leaves the choice to the volume.
    ///
    /// `number` is the field as it was received, `field` its name for the error.
    ///
    /// # Errors
    /// When the number is none of the enum's.
    pub fn requested(
        number: i32,
        field: &str,
    ) -> Result<Option<BlockDurability>, Box<ErrorDetail>> {
        match Self::try_from(number) {
            Ok(Self::Unspecified) => Ok(None),
            Ok(Self::None) => Ok(Some(BlockDurability::None)),
            Ok(Self::Data) => Ok(Some(BlockDurability::Data)),
            Ok(Self::Full) => Ok(Some(BlockDurability::Full)),
            Err(_) => {
                let detail = ErrorDetail::new(ErrorReason::InvalidField).with_field(field);
                Err(Box::new(detail))
            }
        }
    }
}

impl From<BlockDurability> for Durability {
    fn from(level: BlockDurability) -> Self {
        match level {
            BlockDurability::None => Self::None,
            BlockDurability::Data => Self::Data,
            BlockDurability::Full => Self::Full,
        }
    }
}

impl From<BlockWriteCache> for WriteCache {
    fn from(cache: BlockWriteCache) -> Self {
        match cache {
            BlockWriteCache::None => Self::None,
            BlockWriteCache::Disabled => Self::Disabled,
            BlockWriteCache::Volatile => Self::Volatile,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_comes_back_as_it_was_sent() {
        for level in [
            BlockDurability::None,
            BlockDurability::Data,
            BlockDurability::Full,
        ] {
            let wire = Durability::from(level);
            assert_eq!(
                Durability::requested(wire.into(), "durability"),
                Ok(Some(level))
            );
        }
    }

    #[test]
    fn no_level_is_the_volumes_choice_and_a_foreign_number_is_refused_by_field() {
        assert_eq!(Durability::requested(0, "durability"), Ok(None));
        let detail = Durability::requested(4, "durability").expect_err("4 is no level");
        assert_eq!(detail.reason(), ErrorReason::InvalidField);
        assert_eq!(detail.field, "durability");
    }

    #[test]
    fn a_stronger_level_has_a_larger_number_on_the_wire() {
        assert!(i32::from(Durability::Full) > i32::from(Durability::Data));
        assert!(i32::from(Durability::Data) > i32::from(Durability::None));
    }
}
