//! Addresses that an NI reaches by the routes of its interface.
//!
//! Routes are nested or apart, so they are stored as ranges that are apart, each with the length of the
//! longest prefix there. A look-up is one binary search, however many routes there are.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;

/// Routes of an interface at most: beyond these the longest prefixes are left out, and what they reach counts
/// as reached by the shorter ones alone.
pub const ROUTES_MAX: usize = 4096;

/// The start of a range: IPv6 or not, and the address.
type Start = (bool, u128);

/// Addresses that an interface has routes to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reach {
    /// Where each range begins, and the bits of the prefix that leads there, if one does.
    ranges: Box<[(Start, Option<u8>)]>,
}

impl Reach {
    /// Routes by their prefixes and the lengths of these in bits.
    #[must_use]
    pub fn new(routes: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        let mut routes: Vec<(Start, u8)> = routes.into_iter().map(|(to, bits)| first(&to, bits)).collect();
        routes.sort_by_key(|(_, bits)| *bits);
        routes.truncate(ROUTES_MAX);
        routes.sort();
        let mut ranges = Vec::new();
        // Prefixes that the next one may lie in, with the last address of each.
        let mut open: Vec<(Start, u8)> = Vec::new();
        for (start, bits) in routes {
            close(&mut ranges, &mut open, Some(start));
            begin(&mut ranges, start, Some(bits));
            open.push((last(start, bits), bits));
        }
        close(&mut ranges, &mut open, None);
        Self { ranges: ranges.into() }
    }

    /// The bits of the longest prefix that leads to an address; `None` where no route does.
    #[must_use]
    pub fn prefix_bits(&self, to: &IpAddr) -> Option<u8> {
        let (start, _) = first(to, u8::MAX);
        let after = self.ranges.partition_point(|(begins, _)| *begins <= start);
        let ((is_v6, _), bits) = self.ranges.get(after.checked_sub(1)?)?;
        bits.filter(|_| *is_v6 == start.0)
    }
}

/// The first address of a prefix, with its length in bits, which is no more than the family has.
fn first(to: &IpAddr, bits: u8) -> (Start, u8) {
    let (is_v6, address, width) = match to {
        IpAddr::V4(v4) => (false, u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (true, v6.to_bits(), 128),
    };
    let bits = bits.min(width);
    ((is_v6, address & !host_mask(is_v6, bits)), bits)
}

fn last((is_v6, start): Start, bits: u8) -> Start {
    (is_v6, start | host_mask(is_v6, bits))
}

/// The bits of an address behind its prefix.
fn host_mask(is_v6: bool, bits: u8) -> u128 {
    let width: u32 = if is_v6 { 128 } else { 32 };
    let all = u128::MAX >> (128 - width);
    all.checked_shr(bits.into()).unwrap_or(0)
}

/// Ends the prefixes that do not reach `next`, all of them where there is no next one.
fn close(ranges: &mut Vec<(Start, Option<u8>)>, open: &mut Vec<(Start, u8)>, next: Option<Start>) {
    while let Some((end, _)) = open.pop_if(|(end, _)| next.is_none_or(|next| *end < next)) {
        let outer = open.last().map(|(_, bits)| *bits);
        if let Some(behind) = end.1.checked_add(1) {
            begin(ranges, (end.0, behind), outer);
        }
    }
}

/// Begins a range. Of two that begin at one address the later one counts.
fn begin(ranges: &mut Vec<(Start, Option<u8>)>, start: Start, bits: Option<u8>) {
    ranges.pop_if(|(begins, _)| *begins == start);
    ranges.push((start, bits));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::Random;

    fn routes(text: &[&str]) -> Vec<(IpAddr, u8)> {
        let route = |route: &&str| {
            let (to, bits) = route.split_once('/').unwrap();
            (to.parse().unwrap(), bits.parse().unwrap())
        };
        text.iter().map(route).collect()
    }

    #[test]
    fn the_longest_prefix_counts() {
        let reach = Reach::new(routes(&[
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.0.7/32",
            "10.1.0.0/24",
            "255.255.255.0/24",
            "fd00::/8",
            "fd00:1::/32",
        ]));
        for (to, expected) in [
            ("9.255.255.255", Some(0)),
            ("10.0.0.0", Some(8)),
            ("10.1.0.6", Some(24)),
            ("10.1.0.7", Some(32)),
            ("10.1.0.8", Some(24)),
            ("10.1.1.0", Some(16)),
            ("10.2.0.0", Some(8)),
            ("11.0.0.0", Some(0)),
            ("255.255.255.255", Some(24)),
            ("fc00::1", None),
            ("fd00::1", Some(8)),
            ("fd00:1:ffff::1", Some(32)),
            ("fd00:2::1", Some(8)),
            ("fe00::", None),
            ("::ffff:10.1.0.7", None),
        ] {
            assert_eq!(reach.prefix_bits(&to.parse().unwrap()), expected, "{to}");
        }
        assert_eq!(Reach::default().prefix_bits(&[10, 0, 0, 1].into()), None);
        assert_eq!(Reach::new(routes(&["10.1.2.3/16"])), Reach::new(routes(&["10.1.0.0/16"])));
    }

    /// Ranges say the same as a look at each route.
    #[test]
    fn ranges_agree_with_a_list() {
        for seed in 0..300_u64 {
            let mut random = Random::new(seed);
            let mut address = |bits: u8| {
                let host = random.below(1 << 32) as u32 & 0x0f0f_00ff;
                (IpAddr::from(host.to_be_bytes()), bits)
            };
            let list: Vec<_> =
                (0..12).map(|at| address([0, 4, 8, 12, 16, 24, 28, 30, 31, 32][at % 10])).collect();
            let list = &list[(seed % 3) as usize..];
            let reach = Reach::new(list.iter().copied());
            for _ in 0..100 {
                let (to, _) = address(32);
                let fits = |(route, bits): &&(IpAddr, u8)| first(route, *bits).0 == first(&to, *bits).0;
                let expected = list.iter().filter(fits).map(|(_, bits)| *bits).max();
                assert_eq!(reach.prefix_bits(&to), expected, "seed {seed}: {to} by {list:?}");
            }
        }
    }
}
