//! Counters of an NI, a local one or a peer's.

use core::ops::AddAssign;

use lnet_wire::MessageType;

use crate::health::HealthStatus;
use crate::time::Instant;

/// Messages of each type.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TypeCounts([u64; 5]);

impl TypeCounts {
    pub(crate) const fn add(&mut self, message_type: MessageType) {
        self.0[message_type as usize] += 1;
    }

    /// Messages of this type.
    #[must_use]
    pub const fn of(&self, message_type: MessageType) -> u64 {
        self.0[message_type as usize]
    }

    /// Messages of all types.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let [ack, put, get, reply, hello] = self.0;
        ack + put + get + reply + hello
    }
}

const _: () = assert!(MessageType::Hello as usize == 4);

impl AddAssign<&Self> for TypeCounts {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

/// How long something took.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Durations {
    /// How often it was measured.
    pub samples: u64,
    /// Least time, 0 without samples.
    pub min_ns: u64,
    /// Most time.
    pub max_ns: u64,
    /// All times together.
    pub total_ns: u64,
}

impl Durations {
    /// Notes something that began then and ended now.
    pub(crate) fn note(&mut self, begun: Instant, now: Instant) {
        let ns = now.0.saturating_sub(begun.0);
        *self += &Self { samples: 1, min_ns: ns, max_ns: ns, total_ns: ns };
    }

    /// Mean time, 0 without samples.
    #[must_use]
    pub const fn average_ns(&self) -> u64 {
        match self.total_ns.checked_div(self.samples) {
            Some(average_ns) => average_ns,
            None => 0,
        }
    }
}

impl AddAssign<&Self> for Durations {
    fn add_assign(&mut self, other: &Self) {
        if other.samples == 0 {
            return;
        }
        self.min_ns = if self.samples == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.samples += other.samples;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }
}

/// Messages that were not sent, by the health status of their end. There are so many peers that each has 32
/// bits for one; what is more stays at the most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HealthCounts([u32; HealthStatus::ALL.len()]);

impl HealthCounts {
    pub(crate) const fn add(&mut self, status: HealthStatus) {
        let count = &mut self.0[status as usize - 1];
        *count = count.saturating_add(1);
    }

    /// Messages that ended so.
    #[must_use]
    pub const fn of(&self, status: HealthStatus) -> u64 {
        self.0[status as usize - 1] as u64
    }
}

impl AddAssign<&Self> for HealthCounts {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count = count.saturating_add(more));
    }
}

/// A shard's counters of a local NI, or of a peer's. Only what ended well counts as sent or
/// received (LNet `lib-msg.c: lnet_msg_decommit_tx`, `lnet_msg_decommit_rx`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NiCounters {
    /// Messages sent by it, or to it. A sent ACK counts as a PUT, a sent REPLY as a GET.
    pub sent: TypeCounts,
    /// Messages received by it, or from it.
    pub received: TypeCounts,
    /// Payload of those sent, bytes.
    pub sent_bytes: u64,
    /// Payload of those received, bytes.
    pub received_bytes: u64,
    /// Messages that came by it, or from it, and were dropped.
    pub dropped: TypeCounts,
    /// Messages that it did not send, or that were not sent to it.
    pub failed: HealthCounts,
    /// Times from the start of a PUT until its LND has finished with it.
    pub put_egress: Durations,
    /// Times from the start of a GET until its REPLY is in place, where that was awaited.
    pub get_rtt: Durations,
    /// Times from the start of a PUT until its ACK, where that was awaited.
    pub put_ack: Durations,
}

impl NiCounters {
    /// Messages that came by it, or from it.
    pub(crate) const fn arrived_count(&self) -> u64 {
        self.received.total() + self.dropped.total()
    }
}

impl AddAssign<&Self> for NiCounters {
    fn add_assign(&mut self, other: &Self) {
        self.sent += &other.sent;
        self.received += &other.received;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.dropped += &other.dropped;
        self.failed += &other.failed;
        self.put_egress += &other.put_egress;
        self.get_rtt += &other.get_rtt;
        self.put_ack += &other.put_ack;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_add_up() {
        let mut both = Durations::default();
        assert_eq!(both.average_ns(), 0);
        for (begun, now) in [(10, 40), (5, 15)] {
            let mut one = Durations::default();
            one.note(Instant(begun), Instant(now));
            both += &one;
        }
        both += &Durations::default();
        assert_eq!(both, Durations { samples: 2, min_ns: 10, max_ns: 30, total_ns: 40 });
        assert_eq!(both.average_ns(), 20);
    }

    #[test]
    fn each_type_and_status_has_its_own_counter() {
        let mut counts = TypeCounts::default();
        let types =
            [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply, MessageType::Hello];
        for (before, message_type) in types.into_iter().enumerate() {
            counts.add(message_type);
            assert_eq!((counts.of(message_type), counts.total()), (1, before as u64 + 1));
        }
        let mut health = HealthCounts::default();
        HealthStatus::ALL.into_iter().for_each(|status| health.add(status));
        assert!(HealthStatus::ALL.into_iter().all(|status| health.of(status) == 1));
    }
}
