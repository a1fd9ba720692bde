//! The contract between a shard and the network drivers (LNDs) below it.
//!
//! A shard lends a [`Transmit`] that holds its credits to [`Lnd::submit`]; the LND reports its end exactly
//! once through [`Uplink::sent`]. For each message that arrives the LND calls [`Uplink::header`] once and, if
//! that answered [`Verdict::Deliver`], [`Uplink::received`] once; a delayed one gets its verdict by
//! [`Lnd::resume`]. An LND delivers a message at most once; order between messages is not promised.
//!
//! - `SEND` means that the peer's shard has the message, not that the device took it: retransmission reads
//!   the buffer until then.
//! - [`Lnd::Memory`] is handed to `submit` and `drive`. The core never sees payload bytes, and a shard's
//!   buffers need no lock.
//! - [`Lnd::flush`] exists because several messages share one kick.
//! - [`Uplink::header`] is told the NI that a message came by, since a message is for that NI alone or, of a
//!   router, for a node beyond; and the peer NI that it came from, as the LND has verified it. The source in
//!   a header is a claim. It must be that peer NI, or another NID of the same peer on a net of this node, or
//!   one on no such net if that peer is a gateway, else the message is dropped and counted (`ForgedSource`).
//!   A routed message is put in place in a buffer of the node, and [`Lnd::submit`] gets it from there.
//!   Credits, slots and shares of responses go by the verified NID; what is sent by another path has its
//!   source renamed, if it is this node's.
//! - Prefetch hints are an optional trait. An LND that gives none, or wrong ones, changes nothing but the
//!   time that a match takes.

use core::net::IpAddr;
use core::time::Duration;

use lnet_model::lnd::LndRow;
use lnet_wire::{Header, Nid, ProcessId};

pub use crate::collections::{Full, Prefetch};
use crate::errno;
use crate::handle::{BufferRef, CookieKind};
use crate::health::HealthStatus;
use crate::time::Instant;

/// Portal of pings and pushes, by which nodes ask and tell each other who they are.
pub const PING_PORTAL: u32 = 0;
/// Match bits of pings and pushes.
pub const PING_MATCH_BITS: u64 = 1 << 63;

/// A local NI of this node: its index in the topology.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NiId(pub u16);

/// Facts of an LND that the core goes by. All NIs of an LND have the same, and each NI brings them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LndFacts {
    /// Whether it proves by which NIDs a peer goes. Then it names the source of a message itself where that
    /// is proven ([`Uplink::header`]), and what discovery has heard of the peer adds nothing.
    pub proves_sources: bool,
    /// Whether what an NI sends to its own NID comes back to it. Then a ping of that NID shows whether the NI
    /// works; else it goes by `lo`.
    pub reaches_itself: bool,
    /// Whether peers bear a GET for a portal where they have posted nothing: kernel nodes assert that they
    /// have, and die.
    pub takes_any_get: bool,
    /// Whether it begins to send a message of which only a part is there ([`Lnd::extend`]).
    pub takes_parts: bool,
}

impl Default for LndFacts {
    /// Facts of the LNDs of kernel nodes.
    fn default() -> Self {
        Self::KERNEL
    }
}

impl LndFacts {
    /// Facts of the LNDs of kernel nodes: [`LndFacts::default`].
    pub const KERNEL: Self =
        Self { proves_sources: false, reaches_itself: true, takes_any_get: false, takes_parts: false };

    /// Facts of the LND of this row.
    #[must_use]
    pub const fn of(row: &LndRow) -> Self {
        let LndRow { proves_sources, reaches_itself, takes_any_get, takes_parts, .. } = *row;
        Self { proves_sources, reaches_itself, takes_any_get, takes_parts }
    }
}

/// A message on its way out, as its shard names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TxId(pub u32);

/// A peer NI, as a shard that remembers it names it. Another one has its name once the shard has forgotten
/// it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerSlot(pub u32);

/// A message on its way in, as its LND names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RxId(pub u32);

/// A run of bytes inside a buffer, of a memory descriptor or of the node itself; none that a shard hands out
/// reaches or begins beyond the buffer's end. The buffer lives at least until the message that was given the
/// span has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The buffer.
    pub buffer: BufferRef,
    /// First byte, from the start of the buffer.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u32,
}

impl Span {
    /// Whether it lies in a buffer of the node itself: then it is of a message that goes on.
    #[inline]
    #[must_use]
    pub const fn is_routed(&self) -> bool {
        self.buffer.0.is(CookieKind::Buffer)
    }
}

/// A message that holds its credits, for an LND to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Names the message in [`Uplink::sent`].
    pub tx: TxId,
    /// The NI to send by.
    pub ni: NiId,
    /// The peer NI to send it to: where the header says that it goes, or a router on the way there.
    pub next_hop: Nid,
    /// The shard's number of the next hop. An LND that has looked something up by the NID finds it again by
    /// this number, if it makes sure that the NID is the same.
    pub peer: PeerSlot,
    /// The header; its payload length is that of `payload` once all of that is there.
    pub header: Header,
    /// Where the payload is, as far as it is there; `None` for a message without any.
    pub payload: Option<Span>,
}

/// A message as a shard lends it to an LND.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent<'a> {
    /// The message.
    pub transmit: &'a Transmit,
    /// Whether another one follows for the same NI, before the next [`Lnd::flush`].
    pub more: bool,
}

/// How a message ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The message went as it was asked for.
    Ok,
    /// The message never left this node: it may be sent again by another path.
    NeverSent(Cause),
    /// Whether the peer has it is unknown.
    Unknown(Cause),
}

impl Status {
    /// How health judges this end (LNet `lib-move.c`, `socklnd_cb.c: ksocknal_txlist_done`); `None` for a
    /// good one, for one that this node did not want any more, and for one without a path yet.
    #[must_use]
    pub const fn health(self) -> Option<HealthStatus> {
        Some(match self {
            Self::Ok
            | Self::NeverSent(Cause::Cancelled | Cause::Undiscovered(_))
            | Self::Unknown(Cause::Cancelled | Cause::Undiscovered(_)) => return None,
            Self::NeverSent(Cause::Simulated(status)) | Self::Unknown(Cause::Simulated(status)) => status,
            // Where the time went is not known: the peer may not have answered, or not have taken enough.
            Self::NeverSent(Cause::Timeout | Cause::CreditTimeout | Cause::System(errno::ETIMEDOUT))
            | Self::Unknown(Cause::Timeout | Cause::CreditTimeout) => HealthStatus::NetworkTimeout,
            Self::Unknown(Cause::System(errno::ETIMEDOUT)) => HealthStatus::RemoteTimeout,
            // Other peers may well be reached by the same NI.
            Self::NeverSent(Cause::Unreachable | Cause::Reset) => HealthStatus::RemoteDropped,
            Self::NeverSent(Cause::System(errno)) if errno::is_remote(errno) => HealthStatus::RemoteDropped,
            Self::Unknown(Cause::System(errno)) if !errno::is_remote(errno) => HealthStatus::LocalError,
            // The device has refused it, or is gone.
            Self::NeverSent(Cause::Device) => HealthStatus::LocalDropped,
            Self::NeverSent(_) => HealthStatus::LocalError,
            Self::Unknown(Cause::Device) => HealthStatus::RemoteDropped,
            Self::Unknown(_) => HealthStatus::RemoteError,
        })
    }

    /// Whether the message may go by another path: it never left by this one, and that was not by the
    /// message's own fault.
    #[must_use]
    pub fn allows_another_path(self) -> bool {
        match self {
            Self::NeverSent(cause) if cause.is_of_the_path() => true,
            Self::NeverSent(_) => self.health().is_some_and(HealthStatus::allows_another_path),
            Self::Ok | Self::Unknown(_) => false,
        }
    }
}

/// Why a message ended badly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// No route, no NI or no neighbour for the destination (`-EHOSTUNREACH`).
    Unreachable,
    /// The system says so, by this errno, positive: of a connection that could not be made or that broke, or
    /// of a host that takes no frames.
    System(u8),
    /// Not in time (`-ETIMEDOUT`).
    Timeout,
    /// Its deadline passed while it waited for a credit of its peer or its NI (`-ETIMEDOUT`).
    CreditTimeout,
    /// Unlinked before it was sent (`-ECANCELED`).
    Cancelled,
    /// Larger than this LND can carry (`-EMSGSIZE`).
    TooLong,
    /// The device or the kernel refused it (`-EIO`).
    Device,
    /// The peer has begun a new life and knows nothing of it (`-ECONNRESET`).
    Reset,
    /// The shard did not start it: what was asked for cannot be done, or not now (`-EINVAL`).
    Refused,
    /// A fault rule failed it, with this health status (`-EINVAL`).
    Simulated(HealthStatus),
    /// The message waited for its peer to be discovered, and that failed with this errno, positive.
    Undiscovered(u8),
}

impl Cause {
    /// Whether another path may do better: nothing led there, no answer came in time, or the system said no.
    pub(crate) const fn is_of_the_path(self) -> bool {
        matches!(self, Self::Unreachable | Self::Timeout | Self::System(_))
    }
}

/// What a shard wants done with a message that arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Put the first `length_bytes` of the payload there, skip the rest, then call [`Uplink::received`].
    /// What has no payload (an ACK, a GET) is delivered too, to an empty span.
    Deliver(Span),
    /// Keep the message or have its sender keep it, until the shard says what becomes of it
    /// ([`Lnd::resume`]); or give it up by [`Uplink::received`] with a failure.
    Delay,
    /// Skip it. The shard has counted it.
    Drop,
}

/// What one call of [`Lnd::drive`] moved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Frames that came in.
    pub received: u32,
    /// Frames whose sending the device completed.
    pub completed: u32,
}

/// What a network driver does for a shard.
pub trait Lnd {
    /// Where the payload bytes are. The core never looks at them, so it does not know this type.
    type Memory: ?Sized;

    /// Takes a message that already holds its credits. It is sent by the next [`Lnd::flush`] at the latest,
    /// and may be at once where no other follows that could share a frame or a kick with it.
    ///
    /// # Errors
    /// [`Full`] names the message when the device has no room for it.
    fn submit(&mut self, now: Instant, message: Lent<'_>, memory: &Self::Memory) -> Result<(), Full<TxId>>;

    /// Sends what there is to be sent, as far as the device has room: several messages, one kick.
    fn flush(&mut self, now: Instant, memory: &Self::Memory);

    /// Moves at most `budget` frames per direction. Never blocks.
    fn drive(
        &mut self,
        now: Instant,
        budget: u32,
        up: &mut impl Uplink,
        memory: &mut Self::Memory,
    ) -> Progress;

    /// Goes on with a message that [`Uplink::header`] answered with [`Verdict::Delay`]; `verdict` is one of
    /// the others. A message that the LND has given up meanwhile is no longer resumed.
    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink);

    /// More has arrived of the payload of a message that the LND has, which it may send as well. Only an LND
    /// that [takes parts](LndFacts::takes_parts) gets a message before all of that is there.
    fn extend(&mut self, _now: Instant, _transmit: &Transmit) {}

    /// The rest of the payload of such a message does not come: it ends, and its receiver is told as far as
    /// that can be done.
    fn withdraw(&mut self, _now: Instant, _transmit: &Transmit, _up: &mut impl Uplink) {}

    /// When [`Lnd::drive`] wants to be called again even if nothing arrives.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// What an LND knows of a PUT or GET that it is about to hand over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchHint {
    /// Its portal index.
    pub portal: u32,
    /// Its match bits.
    pub match_bits: u64,
    /// Who sent it.
    pub source: ProcessId,
}

/// The two ends between which messages to a peer go: a local NI, and the peer NI that it sends to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The local NI.
    pub ni: NiId,
    /// The NID of the peer NI, on a net of the local NI's.
    pub peer: Nid,
}

/// How long a path that was found silent is avoided, unless it answers before or is found silent again.
pub const SILENCE: Duration = Duration::from_secs(1);

/// News of a [`Path`]. The LND finds out, but for a message that could not be sent, which the shard sees. The
/// shard goes by what it was told last, and tells the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PathReport {
    /// Messages by it are not answered, or its device does not send: the path is avoided for [`SILENCE`].
    Silent,
    /// The peer has answered what was sent by it.
    Answers {
        /// How long that took, smoothed, if it was measured.
        round_trip: Option<Duration>,
    },
    /// The peer answers, but far more of what is sent by it is lost than by another path to the same peer.
    Lossy,
    /// The peer answers, but takes many times as long as by another path to the same peer.
    Slow,
}

/// Hints that let matching have memory fetched before messages come. No outcome depends on them: an LND may
/// give none, and an [`Uplink`] may want none, which is the default.
pub trait PrefetchHints {
    /// Whether [`PrefetchHints::hint`] saves more than it costs: whether so much is posted that matching
    /// waits for memory.
    fn wants_hints(&self) -> bool {
        false
    }

    /// Messages that [`Uplink::header`] is about to be called for, one after the other, as a receive loop has
    /// them that takes a batch off a ring; before those of earlier hints that have not come, of which the
    /// first may be among them once more. The shard has `prefetch` bring what matching them will read, some
    /// messages ahead, instead of waiting for memory each time.
    fn hint(&mut self, _arrivals: &[PrefetchHint], _prefetch: Prefetch) {}

    /// Slot of the descriptor that a message of a hint will most likely get: the one that comes after the
    /// next `distance` ones; so that the LND can have fetched what it knows of that buffer. `None` where it
    /// is not known, which it need not be from 12 messages on.
    fn expected_md(&self, _distance: usize) -> Option<u32> {
        None
    }
}

/// What a shard does for its network drivers.
pub trait Uplink: PrefetchHints {
    /// A message has arrived by `ni`; its payload has not been looked at. After [`Verdict::Delay`] the LND
    /// keeps `rx` for it.
    ///
    /// `from` is the NID of the peer NI that sent it, as the LND has verified it; the header's source is no
    /// more than a claim. For a peer with several NIDs it is the header's source NID if the LND has proof
    /// that this NID belongs to the peer that sent the frame, else the address that the frame came from.
    fn header(&mut self, now: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict;

    /// Whether requests from a NID wait until it is known by which name their sender goes. An LND of streams
    /// asks before it calls [`Uplink::header`], and has them wait where they keep nothing that comes behind
    /// them: the answer may. They wait for [`NAME_WAIT`](crate::shard::NAME_WAIT) at most. With `is_new` it
    /// has not asked about this request before.
    fn awaits_name(&mut self, _header: &Header, _is_new: bool) -> bool {
        false
    }

    /// The beginning of the payload of a delivered message that [goes on](Span::is_routed) is in place, so
    /// many bytes, and more is to come. An LND may tell that, or not: a message goes on sooner for it, and no
    /// otherwise.
    fn arrived(&mut self, _now: Instant, _rx: RxId, _bytes: u32) {}

    /// The payload of a delivered message is in place, or will never be; of a delayed one, that it will never
    /// be.
    fn received(&mut self, now: Instant, rx: RxId, status: Status);

    /// The LND has finished with a message and its buffer. Credits return here.
    fn sent(&mut self, now: Instant, tx: TxId, status: Status);

    /// Whether a NID is that of an NI of this node.
    fn is_local(&self, _nid: &Nid) -> bool {
        false
    }

    /// A peer NI begins to speak from an address, which may be another one than that of its NID. `false` if
    /// there is no room to note that: then it is not to be heard.
    fn came_from(&mut self, _peer: &Nid, _address: IpAddr) -> bool {
        true
    }

    /// A peer has begun a new life: what was under way to it ends.
    fn restarted(&mut self, _peer: &Nid) {}

    /// Messages by a path that had ended well, their bytes with the system, may never have been read: what
    /// carried them has ended by this cause. Nothing tells which.
    fn lost(&mut self, _path: &Path, _cause: Cause) {}

    /// What has been learned of a path. It counts where paths are chosen.
    fn path_health(&mut self, _now: Instant, _path: &Path, _report: PathReport) {}

    /// What goes by a path is not answered: the index of the one of `candidates` that it is to go by from now
    /// on, `None` to stay. All lead to the same peer; `silent` may be among them.
    fn reroute(&mut self, _now: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        candidates.iter().position(|candidate| candidate != silent)
    }

    /// Another path to the Multi-Rail peer that this one leads to, by an NI of which `has` is true. The LND
    /// may know nothing of that path: it asks when it knows no path that answers.
    fn another_path(&self, _path: &Path, _has: impl Fn(NiId) -> bool) -> Option<Path> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure that a peer is to blame for, or the way to it, costs no health of a local NI, by which all
    /// peers are reached. Errnos of the system are judged as LNet does (`socklnd_cb.c:
    /// ksocknal_txlist_done`).
    #[test]
    fn an_absent_peer_is_not_the_fault_of_a_local_ni() {
        use HealthStatus::{LocalError, NetworkTimeout, RemoteDropped, RemoteError, RemoteTimeout};
        for cause in [Cause::Unreachable, Cause::Reset] {
            assert_eq!(Status::NeverSent(cause).health(), Some(RemoteDropped));
        }
        for (number, unsent, unknown) in [
            (errno::ENETDOWN, RemoteDropped, RemoteError),
            (errno::EHOSTUNREACH, RemoteDropped, RemoteError),
            (errno::ENETUNREACH, RemoteDropped, RemoteError),
            (errno::ECONNREFUSED, RemoteDropped, RemoteError),
            (errno::ECONNRESET, RemoteDropped, RemoteError),
            (errno::EPIPE, RemoteDropped, RemoteError),
            (errno::EPROTO, RemoteDropped, RemoteError),
            (errno::EAFNOSUPPORT, RemoteDropped, RemoteError),
            (errno::ETIMEDOUT, NetworkTimeout, RemoteTimeout),
            (errno::ENOBUFS, LocalError, LocalError),
            (24, LocalError, LocalError),
        ] {
            let cause = Cause::System(number);
            assert_eq!(Status::NeverSent(cause).health(), Some(unsent), "{number}");
            assert_eq!(Status::Unknown(cause).health(), Some(unknown), "{number}");
            assert!(Status::NeverSent(cause).allows_another_path(), "{number}");
            assert!(!Status::Unknown(cause).allows_another_path(), "{number}");
        }
    }

    #[test]
    fn ends_are_judged() {
        assert_eq!(Status::Ok.health(), None);
        assert_eq!(Status::NeverSent(Cause::Cancelled).health(), None);
        assert_eq!(Status::NeverSent(Cause::Undiscovered(110)).health(), None);
        assert_eq!(Status::NeverSent(Cause::TooLong).health(), Some(HealthStatus::LocalError));
        assert_eq!(Status::NeverSent(Cause::Device).health(), Some(HealthStatus::LocalDropped));
        for status in [Status::Unknown, Status::NeverSent].map(|end| end(Cause::Timeout)) {
            assert_eq!(status.health(), Some(HealthStatus::NetworkTimeout));
        }
        for status in [Status::Unknown(Cause::CreditTimeout), Status::NeverSent(Cause::CreditTimeout)] {
            assert_eq!(status.health(), Some(HealthStatus::NetworkTimeout));
        }
        assert_eq!(Status::Unknown(Cause::Reset).health(), Some(HealthStatus::RemoteError));
        for status in HealthStatus::ALL {
            let cause = Cause::Simulated(status);
            for end in [Status::NeverSent(cause), Status::Unknown(cause)] {
                assert_eq!(end.health(), Some(status));
            }
        }
    }
}
