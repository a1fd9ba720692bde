//! The cases of LNet selftest: tests between our daemon and kernel nodes, by the console of either.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::hostile::beside_diallers;
use super::lab::{Lab, OURS, Silence};
use super::ledger::Ledger;
use super::matrix::{KERNEL, LIVES, both_ping};

/// What is tested in each direction.
pub(super) const TESTS: [&str; 5] = [
    "ping",
    "brw read check=full size=4K",
    "brw write check=full size=4K",
    "brw read check=full size=1M",
    "brw write check=full size=1M",
];
const SECONDS: &str = "2";
/// Bulk data, all of it looked at.
pub(super) const READ: &str = "brw read check=full size=1M";
pub(super) const WRITE: &str = "brw write check=full size=1M";
/// Connections are watched while they are cut for so long.
pub(super) const CUT: Duration = Duration::from_secs(5);

/// Commands of a console. `{lst}` is the program.
pub(super) fn script(lst: &str, from: &str, to: &str, test: &str, during: &str) -> String {
    format!(
        "export LST_SESSION=1
        {lst} new_session --force --timeout 600 interop >&2 &&
        {lst} add_group c {from} >&2 && {lst} add_group s {to} >&2 && {lst} add_batch b >&2 &&
        {lst} add_test --batch b --concurrency 4 --loop 1000000000 --from c --to s {test} >&2 &&
        {lst} run b >&2 && {during} {lst} stat --delay {SECONDS} --count 1 c && {lst} show_error c s 2>&1 &&
        {lst} stop b >&2 && {lst} end_session >&2"
    )
}

/// Bandwidth of what a console has shown, in MiB/s in both directions together; fails where tests have
/// failed.
pub(super) fn judge(shown: &str) -> Result<f64> {
    // Nodes with errors are told on stderr, which the scripts have go the same way.
    for line in shown.lines().filter(|line| line.contains("[Session") || line.contains("RPC failure")) {
        ensure!(line.contains("[Session 0 brw errors, 0 ping errors]"), "{line}");
    }
    let told = shown.lines().filter(|line| line.starts_with("Total ")).count();
    ensure!(told == 2, "errors of {told} groups are told, not of two: {shown}");
    let mut rates = shown
        .lines()
        .filter_map(|line| line.split_once("Avg:")?.1.split_whitespace().next()?.parse::<f64>().ok());
    let messages = rates.next().context("the console shows no rates")?;
    ensure!(messages > 0.0, "no message in {SECONDS} s: {shown}");
    Ok(rates.skip(1).sum())
}

/// All tests in both directions.
pub(super) fn all(lab: &Lab, run: impl Fn(&Lab, &str) -> Result<String>, lst: &str) -> Result<String> {
    let mut most: f64 = 0.0;
    for (from, to) in [(KERNEL, OURS), (OURS, KERNEL)] {
        for test in TESTS {
            let shown = run(lab, &script(lst, from, to, test, ""))
                .and_then(|shown| judge(&shown))
                .with_context(|| format!("{test} from {from} to {to}"))?;
            most = most.max(shown);
        }
    }
    Ok(format!("ten tests, up to {most:.0} MiB/s under emulation"))
}

pub(super) fn by_kernel(lab: &Lab, script: &str) -> Result<String> {
    lab.on(1, script)
}

fn by_ours(lab: &Lab, script: &str) -> Result<String> {
    lab.shell(script)
}

/// How long a kernel node's requests may take. One that expires ends its unit of a test, and what comes for
/// it later is dropped, and not counted as received. TCP rests after a cut for as long as the cut has lasted,
/// and longer where round trips are long.
pub(super) const PATIENT: Duration = Duration::from_secs(120);
/// How long a kernel node's requests may take where a node is killed: what that was asked expires anyway.
pub(super) const HASTY: Duration = Duration::from_secs(10);

/// Has a kernel node take part in tests.
pub(super) fn load(lab: &Lab, node: u8, patience: Duration) -> Result<()> {
    // The module may be there already.
    let set = format!("echo {} > /sys/module/lnet_selftest/parameters/rpc_timeout", patience.as_secs());
    lab.on(node, &format!("modprobe lnet_selftest && {set}")).map(drop)
}

pub(super) fn start(lab: &mut Lab, options: &[&str], ni: &[&str]) -> Result<()> {
    start_with(lab, options, ni, PATIENT)
}

fn start_with(lab: &mut Lab, options: &[&str], ni: &[&str], patience: Duration) -> Result<()> {
    lab.start_daemon(&[&["--selftest"], options].concat(), ni)?;
    load(lab, 1, patience)?;
    lab.until(|| both_ping(lab)).map(drop)
}

/// A kernel console.
pub(super) fn kernel_console(lab: &mut Lab) -> Result<String> {
    for shards in ["1", "2", "4"] {
        start(lab, &["--shards", shards], &[])?;
        all(lab, by_kernel, "lst").with_context(|| format!("{shards} shards"))?;
    }
    Ok("with one, two and four shards".to_owned())
}

/// Our console.
pub(super) fn our_console(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let lst = lab.console();
    all(lab, by_ours, &lst)
}

/// Three connections for each direction.
pub(super) fn connections(lab: &mut Lab) -> Result<String> {
    lab.on(1, "lnetctl net del --net tcp; lnetctl net add --net tcp --if eth0 --conns-per-peer 3")?;
    start(lab, &["--shards", "2"], &["--conns-per-peer", "3"])?;
    // Where they fail, the daemon stays: what it counted is told.
    let done = all(lab, by_kernel, "lst")?;
    lab.stop_daemon();
    // A net is busy while selftest is loaded.
    lab.on(1, "rmmod lnet_selftest; lnetctl net del --net tcp; lnetctl net add --net tcp --if eth0")?;
    Ok(done)
}

/// Selftest between a kernel node and ours, as both are set up.
pub(super) fn plain(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    all(lab, by_kernel, "lst")
}

/// Our daemon is killed while a kernel node writes bulk data to it.
pub(super) fn killed_here(lab: &mut Lab) -> Result<String> {
    let mut counted = 0;
    for _life in 0..LIVES {
        start_with(lab, &["--shards", "2"], &[], HASTY)?;
        let ledger = Ledger::open(lab)?;
        lab.on(1, &script("lst", KERNEL, OURS, WRITE, "exit 0;"))?;
        std::thread::sleep(Duration::from_secs(1));
        lab.until(|| ledger.has_begun(lab))?;
        counted += ledger.killed_here(lab)?;
        lab.start_daemon(&["--shards", "2", "--selftest"], &[])?;
        lab.until(|| both_ping(lab))?;
        // Kernel nodes hang, among themselves too, where a session ends while requests are under way.
        lab.on(1, "export LST_SESSION=1; lst stop b >&2 && lst end_session >&2")?;
        judge(&lab.on(1, &script("lst", KERNEL, OURS, WRITE, ""))?)?;
    }
    Ok(format!("of {counted} messages at most what was under way at the kills is missing"))
}

/// The kernel node is killed while our daemon writes bulk data to it.
pub(super) fn killed_there(lab: &mut Lab) -> Result<String> {
    start_with(lab, &["--shards", "2"], &[], HASTY)?;
    let lst = lab.console();
    let mut counted = 0;
    for _life in 0..LIVES {
        let ledger = Ledger::open(lab)?;
        lab.shell(&script(&lst, OURS, KERNEL, WRITE, "exit 0;"))?;
        std::thread::sleep(Duration::from_secs(1));
        lab.until(|| ledger.has_begun(lab))?;
        counted += ledger.killed_there(lab)?;
        lab.boot(1)?;
        load(lab, 1, HASTY)?;
        lab.until(|| both_ping(lab))?;
        judge(&lab.shell(&script(&lst, OURS, KERNEL, WRITE, ""))?)?;
    }
    Ok(format!("of {counted} messages at most what was under way at the kills is missing"))
}

/// What is said to a kernel console at the end of a test that began before.
const REST: &str = "export LST_SESSION=1; lst stat --delay 2 --count 1 c && lst show_error c s 2>&1 && lst stop b >&2 && \
                    lst end_session >&2";

/// What is said to a kernel console for a second batch of the same nodes; [`NO_MORE`] ends that.
pub(super) fn more(test: &str) -> String {
    format!(
        "export LST_SESSION=1; lst add_batch more >&2 && \
         lst add_test --batch more --concurrency 4 --loop 1000000000 --from c --to s {test} >&2 && lst run more >&2"
    )
}

/// A command that succeeds once all of the second batch has ended.
pub(super) const NO_MORE: &str = "export LST_SESSION=1; lst stop more >&2";

/// Bulk data of a kernel client, of which something takes place in the middle: how many messages there were.
/// None may be lost, on either side.
pub(super) fn disturbed(lab: &Lab, test: &str, disturb: impl FnOnce(&Lab) -> Result<()>) -> Result<u64> {
    let ledger = Ledger::open(lab)?;
    lab.on(1, &script("lst", KERNEL, OURS, test, "exit 0;"))?;
    disturb(lab)?;
    judge(&lab.on(1, REST)?)?;
    ledger.balanced(lab)
}

/// The link is cut while bulk data goes in both directions.
pub(super) fn cut(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let mut counted = 0;
    for test in [READ, WRITE] {
        let down_and_up = |lab: &Lab| {
            lab.here(&["ip", "link", "set", "eth0", "down"])?;
            std::thread::sleep(CUT);
            lab.here(&["ip", "link", "set", "eth0", "up"])?;
            lab.until(|| both_ping(lab)).map(drop)
        };
        counted += disturbed(lab, test, down_and_up).with_context(|| test.to_owned())?;
    }
    Ok(format!("no error, and none of {counted} messages lost"))
}

/// Frames vanish while bulk data goes in both directions, and no interface tells of it.
pub(super) fn silent_cut(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let mut counted = 0;
    for silence in Silence::ALL {
        for test in [READ, WRITE] {
            let vanish = |lab: &Lab| {
                lab.silence(silence, "eth0", true)?;
                std::thread::sleep(CUT);
                lab.silence(silence, "eth0", false)?;
                lab.until(|| both_ping(lab)).map(drop)
            };
            let disturbed = disturbed(lab, test, vanish);
            counted += disturbed.with_context(|| format!("{test}, frames vanish: {silence:?}"))?;
        }
    }
    Ok(format!("no error, and none of {counted} messages lost"))
}

/// Diallers that break the rules, beside a kernel client of our daemon.
pub(super) fn hostile(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let (counted, dialled) = beside_diallers(&Lab::namespace(), || {
        let mut counted = 0;
        for test in [READ, WRITE, "ping"] {
            let while_dialled = |_: &Lab| {
                std::thread::sleep(CUT);
                Ok(())
            };
            counted += disturbed(lab, test, while_dialled).with_context(|| test.to_owned())?;
        }
        Ok(counted)
    })?;
    let refused = refusals(&lab.tool(&["frames", "show"])?)?;
    ensure!(refused * 4 > dialled * 3, "{refused} refusals are counted of {dialled} diallers");
    Ok(format!(
        "{dialled} diallers, {refused} refused and counted; no error, and none of {counted} messages lost"
    ))
}

/// How many connections were refused or closed for what was said on them, as `frames show` tells.
fn refusals(shown: &str) -> Result<u64> {
    const REASONS: [&str; 6] =
        ["bad_request", "unknown_target", "bad_hello", "impostor", "bad_message", "unprivileged"];
    let counts = shown.lines().filter_map(|line| line.trim().split_once(": "));
    let counts =
        counts.filter(|(key, _)| REASONS.contains(key)).map(|(_, count)| count.trim().parse::<u64>());
    let counts = counts.collect::<Result<Vec<_>, _>>().context("`frames show` prints no numbers")?;
    ensure!(!counts.is_empty(), "`frames show` tells no reasons: {shown}");
    Ok(counts.iter().sum())
}

/// Both consoles, one after the other, with the same nodes and the same words: what they print.
pub(super) fn output(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let ours = lab.console();
    let mut compared = 0;
    let words = |lst: &str| {
        let begun = "export LST_SESSION=1; cd /; exec 2>/dev/null
            say() { echo \"+ $*\"; LST \"$@\"; echo \"=> $?\"; }";
        format!("{begun}\n{OUTPUT}").replace("LST", lst).replace(&format!("{lst}_SESSION"), "LST_SESSION")
    };
    let [theirs, ours] =
        [lab.on(1, &words("lst"))?, lab.shell(&words(&ours))?].map(|shown| comparable(&shown));
    for (theirs, ours) in theirs.iter().zip(&ours) {
        ensure!(theirs == ours, "a kernel console prints {theirs:?}, ours {ours:?}");
        compared += 1;
    }
    ensure!(theirs.len() == ours.len() && compared > 60, "{} and {} lines", theirs.len(), ours.len());
    Ok(format!("{compared} lines"))
}

/// What is said to both consoles. The session is made anew where a kernel console loses it: by a second one
/// that it refuses.
const OUTPUT: &str = "
    say new_session --force --timeout 10 interop
    say new_session again
    LST end_session >/dev/null; LST new_session --force --timeout 10 interop >/dev/null
    say add_group c 10.77.0.11@tcp
    say add_group s 10.77.0.50@tcp
    say add_group s 10.77.0.50@tcp
    say add_group both 10.77.0.11@tcp 10.77.0.50@tcp
    say list_group
    say list_group c both
    say list_group --all both
    say list_batch
    say add_batch b
    say add_test --batch b --loop 1000000000 --concurrency 2 --from c --to s brw write check=full size=4K
    say add_test -b b -f s -t c ping
    say add_test --batch b --from c --to s brw read check=half
    say add_test --batch b --from c --to nothing ping
    say list_batch
    say list_batch b
    say list_batch --test 2 b
    say list_batch --server --all b
    say run b
    say query b
    say query --test 1 b
    say query --all b
    say list_batch b
    say stat --count 1 --delay 1 c s
    say stat --mbs --bw --read --avg --count 1 --delay 1 s
    say ping --batch b
    say ping --nodes 10.77.0.50@tcp
    say stop --force b
    say query b
    say list_batch b
    say del_group both
    say del_group c
    say show_error --session c s
    say end_session
    say end_session";

/// Lines without what differs from run to run, and without what the reference prints for names and NIDs that
/// it has lost.
fn comparable(shown: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in shown.lines() {
        if line.ends_with("batch in stopping") || line.starts_with("\tLNET_PID_ANY") {
            continue;
        }
        let mut line = line.replace("0-200@<0:19722>", "NODE").replace("[ both ]", "[ (null) ]");
        for node in ["12345-10.77.0.11@tcp", "12345-10.77.0.50@tcp"] {
            line = line.replace(node, "NODE");
        }
        // Each console is a node of its own.
        if let Some(at) = line.find(" id: 10.") {
            line.truncate(at);
        }
        let counts = line.split('\t').count() == 7;
        if let Some(at) = line.rfind('\t').filter(|_| counts && line.starts_with("\t")) {
            line.truncate(at);
        }
        if line.starts_with("[R]") || line.starts_with("[W]") {
            let words =
                line.split_whitespace().map(|word| if word.parse::<f64>().is_ok() { "N" } else { word });
            line = words.collect::<Vec<_>>().join(" ");
        }
        if line == "No nodes found [ (null) ]" && lines.last().is_some_and(|last| last.starts_with("Group ["))
        {
            lines.pop();
            continue;
        }
        lines.push(line);
    }
    lines
}

/// The second kernel node.
const SECOND: &str = "10.77.0.12@tcp";

/// Groups of a kernel node and ours, by the console of either.
pub(super) fn mixed(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    load(lab, 2, PATIENT)?;
    lab.until(|| lab.tool(&["ping", "--timeout", "10", SECOND]))?;
    let group = format!("{KERNEL} {OURS}");
    let ours = lab.console();
    for (run, lst) in [(by_kernel as fn(&Lab, &str) -> Result<String>, "lst"), (by_ours, ours.as_str())] {
        for (from, to, servers) in [(group.as_str(), SECOND, 1), (SECOND, group.as_str(), 2)] {
            for test in ["ping", "brw read check=full size=1M", "brw write check=full size=4K"] {
                // Each client sends to all servers.
                let script = script(lst, from, to, &format!("--distribute 1:{servers} {test}"), "");
                run(lab, &script)
                    .and_then(|shown| judge(&shown))
                    .with_context(|| format!("{test} from {from} to {to}"))?;
            }
        }
    }
    Ok("twelve tests".to_owned())
}
