//! Frames that answer, ask and acknowledge: none of them is acknowledged itself.

use lnet_wire::Nid;
use lnet_wire::frame::{Ack, FrameHeader, Kind, Transfer};

use super::inflow::AckDue;
use super::parts::Part;
use super::state::{REPLIES_MAX, Xfer};
use super::window::FramesSeen;
use super::{Content, Outgoing};
use crate::lnd::NiId;
use crate::time::Instant;

/// Frames after which an acknowledgement does not wait any longer.
const ACK_FRAMES: u32 = 16;
/// Frames that are received at most between two acknowledgements, which tell of 65.
const ACK_FRAMES_MAX: u32 = 56;

/// A frame that waits to be polled, and that nobody waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Hello {
        ni: NiId,
        nid: Nid,
        nonce: u64,
    },
    Welcome {
        ni: NiId,
        nid: Nid,
        nonce: u64,
        shard: u8,
        token: u64,
    },
    Reset {
        ni: NiId,
        nid: Nid,
        shard: u8,
        session: u64,
    },
    /// An acknowledgement that cannot wait: a later one would not tell of the oldest frames any more.
    Ack {
        ni: NiId,
        nid: Nid,
        shard: u8,
        token: u64,
        ack: Ack,
    },
}

impl Xfer {
    /// Queues a reply, if there is room.
    pub(super) fn reply(&mut self, reply: Reply) {
        // Whoever asks makes no room scarce for what this node says of its own accord.
        let room = match reply {
            Reply::Welcome { .. } | Reply::Reset { .. } => REPLIES_MAX / 2,
            Reply::Hello { .. } | Reply::Ack { .. } => REPLIES_MAX,
        };
        if self.replies.len() < room {
            self.replies.push_back(reply);
        } else {
            self.counters.replies_dropped += 1;
        }
    }

    pub(super) fn reply_frame(&mut self, reply: Reply) -> Outgoing {
        let mut carried = None;
        let (ni, destination, to_shard, kind, id, session, content) = match reply {
            Reply::Hello { ni, nid, nonce } => {
                self.counters.hellos_sent += 1;
                // One that it has been given shows that its certificate was good once.
                let contact = self.contacts.find(ni, &nid).and_then(|it| self.contacts.slab[it].session);
                let token = contact.map_or(0, |session| session.token);
                (ni, nid, self.shard, Kind::Hello, nonce, token, Content::Handshake)
            }
            Reply::Welcome { ni, nid, nonce, shard, token } => {
                self.counters.welcomes_sent += 1;
                (ni, nid, shard, Kind::Welcome, nonce, token, Content::Handshake)
            }
            Reply::Reset { ni, nid, shard, session } => {
                self.counters.resets_sent += 1;
                (ni, nid, shard, Kind::Reset, 0, session, Content::Nothing)
            }
            Reply::Ack { ni, nid, shard, token, ack } => {
                self.counters.acks_sent += 1;
                carried = Some(ack);
                (ni, nid, shard, Kind::Ack, 0, token, Content::Nothing)
            }
        };
        let transfer = Transfer { ack: carried, ..self.transfer(0, session) };
        Outgoing { ni, destination, header: FrameHeader::other(kind, to_shard, id), transfer, content }
    }

    pub(super) fn ack_frame(&mut self, slot: u32) -> Outgoing {
        let inflow = &self.inflows[slot];
        let ((ni, destination), shard, token) = (inflow.address, inflow.shard, inflow.token);
        let ack = self.acknowledgement(slot);
        self.counters.acks_sent += 1;
        let transfer = Transfer { ack, ..self.transfer(0, token) };
        Outgoing {
            ni,
            destination,
            header: FrameHeader::other(Kind::Ack, shard, 0),
            transfer,
            content: Content::Nothing,
        }
    }

    /// What is to be acknowledged of an inflow, which thereby is.
    #[inline]
    pub(super) fn acknowledgement(&mut self, slot: u32) -> Option<Ack> {
        let ack = self.acknowledged_by(slot);
        let inflow = &mut self.inflows[slot];
        if core::mem::replace(&mut inflow.ack, AckDue::No) == AckDue::Now {
            self.acks.remove(&mut self.inflows, slot);
        }
        self.inflows[slot].unacknowledged = 0;
        ack
    }

    /// What an acknowledgement tells of an inflow.
    #[inline]
    pub(super) fn acknowledged_by(&self, slot: u32) -> Option<Ack> {
        let frames = self.inflows[slot].frames?;
        Some(Ack { highest: frames.highest(), below: frames.below(), grant_bytes: self.grant_bytes() })
    }

    /// What each sender may have in flight: an equal share of what this shard can take.
    fn grant_bytes(&self) -> u32 {
        self.receive_bytes / self.busy_inflow_count.max(1)
    }

    /// A frame's content is dealt with; `urgent`: its sender seems to have missed that.
    pub(super) fn note_part(&mut self, now: Instant, inflow: u32, part: &Part<'_>, urgent: bool) {
        if let Some(number) = part.number {
            self.note_frame(now, inflow, number, urgent);
        }
    }

    /// A frame is to be acknowledged.
    #[inline]
    pub(super) fn note_frame(&mut self, now: Instant, slot: u32, number: u32, urgent: bool) {
        let inflow = &mut self.inflows[slot];
        let gap = match &mut inflow.frames {
            Some(frames) => frames.insert(number),
            None => {
                inflow.frames = Some(FramesSeen::starting_with(number));
                false
            }
        };
        inflow.unacknowledged += 1;
        let urgent = urgent || gap || inflow.unacknowledged > ACK_FRAMES;
        if inflow.unacknowledged >= ACK_FRAMES_MAX {
            return self.ack_at_once(now, slot);
        }
        self.ack_soon(now, slot, urgent);
    }

    /// The next acknowledgement of this inflow is not to wait.
    pub(super) fn hurry_ack(&mut self, slot: u32) {
        let inflow = &mut self.inflows[slot];
        inflow.unacknowledged = inflow.unacknowledged.max(ACK_FRAMES);
    }

    /// Many frames came in one go: what is to be said of them is noted.
    fn ack_at_once(&mut self, now: Instant, slot: u32) {
        if self.replies.len() == REPLIES_MAX {
            // Late is better than never, although it may not tell of all of them any more.
            return self.ack_soon(now, slot, true);
        }
        let Some(ack) = self.acknowledgement(slot) else { return };
        let inflow = &self.inflows[slot];
        let ((ni, nid), shard, token) = (inflow.address, inflow.shard, inflow.token);
        self.reply(Reply::Ack { ni, nid, shard, token, ack });
    }

    /// An inflow has something to acknowledge.
    #[inline]
    pub(super) fn ack_soon(&mut self, now: Instant, slot: u32, urgent: bool) {
        let inflow = &mut self.inflows[slot];
        match inflow.ack {
            AckDue::Now => {}
            _ if urgent => {
                inflow.ack = AckDue::Now;
                self.acks.push_back(&mut self.inflows, slot);
            }
            AckDue::No => {
                let at = now + self.times.ack_delay;
                inflow.ack = AckDue::At(at);
                self.set_timer(at);
            }
            AckDue::At(_) => {}
        }
    }
}
