//! Peers, discovery, selection policies, and what is asked about paths.

use std::sync::Arc;

use lnet_model::peer::peer_state;
use lnet_model::text::NidText;

use crate::model::Model;
use crate::model_records::peer;
use crate::run::Node;

fn configured() -> Node {
    let mut model = Model::configured(2);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 272));
    Node::start(model)
}

#[test]
fn peers_are_made_changed_and_deleted() {
    let node = configured();
    node.good("peer add --prim 10.9.0.1@tcp --ni 10.9.[1-2].[1,3]@tcp1 --lock_prim");
    let shown = node.good("peer show --nid 10.9.2.3@tcp1 -v 3");
    assert!(shown.contains(&format!("peer state: {}\n", peer_state::LOCK_PRIMARY | 9)), "{shown}");
    assert_eq!(shown.matches("- ").count() - 1, 5, "{shown}");
    node.good("peer add -k 10.9.0.2@tcp -m");
    assert!(node.good("peer show --nid 10.9.0.2@tcp").contains("Multi-Rail: false"));
    // The older forms: the first NID of several is the primary one, and some of a peer's name it.
    node.good("peer add --ip2nets 10.9.0.5@tcp,10.9.0.6@o2ib");
    node.good("peer del --nid 10.9.0.6@o2ib");
    assert_eq!(node.good("peer show --nid 10.9.0.5@tcp").matches("nid:").count(), 2);
    node.good("peer set --nid 10.9.0.5@tcp --health 500");
    assert!(node.good("peer show --nid 10.9.0.5@tcp -v 2").contains("health value: 500"));
    assert_eq!(node.good("debug recovery -p"), "Peer NI recovery:\n      nid-0: 10.9.0.5@tcp\n");
    assert_eq!(node.good("debug recovery --local"), "");
    node.good("peer set --all --health 1000");
    assert_eq!(node.good("debug recovery -l -p"), "");
    node.good("peer set --nid 10.9.0.5@tcp --state 1048585");
    node.good("debug peer --nid 10.9.0.5@tcp");
    node.good("peer del --prim_nid 10.9.0.1@tcp --nid 10.9.1.1@tcp1 --force");
    assert!(!node.good("peer show").contains("10.9.1.1@tcp1"));
    for nid in ["10.9.0.1@tcp", "10.9.0.2@tcp", "10.9.0.5@tcp", "10.77.0.12@tcp"] {
        node.good(&format!("peer del --prim_nid {nid}"));
    }
    assert_eq!(node.good("peer list"), "");
}

/// Requests name the peers of the command line, and no others.
#[test]
fn peers_that_are_not_named_are_not_read() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 273));
    model.peers.push(peer(&["10.77.0.13@tcp"], 273));
    let asked = Arc::clone(&model.asked_peers);
    let node = Node::start(model);
    let (all, of) = (vec![None], |nids: &[&str]| {
        vec![Some(nids.iter().map(|nid| NidText(nid.parse().unwrap())).collect::<Vec<_>>())]
    });
    for (words, document, expected) in [
        ("peer show", "", &all),
        ("export", "", &all),
        ("peer show --nid 10.78.0.12@tcp", "", &of(&["10.78.0.12@tcp"])),
        ("peer del --nid 10.78.0.12@tcp", "", &of(&["10.78.0.12@tcp"])),
        ("import", "peer:\n- primary nid: 10.77.0.99@tcp\n", &of(&["10.77.0.99@tcp"])),
        ("import", "peers:\n- nids: [10.77.0.13@tcp]\n", &of(&["10.77.0.13@tcp"])),
        ("import", "global:\n  retry_count: 3\n", &Vec::new()),
        ("import --show", "peer:\n- nid: 10.77.0.13@tcp\n", &of(&["10.77.0.13@tcp"])),
        ("import --show", "peer: []\n", &all),
        ("import --show", "global: {}\n", &Vec::new()),
    ] {
        asked.lock().unwrap().clear();
        node.good_with(words, document);
        let mut asked = asked.lock().unwrap().clone();
        // Pages of one answer.
        asked.dedup();
        assert_eq!(asked, *expected, "{words}: {document}");
    }
}

#[test]
fn what_makes_no_sense_of_peers_is_refused() {
    let node = configured();
    let many = (0..129).map(|host| format!("10.{}.0.1@tcp", host)).collect::<Vec<_>>().join(",");
    let many = format!("peer add --prim_nid 10.9.0.1@tcp --nid {many}");
    for (words, errno, said) in [
        ("peer add", -22, "missing mandatory parameter: --prim_nid"),
        ("peer add --nid 10.9.0.1@tcp", -22, "missing mandatory parameter: --prim_nid"),
        ("peer add --prim_nid 10.9.0.1@foo", -22, "foo"),
        ("peer add --prim_nid <?>", -22, "<?>"),
        ("peer add --prim_nid 10.9.0.1@tcp --nid 10.9.0.[2-1]@tcp", -22, "a range such as"),
        ("peer add --prim_nid 10.9.0.1@tcp --nid *@tcp", -22, "wildcard"),
        ("peer add --prim_nid 10.9.0.1@tcp --force", -22, "--force is for peer del"),
        (many.as_str(), -7, "at most 128 nids"),
        ("peer del", -22, "missing mandatory parameter: --prim_nid"),
        ("peer del --prim_nid 10.77.0.12@tcp --lock_prim", -22, "are for peer add"),
        ("peer del --prim_nid 10.9.0.1@tcp", -2, "no peer has the nid 10.9.0.1@tcp"),
        ("peer del --prim_nid 10.78.0.12@tcp", -19, "10.78.0.12@tcp"),
        ("peer del --nid 10.9.0.1@tcp", -2, "10.9.0.1@tcp"),
        ("peer set --health 1", -22, "--nid, or --all"),
        ("peer set --all --nid 10.77.0.12@tcp --health 1", -22, "goes not with"),
        ("peer set --all --health 1001", -22, "0 to 1000"),
        ("peer set --all --state 1", -22, "--nid"),
        ("peer set --all", -22, "nothing to set"),
        ("peer set --nid 10.9.0.1@tcp --state 1", -2, "10.9.0.1@tcp"),
        ("debug peer", -22, "--nid"),
        ("debug peer --nid 10.9.0.1@tcp", -2, "no peer"),
        ("debug recovery", -22, "--local or --peer"),
        ("explain 10.9.0.1@tcp", -2, "10.9.0.1@tcp"),
        ("cpt-of-nid 10.9.0.1@foo", -22, "foo"),
    ] {
        node.bad(words, 234, &[&format!("errno: {errno}\n"), said]);
    }
}

#[test]
fn selection_policies_are_shown_as_they_were_given() {
    let node = configured();
    assert_eq!(node.good("udsp show"), "");
    node.good("udsp add --src 10.77.0.11@tcp");
    node.good("udsp add --dst 10.78.0.12@tcp --prio 1 --idx 0");
    node.good("udsp add --src tcp --dst 10.[77-78].0.[1-20]@tcp");
    node.good("udsp add -d tcp* -r 10.0.0.*@tcp1");
    let expected = "\
udsp:
-     idx: 0
      dst: 10.78.0.12@tcp
      action:
            priority: 1
-     idx: 1
      src: 10.77.0.11@tcp
      action:
            priority: 0
-     idx: 2
      src: tcp
      dst: 10.[77-78].0.[1-20]@tcp
-     idx: 3
      dst: tcp*
      rte: 10.0.0.*@tcp1
";
    assert_eq!(node.good("udsp show"), expected);
    assert_eq!(
        node.good("udsp show --idx 1"),
        "udsp:\n-     idx: 1\n      src: 10.77.0.11@tcp\n      action:\n            priority: 0\n"
    );
    assert_eq!(node.good("udsp show --idx 9"), "");
    assert_eq!(node.good("udsp show --idx -1"), expected);
    let backup = node.good("export --backup");
    assert!(backup.ends_with(expected), "{backup}");
    node.good("udsp del --idx 2");
    assert_eq!(node.good("udsp show").matches("idx").count(), 3);
    node.good_with(
        "import --del",
        &backup
            .replace("      src: tcp\n      dst: 10.[77-78].0.[1-20]@tcp\n", "")
            .replace("-     idx: 2\n", "")
            .replace("idx: 3", "idx: 2"),
    );
    assert_eq!(node.good("udsp show"), "");
    node.good_with("import", &backup);
    assert_eq!(node.good("export --backup"), backup);
    assert_eq!(node.good_with("import --dry-run", &backup), "");
    node.good("udsp del --all");
    assert_eq!(node.good("udsp show"), "");
}

#[test]
fn what_makes_no_sense_of_selection_policies_is_refused() {
    let node = configured();
    for (words, errno, said) in [
        ("udsp add --src bogus --priority 2", -22, "failed to parse src parameter"),
        ("udsp add --dst 10.0.0.300@tcp", -22, "failed to parse dst parameter"),
        ("udsp add --dst tcp --rte 10.0.0@tcp", -22, "failed to parse rte parameter"),
        ("udsp add --src tcp --priority -1", -34, "--priority"),
        ("udsp add --src tcp --priority x", -22, "--priority"),
        ("udsp add --src tcp --idx -2", -34, "--idx"),
        ("udsp add", -22, "src, dst"),
        ("udsp add --rte tcp", -22, "src, dst"),
        ("udsp add --src tcp --dst tcp --priority 1", -22, "two patterns has none"),
        ("udsp del", -22, "--idx, or --all"),
        ("udsp del --idx 1 --all", -22, "goes not with"),
        ("udsp del --idx 0", -2, "no selection policy 0"),
        ("udsp del --idx -2", -34, "--idx"),
    ] {
        node.bad(words, 234, &[&format!("errno: {errno}\n"), said]);
    }
    node.good("udsp add --src tcp");
    node.bad("udsp add --src tcp", 114, &["add:\n-     udsp:", "errno: 114"]);
}

#[test]
fn peers_are_discovered() {
    let node = configured();
    assert!(node.good("ping 10.77.0.12@tcp").contains("Multi-Rail: false"));
    let expected = "\
discover:
-     primary nid: 10.77.0.12@tcp
      Multi-Rail: true
      peer_ni:
      -     nid: 10.77.0.12@tcp
      -     nid: 10.78.0.12@tcp
";
    assert_eq!(node.good("discover 10.78.0.12@tcp"), expected);
    assert_eq!(node.good("discover --force 10.77.0.12@tcp"), expected);
    assert!(node.good("peer show -v 3").contains(&format!("peer state: {}", 273 | 1 << 13)));
    assert_eq!(node.good_with("import --exec", "discover:\n  nids:\n    0: 10.78.0.12@tcp\n"), expected);
    let ran = node.run("discover 10.77.0.[12,99]@tcp");
    let failed = "manage:\n-     discover:\n            errno: -113\n            descr: \"failed to discover 10.77.0.99@tcp: No route";
    assert!(ran.status == 255 && ran.stdout.starts_with(expected) && ran.stdout.contains(failed), "{ran:?}");
    node.bad("discover 10.77.0.12@foo", 234, &["manage:\n-     discover:", "errno: -22"]);
    assert_eq!(node.run("discover").status, 2);
}

#[test]
fn paths_are_explained() {
    let node = configured();
    let expected = "\
explain:
-     nid: 10.78.0.12@tcp
      primary nid: 10.77.0.12@tcp
      Multi-Rail: false
      shards: \"[0,1]\"
      from: 10.77.0.11@tcp
      to: 10.77.0.12@tcp
      carrier: socket, carrier is socket
      steps:
      -     choose: peer ni
            candidates:
            -     peer ni: 10.77.0.12@tcp
                  chosen: true
                  values:
                        answers: 1
                        peer priority: -1
            -     peer ni: 10.78.0.12@tcp
                  chosen: false
                  lost by: answers
                  values:
                        answers: 0
                        peer priority: -1
";
    assert_eq!(node.good("explain 10.78.0.12@tcp"), expected);
    assert_eq!(node.good("cpt-of-nid 10.0.0.[1-2]@tcp").matches("cpt: 1").count(), 2);
    assert!(node.good("explain 10.78.0.12@tcp --json").starts_with("{\"explain\":"));
}

#[test]
fn a_document_makes_peers_and_policies_and_takes_them_back() {
    let node = Node::start(Model::configured(2));
    let before = node.good("export --backup");
    let document = "\
peer:
    - primary nid: 10.9.0.1@tcp
      peer ni:
        - nid: 10.9.0.1@tcp
        - nid: 10.9.[1-2].1@tcp
    - primary nid: 10.9.0.2@tcp
      Multi-Rail: False
udsp:
    - src: tcp
      action:
          priority: 1
    - idx: 0
      src: tcp1
      dst: tcp*
numa:
    range: 20
";
    let planned = "\
+ peer 10.9.0.1@tcp: 10.9.1.1@tcp, 10.9.2.1@tcp
+ peer 10.9.0.2@tcp, not Multi-Rail
+ udsp: src tcp, priority 1
+ udsp 0: src tcp1, dst tcp*
~ global numa_range: 0 -> 20
";
    assert_eq!(node.good_with("import --dry-run", document), planned);
    assert_eq!(node.good("export --backup"), before);
    node.good_with("import", document);
    assert_eq!(node.good_with("import --dry-run", document), "", "what is so already is left alone");
    let backup = node.good("export --backup");
    let gone = "\
- peer 10.9.0.1@tcp: all of it
- peer 10.9.0.2@tcp: all of it
- udsp 1: src tcp, priority 1
- udsp 0: src tcp1, dst tcp*
~ global numa_range: 20 -> 0
";
    let planned = node.good_with("import --del --dry-run", &backup);
    assert!(planned.starts_with(gone.split_once("- udsp").unwrap().0), "{planned}");
    assert!(gone.lines().all(|line| planned.contains(line)), "{planned}");
    node.good_with("import --del", &backup);
    assert_eq!(node.good("export --backup"), before);
    node.bad_with("import", "peer:\n- primary nid: 10.9.0.1@tcp\n  Multi-Rail: Foobar\n", 234, &["line 3"]);
    assert_eq!(node.good("export --backup"), before);
}

#[test]
fn lists_of_nids_are_told_without_a_daemon() {
    let node = Node::start(Model::new(1));
    let list = "10.0.[1-9/2].*@tcp 2001:db8::/32@tcp *@xdp1";
    let told = format!("nidlist parsed to: {list}\n");
    assert_eq!(node.good(&format!("debug nidlist '{list}'")), told);
    for (nid, matches) in [("10.0.3.4@tcp", "matches"), ("10.0.4.4@tcp", "does not match")] {
        let expected = format!("{told}{nid} {matches} nidlist {list}\n");
        assert_eq!(node.good(&format!("debug nidlist '{list}' {nid}")), expected);
    }
    for words in ["debug nidlist tcp", "debug nidlist *@tcp nonsense@x", "debug nidlist 10.0.[1-9.1@tcp"] {
        node.bad(words, 234, &["debug:\n-     nidlist:", "errno: -22"]);
    }
    assert_eq!(node.run("debug nidlist").status, 2);
}

#[test]
fn the_older_forms_of_policies_stand_for_todays() {
    let node = configured();
    node.good("selection net add --net tcp[1-3] --priority 2");
    node.good("selection nid add --nid 10.77.0.[11-12]@tcp --priority 1");
    node.good("selection peer add --local 10.77.0.*@tcp --remote 10.78.0.*@tcp --priority 4");
    let shown = "\
udsp:
-     idx: 0
      src: tcp[1-3]
      action:
            priority: 2
      selection: 1
-     idx: 1
      src: 10.77.0.[11-12]@tcp
      action:
            priority: 1
      selection: 2
-     idx: 2
      dst: 10.77.0.[11-12]@tcp
      action:
            priority: 1
      selection: 2
-     idx: 3
      src: 10.77.0.*@tcp
      dst: 10.78.0.*@tcp
      action:
            priority: 4
      selection: 3
";
    assert_eq!(node.good("udsp show"), shown);
    let nid = "selection:\n-     type: nid\n      nid: 10.77.0.[11-12]@tcp\n      priority: 1\n      id: 2\n";
    assert_eq!(node.good("selection nid show"), nid);
    assert_eq!(node.good("selection nid show --nid 10.77.0.[11-12]@tcp"), nid);
    assert_eq!(node.good("selection nid show --id 2"), nid);
    assert_eq!(node.good("selection nid show --nid 10.77.0.11@tcp"), "");
    assert_eq!(node.good("selection nid show --id 1"), "");
    let all = "\
selection:
-     type: net
      net: tcp[1-3]
      priority: 2
      id: 1
-     type: nid
      nid: 10.77.0.[11-12]@tcp
      priority: 1
      id: 2
-     type: peer
      local: 10.77.0.*@tcp
      remote: 10.78.0.*@tcp
      priority: 4
      id: 3
";
    assert_eq!(node.good_with("import --show", "selection:\n"), all);
    assert!(node.good_with("import", all).is_empty(), "what is so already is no error");
    // As `udsp` they come back with their numbers.
    node.good("udsp del --all");
    node.good_with("import", shown);
    assert_eq!(
        node.good("udsp show") + &node.good_with("import --show", "selection:\n"),
        shown.to_owned() + all
    );
    node.good_with("import --del", all);
    assert_eq!(node.good("udsp show"), "");
    // Anew they get new ones: none is given twice.
    node.good_with("import", all);
    assert_eq!(node.good("selection net show").matches("id: 4").count(), 1);
    node.good("selection nid del --nid 10.77.0.[11-12]@tcp");
    node.good("selection peer del --id 6");
    node.good("selection net del --net tcp[1-3] --id 4");
    assert_eq!(node.good("udsp show"), "");
}

#[test]
fn what_makes_no_sense_of_older_policies_is_refused() {
    let node = configured();
    node.good("selection net add --net tcp --priority 2");
    for (words, errno, said) in [
        ("selection net add --net tcp --priority 3", -17, "selection"),
        ("selection net add --net tcp1", -22, "--priority"),
        ("selection net add --priority 1", -22, "missing mandatory"),
        ("selection net add --net 10.0.0.1@tcp --priority 1", -22, "nets such as"),
        ("selection nid add --nid tcp --priority 1", -22, "nids such as"),
        ("selection peer add --local 10.0.0.1@tcp", -22, "--local and --remote"),
        ("selection net del", -22, "--id"),
        ("selection net del --id 0", -34, "--id"),
        ("selection net del --net tcp1", -2, "no such selection"),
        ("selection net del --id 4", -2, "no such selection"),
        ("selection nid del --id 1", -22, "the policy 1 is one of selection net"),
    ] {
        node.bad(words, 234, &[&format!("errno: {errno}\n"), said]);
    }
    // Options of other kinds and operations.
    for words in [
        "nid add --net tcp --priority 1",
        "net add --net tcp1 --priority 1 --id 7",
        "net del --net tcp --priority 2",
        "net show --local 10.0.0.1@tcp",
    ] {
        node.bad(&format!("selection {words}"), 2, &["unexpected argument"]);
    }
    let help = node.good("selection net add --help");
    assert!(help.contains("--net") && help.contains("--priority"), "{help}");
    for other in ["--nid", "--local", "--remote", "--id"] {
        assert!(!help.contains(other), "{help}");
    }
    for (item, said) in [
        ("type: net", "without 'net'"),
        ("{type: net, net: tcp1}", "without 'priority'"),
        ("{type: bogus, net: tcp}", "one of net, nid, peer"),
        ("{type: nid, nid: 10.0.0.1@tcp, priority: 0, id: -3}", "id"),
    ] {
        node.bad_with("import", &format!("selection:\n- {item}\n"), 234, &["line 2", said]);
    }
    node.bad_with("import", "udsp:\n- {dst: tcp, rte: 10.0.0.1@tcp, selection: 3}\n", 234, &["no gateways"]);
    node.good_with("import --del", "selection:\n- id: 1\n");
    assert_eq!(node.good("selection net show"), "");
}

/// The block `peers` names all that a peer is to have.
#[test]
fn the_older_form_of_peers_is_their_whole_set() {
    let node = Node::start(Model::configured(1));
    let document = |nids: &str| format!("peers:\n- nids: [{nids}]\n");
    let nids = |nid: &str| {
        let shown = node.good(&format!("peer show --nid {nid}"));
        shown
            .lines()
            .filter_map(|line| line.split_once("-     nid: "))
            .map(|(_, nid)| nid.to_owned())
            .collect::<Vec<_>>()
    };
    let [a, b, c, d] = ["10.0.0.1@tcp", "10.0.0.2@tcp", "10.0.0.3@tcp", "10.0.0.4@tcp"];
    node.good_with("import", "peers:\n    - nids:\n          0: 10.0.0.1@tcp\n          1: 10.0.0.2@tcp\n");
    assert_eq!(nids(b), [a, b]);
    assert_eq!(node.good_with("import --dry-run", &document(&format!("{a}, {b}"))), "", "it is so");
    node.good_with("import", &document(&format!("{b}, {a}, {c}")));
    assert_eq!(nids(a), [a, b, c], "its primary NID stays");
    node.good_with("import", &document(&format!("{a}, {c}")));
    assert_eq!(nids(a), [a, c]);
    node.good_with("import", &document(&format!("{c}, {d}")));
    assert_eq!(nids(c), [c, d], "without its primary NID it has another one");
    assert_eq!(
        node.good_with("import --show", "peers:\n"),
        "peers:\n-     nids:\n            0: 10.0.0.3@tcp\n            1: 10.0.0.4@tcp\n"
    );
    node.good_with("import --del", &document(c));
    assert_eq!(nids(d), [d]);
    node.bad_with("import --del", &document(c), 234, &["errno: -2"]);
    node.good_with("import --del", &document(d));
    assert_eq!(node.good("peer list"), "");
    node.bad_with("import", "peers:\n- nids: []\n", 234, &["at least one nid"]);
}

#[test]
fn a_document_shows_what_it_names() {
    let node = configured();
    node.good("net add --net tcp --if eth0");
    node.good("net add --net tcp1 --if eth1");
    node.good("udsp add --src tcp");
    node.good("udsp add --dst tcp1");
    let check = |document: &str, words: &str| {
        assert_eq!(node.good_with("import --show", document), node.good(words), "{document}");
    };
    check("net:\n", "net show");
    check("net:\n- net type: tcp\n  detail: 4\n", "net show --net tcp -v 4");
    check("peer:\n- nid: 10.78.0.12@tcp\n  detail: 3\n", "peer show -v 3");
    check("peer: []\n", "peer show");
    check("global:\n", "global show");
    check("udsp:\n", "udsp show");
    check("udsp:\n- idx: 1\n", "udsp show --idx 1");
    check("statistics:\n", "stats show");
    let some = "global:\n      discovery: 1\n      numa_range: 0\n";
    assert_eq!(node.good_with("import --show", "global:\n  discovery:\nnuma:\n  range:\n"), some);
    // What an export has is shown, its pings are not carried out.
    let exported = node.good("export") + "ping:\n  nids:\n    0: 10.77.0.12@tcp\n";
    let shown = node.good_with("import --show", &exported);
    assert!(shown.starts_with(&node.good("net show")) && !shown.contains("ping:"), "{shown}");
    let ran = node.run_with("import --show", "peer:\n- nid: 10.9.9.9@tcp\n  seq_no: 7\nudsp:\n- idx: 0\n");
    assert_eq!(ran.status, 234);
    assert_eq!(ran.stdout, node.good("udsp show --idx 0"), "a failing item stops no other");
    for part in ["show:\n-     import:", "seq_no: 7", "errno: -2", "line 2, column 3: no peer"] {
        assert!(ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
    }
    node.bad_with("import --show", "global:\n  nosuch:\n", 234, &["invalid key 'nosuch'"]);
    assert_eq!(node.good_with("import --show", "route:\n"), "");
    assert_eq!(node.run("import --show --del").status, 2);
}

/// The status and the text are those of LNet's tool.
#[test]
fn a_policy_that_is_there_already_is_told() {
    let node = Node::start(Model::configured(1));
    node.good("udsp add --src tcp1 --dst 10.78.0.12@tcp");
    let expected = "add:\n-     udsp:\n            errno: 114\n            descr: \"cannot add udsp: Operation already in progress\"\n";
    node.bad("udsp add --src tcp1 --dst 10.78.0.12@tcp", 114, &[expected]);
    // Another priority takes the place of the one that is there.
    node.good("udsp add --src tcp1 --priority 1");
    node.good("udsp add --src tcp1 --priority 2");
}

#[test]
fn a_host_may_stand_where_a_nid_does() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["127.0.0.1@tcp"], 273));
    let node = Node::start(model);
    for words in [
        "peer show --nid localhost@tcp",
        "peer show -n localhost",
        "peer set --nid localhost@tcp --health 500",
        "ping localhost@tcp",
        "explain localhost@tcp",
        "cpt-of-nid localhost@tcp",
        "peer add --prim_nid localhost@tcp1 --nid localhost@tcp2",
        "peer del --prim_nid localhost@tcp1",
    ] {
        node.good(words);
    }
    // A rule for an address that no NI has would never match.
    let refused = ["127.0.0.1@tcp", "other hosts reach it"];
    node.bad("fault drop add -s localhost@tcp -d *@tcp --rate 2", 255, &refused);
    let said = "\"no-such-host.invalid\": cannot look the host up";
    let unknown = node.run("peer add --prim_nid no-such-host.invalid@tcp");
    assert!(unknown.status == 234 && unknown.stderr.contains(&said.replace('"', "\\\"")), "{unknown:?}");
}
