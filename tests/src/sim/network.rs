//! Streams between the drivers of lanes, and letters between those of a node.

use std::net::SocketAddr;

use lnet_tcp_proto::Ends;

use super::Hostility;
use super::driver::DriverConfig;
use super::node;
use super::plan::{Directions, happens};
use super::report::Fault;
use super::sock::{Letter, StreamEvent};
use super::strangers::Stranger;
use super::streams::{EndId, RETRY_NS, Seat, StreamStep};
use super::world::{Happening, Phase, World};

impl World {
    /// What drivers of a node have for each other.
    pub(super) fn carry_letters(&mut self, node: usize, letters: Vec<(u8, Letter)>) {
        for (to, letter) in letters {
            let lane = &mut self.nodes[node].lanes[usize::from(to)];
            lane.driver.sock().expect("letters are between drivers of the tcp LND").letters.push_back(letter);
            self.request_turn(node, usize::from(to), self.now + 500);
        }
    }

    /// What streams have for shards, and for later.
    pub(super) fn carry_streams(&mut self) {
        for (at, step) in std::mem::take(&mut self.streams.due) {
            self.at(at, Happening::Stream(step));
        }
        for (at, Seat { node, shard, .. }) in std::mem::take(&mut self.streams.woken) {
            if shard < self.nodes[node].lanes.len() {
                self.request_turn(node, shard, at);
            }
        }
    }

    /// Whether bytes get from an end to the other one.
    fn is_carried(&self, from: EndId) -> bool {
        let [from, to] = [from, from.other()].map(|end| self.streams.seat(end));
        // A stream stops in the middle of what is on it.
        if self.fabric.attack_of(from.node) == Some(Hostility::Halving) {
            return false;
        }
        self.fabric.carries(from.node, from.rail, Directions::Sent)
            && self.fabric.carries(to.node, to.rail, Directions::Received)
    }

    pub(super) fn step_stream(&mut self, step: StreamStep) {
        let (StreamStep::Request(end) | StreamStep::Flow(end) | StreamStep::Break(end)) = step;
        let is_carried = match step {
            StreamStep::Request(dialler) => self.is_carried(dialler),
            StreamStep::Flow(end) | StreamStep::Break(end) => self.is_carried(end.other()),
        };
        match step {
            StreamStep::Flow(end) => self.streams.flow(self.now, end, is_carried, &mut self.random),
            _ if !is_carried => self.at(self.now + RETRY_NS, Happening::Stream(step)),
            StreamStep::Request(dialler) => self.connect(dialler),
            StreamStep::Break(_) => self.streams.break_end(self.now, end, &mut self.random),
        }
        self.carry_streams();
    }

    /// The request of a dialler arrives at a node.
    fn connect(&mut self, dialler: EndId) {
        if !self.streams.is_open(dialler) {
            return;
        }
        let [from, to] = [dialler, dialler.other()].map(|end| self.streams.seat(end));
        let is_refused = self.phase == Phase::Active
            && happens(&mut self.random, self.plan.streams.refused_dials)
            && !self.plan.gentle;
        if self.streams.is_mute(dialler.other()) {
            if !self.fabric.attack.is_empty() {
                self.streams.accept(dialler, 0);
                self.tell_stream(from, StreamEvent::Dialled { end: dialler, is_connected: true });
            }
            return;
        }
        let is_connected = !is_refused && self.nodes[to.node].has_rail(to.rail);
        if is_connected {
            let serving = self.plan.serving[to.node][usize::from(to.rail.0)];
            let shard = usize::from(serving.share(self.random.below(serving.count() as usize) as u32).0);
            let end = self.streams.accept(dialler, shard);
            let port = 512 + self.random.below(512) as u16;
            let address = |seat: Seat| node::address(seat.node, seat.rail.0 as u8);
            let by_name = self.strangers.iter().find(|stranger| stranger.has_dialled(dialler));
            let remote = by_name.and_then(Stranger::own_address).unwrap_or_else(|| address(from));
            let remote = SocketAddr::new(remote, port);
            let ends = Ends { remote, local: address(to) };
            self.tell_stream(Seat { shard, ..to }, StreamEvent::Accepted { end, ends });
            let Self { streams, random, counts, now, .. } = self;
            streams.silence_new(*now, dialler, random, counts);
        } else {
            self.counts.add(Fault::DialRefused);
        }
        self.trace.say(|| format!("{from:?} to {to:?} is connected: {is_connected}"));
        self.tell_stream(from, StreamEvent::Dialled { end: dialler, is_connected });
    }

    fn tell_stream(&mut self, seat: Seat, event: StreamEvent) {
        let Seat { node, shard, .. } = seat;
        let driver = self.nodes[node].lanes[shard].driver.sock();
        driver.expect("streams are between drivers of the tcp LND").events.push_back(event);
        let at = self.now + self.plan.latency_ns;
        self.request_turn(node, shard, at);
    }

    /// A stream is cut, or stops.
    pub(super) fn harm_stream(&mut self, happening: Happening) {
        if self.phase != Phase::Active {
            return;
        }
        let Self { streams, random, counts, now, .. } = self;
        if happening == Happening::BreakStream {
            streams.break_any(*now, random, counts);
        } else {
            streams.silence_any(*now, random, counts);
        }
        self.carry_streams();
    }

    /// Each stream belongs to one connection, and the other way round; there are no more than are wanted.
    pub(super) fn check_streams(&mut self) {
        let peers = (self.nodes.len() - 1) * usize::from(self.plan.rails).pow(2);
        for node in 0..self.nodes.len() {
            let DriverConfig::Tcp(config) = &self.nodes[node].config else { return };
            // One more of each of the three types was being dialled when the last one was accepted. To close
            // it would end all others: its peer takes it for a break.
            let most = peers * (1 + 2 * usize::from(config.conns_per_peer) + 3);
            let mut sum = 0;
            for shard in 0..self.nodes[node].lanes.len() {
                let Some(driver) = self.nodes[node].lanes[shard].driver.sock() else { return };
                let connections = driver.sock.usage().connections as usize;
                let counts = [connections, driver.link_count(), self.streams.open_count(node, shard)];
                let is_one = counts == [connections; 3];
                self.ledger.expect(is_one, "streams are conserved", || {
                    format!("node {node}/{shard}: connections, links and streams are {counts:?}")
                });
                sum += connections;
            }
            self.ledger.expect(sum <= most, "no peer has too many connections", || {
                format!("node {node} has {sum} connections of {most}")
            });
        }
    }
}
