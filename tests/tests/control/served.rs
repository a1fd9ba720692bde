//! NIs on some CPTs, of real daemons: what is shown, saved and restored, and that messages of all shards go
//! by them.

use lnet_tests::netns::{NETNS_NODES, require_privilege};

use crate::hostile_tcp::load_number;
use crate::run::{Daemon, Directory, Two};

/// Messages from one daemon to another, from all shards of the one to all of the other.
fn load(source: &Daemon, target: &Daemon, to: &str) {
    let number = load_number(&target.good("load start target"));
    let start = format!("load start initiator --to {to} --messages 400 --window 8");
    let started = load_number(&source.good(&start));
    source.good(&format!("load wait {started} --share-min 10"));
    source.good(&format!("load stop {started}"));
    target.good(&format!("load stop {number} --share-min 10"));
}

/// Two daemons of two shards, of which one serves the only NI of each; `net` has the words that make the net.
fn check(net: &str, shown: &[&str]) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let mut two = Two::new(1, "");
    let name = two.netns.a().interface().name.clone();
    let other = two.netns.b().interface().name.clone();
    for (daemon, interface) in [(&two.a, format!("{name}[0]")), (&two.b, format!("{other} --cpt 1"))] {
        daemon.good("lnet configure");
        for (portal, shard) in [(11, 1), (13, 1), (15, 1), (17, 1)] {
            daemon.good(&format!("steering set --portal {portal} --policy pin --shard {shard}"));
        }
        daemon.bad(
            &format!("net add {net} --if {}[2]", interface.split(['[', ' ']).next().unwrap()),
            &["errno: -34", "invalid CPT value 2", "0 to 1"],
        );
        daemon.good(&format!("net add {net} --if {interface}"));
    }
    let of_net = |nid: &String| nid.replace("@xdp", if net.contains("tcp") { "@tcp" } else { "@xdp" });
    let [a, b] = two.nids(0).each_ref().map(of_net);
    for (daemon, cpt) in [(&two.a, 0), (&two.b, 1)] {
        let printed = daemon.good("net show -v");
        let cpts = format!("CPT: \"[{cpt}]\"");
        assert!(shown.iter().chain(&[cpts.as_str()]).all(|part| printed.contains(part)), "{printed}");
        let homes = daemon.good(&format!("cpt-of-nid {a} {b}"));
        assert_eq!(homes.matches(&format!("cpt: {cpt}")).count(), 2, "{homes}");
        assert!(daemon.good("export --backup").contains(&cpts));
    }
    load(&two.a, &two.b, &b);
    load(&two.b, &two.a, &a);

    // A daemon that starts with what was saved is the same again.
    let saved = two.a.good("export --backup");
    let directory = Directory::new();
    let file = directory.file("saved.yaml", &saved);
    let options = format!("--shards 2 --spin 0 --config {}", file.display());
    std::mem::replace(&mut two.a, Daemon::alone()).stop();
    two.a = Daemon::start(directory, Some(two.netns.a()), &options);
    assert_eq!(two.a.good("export --backup"), saved);
    assert_eq!(two.a.good_with("import --dry-run", &saved), "");
    // First from there, so that all shards of the other learn of its new life: what they send to the former
    // one fails.
    load(&two.a, &two.b, &b);
    load(&two.b, &two.a, &a);
    // A node with one shard is asked too much.
    let few = Directory::new();
    let backup = two.b.good("export --backup");
    let file = few.file("saved.yaml", &backup);
    let (status, said) = few.ends(&format!("--config {}", file.display()));
    assert!(status == 1 && said.contains("invalid CPT value 1"), "{said}");
}

#[test]
fn rings_on_one_cpt() {
    check("--net xdp --mode native", &["active mode: native"]);
}

#[test]
fn sockets_on_one_cpt() {
    check("--net xdp --mode socket", &["active mode: socket"]);
}

#[test]
fn connections_on_one_cpt() {
    check("--net tcp", &["conns_per_peer: "]);
}

/// The LND xdp serves a net of type tcp where that was asked for.
#[test]
fn a_tcp_net_of_the_lnd_xdp() {
    check("--net tcp --lnd xdp", &["net type: tcp", "lnd: xdp", "active mode: native"]);
}

/// README's first steps, with another number of shards at the next start.
#[test]
fn a_backup_of_two_shards_starts_a_daemon_of_one() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "");
    let [a, b] = two.nids(0);
    let saved = two.a.good("export --backup");
    assert!(!saved.contains("CPT"), "{saved}");
    let Two { a: former, b: other, netns } = two;
    former.stop();
    let directory = Directory::new();
    let file = directory.file("saved.yaml", &saved);
    let options = format!("--shards 1 --spin 0 --config {}", file.display());
    let one = Daemon::start(directory, Some(netns.a()), &options);
    assert!(one.good("net show -v").contains("CPT: \"[0]\""));
    assert_eq!(one.good("export --backup"), saved);
    one.good(&format!("ping --timeout 10 {b}"));
    other.good(&format!("ping --timeout 10 {a}"));
    drop((one, other));
    drop(netns);
}
