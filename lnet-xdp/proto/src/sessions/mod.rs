//! Sessions: who this node is, who its peers are, and by which paths they are reached.
//!
//! Invariants: knows nothing of messages and streams. No state is made for a frame without a session, and
//! only who has received a token has one: under its own incarnation, and for one of its own addresses.
//! Forgetting a peer loses nothing here.

mod handshake;
mod nis;
mod paths;
mod peers;
mod quality;
mod reply;
mod saved;
mod tokens;
mod width;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::collections::{Seed, slot_bytes};
use lnet_core::lnd::{Path, PathReport, Uplink};
use lnet_core::time::Instant;
use lnet_wire::steer::{PORTALS, PolicyWord};

pub(super) use self::handshake::Opened;
pub(super) use self::nis::NOWHERE;
pub(super) use self::paths::{OfPeer, Paths, PeerPath, Refusable, Session};
pub(super) use self::peers::PeerIncarnation;
use self::peers::Peers;
use self::reply::REPLIES_MAX;
pub(super) use self::reply::Reply;
use self::saved::Saved;
use self::tokens::Tokens;
pub(super) use self::tokens::{Worth, is_newer};
pub(super) use self::width::{BASE_BYTES, is_far_longer};
use super::config::XferConfig;
use super::local::Local;
use crate::contract::{Address, Arrived, Narrowed};
use crate::identity::{Checks, Identity, KNOWN_BYTES};
use crate::met;

/// Bytes that a peer with one path takes.
pub(super) const PEER_BYTES: usize = slot_bytes::<peers::PeerIncarnation>()
    + slot_bytes::<paths::PeerPath>()
    + paths::TAKEN_BYTES
    + KNOWN_BYTES
    + saved::SAVED_BYTES
    + met::PEER_BYTES;

/// Addresses that have not answered, of which the driver is told at once; the others come up again.
const UNANSWERED_MAX: usize = 32;
/// Incarnations that have ended and are remembered for that.
const OVER_MAX: usize = 1024;

/// The sessions of one shard.
pub(super) struct Sessions {
    pub(super) local: Local,
    pub(super) paths: Paths,
    pub(super) peers: Peers,
    pub(super) tokens: Tokens,
    identity: Identity,
    checks: Checks,
    saved: Saved,
    secret: [u64; 2],
    shards: u8,
    policies: [PolicyWord; PORTALS],
    /// How often a session was asked for.
    questions: u64,
    /// NIs by number; those that are gone leave holes.
    nis: Vec<Option<nis::OwnNi>>,
    replies: VecDeque<Reply>,
    /// Addresses that have not answered for long; the driver is told of them.
    pub(super) unanswered: VecDeque<Address>,
    /// Incarnations that have ended of late, and when that was noticed: their tokens may still be fresh.
    over: VecDeque<(u64, Instant)>,
    /// The last path that was found to be narrow, until it is told.
    pub(super) narrowed: Option<Narrowed>,
    /// Where the next peer that makes room is looked for.
    pub(super) hand: u32,
}

impl Sessions {
    pub(super) fn new(config: XferConfig) -> Self {
        let peers = config.limits.peers;
        let seed = Seed::new(config.seed);
        let local = Local::new(&config);
        let own_ni = |ni| Some(nis::OwnNi::new(ni, &config.identity));
        Self {
            local,
            paths: Paths::new(peers, peers, seed, config.met),
            peers: Peers::new(peers, seed),
            tokens: Tokens::new(config.secret, &config.policies),
            checks: Checks::new(config.secret, peers),
            saved: Saved::new(peers, seed),
            nis: config.nis.into_iter().map(own_ni).collect(),
            identity: config.identity,
            secret: config.secret,
            shards: config.shard_count,
            policies: config.policies,
            questions: 0,
            replies: VecDeque::with_capacity(REPLIES_MAX),
            unanswered: VecDeque::with_capacity(UNANSWERED_MAX),
            over: VecDeque::with_capacity(OVER_MAX.min(peers as usize)),
            narrowed: None,
            hand: 0,
        }
    }

    /// The peer that has sent a frame, if it is known.
    #[inline]
    pub(super) fn sender(&self, frame: &Arrived<'_>) -> Option<u32> {
        PeerIncarnation::find(&self.peers, frame.transfer.incarnation)
    }

    /// What was sent by a path is not answered: it is avoided for a while where there is another one.
    pub(super) fn note_silence(&mut self, path: u32, up: &mut impl Uplink) {
        let now = self.local.now;
        self.paths.note_silence(now, path);
        up.path_health(now, &self.paths[path].as_path(), PathReport::Silent);
    }

    /// What was sent by a path is answered.
    pub(super) fn note_answer(&mut self, path: u32, round_trip: Option<Duration>, up: &mut impl Uplink) {
        self.paths.note_answer(path);
        up.path_health(self.local.now, &self.paths[path].as_path(), PathReport::Answers { round_trip });
    }

    /// Frames that went by a path to a peer have arrived; the longest of them has so many bytes, and was sent
    /// at this time; so many are pieces that were cut to learn whether such arrive.
    #[inline]
    pub(super) fn note_arrived(
        &mut self,
        path: (u32, u32),
        (count, pieces): (u32, u32),
        (longest_bytes, sent_at): (u32, Instant),
        up: &mut impl Uplink,
    ) {
        self.note_frames(path, (count, 0), up);
        self.note_as_long(path, pieces, (longest_bytes, sent_at));
    }

    /// A path to a peer has carried frames, of so many bytes at most, and pieces among them.
    #[inline]
    fn note_as_long(&mut self, to: (u32, u32), pieces: u32, (bytes, sent_at): (u32, Instant)) {
        let now = self.local.now;
        if self.paths.leading(to).is_none() {
            return;
        }
        let most_bytes = self.ends_max(to.0);
        if self.paths[to.0].width.arrived(now, (pieces, bytes), sent_at, most_bytes) {
            self.note_narrow(to.0);
        }
    }

    /// A frame of so many bytes that went by a path to a peer was lost. Where it was longer than the path is
    /// known to carry that says nothing of the path, or of how much is under way (RFC 8899, 3).
    pub(super) fn note_lost(
        &mut self,
        to: (u32, u32),
        (bytes, sent_at): (u32, Instant),
        up: &mut impl Uplink,
    ) {
        let now = self.local.now;
        if self.is_too_long(to, bytes) {
            return;
        }
        self.note_frames(to, (0, 1), up);
        if self.paths.leading_mut(to).is_some_and(|path| path.width.lost(now, bytes, sent_at)) {
            self.note_narrow(to.0);
        }
    }

    /// The kernel carries no more than so many bytes in a datagram that goes by this path.
    pub(super) fn note_path_max(&mut self, path: &Path, bytes: u32) {
        let now = self.local.now;
        if let Some(slot) = self.paths.find(path.ni, &path.peer)
            && self.paths[slot].width.told(now, bytes)
        {
            self.note_narrow(slot);
        }
    }

    fn note_narrow(&mut self, path: u32) {
        self.local.counters.paths_narrowed += 1;
        let entry = &self.paths[path];
        self.narrowed = Some(Narrowed { path: entry.as_path(), datagram_bytes: entry.width.bytes() });
    }

    /// Whether a path to a peer is known not to carry frames of so many bytes.
    pub(super) fn is_too_long(&self, to: (u32, u32), bytes: u32) -> bool {
        self.paths.leading(to).is_some_and(|path| bytes > path.width.bytes())
    }

    /// Whether a piece is to be cut from the frame of so many bytes that a path to a peer has lost last.
    pub(super) fn wants_piece(&self, to: (u32, u32), bytes: u32) -> bool {
        self.paths.leading(to).is_some_and(|path| path.width.wants_piece(bytes))
    }

    /// Whether a path to a peer may not carry frames of so many bytes, for all that is known.
    pub(super) fn may_be_too_long(&self, to: (u32, u32), bytes: u32) -> bool {
        let now = self.local.now;
        self.paths.leading(to).is_none_or(|path| path.width.is_doubtful(now, bytes))
    }

    /// Frames that went by a path to a peer have arrived, or were lost. The path is judged from time to time.
    /// One that was told as silent is told to answer again, also where the stream itself had been answered by
    /// another path.
    #[inline]
    pub(super) fn note_frames(&mut self, to: (u32, u32), (arrived, lost): (u32, u32), up: &mut impl Uplink) {
        let (now, path) = (self.local.now, to.0);
        if self.paths.leading(to).is_none() {
            return;
        }
        if arrived != 0 && self.paths.answers_again(now, path) {
            up.path_health(now, &self.paths[path].as_path(), PathReport::Answers { round_trip: None });
        }
        if self.paths[path].quality.count(now, arrived, lost) {
            self.judge(path, up);
        }
    }

    /// A frame of so many bytes by a path counted as lost, and has arrived after all.
    pub(super) fn note_found(&mut self, to: (u32, u32), (bytes, sent_at): (u32, Instant)) {
        if let Some(path) = self.paths.leading_mut(to) {
            path.quality.found();
            // Further messages of a frame say nothing of its length.
            if bytes != 0 {
                self.note_as_long(to, 0, (bytes, sent_at));
            }
        }
    }

    /// A round trip by a path was measured.
    #[inline]
    pub(super) fn measure(&mut self, to: (u32, u32), round_trip: Duration) {
        if let Some(path) = self.paths.leading_mut(to) {
            path.quality.measure(round_trip);
        }
    }

    /// Ends a path's window, and reports it if it is clearly worse than another one that answers.
    fn judge(&mut self, path: u32, up: &mut impl Uplink) {
        let now = self.local.now;
        let suspicion = self.paths[path].quality.end_window(now);
        if !suspicion.is_any() {
            return;
        }
        let judged = &self.paths[path];
        let others = self.paths.of_peer(judged.peer).filter(|other| *other != path);
        let others = others.map(|other| &self.paths[other]);
        let others = others.filter(|other| other.session.is_some() && other.answers(now));
        let report = judged.quality.beside(now, suspicion, others.map(|other| other.quality));
        let Some(report) = report else { return };
        match report {
            PathReport::Slow => self.local.counters.paths_slow += 1,
            _ => self.local.counters.paths_lossy += 1,
        }
        up.path_health(now, &judged.as_path(), report);
    }

    /// Where a peer is answered whose last frame came from `address`: there, or while nothing that is sent
    /// there is answered, at another address.
    pub(super) fn answered_at(&self, peer: u32, address: Address) -> Address {
        let now = self.local.now;
        if !self.paths.has_silent(now) {
            return address;
        }
        let own = self.paths.find(address.0, &address.1);
        if own.is_none_or(|path| !self.paths[path].is_silent(now)) {
            return address;
        }
        self.answering_path(peer).map_or(address, |path| (self.paths[path].ni, self.paths[path].nid))
    }

    /// Another address of a peer, where it is answered besides: each in its turn. What this node knows of its
    /// paths it has from its own messages, and a path may carry frames one way.
    pub(super) fn also_answered_at(&self, peer: u32, address: Address, turn: u32) -> Option<Address> {
        let is_another = |other: &Address| *other != address && self.nid_of(other.0).is_some();
        let of_path = |path: u32| {
            let PeerPath { ni, nid, session, .. } = &self.paths[path];
            session.map(|_| (*ni, *nid))
        };
        let from = self.peers[peer].other_address.into_iter();
        let others = || from.clone().chain(self.paths.of_peer(peer).filter_map(of_path)).filter(is_another);
        let index = (turn as usize).checked_rem(others().count())?;
        others().nth(index)
    }

    /// A path to a peer that has a session and is not silent.
    fn answering_path(&self, peer: u32) -> Option<u32> {
        let answers = |path: &PeerPath| path.session.is_some() && !path.is_silent(self.local.now);
        self.paths.of_peer(peer).find(|path| answers(&self.paths[*path]))
    }

    /// Other policies hold from now on; says whether they differ. Session tokens are keyed by the policies:
    /// numbers of frames belong to pairs of shards, so what was steered by others must not be taken for one
    /// of its new shard's. It is answered by RESET, and its sender learns the policies with its next session.
    pub(super) fn set_policies(&mut self, policies: &[PolicyWord; PORTALS]) -> bool {
        let differ = self.policies != *policies;
        if differ {
            self.policies = *policies;
            self.tokens = Tokens::new(self.secret, policies);
        }
        differ
    }
}
