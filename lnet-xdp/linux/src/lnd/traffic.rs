//! Traffic by rings, in short: how many frames, and of how many flows.

/// Traffic by the rings of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RingTraffic {
    /// Frames that shards have received.
    pub arrived: u64,
    /// Flows that were seen among them of late.
    pub tuples: Tuples,
    /// Calls by which the kernel has taken frames that leave, each one frame at least.
    pub sendings: u64,
}

impl RingTraffic {
    /// Adds that of another shard or queue.
    pub const fn add(&mut self, other: Self) {
        self.arrived += other.arrived;
        self.tuples = self.tuples.and(other.tuples);
        self.sendings += other.sendings;
    }
}

/// Flows that were seen among frames: addresses and ports, as bits of a hash. Flows that share a bit count as
/// one, so that there are never fewer than it says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tuples(u64);

impl Tuples {
    /// The flow of these ports, source and destination, from an address of which these are the last bytes.
    #[inline]
    pub(crate) fn of(source: [u8; 4], ports: [u8; 4]) -> Self {
        let tuple = u64::from(u32::from_be_bytes(source)) << 32 | u64::from(u32::from_be_bytes(ports));
        Self(1 << (tuple.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58))
    }

    /// These flows and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many flows of one peer, with source ports as lanes have them.
    fn tuples(count: u8) -> Tuples {
        let tuple = |lane| Tuples::of([10, 0, 0, 2], [0xC0, lane, 0x03, 0xDC]);
        (0..count).map(tuple).fold(Tuples::default(), Tuples::and)
    }

    #[test]
    fn flows_of_lanes_are_told_apart() {
        for count in 1..=4 {
            assert_eq!(tuples(count).count(), u32::from(count));
        }
        assert!(tuples(64).count() > 16);
        let peer = |host| Tuples::of([10, 0, 0, host], [0xC0, 0, 0x03, 0xDC]);
        assert_eq!(peer(2).and(peer(3)).and(peer(2)).count(), 2);
    }
}
