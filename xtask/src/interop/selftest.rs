//! The cases of LNet selftest: tests between our daemon and kernel nodes, by the console of either.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, OURS};
use super::matrix::{KERNEL, LIVES, both_ping};

/// What is tested in each direction.
const TESTS: [&str; 5] = [
    "ping",
    "brw read check=full size=4K",
    "brw write check=full size=4K",
    "brw read check=full size=1M",
    "brw write check=full size=1M",
];
const SECONDS: &str = "2";
/// Connections are watched while they are cut for so long.
pub(super) const CUT: Duration = Duration::from_secs(5);

/// Commands of a console. `{lst}` is the program.
pub(super) fn script(lst: &str, from: &str, to: &str, test: &str, during: &str) -> String {
    format!(
        "export LST_SESSION=1
        {lst} new_session --force --timeout 60 interop >&2 &&
        {lst} add_group c {from} >&2 && {lst} add_group s {to} >&2 && {lst} add_batch b >&2 &&
        {lst} add_test --batch b --concurrency 4 --loop 1000000000 --from c --to s {test} >&2 &&
        {lst} run b >&2 && {during} {lst} stat --delay {SECONDS} --count 1 c && {lst} show_error c s &&
        {lst} stop b >&2 && {lst} end_session >&2"
    )
}

/// Bandwidth of what a console has shown, in MiB/s in both directions together; fails where tests have failed.
pub(super) fn judge(shown: &str) -> Result<f64> {
    for line in shown.lines().filter(|line| line.contains("[Session")) {
        ensure!(line.contains("[Session 0 brw errors, 0 ping errors]"), "{line}");
    }
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

/// Has the kernel node take part in tests. Requests to a node that was killed expire sooner than they would.
fn load(lab: &Lab) -> Result<()> {
    lab.on(1, "modprobe lnet_selftest rpc_timeout=10").map(drop)
}

pub(super) fn start(lab: &mut Lab, options: &[&str], ni: &[&str]) -> Result<()> {
    lab.start_daemon(&[&["--selftest"], options].concat(), ni)?;
    load(lab)?;
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
    let done = all(lab, by_kernel, "lst");
    lab.stop_daemon();
    // A net is busy while selftest is loaded.
    lab.on(1, "rmmod lnet_selftest; lnetctl net del --net tcp; lnetctl net add --net tcp --if eth0")?;
    done
}

/// As it is.
pub(super) fn plain(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    all(lab, by_kernel, "lst")
}

/// Our daemon is killed while a kernel node reads bulk data from it.
pub(super) fn killed_here(lab: &mut Lab) -> Result<String> {
    for _life in 0..LIVES {
        start(lab, &["--shards", "2"], &[])?;
        let test = "brw write check=full size=1M";
        let begin = script("lst", KERNEL, OURS, test, "exit 0;");
        lab.on(1, &begin)?;
        std::thread::sleep(Duration::from_secs(1));
        lab.kill_daemon()?;
        lab.start_daemon(&["--shards", "2", "--selftest"], &[])?;
        lab.until(|| both_ping(lab))?;
        // Kernel nodes hang, among themselves too, where a session ends while requests are under way.
        lab.on(1, "export LST_SESSION=1; lst stop b >&2 && lst end_session >&2")?;
        judge(&lab.on(1, &script("lst", KERNEL, OURS, test, ""))?)?;
    }
    Ok(String::new())
}

/// The kernel node is killed while our daemon writes bulk data to it.
pub(super) fn killed_there(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    let lst = lab.console();
    for _life in 0..LIVES {
        let test = "brw write check=full size=1M";
        lab.shell(&script(&lst, OURS, KERNEL, test, "exit 0;"))?;
        std::thread::sleep(Duration::from_secs(1));
        lab.reboot(1)?;
        load(lab)?;
        lab.until(|| both_ping(lab))?;
        judge(&lab.shell(&script(&lst, OURS, KERNEL, test, ""))?)?;
    }
    Ok(String::new())
}

/// The link is cut while bulk data goes in both directions.
pub(super) fn cut(lab: &mut Lab) -> Result<String> {
    start(lab, &["--shards", "2"], &[])?;
    for test in ["brw read check=full size=1M", "brw write check=full size=1M"] {
        lab.on(1, &script("lst", KERNEL, OURS, test, "exit 0;"))?;
        lab.here(&["ip", "link", "set", "eth0", "down"])?;
        std::thread::sleep(CUT);
        lab.here(&["ip", "link", "set", "eth0", "up"])?;
        lab.until(|| both_ping(lab))?;
        let rest = "export LST_SESSION=1; lst stat --delay 2 --count 1 c && lst show_error c s && lst stop b >&2 && \
                    lst end_session >&2";
        judge(&lab.on(1, rest)?).with_context(|| test.to_owned())?;
    }
    Ok("no error".to_owned())
}
