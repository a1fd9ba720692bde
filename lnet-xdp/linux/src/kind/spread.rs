//! Spread of frames over the receive queues of an interface: whether one queue has all of them.
//!
//! Cards hash addresses and ports, or addresses alone. By addresses alone all lanes of a peer share a queue,
//! and so one CPU receives for all, which nothing else shows.

use std::collections::VecDeque;
use std::fmt;

use crate::lnd::Tuples;

/// Looks that are judged together.
const LOOKS: usize = 10;
/// Frames by one queue that make it a busy one.
const FRAMES_MIN: u64 = 1000;
/// How improbable a hash of all that tells flows apart makes the finding: one in so many.
const ODDS_MIN: u64 = 64;
/// Part of the frames that other queues have, at least, once they are not empty any more.
const OTHERS_SHARE: u64 = 8;

/// Frames of some seconds.
#[derive(Clone, Debug)]
struct Look {
    by_queue: Vec<u64>,
    tuples: Tuples,
}

/// A queue that receives all frames, while there are others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lone {
    queue: usize,
    queues: usize,
    frames: u64,
    tuples: u32,
}

impl fmt::Display for Lone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, queues, frames, tuples } = self;
        write!(
            f,
            "queue {queue} has had all of the last {frames} frames, of {tuples} flows or more, and the other {} queues none: the \
             card seems to spread by addresses alone",
            queues - 1
        )
    }
}

/// Judge of the spread. The finding stands until the other queues have a real share of the frames.
#[derive(Debug, Default)]
pub(super) struct Spread {
    looks: VecDeque<Look>,
    lone: Option<Lone>,
}

impl Spread {
    /// Takes in the frames since the last look, by queue, and the flows that were seen among them.
    pub(super) fn note(&mut self, by_queue: Vec<u64>, tuples: Tuples) {
        if self.looks.back().is_some_and(|look| look.by_queue.len() != by_queue.len()) {
            *self = Self::default();
        }
        self.looks.push_back(Look { by_queue, tuples });
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let Some((lone, others)) = self.sums() else { return };
        let is_empty = others * OTHERS_SHARE < lone.frames + others;
        if self.lone.is_some() {
            self.lone = self.lone.filter(|_| is_empty || lone.frames == 0);
        } else if others == 0 && lone.frames >= FRAMES_MIN && is_no_accident(&lone) {
            self.lone = Some(lone);
        }
    }

    /// The queue that has all frames.
    pub(super) fn lone(&self) -> Option<&Lone> {
        self.lone.as_ref()
    }

    /// The busiest queue of these looks, and the frames of the others.
    fn sums(&self) -> Option<(Lone, u64)> {
        let queues = self.looks.back()?.by_queue.len();
        let sum = |queue: usize| self.looks.iter().map(|look| look.by_queue[queue]).sum::<u64>();
        let (queue, frames) =
            (0..queues).map(|queue| (queue, sum(queue))).max_by_key(|(_, frames)| *frames)?;
        let others = (0..queues).filter(|other| *other != queue).map(sum).sum();
        let tuples =
            self.looks.iter().fold(Tuples::default(), |tuples, look| tuples.and(look.tuples)).count();
        Some((Lone { queue, queues, frames, tuples }, others))
    }
}

/// Whether flows that a hash deals out over several queues would hardly ever meet in one.
fn is_no_accident(Lone { queues, tuples, .. }: &Lone) -> bool {
    let odds = (*queues as u64).checked_pow(tuples.saturating_sub(1)).unwrap_or(u64::MAX);
    odds >= ODDS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many flows of one peer, with source ports as lanes have them.
    fn tuples(count: u8) -> Tuples {
        let tuple = |lane| Tuples::of([10, 0, 0, 2], [0xC0, lane, 0x03, 0xDC]);
        (0..count).map(tuple).fold(Tuples::default(), Tuples::and)
    }

    fn judged(looks: &[([u64; 4], Tuples)]) -> Option<usize> {
        let mut spread = Spread::default();
        looks.iter().for_each(|(by_queue, tuples)| spread.note(by_queue.to_vec(), *tuples));
        spread.lone().map(|lone| lone.queue)
    }

    #[test]
    fn one_busy_queue_of_several_is_found_where_several_flows_came_by_it() {
        assert_eq!(judged(&[([0, 0, FRAMES_MIN, 0], tuples(4))]), Some(2));
        assert_eq!(judged(&[([0, 0, FRAMES_MIN - 1, 0], tuples(4))]), None, "hardly anything came");
        assert_eq!(judged(&[([0, 0, FRAMES_MIN, 0], tuples(1))]), None, "one tuple has one queue");
        assert_eq!(judged(&[([0, 0, FRAMES_MIN, 0], tuples(3))]), None, "an accident");
        assert_eq!(judged(&[([0, 1, FRAMES_MIN, 0], tuples(4))]), None, "another queue has frames");
        assert_eq!(judged(&[]), None);
    }

    #[test]
    fn looks_add_up_but_not_for_ever() {
        let half = [0, FRAMES_MIN / 2, 0, 0];
        assert_eq!(judged(&[(half, tuples(2)), (half, tuples(4))]), Some(1));
        let calm = ([0; 4], Tuples::default());
        let mut looks = vec![(half, tuples(4))];
        looks.extend(std::iter::repeat_n(calm, LOOKS));
        looks.push((half, tuples(4)));
        assert_eq!(judged(&looks), None);
    }

    #[test]
    fn queues_that_are_one_or_that_few_flows_share_say_nothing() {
        let mut spread = Spread::default();
        spread.note(vec![9000], tuples(8));
        assert_eq!(spread.lone(), None);
        spread.note(vec![9000, 0], tuples(4));
        assert_eq!(spread.lone(), None, "four tuples meet in one of two queues now and then");
        spread.note(vec![9000, 0], tuples(64));
        assert!(spread.lone().is_some());
    }

    #[test]
    fn a_finding_stands_until_others_have_a_share() {
        let mut spread = Spread::default();
        spread.note(vec![2000, 0, 0, 0], tuples(4));
        let told = spread.lone().unwrap().to_string();
        for by_queue in [[10_000, 100, 0, 0], [0; 4], [5000, 1, 0, 7]] {
            spread.note(by_queue.to_vec(), tuples(4));
            assert_eq!(spread.lone().unwrap().to_string(), told);
        }
        for _ in 0..2 * LOOKS {
            spread.note(vec![0; 4], Tuples::default());
        }
        assert!(spread.lone().is_some(), "silence is no spread");
        spread.note(vec![700, 100, 100, 0], tuples(4));
        assert_eq!(spread.lone(), None);
        spread.note(vec![9000, 0, 0, 0], tuples(4));
        assert_eq!(spread.lone(), None, "others had frames a moment ago");
        spread.note(vec![9000, 0, 0, 0, 0, 0, 0, 0], tuples(4));
        assert!(spread.lone().is_some(), "queues of another number begin anew");
    }
}
