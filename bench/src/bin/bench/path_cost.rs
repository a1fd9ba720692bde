//! What it costs to choose the path of a request, by the number of NIs at either end.
//!
//! A Put without ACK of an empty descriptor is bound, started, taken by an LND that does nothing, and ends;
//! its event is polled. That is measured with a source that the request names and a peer of its net, so that
//! there is nothing to choose, and without, also to a peer behind gateways. What a Put costs more then is
//! the choice, and the look-ups of other NIs' credits that belong to it. A figure is the least of some
//! rounds: what a busy machine adds is no part of it.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::ensure;
use clap::Args;
use lnet_bench::figure::Figure;
use lnet_bench::machine::Machine;
use lnet_bench::options::Report;
use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::lnd::{NiId, Status, Uplink};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_core::topology::{GatewayNi, HEALTH_MAX, LocalNi, NetRoutes, PeerMap, PeerNid, PeerView, Topology};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_wire::{Net, NetType, Nid, ProcessId};
use serde::Serialize;

const ROUNDS: u32 = 30;

/// Routes of the node whose peer is behind gateways, as many to each net.
const ROUTES: u32 = 10_000;
const GATEWAYS: u8 = 8;

/// Measures what it costs to choose a path, with 1, 4 and 16 NIs at either end, and with 10,000 routes.
#[derive(Debug, Args)]
#[command(after_help = "Example: cargo xtask bench --paths")]
pub(crate) struct Cli {
    #[command(flatten)]
    report: Report,
}

/// Where the peer is, and whether the node knows it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Peer {
    NotKnown,
    /// By as many NIs as the node has.
    Discovered,
    /// On one of many nets, each of which some gateways lead to.
    BehindGateways,
}

impl Peer {
    /// Words of the table for a peer.
    const fn words(self) -> &'static str {
        match self {
            Self::NotKnown => "peer not known",
            Self::Discovered => "peer discovered",
            Self::BehindGateways => "10,000 routes",
        }
    }
}

struct Source {
    shard: Shard,
    events: EqHandle,
    nis: u16,
    target: ProcessId,
    self_nid: Option<Nid>,
}

fn nid(host: u8, ni: u8) -> anyhow::Result<Nid> {
    Ok(Nid::new_ip(Net::TCP, [10, 0, host, ni].into())?)
}

/// Routes to nets by the same gateways, and one of the nets.
fn routes() -> anyhow::Result<(NetRoutes, Net)> {
    let net = |number: u32| Net::new(NetType::TCP, number as u16 + 1);
    let gateways = (1..=GATEWAYS).map(|ni| nid(3, ni)).collect::<anyhow::Result<Vec<_>>>()?;
    let ni = |number: u32| {
        let nid = gateways[(number % u32::from(GATEWAYS)) as usize];
        let ni = GatewayNi {
            nid,
            gateway: nid,
            awaits_link: false,
            priority: 0,
            hops: 1,
            health: HEALTH_MAX,
            ni_priority: 0,
        };
        (net(number / u32::from(GATEWAYS)), ni)
    };
    let nis = (0..ROUTES).map(ni).collect();
    Ok((NetRoutes::new(nis, gateways), net(ROUTES / u32::from(GATEWAYS) / 2)))
}

impl Source {
    /// A shard with so many NIs on a net, and a peer there or behind gateways.
    fn new(nis: u8, peer: Peer, names_source: bool) -> anyhow::Result<Self> {
        let local = |ni| Ok(LocalNi::new(nid(1, ni)?, 256, 8, Duration::from_secs(50)));
        let locals = (1..=nis).map(local).collect::<anyhow::Result<Vec<_>>>()?;
        let mut topology = Topology::new(locals);
        let mut target = nid(2, 1)?;
        if peer == Peer::BehindGateways && !names_source {
            let (routes, net) = routes()?;
            topology = topology.with_net_routes(Some(Arc::new(routes)));
            target = Nid::new_ip(net, [10, 0, 9, 9].into())?;
        }
        if peer == Peer::Discovered {
            let peers = (1..=nis).map(|ni| Ok(PeerNid::new(nid(2, ni)?, HEALTH_MAX)));
            let mut map = PeerMap::default();
            PeerView::new(true, peers.collect::<anyhow::Result<_>>()?)
                .into_iter()
                .for_each(|view| map.insert(view));
            topology = topology.with_peers(map);
        }
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            shard_count: 1,
            seal_key: [1, 2],
            pid: ProcessId::LUSTRE_PID,
            limits: Limits { nis: 32, ..Limits::DEFAULT },
            topology: Arc::new(topology),
            hash_seed: 7,
        });
        let events = shard.create_event_queue(64)?;
        let self_nid = if names_source { Some(nid(1, 1)?) } else { None };
        Ok(Self { shard, events, nis: nis.into(), target: ProcessId::lustre(target), self_nid })
    }

    fn put(&mut self) -> anyhow::Result<()> {
        let now = Instant(0);
        let md = self.shard.bind(&MdSpec::new(0, Threshold::Count(1), MdOptions::NONE, self.events))?;
        let put = PutRequest {
            md,
            part: None,
            ack: false,
            self_nid: self.self_nid,
            target: black_box(self.target),
            portal: 4,
            match_bits: 1,
            offset: 0,
            hdr_data: 0,
        };
        self.shard.put(now, &put)?;
        for ni in (0..self.nis).map(NiId) {
            while let Some(lent) = self.shard.poll_transmit(now, ni) {
                let tx = lent.transmit.tx;
                self.shard.sent(now, tx, Status::Ok);
            }
        }
        ensure!(self.shard.poll_event(self.events).is_some(), "a Put has not ended");
        Ok(())
    }

    /// Nanoseconds of a Put, in the mean of so many.
    fn cost_ns(&mut self, puts: u32) -> anyhow::Result<f64> {
        let begun = Clock::now();
        for _ in 0..puts {
            self.put()?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(puts))
    }
}

/// Costs of a Put, in nanoseconds.
#[derive(Serialize)]
struct Row {
    nis: u8,
    peer: Peer,
    /// With a source that is given, and with one that is chosen.
    given_ns: Figure,
    chosen_ns: Figure,
    /// Addition of the choice, in each round.
    choice_ns: Figure,
}

#[derive(Serialize)]
struct Document {
    machine: Machine,
    rows: Vec<Row>,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { report }: Cli) -> anyhow::Result<()> {
    let puts = report.rounds(20_000) as u32;
    let mut cases = Vec::new();
    for (nis, peer) in [
        (1, Peer::NotKnown),
        (1, Peer::Discovered),
        (4, Peer::Discovered),
        (16, Peer::Discovered),
        (1, Peer::BehindGateways),
    ] {
        let [given_ns, chosen_ns, choice_ns] = [(); 3].map(|()| Figure::default());
        let sources = [Source::new(nis, peer, true)?, Source::new(nis, peer, false)?];
        cases.push((sources, Row { nis, peer, given_ns, chosen_ns, choice_ns }));
    }
    // Sources take turns, so that noise of the machine meets all.
    for _ in 0..ROUNDS {
        for ([given, chosen], row) in &mut cases {
            let (given_ns, chosen_ns) = (given.cost_ns(puts)?, chosen.cost_ns(puts)?);
            row.given_ns.add(given_ns);
            row.chosen_ns.add(chosen_ns);
            row.choice_ns.add(chosen_ns - given_ns);
        }
    }
    let rows = cases.into_iter().map(|(_, row)| row).collect();
    let document = Document { machine: Machine::this(), rows };
    report.tell("paths.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let mut text = format!(
        "{}\n\n{:<28}{:>24}{:>24}{:>24}\n",
        document.machine, "NIs at either end", "given, ns", "chosen, ns", "choice, ns"
    );
    for Row { nis, peer, given_ns, chosen_ns, choice_ns } in &document.rows {
        let name = format!("{nis}, {}", peer.words());
        let [given, chosen, choice] = [given_ns, chosen_ns, choice_ns].map(|of| of.cells(0));
        let _ = writeln!(text, "{name:<28}{given:>24}{chosen:>24}{choice:>24}");
    }
    text + "\nmedians of the rounds, and their ranges"
}
