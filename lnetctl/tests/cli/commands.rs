//! Commands, their refusals, and their statuses.

use std::time::{Duration, Instant};

use lnet_model::ni::XdpMode;
use lnet_model::records::{
    FramesNi, FramesRecord, LoadClass, LoadKind, LoadRecord, LoadResult, LoadRole, SlotFrames,
};
use xtask::testing::paths;

use crate::model::Model;
use crate::model_records::peer;
use crate::run::Node;

pub(crate) fn configured() -> Node {
    Node::start(Model::configured(2))
}

/// The value of the first key of this name.
fn value(document: &str, key: &str) -> Option<String> {
    paths(document).into_iter().find(|(path, _)| path.rsplit('/').next() == Some(key)).map(|(_, value)| value)
}

#[test]
fn a_node_is_configured_and_unconfigured() {
    let node = Node::start(Model::new(1));
    node.bad(
        "net show",
        234,
        &["show:\n-     net:\n            errno: -100\n            descr: \"the node is not"],
    );
    node.bad("net add --net tcp --if eth0", 234, &["add:", "errno: -108"]);
    for command in ["global show", "stats show", "peer show", "peer list", "export", "ping 10.0.0.1@tcp"] {
        assert_ne!(node.run(command).status, 0, "{command}");
    }
    assert_eq!(node.good("lnet configure"), "");
    assert_eq!(node.good("lnet configure"), "");
    assert_eq!(node.good("net show").lines().count(), 5);
    assert_eq!(node.good("set retry_count 5"), "");
    assert_eq!(node.good("lnet unconfigure"), "");
    assert_eq!(node.good("lnet configure"), "");
    assert_eq!(value(&node.good("global show"), "retry_count").unwrap(), "5");
    assert_eq!(node.good("peer show") + &node.good("peer list") + &node.good("fault drop show"), "");
}

#[test]
fn nets_are_added_and_deleted() {
    let node = configured();
    node.bad("net add --net lo --if eth0", 234, &["errno: -19", "not allowed"]);
    node.bad("net add --net foo --if eth0", 234, &["errno: -2", "parse net"]);
    node.bad("net add --net tcp", 234, &["errno: -22", "at least one interface"]);
    node.bad("net add --if eth0", 234, &["errno: -22", "missing mandatory"]);
    node.bad("net add", 234, &["missing mandatory"]);
    node.bad("net add --net tcp --if eth9", 234, &["errno: -100"]);
    node.bad("net add --net o2ib --if eth0", 234, &["errno: -22", "LND type not supported"]);
    node.bad("net add --net tcp --if eth0 --cpt [5]", 234, &["errno: -34", "CPT"]);
    node.bad("net add --net tcp --if eth0 --cpt []", 234, &["errno: -22"]);
    node.bad("net add --net tcp --if eth0 --cpt [1-0]", 234, &["errno: -22"]);
    for wrong in ["128", "foo", "1000000000000000000000000"] {
        let command = format!("net add --net tcp --if eth0 --conns-per-peer {wrong}");
        node.bad(&command, 234, &["--conns-per-peer", "127 is expected"]);
    }
    node.bad("net add --net tcp --if eth0 --tos 300", 234, &["--tos \\\"300\\\"", "-1 to 255"]);
    node.bad("net add --net tcp --if eth0 --tos -2", 234, &["--tos"]);
    node.bad("net add --net tcp --if eth0 --peer-timeout foo", 234, &["--peer-timeout"]);
    node.bad("net add --net tcp --nid 10.77.0.11@tcp", 234, &["--nid"]);
    node.bad("net add --nid 10.77.0.11@foo", 234, &["errno: -22"]);
    node.bad("net add --nid 10.77.0.250@tcp", 234, &["errno: -100"]);
    node.bad("net add --net tcp --if eth0,eth9", 234, &["errno: -100"]);
    assert_eq!(node.good("net show").lines().count(), 5, "a net stays behind");

    node.good("net add --net tcp --if eth1 --peer-credits 16 --credits 0x20 --peer-timeout 0 --peer-buffer-credits 4 \
               --conns_per_peer 3 --tos 104");
    let shown = node.good("net show -v --net tcp");
    let expected =
        [("peer_timeout", "0"), ("peer_credits", "16"), ("credits", "32"), ("peer_buffer_credits", "4")];
    for (key, expected) in
        expected.into_iter().chain([("conns_per_peer", "3"), ("tos", "104"), ("CPT", "\"[0,1]\"")])
    {
        assert_eq!(value(&shown, key).unwrap(), expected, "{key}");
    }
    node.bad("net add --net tcp --if eth0,eth1", 234, &["errno: -17", "cannot add"]);
    node.good("net add --net tcp --if eth0[1]");
    node.good("net add --nid 10.77.0.113@tcp9");
    assert_eq!(node.good("net show --net tcp9,tcp").matches("net type: ").count(), 2);
    let partly = node.run("net show --net tcp,tcp7,tcp8");
    assert!(partly.status == 234 && partly.stdout.matches("net type: ").count() == 1, "{partly:?}");
    assert!(partly.stderr.contains("tcp7 is not") && partly.stderr.contains("tcp8 is not"), "{partly:?}");
    node.bad("net show --net tcp8", 234, &["errno: -3"]);
    node.bad("net show --net foo", 234, &["errno: -2"]);
    node.bad("net del --net tcp9 --if eth7", 234, &["errno: -19"]);
    node.bad("net del --net tcp8", 234, &["errno: -22"]);
    node.bad("net del --net lo", 234, &["errno: -19", "not allowed"]);
    node.bad("net del --if eth0", 234, &["missing mandatory"]);
    node.bad("net del --nid 10.77.0.99@tcp", 234, &["errno: -2"]);
    node.good("net del --nid 10.77.0.113@tcp9");
    node.good("net del --net tcp --if eth0,eth1");
    assert_eq!(node.good("net show").lines().count(), 5);
}

#[test]
fn an_xdp_net_has_its_own_tunables() {
    let node = configured();
    node.good("net add --net xdp --if eth0 --mode socket --port 1988 --queues 2 --checksum off --cpt 1");
    let shown = node.good("net show --net xdp --verbose");
    let expected = "            lnd tunables:
                  timeout: 49
                  lnd: xdp
                  mode: socket
                  port: 1988
                  queues: 2
                  checksum: off
                  zero_copy: auto
                  carrier: auto
                  active mode: socket
                  active queues: 0
                  mtu: 1500
            dev cpt: -1
            CPT: \"[1]\"
";
    assert!(shown.ends_with(expected), "{shown}");
    // A device that is near to one shard alone; what is shown can be read again.
    node.good("net add --net xdp5 --if eth2");
    let shown = node.good("net show --net xdp5 -v");
    let expected = "            numa distance: 21\n            numa distances: \"[10,21]\"\n";
    assert!(shown.ends_with(expected), "{shown}");
    assert_eq!(node.good_with("import --dry-run", &shown), "");
    node.good("net add --net tcp --if eth1 --lnd xdp");
    // Payloads have checksums unless that is said; a document says it as well.
    let said = |net: &str| value(&node.good(&format!("net show --net {net} -v")), "checksum").unwrap();
    assert_eq!(["xdp", "xdp5", "tcp"].map(said), ["off", "on", "on"]);
    for word in ["on", "off"] {
        let document = |net: &str| {
            let ni = format!("interfaces:\n      0: eth1\n    lnd tunables:\n      checksum: {word}\n");
            format!("net:\n- net type: {net}\n  local NI(s):\n  - {ni}")
        };
        let net = if word == "on" { "xdp6" } else { "xdp7" };
        node.good_with("import", &document(net));
        assert_eq!(said(net), word);
    }
    assert_eq!(node.good_with("import --dry-run", &node.good("net show -v")), "");
    let of_tcp = "net:\n- net type: tcp6\n  local NI(s):\n  - interfaces:\n      0: eth1\n    lnd tunables:\n      checksum: off\n";
    node.bad_with("import", of_tcp, 234, &["'checksum' is a tunable of the xdp LND"]);
    node.bad("net add --net xdp8 --if eth1 --checksum maybe", 234, &["one of on, off"]);
    assert!(node.good("net add --help").contains("--checksum <SWITCH>"));
    node.good("net add --net xdp9 --if eth1 --zero-copy on");
    assert_eq!(value(&node.good("net show --net xdp9 -v"), "zero_copy").unwrap(), "on");
    assert!(node.good("export").contains("zero_copy: on"));
    node.bad("net add --net xdp8 --if eth1 --zero-copy maybe", 234, &["one of auto, on, off"]);
    node.good("net set --nid 10.78.0.11@xdp9 --carrier socket");
    assert_eq!(value(&node.good("net show --net xdp9 -v"), "carrier").unwrap(), "socket");
    assert!(node.good("export").contains("carrier: socket"));
    let nothing = node.good_with("import --dry-run", &node.good("net show -v"));
    assert_eq!(nothing, "", "what is shown is what is there");
    node.bad("net set --all --carrier maybe", 234, &["one of auto, rings, socket"]);
    assert_eq!(value(&node.good("net show --net tcp -v"), "lnd").unwrap(), "xdp");
    node.bad("net add --net xdp --if eth1 --mode natve", 234, &["auto, native, generic, socket"]);
    node.bad("net add --net xdp --if eth1 --port 0", 234, &["1 to 65535"]);
}

#[test]
fn what_nis_have_is_set() {
    let node = configured();
    node.good("net add --net tcp --if eth0,eth1");
    node.good("net set --nid 10.77.0.11@tcp --health 0");
    assert_eq!(node.good("net show --net tcp").matches("status: down").count(), 1);
    node.good("net set --all --health 1000 --conns-per-peer 4");
    assert_eq!(node.good("net show --net tcp -v").matches("conns_per_peer: 4").count(), 2);
    node.good("net set --net tcp --lnd-timeout 20");
    assert_eq!(value(&node.good("net show --net tcp -v"), "timeout").unwrap(), "20");
    node.good("net set --net tcp --lnd-timeout 0");
    assert_eq!(value(&node.good("net show --net tcp -v"), "timeout").unwrap(), "49");
    node.good("net set --nid 10.77.0.11@tcp --conns-per-peer -1");
    node.bad("net set --nid 10.77.0.11@tcp --all --health 10", 234, &["errno: -22"]);
    node.bad("net set --nid 10.99.0.1@tcp --health 10", 234, &["errno: -2"]);
    node.bad("net set --health 1001", 234, &["errno: -22", "0 to 1000"]);
    node.bad("peer set --all --health 1001", 234, &["errno: -22", "0 to 1000"]);
    node.bad("net set --health foo", 234, &["errno: -22"]);
    node.bad("net set --conns-per-peer 128", 234, &["127"]);
    node.bad("net set --lnd-timeout 20", 234, &["without --net"]);
    node.bad("net set --net tcp --lnd-timeout -1", 234, &["--lnd-timeout"]);
    node.bad("net set --net foo --lnd-timeout 1", 234, &["foo"]);
    node.bad("net set", 234, &["nothing to set"]);
}

#[test]
fn options_are_taken_as_scripts_write_them() {
    let node = configured();
    node.good("net add --net tcp --if eth0");
    let lines = |command: &str| node.good(command).lines().count();
    let (zero, one, four) =
        (lines("net show --net tcp"), lines("net show --net tcp -v"), lines("net show --net tcp -v 4"));
    assert!(zero < one && one < four);
    for (words, expected) in [
        ("-v 0", zero),
        ("--verbose", one),
        ("-v4", four),
        ("--verbose=4", four),
        ("--verb 9", four),
        ("-v -n tcp", one),
    ] {
        assert_eq!(
            lines(&format!("net show --net tcp {words}").replace("--net tcp -v -n", "-v -n")),
            expected,
            "{words}"
        );
    }
    node.good("net add --net=tcp1 --if=eth0 --peer_cred 4");
    node.good("net del -ntcp1 -i eth0");
    node.good("stats show -v");
    node.good("global show -v 3");
    // A level that is none is refused, and not passed over.
    for command in ["net show", "peer show", "stats show", "global show"] {
        for word in ["-v junk", "-v4x", "--verbose=junk", "-v=-1"] {
            node.bad(
                &format!("{command} {word}"),
                234,
                &["errno: -", "--verbose", "a number from 0 is expected"],
            );
        }
    }
}

#[test]
fn globals_are_set_within_their_ranges() {
    let node = configured();
    node.bad("set foo 1", 255, &["'foo' is not a valid command"]);
    node.bad(
        "set lnd_timeout 5",
        255,
        &["lnd_timeout follows from transaction_timeout and retry_count: set these"],
    );
    node.bad(
        "set discovery foo",
        255,
        &["parser:\n-     set:\n            errno: -1\n", "cannot parse discovery value"],
    );
    for wrong in [
        "retry_count 200",
        "retry_count -1",
        "transaction_timeout 0",
        "transaction_timeout 2",
        "health_sensitivity 1001",
        "router_sensitivity 101",
        "response_tracking 4",
        "response_tracking -1",
        "recovery_limit -1",
        "max_recovery_ping_interval 0",
        "numa_range -1",
    ] {
        let name = wrong.split(' ').next().unwrap();
        node.bad(&format!("set {wrong}"), 234, &[&format!("add:\n-     {name}:\n            errno: -22")]);
    }
    assert_eq!(
        node.good("global show"),
        crate::run::data("global_show.yaml").replace("    ", "      ").trim_end().to_owned()
            + "\n      max_intf: 4096\n"
    );
    for (name, text, expected) in [
        ("discovery", "0", "0"),
        ("discovery", "verify", "verify"),
        ("discovery", "2", "1"),
        ("max_interfaces", "64", "64"),
        ("max_interfaces", "0", "4096"),
        ("max_interfaces", "64", "64"),
        ("max_interfaces", "15", "4096"),
        ("max_interfaces", "64", "64"),
        ("retry_count", "0x3", "3"),
        ("transaction_timeout", "074", "60"),
        ("lnd_timeout", "", "14"),
        ("recovery_interval", "7", "1"),
    ] {
        if !text.is_empty() {
            node.good(&format!("set {name} {text}"));
        }
        assert_eq!(value(&node.good("global show"), name).unwrap(), expected, "{name}");
    }
    assert_eq!(node.run("set").status, 234);
    node.bad("set discovery", 234, &["no value"]);
}

#[test]
fn pings_tell_who_answered_and_who_did_not() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 273));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0");
    let ran = node.run("ping 10.77.0.[11-12]@tcp,10.78.0.12@tcp --so 10.77.0.11");
    let item = "-     primary nid: 10.77.0.12@tcp
      Multi-Rail: true
      peer_ni:
      -     nid: 10.77.0.12@tcp
      -     nid: 10.78.0.12@tcp
";
    let manage = "manage:
-     ping:
            errno: -113
            descr: \"failed to ping 10.77.0.11@tcp: No route to host\"
";
    assert_eq!(
        (ran.stdout, ran.stderr, ran.status),
        (format!("ping:\n{item}{item}{manage}"), String::new(), 255)
    );
    assert_eq!(node.run("ping 10.77.0.99@tcp").stdout.lines().next(), Some("manage:"));
    node.bad("ping 10.77.0.12@tcp foo@", 234, &["manage:\n-     ping:\n            errno: -22"]);
    node.bad("ping --source foo 10.77.0.12@tcp", 234, &["errno: -22"]);
    assert_eq!(node.run("ping").status, 2);
    assert_eq!(node.run("ping --source 10.99.0.1@tcp 10.77.0.12@tcp").status, 255);
    let start = Instant::now();
    let ran = node.run("ping --timeout 1 10.77.0.66@tcp");
    assert!(ran.stdout.contains("errno: -110") && ran.status == 255, "{ran:?}");
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn peers_are_found_by_any_of_their_nids() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 273));
    model.peers.push(peer(&["0@lo"], 0));
    model.peers.push(peer(&["10.77.0.13@tcp", "0@lo"], 0));
    let node = Node::start(model);
    assert_eq!(node.good("peer list"), "peer list:\n-     nid: 10.77.0.12@tcp\n-     nid: 10.77.0.13@tcp\n");
    let shown = node.good("peer show --nid 10.78.0.12@tcp");
    assert!(shown.contains("primary nid: 10.77.0.12@tcp") && !shown.contains("10.77.0.13"), "{shown}");
    assert!(!node.good("peer show -v 4").contains("0@lo"));
    assert!(node.good("peer show -v 1").contains("min_tx_credits: -2\n"));
    let both = node.good("peer show --nid 10.77.0.[11-13]@tcp,10.78.0.12@tcp");
    assert_eq!(both.matches("primary nid: ").count(), 2, "{both}");
    node.bad("peer show --nid 10.99.0.[1-3]@tcp", 234, &["errno: -2", "any of these 3 nids"]);
    node.bad("peer show --nid 10.99.0.1@tcp", 234, &["show:\n-     peer:\n            errno: -2"]);
    node.bad("peer show --nid foo", 234, &["errno: -22"]);
    node.bad("peer show --nid 10.77.0.50@foo", 234, &["errno: -22"]);
    node.bad("peer frob", 255, &["'frob' is not a valid command"]);
}

#[test]
fn counters_are_reset() {
    let mut model = Model::configured(1);
    model.statistics.send_count = u64::MAX;
    let node = Node::start(model);
    assert_eq!(value(&node.good("stats show"), "send_count").unwrap(), u64::MAX.to_string());
    assert_eq!(node.good("stats reset"), "");
    assert_eq!(value(&node.good("stats show"), "send_count").unwrap(), "0");
}

#[test]
fn drop_rules_come_and_go() {
    let node = configured();
    let bad = [
        ("add --source * --dest * --rate 2 --interval 3", 255, "exactly one"),
        ("add --source foo --dest * --rate 2", 234, "foo"),
        ("add --source *@tcp --dest *@tcp", 255, "exactly one"),
        ("add --dest *@tcp --rate 2", 255, "both --source and --dest"),
        ("add --source *@tcp --dest *@tcp --rate 2 --message FOO", 255, "unknown message type"),
        ("add --source *@tcp --dest *@tcp --rate 2 --portal 64", 234, "0 to 63"),
        (
            "add --source *@tcp --dest *@tcp --rate 2 --portal 3 --message ACK",
            255,
            "portals go with PUT or GET",
        ),
        ("add --source *@tcp --dest *@tcp --rate 2 --health_error foo", 255, "local_interrupt"),
        ("add --source *@tcp --dest *@tcp --rate 2 --random", 255, "interval"),
        ("del --source *@tcp --dest 10.77.0.99@tcp", 234, "errno: -2"),
        ("del --source *@tcp", 255, "both"),
        ("del --all --source *@tcp --dest *@tcp", 255, "--all"),
    ];
    for (words, status, expected) in bad {
        node.bad(&format!("fault drop {words}"), status, &[expected]);
    }
    node.good("fault drop add --source *@tcp --dest 10.77.0.13@tcp --rate 2 --message get --health_error remote_timeout");
    node.good("fault drop add -s 10.77.0.11@tcp -d * -i 3 --random --portal 50 --portal 0 -o 10.77.0.11@tcp");
    let expected = "fault:
-     rule_type: drop
      fa_src: 10.77.0.11@tcp
      fa_dst: <?>
      fa_ptl_mask: 1125899906842625
      fa_msg_mask: 15
      da_rate: 0
      da_interval: 3
      ds_dropped: 0
      fs_count: 0
      fs_put: 0
      fs_ack: 0
      fs_get: 0
      fs_reply: 0
      fa_local_nid: 10.77.0.11@tcp
      da_random: true
-     rule_type: drop
      fa_src: 255.255.255.255@tcp
      fa_dst: 10.77.0.13@tcp
      fa_ptl_mask: 0
      fa_msg_mask: 4
      da_rate: 2
      da_interval: 0
      ds_dropped: 0
      fs_count: 0
      fs_put: 0
      fs_ack: 0
      fs_get: 0
      fs_reply: 0
      da_health_error:
      -     remote_timeout
";
    assert_eq!(node.good("fault drop show"), expected);
    assert_eq!(node.good("fault drop reset"), "");
    node.good("fault drop del --source *@tcp --dest 10.77.0.13@tcp");
    node.good("fault drop del --all");
    assert_eq!(node.good("fault drop show"), "");
    node.bad("fault show", 255, &["'show' is not a valid command"]);
}

#[test]
fn steering_policies_are_set_and_shown() {
    let node = configured();
    assert_eq!(node.good("steering show"), "");
    node.good("steering set --portal 4 --policy match_bits --bits 1 --table 0,1");
    node.good("steering set --portal 8-9 --policy match-bits --shift 3 --bits 8");
    node.good("steering set --portal 50 --policy rotor");
    node.good("steering set --portal 51 --policy pin --shard 1");
    node.good("steering set --portal 52 --policy initiator");
    node.good("steering set --portal 9 --policy pin --shard 0");
    let expected = "steering:
-     portal: 4
      policy: match_bits
      shift: 0
      bits: 1
      table: \"[0,1]\"
-     portal: 8
      policy: match_bits
      shift: 3
      bits: 8
-     portal: 50
      policy: rotor
-     portal: 51
      policy: pin
      shard: 1
-     portal: 52
      policy: initiator
";
    assert_eq!(node.good("steering show"), expected);
    for wrong in [
        "--portal 64 --policy rotor",
        "--portal 4 --policy frob",
        "--portal 4 --policy pin",
        "--portal 4 --policy match_bits",
        "--portal 4 --policy rotor --shard 1",
        "--portal 4 --policy match_bits --bits 2 --table 0,1",
        "--portal 4 --policy match_bits --bits 4 --shift 62",
        "--portal 4 --policy pin --shard 64",
    ] {
        node.bad(&format!("steering set {wrong}"), 234, &["set:\n-     steering:\n"]);
    }
}

#[test]
fn captures_have_a_file_and_an_end() {
    let node = configured();
    let file = node.directory.join("capture.pcapng");
    let name = file.display();
    node.good(&format!("capture start {name} --limit 1M --if eth0"));
    let shown = node.good("capture show");
    assert_eq!(value(&shown, "limit_bytes").unwrap(), "1048576");
    assert_eq!(value(&shown, "running").unwrap(), "true");
    assert_eq!(value(&node.good(&format!("capture stop {name}")), "running").unwrap(), "false");
    node.bad(&format!("capture stop {name}"), 234, &["errno: -2"]);
    node.good(&format!("capture start {name} --limit 2048G"));
    assert_eq!(value(&node.good("capture show"), "failure").unwrap(), "\"No space left: on device\"");
    // A capture that has failed is shown, and its stop is no success.
    let ran = node.run(&format!("capture stop {name}"));
    assert!(ran.status == 1 && ran.stderr.contains("No space left"), "{ran:?}");
    assert_eq!(value(&ran.stdout, "running").unwrap(), "false");
    node.file("capture.pcapng", "precious");
    node.bad(&format!("capture start {name}"), 234, &["errno: -17"]);
    node.bad(&format!("capture start {name} --limit 3"), 234, &["--limit"]);
    assert_eq!(node.good("capture show"), "");
}

#[test]
fn a_load_is_judged_by_the_status() {
    let class = LoadClass { kind: LoadKind::Put, messages: 10, bytes: 640, times: None };
    let result = LoadResult { classes: vec![class], by_shard: vec![1, 9], ..LoadResult::default() };
    let load = |id, result| {
        let (role, is_running) = (LoadRole::Initiator, false);
        LoadRecord { id, role, is_running, messages_done: 10, messages_total: Some(10), result: Some(result) }
    };
    let lost = LoadResult { faults: 1, failures: vec!["1 messages went wrong".to_owned()], ..result.clone() };
    let fewer = LoadResult { classes: Vec::new(), ..result.clone() };
    let mut model = Model::configured(2);
    model.loads = vec![load(1, result), load(2, lost), load(3, fewer)];
    let node = Node::start(model);

    let sent = node.good("load wait 1 --json");
    assert!(sent.starts_with("[{\"id\":1,\"role\":\"initiator\",") && sent.ends_with("}]\n"), "{sent}");
    let sent = node.file("sent.json", &sent);
    assert!(node.good("load wait 1 --share-min 10").contains("10 messages, 640 bytes"));
    assert!(node.good("load show").contains("faults: 1"));
    let plot = node.directory.join("plot.svg");
    node.good(&format!("load stop 1 --sent {} --plot {}", sent.display(), plot.display()));
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg"));
    // What was measured is shown even where it is not as it should be.
    let check = |words: &str, expected: &str| {
        let ran = node.run(words);
        assert!(ran.status == 1 && ran.stdout.contains("verified"), "{words}: {ran:?}");
        assert!(ran.stderr.contains("errno: -5") && ran.stderr.contains(expected), "{words}: {ran:?}");
    };
    check("load wait 2", "1 messages went wrong");
    check("load stop 2", "1 messages went wrong");
    check("load wait 1 --share-min 11", "shard 0 took 1 of 10 messages, under 11 %");
    let differs = "the initiator counts 10 of 640 bytes, the target 0 of 0 bytes";
    check(&format!("load stop 3 --sent {}", sent.display()), differs);
    node.bad("load wait 4", 234, &["errno: -2", "there is no load 4"]);
    node.bad("load wait 1 --share-min 101", 234, &["a number from 0 to 100 is expected"]);
    node.bad("load stop 1 --sent none.json", 234, &["none.json", "No such file"]);
    let other = node.file("other.json", "{}");
    node.bad(
        &format!("load stop 1 --sent {}", other.display()),
        234,
        &["`load wait --json` prints is expected"],
    );
    node.bad("load start target", 234, &["errno: -95", "start load: this node has no such service"]);
}

#[test]
fn frames_that_are_not_accounted_for_fail_the_check() {
    let mut model = Model::configured(2);
    model.frames = FramesRecord {
        nis: vec![FramesNi { nid: "10.0.0.1@xdp".parse().unwrap(), mode: XdpMode::Native }],
        slots: vec![SlotFrames { queue: 0, shard: 1, frames: 7 }],
        handled: [("taken".to_owned(), 7)].into(),
        ..FramesRecord::default()
    };
    let node = Node::start(model.clone());
    assert!(node.good("frames check").contains("taken: 7"));
    assert!(node.run("frames check --share-min 1").stderr.contains("shard 0 took 0 of 7 frames"));
    model.frames.alarms = vec!["10.0.0.1@xdp: 4 receive queues, sockets on 2".to_owned()];
    assert!(Node::start(model.clone()).run("frames check").stderr.contains("sockets on 2"));
    model.frames.misdirected = 1;
    let ran = Node::start(model).run("frames check --json");
    assert!(ran.status == 1 && ran.stdout.starts_with('{'), "{ran:?}");
    assert!(ran.stderr.contains("1 frames arrived at the wrong shard"), "{ran:?}");
}

/// Parameters of LNet's kernel module, which a node has also while it is not configured.
#[test]
fn parameters_are_shown_and_set_by_name() {
    let node = Node::start(Model::new(1));
    let all = "param:\n      alive_router_check_interval: 60\n      router_ping_timeout: 50\n      \
               check_routers_before_use: 0\n      avoid_asym_router_failure: 1\n      peer_buffer_credits: 0\n";
    assert_eq!(node.good("param get"), all);
    node.good("param set check_routers_before_use 1");
    node.good("lnet configure");
    node.good("param set alive_router_check_interval 0");
    assert_eq!(
        node.good("param get alive_router_check_interval"),
        "param:\n      alive_router_check_interval: 0\n"
    );
    assert_eq!(
        node.good("param get check_routers_before_use"),
        "param:\n      check_routers_before_use: 1\n"
    );
    for (wrong, expected) in [
        ("set router_ping_timeout 0", "1 to 2147483647 is expected"),
        ("set router_ping_timeout x", "1 to 2147483647 is expected"),
        ("set avoid_asym_router_failure 2", "0 to 1 is expected"),
        ("set avoid_asym_router_failure -1", "0 to 1 is expected"),
        ("set live_router_check_interval 1", "peer_buffer_credits is expected"),
    ] {
        node.bad(&format!("param {wrong}"), 234, &["add:\n-     param:\n            errno: -22", expected]);
    }
    node.bad("param get nothing", 234, &["show:\n-     param:\n            errno: -22"]);
}
