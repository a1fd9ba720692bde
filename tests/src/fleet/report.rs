//! What a run of a fleet has come to: a table, and a plot of how it converges.

use std::fmt;
use std::path::Path;

use plotters::prelude::*;

use super::Fleet;

/// A moment of a run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Simulated seconds.
    pub seconds: f64,
    /// Pairs of nodes that talk and know each other as they are, of all pairs that talk.
    pub converged: f64,
}

/// What a run has come to.
#[derive(Clone, Default, Debug)]
pub struct FleetReport {
    /// Nodes.
    pub nodes: u32,
    /// Pairs of nodes that talk.
    pub pairs: u64,
    /// When all of them knew each other for the first time, in simulated seconds.
    pub converged_s: Option<f64>,
    /// Pings of discovery.
    pub pings: u64,
    /// Pushes of discovery.
    pub pushes: u64,
    /// Bytes of both.
    pub discovery_bytes: u64,
    /// Recovery pings.
    pub recovery_pings: u64,
    /// Puts that were started.
    pub puts: u64,
    /// Puts that were acknowledged.
    pub acked: u64,
    /// Puts that failed: they may not have arrived.
    pub failed: u64,
    /// Failed messages that were lost by as many paths as are tried, and may have come through by another
    /// one.
    pub given_up: u64,
    /// Pings of one node to another beside hostile ones that were answered.
    pub answered: u64,
    /// Messages that were sent again by another path.
    pub resends: u64,
    /// Pings and pushes in the last tenth of the run, when nothing changes any more.
    pub late_traffic: u64,
    /// Tries of messages that were lost, and that transports have made again.
    pub retransmissions: u64,
    /// Nodes that have begun anew.
    pub restarts: u64,
    /// Peers that nodes have in the end.
    pub peers: u64,
    /// Bytes that a peer takes, as the allocator counts them: of its node's table, and of the snapshot that
    /// shards share.
    pub peer_bytes: f64,
    /// Bytes that the NIDs of a peer take in each shard, as the allocator counts them.
    pub shard_bytes: f64,
    /// Pings and pushes to gateways.
    pub gateway_checks: u64,
    /// Messages that routers have sent on.
    pub forwarded: u64,
    /// Messages that routers have dropped.
    pub dropped_at_routers: u64,
    /// Dropped messages that would have gone round.
    pub looped: u64,
    /// Messages that went to routers which were down.
    pub lost_at_routers: u64,
    /// Most routers that a Put has met.
    pub hops_max: u32,
    /// How long nodes that used a router went on to send to it after its death: half of them at most, 99 of a
    /// hundred, all.
    pub left_s: [f64; 3],
    /// Routes of all nodes.
    pub routes: u64,
    /// Routes that are up in the end.
    pub routes_up: u64,
    /// Most routes that were down at once.
    pub routes_down_max: u64,
    /// How long after the last router had returned all routes were up again.
    pub routes_back_s: Option<f64>,
    /// When something fails, from and to, in seconds.
    pub faults: Vec<(f64, f64)>,
    /// How it went.
    pub samples: Vec<Sample>,
    /// What a checker has found.
    pub violations: Vec<String>,
}

impl fmt::Display for FleetReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let converged =
            self.converged_s.map_or("not reached".to_owned(), |seconds| format!("{seconds:.3} s"));
        let per_node = |count: u64| count as f64 / f64::from(self.nodes.max(1));
        writeln!(to, "{:<34}{:>14}", "nodes", self.nodes)?;
        writeln!(to, "{:<34}{:>14}", "pairs that talk", self.pairs)?;
        writeln!(to, "{:<34}{converged:>14}", "all peers up to date after")?;
        writeln!(to, "{:<34}{:>14}   {:.1} a node", "discovery pings", self.pings, per_node(self.pings))?;
        writeln!(to, "{:<34}{:>14}   {:.1} a node", "discovery pushes", self.pushes, per_node(self.pushes))?;
        writeln!(to, "{:<34}{:>14}", "discovery bytes", self.discovery_bytes)?;
        writeln!(to, "{:<34}{:>14}", "recovery pings", self.recovery_pings)?;
        writeln!(to, "{:<34}{:>14}", "pings and pushes in the last tenth", self.late_traffic)?;
        writeln!(to, "{:<34}{:>14}", "puts", self.puts)?;
        writeln!(to, "{:<34}{:>14}", "acknowledged", self.acked)?;
        writeln!(to, "{:<34}{:>14}", "failed", self.failed)?;
        writeln!(to, "{:<34}{:>14}", "of them after all tries", self.given_up)?;
        writeln!(to, "{:<34}{:>14}", "sent again by another path", self.resends)?;
        writeln!(to, "{:<34}{:>14}", "tries lost and made again", self.retransmissions)?;
        writeln!(to, "{:<34}{:>14}", "nodes that began anew", self.restarts)?;
        writeln!(
            to,
            "{:<34}{:>14}   {:.1} a node",
            "peers known in the end",
            self.peers,
            per_node(self.peers)
        )?;
        if self.routes > 0 {
            let [half, most, all] = self.left_s;
            let back = self.routes_back_s.map_or("-".to_owned(), |seconds| format!("{seconds:.3} s"));
            writeln!(to, "{:<34}{:>14}", "messages forwarded", self.forwarded)?;
            writeln!(to, "{:<34}{:>14}", "dropped by routers", self.dropped_at_routers)?;
            writeln!(to, "{:<34}{:>14}", "of them in loops", self.looped)?;
            writeln!(to, "{:<34}{:>14}", "most routers that a put has met", self.hops_max)?;
            writeln!(to, "{:<34}{:>14}", "tries lost at routers", self.lost_at_routers)?;
            writeln!(
                to,
                "{:<34}{half:>12.3} s   99 of 100: {most:.3} s, all: {all:.3} s",
                "half have left a dead router after"
            )?;
            writeln!(
                to,
                "{:<34}{:>14}   up: {}, down at once: {}",
                "routes", self.routes, self.routes_up, self.routes_down_max
            )?;
            writeln!(to, "{:<34}{back:>14}", "all routes are up again after")?;
            writeln!(to, "{:<34}{:>14}", "pings and pushes to gateways", self.gateway_checks)?;
        }
        writeln!(to, "{:<34}{:>14.0}", "bytes of a peer, measured", self.peer_bytes)?;
        write!(to, "{:<34}{:>14.0}", "and of its nids in each shard", self.shard_bytes)
    }
}

impl FleetReport {
    /// The report of a fleet whose run begins.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let faults = fleet.faults.iter().map(|fault| (fault.from_s, fault.to_s)).collect();
        Self { nodes: fleet.node_count(), faults, ..Self::default() }
    }

    /// Draws how the nodes came to know each other, over time, as SVG.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn plot(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let end = self.samples.last().map_or(1.0, |sample| sample.seconds).max(0.1);
        let area = SVGBackend::new(path, (900, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("{} nodes that discover each other", self.nodes), ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..end, 0.0..100.0)?;
        chart.configure_mesh().x_desc("seconds").y_desc("pairs up to date, percent").draw()?;
        // When something fails the ground is grey.
        let grey = RGBColor(225, 225, 225).filled();
        let dark = |(from, to): &(f64, f64)| {
            Rectangle::new([(*from, 0.0), (to.max(from + end / 400.0).min(end), 100.0)], grey)
        };
        chart.draw_series(self.faults.iter().filter(|(from, _)| *from < end).map(dark))?;
        let points = self.samples.iter().map(|sample| (sample.seconds, sample.converged * 100.0));
        chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
        area.present()?;
        Ok(())
    }
}
