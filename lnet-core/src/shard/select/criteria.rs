//! What decides between candidates, in its order, and what can be told of a choice.

use alloc::vec::Vec;
use core::fmt;

use lnet_wire::{Net, Nid};

/// Something that decides between two candidates (spec: LNet `lib-move.c`, the `lnet_select_*` and
/// `lnet_find_best_*` functions).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Criterion {
    /// NIs whose interfaces have a route there come before those without one.
    Route,
    /// Paths that answer come before silent ones.
    Answers,
    /// Health of the peer's net: the best of its NIs there; the higher one wins.
    PeerNetHealth,
    /// Priority of the peer's net; the lower one wins.
    PeerNetPriority,
    /// Health of the local net: the best of its NIs; the higher one wins.
    LocalNetHealth,
    /// Priority of the local net; the lower one wins.
    LocalNetPriority,
    /// The peer's net that was used longest ago.
    PeerNetSequence,
    /// The local net that was used longest ago.
    LocalNetSequence,
    /// Health of the local NI; the higher one wins.
    LocalHealth,
    /// Priority of the local NI; the lower one wins.
    LocalPriority,
    /// Distance from memory to the device; the lower one wins.
    Distance,
    /// Free credits of the local NI; more win.
    LocalCredits,
    /// The local NI that was used longest ago.
    LocalSequence,
    /// Bits of the prefix of the route by the local NI's interface; more win.
    RouteBits,
    /// The place of the local NI among equal ones as the source to this NID, the same on all shards; the
    /// lower one wins.
    Rank,
    /// Health of the peer NI; the higher one wins.
    PeerHealth,
    /// Priority of the peer NI; the lower one wins.
    PeerPriority,
    /// The peer NI prefers the local NI.
    Preferred,
    /// Free credits of the peer NI; more win.
    PeerCredits,
    /// The peer NI that was used longest ago.
    PeerSequence,
    /// Paths that answer, and of others the one that is silent for longest.
    Silence,
    /// The slot of the local NI; the lower one wins.
    Slot,
    /// The shortest round trip.
    RoundTrip,
    /// Gateways with a local NI on their net that is up come before those that wait for a link.
    Link,
    /// Priority of the route; the lower one wins.
    RoutePriority,
    /// Hops of the route; fewer win.
    Hops,
    /// The gateway is on the net of the one local NI that the destination gets its messages from.
    Source,
    /// The gateway is among those whose turn it is to be weighed: not all are, where there are many.
    Turn,
    /// Bytes of messages that wait for the gateway's NI; fewer win.
    QueuedBytes,
}

impl fmt::Display for Criterion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Route => "route",
            Self::Answers => "answers",
            Self::PeerNetHealth => "peer net health",
            Self::PeerNetPriority => "peer net priority",
            Self::LocalNetHealth => "local net health",
            Self::LocalNetPriority => "local net priority",
            Self::PeerNetSequence => "peer net sequence",
            Self::LocalNetSequence => "local net sequence",
            Self::LocalHealth => "local health",
            Self::LocalPriority => "local priority",
            Self::Distance => "numa distance",
            Self::LocalCredits => "local credits",
            Self::LocalSequence => "local sequence",
            Self::RouteBits => "route bits",
            Self::Rank => "rank",
            Self::PeerHealth => "peer health",
            Self::PeerPriority => "peer priority",
            Self::Preferred => "preferred",
            Self::PeerCredits => "peer credits",
            Self::PeerSequence => "peer sequence",
            Self::Silence => "silence",
            Self::Slot => "slot",
            Self::RoundTrip => "round trip",
            Self::Link => "link",
            Self::RoutePriority => "route priority",
            Self::Hops => "hops",
            Self::Source => "source",
            Self::Turn => "turn",
            Self::QueuedBytes => "queued bytes",
        })
    }
}

/// A candidate of one step of a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Candidate {
    /// A net that this node and the peer have in common.
    Net(Net),
    /// A local NI.
    Local(Nid),
    /// An NI of the peer.
    Peer(Nid),
    /// An NI of a gateway.
    Gateway(Nid),
}

impl fmt::Display for Candidate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => write!(to, "{net}"),
            Self::Local(nid) | Self::Peer(nid) | Self::Gateway(nid) => write!(to, "{nid}"),
        }
    }
}

/// What one candidate has to show: its values by the step's criteria; the smaller one wins each (what is
/// better when it is higher is negated).
pub(super) type Values<const N: usize> = [i64; N];

pub(super) const NET: [Criterion; 8] = [
    Criterion::Route,
    Criterion::Answers,
    Criterion::PeerNetHealth,
    Criterion::PeerNetPriority,
    Criterion::LocalNetHealth,
    Criterion::LocalNetPriority,
    Criterion::PeerNetSequence,
    Criterion::LocalNetSequence,
];

pub(super) const LOCAL: [Criterion; 7] = [
    Criterion::Route,
    Criterion::Answers,
    Criterion::LocalHealth,
    Criterion::LocalPriority,
    Criterion::Distance,
    Criterion::LocalCredits,
    Criterion::LocalSequence,
];

/// Criteria for the source to a peer that is not known to be Multi-Rail.
pub(super) const SOURCE: [Criterion; 6] = [
    Criterion::Preferred,
    Criterion::Route,
    Criterion::LocalHealth,
    Criterion::LocalPriority,
    Criterion::RouteBits,
    Criterion::Rank,
];

pub(super) const PEER: [Criterion; 7] = [
    Criterion::Answers,
    Criterion::PeerHealth,
    Criterion::PeerPriority,
    Criterion::Preferred,
    Criterion::Route,
    Criterion::PeerCredits,
    Criterion::PeerSequence,
];

/// Criteria for another path than the one that is out of the question.
pub(super) const OTHER: [Criterion; 5] =
    [Criterion::Route, Criterion::Silence, Criterion::PeerHealth, Criterion::LocalCredits, Criterion::Slot];

/// Criteria for the path of what went by a silent one.
pub(super) const SILENT: [Criterion; 3] = [Criterion::Silence, Criterion::PeerHealth, Criterion::RoundTrip];

/// Criteria for the NID of a Multi-Rail peer behind gateways.
pub(super) const REMOTE: [Criterion; 5] = [
    Criterion::Answers,
    Criterion::PeerNetHealth,
    Criterion::PeerNetPriority,
    Criterion::PeerHealth,
    Criterion::PeerPriority,
];

/// Criteria for the gateway.
pub(super) const GATEWAY: [Criterion; 12] = [
    Criterion::Answers,
    Criterion::Preferred,
    Criterion::Link,
    Criterion::RoutePriority,
    Criterion::Hops,
    Criterion::Source,
    Criterion::Turn,
    Criterion::PeerHealth,
    Criterion::PeerPriority,
    Criterion::QueuedBytes,
    Criterion::PeerCredits,
    Criterion::PeerSequence,
];

/// One candidate of a step, as a trace tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weighed {
    /// Who.
    pub candidate: Candidate,
    /// Its values by each criterion, as they are compared: the smaller one wins; health and credits are
    /// negated.
    pub values: Vec<(Criterion, i64)>,
    /// Whether it was chosen.
    pub is_chosen: bool,
    /// The criterion by which it was left out; `None` if it was chosen, or came later in the list than its
    /// equal.
    pub lost_by: Option<Criterion>,
}

/// Takes note of a choice.
pub(super) trait Trace {
    /// The candidates of a step with their values.
    fn step<const N: usize, C: Iterator<Item = (Candidate, Values<N>)>>(
        &mut self,
        criteria: &[Criterion; N],
        candidates: impl FnOnce() -> C,
    );
}

/// Takes no note of a choice.
pub(super) struct NoTrace;

impl Trace for NoTrace {
    #[inline(always)]
    fn step<const N: usize, C: Iterator<Item = (Candidate, Values<N>)>>(
        &mut self,
        _: &[Criterion; N],
        _: impl FnOnce() -> C,
    ) {
    }
}

/// Steps of a choice, each with all its candidates.
impl Trace for Vec<Vec<Weighed>> {
    fn step<const N: usize, C: Iterator<Item = (Candidate, Values<N>)>>(
        &mut self,
        criteria: &[Criterion; N],
        candidates: impl FnOnce() -> C,
    ) {
        let all: Vec<_> = candidates().collect();
        // The first of equal ones is the best.
        let Some(best) = (0..all.len()).min_by_key(|at| all[*at].1) else { return };
        let weighed = all.iter().enumerate().map(|(at, (candidate, values))| {
            let differs = (0..N).find(|criterion| values[*criterion] != all[best].1[*criterion]);
            Weighed {
                candidate: *candidate,
                values: criteria.iter().copied().zip(values.iter().copied()).collect(),
                is_chosen: at == best,
                lost_by: differs.map(|at| criteria[at]),
            }
        });
        self.push(weighed.collect());
    }
}

/// The first of the candidates of a step with the smallest values by its criteria. A single one is not
/// weighed.
pub(super) fn best_of<T, const N: usize>(
    (criteria, trace): (&[Criterion; N], &mut impl Trace),
    mut candidates: impl Iterator<Item = T> + Clone,
    named: impl Fn(&T) -> Candidate,
    values: impl Fn(&T) -> Values<N>,
) -> Option<T> {
    trace.step(criteria, || candidates.clone().map(|candidate| (named(&candidate), values(&candidate))));
    let first = candidates.next()?;
    let Some(second) = candidates.next() else { return Some(first) };
    core::iter::once(first).chain(core::iter::once(second)).chain(candidates).min_by_key(values)
}
