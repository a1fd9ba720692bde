//! Error numbers, and the errors of calls.

use std::fmt;

macro_rules! numbers {
    ($($(#[$doc:meta])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// How an operation ended that did not succeed, with the number and the name of the errno of Linux.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Errno {
            $($(#[$doc])+ $variant = $number,)+
        }

        impl Errno {
            /// The errno of this number, which is positive.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Its name, such as `EINVAL`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

numbers! {
    /// A bulk operation in the wrong direction, or a call that the state of the transfer machine forbids.
    NotPermitted = 1, "EPERM";
    /// The passive buffer of a descriptor is not queued any more; or an address names no local NI.
    NotFound = 2, "ENOENT";
    /// Input or output failed.
    Io = 5, "EIO";
    /// No memory, or no room in a table.
    NoMemory = 12, "ENOMEM";
    /// A bulk operation by another transfer machine than the one that it was meant for.
    AccessDenied = 13, "EACCES";
    /// An object is in the wrong state for the call.
    Busy = 16, "EBUSY";
    /// A malformed address, descriptor or argument, or another domain's object.
    Invalid = 22, "EINVAL";
    /// Sizes of a bulk operation that do not fit, or a buffer beyond the transport's limits.
    TooBig = 27, "EFBIG";
    /// The transport lacks what is asked for.
    NotSupported = 38, "ENOSYS";
    /// The deadline of an addition has passed already.
    Expired = 62, "ETIME";
    /// The other end breaks the protocol.
    Protocol = 71, "EPROTO";
    /// Bytes of the other end that cannot be decoded.
    BadMessage = 74, "EBADMSG";
    /// A message is longer than the receive buffer.
    MessageSize = 90, "EMSGSIZE";
    /// The other end knows neither the program nor the version.
    ProtocolNotSupported = 93, "EPROTONOSUPPORT";
    /// A started transfer machine has this address.
    AddressInUse = 98, "EADDRINUSE";
    /// No identifier is free, or the address cannot be used in this process.
    AddressNotAvailable = 99, "EADDRNOTAVAIL";
    /// No started transfer machine has the destination address.
    NetworkUnreachable = 101, "ENETUNREACH";
    /// The connection was reset, or the peer has begun a new life.
    ConnectionReset = 104, "ECONNRESET";
    /// The receiver had no usable receive buffer: the message is lost.
    NoBuffers = 105, "ENOBUFS";
    /// The deadline has passed.
    TimedOut = 110, "ETIMEDOUT";
    /// No process listens there.
    ConnectionRefused = 111, "ECONNREFUSED";
    /// There is no route to the host.
    HostUnreachable = 113, "EHOSTUNREACH";
    /// Cancelled by its owner, or by a transfer machine that stops.
    Canceled = 125, "ECANCELED";
}

impl Errno {
    /// Its number, positive.
    #[must_use]
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How an operation ended.
pub type Status = Result<(), Errno>;

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    errno: Errno,
    message: String,
}

impl Error {
    /// An error with what was found and what was expected.
    #[must_use]
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Errno::Invalid, message)
    }

    /// Its number.
    #[must_use]
    pub fn errno(&self) -> Errno {
        self.errno
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.errno)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_the_number_and_the_name_of_linux() {
        assert_eq!((Errno::NoBuffers.number(), Errno::NoBuffers.name()), (105, "ENOBUFS"));
        assert_eq!(Errno::from_number(125), Some(Errno::Canceled));
        assert_eq!(Errno::from_number(-22), None);
        assert_eq!(Error::invalid("port 0").to_string(), "port 0 (EINVAL)");
    }
}
