//! The XDP program as it should be: `steer` over tables in memory, and the counters it would count.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::net::IpAddr;

use lnet_io::netlink::Mac;
use lnet_wire::packet::{Endpoint, Located, Packet, Reason, endpoint, ethernet_address};
use lnet_wire::steer::{PORTALS, Policy, PolicyWord, QUEUES_MAX, SHARDS_MAX, Spread, slot_of};
use lnet_wire::verdict::{Tables, Verdict, steer};
use lnet_xdp::bpf::{Action, Counters, XdpProgram};
use rustix::fd::OwnedFd;

use super::random::Random;

/// A frame of which the program reaches only the linear part.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// The whole frame.
    pub frame: &'a [u8],
    /// Bytes that can be read.
    pub linear_bytes: usize,
}

impl Packet for Linear<'_> {
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.frame[..self.linear_bytes].load(offset)
    }

    fn has(&self, bytes: usize) -> bool {
        bytes <= self.frame.len()
    }
}

/// Tables, sockets and counters.
#[derive(Clone, Debug)]
pub struct Model {
    /// Shards of the node.
    pub shards: u32,
    mac: Option<Mac>,
    endpoints: HashSet<Endpoint>,
    policies: [PolicyWord; PORTALS],
    filled: HashSet<u32>,
    slots: BTreeMap<(u32, u32), u64>,
    reasons: BTreeMap<(Option<u32>, Reason), u64>,
}

impl Default for Model {
    /// The model of a program that has just been loaded.
    fn default() -> Self {
        Self {
            shards: 0,
            mac: None,
            endpoints: HashSet::new(),
            policies: [PolicyWord::default(); PORTALS],
            filled: HashSet::new(),
            slots: BTreeMap::new(),
            reasons: BTreeMap::new(),
        }
    }
}

impl Tables for Model {
    fn is_ours(&self, located: &Located) -> bool {
        self.mac.is_some_and(|mac| located.mac == ethernet_address(mac))
            && self.endpoints.contains(&located.destination)
    }

    fn policy(&self, portal: u8) -> PolicyWord {
        self.policies[usize::from(portal)]
    }

    fn shards(&self) -> u32 {
        self.shards
    }
}

impl Model {
    /// Sets the number of shards, here and in the program.
    ///
    /// # Panics
    /// When the program refuses, as all functions of this kind below.
    pub fn set_shards(&mut self, program: &mut XdpProgram, shards: u32) {
        program.set_shards(shards).expect("shards");
        self.shards = shards;
    }

    /// Sets the Ethernet address of the interface.
    ///
    /// # Panics
    /// When the program refuses.
    pub fn set_mac(&mut self, program: &mut XdpProgram, mac: Mac) {
        program.set_mac(mac).expect("Ethernet address");
        self.mac = Some(mac);
    }

    /// Sets whether an endpoint is ours.
    ///
    /// # Panics
    /// As above.
    pub fn set_endpoint(&mut self, program: &mut XdpProgram, (address, port): (IpAddr, u16), ours: bool) {
        if ours {
            program.add_endpoint(address, port).expect("endpoint");
            self.endpoints.insert(endpoint(address, port));
        } else {
            let was = program.remove_endpoint(address, port).expect("endpoint");
            assert_eq!(was, self.endpoints.remove(&endpoint(address, port)));
        }
    }

    /// Sets a portal's policy.
    ///
    /// # Panics
    /// As above.
    pub fn set_policy(&mut self, program: &mut XdpProgram, portal: u8, policy: Policy) {
        program.set_policy(portal, policy).expect("policy");
        self.policies[usize::from(portal)] = policy.pack().expect("policy");
    }

    /// Puts a socket into a slot, or none.
    ///
    /// # Panics
    /// As above.
    pub fn set_socket(&mut self, program: &mut XdpProgram, queue: u32, shard: u32, socket: Option<&OwnedFd>) {
        let slot = slot_of(queue, shard);
        match socket {
            Some(socket) => {
                program.set_socket(queue, shard, socket).expect("socket");
                self.filled.insert(slot);
            }
            None => {
                program.clear_socket(queue, shard).expect("socket");
                self.filled.remove(&slot);
            }
        }
    }

    /// What the program must answer for a frame, by the host's `steer`; counts it as the program must.
    pub fn run(&mut self, packet: &impl Packet, queue: u32) -> Action {
        match steer(packet, queue, self) {
            Verdict::Redirect { shard, .. } => {
                if self.filled.contains(&slot_of(queue, shard)) {
                    *self.slots.entry((queue, shard)).or_default() += 1;
                    return Action::Redirect;
                }
                self.count(queue, Reason::NoSocket);
            }
            Verdict::Pass(reason) => self.count(queue, reason),
        }
        Action::Pass
    }

    fn count(&mut self, queue: u32, reason: Reason) {
        let row = (queue < QUEUES_MAX).then_some(queue);
        *self.reasons.entry((row, reason)).or_default() += 1;
    }

    /// Compares every counter of the program with the model's.
    ///
    /// # Panics
    /// When one differs.
    pub fn assert_counters(&self, counters: &Counters) {
        let slots = counters.slots.iter().map(|count| ((count.queue, count.shard), count.frames));
        assert_same("(queue, shard)", &slots.collect(), &self.slots);
        let reasons = counters.reasons.iter().map(|count| ((count.queue, count.reason), count.frames));
        assert_same("(queue, reason)", &reasons.collect(), &self.reasons);
    }
}

fn assert_same<K: Ord + Copy + Debug>(what: &str, counted: &BTreeMap<K, u64>, expected: &BTreeMap<K, u64>) {
    let of = |map: &BTreeMap<K, u64>, key| map.get(key).copied().unwrap_or(0);
    let keys = counted.keys().chain(expected.keys());
    let differing: Vec<_> = keys
        .map(|key| (*key, of(counted, key), of(expected, key)))
        .filter(|(_, counted, expected)| counted != expected)
        .collect();
    assert!(differing.is_empty(), "frames per {what}, counted and expected: {differing:?}");
}

/// A policy of any kind.
pub fn any_policy(random: &mut Random) -> Policy {
    let shard = |random: &mut Random| random.below(SHARDS_MAX as usize) as u8;
    match random.below(5) {
        0 => Policy::Pin(shard(random)),
        1 => {
            let shift = random.below(64) as u8;
            let bits = 1 + random.below(64 - usize::from(shift)) as u8;
            Policy::MatchBits { shift, bits, spread: Spread::Hash }
        }
        2 => {
            let bits = 1 + random.below(3) as u8;
            let shift = random.below(65 - usize::from(bits)) as u8;
            let table = [(); 8].map(|()| shard(random));
            Policy::MatchBits { shift, bits, spread: Spread::Table(table) }
        }
        3 => Policy::Initiator,
        _ => Policy::Rotor,
    }
}
