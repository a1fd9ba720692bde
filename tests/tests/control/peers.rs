//! Peers with several NIDs: configured, discovered, chosen among.

use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};

use crate::run::{Daemon, PATIENCE, Two};

/// What stands behind a key for the first time after some text.
fn value<'a>(shown: &'a str, after: &str, key: &str) -> &'a str {
    let rest = shown.split_once(after).unwrap_or_else(|| panic!("{after:?} is not in {shown}")).1;
    let rest = rest.split_once(&format!("{key}: ")).unwrap_or_else(|| panic!("{key:?} is not in {rest}")).1;
    rest.lines().next().unwrap()
}

/// How many messages have left by an NI.
fn sent(daemon: &Daemon, nid: &str) -> u64 {
    value(&daemon.good("net show -v 1"), &format!("nid: {nid}\n"), "send_count").parse().unwrap()
}

/// The local NID that shard 0 would send a request from, of which pings go.
fn explained(daemon: &Daemon, nid: &str) -> String {
    let shown = daemon.good(&format!("explain {nid}"));
    value(&shown, "shards: \"[0", "from").to_owned()
}

/// Two nodes with a net on each of two rails, of which one knows the other.
fn discovered() -> (Two, [[String; 2]; 2]) {
    let two = Two::configured(2, "");
    let nids = [two.nids(0), two.nids(1)];
    let [[_, b0], [_, b1]] = &nids;
    let shown = two.a.good(&format!("discover {b1}"));
    for part in [format!("primary nid: {b0}"), "Multi-Rail: true".into(), format!("nid: {b1}")] {
        assert!(shown.contains(&part), "{part:?} is not in {shown}");
    }
    wait_until("what it claims is proven", PATIENCE, || {
        two.a.good("peer show").contains(&format!("primary nid: {b0}"))
            && !two.a.good("peer show").contains(&format!("primary nid: {b1}"))
    });
    (two, nids)
}

#[test]
fn a_discovered_peer_has_all_its_nids_and_learns_ours() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[a0, b0], [a1, b1]]) = discovered();
    let shown = two.a.good(&format!("peer show --nid {b1} -v 3"));
    assert_eq!(value(&shown, "", "peer state"), "273", "{shown}");
    assert_eq!(value(&shown, "", "primary nid"), b0, "{shown}");
    // What this node is was pushed to it.
    wait_until("the other node knows this one", PATIENCE, || {
        let shown = two.b.good("peer show");
        [&a0, &a1].iter().all(|nid| shown.contains(nid.as_str())) && shown.contains("Multi-Rail: true")
    });
    // Pushes count from 0 on again with all else.
    assert!(!two.b.good("stats show").contains("pushes_taken: 0\n"));
    two.b.good("stats reset");
    let shown = two.b.good("stats show");
    assert!(shown.contains("pushes_taken: 0\n"), "{shown}");
    let ran = two.a.run("discover 10.9.9.9@tcp");
    assert!(ran.status == 255 && ran.stdout.contains("no NI here is on tcp"), "{ran:?}");
}

/// The NIDs that a command shows as those of peers' NIs.
fn shown_nids(daemon: &Daemon, words: &str) -> Vec<String> {
    let shown = daemon.good(words);
    let peers = shown.split_once("peer:\n").map_or("", |(_, peers)| peers);
    let peers = peers.split_once("global:\n").map_or(peers, |(peers, _)| peers);
    let nids = peers.lines().filter_map(|line| line.trim_start_matches(['-', ' ']).strip_prefix("nid: "));
    nids.map(str::to_owned).collect()
}

/// NIDs that discovery has found stay beside configured ones, and go once the peer does not tell them; an
/// export has the configured ones.
#[test]
fn a_discovered_peer_keeps_its_nids_when_one_is_added() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[_, b0], [_, b1]]) = discovered();
    let added = "10.9.9.9@xdp1".to_owned();
    two.a.good(&format!("peer add --prim_nid {b0} --nid {added}"));
    assert_eq!(shown_nids(&two.a, &format!("peer show --nid {b0}")), [&b0, &b1, &added].map(Clone::clone));
    let export = two.a.good("export");
    assert_eq!(shown_nids(&two.a, "export"), [b0.clone(), added.clone()]);
    assert_eq!(shown_nids(&two.a, "export --backup"), [b0.clone(), added.clone()]);
    two.a.good_with("import", &export);
    assert_eq!(
        shown_nids(&two.a, "peer show"),
        [&b0, &b1, &added].map(Clone::clone),
        "nothing is to be made"
    );
    two.b.good("net del --net xdp1");
    wait_until("what was found is gone", PATIENCE, || {
        shown_nids(&two.a, "peer show") == [b0.as_str(), &added]
    });
}

/// A peer that was found, and is locked, keeps its NIDs: LNet's status, and words that say what is not done.
#[test]
fn a_nid_of_a_locked_peer_is_told_to_stay_there() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[_, b0], [_, b1]]) = discovered();
    two.a.good(&format!("peer set --nid {b0} --state {}", 273 + (1 << 20)));
    let said = format!("{b1} is not added: it belongs to peer {b0}, whose primary nid is locked");
    let ran = two.a.run(&format!("peer add --prim_nid 10.9.9.9@xdp --nid 10.9.9.8@xdp,{b1}"));
    assert!(ran.status == 0 && ran.stderr == format!("lnetctl: {said}, and stays there\n"), "{ran:?}");
    let document = format!("peer:\n- primary nid: 10.9.9.9@xdp\n  peer ni:\n  - nid: {b1}\n");
    let ran = two.a.run_with("import", &document);
    assert!(ran.status == 0 && ran.stderr.contains(&format!("line 2, column 3: peer: {said}")), "{ran:?}");
    assert_eq!(shown_nids(&two.a, "peer show --nid 10.9.9.9@xdp"), ["10.9.9.9@xdp", "10.9.9.8@xdp"]);
    assert_eq!(shown_nids(&two.a, &format!("peer show --nid {b0}")), [b0, b1]);
    assert!(two.a.stop().contains(&said));
}

/// A NID that a peer only claims is no configured one after an import of what was exported.
#[test]
fn an_export_has_no_claims() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "");
    let [_, b0] = two.nids(0);
    let interface = two.netns.b().interfaces()[0].name.clone();
    // A net on which the first node is not: no NID there is asked.
    two.b.good(&format!("net add --net tcp7 --if {interface}"));
    two.a.good(&format!("discover {b0}"));
    let claimed = b0.split('@').next().unwrap().to_owned() + "@tcp7";
    wait_until("both are shown", PATIENCE, || shown_nids(&two.a, "peer show").len() == 2);
    assert!(shown_nids(&two.a, "peer show").contains(&claimed));
    assert_eq!(shown_nids(&two.a, "export"), [b0.as_str()]);
    // A file whose states were cut makes its peers.
    let export = two.a.good("export");
    let export: Vec<_> = export.lines().filter(|line| !line.contains("peer state")).collect();
    two.a.good(&format!("peer del --prim_nid {b0}"));
    two.a.good_with("import", &(export.join("\n") + "\n"));
    assert_eq!(shown_nids(&two.a, "peer show"), [b0.as_str()]);
}

#[test]
fn selection_policies_say_which_rail_is_used() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[a0, b0], [a1, b1]]) = discovered();
    // Health stays as it is set.
    two.a.good("set health_sensitivity 0");
    // A path that is silent for a moment, as where a daemon has no CPU, is avoided for a second: not in each
    // round.
    let check = |rail: &str, other: &str, why: &str| {
        wait_until(why, PATIENCE, || {
            let before = [rail, other].map(|nid| sent(&two.a, nid));
            for _ in 0..10 {
                two.a.good(&format!("ping --timeout 5 {b0}"));
            }
            let after = [rail, other].map(|nid| sent(&two.a, nid));
            explained(&two.a, &b0) == rail && after[0] >= before[0] + 10 && after[1] == before[1]
        });
    };
    two.a.good("udsp add --dst xdp1 --priority 1");
    check(&a1, &a0, "the peer's net has a priority");
    let detailed = two.a.good(&format!("peer show --nid {b1} -v 4"));
    assert_eq!(value(&detailed, &format!("nid: {b1}\n"), "net priority"), "1");
    assert_eq!(value(&detailed, &format!("nid: {b0}\n"), "net priority"), "-1");
    two.a.good("udsp add --dst xdp --idx 0");
    check(&a0, &a1, "the other net has a better one");
    two.a.good("udsp del --all");
    two.a.good("udsp add --src xdp1");
    check(&a1, &a0, "the local net has a priority");
    two.a.good(&format!("peer set --nid {b1} --health 500"));
    check(&a0, &a1, "health comes before priority");
    two.a.good("peer set --all --health 1000");
    check(&a1, &a0, "in full health the priority decides again");
}

#[test]
fn what_is_explained_is_what_is_sent() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let (two, [[a0, b0], [a1, _]]) = discovered();
    let rails = [&a0, &a1];
    // A path that falls silent between the two, as where a daemon has no CPU, makes a round void: not each
    // time.
    wait_until("rails take turns, as explained", PATIENCE, || {
        let mut used = [0_u32; 2];
        for _ in 0..8 {
            let expected = explained(&two.a, &b0);
            let before = rails.map(|nid| sent(&two.a, nid));
            two.a.good(&format!("ping --timeout 5 {b0}"));
            for (rail, nid) in rails.into_iter().enumerate() {
                let is_it = *nid == expected;
                used[rail] += u32::from(is_it);
                if sent(&two.a, nid) - before[rail] != u64::from(is_it) {
                    return false;
                }
            }
        }
        used == [4, 4]
    });
}

/// The reference's tests 219, 401 and 525, with one node.
#[test]
fn own_nids_are_a_peer_once_they_were_asked() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(2, "");
    let [[own, _], [other, _]] = [two.nids(0), two.nids(1)];
    let node = &two.a;
    for nid in [&own, &other] {
        assert!(node.good(&format!("ping {nid}")).contains(nid.as_str()));
    }
    assert_eq!(node.good("peer list").matches("nid: ").count(), 2, "{}", node.good("peer list"));
    node.good("udsp add --dst xdp1 --priority 1");
    node.good(&format!("discover {other}"));
    let shown = node.good("peer show -v 4");
    assert_eq!(shown.matches("primary nid: ").count(), 1, "{shown}");
    assert_eq!((value(&shown, "", "primary nid"), value(&shown, "", "Multi-Rail")), (own.as_str(), "true"));
    for (nid, priority) in [(&own, "-1"), (&other, "1")] {
        let after = format!("-     nid: {nid}\n");
        assert_eq!(value(&shown, &after, "net priority"), priority, "{shown}");
        assert_eq!(value(&shown, &after, "nid priority"), "-1", "{shown}");
    }
    assert!(!node.good("export --backup").contains("primary nid"), "no administrator made it");
    node.good("net del --net xdp");
    let shown = node.good("peer show");
    assert!(shown.contains(&other) && !shown.contains(&own), "{shown}");
    // No host has these addresses for itself, or none that others reach.
    let no_names =
        ["0.0.0.0@tcp", "224.0.0.1@tcp", "127.0.0.1@tcp", "::1@tcp", "fe80::1@tcp", "::ffff:10.9.0.7@xdp"];
    for nid in no_names {
        node.bad(&format!("ping {nid}"), &["errno: -22", nid, "other hosts reach it"]);
        let discovered = node.run(&format!("discover {nid}")).stdout;
        let refused = discovered.contains("errno: -22") && discovered.contains("other hosts reach it");
        assert!(refused, "{discovered}");
        node.bad(&format!("explain {nid}"), &["errno: -22", nid, "other hosts reach it"]);
        node.bad(&format!("cpt-of-nid {other},{nid}"), &["errno: -22", nid, "other hosts reach it"]);
        node.bad(&format!("net add --nid {nid} --if veth-a"), &["errno: -22", nid]);
        node.bad(&format!("net add --nid {nid}"), &["errno: -22", nid]);
        node.bad(&format!("peer add --prim_nid {nid}"), &["errno: -22", nid, "that others reach by it"]);
        node.bad(&format!("peer add --prim_nid 10.9.0.7@tcp --nid {nid}"), &["errno: -22", nid]);
    }
    node.good(&format!("peer del --prim_nid {other}"));
    assert_eq!(node.good("peer show"), "");
}

/// The reference's tests 211 and 304, with one node.
#[test]
fn own_nids_are_configured_and_recover_as_those_of_other_peers() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp", "tcp1"], "");
    let [own, other] = [0, 1].map(|rail| two.nids(rail)[0].replace("@xdp", "@tcp"));
    let node = &two.a;
    // The health of a peer NI that is this node's own.
    node.bad(&format!("peer set --nid {own} --health 500"), &["errno: -2"]);
    node.good(&format!("discover {own}"));
    node.good(&format!("peer set --nid {own} --health 500"));
    let health = |words: &str| {
        let shown = node.good(words);
        value(&shown, &format!("nid: {own}\n"), "health value").to_owned()
    };
    assert_eq!(health("net show -v 2"), "1000");
    assert!(node.good("debug recovery --peer").contains(&own));
    assert_eq!(node.good("debug recovery --local"), "");
    wait_until("recovery pings give the health back", PATIENCE, || health("peer show -v 2") == "1000");
    assert_eq!(node.good("debug recovery --peer"), "");
    node.good("peer set --all --health 900");
    wait_until("those of all come back", PATIENCE, || {
        let shown = node.good("peer show -v 2");
        shown.matches("health value: 1000\n").count() == 2
    });

    // A peer of own NIDs is in a backup, and comes back with it.
    node.good(&format!("peer add --prim_nid {other} --nid {own}"));
    assert_eq!(value(&node.good("peer show"), "", "primary nid"), other);
    assert!(node.good(&format!("ping {other}")).contains(&other));
    let exported = node.good("export --backup");
    assert!(exported.contains(&format!("primary nid: {other}")), "{exported}");
    node.good("lnet unconfigure");
    node.good("lnet configure");
    node.good_with("import", &exported);
    assert_eq!(node.good("export --backup"), exported);
    assert_eq!(shown_nids(node, "peer show"), [&other, &own].map(String::clone));
    node.good(&format!("peer del --prim_nid {other}"));
    assert_eq!(node.good("peer show"), "");

    // A locked NID stays the primary one, behind the NID by which its peer was found.
    let state = || value(&node.good(&format!("peer show --nid {other} -v 3")), "", "peer state").to_owned();
    node.good(&format!("peer add --prim_nid {other} --lock_prim"));
    assert_eq!(state(), "1048585");
    node.good(&format!("peer set --nid {other} --state 1048577"));
    assert_eq!(state(), "1048577");
    let shown = node.good(&format!("discover {own}"));
    assert!(shown.contains(&format!("primary nid: {other}")), "{shown}");
    let shown = node.good("peer show");
    assert_eq!((state().as_str(), shown.matches("primary nid: ").count()), ("1048849", 1), "{shown}");
    assert_eq!(value(&shown, "", "primary nid"), other);
    assert_eq!(shown_nids(node, "peer show"), [&own, &other].map(String::clone));
}

#[test]
fn peers_and_policies_come_back_as_they_were() {
    let node = Daemon::alone();
    node.good("peer add --prim_nid 10.9.0.1@xdp --nid 10.9.[1-2].1@xdp1 --lock_prim");
    node.good("peer add --prim_nid 10.9.0.2@tcp --non_mr");
    node.good("udsp add --src xdp* --priority 3");
    node.good("udsp add --src 10.9.[0-9].*@xdp --dst *@xdp --idx 0");
    node.good("udsp add --dst xdp --rte 10.9.0.1@tcp");
    node.good("selection nid add --nid 10.9.7.*@xdp --priority 4");
    node.good("selection peer add --local 10.9.0.1@tcp --remote 10.9.0.*@tcp --priority 2");
    node.bad("selection nid add --nid 10.9.7.*@xdp --priority 1", &["errno: -17", "with the id 1"]);
    node.good("set numa_range 15");
    let exported = node.good("export --backup");
    for part in [
        "lock_prim: true",
        "Multi-Rail: false",
        "dst: \"*@xdp\"",
        "rte: 10.9.0.1@tcp",
        "numa_range: 15",
        "selection: 2",
    ] {
        assert!(exported.contains(part), "{part:?} is not in {exported}");
    }
    node.good("lnet unconfigure");
    node.good("lnet configure");
    assert_eq!(node.good("peer show") + &node.good("udsp show"), "");
    node.good("set numa_range 0");
    node.good_with("import", &exported);
    assert_eq!(node.good("export --backup"), exported);
    assert_eq!(node.good_with("import --dry-run", &exported), "");
    assert_eq!(value(&node.good("selection peer show"), "", "id"), "2");
    node.good("selection net add --net tcp9 --priority 0");
    assert_eq!(value(&node.good("selection net show"), "", "id"), "3", "none has had it");
    node.good("selection net del --id 3");
    // All of a document or nothing.
    let document = "udsp:\n- src: tcp7\npeer:\n- primary nid: 10.9.2.1@xdp1\n";
    node.bad_with("import", document, &["errno: -17", "line 4, column 3: peer: 10.9.2.1@xdp1 belongs"]);
    assert_eq!(node.good("export --backup"), exported);
    node.good_with("import --del", &exported);
    assert_eq!(node.good("peer show") + &node.good("udsp show"), "");
}

#[test]
fn refusals_of_peers_and_policies_have_lnets_numbers() {
    let node = Daemon::alone();
    node.good("peer add --prim_nid 10.9.0.1@tcp --nid 10.9.0.2@tcp --lock_prim");
    node.good("peer add --prim_nid 10.9.0.3@tcp --non_mr --nid 10.9.0.3@tcp1");
    for (words, errno) in [
        ("peer add --prim_nid 10.9.0.1@tcp --non_mr", -1),
        ("peer add --prim_nid 10.9.0.2@tcp", -17),
        ("peer add --prim_nid 10.9.0.9@tcp --nid 10.9.0.2@tcp", -17),
        ("peer add --prim_nid 10.9.0.3@tcp --non_mr --nid 10.9.0.4@tcp", -76),
        ("peer del --prim_nid 10.9.0.2@tcp", -19),
        ("peer del --prim_nid 10.9.0.1@tcp --nid 10.9.0.3@tcp", -10),
        ("peer del --prim_nid 10.9.0.1@tcp --nid 10.9.0.8@tcp", -2),
        ("peer set --nid 10.9.0.8@tcp --health 1", -2),
        ("udsp del --idx 0", -2),
    ] {
        node.bad(words, &[&format!("errno: {errno}\n")]);
    }
    assert!(!node.good("peer list").contains("10.9.0.9@tcp"), "nothing is left of what was refused");
    node.good("udsp add --src tcp --priority 1");
    node.bad("udsp add --src tcp --priority 1", &["errno: 114", "Operation already in progress"]);
    node.good("udsp add --src tcp --priority 2");
    assert!(node.good("udsp show").contains("priority: 2"), "in place");
    // A locked primary NID survives, unless it is deleted by force.
    node.good("peer del --prim_nid 10.9.0.1@tcp");
    assert_eq!(node.good("peer show --nid 10.9.0.1@tcp").matches("- ").count(), 2);
    node.good("peer del --prim_nid 10.9.0.1@tcp --force");
    node.bad("peer show --nid 10.9.0.1@tcp", &["errno: -2"]);
    node.good("peer set --all --health 400");
    // Nothing was ever received from such a peer, and so it is not pinged.
    assert!(!node.good("debug recovery --peer").contains("10.9.0.3@tcp1"));
    node.good("debug peer --nid 10.9.0.3@tcp1");
    assert!(node.directory.log().contains("10.9.0.3@tcp1"));
    assert!(node.good("explain 10.9.0.3@tcp").contains("no NI that is up leads there"));
    assert!(node.good("explain 0@lo").contains("it is a nid of this node"));
    assert!(node.good("cpt-of-nid 10.9.0.3@tcp").contains("cpt: 0"));
    assert!(node.good("discover 0@lo").contains("primary nid: 0@lo"));
    node.stop();
}
