//! The cases of claims: a kernel node pushes that it has several NIDs, and our daemon, which may not have met
//! it before, believes each once that NID has said so.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_yaml::Value;

use super::lab::{Lab, OURS};
use super::matrix::KERNEL;
use super::rails::{RAIL, RECOVERY, SECOND_RAIL, Side, all_carry, both_rails, carried, judge};
use super::selftest::{self, READ, WRITE};

/// The NIDs of the two nets' second NIs.
const KERNEL_SECOND: &str = "10.78.0.11@tcp1";
const OURS_SECOND: &str = "10.78.0.50@tcp1";
/// How often a race is run.
const ROUNDS: u32 = 5;
/// How long the first PUT may take, after all that the kernel node does before it.
const WITNESS: Duration = Duration::from_secs(20);

/// Starts a daemon that has never heard of the kernel node, and has that forget ours.
fn strangers(lab: &mut Lab) -> Result<()> {
    lab.stop_daemon();
    lab.on(
        1,
        "lnetctl udsp del --all; for nid in $(lnetctl peer list | sed -n 's/.* nid: //p'); do \
         lnetctl peer del --prim_nid $nid; done",
    )?;
    lab.start_daemon(&["--selftest", "--shards", "2"], &[])?;
    selftest::load(lab, 1, selftest::PATIENT)?;
    let shown = lab.tool(&["peer", "list"])?;
    ensure!(!shown.contains("nid: "), "a new daemon knows {shown}");
    Ok(())
}

/// The kernel node discovers ours by this NID of ours: its ping and its push go from its NI of that net.
fn discovers(lab: &Lab, ours: &str) -> Result<()> {
    let found = lab.on(1, &format!("lnetctl discover --force {ours}"))?;
    ensure!(found.contains("Multi-Rail: true"), "{found}");
    Ok(())
}

/// What a document of ours tells under these keys.
fn at<'a>(document: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(document, |value, key| value.get(key))
}

fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_sequence).map_or(&[], Vec::as_slice)
}

/// NIDs of the peer NIs of a peer in a document, in order.
fn nids(peer: &Value) -> Vec<String> {
    let nids = items(peer, "peer ni").iter().filter_map(|ni| ni.get("nid")?.as_str());
    nids.map(str::to_owned).collect()
}

/// Fails unless our daemon has just one peer, and this with all of these NIDs proven, by the first of them:
/// an export leaves out what a peer only claims.
fn has_proven(lab: &Lab, expected: &[&str]) -> Result<()> {
    let exported = lab.tool(&["export"])?;
    let document: Value = serde_yaml::from_str(&exported).context("`export` prints no YAML")?;
    let [peer] = items(&document, "peer") else { anyhow::bail!("one peer is expected: {exported}") };
    let primary = peer.get("primary nid").and_then(Value::as_str);
    let proven: BTreeSet<_> = nids(peer).into_iter().collect();
    let is_so = primary == expected.first().copied()
        && proven.len() == expected.len()
        && expected.iter().all(|nid| proven.contains(*nid));
    ensure!(is_so, "{proven:?} are proven of {primary:?}, {expected:?} are expected");
    Ok(())
}

/// What became of pushes and claims, as `stats show` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pushes {
    taken: u64,
    proven: u64,
    contradicted: u64,
    refused: u64,
}

impl Pushes {
    fn read(lab: &Lab) -> Result<Self> {
        let shown = lab.tool(&["stats", "show"])?;
        let document: Value = serde_yaml::from_str(&shown).context("`stats show` prints no YAML")?;
        let count = |name: &str| {
            let key = format!("pushes_{name}");
            let count = at(&document, &["statistics", &key]).and_then(Value::as_u64);
            count.with_context(|| format!("`stats show` tells no {key}: {shown}"))
        };
        Ok(Self {
            taken: count("taken")?,
            proven: count("proven")?,
            contradicted: count("contradicted")?,
            refused: count("refused")?,
        })
    }
}

/// PUTs that have come from a NID of the kernel node.
fn puts(lab: &Lab, nid: &str) -> Result<u64> {
    let shown = lab.tool(&["peer", "show", "--nid", nid, "-v", "4"])?;
    let document: Value = serde_yaml::from_str(&shown).context("`peer show` prints no YAML")?;
    let mut nis = items(&document, "peer").iter().flat_map(|peer| items(peer, "peer ni"));
    let ni = nis.find(|ni| ni.get("nid").and_then(Value::as_str) == Some(nid));
    let count = ni.and_then(|ni| at(ni, &["received_stats", "put"])?.as_u64());
    count.with_context(|| format!("{nid} has no counters: {shown}"))
}

/// Our daemon has proven both NIDs of the kernel node, and each side sees the other whole.
fn is_settled(lab: &Lab, net: &str) -> Result<()> {
    let second = Side::Kernel.second(net);
    lab.until(|| has_proven(lab, &[KERNEL, &second])).context("both NIDs are proven")?;
    Side::BOTH.into_iter().try_for_each(|side| side.sees(lab, &[side.other().second(net)]))
}

/// Nothing was contradicted, refused or left unproven, and a push was taken.
fn is_clean(lab: &Lab, proven: u64) -> Result<()> {
    let pushes = Pushes::read(lab)?;
    let is_clean = pushes.taken > 0 && (pushes.contradicted, pushes.refused) == (0, 0);
    ensure!(is_clean && pushes.proven == proven, "{proven} proven claims are expected: {pushes:?}");
    Ok(())
}

/// Pings between all NIDs of both sides.
fn all_ping(lab: &Lab, net: &str) -> Result<()> {
    for side in Side::BOTH {
        let [near, far] = [side, side.other()].map(|side| [side.primary().to_owned(), side.second(net)]);
        for near in &near {
            for far in
                far.iter().filter(|far| net == "tcp" || near.ends_with("@tcp1") == far.ends_with("@tcp1"))
            {
                let found = side.ctl(lab, &format!("ping --timeout 10 --source {near} {far}"));
                let found = found.with_context(|| format!("{near} pings {far}"))?;
                ensure!(found.contains(far), "{near} pings {far}: {found}");
            }
        }
    }
    Ok(())
}

/// The kernel node's push comes by its primary NID, then by its second one, to a daemon that knows nothing.
fn pushed(lab: &mut Lab, net: &str) -> Result<String> {
    for is_second in [false, true] {
        strangers(lab)?;
        let kernel = [KERNEL.to_owned(), Side::Kernel.second(net)];
        let ours = [OURS.to_owned(), Side::Ours.second(net)];
        let by = usize::from(is_second);
        if net == "tcp" {
            lab.on(1, &format!("lnetctl udsp add --src {} --priority 0", kernel[by]))?;
        }
        discovers(lab, &ours[by])?;
        let [came, others] = [&kernel[by], &kernel[1 - by]].map(|nid| puts(lab, nid));
        let (came, others) = (came?, others?);
        ensure!(came > 0 && others == 0, "{came} PUTs came by the NID of the push, {others} by the other");
        is_settled(lab, net)?;
        is_clean(lab, 1)?;
        lab.on(1, "lnetctl udsp del --all")?;
        all_ping(lab, net)?;
        if net == "tcp1" {
            both_rails(lab)?;
        }
        for test in [READ, WRITE] {
            for (from, to) in [(KERNEL, OURS), (OURS, KERNEL)] {
                let shown = selftest::by_kernel(lab, &selftest::script("lst", from, to, test, ""))?;
                selftest::judge(&shown).with_context(|| format!("{test} from {from} to {to}"))?;
            }
        }
        is_clean(lab, 1)?;
    }
    Ok("pushes by the primary NID and by the second one".to_owned())
}

pub(super) fn two_nets(lab: &mut Lab) -> Result<String> {
    pushed(lab, "tcp1")
}

pub(super) fn one_net(lab: &mut Lab) -> Result<String> {
    pushed(lab, "tcp")
}

/// Our console's bulk data by the second rail alone, to a daemon that has never asked the kernel node and was
/// pushed to by the second NID. The kernel node's answers come from its second NID, to entries that name the
/// primary one.
pub(super) fn second_rail(lab: &mut Lab) -> Result<String> {
    for round in 0..ROUNDS {
        strangers(lab)?;
        lab.tool(&["udsp", "add", "--dst", "tcp1", "--priority", "0"])?;
        discovers(lab, OURS_SECOND)?;
        let before = carried(lab)?;
        let lst = lab.console();
        for test in [WRITE, READ] {
            let shown = lab.shell(&selftest::script(&lst, OURS, KERNEL, test, ""))?;
            selftest::judge(&shown).with_context(|| format!("{test}, round {round}"))?;
        }
        all_carry(lab, &[SECOND_RAIL], &before)?;
        let (first, second) = (puts(lab, KERNEL)?, puts(lab, KERNEL_SECOND)?);
        ensure!(
            first == 0 && second > 0,
            "PUTs came: {first} by the primary NID, {second} by the second one"
        );
        is_settled(lab, "tcp1")?;
        is_clean(lab, 1)?;
    }
    Ok(format!("{ROUNDS} times"))
}

/// The portal at which LNet selftest takes what consoles say.
const FRAMEWORK_PORTAL: &str = "51";

/// A node of ours that has never heard of the kernel node has an entry that names the primary NID. The kernel
/// node pushes to it by the second one, and puts by that at once; the primary NID's word comes late, or in
/// time.
pub(super) fn first_put(lab: &mut Lab) -> Result<String> {
    for round in 0..2 * ROUNDS {
        let is_late = round % 2 == 0;
        strangers(lab)?;
        lab.on(1, "lnetctl udsp add --dst tcp1 --priority 0")?;
        if is_late {
            lab.on(1, SOON)?;
        }
        let told = first_put_of(lab);
        if is_late {
            lab.on(1, IN_TIME)?;
        }
        let told = told.with_context(|| format!("round {round}"))?;
        let words: Vec<_> = told.split_whitespace().collect();
        let is_named = words.first() == Some(&KERNEL) && words.last() == Some(&KERNEL_SECOND);
        ensure!(is_named, "of {KERNEL} by {KERNEL_SECOND}: {told}");
    }
    lab.on(1, "lnetctl udsp del --all")?;
    Ok(format!("{ROUNDS} times while the primary NID's word is on its way, {ROUNDS} times without delay"))
}

/// What the witness tells of the kernel node's first PUT.
fn first_put_of(lab: &mut Lab) -> Result<String> {
    let mut witness = lab.witness(KERNEL, FRAMEWORK_PORTAL, &["eth0", OURS, "eth1", OURS_SECOND])?;
    let stdout = witness.stdout.take().context("the witness has an output")?;
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // A listener that has gone has what it needs.
            let _ = tell.send(line);
        }
    });
    let line = || told.recv_timeout(WITNESS).context("the witness has seen no PUT");
    let done = line().and_then(|_| {
        lab.on(1, "export LST_SESSION=1; lst new_session --force --timeout 600 first")?;
        // The console's question is all that is looked for, and has no answer.
        let found = lab.on(
            1,
            &format!(
                "export LST_SESSION=1; lnetctl discover --force {OURS_SECOND} && \
                 {{ timeout 5 lst add_group s {OURS} >&2 || true; }}"
            ),
        )?;
        ensure!(found.contains("Multi-Rail: true"), "{found}");
        let told = line();
        lab.on(1, "export LST_SESSION=1; lst end_session")?;
        told
    });
    // A witness that has seen the PUT has ended by itself.
    let _ = witness.kill();
    let _ = witness.wait();
    // The reader ends with the output.
    let _ = reader.join();
    done
}

/// Has all that the kernel node says by its primary NID come late: a first answer over tcp after three times
/// this, which is more than a message waits for.
const LATE: &str = "tc qdisc add dev eth0 root netem delay 500ms";
/// Has that come soon enough for a message that waits.
const SOON: &str = "tc qdisc add dev eth0 root netem delay 100ms";
const IN_TIME: &str = "tc qdisc del dev eth0 root";

/// The primary NID's word comes late, and bulk data before it: our console names the kernel node by either
/// NID, and the answers come from the second one.
pub(super) fn late_primary(lab: &mut Lab) -> Result<String> {
    for _round in 0..ROUNDS {
        for name in [KERNEL, KERNEL_SECOND] {
            strangers(lab)?;
            lab.on(1, LATE)?;
            let done = by_late_primary(lab, name).with_context(|| format!("named {name}"));
            lab.on(1, IN_TIME)?;
            done?;
            is_settled(lab, "tcp1")?;
            is_clean(lab, 1)?;
        }
    }
    Ok(format!("{ROUNDS} times, named by either"))
}

fn by_late_primary(lab: &Lab, name: &str) -> Result<()> {
    discovers(lab, OURS_SECOND)?;
    let proven = has_proven(lab, &[KERNEL, KERNEL_SECOND]);
    ensure!(proven.is_err(), "the primary NID is proven before it has said anything");
    has_proven(lab, &[KERNEL_SECOND])?;
    let shown = lab.shell(&selftest::script(&lab.console(), OURS, name, WRITE, ""))?;
    selftest::judge(&shown).map(drop)
}

/// The kernel node's second link is down while it is met, and comes up later.
pub(super) fn down_and_up(lab: &mut Lab) -> Result<String> {
    strangers(lab)?;
    Side::Kernel.second_link(lab, "down")?;
    let met = without_second(lab);
    Side::Kernel.second_link(lab, "up")?;
    met?;
    lab.within(RECOVERY, || has_proven(lab, &[KERNEL, KERNEL_SECOND])).context("the NID is up")?;
    is_settled(lab, "tcp1")?;
    is_clean(lab, 1)?;
    lab.within(RECOVERY, || Side::BOTH.into_iter().try_for_each(|side| side.is_well(lab)))?;
    both_rails(lab)?;
    Ok(String::new())
}

fn without_second(lab: &Lab) -> Result<()> {
    discovers(lab, OURS)?;
    // Claimed NIDs are shown.
    Side::Ours.sees(lab, &[KERNEL_SECOND.to_owned()])?;
    let before = carried(lab)?;
    judge(lab, READ)?;
    judge(lab, WRITE)?;
    all_carry(lab, &[RAIL], &before)?;
    has_proven(lab, &[KERNEL])?;
    is_clean(lab, 0)
}

/// The kernel node's primary NID is out of reach when it pushes by the second one.
pub(super) fn unreachable_primary(lab: &mut Lab) -> Result<String> {
    strangers(lab)?;
    lab.on(1, "ip link set eth0 down")?;
    let met = without_primary(lab);
    lab.on(1, "ip link set eth0 up")?;
    met?;
    lab.within(RECOVERY, || has_proven(lab, &[KERNEL, KERNEL_SECOND])).context("the primary NID is up")?;
    is_settled(lab, "tcp1")?;
    is_clean(lab, 1)?;
    lab.within(RECOVERY, || Side::BOTH.into_iter().try_for_each(|side| side.is_well(lab)))?;
    both_rails(lab)?;
    Ok(String::new())
}

fn without_primary(lab: &Lab) -> Result<()> {
    discovers(lab, OURS_SECOND)?;
    // The primary NID is shown as such, and is a claim.
    Side::Ours.sees(lab, &[KERNEL_SECOND.to_owned()])?;
    has_proven(lab, &[KERNEL_SECOND])?;
    let before = carried(lab)?;
    for test in [READ, WRITE] {
        // The kernel node, where its own console is one of the ends, does not reach itself without eth0.
        let shown = lab.shell(&selftest::script(&lab.console(), OURS, KERNEL_SECOND, test, ""))?;
        selftest::judge(&shown)?;
    }
    all_carry(lab, &[SECOND_RAIL], &before)?;
    lab.tool(&["ping", "--timeout", "10", KERNEL_SECOND])?;
    has_proven(lab, &[KERNEL_SECOND])?;
    is_clean(lab, 0)
}

/// Discovery is off on a side from the start: nothing is claimed, nothing is asked, and messages pass under
/// the NID that they name.
pub(super) fn no_discovery(lab: &mut Lab) -> Result<String> {
    for side in Side::BOTH {
        strangers(lab)?;
        side.ctl(lab, "set discovery 0")?;
        let met = undiscovered(lab);
        side.ctl(lab, "set discovery 1")?;
        met.with_context(|| format!("discovery is off: {side:?}"))?;
        discovers(lab, OURS_SECOND)?;
        is_settled(lab, "tcp1").with_context(|| format!("discovery is on: {side:?}"))?;
        both_rails(lab)?;
    }
    Ok(String::new())
}

fn undiscovered(lab: &Lab) -> Result<()> {
    // A kernel node that is told to discover a second NID here has its thread of discovery spin for ever.
    all_ping(lab, "tcp1")?;
    for (kernel, ours, path) in [(KERNEL, OURS, RAIL), (KERNEL_SECOND, OURS_SECOND, SECOND_RAIL)] {
        for (from, to) in [(kernel, ours), (ours, kernel)] {
            let before = carried(lab)?;
            let shown = lab.shell(&selftest::script(&lab.console(), from, to, WRITE, ""))?;
            selftest::judge(&shown).with_context(|| format!("from {from} to {to}"))?;
            all_carry(lab, &[path], &before)?;
        }
    }
    let exported = lab.tool(&["export"])?;
    let document: Value = serde_yaml::from_str(&exported).context("`export` prints no YAML")?;
    let known: Vec<_> = items(&document, "peer").iter().map(nids).collect();
    ensure!(known.len() == 2 && known.iter().all(|nids| nids.len() == 1), "{known:?} are known");
    let pushes = Pushes::read(lab)?;
    ensure!((pushes.proven, pushes.contradicted) == (0, 0), "{pushes:?}");
    Ok(())
}

/// An administrator has named both NIDs of the other side before the kernel node pushes; then, on our side,
/// has given one of them to another peer.
pub(super) fn configured(lab: &mut Lab) -> Result<String> {
    for side in Side::BOTH {
        strangers(lab)?;
        let (primary, second) = (side.other().primary(), side.other().second("tcp1"));
        side.ctl(lab, &format!("peer add --prim_nid {primary} --nid {second}"))?;
        discovers(lab, OURS_SECOND)?;
        let proven = u64::from(side == Side::Kernel);
        let met = lab.until(|| {
            has_proven(lab, &[KERNEL, KERNEL_SECOND])?;
            is_clean(lab, proven)
        });
        met.with_context(|| format!("configured: {side:?}"))?;
        all_ping(lab, "tcp1")?;
        both_rails(lab)?;
        is_clean(lab, proven)?;
    }
    strangers(lab)?;
    let other = "10.77.0.12@tcp";
    lab.tool(&["peer", "add", "--prim_nid", other, "--nid", KERNEL_SECOND])?;
    discovers(lab, OURS)?;
    lab.until(|| {
        let pushes = Pushes::read(lab)?;
        ensure!((pushes.proven, pushes.contradicted) == (0, 1), "{pushes:?}");
        Ok(())
    })?;
    let before = carried(lab)?;
    for test in [READ, WRITE] {
        let shown = lab.shell(&selftest::script(&lab.console(), OURS, KERNEL, test, ""))?;
        selftest::judge(&shown).with_context(|| format!("{test} while {KERNEL_SECOND} is another's"))?;
    }
    all_carry(lab, &[RAIL], &before)?;
    let shown = lab.tool(&["peer", "show", "--nid", KERNEL_SECOND])?;
    ensure!(shown.contains(&format!("primary nid: {other}\n")), "who is configured keeps the NID: {shown}");
    Ok("a NID that is another's stays there, counted once".to_owned())
}
