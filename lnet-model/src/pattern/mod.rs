//! Short texts for many things: numbers, ranges, lists of NIDs, interfaces and CPTs.
//!
//! Invariants: a list is taken whole or refused; it is counted before it is enumerated, so that no text takes
//! more memory than its limit allows. Source: the grammars of LNet's tools, `libcfs/libcfs/util/string.c`,
//! `lnet/utils/lnetconfig/liblnetconfig.c`.

mod cpt;
mod expression;
mod interface;
mod nid;
mod route;
mod udsp;

#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::errno::{Errno, Refusal};

pub use cpt::{cpts, cpts_text, shards};
pub use expression::NumberRange;
pub use interface::{InterfaceName, interfaces};
pub use nid::{
    NIDS_MAX, NO_NI, NODES_MAX, Resolve, fault_nid, fault_nid_text, nid, nids, nids_resolved, nodes,
};
pub use route::{hops, remote_net, route_priority};
pub use udsp::{UdspAddress, UdspPattern, addresses, nid_ranges};

/// The refusal of a text that is not what was expected.
#[must_use]
pub fn invalid(text: &str, expected: &str) -> Refusal {
    Refusal::new(Errno::INVAL, format!("{}: expected {expected}", quoted(text)))
}

/// The refusal of a NID that can name no NI.
#[must_use]
pub fn no_ni(text: &str) -> Refusal {
    Refusal::new(Errno::INVAL, format!("{}: {NO_NI}", quoted(text)))
}

/// Characters of a foreign text that an error shows.
const SHOWN: usize = 64;

/// A text as an error shows it, shortened where it is long.
#[must_use]
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// A text as [`quoted`] has it, without the quotes: for those who put their own around it.
#[must_use]
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => escaped(text.get(..end).unwrap_or_default()) + "...",
        None => escaped(text),
    }
}

/// Explains a word of a command line that no program of ours takes: one that begins with a dash of
/// typography, as editors and pages make one of `--`, and one that would end a line, act on a terminal or
/// change the order of what is read wherever it is shown.
#[must_use]
pub fn mistaken_word(word: &str) -> Option<String> {
    let dash = word.chars().next().filter(|dash| matches!(dash, '\u{2010}'..='\u{2015}' | '\u{2212}'));
    if let Some(dash) = dash {
        let number = u32::from(dash);
        return Some(format!(
            "{}: it begins with U+{number:04X}, a dash; options begin with - or --",
            quoted(word)
        ));
    }
    let number = u32::from(word.chars().find(|one| acts(*one))?);
    Some(format!("{}: it has U+{number:04X} in it, a character that is not shown", quoted(word)))
}

/// Whether a character ends a line, acts on a terminal or changes the order of what is read.
#[must_use]
pub fn acts(one: char) -> bool {
    let orders = matches!(one, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    one.is_control() || orders
}

/// A foreign text as part of a line: what would end the line, act on a terminal or change the order of what
/// is read is escaped, and all else stands as it is.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '"' | '\'' | '\\' => shown.push(one),
            one => shown.extend(one.escape_debug()),
        }
    }
    shown
}

/// A number as C reads it with base 0: decimal, `0x` and hexadecimal, `0` and octal; with a sign if it has
/// one.
#[must_use]
pub fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, digits.strip_prefix('0')) {
        (Some(rest), _) => (rest, 16),
        (None, Some(rest)) if !rest.is_empty() => (rest, 8),
        _ => (digits, 10),
    };
    // The library's own parser takes a sign here as well.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let value = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -value } else { value }).ok()
}

/// The parts of `text` between commas that are in no brackets, without blanks around them; `None` if brackets
/// do not pair or nest, or if a part is empty.
fn split_list(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut inside = false;
    for (position, one) in text.char_indices() {
        match one {
            '[' if inside => return None,
            '[' => inside = true,
            ']' if !inside => return None,
            ']' => inside = false,
            ',' if !inside => {
                parts.push(text.get(start..position)?.trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..)?.trim());
    (!inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}
