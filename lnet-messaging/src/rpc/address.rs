//! Addresses of the form `a.b.c.d:port:service`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use crate::errno::{Errno, Error};

/// Where a transfer machine is found: the server of its process, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RpcAddress {
    pub(super) server: SocketAddrV4,
    /// 1 at least.
    pub(super) service: u32,
}

impl RpcAddress {
    /// # Errors
    /// `ENOSYS` for no text at all, since no address is chosen here; `EINVAL` for what is no address.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let expected = "`a.b.c.d:port:service` is expected, with a port and a service from 1";
        if text.is_empty() {
            return Err(Error::new(Errno::NotSupported, format!("no address: rpc chooses none, {expected}")));
        }
        let address = text.rsplit_once(':').and_then(|(server, service)| {
            let server: SocketAddrV4 = server.parse().ok()?;
            // A number may be written with a sign elsewhere.
            let is_number = service.bytes().all(|byte| byte.is_ascii_digit());
            Self::new(*server.ip(), server.port(), service.parse().ok().filter(|_| is_number)?)
        });
        address.ok_or_else(|| Error::invalid(format!("address `{text}`: {expected}")))
    }

    /// `None` where the port or the service is 0.
    pub(super) fn new(ip: Ipv4Addr, port: u16, service: u32) -> Option<Self> {
        (port != 0 && service != 0).then(|| Self { server: SocketAddrV4::new(ip, port), service })
    }
}

impl fmt::Display for RpcAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.service)
    }
}
