//! The simulator: whole nodes, with the real shards and the real protocols of the xdp and the tcp LND, over a
//! clock, a fabric of frames and a network of streams that it makes up.
//!
//! Invariants: a run follows from its seed alone; nothing depends on addresses, hashing or the machine's
//! clock. All checks hold at each step, the ones about rest when faults have stopped and time has passed.

mod app;
mod control;
mod datagrams;
mod driver;
mod events;
mod fabric;
mod frame;
mod lane;
mod ledger;
mod memory;
mod network;
mod node;
mod plan;
mod pool;
mod report;
mod rest;
mod routers;
mod sabotage;
mod services;
mod sock;
mod strangers;
mod streams;
mod trace;
mod uplink;
mod wire;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use ledger::Violation;
pub use report::{Counts, Fault};
pub use trace::Tracing;

use crate::bpf::random::Random;

/// Bugs that can be switched on, to see whether the checkers find them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// The receiver forgets which messages it has had.
    NoDuplicateWindow,
    /// A frame is acknowledged before its payload is in place.
    AckBeforeData,
    /// A shard does not take back a credit of an NI.
    CreditLost,
    /// The driver reuses a frame buffer before the fabric has read it.
    FrameFreedEarly,
    /// The driver does not hand over the frames of a sibling shard.
    MisdirectedKept,
    /// A node that starts anew takes its former incarnation, and counts its messages from the start.
    IdReused,
    /// The driver writes into a sibling's descriptor after it has returned the span.
    LeaseOutlivesMd,
    /// The event of an ACK or REPLY is lost.
    EventLost,
    /// Frames go by their own path although it is silent.
    FailoverOff,
    /// A message whose connection is cut is sent again, although its peer may have it.
    ResentAfterCut,
    /// A message whose connection is cut while it is being sent never ends.
    EndLost,
    /// The pieces of a payload all go where the first one does.
    OffsetStuck,
    /// A message counts as sent with its first byte.
    SentEarly,
    /// Nothing looks whether a message that has begun to arrive goes on.
    StallUnnoticed,
    /// All peers have the same turn at the credits of an NI, and none is lent.
    OneTurn,
    /// No credit of an NI is lent.
    NothingLent,
    /// A peer that answers and has no credit is lent none where others that answer have many.
    ReserveAlone,
    /// Router buffers of one length lie in the same memory.
    BuffersShared,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::NoDuplicateWindow,
        Self::AckBeforeData,
        Self::CreditLost,
        Self::FrameFreedEarly,
        Self::MisdirectedKept,
        Self::IdReused,
        Self::LeaseOutlivesMd,
        Self::EventLost,
        Self::FailoverOff,
        Self::ResentAfterCut,
        Self::EndLost,
        Self::OffsetStuck,
        Self::SentEarly,
        Self::StallUnnoticed,
        Self::OneTurn,
        Self::NothingLent,
        Self::ReserveAlone,
        Self::BuffersShared,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoDuplicateWindow => "no-duplicate-window",
            Self::AckBeforeData => "ack-before-data",
            Self::CreditLost => "credit-lost",
            Self::FrameFreedEarly => "frame-freed-early",
            Self::MisdirectedKept => "misdirected-kept",
            Self::IdReused => "id-reused",
            Self::LeaseOutlivesMd => "lease-outlives-md",
            Self::EventLost => "event-lost",
            Self::FailoverOff => "failover-off",
            Self::ResentAfterCut => "resent-after-cut",
            Self::EndLost => "end-lost",
            Self::OffsetStuck => "offset-stuck",
            Self::SentEarly => "sent-early",
            Self::StallUnnoticed => "stall-unnoticed",
            Self::OneTurn => "one-turn",
            Self::NothingLent => "nothing-lent",
            Self::ReserveAlone => "reserve-alone",
            Self::BuffersShared => "buffers-shared",
        }
    }

    /// The checkers that are there to find it, of which one must.
    #[must_use]
    pub const fn checkers(self) -> &'static [&'static str] {
        match self {
            Self::NoDuplicateWindow => &["each message arrives at most once in a life"],
            Self::AckBeforeData => &["what counts as sent has arrived"],
            Self::CreditLost => &["credits are conserved"],
            Self::FrameFreedEarly => &["frames are conserved"],
            Self::MisdirectedKept => &["a message reaches the shard that it is for"],
            Self::IdReused => &["what counts as sent has arrived"],
            Self::LeaseOutlivesMd => &["a descriptor lives as long as its spans"],
            Self::EventLost => &["events are never lost"],
            Self::FailoverOff => &["what can arrive does arrive"],
            Self::ResentAfterCut => &["each message arrives at most once in a life"],
            Self::EndLost => &["every operation ends", "all comes to rest", "paths work in the end"],
            Self::OffsetStuck | Self::BuffersShared => &["payload arrives as it was sent"],
            Self::SentEarly => &["a descriptor lives as long as its spans"],
            Self::StallUnnoticed => &["no half message outlives its time"],
            Self::OneTurn | Self::NothingLent | Self::ReserveAlone => &["friends are answered under attack"],
        }
    }

    /// The net on which it is looked for.
    #[must_use]
    pub const fn net(self) -> NetKind {
        match self {
            Self::ResentAfterCut
            | Self::EndLost
            | Self::OffsetStuck
            | Self::SentEarly
            | Self::StallUnnoticed
            | Self::OneTurn
            | Self::NothingLent
            | Self::ReserveAlone => NetKind::Tcp,
            _ => NetKind::Xdp,
        }
    }

    /// The hostile nodes beside which it is looked for.
    #[must_use]
    pub const fn hostile(self) -> Option<Hostile> {
        match self {
            Self::OneTurn | Self::NothingLent | Self::ReserveAlone => Some(Hostile::Each(Hostility::Names)),
            _ => None,
        }
    }

    /// Whether it is looked for where there are routers.
    #[must_use]
    pub const fn has_routers(self) -> bool {
        matches!(self, Self::BuffersShared)
    }

    /// Options of the runs in which it is looked for.
    #[must_use]
    pub const fn options(self) -> Options {
        let (net, hostile, routers) = (self.net(), self.hostile(), self.has_routers());
        Options { net, hostile, routers, bug: Some(self), ..Options::DEFAULT }
    }

    /// The bug of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

/// The bug of a run, if it has one.
#[derive(Clone, Copy, Debug)]
struct Bugs(Option<Bug>);

impl Bugs {
    fn has(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }

    /// Whether a bug that does not always strike does so now.
    fn strike(self, bug: Bug, random: &mut Random) -> bool {
        self.has(bug) && random.once_in(8)
    }
}

/// The net of all nodes: whose LND they have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetKind {
    /// The xdp LND: its transfer protocol, over frames.
    Xdp,
    /// The tcp LND: its connections, over streams.
    Tcp,
}

impl NetKind {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tcp => "tcp",
        }
    }

    /// The net of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Xdp, Self::Tcp].into_iter().find(|net| net.name() == name)
    }
}

/// Behaviour of a hostile node, besides asking for much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostility {
    /// Nothing that it is sent reaches it: it reads nothing, and acknowledges nothing.
    Deaf,
    /// No more arrives of what it sends than the beginnings.
    Halving,
    /// Many names are its own, each of which asks without end and acknowledges nothing.
    Names,
    /// Pushes of its names lie: NIDs of others, of nets that no node is on or knows, with high sequence
    /// numbers, thousands at once.
    Lies,
    /// Names of it ask, and answer no HELLO, or half; they begin messages, and say no more.
    Silence,
}

impl Hostility {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Deaf, Self::Halving, Self::Names, Self::Lies, Self::Silence];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deaf => "deaf",
            Self::Halving => "halving",
            Self::Names => "names",
            Self::Lies => "lies",
            Self::Silence => "silence",
        }
    }

    /// Whether names that are no nodes speak for it.
    const fn has_names(self) -> bool {
        matches!(self, Self::Names | Self::Lies | Self::Silence)
    }
}

/// Hostile nodes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    /// Each behaves as the seed draws.
    Any,
    /// Each behaves like this.
    Each(Hostility),
}

impl Hostile {
    /// The hostile nodes of this name on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        if name == Self::Any.name() {
            return Some(Self::Any);
        }
        Hostility::ALL.into_iter().find(|hostility| hostility.name() == name).map(Self::Each)
    }

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Each(hostility) => hostility.name(),
        }
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The net.
    pub net: NetKind,
    /// Nodes, 2 to 4; as the seed says if there is no number.
    pub nodes: Option<usize>,
    /// Whether a rail of an xdp net is cut and nothing may be lost; otherwise the seed says so.
    pub cut: bool,
    /// Whether a link of an xdp net drops long datagrams, and nothing may be lost then; as the seed says if
    /// nothing is said.
    pub narrow: Option<bool>,
    /// Behaviour of the nodes that are hostile, if there are any.
    pub hostile: Option<Hostile>,
    /// Whether the nodes are on two nets, and lead to each other by routers.
    pub routers: bool,
    /// The bug that the run has.
    pub bug: Option<Bug>,
    /// Where its lines go.
    pub tracing: Tracing,
}

impl Options {
    /// A run as its seed says, on an xdp net, without a bug.
    pub const DEFAULT: Self = Self {
        net: NetKind::Xdp,
        nodes: None,
        cut: false,
        narrow: None,
        hostile: None,
        routers: false,
        bug: None,
        tracing: Tracing::Off,
    };

    /// Whether a narrow link is asked for.
    fn is_narrow(&self) -> bool {
        self.narrow == Some(true)
    }
}

/// What a run has come to.
#[derive(Debug)]
pub struct Outcome {
    /// What it counted.
    pub counts: Counts,
    /// What a checker found.
    pub violation: Option<Violation>,
    /// Its last lines, if they were kept.
    pub lines: Vec<String>,
}

/// Runs one seed. A panic of the code under test is a violation.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = world::World::new(seed, options);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    let mut outcome = world.into_outcome();
    if let Some(panic) = panicked {
        let found = panic_text(panic.as_ref());
        outcome.violation = Some(Violation { checker: "nothing panics", found });
    }
    outcome
}

/// The words of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}
