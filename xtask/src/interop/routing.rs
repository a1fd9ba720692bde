//! The case of routing: our daemon is the router between two kernel nodes, each on a net of its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::lab::Lab;
use super::selftest::{self, READ, WRITE, by_kernel, judge, script};

/// The kernel nodes, and our NIDs on their nets.
const ENDS: [&str; 2] = ["10.77.0.11@tcp1", "10.78.0.12@tcp2"];
const GATEWAYS: [&str; 2] = ["10.77.0.50@tcp1", "10.78.0.50@tcp2"];
/// Parameters of the daemon and of the kernel nodes: gateways are checked each 3 s.
pub(super) const CHECKS: &str = "alive_router_check_interval=3 router_ping_timeout=3";
/// How long routing takes to go on or off by these.
const WAIT: Duration = Duration::from_secs(60);

/// How long a kernel node may take to connect to a daemon that was away: its tries come to be 60 s apart
/// (LNet `socklnd_modparams.c: max_reconnectms`).
const RECONNECT: Duration = Duration::from_secs(120);

/// Has the kernel nodes reach each other by us.
fn route(lab: &Lab) -> Result<()> {
    for (node, at) in [(1, 0), (2, 1)] {
        let [own, far] = [at, 1 - at].map(|at| format!("tcp{}", at + 1));
        let words = format!(
            "lnetctl net add --net {own} --if eth{at} && lnetctl route add --net {far} --gateway {}",
            GATEWAYS[at]
        );
        lab.on(node, &words)?;
        selftest::load(lab, node, selftest::PATIENT)?;
    }
    Ok(())
}

fn counted(lab: &Lab, key: &str) -> Result<u64> {
    let shown = lab.tool(&["stats", "show"])?;
    let value = shown.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": "));
    value.with_context(|| format!("`stats show` tells no {key}"))?.parse().context("a counter is a number")
}

/// Each kernel node reaches the other one.
fn both_reach(lab: &Lab) -> Result<()> {
    lab.on(1, &format!("lnetctl ping {}", ENDS[1]))?;
    lab.on(2, &format!("lnetctl ping {}", ENDS[0])).map(drop)
}

/// Pings and bulk data through us, checked by the kernel nodes; then routing goes off, and on again.
pub(super) fn router(lab: &mut Lab) -> Result<String> {
    let mut most: f64 = 0.0;
    route(lab)?;
    for shards in ["1", "4"] {
        let checks = CHECKS.split_whitespace().flat_map(|check| ["--param", check]);
        let options: Vec<_> = ["--shards", shards].into_iter().chain(checks).collect();
        lab.start_bare_daemon(&options)?;
        lab.tool(&["net", "add", "--net", "tcp1", "--if", "eth0"])?;
        lab.tool(&["net", "add", "--net", "tcp2", "--if", "eth1"])?;
        lab.tool(&["set", "routing", "1"])?;
        lab.within(WAIT, || {
            let shown = lab.tool(&["routing", "show"])?;
            ensure!(shown.contains("enable: 1"), "{shown}");
            Ok(())
        })?;
        lab.within(RECONNECT, || both_reach(lab))?;
        let before = counted(lab, "route_count")?;
        for (from, to) in [(0, 1), (1, 0)] {
            for test in ["ping", "brw read check=full size=4K", "brw write check=full size=4K", READ, WRITE] {
                // The console is on the first node; its groups are of both.
                let shown = by_kernel(lab, &script("lst", ENDS[from], ENDS[to], test, ""))
                    .and_then(|shown| judge(&shown))
                    .with_context(|| {
                        format!("{test} from {} to {}, {shards} shards", ENDS[from], ENDS[to])
                    })?;
                most = most.max(shown);
            }
        }
        let forwarded = counted(lab, "route_count")? - before;
        ensure!(forwarded > 1000, "{forwarded} messages were forwarded");
        ensure!(counted(lab, "drop_count")? == 0, "messages were dropped");
    }
    lab.tool(&["set", "routing", "0"])?;
    lab.within(WAIT, || {
        let shown = lab.tool(&["routing", "show"])?;
        ensure!(shown.contains("enable: 0"), "{shown}");
        Ok(())
    })?;
    ensure!(both_reach(lab).is_err(), "a ping goes through a node that does not route");
    lab.tool(&["set", "routing", "1"])?;
    lab.within(WAIT, || both_reach(lab)).context("routing is on again")?;
    Ok(format!("twenty tests, up to {most:.0} MiB/s under emulation"))
}
