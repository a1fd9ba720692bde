//! The cases of the bridge: kernel nodes over tcp and our nodes over xdp or tcp, with a router of ours or of
//! the kernel's between them.

use anyhow::{Context, Result, ensure};

use super::host::within;
use super::lab::Lab;
use super::routing::{CHECKING, GATEWAYS, RECONNECT, WAIT, end, route};
use super::selftest::{PATIENT, TESTS, judge, script};

const KERNEL: &str = "10.77.0.11@tcp1";
/// The interface of the xdp net, at both its ends, and their addresses.
const LINK: &str = "bridge0";
const FAR: &str = "10.79.0.60@tcp2";

/// The documents of the walk-through in docs/routing.md, for this interface: of the router, with a kernel
/// node's net, one over xdp that kernel nodes can name, and one of net type xdp, of which they know nothing;
/// and of the server.
fn documents() -> [String; 2] {
    let router = include_str!("../../../examples/bridge/router.yaml");
    let server = include_str!("../../../examples/bridge/server.yaml");
    [router, server].map(|document| document.replace("eth1", LINK))
}

/// All tests in both directions, by the kernel's console or by one of ours.
fn by_one(lab: &Lab, lst: &str, far: &str) -> Result<f64> {
    let mut most: f64 = 0.0;
    for (from, to) in [(KERNEL, far), (far, KERNEL)] {
        for test in TESTS {
            let script = script(lst, from, to, test, "");
            let shown = if lst == "lst" { lab.on(1, &script) } else { lab.shell(&script) };
            let shown = shown
                .and_then(|shown| judge(&shown))
                .with_context(|| format!("{test} from {from} to {to} by {lst}"))?;
            most = most.max(shown);
        }
    }
    Ok(most)
}

/// Tests by both consoles.
fn by_both(lab: &Lab, ours: &str, far: &str) -> Result<f64> {
    Ok(by_one(lab, "lst", far)?.max(by_one(lab, ours, far)?))
}

/// A kernel node, our router, our node over xdp.
pub(super) fn to_xdp(lab: &mut Lab) -> Result<String> {
    route(lab, 1, 0, &[GATEWAYS[0]], PATIENT)?;
    let far = lab.join("lnet-far", ["10.77.0.60", "10.78.0.60"])?;
    let router = lab.host();
    router.link(LINK, "10.79.0.50/24", &far, "10.79.0.60/24")?;
    let [router_document, server_document] = documents();
    let mut told = Vec::new();
    for shards in ["1", "4"] {
        let options = [&["--shards", shards], &CHECKING[..]].concat();
        router.start_as(&options, false, &router_document)?;
        far.start_as(&[&options, &["--selftest"][..]].concat(), false, &server_document)?;
        within(RECONNECT, || lab.on(1, &format!("lnetctl ping {FAR}")))?;
        within(WAIT, || far.tool(&["ping", "--timeout", "10", KERNEL]))?;
        // A kernel node passes over NIDs of a net type that it does not know.
        let found = lab.on(1, &format!("lnetctl discover --force {}", GATEWAYS[0]))?;
        ensure!(found.contains("Multi-Rail: true"), "{found}");
        let before = router.counted("route_count")?;
        let most = by_both(lab, &far.console(), FAR).with_context(|| format!("{shards} shards"))?;
        let forwarded = router.counted("route_count")? - before;
        ensure!(forwarded > 1000, "{forwarded} messages were forwarded");
        ensure!(router.counted("drop_count")? == 0, "messages were dropped");
        let mode = far.tool(&["net", "show", "--net", "tcp2", "-v"])?;
        ensure!(mode.contains("active mode: native"), "the net over xdp has no rings: {mode}");
        told.push(format!("up to {most:.0} MiB/s with {shards}"));
    }
    Ok(format!("twenty tests each with one shard and with four, over rings: {}", told.join(", ")))
}

/// A kernel node, our router, a program that links lnet-user; ours have the parameters that they have by
/// themselves.
pub(super) fn to_program(lab: &mut Lab) -> Result<String> {
    route(lab, 1, 0, &[GATEWAYS[0]], PATIENT)?;
    let far = lab.join("lnet-far", ["10.77.0.60", "10.78.0.60"])?;
    let router = lab.host();
    router.link(LINK, "10.79.0.50/24", &far, "10.79.0.60/24")?;
    let [document, _] = documents();
    router.start_as(&["--shards", "2"], false, &document)?;
    far.serve(&[LINK, FAR, "tcp1", "10.79.0.50@tcp2"])?;
    within(RECONNECT, || lab.on(1, &format!("lnetctl ping {FAR}")))?;
    let most = by_one(lab, "lst", FAR)?;
    ensure!(router.counted("drop_count")? == 0, "messages were dropped");
    Ok(format!("ten tests, up to {most:.0} MiB/s under emulation"))
}

/// A kernel node that routes, and our NID behind it.
const KERNEL_ROUTER: [&str; 2] = ["10.77.0.12@tcp1", "10.78.0.12@tcp2"];
const BEHIND: &str = "10.78.0.50@tcp2";

/// A kernel node, a kernel router, our node.
pub(super) fn behind_kernel(lab: &mut Lab) -> Result<String> {
    for (net, interface) in [("tcp1", "eth0"), ("tcp2", "eth1")] {
        lab.on(2, &format!("lnetctl net add --net {net} --if {interface}"))?;
    }
    lab.on(2, "lnetctl set routing 1")?;
    route(lab, 1, 0, &[KERNEL_ROUTER[0]], PATIENT)?;
    let ours = lab.host();
    ours.start_as(
        &[&["--shards", "2", "--selftest"], &CHECKING[..]].concat(),
        false,
        &end(&KERNEL_ROUTER[1..]),
    )?;
    within(RECONNECT, || lab.on(1, &format!("lnetctl ping {BEHIND}")))?;
    within(WAIT, || ours.tool(&["ping", "--timeout", "10", KERNEL]))?;
    let most = by_both(lab, &ours.console(), BEHIND)?;
    let shown = ours.tool(&["route", "show", "-v"])?;
    ensure!(shown.contains(KERNEL_ROUTER[1]) && shown.contains("state: up"), "{shown}");
    Ok(format!("twenty tests, up to {most:.0} MiB/s under emulation"))
}
