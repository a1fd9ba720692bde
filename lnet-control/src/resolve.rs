//! Lists of NIDs in which names of hosts are looked up, IPv4 first.

use std::net::{IpAddr, ToSocketAddrs};

use lnet_model::pattern::{self, NIDS_MAX, NODES_MAX, nids_resolved, quoted};
use lnet_model::{Errno, Refusal};
use lnet_wire::{Net, Nid};

use crate::output;

/// The NIDs of a list, as [`lnet_model::pattern::nids`] reads it.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nids(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NIDS_MAX, &look_up)
}

/// The NIDs of nodes of selftest, as [`lnet_model::pattern::nodes`] reads them.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nodes(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NODES_MAX, &look_up)
}

/// One NID, as [`lnet_model::pattern::nid`] reads it.
///
/// # Errors
/// [`Refusal`]: what is none.
pub fn nid(text: &str) -> Result<Nid, Refusal> {
    pattern::nid(text).or_else(|error| {
        if text.contains(['*', '<', '[', ',']) {
            return Err(error);
        }
        let whole = if text.contains('@') { text.to_owned() } else { format!("{text}@tcp") };
        nids_resolved(&whole, 1, &look_up)?.pop().ok_or(error)
    })
}

/// The NIDs that a fault rule names, as [`lnet_model::pattern::fault_nid`] reads them.
///
/// # Errors
/// [`Refusal`]: what is no such NID.
pub fn fault_nid(text: &str) -> Result<Nid, Refusal> {
    pattern::fault_nid(text).or_else(|error| if text.contains('@') { nid(text) } else { Err(error) })
}

/// The address of a host. One that has several is told of: which of them is meant only the user knows.
fn look_up(host: &str, _: Net) -> Result<Option<IpAddr>, Refusal> {
    let unknown = |why: &dyn std::fmt::Display| {
        Refusal::new(Errno::INVAL, format!("{}: cannot look the host up: {why}", quoted(host)))
    };
    let found = (host, 0).to_socket_addrs().map_err(|error| unknown(&error))?;
    let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    // IPv4 comes first.
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    let first = addresses.first().copied().ok_or_else(|| unknown(&"it has no address"))?;
    let alike = addresses.iter().filter(|address| address.is_ipv6() == first.is_ipv6());
    if alike.clone().count() > 1 {
        let list: Vec<_> = alike.map(ToString::to_string).collect();
        output::note(format_args!(
            "{} has the addresses {}: {first} is taken\n",
            quoted(host),
            list.join(", ")
        ));
    }
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_looked_up_where_a_nid_stands() {
        let local = Nid::new_ip("tcp".parse().unwrap(), [127, 0, 0, 1].into()).unwrap();
        assert_eq!(nid("localhost"), Ok(local));
        assert_eq!(nid("localhost@tcp"), Ok(local));
        assert_eq!(nids("localhost@tcp,127.0.0.1@tcp"), Ok(vec![local; 2]));
        assert_eq!(fault_nid("localhost@tcp"), Ok(local));
        assert_eq!(fault_nid("*@tcp"), pattern::fault_nid("*@tcp"));
        assert_eq!(fault_nid("rubbish"), pattern::fault_nid("rubbish"));
        assert_eq!(nid("*@tcp"), pattern::nid("*@tcp"));
        assert!(nid("10.0.0.1@nonet").unwrap_err().message.contains("expected a net"));
        let error = nid("no-such-host.invalid@tcp").unwrap_err().message;
        assert!(error.starts_with("\"no-such-host.invalid\": cannot look the host up"), "{error}");
    }
}
