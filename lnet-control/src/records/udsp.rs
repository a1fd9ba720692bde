//! Selection policies, and what follows from them.

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};
use crate::pattern::UdspPattern;
use crate::text;

/// A rule by which nets and NIs are used before others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UdspRule {
    /// Local nets or NIDs.
    #[serde(with = "text::option")]
    pub source: Option<UdspPattern>,
    /// Nets or NIDs of peers.
    #[serde(with = "text::option")]
    pub destination: Option<UdspPattern>,
    /// Gateways.
    #[serde(with = "text::option")]
    pub router: Option<UdspPattern>,
    /// The priority that it gives, 0 the best and [`UdspInfo::NONE`] the worst; none of a rule with two patterns.
    pub priority: Option<u32>,
}

impl UdspRule {
    /// A rule of these patterns; with one alone its priority is 0 if there is none.
    ///
    /// # Errors
    /// [`Refusal`]: patterns that go not together, a priority for two of them.
    pub fn new(
        source: Option<UdspPattern>,
        destination: Option<UdspPattern>,
        router: Option<UdspPattern>,
        priority: Option<u32>,
    ) -> Result<Self, Refusal> {
        let priority = match (&source, &destination, &router, priority) {
            (Some(_), None, None, priority) | (None, Some(_), None, priority) => priority.or(Some(0)),
            (Some(_), Some(_), None, None) | (None, Some(_), Some(_), None) => None,
            (Some(_), Some(_), None, Some(_)) | (None, Some(_), Some(_), Some(_)) => {
                let message = "priority: a selection policy of two patterns has none, it says which of two is preferred";
                return Err(Refusal::new(Errno::INVAL, message));
            }
            _ => {
                let message = "a selection policy has src, dst, src and dst, or dst and rte";
                return Err(Refusal::new(Errno::INVAL, message));
            }
        };
        Ok(Self { source, destination, router, priority })
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

/// A selection policy in the older form, that of the Multi-Rail design: it stands for one or two of today's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    kind: SelectionKind,
    /// One, or those of the local NIDs and of the peers'.
    patterns: Vec<UdspPattern>,
    priority: Option<u32>,
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
        Ok(Self { kind, patterns, priority })
    }

    /// The policies that it stands for. The priority of a pair has no effect: there is one degree of preference.
    ///
    /// # Errors
    /// [`Refusal`]: it has not the patterns of its kind.
    pub fn rules(&self) -> Result<Vec<UdspRule>, Refusal> {
        let Self { kind, patterns, priority } = self;
        let rule = |source: Option<&UdspPattern>, destination: Option<&UdspPattern>, priority| {
            UdspRule::new(source.cloned(), destination.cloned(), None, priority)
        };
        match (kind, &patterns[..]) {
            (SelectionKind::Net, [net]) => Ok(vec![rule(Some(net), None, *priority)?]),
            (SelectionKind::Nid, [nid]) => {
                Ok(vec![rule(Some(nid), None, *priority)?, rule(None, Some(nid), *priority)?])
            }
            (SelectionKind::Peer, [local, remote]) => Ok(vec![rule(Some(local), Some(remote), None)?]),
            _ => Err(Refusal::new(Errno::INVAL, format!("a {kind} rule has other patterns"))),
        }
    }

    /// Those of today's rules that the older form can tell.
    #[must_use]
    pub fn of(rules: &[UdspRule]) -> Vec<Self> {
        let is_nid = |pattern: &UdspPattern| pattern.address.is_some();
        let selection = |rule: &UdspRule| {
            let priority = rule.priority;
            match (&rule.source, &rule.destination, &rule.router) {
                (Some(net), None, None) if !is_nid(net) => {
                    Some(Self { kind: SelectionKind::Net, patterns: vec![net.clone()], priority })
                }
                (Some(nid), None, None) => {
                    let twin = |other: &&UdspRule| {
                        other.source.is_none()
                            && other.destination.as_ref() == Some(nid)
                            && other.priority == priority
                    };
                    rules.iter().find(twin)?;
                    Some(Self { kind: SelectionKind::Nid, patterns: vec![nid.clone()], priority })
                }
                (Some(local), Some(remote), None) if is_nid(local) && is_nid(remote) => {
                    let patterns = vec![local.clone(), remote.clone()];
                    Some(Self { kind: SelectionKind::Peer, patterns, priority: None })
                }
                _ => None,
            }
        };
        rules.iter().filter_map(selection).collect()
    }

    /// What it is about.
    #[must_use]
    pub const fn kind(&self) -> SelectionKind {
        self.kind
    }

    /// Its patterns, each with its key.
    pub fn patterns(&self) -> impl Iterator<Item = (&'static str, &UdspPattern)> {
        let keys: &[&str] = match self.kind {
            SelectionKind::Net => &["net"],
            SelectionKind::Nid => &["nid"],
            SelectionKind::Peer => &["local", "remote"],
        };
        keys.iter().copied().zip(&self.patterns)
    }

    /// Its priority; none of a pair.
    #[must_use]
    pub const fn priority(&self) -> Option<u32> {
        self.priority
    }
}

/// What follows from the selection policies for an NI.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UdspInfo {
    /// The priority of its net.
    pub net_priority: u32,
    /// Its own.
    pub nid_priority: u32,
    /// Of a peer NI: the local NIDs that it prefers.
    #[serde(with = "text::list")]
    pub preferred_sources: Vec<Nid>,
}

impl UdspInfo {
    /// The priority of what no rule names, which tools show as -1.
    pub const NONE: u32 = u32::MAX;
}

impl Default for UdspInfo {
    fn default() -> Self {
        Self { net_priority: Self::NONE, nid_priority: Self::NONE, preferred_sources: Vec::new() }
    }
}
