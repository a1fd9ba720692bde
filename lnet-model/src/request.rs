//! Requests and changes: all that a node can be asked.
//!
//! Invariants: a batch is carried out whole or not at all; a change names one object; what a change leaves
//! open (`None`) is the node's to choose.

use alloc::vec::Vec;
use core::fmt;

use lnet_wire::{Global, Net, Nid, Parameter};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::Refusal;
use crate::fault::{DelaySpec, DropRule};
use crate::lnd::NiOption;
use crate::ni::{NiName, NiSpec};
use crate::peer::PeerSpec;
use crate::pool::PoolKind;
use crate::route::RouteSpec;
use crate::steering::PortalPolicy;
use crate::udsp::{Selection, UdspRule};

/// Changes that are made together or not at all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ChangeSet {
    /// The changes, in order: each is judged by the state that those before it leave.
    pub changes: Vec<Change>,
    /// Only find out whether they could be made.
    pub dry_run: bool,
    /// The generation of the node that they were planned for: a node of another one refuses them with
    /// `-ESTALE`. None takes any.
    pub generation: Option<u64>,
}

/// Effect of a change that was made, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Effect {
    /// The node is not as before.
    Changed,
    /// The node was so already.
    Unchanged,
    /// The node is not as before, and these parts of what was asked for stay as they were.
    Partly(Vec<Staying>),
}

impl Effect {
    /// Effect of a change that leaves these parts as they were.
    #[must_use]
    pub fn leaving(staying: Vec<Staying>) -> Self {
        if staying.is_empty() { Self::Changed } else { Self::Partly(staying) }
    }

    /// Parts of what was asked for that stay as they were.
    #[must_use]
    pub fn staying(&self) -> &[Staying] {
        match self {
            Self::Partly(staying) => staying,
            Self::Changed | Self::Unchanged => &[],
        }
    }
}

/// Part of a change that the node has not made, for a reason that is its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Staying {
    /// A NID that stays with a peer that was found, though another one was to have it: the primary NID of
    /// that peer is locked, and it has more than one. Both peers are marked
    /// ([`BAD_CONFIG`](crate::peer::peer_state::BAD_CONFIG)).
    Nid {
        /// The NID.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        nid: Nid,
        /// The primary NID of the peer that has it.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        peer: Nid,
    },
    /// A tunable of a net that its first NI has fixed, though a later one asked for another value.
    Tunable {
        /// The net.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        net: Net,
        /// The tunable.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        option: NiOption,
        /// The value that was asked for.
        asked: i64,
        /// The value that the net has.
        has: i64,
    },
}

impl fmt::Display for Staying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nid { nid, peer } => {
                write!(f, "{nid} is not added: it belongs to peer {peer}, ")?;
                write!(f, "whose primary nid is locked, and stays there")
            }
            Self::Tunable { net, option, asked, has } => {
                let [asked, has] = [*asked, *has].map(|value| option.row().values.text(value));
                write!(f, "{option} {asked} is passed over: net {net} has {has} from its first NI")
            }
        }
    }
}

/// A change of one object.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Change {
    /// Bring the node up, with `lo`.
    Configure {
        /// Also carry out the daemon's start-up file.
        all: bool,
        /// Where an interface has addresses of both families, prefer IPv6.
        large: bool,
    },
    /// Take down nets, peers, rules; global tunables stay.
    Unconfigure,
    /// Make a local NI, and its net if that is not there.
    AddNi(NiSpec),
    /// Take down a local NI, and its net if it was the last one.
    DeleteNi(NiName),
    /// Take down a net with all its NIs.
    DeleteNet(#[cfg_attr(feature = "serde", serde(with = "crate::text"))] Net),
    /// Set the health of one local NI or all.
    SetHealth {
        /// Which one; all if there is none.
        #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
        nid: Option<Nid>,
        /// 0 to 1000.
        value: u32,
    },
    /// Set an option of one local NI or all that is changeable while they are there.
    SetOption {
        /// Which NI; all if there is none.
        #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
        nid: Option<Nid>,
        /// The option.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        option: NiOption,
        /// Its value.
        value: i64,
    },
    /// Set the transmit timeout of the LND that nets of this type have.
    SetLndTimeout {
        /// Any net of the type.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        net: Net,
        /// Seconds; 0 follows the global one.
        timeout_s: u32,
    },
    /// Set a global tunable.
    SetGlobal {
        /// Which.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        global: Global,
        /// Its value, within [`Global::range`].
        value: u32,
    },
    /// Set a parameter.
    SetParameter {
        /// Which.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        parameter: Parameter,
        /// Its value, within [`Parameter::range`].
        value: u32,
    },
    /// Set all counters to zero.
    ResetStatistics,
    /// Make a drop rule, in front of the others.
    AddDropRule(DropRule),
    /// Delete the drop rules with this source and this destination.
    DeleteDropRules {
        /// The source of the rules, as it was given.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        source: Nid,
        /// The destination of the rules, as it was given.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        destination: Nid,
    },
    /// Delete all drop rules.
    DeleteAllDropRules,
    /// Set the counters of all drop rules to zero.
    ResetDropRules,
    /// Make a delay rule, in front of the others.
    AddDelayRule(DelaySpec),
    /// Delete the delay rules with this source and this destination; what they hold up goes on.
    DeleteDelayRules {
        /// The source of the rules, as it was given.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        source: Nid,
        /// The destination of the rules, as it was given.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        destination: Nid,
    },
    /// Delete all delay rules.
    DeleteAllDelayRules,
    /// Set the counters of all delay rules to zero.
    ResetDelayRules,
    /// Set the steering policy of a portal.
    SetSteering(PortalPolicy),
    /// Make a peer, or give one more NIDs.
    AddPeer(PeerSpec),
    /// Delete a peer, or some of its NIDs.
    DeletePeer {
        /// Its primary NID.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        primary_nid: Nid,
        /// NIDs that go; the whole peer goes where there are none, and if the primary one is among them.
        #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
        nids: Vec<Nid>,
        /// Whether it goes though its primary NID is locked.
        force: bool,
    },
    /// Make a route.
    AddRoute(RouteSpec),
    /// Delete the route to a net by a gateway.
    DeleteRoute {
        /// The net.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        net: Net,
        /// Any NID of the gateway.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        gateway: Nid,
    },
    /// Forward messages between nets, or no longer.
    SetRouting {
        /// Whether they are forwarded.
        on: bool,
    },
    /// Set how many buffers a pool of a router has.
    SetPool {
        /// Which pool.
        pool: PoolKind,
        /// The number for all CPTs together.
        buffer_count: u32,
    },
    /// Set the health of one peer NI or all.
    SetPeerHealth {
        /// Which one; all if there is none.
        #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
        nid: Option<Nid>,
        /// 0 to 1000.
        value: u32,
    },
    /// Set the state bits of a peer: for tests.
    SetPeerState {
        /// A NID of it.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        nid: Nid,
        /// The bits.
        state: u32,
    },
    /// Make a selection policy, or change the priority of the one with these patterns.
    AddUdsp {
        /// Its index; behind the others where there is none, or there are fewer.
        index: Option<u32>,
        /// The rule.
        rule: UdspRule,
    },
    /// Make a selection policy of the older form; the node gives it a number.
    AddSelection(Selection),
    /// Delete a selection policy of the older form.
    DeleteSelection {
        /// Its number.
        id: Option<u32>,
        /// One like it; with a number it has to be that one's.
        like: Option<Selection>,
    },
    /// Delete a selection policy, or all.
    DeleteUdsp {
        /// Which; all if there is none.
        index: Option<u32>,
    },
}

impl Change {
    /// Whether NIs may come by it.
    #[must_use]
    pub const fn adds_nis(&self) -> bool {
        matches!(self, Self::AddNi(_) | Self::Configure { all: true, .. })
    }
}

/// NIDs to ping, one after the other or together.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PingRequest {
    /// The NIDs.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
    pub nids: Vec<Nid>,
    /// The local NI to ping from.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub source: Option<Nid>,
    /// How long each may take; `None` is the node's choice.
    pub timeout_ms: Option<u64>,
    /// Purpose of the pings.
    pub purpose: PingPurpose,
}

/// Purpose of pings.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum PingPurpose {
    /// Sees whether they answer.
    #[default]
    Ping,
    /// Finds out which NIDs their peers have.
    Discover,
    /// Finds out which NIDs their peers have, whatever is known of them.
    ForceDiscovery,
}

impl PingPurpose {
    /// The word for it, which is a key of documents too.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Discover | Self::ForceDiscovery => "discover",
        }
    }
}

/// Outcome of the ping of one NID.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PingReply {
    /// The NID that was pinged.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub nid: Nid,
    /// The answer, or why there was none.
    pub result: Result<PingRecord, Refusal>,
}

/// Answer of a peer to a ping.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PingRecord {
    /// The primary NID of the peer, or the pinged one if nothing is known about it.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub primary_nid: Nid,
    /// Whether it is known to be a Multi-Rail node.
    pub multi_rail: bool,
    /// Its NIDs as it told them, without `0@lo`.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list"))]
    pub nids: Vec<Nid>,
    /// NIDs among them that the node which pings has as well, if the peer is another node: it is not reached
    /// by these.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::list", default))]
    pub shared_nids: Vec<Nid>,
}
