//! Enums with a name for each value.

/// Defines an enum of plain words: each value stands beside its name.
///
/// The values are `u8`s, and `ALL` has them in their order.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $value:ident $(= $number:literal)? => $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $enum {
            $($(#[$doc])* $value $(= $number)?,)+
        }

        impl $enum {
            /// All of them, in their order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Its name, as tools and reports print it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl core::fmt::Display for $enum {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
