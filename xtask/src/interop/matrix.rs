//! The cases: what our daemon and kernel nodes do with each other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::lab::{Lab, Needs, OURS, OURS_LARGE};
use super::{Case, bridge, checksums, claims, gateways, rails, reference, routing, selftest, trees};

/// How often a node is killed.
pub(super) const LIVES: u32 = 5;
pub(super) const KERNEL: &str = "10.77.0.11@tcp";
const KERNEL_LARGE: &str = "fd77::11@tcp";

const ONE: Needs =
    Needs { nodes: 1, large: false, mtu_bytes: 1500, memory_mib: 384, options: "", nets: &[("tcp", "eth0")] };
const TWO: Needs = Needs { nodes: 2, ..ONE };
const LARGE: Needs = Needs { large: true, ..ONE };
const JUMBO: Needs = Needs { mtu_bytes: 9000, ..ONE };
const CHECKSUMS: Needs = Needs { options: "ksocklnd.enable_csum=1", ..ONE };
/// Two nets, with an NI each.
const RAILS: Needs = Needs { nets: &[("tcp", "eth0"), ("tcp1", "eth1")], ..ONE };
/// Two nodes that are configured by the case.
const ROUTED: Needs = Needs { options: routing::CHECKS, nets: &[], ..TWO };
const ROUTED_JUMBO: Needs = Needs { mtu_bytes: 9000, ..ROUTED };
/// One kernel node, whose routers are ours.
const GATEWAYS: Needs = Needs { nodes: 1, ..ROUTED };
/// The second one is a router, with room for its buffers.
const KERNEL_ROUTER: Needs = Needs { options: routing::CHECKS_AND_BUFFERS, memory_mib: 640, ..ROUTED };
/// One net, with two NIs.
const SQUARE: Needs = Needs { nets: &[("tcp", "eth0,eth1")], ..ONE };

pub(super) const CASES: &[Case<Lab>] = &[
    Case { name: "ping", what: "each pings the other", needs: ONE, run: ping },
    Case {
        name: "discovery",
        what: "the kernel node discovers ours: ping, push, ACK",
        needs: ONE,
        run: discovery,
    },
    Case { name: "shards", what: "two shards, then four", needs: ONE, run: shards },
    Case {
        name: "conns_per_peer",
        what: "three connections for each direction here, one there; then three on both sides",
        needs: ONE,
        run: connections,
    },
    Case {
        name: "killed here",
        what: "our daemon is killed and comes back, five times",
        needs: ONE,
        run: killed_here,
    },
    Case {
        name: "killed there",
        what: "the kernel node is killed and comes back, five times",
        needs: ONE,
        run: killed_there,
    },
    Case { name: "cut", what: "the link is cut for 5 s while both ping", needs: ONE, run: cut },
    Case {
        name: "trees",
        what: "the same commands on both sides: what `lnetctl` shows of nets, peers, counters, tunables and policies, and \
               its backup, has the same keys, types and values, but for a list of those that differ from node to node",
        needs: ONE,
        run: trees::trees,
    },
    Case {
        name: "trees, Multi-Rail",
        what: "the same with two NIs on each side, of one net, then of two, after discovery and bulk data; also what \
               pings, `discover`, `cpt-of-nid` and `debug recovery` print, and the whole export",
        needs: ONE,
        run: trees::multi_rail,
    },
    Case {
        name: "lst, kernel console",
        what: "pings and bulk data of 4 KiB and 1 MiB, fully checked, in both directions",
        needs: ONE,
        run: selftest::kernel_console,
    },
    Case {
        name: "router",
        what: "two kernel nodes on nets of their own reach each other through our daemon with one shard and with four: \
               pings and bulk data, fully checked, in both directions; then routing goes off, and on again",
        needs: ROUTED,
        run: routing::router,
    },
    Case {
        name: "router, end node",
        what: "the same, while the router is a server and a client of tests too",
        needs: ROUTED,
        run: routing::end_node,
    },
    Case {
        name: "router, routes",
        what: "tests 222 to 225 of the reference's suite: states of the routes of two kernel nodes, and of our router's NIs, as \
               routes come on one end, then on both, and go on one",
        needs: ROUTED,
        run: reference::routes,
    },
    Case {
        name: "router, load",
        what: "tests 221, 227 and 228 of the reference's suite: load without discovery, and with all peers at half their \
               health; a far end that is dead",
        needs: ROUTED,
        run: reference::load,
    },
    Case {
        name: "router, MTUs",
        what: "the same with an MTU of 9000 on one net, and of 1500 on the other",
        needs: ROUTED_JUMBO,
        run: routing::mtus,
    },
    Case {
        name: "router to xdp",
        what: "a kernel node and one of ours over xdp reach each other through our daemon with one shard and with four: pings \
               and bulk data, fully checked, in both directions, by the console of either; the router has an NI of net type \
               xdp as well",
        needs: GATEWAYS,
        run: bridge::to_xdp,
    },
    Case {
        name: "router to xdp, program",
        what: "the same by the kernel's console, with a program that links lnet-user instead of a daemon",
        needs: GATEWAYS,
        run: bridge::to_program,
    },
    Case {
        name: "routers, killed",
        what: "a kernel node and one of ours reach each other through two of our daemons; one is killed under bulk data and \
               comes back, five times, by the console of either in turn",
        needs: GATEWAYS,
        run: gateways::killed,
    },
    Case {
        name: "routers, off and on",
        what: "the same, and routing goes off and on at one of them under bulk data, by the console of either",
        needs: GATEWAYS,
        run: gateways::off_and_on,
    },
    Case {
        name: "kernel router",
        what: "our daemon is behind a kernel node that routes, another kernel node on the other side: the same tests, by \
               the console of either",
        needs: KERNEL_ROUTER,
        run: bridge::behind_kernel,
    },
    Case { name: "lst, our console", what: "the same", needs: ONE, run: selftest::our_console },
    Case {
        name: "lst, output",
        what: "both consoles are told the same with the same nodes, and print the same",
        needs: ONE,
        run: selftest::output,
    },
    Case {
        name: "lst, conns_per_peer",
        what: "the same over three connections for each direction",
        needs: ONE,
        run: selftest::connections,
    },
    Case {
        name: "lst, killed here",
        what: "our daemon is killed under bulk data and comes back, five times",
        needs: ONE,
        run: selftest::killed_here,
    },
    Case {
        name: "lst, killed there",
        what: "the kernel node is killed under bulk data and comes back, five times",
        needs: ONE,
        run: selftest::killed_there,
    },
    Case {
        name: "lst, cut",
        what: "the link is cut for 5 s under bulk data, in each direction",
        needs: ONE,
        run: selftest::cut,
    },
    Case {
        name: "lst, silent cut",
        what: "frames of one side, of the other, of both vanish for 5 s under bulk data, in each direction, and no \
               interface tells of it",
        needs: ONE,
        run: selftest::silent_cut,
    },
    Case {
        name: "lst, hostile diallers",
        what: "diallers from a third address break the rules of the protocol, some in the kernel node's name, beside \
               bulk data and pings of the kernel node",
        needs: ONE,
        run: selftest::hostile,
    },
    Case {
        name: "lst, checksums",
        what: "the same tests with a kernel node that has enable_csum; it sums messages of version 2 of the protocol \
               alone, and both speak version 3: so there is no sum to be checked",
        needs: CHECKSUMS,
        run: selftest::plain,
    },
    Case {
        name: "checksums",
        what: "a dialler of version 2 pings that kernel node: with right checksums, without any, with wrong ones",
        needs: CHECKSUMS,
        run: checksums::version_2,
    },
    Case {
        name: "lst, mixed groups",
        what: "a kernel node and ours in one group, as clients of another kernel node and as its servers, by a kernel \
               console and by ours",
        needs: TWO,
        run: selftest::mixed,
    },
    Case { name: "large NIDs", what: "ping and discovery between IPv6 NIDs", needs: LARGE, run: large },
    Case { name: "jumbo", what: "ping and discovery with an MTU of 9000", needs: JUMBO, run: discovery },
    Case {
        name: "lst, jumbo",
        what: "the same tests with an MTU of 9000",
        needs: JUMBO,
        run: selftest::plain,
    },
    Case {
        name: "rails, discovery",
        what: "two nets: the kernel node discovers ours, then, both new to each other, ours the kernel node; each \
               sees the other as Multi-Rail with both NIDs",
        needs: RAILS,
        run: rails::discovery,
    },
    Case {
        name: "rails, push",
        what: "a net is deleted and added, an NI of the other net added and deleted, on either side; the other side \
               learns of it by push alone",
        needs: RAILS,
        run: rails::push,
    },
    Case {
        name: "rails, discovery off",
        what: "discovery is switched off and on, on either side; without it the other side has one NID, and bulk data \
               goes on",
        needs: RAILS,
        run: rails::discovery_off,
    },
    Case {
        name: "rails, cut",
        what: "eth1 of either side is down for 5 s under bulk data, in each direction; bulk data that begins meanwhile \
               goes by the other rail, and all by both afterwards, in full health",
        needs: RAILS,
        run: rails::cut,
    },
    Case {
        name: "rails, silent cut",
        what: "frames of one side, of the other, of both vanish on eth1 for 5 s under bulk data, in each direction, and \
               no interface tells of it; both rails carry it afterwards, in full health",
        needs: RAILS,
        run: rails::silent_cut,
    },
    Case {
        name: "rails, rebooted",
        what: "the kernel node is killed and comes back, five times; one side discovers the other anew, by turns, and \
               both rails carry bulk data",
        needs: RAILS,
        run: rails::rebooted,
    },
    Case {
        name: "rails, four paths",
        what: "one net with two NIs on each side: all tests, in both directions; then policies have \
               either side prefer each of the four paths in turn, which alone carries bulk data",
        needs: SQUARE,
        run: rails::four_paths,
    },
    Case {
        name: "claims, two nets",
        what: "the kernel node has a NID on each of two nets, and pushes to a daemon that has never heard of it, by its \
               primary NID, then by the second one; both are proven, and messages between all NIDs pass",
        needs: RAILS,
        run: claims::two_nets,
    },
    Case {
        name: "claims, first Put",
        what: "the kernel node pushes by its second NID to a node that has never heard of it, and puts by that at once, to \
               an entry that names the primary NID; the word of that comes by links that are 100 ms slow, or at once",
        needs: RAILS,
        run: claims::first_put,
    },
    Case {
        name: "claims, second rail",
        what: "the kernel node pushes by its second NID to a new daemon, whose console names the primary one and has all go \
               by the second rail at once: bulk data in both directions",
        needs: RAILS,
        run: claims::second_rail,
    },
    Case {
        name: "claims, late primary",
        what: "bulk data of our console while the primary NID says all 500 ms late; our console names the primary NID, then the second one",
        needs: RAILS,
        run: claims::late_primary,
    },
    Case {
        name: "claims, down and up",
        what: "the kernel node's eth1 is down when it is met: its NID there is shown, and is not taken; later it is up, is \
               taken, and carries bulk data",
        needs: RAILS,
        run: claims::down_and_up,
    },
    Case {
        name: "claims, unreachable primary",
        what: "the kernel node's eth0 is down when it pushes by its second NID: the primary NID is shown, and is not taken, \
               and the second one carries bulk data; later both do",
        needs: RAILS,
        run: claims::unreachable_primary,
    },
    Case {
        name: "claims, discovery off",
        what: "discovery is off on either side from the start: each NID is a peer of its own, nothing is asked, and bulk \
               data passes by each; then discovery is on, and both NIDs are proven",
        needs: RAILS,
        run: claims::no_discovery,
    },
    Case {
        name: "claims, configured",
        what: "either side has the other as a configured peer with both NIDs, which our daemon does not ask about; then \
               the second NID is configured for another peer, stays there, and that is counted",
        needs: RAILS,
        run: claims::configured,
    },
    Case {
        name: "claims, one net",
        what: "the kernel node has both NIDs on one net, and pushes by either, as above",
        needs: SQUARE,
        run: claims::one_net,
    },
];

fn ping(lab: &mut Lab) -> Result<String> {
    lab.start_daemon(&[], &[])?;
    both_ping(lab)
}

/// How long pings may take: connections are made first, and a kernel node waits for 180 s by itself.
const PING_TIMEOUT_S: &str = "10";

fn kernel_ping(nid: &str) -> String {
    format!("lnetctl ping --timeout {PING_TIMEOUT_S} {nid}")
}

pub(super) fn both_ping(lab: &Lab) -> Result<String> {
    let found = lab.tool(&["ping", "--timeout", PING_TIMEOUT_S, KERNEL])?;
    ensure!(found.contains(KERNEL), "our ping tells {found}");
    let found = lab.on(1, &kernel_ping(OURS))?;
    ensure!(found.contains(OURS), "the kernel's ping tells {found}");
    Ok(String::new())
}

fn discovery(lab: &mut Lab) -> Result<String> {
    lab.start_daemon(&["--shards", "2"], &[])?;
    discover(lab, OURS, KERNEL)
}

/// The kernel node discovers ours, and then knows it as it would know one of its own kind.
fn discover(lab: &Lab, ours: &str, kernel: &str) -> Result<String> {
    let found = lab.on(1, &format!("lnetctl discover --force {ours}"))?;
    ensure!(found.contains("Multi-Rail: true"), "{found}");
    // What our daemon asks of it in turn may be under way for a moment.
    lab.until(|| {
        let shown = lab.on(1, "lnetctl peer show -v 3")?;
        ensure!(shown.contains("peer state: 273"), "{shown}");
        Ok(())
    })?;
    let known = lab.until(|| {
        let known = lab.tool(&["peer", "show", "--nid", kernel, "-v"])?;
        ensure!(known.contains("Multi-Rail: true"), "its push tells {known}");
        Ok(known)
    })?;
    ensure!(known.contains(kernel), "{known}");
    Ok("peer state 273".to_owned())
}

fn shards(lab: &mut Lab) -> Result<String> {
    for count in ["2", "4"] {
        lab.start_daemon(&["--shards", count], &[])?;
        lab.until(|| both_ping(lab))?;
        discover(lab, OURS, KERNEL)?;
    }
    Ok(String::new())
}

fn connections(lab: &mut Lab) -> Result<String> {
    let count = |lab: &Lab| -> Result<usize> {
        Ok(lab.here(&["ss", "-tnH", "state", "established"])?.matches(":988").count())
    };
    lab.start_daemon(&[], &["--conns-per-peer", "3"])?;
    lab.until(|| both_ping(lab))?;
    // The third refusal in a row is the last.
    lab.until(|| {
        let shown = lab.tool(&["frames", "show"])?;
        let refused = shown.lines().filter_map(|line| line.trim().strip_prefix("refused: "));
        let refused =
            refused.map(str::parse::<u32>).sum::<Result<u32, _>>().context("`frames show` tells none")?;
        ensure!(refused >= 3, "a kernel node has refused {refused} connections");
        Ok(())
    })?;
    let surplus = count(lab)?;
    ensure!(surplus == 3, "{surplus} connections with a kernel node that takes one of each type");
    lab.on(1, "lnetctl net del --net tcp; lnetctl net add --net tcp --if eth0 --conns-per-peer 3")?;
    lab.start_daemon(&[], &["--conns-per-peer", "3"])?;
    lab.until(|| both_ping(lab))?;
    lab.until(|| {
        let all = count(lab)?;
        ensure!(all == 7, "{all} connections, 7 are expected: CONTROL and three for each direction");
        Ok(())
    })?;
    lab.on(1, "lnetctl net del --net tcp; lnetctl net add --net tcp --if eth0")?;
    Ok("3 connections, then 7".to_owned())
}

fn killed_here(lab: &mut Lab) -> Result<String> {
    for _life in 0..LIVES {
        lab.start_daemon(&["--shards", "2"], &[])?;
        lab.until_on(1, &kernel_ping(OURS))?;
        lab.until(|| both_ping(lab))?;
        lab.kill_daemon()?;
    }
    Ok(String::new())
}

fn killed_there(lab: &mut Lab) -> Result<String> {
    lab.start_daemon(&["--shards", "2"], &[])?;
    for _life in 0..LIVES {
        lab.until(|| both_ping(lab))?;
        lab.reboot(1)?;
    }
    lab.until(|| both_ping(lab))
}

fn cut(lab: &mut Lab) -> Result<String> {
    lab.start_daemon(&[], &[])?;
    both_ping(lab)?;
    lab.here(&["ip", "link", "set", "eth0", "down"])?;
    let during = lab.tool(&["ping", "--timeout", "2", KERNEL]);
    std::thread::sleep(Duration::from_secs(3));
    lab.here(&["ip", "link", "set", "eth0", "up"])?;
    ensure!(during.is_err(), "a ping over a link that is down is answered");
    lab.until(|| both_ping(lab))
}

fn large(lab: &mut Lab) -> Result<String> {
    lab.start_daemon(&["--shards", "2"], &[])?;
    let found = lab.tool(&["ping", "--timeout", PING_TIMEOUT_S, KERNEL_LARGE])?;
    ensure!(found.contains(KERNEL_LARGE), "our ping tells {found}");
    lab.on(1, &kernel_ping(OURS_LARGE))?;
    discover(lab, OURS_LARGE, KERNEL_LARGE)
}
