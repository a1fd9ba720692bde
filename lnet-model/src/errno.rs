//! Error numbers, and a node's refusal of a request.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use lnet_wire::nid::ParseError;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An error number of Linux, positive. Tools print it with a minus.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Errno(pub u8);

macro_rules! numbers {
    ($($(#[$doc:meta])+ $name:ident = $number:literal,)+) => {
        impl Errno {
            $($(#[$doc])+ pub const $name: Self = Self($number);)+
        }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($number => f.write_str(stringify!($name)),)+
                    other => write!(f, "errno {other}"),
                }
            }
        }
    };
}

numbers! {
    /// What the caller may not do; also the general failure of the tool itself.
    PERM = 1,
    /// No such object, or no such type of net.
    NOENT = 2,
    /// No such net.
    SRCH = 3,
    /// Input or output failed.
    IO = 5,
    /// No such address.
    NXIO = 6,
    /// The argument list is too long.
    TOOBIG = 7,
    /// Not one of this object's.
    CHILD = 10,
    /// Out of memory, or of room for objects of the kind.
    NOMEM = 12,
    /// Access denied.
    ACCES = 13,
    /// The object is in use.
    BUSY = 16,
    /// The object exists already.
    EXIST = 17,
    /// No such interface or net.
    NODEV = 19,
    /// A value that makes no sense.
    INVAL = 22,
    /// No room left for more.
    NOSPC = 28,
    /// A number out of its range.
    RANGE = 34,
    /// No LND for nets of the type.
    NOMSG = 42,
    /// The other end does not speak the protocol.
    PROTO = 71,
    /// Another object of the kind is there.
    NOTUNIQ = 76,
    /// Others use what was asked for already.
    USERS = 87,
    /// What was asked is known and not supported.
    OPNOTSUPP = 95,
    /// The port or address is in use.
    ADDRINUSE = 98,
    /// The node is not configured, or an interface is down or absent.
    NETDOWN = 100,
    /// No route to the other end's network.
    NETUNREACH = 101,
    /// The other end has reset the connection.
    CONNRESET = 104,
    /// The stack is not running.
    SHUTDOWN = 108,
    /// No answer in time.
    TIMEDOUT = 110,
    /// Nothing listens there.
    CONNREFUSED = 111,
    /// No way to the host.
    HOSTUNREACH = 113,
    /// The object is so already.
    ALREADY = 114,
    /// The object is not any more what it was when it was asked about.
    STALE = 116,
    /// The operation was cancelled.
    CANCELED = 125,
}

/// Why a node does not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[error("{message}")]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// What was refused and why: lower case, with the value found and what was expected.
    pub message: String,
    /// Position of the offending change in its batch, from 0.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub change: Option<usize>,
    /// Refusals of further changes of the batch that could not be made either.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub further: Vec<Self>,
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        Self::new(Errno::INVAL, error.to_string())
    }
}

impl Refusal {
    /// A refusal that is not about one change of a batch.
    #[must_use]
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into(), change: None, further: Vec::new() }
    }

    /// A refusal of the change at this position of its batch.
    #[must_use]
    pub fn of_change(mut self, position: usize) -> Self {
        self.change = Some(position);
        self
    }
}
