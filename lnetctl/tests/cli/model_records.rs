//! Records of a node in memory, as they are when it has just come to have what they are of.

use lnet_model::lnd::{NiFact, NiOption};
use lnet_model::ni::{Lnd, NiOptions};
use lnet_model::peer::peer_state;
use lnet_model::records::{
    NetRecord, NiHealth, NiRecord, NiStatus, PeerCredits, PeerHealth, PeerNiRecord, PeerRecord,
};
use lnet_model::udsp::UdspInfo;
use lnet_wire::{Net, Nid};

pub(crate) fn ni_record(
    nid: Nid,
    interface: Option<String>,
    is_chosen_by_nid: bool,
    options: NiOptions,
    cpts: Vec<u32>,
) -> NiRecord {
    let health_value = if nid.is_loopback() { 0 } else { 1000 };
    let has_distances = interface.as_deref() == Some("eth2");
    NiRecord {
        nid,
        status: NiStatus::Up,
        fsm_state: "CREATED".into(),
        interface,
        is_chosen_by_nid,
        traffic: Default::default(),
        health: NiHealth { health_value, ..NiHealth::default() },
        available_credits: options.get(NiOption::Credits),
        min_credits: options.get(NiOption::Credits).map(|credits| credits - 3),
        options,
        timeout_s: if options.lnd() == Some(Lnd::Tcp) { 50 } else { 49 },
        facts: match options.mode() {
            Some(_) => {
                let [queues, mtu_bytes] = [0, 1500].map(|number| Some(NiFact::Number(number)));
                vec![None, None, Some(NiFact::Text("socket".into())), None, queues, mtu_bytes]
            }
            None => Vec::new(),
        },
        cpts,
        udsp: UdspInfo::default(),
        numa_distance: has_distances.then_some(21),
        numa_distances: if has_distances { vec![10, 21] } else { Vec::new() },
    }
}

pub(crate) fn lo(shards: u32) -> NetRecord {
    let ni = ni_record(Nid::LO, None, false, NiOptions::default(), (0..shards).collect());
    NetRecord { net: Net::LO, fsm_state: "ACTIVE".into(), nis: vec![ni] }
}

/// A peer with these NIDs, the first of them primary.
pub(crate) fn peer(nids: &[&str], state: u32) -> PeerRecord {
    let ni = |nid: &&str| PeerNiRecord {
        nid: nid.parse().unwrap(),
        is_configured: state & peer_state::CONFIGURED != 0,
        is_claim: false,
        is_alive: None,
        fsm_state: "CONNECTED".into(),
        credits: PeerCredits {
            max_ni_tx_credits: 8,
            min_tx_credits: -2,
            refcount: 1,
            ..PeerCredits::default()
        },
        traffic: Default::default(),
        health: PeerHealth { health_value: 1000, ..PeerHealth::default() },
        udsp: UdspInfo::default(),
    };
    PeerRecord {
        primary_nid: nids[0].parse().unwrap(),
        multi_rail: state & peer_state::MULTI_RAIL != 0,
        state,
        is_gateway: false,
        fsm_state: "ACTIVE".into(),
        shared_nids: Vec::new(),
        nis: nids.iter().map(ni).collect(),
    }
}
