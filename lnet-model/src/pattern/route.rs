//! Parts of a route. The refusals have the words of LNet's tool.

use alloc::format;

use lnet_wire::Net;

use super::{integer, quoted};
use crate::errno::{Errno, Refusal};

/// Number of hops that is not said.
const UNDEFINED: i64 = -1;

/// The net that a route leads to.
///
/// # Errors
/// [`Refusal`]: what is no net (`-ENXIO`), and `lo` (`-EACCES`).
pub fn remote_net(text: &str) -> Result<Net, Refusal> {
    match text.parse() {
        Ok(Net::LO) => Err(Refusal::new(Errno::ACCES, "setting @lo not allowed")),
        Ok(net) => Ok(net),
        Err(error) => Err(Refusal::new(Errno::NXIO, format!("setting LNET_NET_ANY not allowed: {error}"))),
    }
}

/// The hops of a route; none where -1 says that they are not known.
///
/// # Errors
/// [`Refusal`]: what is no number from 1 to 255.
pub fn hops(text: &str) -> Result<Option<u8>, Refusal> {
    let number = integer(text);
    let hops = number.and_then(|number| u8::try_from(number).ok()).filter(|hops| *hops > 0);
    if hops.is_none() && number != Some(UNDEFINED) {
        let message = format!("invalid hop count must be between 1 and 255: {}", quoted(text));
        return Err(Refusal::new(Errno::INVAL, message));
    }
    Ok(hops)
}

/// The priority of a route.
///
/// # Errors
/// [`Refusal`]: what is no number from 0.
pub fn route_priority(text: &str) -> Result<u32, Refusal> {
    let priority = integer(text).and_then(|number| u32::try_from(number).ok());
    let message = || format!("invalid priority, it must be from 0 to {}: {}", u32::MAX, quoted(text));
    priority.ok_or_else(|| Refusal::new(Errno::INVAL, message()))
}
