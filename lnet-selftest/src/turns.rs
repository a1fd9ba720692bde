//! Which requests are answered now, which wait, and which are dropped.
//!
//! Invariants: one source holds a share of the places, and of the room in which requests wait, so that
//! others find some; a source with nothing answered has a place as soon as one is free; sources take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use lnet_user::Nid;

/// The share of a source in what is free: one part of so many.
const SHARE: usize = 4;

/// The requests of a source.
struct Held<T> {
    answered: usize,
    waiting: VecDeque<T>,
}

/// Whether there is room for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Room for it now.
    Now,
    /// Requests of many sources fill it.
    Later,
    /// The source has its share.
    None,
}

/// The requests of a portal, by the NIDs that they came from.
pub(crate) struct Turns<T> {
    /// Requests that may be answered now beside those that are.
    free: usize,
    /// Requests that wait.
    waiting: usize,
    /// Requests that may wait, in all and beside those that do.
    room_max: usize,
    room: usize,
    /// Requests of each source that may wait whatever others have waiting.
    least: usize,
    sources: HashMap<Nid, Held<T>>,
    /// Sources of which requests wait.
    turns: VecDeque<Nid>,
}

impl<T> Turns<T> {
    /// Turns with so many `places` of requests that are answered at once; `room` in which others wait,
    /// `least` of it for any source.
    pub(crate) fn new(places: usize, room: usize, least: usize) -> Self {
        Self {
            free: places,
            waiting: 0,
            room_max: room,
            room,
            least,
            sources: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    /// Whether a source has room for one more request.
    pub(crate) fn room_for(&self, source: Nid) -> Room {
        let (answered, waiting) =
            self.sources.get(&source).map_or((0, 0), |held| (held.answered, held.waiting.len()));
        if self.free > 0 && waiting == 0 && answered < self.places_share() {
            return Room::Now;
        }
        if waiting >= (self.room / SHARE).max(self.least) {
            return Room::None;
        }
        if self.room == 0 { Room::Later } else { Room::Now }
    }

    /// Has a request wait for [`Turns::next`].
    pub(crate) fn push(&mut self, source: Nid, request: T) {
        let held =
            self.sources.entry(source).or_insert_with(|| Held { answered: 0, waiting: VecDeque::new() });
        if held.waiting.is_empty() {
            self.turns.push_back(source);
        }
        held.waiting.push_back(request);
        self.waiting += 1;
        self.room = self.room_max.saturating_sub(self.waiting);
    }

    /// Places that a source may have.
    fn places_share(&self) -> usize {
        (self.free / SHARE).max(1)
    }

    /// The next request to be answered, if its source may have a place.
    pub(crate) fn next(&mut self) -> Option<(Nid, T)> {
        if self.free == 0 {
            return None;
        }
        let share = self.places_share();
        // No more sources than there are places have their share.
        let is_next = |source| self.sources.get(source).is_some_and(|held| held.answered < share);
        let turn = self.turns.iter().position(is_next)?;
        let source = self.turns.remove(turn)?;
        let held = self.sources.get_mut(&source)?;
        let request = held.waiting.pop_front()?;
        held.answered += 1;
        self.free -= 1;
        self.waiting -= 1;
        self.room = self.room_max.saturating_sub(self.waiting);
        if !held.waiting.is_empty() {
            self.turns.push_back(source);
        }
        Some((source, request))
    }

    /// A request of this source is answered, or is given up.
    pub(crate) fn done(&mut self, source: Nid) {
        if let Entry::Occupied(mut held) = self.sources.entry(source) {
            held.get_mut().answered -= 1;
            self.free += 1;
            if held.get().answered == 0 && held.get().waiting.is_empty() {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(number: u16) -> Nid {
        format!("10.0.{}.{}@tcp", number >> 8, number & 0xFF).parse().unwrap()
    }

    /// What is answered now of so many requests of a source, and how many were dropped.
    fn flood(turns: &mut Turns<u32>, source: Nid, count: u32) -> (usize, usize) {
        let (mut answered, mut dropped) = (0, 0);
        for request in 0..count {
            match turns.room_for(source) {
                Room::Now => turns.push(source, request),
                Room::Later | Room::None => dropped += 1,
            }
            while let Some((whose, _)) = turns.next() {
                assert_eq!(whose, source, "those of others wait for nothing new");
                answered += 1;
            }
        }
        (answered, dropped)
    }

    #[test]
    fn a_source_that_is_never_done_leaves_places_and_room_to_others() {
        let mut turns = Turns::new(64, 1024, 128);
        // A fifth is as much as a quarter of what is left.
        assert_eq!(flood(&mut turns, nid(1), 10_000), (13, 10_000 - 13 - 205));
        for source in 2..15 {
            let (answered, _) = flood(&mut turns, nid(source), 1);
            assert_eq!(answered, 1, "{source}");
        }
        // Each has less where there are more such sources.
        let mut turns = Turns::new(64, 1024, 128);
        let answered: Vec<usize> = (1..16).map(|source| flood(&mut turns, nid(source), 1000).0).collect();
        assert!(answered.is_sorted_by(|more, less| more >= less) && answered[14] >= 1, "{answered:?}");
        // The room is full: a source with few requests waits, any other has its share.
        assert_eq!(turns.room, 0);
        assert_eq!(
            [1, 14, 15].map(|source| turns.room_for(nid(source))),
            [Room::None, Room::Later, Room::Later]
        );
        assert_eq!(turns.room_for(nid(16)), Room::Now, "a place is free");
    }

    #[test]
    fn what_honest_sources_send_is_answered_in_turns_and_never_dropped() {
        // Three tests of a kernel node, with the most units each; sixty nodes of this project.
        for (sources, each) in [(1, 3 * 1024), (60, 256)] {
            let mut turns = Turns::new(128, 16384, 256);
            let mut answered = Vec::new();
            for source in (0..each).flat_map(|_| 1..=sources) {
                assert_eq!(turns.room_for(nid(source)), Room::Now, "{source}");
                turns.push(nid(source), source);
                answered.extend(std::iter::from_fn(|| turns.next()));
            }
            let mut begun = 0;
            while let Some(&(source, _)) = answered.get(begun) {
                begun += 1;
                turns.done(source);
                answered.extend(std::iter::from_fn(|| turns.next()));
            }
            assert_eq!(answered.len(), usize::from(sources) * each);
            // Nothing is left of them.
            assert_eq!((turns.free, turns.room), (128, 16384));
            assert!(turns.sources.is_empty() && turns.turns.is_empty());
            // No source is done long before another one.
            let last = &answered[answered.len() - 128..];
            for source in 1..=sources {
                let left = last.iter().filter(|(whose, _)| *whose == nid(source)).count();
                assert!(left <= 128 / usize::from(sources) + 3, "{source}: {left}");
            }
        }
    }
}
