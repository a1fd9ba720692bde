//! What a document asks to be shown.

use lnet_model::udsp::Selection;
use lnet_model::{Errno, Refusal};
use lnet_wire::Global;
use serde_json::{Value, json};

use super::{
    Detail, Map, NodeState, fault_rules, global_show, nets, one, peers, routes, routing, selections,
    steering, udsp,
};
use crate::document::Shown;

impl Shown {
    /// The document of it, of a node in this state; the counters of a node are no part of that.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such net or peer.
    pub fn document(&self, state: &NodeState) -> Result<Map, Refusal> {
        Ok(match self {
            Self::Nets { net: None, detail } => nets(&state.nets, Detail::Level(*detail)),
            Self::Nets { net: Some(net), detail } => {
                let found = state.nets.iter().find(|one| one.net == *net);
                let missing = || Refusal::new(Errno::SRCH, format!("net {net} is not configured"));
                nets(std::slice::from_ref(found.ok_or_else(missing)?), Detail::Level(*detail))
            }
            Self::Peers { nid: None, detail } => peers(&state.peers, Detail::Level(*detail)),
            Self::Peers { nid: Some(nid), detail } => {
                let found = state.peers.iter().find(|peer| peer.nis.iter().any(|ni| ni.nid == *nid));
                let missing = || Refusal::new(Errno::NOENT, format!("no peer has the nid {nid}"));
                peers(std::slice::from_ref(found.ok_or_else(missing)?), Detail::Level(*detail))
            }
            Self::Routes { filter, detail } => {
                let shown: Vec<_> = filter.of(&state.routes).cloned().collect();
                routes(&shown, Detail::Level(*detail))
            }
            Self::Routing => routing(&state.routing, Detail::Level(0)),
            Self::OlderPeers => super::peer::older_peers(&state.peers),
            Self::Globals(globals) if globals.is_empty() => global_show(&state.globals),
            Self::Globals(globals) => {
                let value = |global: &Global| (global.name().to_owned(), state.globals.get(*global).into());
                one("global", globals.iter().map(value).collect::<Map>())
            }
            Self::NumaRange => {
                one("global", json!({Global::NumaRange.name(): state.globals.get(Global::NumaRange)}))
            }
            Self::Udsp { index } => udsp(&state.udsp, *index),
            Self::Selection => selections(&Selection::of(&state.udsp)),
            Self::Statistics => Map::new(),
            Self::FaultRules => fault_rules(state, Detail::Level(0)),
            Self::Steering => steering(&state.steering),
        })
    }
}

/// Adds the blocks of a document to those of another one; what both have is in one block then.
pub fn join(document: &mut Map, more: Map) {
    for (key, value) in more {
        match (document.get_mut(&key), value) {
            (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
            (Some(Value::Object(entries)), Value::Object(more)) => entries.extend(more),
            (_, value) => {
                document.insert(key, value);
            }
        }
    }
}
