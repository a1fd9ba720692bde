//! The blocks `route`, `routing` and `buffers`.

use lnet_model::pattern::{self, integer};
use lnet_model::peer::peer_state;
use lnet_model::pool::PoolKind;
use lnet_model::request::Change;
use lnet_model::route::RouteSpec;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;

use super::Reader;
use super::values::get;
use crate::document::tree::{MapEntry, Marked, Position, Value};
use crate::document::{Mode, RouteFilter};

/// Keys of a route; the last ones only tell.
const KEYS: [&str; 9] =
    ["net", "gateway", "hop", "priority", "seq_no", "detail", "state", "type", "notify_time"];
/// Most routes of one document.
const ROUTES_MAX: usize = 1 << 16;

/// The gateways of a route, as a document has them.
fn gateways(text: &str) -> Result<Vec<Nid>, Refusal> {
    pattern::nids(text)
        .map_err(|error| Refusal::new(error.errno, format!("Unable to parse nidlist: {error}")))
}

impl Reader {
    /// Routes to a net, one for each gateway.
    pub(super) fn route(&mut self, position: Position, entries: &[MapEntry]) {
        let errors = self.errors.len();
        let RouteFilter { net, gateways, hops, priority } = self.route_filter(entries);
        for key in ["net", "gateway"] {
            if get(entries, key).is_none() {
                // LNet's number, another one than its `route add` has.
                self.error_of(position, Errno::NODEV, format!("a route without '{key}'"));
            }
        }
        let (Some(net), Some(gateways)) = (net, gateways) else { return };
        if self.errors.len() > errors {
            return;
        }
        self.route_count += gateways.len();
        if self.route_count > ROUTES_MAX {
            return self.error_of(
                position,
                Errno::TOOBIG,
                format!("at most {ROUTES_MAX} routes are expected"),
            );
        }
        for gateway in gateways {
            let (hops, priority) = (hops.flatten(), priority.unwrap_or(0));
            let spec = RouteSpec { hops, priority, ..RouteSpec::new(net, gateway) };
            let said = format!("hop {}, priority {priority}", spec.shown_hops());
            if self.mode == Mode::Delete {
                self.change(position, "route", Change::DeleteRoute { net, gateway });
            } else if self.is_new(position, format_args!("the route to {net} by {gateway}"), said) {
                self.change(position, "route", Change::AddRoute(spec));
            }
        }
    }

    /// Reads what an item says of a route.
    pub(super) fn route_filter(&mut self, entries: &[MapEntry]) -> RouteFilter {
        self.known_keys(entries, "route", &KEYS);
        RouteFilter {
            net: self.pattern_of(entries, "net", "a net", pattern::remote_net),
            gateways: self.pattern_of(entries, "gateway", "nids", gateways),
            hops: self.pattern_of(entries, "hop", "a number from 1 to 255", pattern::hops),
            priority: self.pattern_of(entries, "priority", "a number from 0", pattern::route_priority),
        }
    }

    /// Finds the gateways that the routes of a document have, wherever these stand.
    pub(super) fn find_gateways(&mut self, blocks: &[MapEntry]) {
        let Some(Value::Sequence(items)) = get(blocks, "route").map(|block| &block.value) else { return };
        for item in items {
            let Value::Map(entries) = &item.value else { continue };
            if let Some(Value::Scalar { text, .. }) = get(entries, "gateway").map(|value| &value.value)
                && self.gateways.len() < ROUTES_MAX
            {
                self.gateways.extend(pattern::nids(text).unwrap_or_default());
            }
        }
    }

    /// Whether a document only tells of a peer: of one that traffic has found, or its routes. LNet's exports
    /// have the gateways among the peers, and those that a user has made are told apart by their state.
    pub(super) fn only_tells(&self, primary_nid: Nid, nids: &[Nid], state: Option<u32>) -> bool {
        match state {
            Some(state) => state & peer_state::CONFIGURED == 0,
            None => [primary_nid].iter().chain(nids).any(|nid| self.gateways.contains(nid)),
        }
    }

    /// Whether this node is a router: a map, or the list that shows have.
    pub(super) fn routing_block(&mut self, block: &Marked) {
        let items: Vec<_> = match &block.value {
            Value::Sequence(_) => {
                self.maps(block, "routing").into_iter().map(|(_, entries)| entries).collect()
            }
            _ => self.map(block, "routing").into_iter().collect(),
        };
        for entries in items {
            // Pools only tell: `buffers` has their sizes.
            let pools = entries.iter().filter(|entry| entry.key.starts_with("cpt["));
            let known: Vec<_> = pools.map(|entry| entry.key.as_str()).chain(["enable"]).collect();
            self.known_keys(entries, "routing", &known);
            let Some(value) = get(entries, "enable") else { continue };
            let Some(on) = self.switch(value, "enable") else { continue };
            let on = on && self.mode == Mode::Add;
            if self.is_new(value.position, "routing", if on { "on" } else { "off" }) {
                self.change(value.position, "routing", Change::SetRouting { on });
            }
        }
    }

    /// Whether a switch is on, or about to be (3), or off, or about to be (2).
    fn switch(&mut self, value: &Marked, key: &str) -> Option<bool> {
        let text = self.text(value, key, "0 or 1")?;
        let is_one_of = |words: [&str; 3]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match integer(text) {
            Some(0 | 2) => return Some(false),
            Some(1 | 3) => return Some(true),
            _ if is_one_of(["false", "no", "off"]) => return Some(false),
            _ if is_one_of(["true", "yes", "on"]) => return Some(true),
            _ => self.wrong(value, key, "0 or 1"),
        }
        None
    }

    /// The sizes of the pools of a router. To be deleted they say nothing.
    pub(super) fn buffers_block(&mut self, block: &Marked) {
        let Some(entries) = self.map(block, "buffers").filter(|_| self.mode == Mode::Add) else { return };
        self.known_keys(entries, "buffers", PoolKind::NAMES);
        for pool in PoolKind::ALL {
            let Some(size) = get(entries, pool.name()) else { continue };
            if let Some(buffer_count) = self.integer_of(entries, pool.name(), 0..=i32::MAX.into()) {
                self.change(size.position, "buffers", Change::SetPool { pool, buffer_count });
            }
        }
    }
}
