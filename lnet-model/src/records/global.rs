//! The values of the global tunables, and of the parameters.

use lnet_wire::{Global, Parameter};
use serde::{Deserialize, Serialize};

/// The values of all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Globals([u32; Global::ALL.len()]);

impl Globals {
    /// The value of one.
    #[must_use]
    pub const fn get(&self, global: Global) -> u32 {
        self.0[global as usize]
    }

    /// Sets the value of one.
    pub const fn set(&mut self, global: Global, value: u32) {
        self.0[global as usize] = value;
    }

    /// Names and values, in the order in which tools print them.
    pub fn entries(&self) -> impl Iterator<Item = (Global, u32)> + use<> {
        Global::ALL.into_iter().zip(self.0)
    }
}

impl Default for Globals {
    fn default() -> Self {
        Self(Global::ALL.map(Global::default_value))
    }
}

/// The values of all parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters([u32; Parameter::ALL.len()]);

impl Parameters {
    /// The value of one.
    #[must_use]
    pub const fn get(&self, parameter: Parameter) -> u32 {
        self.0[parameter as usize]
    }

    /// Sets the value of one.
    pub const fn set(&mut self, parameter: Parameter, value: u32) {
        self.0[parameter as usize] = value;
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self(Parameter::ALL.map(Parameter::default_value))
    }
}
