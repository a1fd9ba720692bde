//! Addresses of the form `a.b.c.d:port`.

use std::fmt;
use std::net::Ipv4Addr;

use crate::errno::{Errno, Error};

/// Longest text of an address.
const TEXT_MAX_BYTES: usize = 35;

/// Where a transfer machine is found. Port 0 is a port like any other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MemAddress {
    pub(crate) ip: Ipv4Addr,
    pub(crate) port: u16,
}

impl MemAddress {
    /// # Errors
    /// `ENOSYS` for no text at all, since no address is chosen here; `EINVAL` for what is no address.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Err(Error::new(
                Errno::NotSupported,
                "no address: mem chooses none, `a.b.c.d:port` is expected",
            ));
        }
        let wrong = || Error::invalid(format!("address `{text}`: `a.b.c.d:port` is expected"));
        if text.len() > TEXT_MAX_BYTES {
            return Err(wrong());
        }
        let (ip, port) = text.split_once(':').ok_or_else(wrong)?;
        // A number may be written with a sign elsewhere.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let (ip, port) = (ip.parse().map_err(|_| wrong())?, port.parse().map_err(|_| wrong())?);
        Ok(Self { ip, port })
    }
}

impl fmt::Display for MemAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ip, self.port)
    }
}
