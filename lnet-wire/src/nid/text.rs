//! NIDs, nets and process ids as text, both ways.
//!
//! Source: `lnet/lnet/nidstrings.c`. Differences: a net number must fit 16 bits, and digits are digits only
//! (no sign, no leading blank). What is printed of a NID on a net of an unknown type is read as well.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use super::{Net, NetType, Nid, ProcessId, SIZE_LARGE, SIZE_SMALL, TYPE_ANY};
use crate::bytes::get;

/// The wildcard as text.
const ANY_TEXT: &str = "<?>";
/// The wildcard pid as text.
const ANY_PID_TEXT: &str = "LNET_PID_ANY";

/// How the addresses of a net type are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Addresses {
    /// A number; only 0 is legal, and the net has no number.
    Loopback,
    /// IPv4 or IPv6.
    Ip,
    /// IPv4 alone.
    Ipv4,
    /// A decimal number.
    Number,
    /// A decimal number, or a hexadecimal one on input.
    AnyNumber,
}

struct Family {
    net_type: NetType,
    name: &'static str,
    addresses: Addresses,
}

/// Families in the order in which names are tried as prefixes.
const FAMILIES: [Family; 10] = [
    Family { net_type: NetType::LO, name: "lo", addresses: Addresses::Loopback },
    Family { net_type: NetType::TCP, name: "tcp", addresses: Addresses::Ip },
    Family { net_type: NetType::O2IB, name: "o2ib", addresses: Addresses::Ip },
    Family { net_type: NetType::GNI, name: "gni", addresses: Addresses::AnyNumber },
    Family { net_type: NetType::GIP, name: "gip", addresses: Addresses::Ipv4 },
    Family { net_type: NetType::PTLF, name: "ptlf", addresses: Addresses::Number },
    Family { net_type: NetType::KFI, name: "kfi", addresses: Addresses::Number },
    Family { net_type: NetType::EFA, name: "efa", addresses: Addresses::Ip },
    Family { net_type: NetType::BXI3F, name: "bxi3f", addresses: Addresses::Number },
    Family { net_type: NetType::XDP, name: "xdp", addresses: Addresses::Ip },
];

fn addresses_of(net_type: NetType) -> Option<Addresses> {
    family_of(net_type).map(|family| family.addresses)
}

fn family_of(net_type: NetType) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.net_type == net_type)
}

/// Whether nets of this type have a name.
pub(super) fn is_known(net_type: NetType) -> bool {
    family_of(net_type).is_some()
}

/// Whether nets of this type may have such an address; unknown types may have any.
pub(super) fn takes_ip(net_type: NetType, address: IpAddr) -> bool {
    match addresses_of(net_type) {
        Some(Addresses::Ip) | None => true,
        Some(Addresses::Ipv4) => address.is_ipv4(),
        Some(Addresses::Loopback | Addresses::Number | Addresses::AnyNumber) => false,
    }
}

/// Whether this net may have such an address; nets of unknown types may have any.
pub(super) fn takes_number(net: Net, address: u32) -> bool {
    match addresses_of(net.net_type()) {
        Some(Addresses::Number | Addresses::AnyNumber) | None => true,
        Some(Addresses::Loopback) => address == 0 && net.number() == 0,
        Some(Addresses::Ip | Addresses::Ipv4) => false,
    }
}

impl NetType {
    /// The name that nets of this type begin with; `None` for a type without one.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        family_of(self).map(|family| family.name)
    }
}

/// The expectation that a text did not meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Expected {
    /// An IPv4 or IPv6 address in front of the `@`.
    Ip,
    /// An IPv4 address in front of the `@`.
    Ipv4,
    /// A number up to 4294967295 in front of the `@`.
    Number,
    /// The address 0 of the loopback net.
    LoopbackAddress,
    /// Words of an address, one to four, in front of a net of an unknown type.
    Words,
    /// A net that begins with one of the known names.
    NetName,
    /// A net number, 0 to 65535, behind the name of a net.
    NetNumber,
    /// `lo` without a number.
    PlainLo,
    /// A pid and a `-` in front of a NID.
    Pid,
}

impl fmt::Display for Expected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ip => "an ipv4 or ipv6 address before the net",
            Self::Ipv4 => "an ipv4 address before the net",
            Self::Number => "a number from 0 to 4294967295 before the net",
            Self::LoopbackAddress => "0, the only address of net lo",
            Self::Words => "one to four hexadecimal words with : between them before the net",
            Self::NetName => "a net whose name is one of lo, tcp, o2ib, gni, gip, ptlf, kfi, efa, bxi3f, xdp",
            Self::NetNumber => "a net number from 0 to 65535 after the net's name",
            Self::PlainLo => "net lo without a number",
            Self::Pid => {
                "a pid below 2147483648 (or U and such a number, or LNET_PID_ANY) and - before a nid"
            }
        })
    }
}

/// Most bytes of the refused text that an error keeps. The longest NID has 56.
const EXCERPT_BYTES: usize = 64;

/// A text that is no NID, net or process id: the text, and what was expected of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseError {
    excerpt: [u8; EXCERPT_BYTES],
    excerpt_length: u8,
    is_cut: bool,
    expected: Expected,
}

impl ParseError {
    fn new(text: &str, expected: Expected) -> Self {
        let mut length = text.len().min(EXCERPT_BYTES);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut excerpt = [0; EXCERPT_BYTES];
        for (to, from) in excerpt.iter_mut().zip(text.bytes().take(length)) {
            *to = from;
        }
        Self { excerpt, excerpt_length: length as u8, is_cut: length < text.len(), expected }
    }

    /// The refused text, or its first 64 bytes.
    #[must_use]
    pub fn text(&self) -> &str {
        let bytes = self.excerpt.get(..usize::from(self.excerpt_length)).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }

    /// The expectation.
    #[must_use]
    pub const fn expected(&self) -> Expected {
        self.expected
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.is_cut { "..." } else { "" };
        write!(formatter, "{:?}{more}: expected {}", self.text(), self.expected)
    }
}

impl core::error::Error for ParseError {}

impl fmt::Display for Net {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return formatter.write_str(ANY_TEXT);
        }
        match (self.net_type().name(), self.number()) {
            (Some(name), 0) => formatter.write_str(name),
            (Some(name), number) => write!(formatter, "{name}{number}"),
            (None, number) => write!(formatter, "<{}:{number}>", self.net_type().0),
        }
    }
}

impl FromStr for Net {
    type Err = ParseError;

    /// Reads a name and, where it is not 0, a decimal number; `<?>` is the wildcard.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == ANY_TEXT {
            return Ok(Self::ANY);
        }
        parse_net(text).map_err(|expected| ParseError::new(text, expected))
    }
}

fn parse_net(text: &str) -> Result<Net, Expected> {
    let split = |family: &'static Family| Some((family, text.strip_prefix(family.name)?));
    let (family, number) = FAMILIES.iter().find_map(split).ok_or(Expected::NetName)?;
    if number.is_empty() {
        return Ok(Net::new(family.net_type, 0));
    }
    if family.addresses == Addresses::Loopback {
        return Err(Expected::PlainLo);
    }
    let number = decimal(number).and_then(|number| u16::try_from(number).ok()).ok_or(Expected::NetNumber)?;
    Ok(Net::new(family.net_type, number))
}

/// Reads a net of a type without a name, as it is printed.
fn parse_unknown_net(text: &str) -> Option<Net> {
    let (net_type, number) = text.strip_prefix('<')?.strip_suffix('>')?.split_once(':')?;
    let net_type = NetType(u16::try_from(decimal(net_type)?).ok()?);
    let number = u16::try_from(decimal(number)?).ok()?;
    (net_type.0 < u16::from(TYPE_ANY) && !is_known(net_type)).then(|| Net::new(net_type, number))
}

/// Whether an address belongs to one host, which others reach by it (RFC 6890; RFC 4291, 2.5 for those that
/// begin with 80 bits of zeros: `::`, `::1`, and IPv4 addresses in IPv6 form).
fn is_of_one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.octets()[0] != 0 && !v4.is_loopback() && !v4.is_multicast() && !v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            let is_special = v6.to_bits() >> 48 == 0 && matches!(v6.segments()[5], 0 | 0xFFFF);
            !is_special && !v6.is_multicast() && !v6.is_unicast_link_local()
        }
    }
}

/// Reads the words of an address on a net of an unknown type.
fn parse_words(net: Net, text: &str) -> Option<Nid> {
    let mut address = [0; 16];
    let mut count = 0;
    for word in text.split(':') {
        let is_word = (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let slot = address.as_chunks_mut::<4>().0.get_mut(count).filter(|_| is_word)?;
        *slot = u32::from_str_radix(word, 16).ok()?.to_be_bytes();
        count += 1;
    }
    let size = u8::try_from(4 * count.checked_sub(1)?).ok()?;
    Some(Nid::new(size, u8::try_from(net.net_type().0).ok()?, net.number(), address))
}

/// Digits alone: `u32::from_str` would take a sign as well.
fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn hexadecimal(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let is_hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hexadecimal.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

impl fmt::Display for Nid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_any() {
            return formatter.write_str(ANY_TEXT);
        }
        self.fmt_address(formatter)?;
        write!(formatter, "@{}", self.net())
    }
}

impl Nid {
    fn fmt_address(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = u32::from_be_bytes(get::<0, 4, _>(&self.address));
        match (addresses_of(self.net().net_type()), self.size()) {
            (Some(Addresses::Ip | Addresses::Ipv4), SIZE_SMALL) => {
                write!(formatter, "{}", Ipv4Addr::from(word))
            }
            (Some(Addresses::Ip), SIZE_LARGE) => write!(formatter, "{}", Ipv6Addr::from(self.address)),
            (Some(Addresses::Loopback | Addresses::Number | Addresses::AnyNumber), SIZE_SMALL) => {
                write!(formatter, "{word}")
            }
            _ => self.fmt_words(formatter),
        }
    }

    /// Whether this can be the name of an NI: an address of the kind that its net has, by which other hosts
    /// reach the one that has it. So neither `0.0.0.0@tcp` can, nor a multicast address, one of the loopback
    /// interface or of an IPv6 link, an IPv4 address in IPv6 form, nor what is longer than an address there.
    #[must_use]
    pub fn can_name_an_ni(&self) -> bool {
        if self.is_any() {
            return false;
        }
        let used = usize::from(self.size()) + 4;
        let is_padded_with_zeros = self.address.iter().skip(used).all(|byte| *byte == 0);
        let has_size = match addresses_of(self.net().net_type()) {
            Some(Addresses::Ip) => matches!(self.size(), SIZE_SMALL | SIZE_LARGE),
            Some(Addresses::Loopback) => *self == Self::LO,
            Some(Addresses::Ipv4 | Addresses::Number | Addresses::AnyNumber) => self.size() == SIZE_SMALL,
            None => self.size().is_multiple_of(4),
        };
        has_size && is_padded_with_zeros && self.ip().is_none_or(is_of_one_host)
    }

    /// The words of an address whose meaning is not known here.
    fn fmt_words(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = (self.used_bytes() - 4).div_ceil(4);
        for (index, word) in self.address.as_chunks::<4>().0.iter().take(words).enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(formatter, "{separator}{:x}", u32::from_be_bytes(*word))?;
        }
        Ok(())
    }

    /// Reads a NID as configuration writes it, where `*` is the wildcard as well.
    ///
    /// # Errors
    /// [`ParseError`] with the text and what was expected of it.
    pub fn from_str_or_any(text: &str) -> Result<Self, ParseError> {
        if text == "*" { Ok(Self::ANY) } else { text.parse() }
    }
}

impl FromStr for Nid {
    type Err = ParseError;

    /// Reads `address@net`, an address alone (its net is `tcp`), or the wildcard `<?>`; on a net of an
    /// unknown type what is printed of such a NID.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_nid(text).map_err(|expected| ParseError::new(text, expected))
    }
}

fn parse_nid(text: &str) -> Result<Nid, Expected> {
    if text == ANY_TEXT {
        return Ok(Nid::ANY);
    }
    let (address, net) = text.split_once('@').unwrap_or((text, "tcp"));
    if let Some(net) = parse_unknown_net(net) {
        return parse_words(net, address).ok_or(Expected::Words);
    }
    let net = parse_net(net)?;
    let addresses = addresses_of(net.net_type()).ok_or(Expected::NetName)?;
    let ip =
        |expected| address.parse().ok().and_then(|address| Nid::new_ip(net, address).ok()).ok_or(expected);
    let number = |value: Option<u32>, expected| {
        value.and_then(|value| Nid::new_number(net, value).ok()).ok_or(expected)
    };
    match addresses {
        Addresses::Ip => ip(Expected::Ip),
        Addresses::Ipv4 => ip(Expected::Ipv4),
        Addresses::Loopback => number(decimal(address), Expected::LoopbackAddress),
        Addresses::Number => number(decimal(address), Expected::Number),
        Addresses::AnyNumber => number(decimal(address).or_else(|| hexadecimal(address)), Expected::Number),
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Self::ANY_PID => formatter.write_str(ANY_PID_TEXT)?,
            pid if pid & Self::USER_FLAG != 0 => write!(formatter, "U{}", pid & !Self::USER_FLAG)?,
            pid => write!(formatter, "{pid}")?,
        }
        write!(formatter, "-{}", self.nid)
    }
}

impl FromStr for ProcessId {
    type Err = ParseError;

    /// Reads `pid-nid`, `Upid-nid` (the user flag is set) or `LNET_PID_ANY-nid`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_process(text).map_err(|expected| ParseError::new(text, expected))
    }
}

fn parse_process(text: &str) -> Result<ProcessId, Expected> {
    let (pid, nid) = text.split_once('-').ok_or(Expected::Pid)?;
    let pid = match pid.strip_prefix('U') {
        _ if pid == ANY_PID_TEXT => ProcessId::ANY_PID,
        None => parse_pid(pid)?,
        Some(pid) => parse_pid(pid)? | ProcessId::USER_FLAG,
    };
    if pid == ProcessId::ANY_PID && !text.starts_with(ANY_PID_TEXT) {
        return Err(Expected::Pid);
    }
    Ok(ProcessId { nid: parse_nid(nid)?, pid })
}

/// A pid without the user flag.
fn parse_pid(text: &str) -> Result<u32, Expected> {
    decimal(text).filter(|pid| pid & ProcessId::USER_FLAG == 0).ok_or(Expected::Pid)
}
