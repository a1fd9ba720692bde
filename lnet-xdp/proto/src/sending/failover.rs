//! The paths that frames take: their own, or another one while that does not answer.
//!
//! This side tells which path is silent and which other ones there are; the [`Uplink`] chooses. Ids, windows
//! and frame numbers go on by any path.
//!
//! Frames under way by an NI that goes take another path as well. Windows stay, so nothing is doubled. Where
//! all paths were silent, the one that was so longest ago has its turn, so that every path is tried. Where no
//! path with a session answers, the shard names another path of the peer, which is asked for one.

use lnet_core::collections::NONE;
use lnet_core::lnd::Uplink;
use lnet_core::time::Instant;

use super::item::{Cargo, SentItem};
use super::stream::{Failover, GivenUp};
use super::{SendContext, SendingSide};
use crate::contract::PATH_CANDIDATES_MAX;
use crate::sessions::Sessions;

/// Probes without an answer after which another path is tried, with each further one.
pub(crate) const FAILOVER_PROBES: u32 = 2;
/// How often a frame is sent by its own path before another one is taken.
const SENDS_BY_OWN_PATH: u8 = 3;

impl SendingSide {
    /// Whether frames of a stream may go by a path: it has a session, which is no old one where the receiver
    /// may have forgotten this sender, and would not begin anew with it.
    #[inline]
    pub(crate) fn leads(&self, stream: u32, path: u32, sessions: &Sessions) -> bool {
        let now = sessions.local.now;
        let stream = &self.streams[stream];
        let patience = sessions.local.times.message;
        let session = sessions.paths.leading((path, stream.peer)).and_then(|path| path.session.as_ref());
        session.is_some_and(|session| !session.is_aged(now) || stream.is_open(now, patience))
    }

    /// The path to the last address of a peer.
    pub(crate) fn last_path(&self, stream: u32, sessions: &Sessions) -> Option<u32> {
        let (ni, nid) = &sessions.peers[self.streams[stream].peer].address;
        sessions.paths.find(*ni, nid)
    }

    /// The path by which a frame goes: the one that was chosen instead of its own, its own, or where that has
    /// no session or is silent, the one to the peer's last address, or any that leads there; a silent one
    /// only where all are.
    #[inline]
    pub(crate) fn path_for(&self, stream: u32, own: u32, sessions: &Sessions) -> Option<u32> {
        let now = sessions.local.now;
        let leads = |path: &u32| self.leads(stream, *path, sessions);
        let choice = self.streams[stream].choice(now, &sessions.paths);
        #[cfg(feature = "sabotage")]
        let choice = if sessions.local.sabotage.no_failover { Some(NONE) } else { choice };
        let is_avoided = |path: &u32| choice.is_none() && sessions.paths[*path].is_silent(now);
        let own = Some(own).filter(leads);
        choice.filter(leads).or_else(|| own.filter(|own| !is_avoided(own))).or_else(|| {
            let last = self.last_path(stream, sessions).filter(leads);
            let others = sessions.paths.of_peer(self.streams[stream].peer).filter(leads);
            own.into_iter().chain(last).chain(others).min_by_key(is_avoided)
        })
    }

    /// The path by which a frame goes; where there is none, a session is asked for.
    #[inline]
    pub(crate) fn find_path(&self, stream: u32, own: u32, sessions: &mut Sessions) -> Option<u32> {
        let path = self.path_for(stream, own, sessions);
        if path.is_none() {
            let peer = self.streams[stream].peer;
            if sessions.paths.leading((own, peer)).is_some() {
                sessions.ask(own);
            }
            sessions.ask_last_address(peer);
        }
        path
    }

    /// A frame was overtaken by others that have arrived. What is lost again and again takes another path, if
    /// it has gone by the one that is taken now.
    pub(crate) fn lose_overtaken(&mut self, slot: u32, item: u32, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let SentItem { overtaken_at, datagram_bytes, path, .. } = self.items[item];
        self.give_up((slot, item), Some(overtaken_at.unwrap_or(now)), call);
        let stream = &mut self.streams[slot];
        if call.sessions.is_too_long((path, stream.peer), datagram_bytes) {
            return;
        }
        if datagram_bytes != 0 {
            stream.congestion.note_lost();
        }
        let stream = &self.streams[slot];
        let chosen = stream.failover_path(now, &call.sessions.paths);
        // Where nothing is acknowledged at all the probes change the path.
        if self.items[item].sends >= SENDS_BY_OWN_PATH
            && chosen.is_none_or(|chosen| chosen == path)
            && stream.congestion.probes == 0
            && stream.may_fail_over(now, &call.sessions.local.times, &call.sessions.paths)
        {
            self.fail_over(slot, item, call);
        }
    }

    /// An item counts as lost, by the path that it went by, and is to be sent again.
    pub(crate) fn give_up(
        &mut self,
        (slot, item): (u32, u32),
        overtaken_at: Option<Instant>,
        call: &mut SendContext<'_, impl Uplink>,
    ) {
        let SentItem { number, datagram_bytes, sent_at, path, .. } = self.items[item];
        self.lose(slot, item);
        let stream = &mut self.streams[slot];
        stream.give_up(GivenUp { number, overtaken_at, path, datagram_bytes, sent_at });
        if datagram_bytes != 0 {
            let path = (path, stream.peer);
            call.sessions.note_lost(path, (datagram_bytes, sent_at), call.up);
            if call.sessions.wants_piece(path, datagram_bytes) {
                self.cut_short(slot, item);
            }
        }
    }

    /// What carried this item does not answer: has another path chosen for its stream, for a while. The first
    /// one that is offered is that to the last address, which the peer's frames come from; once that was
    /// silent, each in turn.
    pub(crate) fn fail_over(&mut self, slot: u32, item: u32, call: &mut SendContext<'_, impl Uplink>) {
        let now = call.sessions.local.now;
        let peer = self.streams[slot].peer;
        call.sessions.ask_last_address(peer);
        let leads = |path: &u32| self.leads(slot, *path, call.sessions);
        let last = self.last_path(slot, call.sessions).unwrap_or(NONE);
        let own = match self.items[item].cargo {
            Cargo::Fragment { message, .. } => self.messages[message].path,
            Cargo::Control(_) => last,
        };
        let stream = &self.streams[slot];
        let in_vain = stream.congestion.probes > FAILOVER_PROBES
            || stream.failover_path(now, &call.sessions.paths).is_some();
        let taken = stream.failover.filter(|_| in_vain).map(|failover| failover.taken);
        let taken = taken.filter(leads).or_else(|| self.path_for(slot, own, call.sessions));
        let silent = taken.unwrap_or(own);
        let Some(entry) = call.sessions.paths.get(silent) else { return };
        let silent_path = entry.as_path();
        let (mut slots, mut candidates, mut count) =
            ([NONE; PATH_CANDIDATES_MAX], [silent_path; PATH_CANDIDATES_MAX], 0);
        let in_turn = call.sessions.paths.of_peer_after(peer, silent);
        let first = if in_vain { silent } else { last };
        for path in core::iter::once(first).chain(in_turn).filter(leads) {
            if path != silent && count < PATH_CANDIDATES_MAX && !slots[..count].contains(&path) {
                (slots[count], candidates[count]) = (path, call.sessions.paths[path].as_path());
                count += 1;
            }
        }
        call.sessions.note_silence(silent, call.up);
        call.sessions.tell_unanswered(silent);
        let chosen = if count == 0 { None } else { call.up.reroute(now, &silent_path, &candidates[..count]) };
        let path = chosen.and_then(|index| slots[..count].get(index)).copied().unwrap_or(NONE);
        self.streams[slot].failover = Some(Failover::new(now, silent, path, &call.sessions.paths));
        call.sessions.ask_by_another_path(silent, call.up);
    }

    /// A stream that was silent is answered, by the path that it takes at this time.
    pub(crate) fn report_answer(&self, slot: u32, call: &mut SendContext<'_, impl Uplink>) {
        let stream = &self.streams[slot];
        let taken = stream.failover_path(call.sessions.local.now, &call.sessions.paths);
        // Its NI may have gone since.
        let taken = taken.filter(|path| self.leads(slot, *path, call.sessions));
        if let Some(path) = taken.or_else(|| self.last_path(slot, call.sessions)) {
            call.sessions.note_answer(path, stream.congestion.round_trip(), call.up);
        }
    }
}
