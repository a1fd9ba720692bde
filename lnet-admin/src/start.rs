//! How a node is configured at its start, and again when that has changed.
//!
//! Invariants: all that is wrong is told at once, each with its place; a node has all of it or nothing; what
//! is not here yet is told apart from what is wrong.

use std::collections::HashSet;

use lnet_control::document::{Document, NodeState};
use lnet_model::records::RoutingRecord;
use lnet_model::request::{Change, Staying};
use lnet_model::{Errno, Refusal};
use lnet_wire::Net;
use tracing::warn;

use super::control::Control;
use super::error::blocking;
use super::interfaces;
use super::plan::ChangePlan;
use super::sources::{StartSource, passable, wrong};

impl Control {
    /// Plans what the node is configured by at its start, and returns what stays as it was. All that cannot
    /// be is told at once, each with its location.
    pub(super) async fn plan_start_up(
        &self,
        plan: &mut ChangePlan,
        position: usize,
    ) -> Result<Vec<Staying>, Refusal> {
        let state = NodeState {
            nets: Vec::new(),
            peers: Vec::new(),
            routes: Vec::new(),
            routing: RoutingRecord::default(),
            globals: self.global_record(),
            udsp: self.udsp_records(),
            drop_rules: Vec::new(),
            delay_rules: Vec::new(),
            steering: self.steering_record(),
        };
        let (mut refused, mut left) = (Vec::new(), Vec::new());
        let mut known = HashSet::new();
        let documents = self.start_up().await?;
        plan.start_up =
            Some(documents.iter().flat_map(|(_, document)| document.changes().cloned()).collect());
        for (origin, document) in documents {
            for (item, change) in document.plan(&state) {
                // Strings and a document may say the same.
                let adds = matches!(change, Change::AddNi(_) | Change::AddRoute(_));
                if adds && !known.insert(format!("{change:?}")) {
                    continue;
                }
                let location = format!("{origin}: {}: {}", item.position, item.entity);
                plan.in_document = Some(location.clone());
                match self.plan_one(plan, position, &change).await {
                    Ok(outcome) => {
                        let staying = outcome.staying();
                        plan.told.extend(staying.iter().map(|staying| format!("{location}: {staying}")));
                        left.extend_from_slice(staying);
                    }
                    Err(refusal) => {
                        refused.push(Refusal::new(refusal.errno, format!("{location}: {}", refusal.message)));
                    }
                }
            }
        }
        plan.in_document = None;
        let Some(first) = refused.first() else { return Ok(left) };
        // Who waits for what is absent need not wait where something else is wrong.
        let errno = refused.iter().map(|refusal| refusal.errno).find(|errno| *errno != Errno::NETDOWN);
        let lines: Vec<_> = refused.iter().map(|refusal| refusal.message.as_str()).collect();
        Err(Refusal::new(errno.unwrap_or(first.errno), lines.join("\n")))
    }

    /// Reads the sources of the start-up as they are on this host, each with its name.
    ///
    /// # Errors
    /// The mistakes in them; `ENETDOWN` where something is absent alone.
    pub(super) async fn start_up(&self) -> Result<Vec<(String, Document)>, Refusal> {
        let start_up = self.options.start_up.clone();
        let (sources, notes) = blocking(move || start_up.read()).await??;
        self.tell(notes);
        let named: Vec<_> =
            sources.iter().flat_map(|source| source.document.interfaces_named()).flatten().collect();
        let host = match sources.iter().any(|source| source.is_legacy || source.document.chooses()) {
            true => blocking(move || interfaces::records(&named)).await??,
            false => Vec::new(),
        };
        let (mut documents, mut absent) = (Vec::new(), Vec::new());
        for StartSource { origin, document, is_legacy } in sources {
            match document.resolve(&host) {
                Ok(document) => documents.push((origin, document, is_legacy)),
                Err(errors) => absent.push(wrong(&origin, &errors).message),
            }
        }
        if !absent.is_empty() {
            return Err(Refusal::new(Errno::NETDOWN, absent.join("\n")));
        }
        let nets = |(_, document, _): &(String, Document, bool)| -> Vec<Net> {
            let nets = document.changes().filter_map(|change| match change {
                Change::AddNi(spec) => Some(spec.net),
                _ => None,
            });
            nets.collect()
        };
        let mut nets: HashSet<Net> = documents.iter().flat_map(nets).collect();
        nets.extend(self.lnet.nis().iter().map(|ni| ni.config.nid.net()));
        let passed = documents.into_iter().map(|(origin, document, is_legacy)| {
            if !is_legacy {
                return (origin, document);
            }
            let (document, told) = passable(document, &nets, &host);
            self.tell(told.into_iter().map(|text| format!("{origin}: {text}")));
            (origin, document)
        });
        Ok(passed.collect())
    }

    /// Tells the log what it was not told before: a start that waits reads all of it again and again.
    fn tell(&self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if self.told.borrow_mut().insert(note.clone()) {
                warn!("{note}");
            }
        }
    }
}
