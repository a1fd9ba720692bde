//! Reads the three strings.

use std::collections::HashSet;

use lnet_model::pattern::{
    self, InterfaceName, UdspAddress, UdspPattern, nids_resolved, quoted, route_priority,
};
use lnet_model::{Errno, Refusal};
use lnet_wire::Net;

use super::{
    Gateway, LEGACY_BYTES_MAX, Legacy, LegacyKind, LegacyText, Located, NetEntry, NetRule, ROUTES_MAX,
    RouteRule,
};
use crate::document::DocumentError;

/// Most mistakes that are reported.
const ERRORS_MAX: usize = 100;
/// Words of a comment at which a rule is looked for.
const COMMENT_WORDS_MAX: usize = 64;
/// NIDs of gateways in a comment that are enumerated; more than these look like a rule too.
const COMMENT_NIDS_MAX: usize = 64;

/// A mistake and its offset.
type Mistake = (usize, Refusal);

/// Reads rules of a kind; without one, of the kind that each looks like.
pub(super) fn read(kind: Option<LegacyKind>, text: &LegacyText) -> Result<Legacy, Vec<DocumentError>> {
    let mut legacy = Legacy::default();
    let mut routes_made = 0;
    let mut errors = Vec::new();
    let mut wrong = |(offset, refusal): Mistake| {
        let Refusal { errno, message, .. } = refusal;
        let position = text.position(offset);
        errors.push(DocumentError { position, message, errno, seq_no: None });
        errors.len() < ERRORS_MAX
    };
    if text.text().len() > LEGACY_BYTES_MAX {
        let message = format!("{} bytes, expected at most {LEGACY_BYTES_MAX}", text.text().len());
        wrong((0, Refusal::new(Errno::TOOBIG, message)));
        return Err(errors);
    }
    for (offset, rule, comment) in rules(text.text()) {
        let rule = Words { text: rule, offset };
        let kind = kind.unwrap_or_else(|| LegacyKind::guessed(rule.text));
        if let Err(mistake) = one(kind, rule, text, &mut legacy, &mut routes_made)
            && !wrong(mistake)
        {
            break;
        }
        if let Some(found) = comment.and_then(|comment| swallowed(kind, comment)) {
            let message = format!(
                "the comment has {}, which looks like a rule: a comment goes on until the next ; or the end \
                 of the line",
                quoted(found.text)
            );
            legacy.notes.push(Located { position: text.position(found.offset), value: message });
        }
    }
    if errors.is_empty() { Ok(legacy) } else { Err(errors) }
}

/// A part of a text, and its offset there.
#[derive(Clone, Copy)]
struct Words<'a> {
    text: &'a str,
    offset: usize,
}

/// The rules of a text, with the offset of each and the comment behind it (`lnet_str2tbs_sep`).
fn rules(text: &str) -> impl Iterator<Item = (usize, &str, Option<Words<'_>>)> {
    let mut offset = 0;
    text.split([';', '\n']).map(move |part| {
        let start = offset;
        offset += part.len() + 1;
        match part.split_once('#') {
            Some((rule, comment)) => {
                (start, rule, Some(Words { text: comment, offset: start + rule.len() + 1 }))
            }
            None => (start, part, None),
        }
    })
}

/// Reads a rule; nothing stands in an empty one. Counts the routes of all rules.
fn one(
    kind: LegacyKind,
    rule: Words<'_>,
    text: &LegacyText,
    legacy: &mut Legacy,
    routes_made: &mut usize,
) -> Result<(), Mistake> {
    let rule = trimmed(rule);
    if rule.text.is_empty() {
        return Ok(());
    }
    let position = text.position(rule.offset);
    match kind {
        LegacyKind::Networks => {
            for (offset, value) in networks(rule)? {
                legacy.networks.push(Located { position: text.position(offset), value });
            }
        }
        LegacyKind::Ip2nets => legacy.rules.push(Located { position, value: net_rule(rule)? }),
        LegacyKind::Routes => {
            let value = if rule.text.ends_with('}') { braced(rule)? } else { route_rule(rule, ROUTES_MAX)? };
            let made = routes_made.saturating_add(count(&value));
            if made > ROUTES_MAX {
                return Err(mistake(rule, Errno::TOOBIG, too_many(made)));
            }
            *routes_made = made;
            legacy.routes.push(Located { position, value });
        }
    }
    Ok(())
}

/// A rule of this kind among the last words of a comment: who joins lines, as modprobe does, puts one there.
fn swallowed(kind: LegacyKind, comment: Words<'_>) -> Option<Words<'_>> {
    let starts = words(comment).into_iter().take(COMMENT_WORDS_MAX);
    let rest = |word: Words<'_>| {
        let text = comment.text.get(word.offset - comment.offset..)?;
        Some(trimmed(Words { text, offset: word.offset }))
    };
    starts.filter_map(rest).find(|rest| match kind {
        LegacyKind::Networks => false,
        LegacyKind::Ip2nets => net_rule(*rest).is_ok(),
        LegacyKind::Routes => match route_rule(*rest, COMMENT_NIDS_MAX) {
            Ok(_) => true,
            Err((_, refusal)) => refusal.errno == Errno::TOOBIG,
        },
    })
}

fn trimmed(words: Words<'_>) -> Words<'_> {
    let start = words.text.trim_start();
    Words { text: start.trim_end(), offset: words.offset + words.text.len() - start.len() }
}

fn mistake(at: Words<'_>, errno: Errno, message: String) -> Mistake {
    (at.offset, Refusal::new(errno, message))
}

fn invalid(at: Words<'_>, expected: &str) -> Mistake {
    (at.offset, pattern::invalid(at.text, expected))
}

/// The words between blanks that are in no brackets.
fn words(of: Words<'_>) -> Vec<Words<'_>> {
    let mut depth = 0_u32;
    let mut start = None;
    let mut found = Vec::new();
    let word = |start: usize, end: usize| Words {
        text: of.text.get(start..end).unwrap_or_default(),
        offset: of.offset + start,
    };
    for (at, one) in of.text.char_indices() {
        match one {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match start {
            Some(first) if one.is_whitespace() && depth == 0 => {
                found.push(word(first, at));
                start = None;
            }
            None if !one.is_whitespace() => start = Some(at),
            _ => {}
        }
    }
    found.extend(start.map(|first| word(first, of.text.len())));
    found
}

/// Entries of nets, each with its offset, and what stands behind them.
type Entries<'a> = (Vec<(usize, NetEntry)>, Words<'a>);

/// Reads nets with commas between them, up to what is none.
fn net_entries(of: Words<'_>) -> Result<Entries<'_>, Mistake> {
    let mut entries = Vec::new();
    let mut rest = of;
    loop {
        rest = trimmed(rest);
        let at = rest.offset;
        let (name, behind) = split(rest, rest.text.find(|one: char| !one.is_ascii_alphanumeric()));
        let net: Net = name.text.parse().map_err(|error| (at, Refusal::from(error)))?;
        if net == Net::LO || net.is_any() {
            return Err(mistake(name, Errno::INVAL, format!("net {net} is always as it is")));
        }
        rest = behind;
        let (interfaces, behind) = bracketed(trimmed(rest), '(', ')')?.unwrap_or((None, rest));
        rest = behind;
        let (cpts, behind) = bracketed(rest, '[', ']')?.unwrap_or((None, rest));
        rest = behind;
        let interfaces = interfaces.map(interfaces_in).transpose()?.unwrap_or_default();
        let read = |words: Words<'_>| pattern::cpts(words.text).map_err(|error| (words.offset, error));
        let cpts = cpts.map(read).transpose()?.unwrap_or_default();
        entries.push((at, NetEntry { net, interfaces, cpts }));
        match trimmed(rest).text.strip_prefix(',') {
            Some(behind) => {
                let next = trimmed(rest);
                rest = Words { text: behind, offset: next.offset + 1 };
            }
            None => return Ok((entries, rest)),
        }
    }
}

/// Interfaces between parentheses, each once.
fn interfaces_in(words: Words<'_>) -> Result<Vec<InterfaceName>, Mistake> {
    let interfaces = pattern::interfaces(words.text).map_err(|error| (words.offset, error))?;
    let mut known = HashSet::new();
    for one in &interfaces {
        if !known.insert(&one.name) {
            let message = format!("interface {} again: each is expected once", quoted(&one.name));
            return Err(mistake(words, Errno::EXIST, message));
        }
    }
    Ok(interfaces)
}

fn split(words: Words<'_>, at: Option<usize>) -> (Words<'_>, Words<'_>) {
    let at = at.unwrap_or(words.text.len());
    let (before, behind) = words.text.split_at_checked(at).unwrap_or((words.text, ""));
    (Words { text: before, ..words }, Words { text: behind, offset: words.offset + before.len() })
}

/// Words in brackets, if there are any, and the words behind them.
type Bracketed<'a> = (Option<Words<'a>>, Words<'a>);

fn bracketed(words: Words<'_>, open: char, close: char) -> Result<Option<Bracketed<'_>>, Mistake> {
    let Some(inside) = words.text.strip_prefix(open) else { return Ok(None) };
    let Some(end) = inside.find(close) else {
        let message = format!("{}: a {open} without its {close}", quoted(words.text));
        return Err(mistake(words, Errno::INVAL, message));
    };
    let (inside, behind) = split(Words { text: inside, offset: words.offset + 1 }, Some(end));
    let behind =
        Words { text: behind.text.get(1..).unwrap_or_default(), offset: behind.offset + close.len_utf8() };
    Ok(Some((Some(inside), behind)))
}

/// Refuses what stands behind nets without a blank.
fn ended(rest: Words<'_>) -> Result<(), Mistake> {
    if rest.text.is_empty() || rest.text.starts_with(char::is_whitespace) {
        return Ok(());
    }
    Err(invalid(rest, "a blank, a comma, or interfaces in parentheses"))
}

fn networks(of: Words<'_>) -> Result<Vec<(usize, NetEntry)>, Mistake> {
    let (entries, rest) = net_entries(of)?;
    ended(rest)?;
    let rest = trimmed(rest);
    if rest.text.is_empty() { Ok(entries) } else { Err(invalid(rest, "a comma before the next net")) }
}

fn net_rule(of: Words<'_>) -> Result<NetRule, Mistake> {
    let (entries, rest) = net_entries(of)?;
    let mut known = HashSet::new();
    for (offset, entry) in &entries {
        if !known.insert(entry.net) {
            let message = format!("net {} again: a rule has each net once", entry.net);
            return Err((*offset, Refusal::new(Errno::INVAL, message)));
        }
    }
    ended(rest)?;
    let read = |word: Words<'_>| pattern::addresses(word.text).map_err(|error| (word.offset, error));
    let ranges: Vec<UdspAddress> = words(rest).into_iter().map(read).collect::<Result<_, _>>()?;
    if ranges.is_empty() {
        let message = format!(
            "{}: a rule without addresses: expected nets, and behind them addresses such as 10.0.[1-9].*",
            quoted(of.text)
        );
        return Err(mistake(of, Errno::INVAL, message));
    }
    Ok(NetRule { nets: entries.into_iter().map(|(_, entry)| entry).collect(), ranges })
}

/// Routes that a rule makes.
fn count(rule: &RouteRule) -> usize {
    let gateways: usize = rule.gateways.iter().map(|gateway| gateway.nids.len()).sum();
    rule.each_net().count().saturating_mul(gateways)
}

fn too_many(made: usize) -> String {
    format!("{made} routes, expected at most {ROUTES_MAX}")
}

fn nets(word: Words<'_>) -> Result<UdspPattern, Mistake> {
    let pattern = word.text.parse().ok().filter(|pattern: &UdspPattern| pattern.address.is_none());
    pattern.ok_or_else(|| invalid(word, "a net such as tcp1, or nets such as o2ib[1-3]"))
}

/// Reads NIDs of gateways, of which a rule may have so many more.
fn gateway(word: Words<'_>, room: &mut usize) -> Result<Gateway, Mistake> {
    let expected = "a gateway such as 10.0.0.1@tcp or 10.0.0.[1-4]@tcp:1";
    let (_, behind) = word.text.rsplit_once('@').ok_or_else(|| invalid(word, expected))?;
    let (text, priority) = match behind.split_once(':') {
        Some((_, priority)) => {
            let (text, _) = split(word, Some(word.text.len() - priority.len() - 1));
            (text, Some(route_priority(priority).map_err(|error| (word.offset, error))?))
        }
        None => (word, None),
    };
    let nids = nids_resolved(text.text, *room, &|_, _| Ok(None));
    let nids = nids.map_err(|error| match *room < ROUTES_MAX && error.errno == Errno::TOOBIG {
        true => mistake(
            word,
            error.errno,
            format!("{}: the gateways of a rule have at most {ROUTES_MAX} NIDs", quoted(text.text)),
        ),
        false => (word.offset, error),
    })?;
    *room -= nids.len();
    Ok(Gateway { text: text.text.to_owned(), nids, priority })
}

/// Reads a rule whose gateways have at most so many NIDs.
fn route_rule(of: Words<'_>, mut room: usize) -> Result<RouteRule, Mistake> {
    let words = words(of);
    let Some((first, rest)) = words.split_first() else { return Err(invalid(of, "a route")) };
    let nets = nets(*first)?;
    let is_number = |word: &&Words<'_>| pattern::integer(word.text).is_some();
    let (hops, rest) = match rest.split_first().filter(|(word, _)| is_number(word)) {
        Some((word, rest)) => (pattern::hops(word.text).map_err(|error| (word.offset, error))?, rest),
        None => (None, rest),
    };
    let gateways: Vec<Gateway> =
        rest.iter().map(|word| gateway(*word, &mut room)).collect::<Result<_, _>>()?;
    if gateways.is_empty() {
        return Err(no_gateway(of));
    }
    Ok(RouteRule { nets, hops, gateways })
}

fn no_gateway(of: Words<'_>) -> Mistake {
    let message = format!(
        "{}: a route without a gateway: expected a net, and behind it NIDs such as 10.0.0.1@tcp",
        quoted(of.text)
    );
    mistake(of, Errno::INVAL, message)
}

/// The form of `lustre_routes_config`: `tcp7: { gateway: 10.3.3.[6-12]@tcp, priority: 20, hop: 8 }`.
fn braced(of: Words<'_>) -> Result<RouteRule, Mistake> {
    let form = "NET: { gateway: NIDS, priority: NUMBER, hop: NUMBER }";
    let (name, rest) = split(of, of.text.find(':'));
    let nets = nets(trimmed(name))?;
    let inside = rest.text.strip_prefix(':').map(str::trim_start).and_then(|rest| rest.strip_prefix('{'));
    let inside = inside.and_then(|inside| inside.strip_suffix('}')).ok_or_else(|| invalid(rest, form))?;
    let mut rest = Words { text: inside, offset: of.offset + of.text.len() - 1 - inside.len() };
    let (mut found, mut hops, mut priority, mut room) = (None, None, None, ROUTES_MAX);
    loop {
        let end = comma(rest.text);
        let (part, behind) = split(rest, end);
        let part = trimmed(part);
        let (key, value) = part.text.split_once(':').ok_or_else(|| invalid(part, form))?;
        let value = Words { text: value, offset: part.offset + key.len() + 1 };
        let value = trimmed(value);
        let at = |error| (value.offset, error);
        match key.trim() {
            "gateway" => found = Some(gateway(value, &mut room)?),
            "priority" => priority = Some(route_priority(value.text).map_err(at)?),
            "hop" => hops = pattern::hops(value.text).map_err(at)?,
            _ => return Err(invalid(part, "gateway, priority or hop")),
        }
        match behind.text.strip_prefix(',') {
            Some(text) => rest = Words { text, offset: behind.offset + 1 },
            None => break,
        }
    }
    let gateway = found.ok_or_else(|| no_gateway(of))?;
    let priority = priority.or(gateway.priority);
    Ok(RouteRule { nets, hops, gateways: vec![Gateway { priority, ..gateway }] })
}

/// The first comma in no brackets.
fn comma(text: &str) -> Option<usize> {
    let mut is_inside = false;
    text.find(|one: char| {
        is_inside = one == '[' || is_inside && one != ']';
        one == ',' && !is_inside
    })
}
