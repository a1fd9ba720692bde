//! The blocks `route`, `routing` and `buffers`.

use lnet_model::pool::PoolKind;
use lnet_model::records::{PoolRecord, RouteRecord, RoutingRecord};
use lnet_wire::{Net, Nid};
use serde_json::{Value, json};

use super::{Detail, Map, block, fields, one, put, text};

/// Which routes are meant: those that have all that is given.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RouteFilter {
    /// Net that they lead to.
    pub net: Option<Net>,
    /// NIDs of gateways, one of which is theirs.
    pub gateways: Option<Vec<Nid>>,
    /// Number of hops, which may be the one that is not said.
    pub hops: Option<Option<u8>>,
    /// Priority that they have.
    pub priority: Option<u32>,
}

impl RouteFilter {
    /// Picks the routes that are meant.
    pub fn of<'a>(&self, routes: &'a [RouteRecord]) -> impl Iterator<Item = &'a RouteRecord> {
        routes.iter().filter(move |record| {
            let spec = &record.spec;
            self.net.is_none_or(|net| spec.net == net)
                && self.gateways.as_ref().is_none_or(|gateways| gateways.contains(&spec.gateway))
                && self.hops.is_none_or(|hops| spec.hops == hops)
                && self.priority.is_none_or(|priority| spec.priority == priority)
        })
    }
}

/// The block `route`; nothing where there are no routes.
#[must_use]
pub fn routes(routes: &[RouteRecord], detail: Detail) -> Map {
    let item = |RouteRecord { spec, state, r#type }: &RouteRecord| {
        let mut map = Map::new();
        put(&mut map, "net", text(spec.net));
        put(&mut map, "gateway", text(spec.gateway));
        if detail.is_backup() || detail.shows(1) {
            put(&mut map, "hop", spec.shown_hops());
            put(&mut map, "priority", spec.priority);
        }
        if detail.shows(1) {
            put(&mut map, "state", state.name());
            put(&mut map, "type", r#type.name());
        }
        map
    };
    block("route", routes.iter().map(item))
}

/// The blocks `routing` and `buffers`; nothing where there are no pools, since routing was never on. A backup
/// has what is to be, where a change is under way.
#[must_use]
pub fn routing(routing: &RoutingRecord, detail: Detail) -> Map {
    if routing.cpts.is_empty() {
        return Map::new();
    }
    let mut document = if detail.is_backup() {
        one("routing", json!({"enable": u8::from(routing.state.is_to_be_on())}))
    } else {
        let pools = routing.cpts.iter().enumerate().map(|(cpt, pools)| {
            let pool = |(kind, pool): (&PoolKind, &PoolRecord)| {
                let mut map = one("npages", kind.page_count());
                map.extend(fields(pool));
                (kind.name().to_owned(), Value::Object(map))
            };
            one(&format!("cpt[{cpt}]"), PoolKind::ALL.iter().zip(pools).map(pool).collect::<Map>())
        });
        block("routing", pools.chain([one("enable", routing.state as u8)]))
    };
    let totals =
        PoolKind::ALL.iter().map(|kind| (kind.name().to_owned(), Value::from(routing.buffer_count(*kind))));
    document.extend(one("buffers", totals.collect::<Map>()));
    document
}
