//! A node with two NIs on one net, of which the kernel's routes let one reach a peer.

use lnet_tests::netns::{NETNS_NODES, ip, require_privilege};

use crate::run::{Two, until_shown};

/// The candidate of a choice with this name.
fn candidate<'a>(shown: &'a str, name: &str) -> &'a str {
    let of = shown.split("local ni: ").find(|part| part.starts_with(name));
    of.unwrap_or_else(|| panic!("{name} is not in {shown}"))
}

/// A peer that is not Multi-Rail is spoken to from the NI whose interface has a route there. It is a peer of
/// one subnet, or one behind a route that comes late.
#[test]
fn a_source_is_an_ni_that_reaches_the_peer() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::new(2, "--mode socket");
    let [near, far] = [two.netns.a(), two.netns.b()];
    for kind in ["tcp", "xdp"] {
        for (daemon, namespace) in [(&two.a, near), (&two.b, far)] {
            daemon.good("lnet configure");
            daemon.good("set discovery 0");
            let names: Vec<_> = namespace.interfaces().iter().map(|one| one.name.as_str()).collect();
            if namespace.name() == near.name() {
                daemon.good(&format!("net add --net {kind} --if {}", names.join(",")));
            }
        }
        let [own, others] = [near, far]
            .map(|namespace| [0, 1].map(|rail| format!("{}@{kind}", namespace.interfaces()[rail].ipv4)));
        for rail in 0..2 {
            // More NIDs than one, since a rank spreads them.
            for host in 50..58 {
                let nid = format!("10.211.{rail}.{host}@{kind}");
                let shown = two.a.good(&format!("explain {nid}"));
                assert!(shown.contains(&format!("from: {}", own[rail])), "{shown}");
                assert!(candidate(&shown, &own[1 - rail]).contains("lost by: route"), "{shown}");
            }
            let name = &far.interfaces()[rail].name;
            two.b.good(&format!("net add --net {kind} --if {name}"));
            two.a.good(&format!("ping --timeout 5 {}", others[rail]));
            let target = two.b.good("load start target");
            let load = format!("load start initiator --to {} --messages 20 --timeout-ms 5000", others[rail]);
            let started = two.a.good(&load);
            let id = started.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap();
            two.a.good(&format!("load wait {id}"));
            let id = target.split_whitespace().find_map(|word| word.parse::<u32>().ok()).unwrap();
            two.b.good(&format!("load stop {id}"));
            two.b.good(&format!("net del --net {kind}"));
        }
        for rail in 0..2 {
            let (interface, via) = (&near.interfaces()[rail].name, far.interfaces()[rail].ipv4);
            for host in 1..5 {
                let to = format!("10.98.{rail}.{host}");
                let nid = format!("{to}@{kind}");
                let shown = two.a.good(&format!("explain {nid}"));
                assert!(shown.contains("lost by: rank") && shown.contains("route: 0"), "{shown}");
                // By this the source is recorded, which is the wrong one for some.
                two.a.bad(&format!("ping --timeout 1 {nid}"), &["errno: -1"]);
                ip(near, &format!("route add {to}/32 via {via} dev {interface}"));
                until_shown(&two.a, &format!("explain {nid}"), &format!("from: {}", own[rail]));
                ip(near, &format!("route del {to}/32"));
            }
        }
        two.a.good("lnet unconfigure");
        two.b.good("lnet unconfigure");
    }
}
