//! Parameters with values, as command lines have them.

use alloc::format;
use alloc::string::String;
use core::str::FromStr;

use lnet_wire::Parameter;

use crate::pattern::integer;
use crate::request::Change;

/// A parameter that is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParameterValue {
    parameter: Parameter,
    value: u32,
}

impl ParameterValue {
    /// Reads a value of a parameter.
    ///
    /// # Errors
    /// Words for the value that was given and the range that is expected.
    pub fn read(parameter: Parameter, text: &str) -> Result<Self, String> {
        let (low, high) = parameter.range();
        let value = integer(text).and_then(|value| u32::try_from(value).ok());
        let value = value.filter(|value| (low..=high).contains(value));
        let expected = || format!("{parameter} {text}: {low} to {high} is expected");
        Ok(Self { parameter, value: value.ok_or_else(expected)? })
    }

    /// Reads the name of a parameter.
    ///
    /// # Errors
    /// Words for the name that was given and those that are expected.
    pub fn named(name: &str) -> Result<Parameter, String> {
        let names = || Parameter::ALL.map(Parameter::name).join(", ");
        name.parse().map_err(|_| format!("{name}: one of {} is expected", names()))
    }

    /// The change that sets it.
    #[must_use]
    pub const fn change(self) -> Change {
        Change::SetParameter { parameter: self.parameter, value: self.value }
    }
}

impl FromStr for ParameterValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
        Self::read(Self::named(name)?, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told() {
        let set: ParameterValue = "router_ping_timeout=5".parse().unwrap();
        let expected = Change::SetParameter { parameter: Parameter::RouterPingTimeout, value: 5 };
        assert_eq!(set.change(), expected);
        for (text, expected) in [
            ("router_ping_timeout", "NAME=VALUE is expected"),
            ("router_ping_timeout=0", "router_ping_timeout 0: 1 to 2147483647 is expected"),
            ("avoid_asym_router_failure=-1", "avoid_asym_router_failure -1: 0 to 1 is expected"),
            ("auto_down=1", "auto_down: one of alive_router_check_interval, router_ping_timeout, "),
        ] {
            let error = text.parse::<ParameterValue>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
