//! Patterns of selection policies: `tcp`, `tcp[1-3]`, `10.0.[1-9].*@tcp`, `2001:db8::/64@tcp`, `*@xdp*`; and
//! lists of NID ranges, which are such patterns of one net each.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use lnet_wire::{Net, NetType, Nid};

use super::expression::{Expression, NumberRange};
use super::{invalid, no_ni};
use crate::errno::Refusal;

/// Types of nets that a pattern may name. A longer name comes before one that it begins with.
const NET_TYPES: [NetType; 9] = [
    NetType::TCP,
    NetType::XDP,
    NetType::O2IB,
    NetType::GNI,
    NetType::GIP,
    NetType::PTLF,
    NetType::KFI,
    NetType::EFA,
    NetType::BXI3F,
];

/// Nets, or NIDs. Its text is the one that it is read from, with `*` for ranges that leave nothing out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdspPattern {
    /// The type of the nets.
    pub net_type: NetType,
    /// Numbers of the nets, up to 65535.
    pub net_numbers: Vec<NumberRange>,
    /// The addresses of the NIDs; without them whole nets are meant.
    pub address: Option<UdspAddress>,
}

/// The addresses that a pattern fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UdspAddress {
    /// All.
    Any,
    /// The four octets of an IPv4 address.
    Octets(Box<[Vec<NumberRange>; 4]>),
    /// The IP addresses that begin like this one.
    Prefix {
        /// The bits behind those of the prefix are 0.
        address: IpAddr,
        /// 1 to 32, of an IPv6 address to 128.
        bits: u8,
    },
    /// An address that is a number.
    Number(Vec<NumberRange>),
}

impl UdspAddress {
    /// Whether it fits an IP address.
    #[must_use]
    pub fn fits(&self, ip: IpAddr) -> bool {
        match (self, ip) {
            (Self::Any, _) => true,
            (Self::Prefix { address, bits }, ip) => masked(ip, *bits) == *address,
            (Self::Octets(octets), IpAddr::V4(ip)) => {
                let mut octets = octets.iter().zip(ip.octets());
                octets.all(|(ranges, octet)| contains(ranges, octet.into()))
            }
            (Self::Octets(_) | Self::Number(_), _) => false,
        }
    }
}

impl UdspPattern {
    /// Whether it means addresses that can name no NI, and no others.
    fn means_no_ni(&self) -> bool {
        match &self.address {
            Some(UdspAddress::Octets(octets)) => {
                let ends = |ranges: &Vec<NumberRange>| {
                    let low = ranges.iter().map(|range| range.low).min()?;
                    let high = ranges.iter().map(|range| range.high).max()?;
                    Some((u8::try_from(low).ok()?, u8::try_from(high).ok()?))
                };
                let [Some(a), Some(b), Some(c), Some(d)] = octets.each_ref().map(ends) else { return false };
                let [low, high] = [Ipv4Addr::new(a.0, b.0, c.0, d.0), Ipv4Addr::new(a.1, b.1, c.1, d.1)];
                self.has_no_ni_between(low.into(), high.into())
            }
            Some(UdspAddress::Prefix { address, bits }) => {
                self.has_no_ni_between(*address, last_of(*address, *bits))
            }
            None | Some(UdspAddress::Any | UdspAddress::Number(_)) => false,
        }
    }

    /// Whether no address of these can name an NI: the first and the last one cannot, and are of one kind.
    fn has_no_ni_between(&self, low: IpAddr, high: IpAddr) -> bool {
        let kind = |ip: IpAddr| match ip {
            IpAddr::V4(ip) if ip.is_multicast() => (224, 0),
            IpAddr::V4(ip) => (ip.octets()[0], 0),
            IpAddr::V6(ip) if ip.is_multicast() || ip.is_unicast_link_local() => (ip.octets()[0], 1),
            // Addresses that begin with zeros.
            IpAddr::V6(ip) => (0, ip.segments()[5]),
        };
        let cannot = |ip| Nid::new_ip(Net::new(self.net_type, 0), ip).is_ok_and(|nid| !nid.can_name_an_ni());
        cannot(low) && cannot(high) && (low == high || kind(low) == kind(high))
    }

    fn fits_net(&self, net: Net) -> bool {
        net.net_type() == self.net_type && contains(&self.net_numbers, net.number().into())
    }

    /// Whether it means this net as a whole.
    #[must_use]
    pub fn is_net(&self, net: Net) -> bool {
        self.address.is_none() && self.fits_net(net)
    }

    /// Whether it means this NID, and not its net as a whole.
    #[must_use]
    pub fn is_nid(&self, nid: &Nid) -> bool {
        self.address.is_some() && self.covers(nid)
    }

    /// Whether it means this NID, or its net as a whole.
    #[must_use]
    pub fn covers(&self, nid: &Nid) -> bool {
        // Large NIDs have no small form, and no octets to go by.
        let number = nid.to_small().map(|small| small as u32);
        self.fits_net(nid.net())
            && match (&self.address, number) {
                (None | Some(UdspAddress::Any), _) => true,
                (Some(UdspAddress::Prefix { address, bits }), _) => {
                    nid.ip().is_some_and(|ip| masked(ip, *bits) == *address)
                }
                (Some(UdspAddress::Octets(octets)), Some(number)) => {
                    let mut octets = octets.iter().zip(number.to_be_bytes());
                    octets.all(|(ranges, octet)| contains(ranges, octet.into()))
                }
                (Some(UdspAddress::Number(ranges)), Some(number)) => contains(ranges, number),
                (Some(_), None) => false,
            }
    }
}

fn contains(ranges: &[NumberRange], number: u32) -> bool {
    ranges.iter().any(|range| range.contains(number))
}

/// An address of which only so many bits are left.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(ip) => {
            Ipv4Addr::from_bits(ip.to_bits() & u32::MAX.unbounded_shl(32 - bits.min(32))).into()
        }
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & u128::MAX.unbounded_shl(128 - bits.min(128))).into()
        }
    }
}

/// The last address that begins with so many bits of this one, whose others are 0.
fn last_of(address: IpAddr, bits: u8) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | u32::MAX.unbounded_shr(bits)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | u128::MAX.unbounded_shr(bits)).into(),
    }
}

/// Addresses of hosts: `10.0.[1-9].*`, or a prefix of either family, such as `2001:db8::/64`; an IPv6 address
/// alone is one address.
///
/// # Errors
/// [`Refusal`]: what is neither, and addresses that can name no NI.
pub fn addresses(text: &str) -> Result<UdspAddress, Refusal> {
    let text = text.trim();
    let address = parse_address(NetType::TCP, text).filter(|address| *address != UdspAddress::Any);
    let expected = "addresses such as 10.0.[1-9].*, 10.0.0.0/16 or 2001:db8::/64";
    let address = address.ok_or_else(|| invalid(text, expected))?;
    let net_numbers = vec![NumberRange { low: 0, high: 0, step: 1 }];
    let pattern = UdspPattern { net_type: NetType::TCP, net_numbers, address: Some(address) };
    match pattern.address {
        Some(_) if pattern.means_no_ni() => Err(no_ni(text)),
        Some(address) => Ok(address),
        None => Err(invalid(text, expected)),
    }
}

/// The ranges of a list such as `10.0.[1-9].*@tcp *@tcp1 2001:db8::/64@tcp`, with blanks between them (LNet's
/// NID lists, in which wildcards are allowed).
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nid_ranges(text: &str) -> Result<Vec<UdspPattern>, Refusal> {
    let mut is_inside = false;
    let mut is_gap = |one: char| {
        is_inside = one == '[' || is_inside && one != ']';
        one.is_whitespace() && !is_inside
    };
    let parts = text.split(&mut is_gap).filter(|part| !part.is_empty());
    let range = |part: &str| {
        let pattern: UdspPattern = part.parse()?;
        let is_one_net = matches!(pattern.net_numbers[..], [NumberRange { low, high, .. }] if low == high);
        if pattern.address.is_none() || !is_one_net {
            return Err(invalid(part, "the addresses of one net, such as 10.0.[1-9].*@tcp or *@tcp1"));
        }
        Ok(pattern)
    };
    let ranges = parts.map(range).collect::<Result<Vec<_>, _>>()?;
    if ranges.is_empty() { Err(invalid(text, "nids with ranges, separated by blanks")) } else { Ok(ranges) }
}

impl FromStr for UdspPattern {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let expected = "a net such as tcp, tcp* or tcp[1-3], or a nid such as 10.0.[1-9].*@tcp or *@xdp";
        let pattern = parse(text.trim()).ok_or_else(|| invalid(text, expected))?;
        if pattern.means_no_ni() { Err(no_ni(text.trim())) } else { Ok(pattern) }
    }
}

fn parse(text: &str) -> Option<UdspPattern> {
    let (address, net) = match text.rsplit_once('@') {
        Some((address, net)) => (Some(address), net),
        None => (None, text),
    };
    let named = NET_TYPES.iter().find_map(|net_type| Some((*net_type, net.strip_prefix(net_type.name()?)?)));
    let (net_type, number) = named?;
    let net_numbers = if number.is_empty() { "0" } else { number };
    let net_numbers = expression(net_numbers, u16::MAX.into())?;
    let address = match address {
        Some(address) => Some(parse_address(net_type, address)?),
        None => None,
    };
    Some(UdspPattern { net_type, net_numbers, address })
}

fn parse_address(net_type: NetType, text: &str) -> Option<UdspAddress> {
    if text == "*" {
        return Some(UdspAddress::Any);
    }
    let takes_ip = Nid::new_ip(Net::new(net_type, 0), Ipv4Addr::new(10, 0, 0, 1).into()).is_ok();
    if !takes_ip {
        return expression(text, u32::MAX).map(UdspAddress::Number);
    }
    if text.contains(':') || text.contains('/') && !text.contains('[') {
        return parse_prefix(net_type, text);
    }
    let octets = text.split('.').map(|part| expression(part, 255)).collect::<Option<Vec<_>>>()?;
    let octets: [Vec<NumberRange>; 4] = octets.try_into().ok()?;
    Some(UdspAddress::Octets(Box::new(octets)))
}

/// An IPv6 address, or a prefix of either family.
fn parse_prefix(net_type: NetType, text: &str) -> Option<UdspAddress> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok()?,
        Some(_) => return None,
        None => most,
    };
    // Not every net has large addresses.
    let has_large = matches!(net_type, NetType::TCP | NetType::XDP | NetType::EFA);
    let fits = has_large && (1..=most).contains(&bits);
    fits.then(|| UdspAddress::Prefix { address: masked(address, bits), bits })
}

/// A number, `*`, or members in brackets.
fn expression(text: &str, max: u32) -> Option<Vec<NumberRange>> {
    if text == "*" {
        return Some(vec![NumberRange { low: 0, high: max, step: 1 }]);
    }
    let inside = match text.strip_prefix('[') {
        Some("*]") => return expression("*", max),
        Some(rest) => rest.strip_suffix(']')?,
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => text,
        None => return None,
    };
    Expression::parse(inside, max, 10).map(Expression::into_ranges)
}

/// Numbers as their pattern has them.
struct Shown<'a>(&'a [NumberRange], u32);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            [NumberRange { low: 0, high, step: 1 }] if *high == self.1 => f.write_str("*"),
            [one] if one.low == one.high => write!(f, "{one}"),
            ranges => {
                let members: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", members.join(","))
            }
        }
    }
}

impl Display for UdspAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Octets(octets) => {
                let [a, b, c, d] = &**octets;
                let shown = |octet| Shown(octet, 255);
                write!(f, "{}.{}.{}.{}", shown(a), shown(b), shown(c), shown(d))
            }
            Self::Prefix { address, bits: 128 } => write!(f, "{address}"),
            Self::Prefix { address, bits } => write!(f, "{address}/{bits}"),
            Self::Number(numbers) => write!(f, "{}", Shown(numbers, u32::MAX)),
        }
    }
}

impl Display for UdspPattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(address) = &self.address {
            write!(f, "{address}@")?;
        }
        f.write_str(self.net_type.name().unwrap_or_default())?;
        match self.net_numbers.as_slice() {
            [NumberRange { low: 0, high: 0, .. }] => Ok(()),
            numbers => write!(f, "{}", Shown(numbers, u16::MAX.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_printed_as_they_are_read() {
        for text in [
            "tcp",
            "tcp3",
            "tcp*",
            "o2ib[1-4/2]",
            "xdp[1,3-5]",
            "10.[77-78].0.[1-20]@tcp",
            "10.7.0.*@tcp",
            "*.*.*.*@tcp*",
            "*@xdp",
            "7@gni",
            "[1-9]@kfi2",
            "*@bxi3f",
            "2001:db8::1@tcp",
            "2001:db8::/64@xdp[1-3]",
            "10.0.0.0/9@tcp",
        ] {
            let pattern: UdspPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), text);
        }
        let same = |one: &str, other: &str| {
            assert_eq!(one.parse::<UdspPattern>().unwrap(), other.parse().unwrap(), "{one} {other}");
        };
        same("tcp0", "tcp");
        same("tcp[*]", "tcp*");
        same("10.0.[0-255].[7]@tcp", "10.0.*.7@tcp");
        same("tcp[0-65535]", "tcp*");
        same("2001:DB8:0::1/128@tcp", "2001:db8::1@tcp");
        same("2001:db8::1/32@tcp", "2001:db8::/32@tcp");
        same("10.127.0.1/9@tcp", "10.0.0.0/9@tcp");
        assert_ne!("tcp[1-2]".parse::<UdspPattern>().unwrap(), "tcp[1,2]".parse().unwrap());
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_what_is_expected() {
        for bad in [
            "",
            "bogus",
            "lo",
            "tcp*[1]",
            "tcp[]",
            "tcp[2-1]",
            "tcp[1-3/0]",
            "tcp1-3",
            "tcp65536",
            "10.0.0@tcp",
            "10.0.0.1.2@tcp",
            "10.0.0.256@tcp",
            "10.0.0.1-5@tcp",
            "2001:db8::1@o2ib",
            "2001:db8::[1-2]@tcp",
            "2001:db8::/129@tcp",
            "2001:db8::/0@tcp",
            "2001:db8::/+9@tcp",
            "10.0.0.0/33@tcp",
            "1@tcp",
            "10.0.0.1@gni",
            "@tcp",
            "10.0.0.1@",
            "10.0.0.[1@tcp",
        ] {
            let refused = bad.parse::<UdspPattern>().unwrap_err();
            assert!(refused.message.contains("expected a net such as tcp"), "{bad}: {refused}");
        }
        for bad in [
            "127.0.0.1@tcp",
            "0.0.0.0@tcp[1-3]",
            "[224].0.0.1@o2ib",
            "127.0.0.1/32@tcp",
            "::1@tcp",
            "fe80::1@tcp",
            "ff02::1@tcp",
            "127.0.0.*@tcp",
            "127.*.*.*@tcp1",
            "[224-239].*.*.*@tcp",
            "224.0.0.0/4@tcp",
            "ff00::/8@tcp",
            "fe80::/10@xdp",
            "127.0.0.0/8@tcp",
            "0.0.0.0/8@tcp",
        ] {
            assert_eq!(bad.parse::<UdspPattern>().unwrap_err(), no_ni(bad));
        }
        // Among these some can.
        for good in ["[127-128].0.0.1@tcp", "127.0.0.0/7@tcp", "::1/64@tcp", "fe00::/8@tcp"] {
            assert!(good.parse::<UdspPattern>().is_ok(), "{good}");
        }
    }

    #[test]
    fn lists_of_ranges_say_what_they_cover() {
        let check = |list: &str, nid: &str, expected| {
            let ranges = nid_ranges(list).unwrap();
            let nid: Nid = nid.parse().unwrap();
            assert_eq!(ranges.iter().any(|range| range.covers(&nid)), expected, "{list}: {nid}");
        };
        let list = " 10.0.[1-9/2, 20].*@tcp  *@tcp1\t2001:db8:7::/48@tcp 10.64.0.0/10@xdp ";
        let ranges: Vec<_> = nid_ranges(list).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["10.0.[1-9/2,20].*@tcp", "*@tcp1", "2001:db8:7::/48@tcp", "10.64.0.0/10@xdp"]);
        check(list, "10.0.3.200@tcp", true);
        check(list, "10.0.20.1@tcp", true);
        check(list, "10.0.4.1@tcp", false);
        check(list, "1.2.3.4@tcp1", true);
        check(list, "2001:db8::1@tcp1", true);
        check(list, "2001:db8:7:ffff::1@tcp", true);
        check(list, "2001:db8:8::1@tcp", false);
        check(list, "10.127.9.9@xdp", true);
        check(list, "10.128.0.1@xdp", false);
        check("[1-9]@gni 7@kfi2", "7@kfi2", true);
        check("[1-9]@gni 7@kfi2", "10@gni", false);
        for bad in ["", " ", "tcp", "10.0.0.1@tcp*", "10.0.0.1@tcp,10.0.0.2@tcp", "10.0.0.1", "*@tcp x"] {
            assert!(nid_ranges(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_wildcard_fits_large_nids_and_octets_do_not() {
        let check = |text: &str, nid: &str, expected| {
            let pattern: UdspPattern = text.parse().unwrap();
            let nid: Nid = nid.parse().unwrap();
            assert_eq!(pattern.is_nid(&nid), expected, "{text}: {nid}");
            assert!(!pattern.is_net(nid.net()), "{text} is no net");
        };
        check("*@tcp", "2001:db8::1@tcp", true);
        check("*.*.*.*@tcp", "2001:db8::1@tcp", false);
        check("2001:db8::/64@tcp", "2001:db8::1@tcp", true);
        check("2001:db8::1@tcp", "2001:db8::1@tcp", true);
        check("2001:db8::2/127@tcp", "2001:db8::1@tcp", false);
        check("2001:db8::/64@tcp", "10.1.2.3@tcp", false);
        check("10.1.0.0/16@tcp", "10.1.2.3@tcp", true);
        check("10.2.0.0/16@tcp", "10.1.2.3@tcp", false);
        check("7@gni", "7@gni", true);
        check("7@gni", "8@gni", false);
        let net: UdspPattern = "tcp[1-2]".parse().unwrap();
        let nid: Nid = "10.1.2.3@tcp2".parse().unwrap();
        assert!(net.is_net(nid.net()) && net.covers(&nid) && !net.is_nid(&nid));
    }
}
