//! How long a datagram a path carries: shorter ones than both ends take, where a link between them is
//! narrower. Data tells, as in RFC 8899, 4.1, and the kernel tells a socket what it has learnt itself.
//!
//! Losses alone narrow no path, since a wire loses by chance and a path that carries nothing is dead: the
//! longest frames by a path are lost, several in a row, while short pieces that were cut from them, and sent
//! since, arrive. Other short frames show nothing: a receiver may have no room for what the long ones carry.
//! The path is as narrow then as the longest frames that arrive, by sizes of known links. A longer frame is
//! tried at once, and after twice as long each time that none arrives; what it carries is sent again in
//! shorter ones. Invariant: a width decides how data is cut, and nothing else, so a false alarm costs some
//! speed for a while.

use core::time::Duration;

use lnet_core::time::Instant;

/// UDP payloads that links carry with IPv6: the least that each link must (RFC 8200, 5: 1280 bytes), tunnels,
/// Ethernet, FDDI and IP over InfiniBand, and long Ethernet frames.
const BOUNDS: [u32; 5] = [BASE_BYTES, 1400 - 48, 1500 - 48, 4096 - 48, 9000 - 48];
/// The longest datagram that every path carries.
pub(crate) const BASE_BYTES: u32 = 1280 - 48;
const CLASSES: usize = BOUNDS.len() + 1;
/// The width of a path that is not known to be narrow.
const UNBOUNDED: u32 = u32::MAX;
/// Long frames that are lost in a row on a path that is too narrow for them, and pieces that arrive there.
const LOST_MIN: u32 = 4;
const PIECES_MIN: u32 = 2;
/// How long a frame that has arrived shows that the path carries as long ones.
const PROVEN_LASTS: Duration = Duration::from_secs(1);
/// The least and the most time between tries of a longer frame; the latter is RFC 8899's, 5.1.1.
const TRY_AFTER_MIN: Duration = Duration::from_millis(10);
const TRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Whether a frame is longer than two that every path carries: then a piece of it costs little, and it is the
/// likelier one to be too long.
pub(crate) const fn is_far_longer(bytes: u32) -> bool {
    bytes > 2 * BASE_BYTES
}

/// How many of the bounds are below this.
#[inline]
fn class_of(bytes: u32) -> usize {
    BOUNDS.iter().take_while(|bound| **bound < bytes).count()
}

/// Knowledge of the width of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// No longer datagram goes by the path but to try.
    bytes: u32,
    /// When the latest frame of each class that has arrived was sent.
    arrived: [Instant; CLASSES],
    /// Longer frames that were lost in a row, the least class of them, and when the first one was sent.
    lost: u32,
    lost_class: usize,
    lost_since: Instant,
    /// Pieces that were sent since and have arrived.
    pieces: u32,
    /// When a longer frame is tried next, and how long after that the one behind it.
    try_at: Instant,
    try_after: Duration,
}

impl Width {
    pub(crate) const NEW: Self = Self {
        bytes: UNBOUNDED,
        arrived: [Instant(0); CLASSES],
        lost: 0,
        lost_class: 0,
        lost_since: Instant(0),
        pieces: 0,
        try_at: Instant(0),
        try_after: TRY_AFTER_MIN,
    };

    /// The longest datagram that goes by the path.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// A frame that went by the path was lost; whether the path is found to be narrow thereby. Frames that
    /// are longer than it is known to be say nothing.
    pub(crate) fn lost(&mut self, now: Instant, bytes: u32, sent_at: Instant) -> bool {
        let class = class_of(bytes);
        let is_contradicted = self.arrived[class..].iter().any(|arrived| *arrived >= sent_at);
        if class == 0 || bytes > self.bytes || is_contradicted {
            return false;
        }
        if self.lost == 0 {
            (self.lost_class, self.lost_since, self.pieces) = (class, sent_at, 0);
        }
        self.lost += 1;
        self.lost_class = self.lost_class.min(class);
        self.lost_since = self.lost_since.min(sent_at);
        self.narrows(now)
    }

    /// Frames that went by the path have arrived, so many of them pieces, and the longest, which was sent at
    /// this time, of so many bytes; whether the path is found to be narrow thereby. The ends take no more
    /// than `most_bytes`.
    #[inline]
    pub(crate) fn arrived(
        &mut self,
        now: Instant,
        (pieces, bytes): (u32, u32),
        sent_at: Instant,
        most_bytes: u32,
    ) -> bool {
        let class = class_of(bytes);
        self.arrived[class] = self.arrived[class].max(sent_at);
        if bytes > self.bytes {
            self.bytes = BOUNDS.get(class).map_or(UNBOUNDED, |bound| bounded(*bound, most_bytes));
            (self.try_at, self.try_after) = (now, TRY_AFTER_MIN);
        }
        if self.lost == 0 || sent_at < self.lost_since {
            return false;
        }
        if class >= self.lost_class {
            self.lost = 0;
            return false;
        }
        self.pieces += pieces;
        self.narrows(now)
    }

    /// Narrows the path to the longest frames that arrive, if those that are lost say so.
    fn narrows(&mut self, now: Instant) -> bool {
        if self.lost < LOST_MIN || self.pieces < PIECES_MIN {
            return false;
        }
        let mut shorter = self.arrived[..self.lost_class].iter();
        let class = shorter.rposition(|arrived| *arrived >= self.lost_since).unwrap_or(0);
        self.bytes = BOUNDS[class];
        self.lost = 0;
        (self.try_at, self.try_after) = (now, TRY_AFTER_MIN);
        true
    }

    /// The kernel refused a longer frame, since the path carries no more than so many bytes; whether that is
    /// news. The kernel believes that for ten minutes (ip-sysctl: `mtu_expires`), and refuses longer tries.
    pub(crate) fn told(&mut self, now: Instant, bytes: u32) -> bool {
        if bytes > self.bytes {
            return false;
        }
        (self.try_at, self.try_after) = (now + TRY_AFTER_MAX, TRY_AFTER_MAX);
        self.lost = 0;
        core::mem::replace(&mut self.bytes, bytes) != bytes
    }

    /// Has longer datagrams tried anew: this end takes others from now on than it did when they were lost.
    pub(crate) const fn end_changed(&mut self) {
        (self.try_at, self.try_after) = (Instant(0), TRY_AFTER_MIN);
    }

    /// Whether a piece is to be cut from a frame of so many bytes that was lost last: more and more seldom,
    /// since pieces cost frames.
    pub(crate) const fn wants_piece(&self, bytes: u32) -> bool {
        self.lost.is_power_of_two() && self.lost >= if is_far_longer(bytes) { 2 } else { 2 * LOST_MIN }
    }

    /// Whether frames of so many bytes may be too long for the path: nothing as long has arrived of late.
    pub(crate) fn is_doubtful(&self, now: Instant, bytes: u32) -> bool {
        let is_recent = |sent_at: &Instant| *sent_at != Instant(0) && now - *sent_at < PROVEN_LASTS;
        !self.arrived[class_of(bytes)..].iter().any(is_recent)
    }

    /// The bytes of a longer frame that is to be tried now, if one is; the ends take no more than
    /// `most_bytes`.
    #[inline]
    pub(crate) fn longer_bytes(&self, now: Instant, most_bytes: u32) -> Option<u32> {
        if self.bytes >= most_bytes || now < self.try_at {
            return None;
        }
        let next = BOUNDS.iter().find(|bound| **bound > self.bytes);
        Some(next.map_or(UNBOUNDED, |bound| bounded(*bound, most_bytes)).min(most_bytes))
    }

    /// A longer frame is tried.
    pub(crate) fn note_try(&mut self, now: Instant) {
        self.try_at = now + self.try_after;
        self.try_after = (self.try_after * 2).min(TRY_AFTER_MAX);
    }
}

/// A bound, if it is clearly less than the ends take.
const fn bounded(bound: u32, most_bytes: u32) -> u32 {
    if bound + bound / 16 < most_bytes { bound } else { UNBOUNDED }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 9000 - 28;

    fn at(ms: u64) -> Instant {
        Instant(1_000_000_000 + ms * 1_000_000)
    }

    /// A path of which long frames were lost and short ones have arrived.
    fn narrowed() -> Width {
        let mut width = Width::NEW;
        for ms in 0..4 {
            assert!(!width.lost(at(ms), MOST, at(ms)));
        }
        assert!(!width.arrived(at(5), (1, 1400), at(4), MOST));
        assert!(width.arrived(at(6), (1, 300), at(5), MOST));
        width
    }

    #[test]
    fn a_path_is_as_narrow_as_what_arrives_while_longer_frames_are_lost() {
        assert_eq!(narrowed().bytes(), 1500 - 48);
        let mut width = Width::NEW;
        for ms in 0..10 {
            width.lost(at(ms), MOST, at(ms));
        }
        assert_eq!(width.bytes(), UNBOUNDED, "nothing arrives");
        // Frames that were sent before show nothing.
        assert!(!width.arrived(at(11), (8, 200), Instant(at(0).0 - 1), MOST));
        assert!(!width.arrived(at(12), (1, 200), at(1), MOST));
        assert!(width.arrived(at(13), (1, 200), at(1), MOST));
        assert_eq!(width.bytes(), BASE_BYTES);
    }

    #[test]
    fn a_long_frame_that_arrives_is_worth_more_than_those_that_were_lost() {
        let mut width = Width::NEW;
        width.arrived(at(5), (1, MOST), at(4), MOST);
        for ms in 0..4 {
            assert!(!width.lost(at(6), MOST, at(ms)));
        }
        assert!(!width.arrived(at(7), (9, 200), at(6), MOST), "a later one has arrived");
        for ms in 10..13 {
            assert!(!width.lost(at(ms), MOST, at(ms)));
        }
        assert!(!width.arrived(at(20), (9, 200), at(19), MOST));
        assert!(!width.arrived(at(21), (1, 9000 - 48), at(20), MOST), "shorter, and of a lesser class");
        assert!(!width.arrived(at(22), (1, MOST), at(21), MOST));
        assert!(!width.lost(at(30), MOST, at(30)), "the row is over");
        assert_eq!(width.bytes(), UNBOUNDED);
    }

    #[test]
    fn longer_frames_are_tried_less_and_less_often() {
        let mut width = narrowed();
        let (mut now, mut tried) = (at(6), 0);
        let mut last = now;
        while now < at(7_200_000) {
            now = now + Duration::from_millis(10);
            if let Some(bytes) = width.longer_bytes(now, MOST) {
                assert_eq!(bytes, 4096 - 48);
                width.note_try(now);
                assert!(!width.lost(now, bytes, now));
                (tried, last) = (tried + 1, now);
            }
        }
        assert!((20..30).contains(&tried), "{tried} times");
        assert_eq!(width.longer_bytes(last + TRY_AFTER_MAX, MOST), Some(4096 - 48));
        // The path has become wide.
        for bytes in [4096 - 48, MOST] {
            let now = last + TRY_AFTER_MAX;
            assert_eq!(width.longer_bytes(now, MOST), Some(bytes));
            width.note_try(now);
            width.arrived(now, (1, bytes - 40), now, MOST);
        }
        assert_eq!((width.bytes(), width.longer_bytes(last + TRY_AFTER_MAX * 2, MOST)), (UNBOUNDED, None));
    }

    #[test]
    fn the_word_of_the_kernel_counts_for_ten_minutes_or_until_this_end_changes() {
        let mut width = Width::NEW;
        assert!(width.told(at(0), 1472) && !width.told(at(1), 1472), "once");
        assert!(!width.told(at(1), 4000), "the path is known to be narrower");
        assert_eq!(width.bytes(), 1472);
        assert_eq!(width.longer_bytes(at(500_000), MOST), None);
        assert_eq!(width.longer_bytes(at(601_000), MOST), Some(4096 - 48), "the next longer one");
        assert_eq!(width.longer_bytes(at(601_000), 1472), None);
        width.end_changed();
        assert_eq!(width.longer_bytes(at(2), MOST), Some(4096 - 48));
        width.note_try(at(2));
        width.arrived(at(3), (1, 4000), at(2), MOST);
        assert_eq!(width.bytes(), 4096 - 48);
    }

    #[test]
    fn a_path_is_in_doubt_until_as_long_a_frame_has_arrived() {
        let mut width = Width::NEW;
        assert!(width.is_doubtful(at(0), MOST));
        width.arrived(at(1), (1, 1400), at(0), MOST);
        assert_eq!([1400, MOST].map(|bytes| width.is_doubtful(at(2), bytes)), [false, true]);
        assert!(width.is_doubtful(at(1001), 1400));
    }
}
