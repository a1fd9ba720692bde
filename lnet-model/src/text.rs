//! Values that stand in JSON as the text that people write: NIDs and nets.

use alloc::string::String;
use core::fmt::Display;
use core::str::FromStr;

use lnet_wire::Nid;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes for `#[serde(with = "text")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Deserializes for `#[serde(with = "text")]`.
///
/// # Errors
/// When the text is none of such a value.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Options of such values.
pub mod option {
    use alloc::string::{String, ToString};

    use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

    /// Serializes for `#[serde(with = "..")]`.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&value.as_ref().map(ToString::to_string), serializer)
    }

    /// Deserializes for `#[serde(with = "..")]`.
    ///
    /// # Errors
    /// When a text is none of such a value.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Lists of such values.
pub mod list {
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

    /// Serializes for `#[serde(with = "..")]`.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    /// Deserializes for `#[serde(with = "..")]`.
    ///
    /// # Errors
    /// When a text is none of such a value.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// A NID that stands in JSON by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NidText(#[serde(with = "crate::text")] pub Nid);
