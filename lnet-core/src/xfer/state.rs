//! The tables of an [`Xfer`], and what only reads or sets them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use lnet_wire::frame::Handshake;
use lnet_wire::steer::{PORTALS, PolicyWord, SHARDS_MAX};

use super::acknowledge::Unread;
use super::config::{XferConfig, XferTimes};
use super::flow::{Busy, Flow, Ready};
use super::identity::{Checks, Identity};
use super::inflow::{Acks, Arrivals, Inflow, Recent, UnitMaps};
use super::interfaces::Interface;
use super::message::{Deadlines, Outbound};
use super::park::Holds;
use super::peer::{Contacts, Peers};
use super::receive::Writing;
use super::record::Record;
use super::reply::Reply;
use super::session::Tokens;
use super::stats::{XferCounters, XferUsage};
use super::window::Window;
use super::{BUNDLE_MAX, Bundled};
use crate::hash::Seed;
use crate::list::List;
use crate::lnd::{NiId, Transmit};
use crate::slab::Slab;
use crate::time::Instant;

/// Replies that wait for room for a frame; further ones are not given.
pub(super) const REPLIES_MAX: usize = 64;

/// The transfer protocol of one shard. See the [module](super) for the order of calls.
pub struct Xfer {
    pub(super) shard: u8,
    pub(super) shards: u8,
    pub(super) identity: Identity,
    pub(super) incarnation: u64,
    pub(super) secret: [u64; 2],
    pub(super) tokens: Tokens,
    pub(super) checks: Checks,
    /// How often a session was asked for.
    pub(super) questions: u64,
    pub(super) initiator_hash: u32,
    pub(super) policies: [PolicyWord; PORTALS],
    /// By number; those that are gone leave holes.
    pub(super) interfaces: Vec<Option<Interface>>,
    pub(super) receive_bytes: u32,
    pub(super) times: XferTimes,
    #[cfg(feature = "sabotage")]
    pub(super) sabotage: super::Sabotage,

    pub(super) contacts: Contacts,
    pub(super) peers: Peers,
    pub(super) messages: Slab<Outbound>,
    pub(super) deadlines: List<Deadlines>,
    pub(super) records: Slab<Record>,
    /// Records that are kept for notices, which take no others; fragments that are cut anew may take of them.
    pub(super) records_kept: u32,
    /// Notices among the records.
    pub(super) notice_count: u32,
    pub(super) flows: Slab<Flow>,
    pub(super) ready: List<Ready>,
    pub(super) busy_flows: List<Busy>,
    /// Whether a flow has stopped because no record was free.
    pub(super) short_of_records: bool,
    /// Whether messages wait in a contact that has a session, for an id or a flow; or words for a contact.
    pub(super) starved: bool,

    pub(super) inflows: Slab<Inflow>,
    /// The windows of those that there may be besides.
    pub(super) windows: Vec<Window>,
    /// How many of them one address may have: whatever it pretends to be, others find room.
    pub(super) inflows_per_address: u32,
    pub(super) acks: List<Acks>,
    pub(super) busy_inflows: List<Busy>,
    pub(super) busy_inflow_count: u32,
    pub(super) recent: List<Recent>,
    pub(super) arrivals: Arrivals,
    pub(super) maps: UnitMaps,
    pub(super) holds: Holds,
    /// An acknowledgement that came with data: that is dealt with first, since somebody waits for it.
    pub(super) unread: Option<Unread>,
    /// What [`Xfer::written`] will conclude.
    pub(super) writing: Option<Writing>,
    /// Whether a message of the frame at hand was not taken.
    pub(super) bundle_spoiled: bool,
    /// The messages behind the first one of the frame that was polled last.
    pub(super) bundle: Vec<u32>,
    pub(super) replies: VecDeque<Reply>,

    /// Incarnations that have ended of late, and when that was noticed: their tokens may still be fresh.
    pub(super) over: VecDeque<(u64, Instant)>,
    /// Ids, and frame numbers, of peers that were forgotten lie below.
    pub(super) id_floor: u64,
    pub(super) number_floor: u64,
    /// Nothing is due before.
    pub(super) timer: Option<Instant>,
    pub(super) sweep_at: Instant,
    pub(super) counters: XferCounters,
}

impl Xfer {
    /// Allocates all that it will ever use.
    #[must_use]
    pub fn new(config: XferConfig) -> Self {
        let limits = config.limits;
        let seed = Seed::new(config.seed);
        let room = limits.flows.min(limits.peers);
        let incarnation = config.identity.incarnation();
        let interfaces = config.nids.into_iter().zip(config.datagram_max_bytes);
        let interfaces = interfaces.map(|(nid, bytes)| Some(Interface::new(nid, bytes, &config.identity)));
        Self {
            shard: config.shard.0,
            shards: config.shard_count,
            interfaces: interfaces.collect(),
            identity: config.identity,
            incarnation,
            secret: config.secret,
            tokens: Tokens::new(config.secret, &config.policies),
            checks: Checks::new(config.secret),
            questions: 0,
            initiator_hash: config.initiator_hash,
            policies: config.policies,
            receive_bytes: config.receive_bytes,
            times: config.times,
            #[cfg(feature = "sabotage")]
            sabotage: super::Sabotage::default(),
            contacts: Contacts::new(limits.peers, seed),
            peers: Peers::new(limits.peers, seed),
            messages: Slab::new(limits.messages),
            deadlines: List::new(),
            records: Slab::new(limits.frames),
            records_kept: limits.incoming.min(limits.frames / 2),
            notice_count: 0,
            flows: Slab::new(limits.flows),
            ready: List::new(),
            busy_flows: List::new(),
            short_of_records: false,
            starved: false,
            inflows: Slab::new(limits.flows),
            windows: (0..limits.flows).map(|_| Window::new()).collect(),
            inflows_per_address: (room / 8).max(SHARDS_MAX).min(room / 2),
            acks: List::new(),
            busy_inflows: List::new(),
            busy_inflow_count: 0,
            recent: List::new(),
            arrivals: Arrivals::new(limits.incoming, seed),
            maps: UnitMaps::new(limits.partials),
            holds: Holds::new(limits.held),
            unread: None,
            writing: None,
            bundle_spoiled: false,
            bundle: Vec::with_capacity(BUNDLE_MAX),
            replies: VecDeque::with_capacity(REPLIES_MAX),
            over: VecDeque::with_capacity(limits.peers as usize),
            id_floor: u64::from(config.shard.0) << 56 | 1,
            number_floor: 1,
            timer: None,
            sweep_at: Instant(0),
            counters: XferCounters::default(),
        }
    }

    /// Switches bugs on.
    #[cfg(feature = "sabotage")]
    pub const fn sabotage(&mut self, sabotage: super::Sabotage) {
        self.sabotage = sabotage;
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &XferCounters {
        &self.counters
    }

    /// What is in use at this moment.
    #[must_use]
    pub fn usage(&self) -> XferUsage {
        XferUsage {
            messages: self.messages.used_count(),
            incoming: self.arrivals.slab.used_count(),
            partials: self.maps.used_count(),
            frames: self.records.used_count(),
            held: self.holds.count(),
            peers: self.peers.slab.used_count(),
            flows: self.flows.used_count(),
            inflows: self.inflows.used_count(),
        }
    }

    /// What a HELLO or WELCOME tells of this node that is sent by `ni`.
    #[must_use]
    pub fn handshake(&self, ni: NiId) -> Handshake {
        Handshake {
            shards: self.shards,
            datagram_max_bytes: self.own_datagram_max(ni),
            policies: self.policies,
            certificate: self.certificate(ni),
        }
    }

    /// The message that the frame begins with which [`Xfer::poll_transmit`] has returned last.
    ///
    /// # Panics
    /// If that frame has none.
    #[must_use]
    pub fn polled(&self) -> &Transmit {
        &self.messages[self.bundle[0]].transmit
    }

    /// Message `index` behind the first one of the frame that [`Xfer::poll_transmit`] has returned last.
    ///
    /// # Panics
    /// If that frame has fewer.
    #[must_use]
    pub fn bundled(&self, index: u8) -> Bundled {
        let first = self.messages[self.bundle[0]].id;
        let message = &self.messages[self.bundle[1 + usize::from(index)]];
        Bundled {
            id_delta: (message.id - first) as u16,
            lnet: message.transmit.header,
            payload: message.transmit.payload,
        }
    }

    /// Whether [`Xfer::poll_transmit`] may have a frame.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.replies.is_empty() || !self.ready.is_empty() || !self.acks.is_empty()
    }

    /// When [`Xfer::handle_timeout`] may have something to do.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        if self.unread.is_some() { Some(Instant(0)) } else { self.timer }
    }

    /// Something is due at this time.
    #[inline]
    pub(super) fn set_timer(&mut self, at: Instant) {
        if self.timer.is_none_or(|timer| at < timer) {
            self.timer = Some(at);
        }
    }
}
