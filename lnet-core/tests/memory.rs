//! What an idle peer costs in memory.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::node::{
    Action, NetOptions, NiSpec, Node, NodeChange, NodeConfig, Report, Request, peer_state,
};
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{NetType, Nid, ProcessId};

const NOW: Instant = Instant(1);
const RAILS: [u64; 2] = [0, 1];

/// The NID of a host on a rail.
fn nid(rail: u64, host: u64) -> Nid {
    Nid::from_small(2 << 48 | rail << 32 | (0x0A00_0001 + host)).unwrap()
}

/// Ping information of a host: its NIDs on both rails.
fn told(host: u64) -> Vec<u8> {
    let features = Features::NI_STATUS.with(Features::MULTI_RAIL).with(Features::DISCOVERY);
    let told = RAILS.map(|rail| PingNi { nid: nid(rail, host), status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(told).unwrap()];
    ping::write(&mut bytes, features, ProcessId::LUSTRE_PID, 7, told).unwrap();
    bytes
}

/// Has a node do what it wants done: its NIs open, who is pushed to acknowledges, a host that is pinged
/// answers, all at once.
fn settle(host: u64, node: &mut Node<()>, shards: &mut [Shard]) {
    loop {
        if let Some(snapshot) = node.poll_snapshot() {
            for shard in &mut *shards {
                shard.update(NOW, Arc::clone(&snapshot));
                node.handle_report(NOW, Report::Confirmed(shard.confirmation()));
            }
        }
        match node.poll_action() {
            Some(Action::Open { ni, .. }) => node.handle_report(NOW, Report::Opened { ni, result: Ok(()) }),
            Some(Action::Push { ping, .. }) => node.handle_report(NOW, Report::Answered { ping, bytes: &[] }),
            Some(Action::Ping { ping, .. }) => {
                node.handle_report(NOW, Report::Answered { ping, bytes: &told(host) });
            }
            Some(_) => {}
            None => break,
        }
    }
}

fn shard(peers: u32) -> Shard {
    Shard::new(ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [1, 2],
        pid: ProcessId::LUSTRE_PID,
        limits: Limits { peers, ..Limits::DEFAULT },
        topology: Arc::new(Topology::new(Vec::new())),
        hash_seed: 1,
    })
}

/// A node, and the shard that has its snapshots.
fn start() -> (Node<()>, Vec<Shard>) {
    let config = NodeConfig { peers_max: 1 << 20, ..NodeConfig::new(1, 4, &[NetType::TCP]) };
    let mut node = Node::new(config);
    let mut shards = vec![shard(64)];
    let add = |rail| {
        let options = NetOptions { lnd_timeout: Duration::from_secs(5), ..NetOptions::default() };
        NodeChange::AddNi(NiSpec { nid: nid(rail, 0), interface: format!("eth{rail}"), options, lnd: () })
    };
    node.handle_request(NOW, Request::batch(RAILS.map(add).to_vec())).unwrap();
    settle(0, &mut node, &mut shards);
    (node, shards)
}

/// Peers of two NIDs each become known as they are, and are told of this node.
fn meet(node: &mut Node<()>, shards: &mut [Shard], hosts: std::ops::Range<u64>) {
    for host in hosts {
        let bytes = told(host);
        let from = nid(host % 2, host);
        node.handle_report(NOW, Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() });
        settle(host, node, shards);
    }
}

/// Room for a NID in a shard.
fn slot_bytes() -> i64 {
    let of = |peers| {
        let mut made = None;
        allocation_counter::measure(|| made = Some(shard(peers))).bytes_current
    };
    (of(8192) - of(4096)) / 4096
}

/// What a peer with two NIDs costs, that was discovered and is idle: once in its node, for the table and the
/// snapshot that all shards have, and once in each shard that it has had traffic with.
#[test]
fn an_idle_discovered_peer_of_two_nids_takes_no_more_than_a_kibibyte_a_shard() {
    const PEERS: u64 = 4096;
    let (mut node, mut shards) = start();
    meet(&mut node, &mut shards, 1..1 + PEERS);
    let more = 1 + PEERS..1 + 2 * PEERS;
    let node_bytes =
        allocation_counter::measure(|| meet(&mut node, &mut shards, more)).bytes_current / PEERS as i64;
    let known = peer_state::MULTI_RAIL | peer_state::DISCOVERED | peer_state::NIDS_UP_TO_DATE;
    assert_eq!(node.peers().filter(|peer| peer.nis.len() == 2 && peer.is(known)).count(), 2 * PEERS as usize);
    let shard_bytes = slot_bytes() * RAILS.len() as i64;
    println!("{node_bytes} bytes of a node, {shard_bytes} of each of its shards");
    assert!(node_bytes > 300 && shard_bytes > 300, "{node_bytes}, {shard_bytes}: too little to be all");
    assert!(node_bytes <= 1024, "{node_bytes} bytes of a node");
    assert!(shard_bytes <= 1024, "{shard_bytes} bytes of each of its shards");
}
