//! What a document asks to be shown: its blocks name objects as shows do.

use lnet_model::pattern::{self, shown};
use lnet_wire::{Global, Net, Nid};

use super::Reader;
use super::values::{get, suggestion};
use crate::document::tree::{MapEntry, Marked, Position};
use crate::document::{Instruction, Shown};

impl Reader {
    pub(super) fn shown(&mut self, MapEntry { position, key, value }: &MapEntry) {
        match key.as_str() {
            "net" => self.each_shown(*position, value, "net", |reader, entries| {
                let net = get(entries, "net type").or_else(|| get(entries, "net"));
                let parse = |text: &str| Ok(text.parse::<Net>()?);
                let net = net.and_then(|value| reader.pattern(value, "net type", "a net", parse));
                Shown::Nets { net, detail: reader.detail(entries) }
            }),
            "peer" => self.each_shown(*position, value, "peer", |reader, entries| {
                let nid = get(entries, "nid").or_else(|| get(entries, "primary nid"));
                let nid: Option<Nid> =
                    nid.and_then(|value| reader.pattern(value, "nid", "a nid", pattern::nid));
                Shown::Peers { nid, detail: reader.detail(entries) }
            }),
            "route" => self.each_shown(*position, value, "route", |reader, entries| Shown::Routes {
                filter: reader.route_filter(entries),
                detail: reader.detail(entries),
            }),
            "routing" | "buffers" => {
                // The two blocks are shown together.
                let routing = Instruction::Show(Shown::Routing);
                if !self.items.iter().any(|item| item.action == routing) {
                    self.push(*position, "routing", routing);
                }
            }
            // Rules by address are not stored, and options are those of the command line.
            "ip2nets" | "daemon" => {}
            "peers" => self.show(*position, "peers", Shown::OlderPeers),
            "global" => self.shown_globals(*position, value),
            "numa" => self.show(*position, "numa", Shown::NumaRange),
            "udsp" => self.each_shown(*position, value, "udsp", |reader, entries| {
                let index: Option<i64> = reader.integer_of(entries, "idx", -1..=u32::MAX.into());
                Shown::Udsp { index: index.and_then(|index| u32::try_from(index).ok()) }
            }),
            "selection" => self.show(*position, "selection", Shown::Selection),
            "statistics" => self.show(*position, "statistics", Shown::Statistics),
            "fault" => self.show(*position, "fault", Shown::FaultRules),
            _ => self.show(*position, "steering", Shown::Steering),
        }
    }

    /// The items of a block; one without any asks for everything.
    fn each_shown(
        &mut self,
        position: Position,
        block: &Marked,
        what: &'static str,
        read: impl Fn(&mut Self, &[MapEntry]) -> Shown,
    ) {
        let items = self.maps(block, what);
        if items.is_empty() {
            let shown = read(self, &[]);
            return self.show(position, what, shown);
        }
        for (item, entries) in items {
            self.begin_item(entries);
            let shown = read(self, entries);
            self.show(item.position, what, shown);
        }
    }

    fn detail(&mut self, entries: &[MapEntry]) -> u8 {
        self.integer_of(entries, "detail", 0..=4).unwrap_or_default()
    }

    /// The tunables that are listed; without any, all.
    fn shown_globals(&mut self, position: Position, block: &Marked) {
        let entries = self.map(block, "global").unwrap_or_default();
        let mut globals = Vec::new();
        for MapEntry { position, key, .. } in entries {
            match key.parse::<Global>() {
                Ok(global) => globals.push(global),
                Err(_) => {
                    let known = Global::ALL.map(Global::name).into_iter();
                    let suggestion = suggestion(key, known);
                    self.error(*position, format!("invalid key '{}' in 'global'{suggestion}", shown(key)));
                }
            }
        }
        self.show(position, "global", Shown::Globals(globals));
    }

    fn show(&mut self, position: Position, entity: &'static str, shown: Shown) {
        self.push(position, entity, Instruction::Show(shown));
    }
}
