//! Macros for what has a word for each value or field.

/// Defines a record of counters: named fields, each with the key that tools print.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $key:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name {
            $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $key))] pub $field: $type,)+
        }

        impl $name {
            /// The keys, in the order in which tools print them.
            pub const KEYS: &[&str] = &[$($key),+];
        }

        impl core::ops::AddAssign<&Self> for $name {
            fn add_assign(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

/// Defines an enum of plain words, which JSON, documents and the command line have in common.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        lnet_wire::named! {
            $(#[$meta])*
            #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
            $name {
                $($(#[$doc])* #[cfg_attr(feature = "serde", serde(rename = $word))] $variant => $word,)+
            }
        }

        impl $name {
            /// Names of the values, in their order.
            pub const NAMES: &[&str] = &[$($word),+];
        }

        impl core::str::FromStr for $name {
            type Err = alloc::string::String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().find(|one| one.name() == text);
                found.copied().ok_or_else(|| alloc::format!("{text:?}: one of {} is expected", Self::NAMES.join(", ")))
            }
        }
    };
}
