//! Interfaces that NIs are to be opened on, looked at beforehand.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use lnet_wire::Nid;
use thiserror::Error;

use crate::netlink::{Interface, NetlinkError};

/// How long an interface may take to run that was brought up just before the node: the kernel looks at
/// carriers once a second.
const CARRIER_PATIENCE: Duration = Duration::from_millis(1500);
const CARRIER_INTERVAL: Duration = Duration::from_millis(20);

/// Why an interface cannot have an NI.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// A NID whose address the interface does not have.
    #[error("interface {interface} does not have the address of {nid}; it has {present}")]
    NoSuchAddress {
        /// The NID.
        nid: Nid,
        /// The interface.
        interface: String,
        /// The addresses that it has.
        present: String,
    },
    /// An interface that is switched off. One without a carrier will do: frames flow when it comes.
    #[error("interface {0} is down: `ip link set dev {0} up` brings it up")]
    Down(String),
    /// An interface without Ethernet, whose frames rings would have.
    #[error(
        "interface {0} has no Ethernet address (a tunnel, IPoIB): AF_XDP rings need one, mode auto or socket and \
         tcp nets do not"
    )]
    NotEthernet(String),
    /// An interface that cannot have the NI as it is.
    #[error("interface {interface} has {present}")]
    Unsuitable {
        /// The interface.
        interface: String,
        /// Found value, expected value, and the way out.
        present: String,
    },
    /// The kernel's network tables.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Looks for an interface that carries frames by at least `queues` queues, or one. Waits a little for the
/// carrier of an interface that was brought up just before: the kernel reports it a while later
/// (`net/core/link_watch.c`). Without a carrier the interface is usable all the same.
///
/// # Errors
/// [`InterfaceError`]: there is no such interface, it is switched off, or it has fewer queues.
pub fn usable_interface(name: &str, queues: Option<u32>) -> Result<Interface, InterfaceError> {
    let interface = settled(name)?;
    let (rx_queues, tx_queues) = (interface.rx_queues, interface.tx_queues);
    let wanted = queues.unwrap_or(1).max(1);
    if rx_queues < wanted || tx_queues < wanted {
        let present = format!(
            "{rx_queues} receive and {tx_queues} transmit queues, {wanted} of each are needed: `ethtool -L {name} ...` \
             gives a device more, a veth is made with `numrxqueues {wanted} numtxqueues {wanted}`"
        );
        return Err(InterfaceError::Unsuitable { interface: interface.name, present });
    }
    Ok(interface)
}

fn settled(name: &str) -> Result<Interface, InterfaceError> {
    let begun = Instant::now();
    loop {
        let interface = Interface::by_name(name)?;
        if !interface.enabled {
            return Err(InterfaceError::Down(interface.name));
        }
        if interface.up || begun.elapsed() >= CARRIER_PATIENCE {
            return Ok(interface);
        }
        std::thread::sleep(CARRIER_INTERVAL);
    }
}

/// Checks that an interface has the address of a NID.
///
/// # Errors
/// [`InterfaceError::NoSuchAddress`] names those that it has.
pub fn check_address(interface: &Interface, nid: Nid, address: IpAddr) -> Result<(), InterfaceError> {
    if interface.addresses.iter().any(|(present, _)| *present == address) {
        return Ok(());
    }
    let present: Vec<String> = interface.addresses.iter().map(|(address, _)| address.to_string()).collect();
    Err(InterfaceError::NoSuchAddress {
        nid,
        interface: interface.name.clone(),
        present: if present.is_empty() { "none".to_owned() } else { present.join(", ") },
    })
}
