//! Enumerations that a peer may extend: a number without a name is kept, not refused.

/// Defines an enumeration over `u8` whose last variant keeps every number without a name.
macro_rules! open_enum {
    (
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$variant_doc:meta])* $variant:ident = $value:literal, )+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant, )+
            /// A number that the specification reserves, or that this crate does not name.
            Other(u8),
        }

        impl $name {
            /// Every variant that has a name.
            pub const NAMED: &'static [Self] = &[$( Self::$variant, )+];

            /// The meaning of a raw number.
            #[must_use]
            pub const fn from_raw(raw: u8) -> Self {
                match raw {
                    $( $value => Self::$variant, )+
                    other => Self::Other(other),
                }
            }

            /// The raw number.
            #[must_use]
            pub const fn raw(self) -> u8 {
                match self {
                    $( Self::$variant => $value, )+
                    Self::Other(raw) => raw,
                }
            }
        }
    };
}

pub(crate) use open_enum;

#[cfg(test)]
mod tests {
    use crate::{AdminOpcode, GenericStatus, NvmOpcode};

    #[test]
    fn every_number_comes_back_as_it_was() {
        for raw in 0..=u8::MAX {
            assert_eq!(AdminOpcode::from_raw(raw).raw(), raw);
            assert_eq!(NvmOpcode::from_raw(raw).raw(), raw);
            assert_eq!(GenericStatus::from_raw(raw).raw(), raw);
        }
        assert_eq!(NvmOpcode::from_raw(0x0C), NvmOpcode::Verify);
        assert_eq!(NvmOpcode::from_raw(0xC0), NvmOpcode::Other(0xC0));
        assert_eq!(NvmOpcode::NAMED.len(), 9);
    }
}
