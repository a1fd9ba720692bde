//! The cases of routing between two kernel nodes: our daemon is the router, and each of them is on a net of
//! its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::within;
use super::lab::Lab;
use super::selftest::{self, READ, TESTS, WRITE, by_kernel, judge, script};

/// The kernel nodes, and our NIDs on their nets.
pub(super) const ENDS: [&str; 2] = ["10.77.0.11@tcp1", "10.78.0.12@tcp2"];
pub(super) const GATEWAYS: [&str; 2] = ["10.77.0.50@tcp1", "10.78.0.50@tcp2"];
/// Parameters of the kernel nodes: gateways are checked each 3 s.
pub(super) const CHECKS: &str = "alive_router_check_interval=3 router_ping_timeout=3";
/// Parameters of kernel nodes that route as well, with as many buffers as a kernel router has at least.
pub(super) const CHECKS_AND_BUFFERS: &str =
    "alive_router_check_interval=3 router_ping_timeout=3 large_router_buffers=256";
/// Options of our daemons for such checks.
pub(super) const CHECKING: [&str; 4] =
    ["--param", "alive_router_check_interval=3", "--param", "router_ping_timeout=3"];
/// How long routing takes to go on or off by these, and a route to go up or down.
pub(super) const WAIT: Duration = Duration::from_secs(60);
/// A router between the kernel's nets, from its start.
pub(super) const ROUTER: &str = "
net:
  - net type: tcp1
    local NI(s):
      - interfaces: {0: eth0}
  - net type: tcp2
    local NI(s):
      - interfaces: {0: eth1}
routing:
  - enable: 1
";

/// Document of an end node on the second net, from which these gateways lead to the first.
pub(super) fn end(gateways: &[&str]) -> String {
    let routes: String =
        gateways.iter().map(|gateway| format!("  - net: tcp1\n    gateway: {gateway}\n")).collect();
    format!("net:\n  - net type: tcp2\n    local NI(s):\n      - interfaces: {{0: eth1}}\nroute:\n{routes}")
}

/// How long a kernel node may take to connect to a daemon that was away: its tries come to be 60 s apart
/// (LNet `socklnd_modparams.c: max_reconnectms`).
pub(super) const RECONNECT: Duration = Duration::from_secs(120);

/// Has a kernel node be on a net, and reach the other one by these gateways; it may be so already. 0 is the
/// net on `eth0`.
pub(super) fn route(lab: &Lab, node: u8, at: usize, gateways: &[&str], patience: Duration) -> Result<()> {
    let [own, far] = [at, 1 - at].map(|at| format!("tcp{}", at + 1));
    lab.on(
        node,
        &format!("lnetctl net show --net {own} | grep -q nid: || lnetctl net add --net {own} --if eth{at}"),
    )?;
    for gateway in gateways {
        let named = format!("--net {far} --gateway {gateway}");
        let add = format!("lnetctl route show {named} | grep -q gateway: || lnetctl route add {named}");
        lab.on(node, &add)?;
    }
    selftest::load(lab, node, patience)
}

/// Has both kernel nodes reach each other by us.
fn route_both(lab: &Lab) -> Result<()> {
    [(1, 0), (2, 1)]
        .into_iter()
        .try_for_each(|(node, at)| route(lab, node, at, &[GATEWAYS[at]], selftest::PATIENT))
}

/// Each kernel node reaches the other one.
pub(super) fn both_reach(lab: &Lab) -> Result<()> {
    lab.on(1, &format!("lnetctl ping {}", ENDS[1]))?;
    lab.on(2, &format!("lnetctl ping {}", ENDS[0])).map(drop)
}

/// Tests through us, checked by the kernel nodes: the highest rate, and how many messages were forwarded.
/// Fails where one is dropped.
pub(super) fn tested(lab: &Lab, tests: &[&str]) -> Result<(f64, u64)> {
    let mut most: f64 = 0.0;
    let before = lab.host().counted("route_count")?;
    for (from, to) in [(0, 1), (1, 0)] {
        for test in tests {
            // The console is on the first node; its groups are of both.
            let shown = by_kernel(lab, &script("lst", ENDS[from], ENDS[to], test, ""))
                .and_then(|shown| judge(&shown))
                .with_context(|| format!("{test} from {} to {}", ENDS[from], ENDS[to]))?;
            most = most.max(shown);
        }
    }
    let forwarded = lab.host().counted("route_count")? - before;
    ensure!(lab.host().counted("drop_count")? == 0, "messages were dropped");
    Ok((most, forwarded))
}

/// Pings and bulk data through us; then routing goes off, and on again.
pub(super) fn router(lab: &mut Lab) -> Result<String> {
    let mut most: f64 = 0.0;
    route_both(lab)?;
    for shards in ["1", "4"] {
        lab.start_bare_daemon(&[&["--shards", shards], &CHECKING[..]].concat())?;
        lab.tool(&["net", "add", "--net", "tcp1", "--if", "eth0"])?;
        lab.tool(&["net", "add", "--net", "tcp2", "--if", "eth1"])?;
        lab.tool(&["set", "routing", "1"])?;
        within(WAIT, || lab.host().routing_is("1"))?;
        within(RECONNECT, || both_reach(lab)).with_context(|| format!("{shards} shards"))?;
        let (rate, forwarded) = tested(lab, &TESTS).with_context(|| format!("{shards} shards"))?;
        ensure!(forwarded > 1000, "{forwarded} messages were forwarded");
        most = most.max(rate);
    }
    lab.tool(&["set", "routing", "0"])?;
    within(WAIT, || lab.host().routing_is("0"))?;
    ensure!(both_reach(lab).is_err(), "a ping goes through a node that does not route");
    lab.tool(&["set", "routing", "1"])?;
    within(WAIT, || both_reach(lab)).context("routing is on again")?;
    Ok(format!("twenty tests, up to {most:.0} MiB/s under emulation"))
}

/// The router is a server and a client of tests too, beside what it forwards.
pub(super) fn end_node(lab: &mut Lab) -> Result<String> {
    route_both(lab)?;
    let options = [&["--shards", "2", "--selftest"], &CHECKING[..]].concat();
    lab.host().start_as(&options, false, ROUTER)?;
    within(RECONNECT, || both_reach(lab))?;
    let before = lab.host().counted("route_count")?;
    // Each client sends to all servers.
    let both = |at: usize| (format!("{} {}", GATEWAYS[0], ENDS[at]), 2);
    for (from, (to, servers)) in [(ENDS[0].to_owned(), both(1)), (both(0).0, (ENDS[1].to_owned(), 1))] {
        for test in ["ping", READ, WRITE] {
            let script = script("lst", &from, &to, &format!("--distribute 1:{servers} {test}"), "");
            by_kernel(lab, &script)
                .and_then(|shown| judge(&shown))
                .with_context(|| format!("{test} from {from} to {to}"))?;
        }
    }
    let forwarded = lab.host().counted("route_count")? - before;
    ensure!(forwarded > 100, "{forwarded} messages were forwarded");
    ensure!(lab.host().counted("drop_count")? == 0, "messages were dropped");
    Ok(format!("six tests, and {forwarded} messages forwarded meanwhile"))
}

/// Frames of 9000 bytes on one net, of 1500 on the other.
pub(super) fn mtus(lab: &mut Lab) -> Result<String> {
    lab.on(2, "ip link set eth1 mtu 1500")?;
    lab.here(&["ip", "link", "set", "eth1", "mtu", "1500"])?;
    route_both(lab)?;
    lab.host().start_as(&[&["--shards", "2"], &CHECKING[..]].concat(), false, ROUTER)?;
    within(RECONNECT, || both_reach(lab))?;
    let (most, forwarded) = tested(lab, &TESTS)?;
    Ok(format!("ten tests, up to {most:.0} MiB/s under emulation, {forwarded} messages forwarded"))
}
