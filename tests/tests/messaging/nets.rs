//! Pairs of nodes on each net that transfer machines may be over.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use lnet_admin::{Control, ControlOptions};
use lnet_control::server::Handler;
use lnet_core::limits::Limits;
use lnet_messaging::LnetTransport;
use lnet_messaging::lnet::portal_policy;
use lnet_messaging::transport::Transport;
use lnet_tests::netns::{Interface, NETNS_NODES, Namespace, Netns, Wiring, enter, require_privilege};
use lnet_tests::node::LND_TIMEOUT;
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, NodeConfig, XdpMode};
use lnet_wire::{Net, NetType, Nid};

use crate::common::Party;

/// The portal of the transfer machines.
pub(crate) const PORTAL: u8 = 34;
/// Event slots of a transfer machine.
pub(crate) const EVENT_SLOTS: u32 = 512;

/// What carries the messages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carrier {
    Rings,
    Sockets,
    Tcp,
}

/// Whether a test is to run; a panic says what is missing.
pub(crate) fn privileged() -> bool {
    require_privilege("transfer machines over veth", &NETNS_NODES)
}

/// The configuration of a node with an NI on each interface of a namespace, all on one net.
pub(crate) fn config_of(namespace: &Namespace, carrier: Carrier) -> NodeConfig {
    let named = |interface: &'_ Interface| (interface.ipv4, interface.name.clone());
    let interfaces: Vec<_> = namespace.interfaces().iter().map(named).collect();
    let interfaces: Vec<_> = interfaces.iter().map(|(ipv4, name)| (*ipv4, name.as_str())).collect();
    config_on(carrier, &interfaces)
}

/// The configuration of a node with these addresses and interfaces.
pub(crate) fn config_on(carrier: Carrier, interfaces: &[(Ipv4Addr, &str)]) -> NodeConfig {
    let ni = |(ipv4, name): &(Ipv4Addr, &str)| {
        let ni = NiConfig::new(nid(carrier, *ipv4), name);
        match carrier {
            Carrier::Rings => ni.mode(Some(XdpMode::Native)),
            Carrier::Sockets => ni.mode(Some(XdpMode::Socket)),
            Carrier::Tcp => ni,
        }
    };
    let limits = Limits { unlimited_events: EVENT_SLOTS, ..Limits::DEFAULT };
    let config = NodeConfig::new(interfaces.iter().map(ni).collect()).shards(2).lnd_timeout(LND_TIMEOUT);
    let frames = Some(config.frames_for(2, 4));
    config.frames(frames).policies(vec![(PORTAL, portal_policy())]).limits(limits)
}

fn nid(carrier: Carrier, address: Ipv4Addr) -> Nid {
    let net_type = match carrier {
        Carrier::Rings | Carrier::Sockets => NetType::XDP,
        Carrier::Tcp => NetType::TCP,
    };
    Nid::new_ip(Net::new(net_type, 0), address.into()).unwrap()
}

/// The address of a transfer machine on the first interface of a namespace.
pub(crate) fn address(namespace: &Namespace, carrier: Carrier, tmid: u16) -> String {
    format!("{}:12345:{PORTAL}:{tmid}", nid(carrier, namespace.interface().ipv4))
}

/// A node on all interfaces of a namespace.
pub(crate) fn start(namespace: &Namespace, config: &NodeConfig) -> Lnet {
    let lnet = enter(namespace, || Lnet::start(config).unwrap());
    lnet.open().unwrap();
    lnet
}

/// The lnet transport over a node.
pub(crate) fn transport(lnet: &Lnet) -> LnetTransport {
    LnetTransport::with_event_slots(lnet, EVENT_SLOTS)
}

/// Two nodes that a veth pair joins.
pub(crate) struct Nodes {
    pub(crate) carrier: Carrier,
    transports: [LnetTransport; 2],
    pub(crate) lnets: [Lnet; 2],
    // Behind the nodes, whose interfaces go with it.
    pub(crate) netns: Netns,
}

impl Nodes {
    pub(crate) fn start(carrier: Carrier, wiring: Wiring) -> Self {
        let netns = Netns::new(wiring);
        let lnets = [netns.a(), netns.b()].map(|namespace| start(namespace, &config_of(namespace, carrier)));
        Self { carrier, transports: lnets.each_ref().map(transport), lnets, netns }
    }

    /// A transfer machine on each.
    pub(crate) fn parties(&self) -> [Party; 2] {
        self.parties_by(7, LnetTransport::clone)
    }

    /// The transports, and the addresses of transfer machines on the first interfaces.
    pub(crate) fn ends(&self, tmids: [u16; 2]) -> [(Arc<dyn Transport>, String); 2] {
        let namespaces = [self.netns.a(), self.netns.b()];
        [0, 1].map(|at| {
            (self.transports[at].clone().shared(), address(namespaces[at], self.carrier, tmids[at]))
        })
    }

    /// The near node, or the far one.
    pub(crate) fn lnet(&self, at: usize) -> &Lnet {
        &self.lnets[at]
    }

    /// Has each node find all NIDs of the other.
    pub(crate) fn discover_each_other(&self) {
        for (lnet, other) in self.lnets.iter().zip([self.netns.b(), self.netns.a()]) {
            lnet.discover(nid(self.carrier, other.interface().ipv4), false).unwrap();
        }
    }

    /// The addresses that a transfer machine of the near node has by each of its rails.
    pub(crate) fn addresses_of_near(&self, tmid: u16) -> BTreeSet<String> {
        let interfaces = self.netns.a().interfaces().iter();
        interfaces
            .map(|interface| format!("{}:12345:{PORTAL}:{tmid}", nid(self.carrier, interface.ipv4)))
            .collect()
    }

    /// Messages that the near node has sent by each of its NIs.
    pub(crate) fn sent_by_near(&self) -> Vec<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let control = Control::new(&self.lnets[0], ControlOptions::default()).unwrap();
        let nets = runtime.block_on(control.nets()).unwrap();
        let nis = nets.iter().flat_map(|net| &net.nis).filter(|ni| !ni.nid.is_loopback());
        nis.map(|ni| ni.traffic.sent.put + ni.traffic.sent.get).collect()
    }

    /// A transfer machine on each with this identifier, which send by any rail.
    pub(crate) fn parties_over_any_rail(&self, tmid: u16) -> [Party; 2] {
        self.parties_by(tmid, |transport| transport.clone().over_any_rail())
    }

    fn parties_by(&self, tmid: u16, by: impl Fn(&LnetTransport) -> LnetTransport) -> [Party; 2] {
        let namespaces = [self.netns.a(), self.netns.b()];
        [0, 1].map(|at| {
            let transport = by(&self.transports[at]).shared();
            Party::started(&transport, &address(namespaces[at], self.carrier, tmid))
        })
    }
}

/// Runs a test over rings, over sockets, and over tcp.
pub(crate) fn on_each_net(test: impl Fn(&Nodes)) {
    on_nets(&[Carrier::Rings, Carrier::Sockets, Carrier::Tcp], test);
}

/// Runs a test over some of them.
pub(crate) fn on_nets(carriers: &[Carrier], test: impl Fn(&Nodes)) {
    if !privileged() {
        return;
    }
    for carrier in carriers.iter().copied() {
        eprintln!("{carrier:?}");
        test(&Nodes::start(carrier, Wiring::default()));
    }
}
