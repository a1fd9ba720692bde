//! Interfaces, next hops and ports as the kernel tells them, in network namespaces of this test's own.

#![expect(clippy::unwrap_used, reason = "helpers outside of test functions fail the test as well")]

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lnet_io::netlink::{
    Asker, Interface, Mac, Neighbours, NetlinkError, Resolution, Unreachable, VlanTags, reserve_port,
};
use lnet_tests::netns::{self, NET_ADMIN, Namespace, Netns, SYS_ADMIN, Wiring, enter, require_privilege};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// A pair of namespaces and what these tests do with it.
struct Lab {
    netns: Netns,
}

impl Lab {
    /// `None` where this machine's user asked to leave privileged tests out.
    fn new() -> Option<Self> {
        let privileged = require_privilege("network namespaces", &[NET_ADMIN, SYS_ADMIN]);
        privileged.then(|| Self { netns: Netns::new(Wiring { queues: 1, ..Wiring::default() }) })
    }

    /// `ip` in the near namespace.
    fn near(&self, arguments: &str) -> String {
        netns::ip(self.netns.a(), arguments)
    }

    /// `ip` in the far namespace.
    fn far(&self, arguments: &str) -> String {
        netns::ip(self.netns.b(), arguments)
    }

    /// Runs `body` on a thread in the near namespace.
    fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        enter(self.netns.a(), body)
    }

    /// An interface of the near namespace.
    fn interface(&self, name: &str) -> Result<Interface, NetlinkError> {
        self.inside(|| Interface::by_name(name))
    }

    fn far_mac(&self) -> Mac {
        enter(self.netns.b(), || Interface::by_name("veth-b").unwrap().mac.unwrap())
    }

    /// Makes the kernel give up on neighbours in tenths of seconds instead of half a minute.
    fn hurry(&self) {
        self.inside(|| {
            for family in ["ipv4", "ipv6"] {
                let set = |key: &str, value: &str| {
                    let path = format!("/proc/sys/net/{family}/neigh/veth-a/{key}");
                    std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
                };
                set("base_reachable_time_ms", "200");
                set("delay_first_probe_time", "1");
                set("retrans_time_ms", "50");
            }
        });
    }

    /// A resolver for veth-a, started in the near namespace.
    fn neighbours(&self) -> Arc<Neighbours> {
        self.inside(|| Neighbours::start(Interface::by_name("veth-a").unwrap().index, true).unwrap())
    }
}

#[track_caller]
fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    netns::wait_until(what, Duration::from_secs(20), condition);
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Asks for an address until there is an answer that `wanted` likes.
#[track_caller]
fn expect(neighbours: &Neighbours, address: IpAddr, wanted: Resolution) {
    let mut last = Resolution::Unknown;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        last = neighbours.lookup(address, Asker::Own);
        if last == wanted {
            return;
        }
        neighbours.request(address, Asker::Own);
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{address}: {last:?} after 20 s, expected {wanted:?}");
}

const fn unreachable(reason: Unreachable) -> Resolution {
    Resolution::Unreachable(reason)
}

#[test]
fn an_interface_reports_its_addresses_and_state() {
    let Some(lab) = Lab::new() else { return };
    lab.near("link set dev veth-a mtu 9000 address 02:00:00:00:00:17");
    let interface = lab.interface("veth-a").unwrap();
    let index = lab.near("-o link show dev veth-a").split(':').next().unwrap().parse::<u32>().unwrap();
    assert_eq!(interface.name, "veth-a");
    assert_eq!(interface.index, index);
    assert_eq!(interface.mac, Some([2, 0, 0, 0, 0, 0x17]));
    assert_eq!(interface.mtu_bytes, 9000);
    assert_eq!(interface.xdp_program_id, None);
    assert!(interface.up);
    assert!(interface.addresses.contains(&(ip("10.211.0.1"), 24)), "{interface:?}");
    assert!(interface.addresses.contains(&(ip("fd00:211::1"), 64)), "{interface:?}");
    assert!(!interface.addresses.iter().any(|(address, _)| address.is_loopback()), "{interface:?}");
    lab.far("link set dev veth-b down");
    wait_until("veth-a has lost its carrier", || !lab.interface("veth-a").unwrap().up);
}

/// A thread that follows an interface no more is not taken for an interface that does not change.
#[test]
fn a_thread_that_panics_is_told() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    assert!(!neighbours.has_panicked());
    neighbours.subscribe(Box::new(|| panic!("a hook that panics")));
    lab.near("link set dev veth-a mtu 1400");
    wait_until("the thread is known to have panicked", || neighbours.has_panicked());
}

#[test]
fn queues_are_those_in_use_not_those_allocated() {
    let Some(lab) = Lab::new() else { return };
    lab.near("link add name w0 numrxqueues 4 numtxqueues 2 type veth peer name w1 numrxqueues 2");
    // Without counts a veth allocates a queue per CPU and uses one (drivers/net/veth.c: veth_init_queues).
    lab.near("link add name p0 type veth peer name p1");
    // A bridge has no channels to report: there the allocated ones count.
    lab.near("link add name b0 numrxqueues 3 numtxqueues 2 type bridge");
    for (name, expected) in [("w0", (4, 2)), ("p0", (1, 1)), ("b0", (3, 2)), ("veth-a", (1, 1))] {
        let Interface { rx_queues, tx_queues, up, .. } = lab.interface(name).unwrap();
        assert_eq!((rx_queues, tx_queues), expected, "{name}");
        assert_eq!(up, name == "veth-a", "{name}");
        // `ip netns exec` mounts the namespace's own sysfs, which lists the queues in use.
        let queues = format!("/sys/class/net/{name}/queues");
        let list = ["netns", "exec", lab.netns.a().name(), "ls", &queues];
        let listed = Command::new("ip").args(list).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let count = |kind: &str| listed.lines().filter(|queue| queue.starts_with(kind)).count() as u32;
        assert_eq!((count("rx-"), count("tx-")), expected, "{name}: {listed}");
    }
}

#[test]
fn an_unknown_interface_is_named_with_those_there_are() {
    let Some(lab) = Lab::new() else { return };
    let refused = lab.interface("eth99").unwrap_err();
    let NetlinkError::NoSuchInterface { name, present } = &refused else { panic!("{refused}") };
    assert_eq!(name, "eth99");
    assert_eq!(present.split(", ").collect::<HashSet<_>>(), HashSet::from(["veth-a"]));
    let refused = lab.inside(|| Neighbours::start(4_000_000, true)).unwrap_err();
    assert!(matches!(refused, NetlinkError::NoSuchIndex { index: 4_000_000 }), "{refused}");
}

#[test]
fn peers_on_link_are_resolved_and_kept_managed() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    for peer in ["10.211.0.2", "fd00:211::2"] {
        assert_eq!(neighbours.lookup(ip(peer), Asker::Own), Resolution::Unknown);
        expect(&neighbours, ip(peer), Resolution::Mac(lab.far_mac()));
        let entry = lab.near(&format!("-d neigh show {peer}"));
        assert!(entry.contains("managed") && entry.contains("extern_learn"), "{entry}");
    }
    assert_eq!(neighbours.entries_count(), 2);
    drop(neighbours);
    assert_eq!(lab.near("-d neigh show").matches("managed").count(), 0, "left behind");
}

#[test]
fn an_entry_made_by_hand_is_used_and_left_alone() {
    let Some(lab) = Lab::new() else { return };
    lab.near("neigh add 10.211.0.50 lladdr 02:00:00:00:00:50 nud permanent dev veth-a");
    let neighbours = lab.neighbours();
    expect(&neighbours, ip("10.211.0.50"), Resolution::Mac([2, 0, 0, 0, 0, 0x50]));
    drop(neighbours);
    let entry = lab.near("-d neigh show 10.211.0.50");
    assert!(entry.contains("PERMANENT") && !entry.contains("managed"), "{entry}");
}

#[test]
fn the_way_leads_through_the_gateway_and_follows_the_route() {
    let Some(lab) = Lab::new() else { return };
    lab.near("route add 10.88.0.0/16 via 10.211.0.2 dev veth-a");
    lab.near("route add fd88::/64 via fd00:211::2 dev veth-a");
    lab.near("route add 10.89.0.0/16 via inet6 fd00:211::2 dev veth-a");
    let neighbours = lab.neighbours();
    for remote in ["10.88.3.4", "10.88.3.5", "fd88::1", "10.89.0.1"] {
        expect(&neighbours, ip(remote), Resolution::Mac(lab.far_mac()));
    }
    // All four lead to two next hops.
    assert_eq!(lab.near("-d neigh show").matches("managed").count(), 2);

    // A route that changes is followed without being asked.
    lab.near("neigh add 10.211.0.60 lladdr 02:00:00:00:00:60 nud permanent dev veth-a");
    lab.near("route replace 10.88.0.0/16 via 10.211.0.60 dev veth-a");
    let moved = Resolution::Mac([2, 0, 0, 0, 0, 0x60]);
    wait_until("the new gateway", || neighbours.lookup(ip("10.88.3.4"), Asker::Own) == moved);
    wait_until("nobody follows the old gateway", || {
        lab.near("-d neigh show").matches("managed").count() == 1
    });
    lab.near("route del 10.88.0.0/16");
    let gone = unreachable(Unreachable::NoRoute);
    wait_until("the route is gone", || neighbours.lookup(ip("10.88.3.5"), Asker::Own) == gone);
}

#[test]
fn what_cannot_be_reached_is_said_with_the_reason() {
    let Some(lab) = Lab::new() else { return };
    lab.hurry();
    lab.near("route add blackhole 198.51.100.0/24");
    lab.near("route add unreachable fd99::/64");
    let neighbours = lab.neighbours();
    for (address, reason) in [
        ("203.0.113.1", Unreachable::NoRoute),
        ("198.51.100.1", Unreachable::NoRoute),
        ("2001:db8::1", Unreachable::NoRoute),
        ("fd99::1", Unreachable::NoRoute),
        ("10.211.0.1", Unreachable::Local),
        ("fd00:211::1", Unreachable::Local),
        ("10.211.0.255", Unreachable::NotUnicast),
        ("239.1.1.1", Unreachable::NotUnicast),
        ("ff02::1", Unreachable::NotUnicast),
        ("10.211.0.99", Unreachable::NoNeighbour),
        ("fd00:211::99", Unreachable::NoNeighbour),
    ] {
        expect(&neighbours, ip(address), unreachable(reason));
    }

    // A host turns up: the kernel goes on probing, and a request after the interval hurries it.
    lab.far("addr add 10.211.0.99/24 dev veth-b");
    expect(&neighbours, ip("10.211.0.99"), Resolution::Mac(lab.far_mac()));
}

#[test]
fn a_peer_that_changes_its_mac_is_followed() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let peer = ip("10.211.0.2");
    expect(&neighbours, peer, Resolution::Mac(lab.far_mac()));
    let generation = neighbours.generation();
    enter(lab.netns.b(), || std::fs::write("/proc/sys/net/ipv4/conf/veth-b/arp_notify", "1").unwrap());
    lab.far("link set dev veth-b address 02:00:00:00:00:99");
    let changed = Resolution::Mac([2, 0, 0, 0, 0, 0x99]);
    wait_until("the new address", || neighbours.lookup(peer, Asker::Own) == changed);
    // Raised once the answer is in place.
    wait_until("the new generation", || neighbours.generation() != generation);
}

#[test]
fn a_peer_that_loses_its_address_becomes_unreachable() {
    let Some(lab) = Lab::new() else { return };
    lab.hurry();
    let neighbours = lab.neighbours();
    for (peer, prefix) in [("10.211.0.2", 24), ("fd00:211::2", 64)] {
        let peer = ip(peer);
        expect(&neighbours, peer, Resolution::Mac(lab.far_mac()));
        lab.far(&format!("addr del {peer}/{prefix} dev veth-b"));
        let gone = unreachable(Unreachable::NoNeighbour);
        // Nothing is sent and nothing asked: the kernel probes the managed entry, and notices.
        wait_until("the probes fail", || neighbours.lookup(peer, Asker::Own) == gone);
    }
}

#[test]
fn a_link_that_goes_down_and_up_takes_the_answers_along() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let (peer, mac) = (ip("10.211.0.2"), Resolution::Mac(lab.far_mac()));
    expect(&neighbours, peer, mac);
    lab.far("link set dev veth-b down");
    let down = unreachable(Unreachable::InterfaceDown);
    wait_until("the carrier is lost", || neighbours.lookup(peer, Asker::Own) == down);
    lab.far("link set dev veth-b up");
    wait_until("the peer is back", || neighbours.lookup(peer, Asker::Own) == mac);
    lab.near("link del dev veth-a");
    wait_until("the interface is gone", || neighbours.lookup(peer, Asker::Own) == down);
}

#[test]
fn a_deleted_entry_is_made_again() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let (peer, mac) = (ip("10.211.0.2"), Resolution::Mac(lab.far_mac()));
    expect(&neighbours, peer, mac);
    lab.near("neigh del 10.211.0.2 dev veth-a");
    wait_until("a managed entry again", || lab.near("-d neigh show 10.211.0.2").contains("managed"));
    wait_until("the answer", || neighbours.lookup(peer, Asker::Own) == mac);
}

#[test]
fn hooks_are_called_when_answers_change_and_not_otherwise() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    neighbours.subscribe(Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(neighbours.generation(), 0);
    assert!(neighbours.request(ip("10.211.0.2"), Asker::Own));
    wait_until("a wake-up", || calls.load(Ordering::Relaxed) > 0);
    let mac = Resolution::Mac(lab.far_mac());
    wait_until("the answer", || neighbours.lookup(ip("10.211.0.2"), Asker::Own) == mac);
    let generation = neighbours.generation();
    // A route by another interface matters to no answer: they are looked through and stay what they are.
    lab.near("link set dev lo up");
    lab.near("route add 10.99.0.0/16 dev lo");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(neighbours.generation(), generation);
    // Addresses that the interface reaches are an answer too.
    lab.near("route add 10.98.0.0/16 via 10.211.0.2 dev veth-a");
    wait_until("another answer", || neighbours.generation() > generation);
    wait_until("one call each", || u64::from(calls.load(Ordering::Relaxed)) == neighbours.generation());
}

#[test]
fn lost_events_are_made_up_for() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let replace = |host: u32, last_byte: u32| {
        format!(
            "neigh replace 10.211.0.{host} lladdr 02:00:00:00:00:{last_byte:02x} nud permanent dev veth-a\n"
        )
    };
    lab.near(replace(50, 1).trim_end());
    let peer = ip("10.211.0.50");
    expect(&neighbours, peer, Resolution::Mac([2, 0, 0, 0, 0, 1]));

    // The thread is held up in a hook while more events come than its socket can hold; the last one counts.
    let (entered, waiting) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    neighbours.subscribe(Box::new(move || {
        entered.send(()).unwrap();
        // An error once released for good.
        released.lock().unwrap().recv().ok();
    }));
    assert!(neighbours.request(ip("203.0.113.1"), Asker::Own));
    waiting.recv_timeout(Duration::from_secs(20)).unwrap();
    let flood: String = (0..40_000).map(|count| replace(51, count % 2)).collect();
    let file = std::env::temp_dir().join(format!("{}.batch", lab.netns.a().name()));
    std::fs::write(&file, flood + &replace(50, 2)).unwrap();
    let ran = Command::new("ip").args(["-n", lab.netns.a().name(), "-batch"]).arg(&file).status();
    std::fs::remove_file(&file).unwrap();
    assert!(ran.unwrap().success());
    drop(release);
    let changed = Resolution::Mac([2, 0, 0, 0, 0, 2]);
    wait_until("the change whose event was lost", || neighbours.lookup(peer, Asker::Own) == changed);
}

#[test]
fn twenty_thousand_addresses_do_not_grow_without_bound() {
    let Some(lab) = Lab::new() else { return };
    lab.near("route add 10.64.0.0/16 dev veth-a");
    let neighbours = lab.neighbours();
    let entries_max = Asker::Own.entries_max();
    let (peer, mac) = (ip("10.211.0.2"), Resolution::Mac(lab.far_mac()));
    expect(&neighbours, peer, mac);
    for number in 0..20_000_u32 {
        let address = IpAddr::from((0x0a40_0000 + number).to_be_bytes());
        wait_until("a place in the queue", || neighbours.request(address, Asker::Own));
        // Used all the time, so never the one that is dropped.
        assert_eq!(neighbours.lookup(peer, Asker::Own), mac);
        assert!(neighbours.entries_count() <= entries_max);
    }
    let last = IpAddr::from((0x0a40_0000_u32 + 19_999).to_be_bytes());
    expect(&neighbours, last, unreachable(Unreachable::NoNeighbour));
    let followed = neighbours.entries_count();
    assert!((entries_max / 64 * 62..=entries_max).contains(&followed), "{followed}");
    assert_eq!(neighbours.lookup(ip("10.64.0.0"), Asker::Own), Resolution::Unknown, "the oldest was dropped");
    assert_eq!(neighbours.lookup(peer, Asker::Own), mac);
    let kernel = |lab: &Lab| lab.near("-d neigh show").matches("managed").count();
    assert_eq!(kernel(&lab), followed);
    drop(neighbours);
    assert_eq!(kernel(&lab), 0);
}

/// Ends a loop of another thread when it goes, after a panic too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Strangers have the kernel asked for ever-new addresses that nothing answers for: others neither wait for
/// that nor lose an answer, and the kernel follows few of these addresses.
#[test]
fn questions_of_strangers_cost_others_nothing() {
    let Some(lab) = Lab::new() else { return };
    lab.near("route add 10.64.0.0/16 dev veth-a");
    let neighbours = lab.neighbours();
    let (peer, mac) = (ip("10.211.0.2"), Resolution::Mac(lab.far_mac()));
    expect(&neighbours, peer, mac);
    let (epoch, is_over) = (neighbours.epoch(), AtomicBool::new(false));
    let strangers_max = Asker::Stranger.entries_max();
    let refused = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut refused = 0;
            for number in 0_u32.. {
                let address = IpAddr::from((0x0a40_0000 + number % 60_000).to_be_bytes());
                refused += u32::from(!neighbours.request(address, Asker::Stranger));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            refused
        });
        let stop = Stop(&is_over);
        wait_until("strangers have their part", || neighbours.entries_count() >= strangers_max);
        for host in 60..70_u8 {
            let (address, mac) = (format!("10.211.0.{host}"), [2, 0, 0, 0, 0, host]);
            let text = mac.map(|byte| format!("{byte:02x}")).join(":");
            lab.near(&format!("neigh replace {address} lladdr {text} nud permanent dev veth-a"));
            let asked = Instant::now();
            expect(&neighbours, ip(&address), Resolution::Mac(mac));
            assert!(asked.elapsed() < Duration::from_secs(1), "{address}: {:?}", asked.elapsed());
        }
        drop(stop);
        flood.join().unwrap()
    });
    assert_ne!(refused, 0, "their queue was never full");
    assert!(neighbours.entries_count() <= strangers_max + 11);
    assert_eq!(neighbours.epoch(), epoch, "paths of others were forgotten");
    assert_eq!(neighbours.lookup(peer, Asker::Own), mac);
}

/// Threads of this process with this name, in this network namespace.
fn threads_in(namespace: &Namespace, name: &str) -> usize {
    let netns = enter(namespace, || std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    let is_one = |task: &Path| {
        let named = std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        named && std::fs::read_link(task.join("ns/net")).is_ok_and(|link| link == netns)
    };
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| is_one(&task.as_ref().unwrap().path()))
        .count()
}

#[test]
fn the_thread_lives_in_the_callers_namespace_until_the_last_drop() {
    let Some(lab) = Lab::new() else { return };
    let neighbours = lab.neighbours();
    let shared = Arc::clone(&neighbours);
    let held = Arc::new(());
    let watch = Arc::downgrade(&held);
    neighbours.subscribe(Box::new(move || drop(Arc::clone(&held))));
    assert_eq!(threads_in(lab.netns.a(), "lnet-netlink"), 1);
    drop(neighbours);
    assert_eq!(threads_in(lab.netns.a(), "lnet-netlink"), 1);
    drop(shared);
    // Joined, so that nothing of it is left; the kernel may still list it for a moment.
    assert!(watch.upgrade().is_none());
    wait_until("the thread is gone", || threads_in(lab.netns.a(), "lnet-netlink") == 0);
}

#[test]
fn without_capabilities_the_missing_one_is_named() {
    let Some(lab) = Lab::new() else { return };
    let (started, port) = lab.inside(|| {
        let index = Interface::by_name("veth-a").unwrap().index;
        let mut sets = capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        set_capabilities(None, sets).unwrap();
        assert_eq!(Interface::by_name("veth-a").unwrap().index, index, "reading needs no capability");
        (Neighbours::start(index, true), reserve_port(ip("10.211.0.1"), 988))
    });
    let refused = started.unwrap_err();
    assert!(matches!(refused, NetlinkError::NoPermission { .. }), "{refused}");
    assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
    let refused = port.unwrap_err();
    assert!(refused.is_port(ErrorKind::PermissionDenied), "{refused}");
}

#[test]
fn a_reserved_port_belongs_to_nobody_else() {
    let Some(lab) = Lab::new() else { return };
    lab.inside(|| {
        for address in ["10.211.0.1", "fd00:211::1"] {
            let ours = reserve_port(ip(address), 988).unwrap();
            let refused = reserve_port(ip(address), 988).unwrap_err();
            assert!(refused.is_port(ErrorKind::AddrInUse), "{refused}");
            assert!(refused.to_string().contains(address), "{refused}");
            // Nor the port of every address.
            let refused = reserve_port(ip("::"), 988).unwrap_err();
            assert!(refused.is_port(ErrorKind::AddrInUse), "{refused}");
            drop(ours);
            drop(reserve_port(ip(address), 988).unwrap());
        }
    });
}

/// A device that takes VLAN tags off leaves them in frames while it is asked to, and one that has left them
/// before is not touched. A thread of another namespace puts back what was.
#[test]
fn vlan_tags_are_left_in_frames_for_a_while() {
    let Some(lab) = Lab::new() else { return };
    let set = |words: &str| {
        let run = || Command::new("ethtool").args(words.split(' ')).output().unwrap();
        let output = lab.inside(run);
        assert!(output.status.success(), "ethtool {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let takes_off = || set("-k veth-a").contains("rx-vlan-offload: on");
    let index = lab.interface("veth-a").unwrap().index;
    for before in [true, false] {
        set(&format!("-K veth-a rxvlan {}", if before { "on" } else { "off" }));
        assert_eq!(takes_off(), before);
        let tags = lab.inside(|| VlanTags::keep(index).unwrap());
        assert!(!tags.are_lost() && !takes_off());
        drop(tags);
        assert_eq!(takes_off(), before);
    }
}
