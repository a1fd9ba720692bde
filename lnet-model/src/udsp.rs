//! Selection policies, and what follows from them.

use alloc::vec::Vec;
use alloc::{format, vec};

use lnet_wire::Nid;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};
use crate::pattern::UdspPattern;

/// A rule by which nets and NIs are used before others.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct UdspRule {
    /// Local nets or NIDs.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub source: Option<UdspPattern>,
    /// Nets or NIDs of peers.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub destination: Option<UdspPattern>,
    /// Gateways.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub router: Option<UdspPattern>,
    /// The priority that it gives, 0 the best and [`UdspInfo::NONE`] the worst. Of a rule with two patterns
    /// it is the rank of what it prefers, which selections alone have.
    pub priority: Option<u32>,
    /// The number of the selection that it is of, if it is of one.
    pub selection: Option<u32>,
}

impl UdspRule {
    /// A policy of these patterns that is of no selection. It means something once it is [checked].
    ///
    /// [checked]: Self::checked
    #[must_use]
    pub const fn new(
        source: Option<UdspPattern>,
        destination: Option<UdspPattern>,
        router: Option<UdspPattern>,
        priority: Option<u32>,
    ) -> Self {
        Self { source, destination, router, priority, selection: None }
    }

    /// The policy, with the priority 0 where one pattern alone has none.
    ///
    /// # Errors
    /// [`Refusal`]: patterns that go not together, a priority for two of them, a selection with gateways.
    pub fn checked(mut self) -> Result<Self, Refusal> {
        let refused = |message: &str| Err(Refusal::new(Errno::INVAL, message));
        match (&self.source, &self.destination, &self.router) {
            (Some(_), None, None) | (None, Some(_), None) => self.priority = self.priority.or(Some(0)),
            (None, Some(_), Some(_)) if self.selection.is_some() => {
                return refused("a selection has no gateways");
            }
            (Some(_), Some(_), None) | (None, Some(_), Some(_)) => {
                if self.priority.is_some() && self.selection.is_none() {
                    return refused(
                        "priority: a selection policy of two patterns has none, it says which of two is preferred",
                    );
                }
            }
            _ => return refused("a selection policy has src, dst, src and dst, or dst and rte"),
        }
        Ok(self)
    }

    /// Whether it gives a priority, and does not say what is preferred.
    #[must_use]
    pub const fn is_priority(&self) -> bool {
        self.router.is_none() && (self.source.is_none() || self.destination.is_none())
    }

    /// Whether it says which local NIs an NI of a peer prefers.
    #[must_use]
    pub fn prefers_for(&self, nid: &Nid) -> bool {
        self.source.is_some() && self.destination.as_ref().is_some_and(|pattern| pattern.covers(nid))
    }

    /// Whether another one has the same patterns.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.patterns().eq(other.patterns())
    }

    /// The patterns that it has, each with its name.
    pub fn patterns(&self) -> impl Iterator<Item = (&'static str, &UdspPattern)> {
        let all = [("src", &self.source), ("dst", &self.destination), ("rte", &self.router)];
        all.into_iter().filter_map(|(name, pattern)| Some((name, pattern.as_ref()?)))
    }
}

words! {
    /// What a selection policy is about in the older form.
    SelectionKind {
        /// Local nets have a priority.
        Net = "net",
        /// NIDs have one, be they local or those of peers.
        Nid = "nid",
        /// Local NIDs are preferred by NIDs of peers.
        Peer = "peer",
    }
}

impl SelectionKind {
    /// Names of its patterns, which are keys of documents and options of the command line.
    #[must_use]
    pub const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Net => &["net"],
            Self::Nid => &["nid"],
            Self::Peer => &["local", "remote"],
        }
    }
}

/// A selection policy in the older form, that of the Multi-Rail design: it stands for one or two of today's.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Selection {
    kind: SelectionKind,
    /// One, or those of the local NIDs and of the peers'.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
    patterns: Vec<UdspPattern>,
    priority: Option<u32>,
    /// Its number, once a node has given it one.
    id: Option<u32>,
}

impl Selection {
    /// A policy of this kind, for one pattern or, of the kind `peer`, for two.
    ///
    /// # Errors
    /// [`Refusal`]: a pattern of nets where one of NIDs is expected, or the reverse.
    pub fn new(
        kind: SelectionKind,
        patterns: Vec<UdspPattern>,
        priority: Option<u32>,
    ) -> Result<Self, Refusal> {
        let is_net = kind == SelectionKind::Net;
        if let Some(other) = patterns.iter().find(|pattern| pattern.address.is_none() != is_net) {
            let expected = if is_net { "nets such as tcp[1-3]" } else { "nids such as 10.0.[1-9].*@tcp" };
            return Err(Refusal::new(Errno::INVAL, format!("\"{other}\": {expected} are expected")));
        }
        Ok(Self { kind, patterns, priority, id: None })
    }

    /// The policies that it stands for, of the number 0 while it has none.
    ///
    /// # Errors
    /// [`Refusal`]: it has not the patterns of its kind.
    pub fn rules(&self) -> Result<Vec<UdspRule>, Refusal> {
        let Self { kind, patterns, priority, id } = self;
        let rule = |source: Option<&UdspPattern>, destination: Option<&UdspPattern>| {
            let rule = UdspRule::new(source.cloned(), destination.cloned(), None, *priority);
            UdspRule { selection: Some(id.unwrap_or(0)), ..rule }.checked()
        };
        match (kind, &patterns[..]) {
            (SelectionKind::Net, [net]) => Ok(vec![rule(Some(net), None)?]),
            (SelectionKind::Nid, [nid]) => Ok(vec![rule(Some(nid), None)?, rule(None, Some(nid))?]),
            (SelectionKind::Peer, [local, remote]) => Ok(vec![rule(Some(local), Some(remote))?]),
            _ => Err(Refusal::new(Errno::INVAL, format!("a {kind} rule has other patterns"))),
        }
    }

    /// The selections that rules are of, in the order of their first rules.
    #[must_use]
    pub fn of(rules: &[UdspRule]) -> Vec<Self> {
        let mut selections: Vec<Self> = Vec::new();
        for rule in rules.iter().filter(|rule| rule.selection.is_some()) {
            let (kind, patterns) = match (&rule.source, &rule.destination) {
                (Some(net), None) if net.address.is_none() => (SelectionKind::Net, vec![net.clone()]),
                (Some(local), Some(remote)) => (SelectionKind::Peer, vec![local.clone(), remote.clone()]),
                (Some(nid), None) | (None, Some(nid)) => (SelectionKind::Nid, vec![nid.clone()]),
                (None, None) => continue,
            };
            let is_known = selections.iter().any(|selection| selection.id == rule.selection);
            if !is_known {
                selections.push(Self { kind, patterns, priority: rule.priority, id: rule.selection });
            }
        }
        selections
    }

    /// Its number, once a node has given it one.
    #[must_use]
    pub const fn id(&self) -> Option<u32> {
        self.id
    }

    /// Whether another one is of the same kind, for the same patterns.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (self.kind, &self.patterns) == (other.kind, &other.patterns)
    }

    /// What it is about.
    #[must_use]
    pub const fn kind(&self) -> SelectionKind {
        self.kind
    }

    /// Its patterns, each with its key.
    pub fn patterns(&self) -> impl Iterator<Item = (&'static str, &UdspPattern)> {
        self.kind.keys().iter().copied().zip(&self.patterns)
    }

    /// Its priority; of a pair its rank.
    #[must_use]
    pub const fn priority(&self) -> Option<u32> {
        self.priority
    }
}

/// What follows from the selection policies for an NI.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct UdspInfo {
    /// The priority of its net.
    pub net_priority: u32,
    /// Its own.
    pub nid_priority: u32,
    /// Gateways by which messages to a peer NI go before others.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list", default))]
    pub preferred_gateways: Vec<Nid>,
    /// Local NIDs that a peer NI prefers.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
    pub preferred_sources: Vec<Nid>,
}

impl UdspInfo {
    /// The priority of what no rule names, which tools show as -1.
    pub const NONE: u32 = u32::MAX;
}

impl Default for UdspInfo {
    fn default() -> Self {
        Self {
            net_priority: Self::NONE,
            nid_priority: Self::NONE,
            preferred_gateways: Vec::new(),
            preferred_sources: Vec::new(),
        }
    }
}
