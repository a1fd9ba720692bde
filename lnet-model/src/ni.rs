//! Local NIs that are to be, and what they can be asked to have.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use lnet_wire::{Net, Nid};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::lnd::{
    Carrier, IN_PROCESS, LNDS, LndRow, NiOption, OPTIONS, OptionError, OptionRow, Switch, ZeroCopy, fabric_of,
};

pub use crate::lnd::{Lnd, XdpMode};

/// Health of what has not failed of late (`LNET_MAX_HEALTH_VALUE`).
pub const HEALTH_MAX: u32 = 1000;

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct NiSpec {
    /// Its net.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub net: Net,
    /// The network interface, by name.
    pub interface: Option<String>,
    /// Its NID: an address of the interface, or, without `interface`, of the interface to take. With neither
    /// the node takes the first interface that is up and has an address, but for the loopback device and
    /// bridges.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub nid: Option<Nid>,
    /// Options that it is asked to have.
    pub options: NiOptions,
    /// CPTs (shards) that serve it; none means all.
    pub cpts: Vec<u32>,
}

impl NiSpec {
    /// An NI on this net of which all else is the node's choice.
    #[must_use]
    pub fn new(net: Net) -> Self {
        Self { net, interface: None, nid: None, options: NiOptions::default(), cpts: Vec::new() }
    }
}

/// A local NI that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum NiName {
    /// Named by its net and the name of its interface.
    Interface {
        /// The net.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        net: Net,
        /// The interface.
        interface: String,
    },
    /// Named by its NID.
    Nid(#[cfg_attr(feature = "serde", serde(with = "crate::text"))] Nid),
}

/// The options of a local NI: as they are asked for, where what is missing is the node's choice, or as an NI
/// has them, where that is an option of another LND. Those of the net are fixed by its first NI.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct NiOptions([Option<i64>; NiOption::ALL.len()]);

impl NiOptions {
    /// The value of one.
    #[must_use]
    pub const fn get(&self, option: NiOption) -> Option<i64> {
        self.0[option as usize]
    }

    /// The value of one that is a number of this type.
    #[must_use]
    pub fn number<T: TryFrom<i64>>(&self, option: NiOption) -> Option<T> {
        T::try_from(self.get(option)?).ok()
    }

    /// Sets the value of one, or takes it away.
    pub const fn set(&mut self, option: NiOption, value: Option<i64>) {
        self.0[option as usize] = value;
    }

    /// The options with another value of one.
    #[must_use]
    pub const fn with(mut self, option: NiOption, value: i64) -> Self {
        self.set(option, Some(value));
        self
    }

    /// The LND that is asked for.
    #[must_use]
    pub fn lnd(&self) -> Option<Lnd> {
        Lnd::ALL.get(self.number::<usize>(NiOption::Lnd)?).copied()
    }

    /// How frames reach the shards.
    #[must_use]
    pub fn mode(&self) -> Option<XdpMode> {
        XdpMode::ALL.get(self.number::<usize>(NiOption::Mode)?).copied()
    }

    /// Whether payloads have checksums, as far as this end is asked.
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        self.get(NiOption::Checksum) != Some(Switch::Off as i64)
    }

    /// Whether rings are to have zero copy.
    #[must_use]
    pub fn zero_copy(&self) -> ZeroCopy {
        let word = self.number::<usize>(NiOption::ZeroCopy);
        word.and_then(|word| ZeroCopy::ALL.get(word)).copied().unwrap_or_default()
    }

    /// Carrier that long messages are to take, beside rings.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        let word = self.number::<usize>(NiOption::Carrier);
        word.and_then(|word| Carrier::ALL.get(word)).copied().unwrap_or_default()
    }

    /// The options that have a value, in their order.
    pub fn entries(&self) -> impl Iterator<Item = (&'static OptionRow, i64)> + use<> {
        OPTIONS.iter().zip(self.0).filter_map(|(row, value)| Some((row, value?)))
    }

    /// The LND of NIs with these options on a net; none where the net's type has none.
    #[must_use]
    pub fn lnd_of(&self, net: Net) -> Option<&'static LndRow> {
        match self.lnd() {
            Some(asked) => LNDS.iter().find(|row| row.asked == Some(asked)),
            None => LndRow::of_net_type(net.net_type()),
        }
    }

    /// The LND of an NI with these options on a net and an interface.
    #[must_use]
    pub fn lnd_on(&self, net: Net, interface: &str) -> Option<&'static LndRow> {
        match fabric_of(interface) {
            Some(_) => Some(&IN_PROCESS),
            None => self.lnd_of(net),
        }
    }

    /// Checks that an NI with these options can be on a net and, where that is known, an interface. A net
    /// that no LND drives is the core's to refuse.
    ///
    /// # Errors
    /// [`OptionError`]: the first that is wrong.
    pub fn check(&self, net: Net, interface: Option<&str>) -> Result<(), OptionError> {
        let lnd = interface.map_or_else(|| self.lnd_of(net), |interface| self.lnd_on(net, interface));
        let Some(lnd) = lnd else { return Ok(()) };
        if !lnd.drives(net) {
            let types: Vec<_> = lnd.net_types.iter().filter_map(|net_type| net_type.name()).collect();
            return Err(OptionError::Net { net, lnd: lnd.name, types: types.join(", ") });
        }
        for (row, value) in self.entries() {
            let option = row.option;
            if option.owner().is_some_and(|owner| owner.name != lnd.name) {
                return Err(match interface.filter(|_| lnd.name == IN_PROCESS.name) {
                    Some(interface) => OptionError::InProcess {
                        option,
                        value: row.values.text(value),
                        interface: interface.into(),
                    },
                    None => OptionError::OtherLnd { net, option },
                });
            }
            if !row.values.takes(value) {
                return Err(OptionError::Value { option, value });
            }
        }
        Ok(())
    }

    /// The options that are asked for and that an NI with these does not have so.
    pub fn unfit<'a>(&'a self, asked: &'a Self) -> impl Iterator<Item = (&'static OptionRow, i64)> + 'a {
        let is_unfit = |(row, value): &(&'static OptionRow, i64)| {
            row.choice != Some(*value) && self.get(row.option) != Some(*value)
        };
        asked.entries().filter(is_unfit)
    }

    /// Whether an NI with these options is what is asked for.
    #[must_use]
    pub fn fits(&self, asked: &Self) -> bool {
        self.unfit(asked).next().is_none()
    }
}

impl fmt::Debug for NiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries().map(|(row, value)| (row.option.name(), row.values.text(value))))
            .finish()
    }
}

#[cfg(feature = "serde")]
mod json {
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::String;

    use serde::de::Error;
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{NiOption, NiOptions, OPTIONS};

    /// A number or a word.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Number(i64),
        Word(String),
    }

    impl Serialize for NiOptions {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(Some(OPTIONS.len()))?;
            for (row, value) in OPTIONS.iter().zip(self.0) {
                match value.and_then(|value| row.values.word(value)) {
                    Some(word) => map.serialize_entry(row.option.name(), word)?,
                    None => map.serialize_entry(row.option.name(), &value)?,
                }
            }
            map.end()
        }
    }

    impl<'de> Deserialize<'de> for NiOptions {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let mut options = Self::default();
            for (key, value) in BTreeMap::<String, Option<Value>>::deserialize(deserializer)? {
                let option = NiOption::of_key(&key);
                let option = option.ok_or_else(|| D::Error::custom(format!("{key}: no option of an NI")))?;
                let row = option.row();
                let value = match value {
                    None => continue,
                    Some(Value::Number(number)) => Some(number).filter(|_| row.values.word(0).is_none()),
                    Some(Value::Word(word)) => row.values.value_of(&word),
                };
                let value = value.filter(|value| row.values.takes(*value));
                let expected = || D::Error::custom(format!("{key}: {} is expected", row.values.expected()));
                options.set(option, Some(value.ok_or_else(expected)?));
            }
            Ok(options)
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn what_an_ni_is_asked_to_have_says_its_lnd() {
        let check = |net: &str, asked: NiOptions, lnd: Option<&str>, foreign: Option<NiOption>| {
            let net = net.parse().unwrap();
            assert_eq!(asked.lnd_of(net).map(|row| row.name), lnd);
            let expected = foreign.map(|option| OptionError::OtherLnd { net, option });
            assert_eq!(asked.check(net, None).err(), expected, "{net} {asked:?}");
        };
        let none = NiOptions::default();
        check("tcp", none, Some("tcp"), None);
        check("xdp3", none, Some("xdp"), None);
        check("o2ib", none, None, None);
        let xdp = none.with(NiOption::Lnd, Lnd::Xdp as i64);
        check("tcp", xdp, Some("xdp"), None);
        let port = NiOption::Port;
        check("tcp", none.with(port, 7).with(NiOption::Credits, 9), Some("tcp"), Some(port));
        check("tcp", xdp.with(port, 7), Some("xdp"), None);
        check("xdp", none.with(NiOption::Tos, 7), Some("xdp"), Some(NiOption::Tos));
    }

    #[test]
    fn options_that_an_ni_cannot_have_are_refused() {
        let check = |net: &str, interface: Option<&str>, asked: NiOptions, expected: &str| {
            let refused = asked.check(net.parse().unwrap(), interface).unwrap_err();
            assert_eq!(refused.to_string(), expected);
        };
        let none = NiOptions::default();
        let tcp = none.with(NiOption::Lnd, Lnd::Tcp as i64);
        check("xdp1", Some("eth0"), tcp, "net xdp1: the LND tcp serves nets of type tcp");
        let port = none.with(NiOption::Port, 7);
        let mine = "port 7 for in-process:a: none is expected there, it is for NIs on network interfaces";
        check("xdp", Some("in-process:a"), port, mine);
        check("tcp", None, port, "net tcp: port is of the LND xdp, and its LND is another one");
        check("xdp", None, none.with(NiOption::Port, 0), "port 0: a number from 1 to 65535 is expected");
    }
}
