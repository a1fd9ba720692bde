//! NIs whose interfaces are on one subnet, where Linux's defaults make half of them useless.
//!
//! The kernel answers ARP for any address of the host by every interface (`arp_ignore` 0), and asks with any
//! address as the source (`arp_announce` 0). So frames for one NI come by the interface of the other, which
//! does not take them. An interface has the greater of its own value and that of `all`
//! (include/linux/inetdevice.h: `IN_DEV_MAXCONF`).

use std::net::Ipv4Addr;

use lnet_user::netlink::{Interface, device_of};
use lnet_wire::Nid;

/// Settings that NIs on one subnet want, with the least value that serves.
const WANTED: [(&str, u8); 2] = [("arp_ignore", 1), ("arp_announce", 2)];

/// An NI at an address of an interface.
#[derive(Clone, Debug)]
struct NiAddress {
    nid: Nid,
    device: String,
    address: Ipv4Addr,
    prefix_bits: u8,
    /// The settings of its interface, in the order of [`WANTED`].
    settings: [u8; 2],
}

/// Warnings of the NIs with these NIDs and interfaces, in the network namespace of the calling thread. Blocks
/// for some netlink round trips.
pub(super) fn warnings(nis: &[(Nid, String)]) -> Vec<String> {
    let port = |(nid, interface): &(Nid, String)| {
        let found = Interface::by_name(interface).ok()?;
        let at = found.addresses.iter().find(|(address, _)| Some(*address) == nid.ip())?;
        let std::net::IpAddr::V4(address) = at.0 else { return None };
        let device = device_of(interface).to_owned();
        let settings = WANTED.map(|(name, _)| setting("all", name).max(setting(&device, name)));
        Some(NiAddress { nid: *nid, device, address, prefix_bits: at.1, settings })
    };
    told(&nis.iter().filter_map(port).collect::<Vec<_>>())
}

/// A setting of an interface, or of all; 0 where it cannot be read.
fn setting(device: &str, name: &str) -> u8 {
    let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{device}/{name}"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// A warning for each subnet with several devices of which one has not the settings.
fn told(ports: &[NiAddress]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for (at, first) in ports.iter().enumerate() {
        let shares = |other: &&NiAddress| other.device != first.device && is_one_subnet(first, other);
        // A subnet is told of with its first NI.
        if ports[..at].iter().any(|earlier| is_one_subnet(earlier, first)) {
            continue;
        }
        let others: Vec<&NiAddress> = ports[at..].iter().filter(shares).collect();
        let all = || others.iter().copied().chain([first]);
        let lacking = WANTED.iter().enumerate().filter(|(which, (_, least))| {
            !others.is_empty() && all().any(|port| port.settings[*which] < *least)
        });
        let commands: Vec<_> = lacking
            .map(|(_, (name, least))| format!("`sysctl -w net.ipv4.conf.all.{name}={least}`"))
            .collect();
        if !commands.is_empty() {
            let names = others.iter().map(|port| format!(" and {} ({})", port.nid, port.device));
            told.push(format!(
                "{} ({}){} are on one subnet: Linux answers ARP for either address by each of the interfaces, \
                 and messages for one NI may come by another and be lost; {}",
                first.nid,
                first.device,
                names.collect::<String>(),
                commands.join(" and ")
            ));
        }
    }
    told
}

fn is_one_subnet(one: &NiAddress, other: &NiAddress) -> bool {
    let bits = one.prefix_bits.min(other.prefix_bits).min(32);
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    (one.address.to_bits() ^ other.address.to_bits()) & mask == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str, prefix_bits: u8, device: &str, settings: [u8; 2]) -> NiAddress {
        let nid = format!("{address}@xdp").parse().unwrap();
        NiAddress { nid, device: device.into(), address: address.parse().unwrap(), prefix_bits, settings }
    }

    #[test]
    fn a_subnet_of_several_devices_wants_settings() {
        let two = |settings: [[u8; 2]; 2]| {
            told(&[port("10.0.0.1", 24, "eth0", settings[0]), port("10.0.0.2", 24, "eth1", settings[1])])
        };
        let [ignore, announce] = ["arp_ignore=1", "arp_announce=2"];
        for (settings, lacks) in [
            ([[0, 0]; 2], vec![ignore, announce]),
            ([[1, 2], [0, 2]], vec![ignore]),
            ([[1, 1], [1, 2]], vec![announce]),
            ([[1, 2]; 2], vec![]),
            ([[2, 2]; 2], vec![]),
        ] {
            let told = two(settings);
            assert_eq!(told.len(), usize::from(!lacks.is_empty()), "{told:?}");
            let has = |part: &str| told.iter().any(|text| text.contains(part));
            assert_eq!([ignore, announce].map(has), [ignore, announce].map(|one| lacks.contains(&one)));
            let names = ["10.0.0.1@xdp (eth0) and 10.0.0.2@xdp (eth1)", "sysctl -w net.ipv4.conf.all."];
            assert!(lacks.is_empty() || names.iter().all(|name| has(name)), "{told:?}");
        }
        let apart = [port("10.0.0.1", 24, "eth0", [0, 0]), port("10.0.1.2", 24, "eth1", [0, 0])];
        assert_eq!(told(&apart), [""; 0]);
        let aliases = [port("10.0.0.1", 24, "eth0", [0, 0]), port("10.0.0.2", 24, "eth0", [0, 0])];
        assert_eq!(told(&aliases), [""; 0], "one device");
        let three = ["eth0", "eth1", "eth2"].map(|device| port("10.0.0.1", 24, device, [0, 0]));
        assert_eq!(told(&three).len(), 1);
    }
}
