//! The XDP program of an interface, loaded and driven from userspace.
//!
//! Invariants: aya is known here and nowhere else; one [`XdpProgram`] serves one interface; dropping it,
//! or the death of its process, detaches the program (it hangs on a `bpf_link`); what goes into a map was
//! checked before, so that the program never meets a value out of range.
//!
//! The objects of the XDP program are checked in and compiled into this crate, so that a program is one file,
//! and building it takes no BPF compiler. Two compilers make two objects of the same sources. Therefore a
//! digest of the sources, beside the objects, says whether they are out of date.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use aya::include_bytes_aligned;

mod counters;
mod error;
mod faults;
mod log;
mod program;
mod run;

pub(crate) use counters::Outline;
pub use counters::{Counters, ReasonCount, SlotCount};
pub use error::BpfError;
pub use faults::Faults;
pub use log::LogPump;
pub(crate) use program::generic_by_role;
pub use program::{ActiveMode, XdpProgram};
pub use run::{Action, TestFrame};

/// Names a file that is loaded instead of the object that this library has in it.
pub const OBJECT_VARIABLE: &str = "LNET_BPF_OBJECT";

/// Which of the two objects of the XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// The one for everyday use.
    Default,
    /// The one that can log refusals.
    Logging,
}

/// An object of the XDP program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Object {
    /// An object that is in this library. `cargo xtask build-ebpf` makes it, in `lnet-xdp/linux/bpf`.
    BuiltIn(ObjectKind),
    /// A file.
    File(PathBuf),
}

impl Object {
    /// The file that [`OBJECT_VARIABLE`] names, else the one that is built in.
    #[must_use]
    pub fn of(kind: ObjectKind) -> Self {
        std::env::var_os(OBJECT_VARIABLE).map_or(Self::BuiltIn(kind), |path| Self::File(path.into()))
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`BpfError::ObjectUnreadable`].
    pub fn bytes(&self) -> Result<Cow<'static, [u8]>, BpfError> {
        match self {
            Self::BuiltIn(ObjectKind::Default) => Ok(include_bytes_aligned!("../../bpf/lnet.bpf.o").into()),
            Self::BuiltIn(ObjectKind::Logging) => {
                Ok(include_bytes_aligned!("../../bpf/lnet-log.bpf.o").into())
            }
            Self::File(path) => match std::fs::read(path) {
                Ok(bytes) => Ok(bytes.into()),
                Err(source) => Err(BpfError::ObjectUnreadable { path: path.clone(), source }),
            },
        }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(_) => formatter.write_str("the built-in object"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_objects_are_built_in() {
        let bytes = |kind| Object::BuiltIn(kind).bytes().unwrap();
        let (default, logging) = (bytes(ObjectKind::Default), bytes(ObjectKind::Logging));
        assert!(default.starts_with(b"\x7fELF") && logging.starts_with(b"\x7fELF"));
        assert_ne!(default, logging);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = Object::File("/no/such/object".into()).bytes().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/no/such/object") && text.contains(OBJECT_VARIABLE), "{text}");
    }
}
