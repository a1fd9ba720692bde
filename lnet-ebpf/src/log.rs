//! Log lines for frames that were addressed to the node and found no shard. `lnet-user`'s `bpf` module
//! reads them back: queue, reason and source address, separated by spaces.

use aya_ebpf::programs::XdpContext;
use aya_log_ebpf::warn;
use lnet_wire::packet::{ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_VLAN, Packet, Reason, VLAN_BYTES};

use crate::linear::Linear;
use crate::maps;

/// Logs a frame that is refused or found no socket, where logging is on.
#[inline(always)]
pub(crate) fn refusal(context: &XdpContext, queue: u32, reason: Reason) {
    if !(reason.is_refusal() || matches!(reason, Reason::NoSocket)) || !maps::log_enabled() {
        return;
    }
    if let Some(source) = source(&Linear::new(context)) {
        warn!(context, "{} {} {:i}", queue, reason as u32, source);
    }
}

/// Source address of an IP packet, IPv4 in its mapped form. Who asks knows that it is one.
#[inline(always)]
fn source(packet: &Linear) -> Option<[u8; 16]> {
    let mut network_offset = ETHERNET_BYTES;
    let mut ethertype = u16::from_be_bytes(packet.load(12)?);
    if ethertype == ETHERTYPE_VLAN {
        ethertype = u16::from_be_bytes(packet.load(ETHERNET_BYTES + 2)?);
        network_offset += VLAN_BYTES;
    }
    if ethertype != ETHERTYPE_IPV4 {
        return packet.load(network_offset + 8);
    }
    let address: [u8; 4] = packet.load(network_offset + 12)?;
    let mut mapped = [0; 16];
    mapped[10] = 0xFF;
    mapped[11] = 0xFF;
    mapped[12..].copy_from_slice(&address);
    Some(mapped)
}
