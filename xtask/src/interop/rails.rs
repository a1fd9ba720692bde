//! The cases of Multi-Rail: our daemon and a kernel node with two NIs each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, OURS, Silence};
use super::matrix::{KERNEL, LIVES, both_ping};
use super::selftest::{self, READ, WRITE};

/// Bytes by which a path is known to carry bulk data: far more than pings and connections come to.
const BULK_BYTES: u64 = 4 << 20;
/// How long an NI may take to full health: recovery pings are up to 8 s apart by then.
pub(super) const RECOVERY: Duration = Duration::from_secs(90);

/// A side: the kernel node or ours, each with two NIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Kernel,
    Ours,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Kernel, Self::Ours];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Kernel => Self::Ours,
            Self::Ours => Self::Kernel,
        }
    }

    pub(super) const fn primary(self) -> &'static str {
        match self {
            Self::Kernel => KERNEL,
            Self::Ours => OURS,
        }
    }

    /// The NID of `eth1` on a net.
    pub(super) fn second(self, net: &str) -> String {
        match self {
            Self::Kernel => format!("10.78.0.11@{net}"),
            Self::Ours => format!("10.78.0.50@{net}"),
        }
    }

    /// Runs its `lnetctl`.
    pub(super) fn ctl(self, lab: &Lab, words: &str) -> Result<String> {
        match self {
            Self::Kernel => lab.on(1, &format!("lnetctl {words}")),
            Self::Ours => lab.tool(&words.split_whitespace().collect::<Vec<_>>()),
        }
    }

    /// Switches its `eth1` up or down.
    pub(super) fn second_link(self, lab: &Lab, state: &str) -> Result<()> {
        match self {
            Self::Kernel => lab.on(1, &format!("ip link set eth1 {state}")),
            Self::Ours => lab.here(&["ip", "link", "set", "eth1", state]),
        }
        .map(drop)
    }

    /// Waits until it knows the other side as Multi-Rail by the primary NID and those `further`, and by no
    /// others.
    pub(super) fn sees(self, lab: &Lab, further: &[String]) -> Result<()> {
        lab.until(|| self.knows(lab, further, true)).with_context(|| format!("{self:?} sees the other side"))
    }

    /// Whether it knows the other side by the primary NID and those `further`, and by no others.
    pub(super) fn knows(self, lab: &Lab, further: &[String], is_multi_rail: bool) -> Result<()> {
        let primary = self.other().primary();
        let expected: BTreeSet<_> = [primary].into_iter().chain(further.iter().map(String::as_str)).collect();
        let shown = self.ctl(lab, &format!("peer show --nid {primary} -v 3"))?;
        let is_up_to_date = !is_multi_rail || shown.contains("peer state: 273");
        let is_known = listed(&shown) == expected
            && shown.contains(&format!("primary nid: {primary}\n"))
            && shown.contains(&format!("Multi-Rail: {is_multi_rail}\n"));
        ensure!(is_known && is_up_to_date, "{expected:?} and Multi-Rail {is_multi_rail} expected: {shown}");
        Ok(())
    }

    /// Whether all its NIs, and those of the other side that it knows, are in full health.
    pub(super) fn is_well(self, lab: &Lab) -> Result<()> {
        let primary = self.other().primary();
        for words in [
            format!("peer show --nid {primary} -v 4"),
            "net show --net tcp -v 4".to_owned(),
            "net show --net tcp1 -v 4".to_owned(),
        ] {
            let shown = self.ctl(lab, &words)?;
            let values: Vec<_> =
                shown.lines().filter_map(|line| line.trim().strip_prefix("health value: ")).collect();
            let is_well = !values.is_empty() && values.iter().all(|value| *value == "1000");
            ensure!(is_well, "{self:?}: health is {values:?} in `{words}`");
        }
        Ok(())
    }
}

/// The NIDs of the peer NIs that `peer show` tells.
fn listed(shown: &str) -> BTreeSet<&str> {
    shown.lines().filter_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix("nid: ")).collect()
}

/// Bytes sent and received by the connections of each path, by our address and the other's.
pub(super) fn carried(lab: &Lab) -> Result<BTreeMap<(String, String), u64>> {
    // A connection is two lines: its ends, then what it has counted.
    let shown = lab.here(&["ss", "-tniH", "state", "established"])?;
    let mut lines = shown.lines();
    let mut carried = BTreeMap::new();
    while let (Some(ends), Some(counters)) = (lines.next(), lines.next()) {
        // An end is ADDRESS:PORT, or ADDRESS%INTERFACE:PORT where the socket is bound to its interface.
        let address = |end: &str| end.split([':', '%']).next().unwrap_or_default().to_owned();
        let mut ends = ends.split_whitespace().skip(2).map(address);
        let (Some(here), Some(there)) = (ends.next(), ends.next()) else { continue };
        let counts = counters.split_whitespace().filter_map(|word| {
            word.strip_prefix("bytes_acked:")
                .or_else(|| word.strip_prefix("bytes_received:"))?
                .parse::<u64>()
                .ok()
        });
        *carried.entry((here, there)).or_default() += counts.sum::<u64>();
    }
    Ok(carried)
}

/// Fails unless each path of these has carried bulk data since `before`.
pub(super) fn all_carry(
    lab: &Lab,
    paths: &[(&str, &str)],
    before: &BTreeMap<(String, String), u64>,
) -> Result<()> {
    let now = carried(lab)?;
    for (here, there) in paths {
        let path = ((*here).to_owned(), (*there).to_owned());
        let count = |when: &BTreeMap<_, u64>| when.get(&path).copied().unwrap_or(0);
        let more = count(&now).saturating_sub(count(before));
        ensure!(more >= BULK_BYTES, "{more} bytes from {here} to {there}; {now:?} after {before:?}");
    }
    Ok(())
}

pub(super) const RAIL: (&str, &str) = ("10.77.0.50", "10.77.0.11");
pub(super) const SECOND_RAIL: (&str, &str) = ("10.78.0.50", "10.78.0.11");

/// Starts our daemon, and has one side discover the other; the other learns by its push.
fn meet(lab: &mut Lab, by: Side) -> Result<()> {
    let is_known = format!("lnetctl peer list | grep -q {OURS}");
    lab.stop_daemon();
    lab.on(1, &format!("if {is_known}; then lnetctl peer del --prim_nid {OURS}; fi"))?;
    selftest::start(lab, &["--shards", "2"], &[])?;
    by.ctl(lab, &format!("discover --force {}", by.other().primary()))?;
    each_sees_both(lab)
}

fn each_sees_both(lab: &Lab) -> Result<()> {
    Side::BOTH.into_iter().try_for_each(|side| side.sees(lab, &[side.other().second("tcp1")]))
}

/// Bulk data between the two, by the kernel's console; fails unless both rails carry some.
pub(super) fn both_rails(lab: &Lab) -> Result<()> {
    let before = carried(lab)?;
    judge(lab, READ)?;
    all_carry(lab, &[RAIL, SECOND_RAIL], &before)
}

pub(super) fn judge(lab: &Lab, test: &str) -> Result<()> {
    let shown = selftest::by_kernel(lab, &selftest::script("lst", KERNEL, OURS, test, ""))?;
    selftest::judge(&shown).map(drop)
}

pub(super) fn discovery(lab: &mut Lab) -> Result<String> {
    for by in Side::BOTH {
        meet(lab, by).with_context(|| format!("discovery by {by:?}"))?;
        both_rails(lab)?;
    }
    Ok("peer state 273 on both sides".to_owned())
}

pub(super) fn push(lab: &mut Lab) -> Result<String> {
    meet(lab, Side::Kernel)?;
    // A net is busy while selftest is loaded.
    lab.on(1, "rmmod lnet_selftest")?;
    for side in Side::BOTH {
        let other = side.other();
        side.ctl(lab, "net del --net tcp1")?;
        other.sees(lab, &[]).context("a net was deleted")?;
        side.ctl(lab, "net add --net tcp --if eth1")?;
        other.sees(lab, &[side.second("tcp")]).context("an NI was added")?;
        side.ctl(lab, "net del --net tcp --if eth1")?;
        other.sees(lab, &[]).context("an NI was deleted")?;
        side.ctl(lab, "net add --net tcp1 --if eth1")?;
        other.sees(lab, &[side.second("tcp1")]).context("a net was added")?;
        both_ping(lab)?;
    }
    each_sees_both(lab)?;
    Ok("four changes on each side".to_owned())
}

pub(super) fn discovery_off(lab: &mut Lab) -> Result<String> {
    meet(lab, Side::Ours)?;
    for side in Side::BOTH {
        let other = side.other();
        side.ctl(lab, "set discovery 0")?;
        // A kernel node forgets such a peer, until there is traffic again.
        let known = lab.until(|| both_ping(lab).and_then(|_| other.knows(lab, &[], false)));
        known.with_context(|| format!("discovery is off: {side:?}"))?;
        judge(lab, WRITE)?;
        side.ctl(lab, "set discovery 1")?;
        side.ctl(lab, &format!("discover --force {}", other.primary()))?;
        each_sees_both(lab).with_context(|| format!("discovery is on again: {side:?}"))?;
        both_rails(lab)?;
    }
    Ok(String::new())
}

/// A rail is cut while bulk data goes over both.
pub(super) fn cut(lab: &mut Lab) -> Result<String> {
    meet(lab, Side::Kernel)?;
    let mut counted = 0;
    for side in Side::BOTH {
        for test in [READ, WRITE] {
            let link = |lab: &Lab, is_cut| side.second_link(lab, if is_cut { "down" } else { "up" });
            let carries_on = |lab: &Lab| carries_on(lab, test, side);
            let cut = cut_once(lab, test, link, carries_on);
            counted += cut.with_context(|| format!("{test}, eth1 down: {side:?}"))?;
        }
    }
    Ok(format!("no error, and none of {counted} messages lost"))
}

/// Frames of a rail vanish while bulk data goes over both, and no interface tells of it.
pub(super) fn silent_cut(lab: &mut Lab) -> Result<String> {
    meet(lab, Side::Kernel)?;
    let mut counted = 0;
    for silence in Silence::ALL {
        for test in [READ, WRITE] {
            let vanish = |lab: &Lab, is_cut| lab.silence(silence, "eth1", is_cut);
            // A kernel node learns of it after its timeout of 50 s, and has messages wait for the rail.
            let cut = cut_once(lab, test, vanish, |_| Ok(()));
            counted += cut.with_context(|| format!("{test}, frames vanish: {silence:?}"))?;
        }
    }
    Ok(format!("no error, and none of {counted} messages lost"))
}

/// Cuts the second rail, and has it heal.
fn cut_once(
    lab: &Lab,
    test: &str,
    cut: impl Fn(&Lab, bool) -> Result<()>,
    meanwhile: impl Fn(&Lab) -> Result<()>,
) -> Result<u64> {
    let before = carried(lab)?;
    selftest::disturbed(lab, test, |lab| {
        lab.until(|| all_carry(lab, &[RAIL, SECOND_RAIL], &before))?;
        cut(lab, true)?;
        let begun = Instant::now();
        meanwhile(lab)?;
        std::thread::sleep(selftest::CUT.saturating_sub(begun.elapsed()));
        cut(lab, false)?;
        lab.within(RECOVERY, || Side::BOTH.into_iter().try_for_each(|side| side.is_well(lab)))?;
        let before = carried(lab)?;
        lab.until(|| all_carry(lab, &[RAIL, SECOND_RAIL], &before))
    })
}

/// Has bulk data begin while the second link of a side is down: the first rail carries it, and all of it
/// ends. Of what was under way before, each request may have taken the second rail, and wait for it.
fn carries_on(lab: &Lab, test: &str, side: Side) -> Result<()> {
    // A kernel node learns by push that our link is down, which costs that NID a step of health. What was
    // still on its way from there gives the step back, and new requests go there again.
    let prefers_first = side == Side::Ours;
    if prefers_first {
        lab.on(1, "lnetctl udsp add --dst tcp --priority 0")?;
    }
    let before = carried(lab)?;
    lab.on(1, &selftest::more(test))?;
    lab.until(|| all_carry(lab, &[RAIL], &before))?;
    lab.on(1, selftest::NO_MORE)?;
    if prefers_first {
        lab.on(1, "lnetctl udsp del --all")?;
    }
    Ok(())
}

/// The kernel node comes back with nothing that it knew.
pub(super) fn rebooted(lab: &mut Lab) -> Result<String> {
    meet(lab, Side::Kernel)?;
    for (_life, by) in (0..LIVES).zip(Side::BOTH.into_iter().cycle()) {
        lab.reboot(1)?;
        selftest::load(lab, 1, selftest::PATIENT)?;
        // What goes by connections of the former life is lost, and a discovery waits long for it.
        lab.until(|| both_ping(lab))?;
        by.ctl(lab, &format!("discover --force {}", by.other().primary()))?;
        each_sees_both(lab)?;
        both_rails(lab)?;
    }
    Ok(String::new())
}

/// All paths, then each by itself.
pub(super) fn four_paths(lab: &mut Lab) -> Result<String> {
    selftest::start(lab, &["--shards", "2"], &[])?;
    Side::Kernel.ctl(lab, &format!("discover --force {OURS}"))?;
    for side in Side::BOTH {
        side.sees(lab, &[side.other().second("tcp")])?;
    }
    selftest::all(lab, selftest::by_kernel, "lst")?;
    // A node alternates between its NIs and between its peer's, so that two paths may be all that it takes by
    // itself.
    for client in Side::BOTH {
        for (near, far) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            one_path(lab, client, near, far).with_context(|| format!("{client:?}, NI {near} to NI {far}"))?;
        }
    }
    Ok("each of the four alone, for each side's requests".to_owned())
}

/// Has one side prefer one of its NIs and one of the other's, and request bulk data: that path carries it,
/// the others none.
fn one_path(lab: &Lab, client: Side, near: usize, far: usize) -> Result<()> {
    let nids = |side: Side| [side.primary().to_owned(), side.second("tcp")];
    let (near, far) = (&nids(client)[near], &nids(client.other())[far]);
    client.ctl(lab, &format!("udsp add --src {near} --priority 0"))?;
    client.ctl(lab, &format!("udsp add --dst {far} --priority 0"))?;
    let before = carried(lab)?;
    for test in [READ, WRITE] {
        let (from, to) = (client.primary(), client.other().primary());
        let shown = selftest::by_kernel(lab, &selftest::script("lst", from, to, test, ""))?;
        selftest::judge(&shown)?;
    }
    let address = |nid: &str| nid.trim_end_matches("@tcp").to_owned();
    let path = match client {
        Side::Kernel => (address(far), address(near)),
        Side::Ours => (address(near), address(far)),
    };
    let carriers: Vec<_> = carried(lab)?
        .into_iter()
        .filter(|(path, now)| now.saturating_sub(before.get(path).copied().unwrap_or(0)) >= BULK_BYTES)
        .collect();
    let is_alone = matches!(&carriers[..], [(carrier, _)] if *carrier == path);
    ensure!(is_alone, "bulk data went by {carriers:?}");
    client.ctl(lab, "udsp del --all").map(drop)
}
