//! What a node would do, and is about to do: the paths of requests, the NIs that recover, the shards of NIDs.

use lnet_core::shard::{Candidate, Criterion, Explanation, Weighed};
use lnet_core::topology::PRIORITY_NONE;
use lnet_model::lnd::{ACTIVE_CARRIER, NiFact};
use lnet_model::records::{
    CptRecord, ExplainRecord, ExplainedCandidate, ExplainedChoice, ExplainedKind, ExplainedPath,
    ExplainedStep, RecoveryRecord,
};
use lnet_model::text::NidText;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;
use tracing::info;

use super::control::Control;
use super::error::check_name;

impl Control {
    /// Tells by which path requests to a NID would go at this moment.
    ///
    /// # Errors
    /// A NID that can be no NI's name, as a ping of it has it.
    pub(super) async fn explained(&self, nid: Nid) -> Result<ExplainRecord, Refusal> {
        check_name(&nid)?;
        let told = self.on_shards(move |worker| worker.shard().explain(worker.clock().now(), &nid));
        let told = told.await?;
        let mut record = ExplainRecord { nid, primary_nid: None, multi_rail: false, choices: Vec::new() };
        for (shard, explanation) in (0..).zip(&told) {
            record.primary_nid = explanation.primary;
            record.multi_rail = explanation.is_multi_rail;
            let choice = self.choice(&nid, shard, explanation);
            match record.choices.iter_mut().find(|known| agree(known, &choice)) {
                Some(known) => known.shards.push(shard),
                None => record.choices.push(choice),
            }
        }
        Ok(record)
    }

    fn choice(&self, nid: &Nid, shard: u32, explanation: &Explanation) -> ExplainedChoice {
        let topology = self.lnet.topology();
        let path = explanation.choice.and_then(|choice| {
            Some(ExplainedPath { from: topology.ni(choice.ni)?.nid, to: choice.destination })
        });
        let hop = explanation.choice.filter(|choice| choice.next_hop != choice.destination);
        let gateway = hop.map(|choice| choice.next_hop);
        let reason = match path {
            _ if topology.is_local(nid) => Some("it is a nid of this node"),
            None => Some("no NI that is up leads there, and no route"),
            Some(_) if gateway.is_some() && !explanation.is_multi_rail => {
                Some("no NI is on its net: a gateway forwards what goes there")
            }
            Some(_) if !explanation.is_multi_rail => {
                Some("the peer is not known to be Multi-Rail: it is spoken to by this nid, from one NI")
            }
            Some(_) => None,
        };
        let steps = explanation.steps.iter().filter_map(|candidates| {
            let kind = match candidates.first()?.candidate {
                Candidate::Net(_) => ExplainedKind::Net,
                Candidate::Local(_) => ExplainedKind::LocalNi,
                Candidate::Peer(_) => ExplainedKind::PeerNi,
                Candidate::Gateway(_) => ExplainedKind::Gateway,
            };
            Some(ExplainedStep { kind, candidates: candidates.iter().map(candidate).collect() })
        });
        ExplainedChoice {
            shards: vec![shard],
            path,
            gateway,
            carrier: path.and_then(|path| self.carrier_of(&path.from)),
            reason: reason.map(str::to_owned),
            steps: steps.collect(),
        }
    }

    /// Carrier of long messages by a local NI, as its LND tells it.
    fn carrier_of(&self, nid: &Nid) -> Option<String> {
        let nis = self.lnet.nis();
        match nis.iter().find(|state| state.config.nid == *nid)?.fact(ACTIVE_CARRIER)? {
            NiFact::Text(text) => Some(text.clone()),
            NiFact::Number(_) | NiFact::Counts(_) => None,
        }
    }

    pub(super) fn recovery_record(&self) -> RecoveryRecord {
        let (local, peers) = self.lnet.machine().recovering();
        let nids = |nis: Vec<lnet_core::node::Recovering>| nis.into_iter().map(|ni| ni.nid).collect();
        RecoveryRecord { local: nids(local), peers: nids(peers) }
    }

    /// The shards that connections of peers belong to, by the first NI on their net; and, where all shards
    /// serve that, messages of portals that are steered by their initiator.
    ///
    /// # Errors
    /// A NID that can be no NI's name, as a ping of it has it.
    pub(super) fn cpts_of_nids(&self, nids: Vec<NidText>) -> Result<Vec<CptRecord>, Refusal> {
        let record = |NidText(nid)| {
            check_name(&nid)?;
            Ok(CptRecord { nid, cpt: self.lnet.home_of(&nid).0.into() })
        };
        nids.into_iter().map(record).collect()
    }

    pub(super) fn logged_peer(&self, nid: &Nid) -> Result<(), Refusal> {
        let node = self.lnet.machine();
        let Some(peer) = node.peer(nid) else {
            return Err(Refusal::new(Errno::NOENT, format!("no peer has the nid {nid}")));
        };
        let in_map = self.lnet.topology().peer(nid).cloned();
        info!(?peer, "peer");
        info!(?in_map, "peer as the shards know it");
        Ok(())
    }
}

/// Whether two shards choose the same for the same reasons. Their numbers may differ: each has used its paths
/// by itself.
fn agree(one: &ExplainedChoice, other: &ExplainedChoice) -> bool {
    let reasons = |choice: &ExplainedChoice| {
        let candidates = choice.steps.iter().flat_map(|step| &step.candidates);
        candidates.map(|one| (one.name.clone(), one.is_chosen, one.lost_by.clone())).collect::<Vec<_>>()
    };
    let ends = |choice: &ExplainedChoice| (choice.path, choice.gateway);
    ends(one) == ends(other) && reasons(one) == reasons(other)
}

fn candidate(weighed: &Weighed) -> ExplainedCandidate {
    let values =
        weighed.values.iter().map(|(criterion, value)| (criterion.to_string(), shown(*criterion, *value)));
    ExplainedCandidate {
        name: weighed.candidate.to_string(),
        is_chosen: weighed.is_chosen,
        lost_by: weighed.lost_by.map(|criterion| criterion.to_string()),
        values: values.collect(),
    }
}

/// A value as people have it: the core compares in such a way that the smaller one wins.
fn shown(criterion: Criterion, value: i64) -> i64 {
    match criterion {
        Criterion::PeerNetHealth
        | Criterion::LocalNetHealth
        | Criterion::LocalHealth
        | Criterion::PeerHealth
        | Criterion::LocalCredits
        | Criterion::RouteBits
        | Criterion::PeerCredits => -value,
        // 1 is yes.
        Criterion::Answers | Criterion::Route | Criterion::Link | Criterion::Source | Criterion::Turn => {
            1 - value
        }
        // What is not preferred has no rank.
        Criterion::Preferred if value == i64::from(PRIORITY_NONE) => -1,
        _ => value,
    }
}
