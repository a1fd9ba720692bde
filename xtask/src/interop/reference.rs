//! Routing tests of the reference's suite, by their numbers (LNet lnetctl 7.5), with two kernel nodes as the
//! ends and our daemon as the router. 220 is the case `router`, 257 is `routers, off and on`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_yaml::Value;

use super::Site as _;
use super::host::within;
use super::lab::Lab;
use super::routing::{CHECKING, ENDS, GATEWAYS, RECONNECT, ROUTER, WAIT, both_reach, route, tested};
use super::selftest::{PATIENT, READ};

/// Longer than a kernel node and our router take to see that a gateway or a net is dead.
const SEEN: Duration = Duration::from_secs(10);

/// Whether the kernel nodes discover, and whether they hold a router for dead whose NI beyond is dead.
#[derive(Clone, Copy, Debug)]
struct Mode {
    has_discovery: bool,
    avoids_asymmetry: bool,
}

impl Mode {
    /// Starts the router anew, and sets up the ends so, without routes.
    fn begin(self, lab: &Lab) -> Result<()> {
        let discovery = u8::from(self.has_discovery).to_string();
        lab.stop_daemon();
        for (node, at) in [(1, 0), (2, 1)] {
            route(lab, node, at, &[], PATIENT)?;
            unroute(lab, node, at)?;
            let avoid = u8::from(self.avoids_asymmetry);
            let parameter = "/sys/module/lnet/parameters/avoid_asym_router_failure";
            lab.on(node, &format!("lnetctl set discovery {discovery} && echo {avoid} > {parameter}"))?;
        }
        lab.host().start_as(&[&["--shards", "2"], &CHECKING[..]].concat(), false, ROUTER)?;
        lab.tool(&["set", "discovery", &discovery]).map(drop)
    }
}

/// Takes the route away from a kernel node, if it has one.
fn unroute(lab: &Lab, node: u8, at: usize) -> Result<()> {
    let named = format!("--net tcp{} --gateway {}", 2 - at, GATEWAYS[at]);
    let del = format!("if lnetctl route show {named} | grep -q gateway:; then lnetctl route del {named}; fi");
    lab.on(node, &del).map(drop)
}

/// Fails unless the router's NI on a net has this status.
fn ni_is(lab: &Lab, net: &str, status: &str) -> Result<()> {
    let shown = lab.tool(&["net", "show", "--net", net])?;
    ensure!(shown.contains(&format!("status: {status}\n")), "{status} expected: {shown}");
    Ok(())
}

/// Fails unless the route of a kernel node is in this state.
fn route_is(lab: &Lab, node: u8, state: &str) -> Result<()> {
    let shown = lab.on(node, "lnetctl route show -v")?;
    ensure!(shown.contains(&format!("state: {state}")), "{state} expected: {shown}");
    Ok(())
}

fn routes_are_up(lab: &Lab) -> Result<()> {
    within(RECONNECT, || route_is(lab, 1, "up").and_then(|()| route_is(lab, 2, "up")))
}

/// 222 to 225: routes as they come on one end, then on both, and go on one.
fn asymmetric(lab: &Lab, mode: Mode) -> Result<()> {
    mode.begin(lab)?;
    for net in ["tcp1", "tcp2"] {
        within(WAIT, || ni_is(lab, net, "down")).context("nothing has arrived yet")?;
    }
    route(lab, 1, 0, &[GATEWAYS[0]], PATIENT)?;
    within(RECONNECT, || ni_is(lab, "tcp1", "up")).context("one end has its route")?;
    if mode.avoids_asymmetry {
        std::thread::sleep(SEEN);
        route_is(lab, 1, "down").and_then(|()| ni_is(lab, "tcp2", "down"))
    } else {
        within(WAIT, || route_is(lab, 1, "up"))
    }
    .context("the other end has none")?;
    route(lab, 2, 1, &[GATEWAYS[1]], PATIENT)?;
    routes_are_up(lab)?;
    ni_is(lab, "tcp2", "up")?;
    unroute(lab, 2, 1)?;
    if mode.avoids_asymmetry {
        within(WAIT, || route_is(lab, 1, "down"))
    } else {
        std::thread::sleep(SEEN);
        route_is(lab, 1, "up")
    }
    .context("the other end's route has gone")
}

/// GETs that the router has dropped.
fn dropped_gets(lab: &Lab) -> Result<u64> {
    let shown: Value = serde_yaml::from_str(&lab.tool(&["net", "show", "-v", "4"])?)?;
    let items = |value: &Value, key: &str| value.get(key).and_then(Value::as_sequence).cloned();
    let nets = items(&shown, "net").context("`net show` tells no nets")?;
    let nis: Vec<_> = nets.iter().filter_map(|net| items(net, "local NI(s)")).flatten().collect();
    let dropped: Option<Vec<u64>> =
        nis.iter().map(|ni| ni.get("dropped_stats")?.get("get")?.as_u64()).collect();
    Ok(dropped.context("an NI has no dropped_stats")?.iter().sum())
}

/// 227: the far end is dead, and neither discovery nor health is there to tell of it.
fn dead_end(lab: &Lab) -> Result<()> {
    Mode { has_discovery: false, avoids_asymmetry: false }.begin(lab)?;
    route(lab, 1, 0, &[GATEWAYS[0]], PATIENT)?;
    route(lab, 2, 1, &[GATEWAYS[1]], PATIENT)?;
    routes_are_up(lab)?;
    lab.on(1, "lnetctl set health_sensitivity 0")?;
    lab.tool(&["set", "health_sensitivity", "0"])?;
    ensure!(dropped_gets(lab)? == 0, "GETs were dropped before");
    lab.on(2, "ip link set eth1 down")?;
    let is_dropped = within(RECONNECT, || {
        let pinged = lab.on(1, &format!("lnetctl ping --timeout 3 {}", ENDS[1]));
        ensure!(pinged.is_err(), "a node that is dead answers");
        ensure!(dropped_gets(lab)? > 0, "no GET is dropped");
        Ok(())
    });
    lab.on(2, "ip link set eth1 up")?;
    lab.on(1, "lnetctl set health_sensitivity 100")?;
    is_dropped
}

/// 228: all peers are half well, under load.
fn half_well(lab: &Lab) -> Result<()> {
    for node in [1, 2] {
        lab.on(node, "lnetctl peer set --health 500 --all")?;
    }
    lab.tool(&["peer", "set", "--health", "500", "--all"])?;
    tested(lab, &["ping", READ])?;
    for node in [1, 2] {
        let shown = lab.on(node, "lnetctl stats show")?;
        ensure!(shown.contains("local_no_route_count: 0\n"), "node {node}: {shown}");
    }
    Ok(())
}

/// Routes at the ends, and the states of routes and of the router's NIs.
pub(super) fn routes(lab: &mut Lab) -> Result<String> {
    for (number, has_discovery, avoids_asymmetry) in
        [("222", true, true), ("223", false, true), ("224", true, false), ("225", false, false)]
    {
        asymmetric(lab, Mode { has_discovery, avoids_asymmetry }).context(number)?;
    }
    Ok(String::new())
}

/// Load, and a dead end.
pub(super) fn load(lab: &mut Lab) -> Result<String> {
    for (number, has_discovery) in [("221", false), ("228", true)] {
        let loaded = || {
            Mode { has_discovery, avoids_asymmetry: true }.begin(lab)?;
            route(lab, 1, 0, &[GATEWAYS[0]], PATIENT)?;
            route(lab, 2, 1, &[GATEWAYS[1]], PATIENT)?;
            routes_are_up(lab)?;
            within(RECONNECT, || both_reach(lab))?;
            if number == "228" { half_well(lab) } else { tested(lab, &["ping", READ]).map(drop) }
        };
        loaded().context(number)?;
    }
    dead_end(lab).context("227")?;
    // The ends are not as other cases want them.
    lab.forget();
    Ok(String::new())
}
