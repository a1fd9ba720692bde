//! Tables that LNet's kernel module has as parameters, and that scripts read: `nis`, `peers`, `stats` and
//! others.
//!
//! Invariants: heads, columns and their widths are those of LNet `router_proc.c`. A local NI has one line,
//! with the sums of its CPTs; what this node does not keep has the value of a kernel node that does not
//! either.

use std::fmt::Write;

use lnet_control::client::{Client, ClientError};
use lnet_model::lnd::NiOption;
use lnet_model::pool::PoolKind;
use lnet_model::records::{NetRecord, PeerRecord, RouteRecord, RoutingRecord, Statistics};

/// A table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ParamTable {
    Buffers,
    Nis,
    Peers,
    Routers,
    Routes,
    Stats,
}

impl ParamTable {
    pub(crate) const ALL: [Self; 6] =
        [Self::Buffers, Self::Nis, Self::Peers, Self::Routers, Self::Routes, Self::Stats];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Buffers => "buffers",
            Self::Nis => "nis",
            Self::Peers => "peers",
            Self::Routers => "routers",
            Self::Routes => "routes",
            Self::Stats => "stats",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// The lines of the table, as the node is now.
    pub(crate) fn text(self, client: &mut Client) -> Result<String, ClientError> {
        Ok(match self {
            Self::Buffers => buffers(&client.routing()?),
            Self::Nis => nis(&client.nets()?),
            Self::Peers => peers(&client.peers()?),
            Self::Routers => routers(&client.peers()?, &client.routes()?),
            Self::Routes => routes(&client.routing()?, &client.routes()?),
            Self::Stats => stats(&client.statistics()?),
        })
    }
}

/// A head, and a line for each item.
fn lines<T>(
    head: String,
    items: impl IntoIterator<Item = T>,
    mut line: impl FnMut(&mut String, T),
) -> String {
    let mut text = head + "\n";
    for item in items {
        line(&mut text, item);
        text.push('\n');
    }
    text
}

fn buffers(routing: &RoutingRecord) -> String {
    let head = format!("{:>5} {:>5} {:>7} {:>7}", "pages", "count", "credits", "min");
    let pools = PoolKind::ALL.into_iter().flat_map(|kind| routing.cpts.iter().map(move |cpt| (kind, cpt)));
    lines(head, pools, |text, (kind, cpt)| {
        let (pages, pool) = (kind.page_count(), &cpt[kind as usize]);
        let (count, credits, min) = (pool.buffer_count, pool.credits, pool.min_credits);
        let _ = write!(text, "{pages:>5} {count:>5} {credits:>7} {min:>7}");
    })
}

fn nis(nets: &[NetRecord]) -> String {
    let head = format!(
        "{:<24} {:>6} {:>5} {:>4} {:>4} {:>4} {:>5} {:>5} {:>5}",
        "nid", "status", "alive", "refs", "peer", "rtr", "max", "tx", "min"
    );
    lines(head, nets.iter().flat_map(|net| &net.nis), |text, ni| {
        let option = |option| ni.options.get(option).unwrap_or_default();
        let (nid, status, max) = (ni.nid.to_string(), ni.status.name(), option(NiOption::Credits));
        let (peer, router) = (option(NiOption::PeerCredits), option(NiOption::PeerBufferCredits));
        let [free, min] = [ni.available_credits, ni.min_credits].map(|credits| credits.unwrap_or(max));
        // The node itself, and each message under way by the NI.
        let refs = 1 + (max - free).max(0);
        let _ = write!(
            text,
            "{nid:<24} {status:>6} {:>5} {refs:>4} {peer:>4} {router:>4} {max:>5} {free:>5} {min:>5}",
            0
        );
    })
}

/// The word for whether a gateway's NI is alive; it is not tracked of others.
const fn alive(is_alive: Option<bool>) -> &'static str {
    match is_alive {
        None => "NA",
        Some(true) => "up",
        Some(false) => "down",
    }
}

fn peers(peers: &[PeerRecord]) -> String {
    let head = format!(
        "{:<24} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} queue",
        "nid", "refs", "state", "last", "max", "rtr", "min", "tx", "min"
    );
    lines(head, peers.iter().flat_map(|peer| &peer.nis), |text, ni| {
        let (nid, state, credits) = (ni.nid.to_string(), alive(ni.is_alive), &ni.credits);
        let (refs, max) = (credits.refcount, credits.max_ni_tx_credits);
        let (router, router_min) = (credits.available_rtr_credits, credits.min_rtr_credits);
        let (free, min) = (credits.available_tx_credits, credits.min_tx_credits);
        let _ = write!(
            text,
            "{nid:<24} {refs:>4} {state:>5} {:>5} {max:>5} {router:>5} {router_min:>5} {free:>5} {min:>5} {}",
            -1, credits.tx_queue_bytes
        );
    })
}

fn routers(peers: &[PeerRecord], routes: &[RouteRecord]) -> String {
    let head = format!("{:<4} {:>7} {:>5} router", "ref", "rtr_ref", "alive");
    lines(head, peers.iter().filter(|peer| peer.is_gateway), |text, peer| {
        let refs: u64 = peer.nis.iter().map(|ni| ni.credits.refcount).sum();
        let is_by = |route: &&RouteRecord| peer.nis.iter().any(|ni| ni.nid == route.spec.gateway);
        let routes = routes.iter().filter(is_by).count();
        let is_alive = peer.nis.iter().any(|ni| ni.is_alive == Some(true));
        let (state, nid) = (alive(Some(is_alive)), peer.primary_nid);
        let _ = write!(text, "{refs:<4} {routes:>7} {state:>5} {nid}");
    })
}

fn routes(routing: &RoutingRecord, routes: &[RouteRecord]) -> String {
    let state = if routing.state.is_to_be_on() { "enabled" } else { "disabled" };
    let columns = format!("{:<8} {:>4} {:>8} {:>7} router", "net", "hops", "priority", "state");
    lines(format!("Routing {state}\n{columns}"), routes, |text, RouteRecord { spec, state, .. }| {
        let (net, hops, priority, state) =
            (spec.net.to_string(), spec.shown_hops(), spec.priority, state.name());
        let _ = write!(text, "{net:<8} {hops:>4} {priority:>8} {state:>7} {}", spec.gateway);
    })
}

fn stats(of: &Statistics) -> String {
    let numbers = [
        of.msgs_alloc,
        of.msgs_max,
        of.errors,
        of.send_count,
        of.recv_count,
        of.route_count,
        of.drop_count,
        of.send_length,
        of.recv_length,
        of.route_length,
        of.drop_length,
    ];
    numbers.map(|number| number.to_string()).join(" ") + "\n"
}
