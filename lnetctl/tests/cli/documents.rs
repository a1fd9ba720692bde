//! Import and export: all or nothing, and back to where one was.

use std::process::Command;

use lnet_control::document::{self, Mode};
use lnet_model::fault::{DelaySpec, DropRule, Filter, HealthError, MessageTypes};
use lnet_model::lnd::NiOption;
use lnet_model::ni::{Lnd, NiOptions, NiSpec};
use lnet_model::peer::PeerSpec;
use lnet_model::request::Change;
use lnet_model::steering::{PortalPolicy, SteeringPolicy};
use lnet_model::udsp::{Selection, SelectionKind, UdspRule};
use lnet_wire::{Net, NetType, Nid};
use proptest::prelude::*;
use serde_json::Value;

use crate::model::Model;
use crate::model_records::peer;
use crate::run::{Node, ran};

const DOCUMENT: &str = "\
net:
    - net type: xdp
      local NI(s):
        - interfaces:
              0: eth0
          tunables:
              peer_timeout: 100
              peer_credits: 16
              credits: 128
          lnd tunables:
              mode: socket
              port: 1988
        - interfaces:
              0: eth1
          CPT: \"[1]\"
global:
    retry_count: 3
    transaction_timeout: 60
steering:
    - portal: 4
      policy: rotor
fault:
    - rule_type: drop
      fa_src: '*'
      fa_dst: '*@xdp'
      da_interval: 2
";

#[test]
fn a_backup_fits_a_node_with_another_number_of_shards() {
    let many = Node::start(Model::configured(2));
    many.good("net add --net xdp --if eth0");
    let backup = many.good("export --backup");
    let one = Node::start(Model::configured(1));
    one.good_with("import", &backup);
    assert_eq!(one.good("export --backup"), backup);
    // What is restricted stays so.
    many.good("net add --net xdp --if eth1[1]");
    let restricted = many.good("export --backup");
    assert!(restricted.contains("CPT: \"[1]\""), "{restricted}");
    let refused = "the CPTs (shards) 0 to 0";
    one.bad_with("import", &restricted, 234, &["errno: -34", "invalid CPT value 1", refused]);
    // All of them are all, in whichever order.
    many.good("net add --net xdp --if eth2[1,0]");
    assert_eq!(many.good("net show --net xdp -v").matches("CPT: \"[0,1]\"").count(), 2);
    assert_eq!(many.good("export --backup").matches("CPT").count(), 1);
    let again = "net:\n- net type: xdp\n  local NI(s):\n  - interfaces:\n      0: eth2\n    CPT: '[1,0]'\n";
    assert_eq!(many.good_with("import --dry-run", again), "");
}

#[test]
fn what_is_shown_is_shown_as_json_with_the_same_keys() {
    let mut model = Model::configured(2);
    model.peers.push(peer(&["10.77.0.12@tcp"], 0));
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0");
    node.good("fault drop add -s * -d *@tcp --rate 2 --health_error local_error");
    node.good("steering set --portal 4 --policy match_bits --bits 1 --table 0,1");
    node.good("udsp add --src tcp1 --priority 3");
    node.good("selection net add --net tcp2 --priority 2");
    node.good("selection nid add --nid 10.77.0.*@tcp --priority 1");
    node.good("selection peer add --local 10.77.0.*@tcp --remote 10.78.0.*@tcp");
    node.good("net set --nid 10.77.0.11@tcp --health 700");
    node.good("peer set --nid 10.77.0.12@tcp --health 600");
    for command in [
        "net show -v 4",
        "peer show -v 4",
        "peer list",
        "stats show",
        "global show",
        "fault drop show",
        "steering show",
        "capture show",
        "export",
        "ping 10.77.0.12@tcp",
        "discover 10.77.0.12@tcp",
        "explain 10.77.0.12@tcp",
        "udsp show",
        "udsp show --idx 1",
        "selection net show",
        "selection nid show",
        "selection peer show",
        "debug recovery --local --peer",
        "cpt-of-nid 10.0.0.[1-2]@tcp",
    ] {
        let json = node.good(&format!("{command} --json"));
        assert_eq!(json.lines().count(), 1, "{command}: {json}");
        let Value::Object(document) = serde_json::from_str(&json).unwrap() else { panic!("{json}") };
        let shown = node.good(command);
        assert_eq!(document::Yaml(&document).to_string(), shown, "{command}");
        assert!(shown.contains(": ") || command == "capture show", "{command} shows nothing");
    }
    // What names blocks to be shown or carried out tells them as the commands do.
    for (import, block, command) in [
        ("import --show", "udsp:\n", "udsp show"),
        ("import --show", "net:\n", "net show"),
        ("import --exec", "ping:\n  nids:\n    0: 10.77.0.12@tcp\n", "ping 10.77.0.12@tcp"),
    ] {
        let json = node.good_with(&format!("{import} --json"), block);
        assert_eq!(json, node.good(&format!("{command} --json")), "{import} of {block}");
    }
    // What is no YAML has keys of its own.
    let list = "debug nidlist 10.0.[1-9].*@tcp 10.0.3.4@tcp --json";
    let told = "{\"nidlist\":\"10.0.[1-9].*@tcp\",\"nid\":\"10.0.3.4@tcp\",\"matches\":true}\n";
    assert_eq!(node.good(list), told);
    let planned = node.good_with("import --dry-run --json", "global:\n    retry_count: 3\n");
    assert_eq!(planned, "{\"changes\":[\"~ global retry_count: 2 -> 3\"]}\n");
    node.bad("net show --net frob --json", 234, &["{\"show\":[{\"net\":{\"errno\":-"]);
    node.bad("udsp del --idx 99 --json", 234, &["errno"]);
    assert_eq!(node.good("debug peer --nid 10.77.0.12@tcp --json"), "");
    // JSON is YAML.
    let json = node.good("export --backup --json");
    assert_eq!(node.good_with("import --dry-run", &json), "");
    let ran = node.run("ping 10.99.0.1@tcp 10.77.0.12@tcp --json");
    assert!(ran.status == 255 && ran.stdout.starts_with("{\"ping\":") && ran.stdout.contains("\"manage\""));
}

#[test]
fn a_document_is_carried_out_and_taken_back() {
    let node = Node::start(Model::configured(2));
    let before = node.good("export --backup");
    let planned = node.good_with("import --dry-run", DOCUMENT);
    let expected = "\
+ net xdp: ni on eth0, peer_timeout 100, peer_credits 16, credits 128, mode socket, port 1988
+ net xdp: ni on eth1, CPT [1]
~ global transaction_timeout: 150 -> 60
~ global retry_count: 2 -> 3
~ steering of portal 4: pin 0 -> rotor
+ drop rule: * -> *@xdp
";
    assert_eq!(planned, expected);
    assert_eq!(node.good("export --backup"), before);

    let file = node.file("node.yaml", DOCUMENT);
    assert_eq!(node.good(&format!("import {}", file.display())), "");
    let backup = node.good("export -b");
    assert_eq!(node.good_with("import --dry-run --add", &backup), "", "what is so already is left alone");
    let saved = node.directory.join("backup.yaml");
    assert_eq!(node.good(&format!("export --backup {}", saved.display())), "");
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), backup);

    assert_eq!(node.good_with("import --del", DOCUMENT), "");
    assert_eq!(node.good("net show").lines().count(), 5);
    assert_eq!(node.good("fault drop show") + &node.good("steering show"), "");

    node.good("lnet unconfigure");
    node.good("lnet configure");
    node.good(&format!("import {}", saved.display()));
    assert_eq!(node.good("export --backup"), backup);
}

#[test]
fn half_a_document_that_is_wrong_leaves_no_trace() {
    let mut model = Model::configured(2);
    model.peers.push(peer(&["10.77.0.12@tcp"], 273));
    let node = Node::start(model);
    let before = node.good("export");
    let check = |document: &str, expected: &[&str]| {
        node.bad_with("import", document, 234, expected);
        assert_eq!(node.good("export"), before);
    };
    // The daemon's refusal has the place of the item, and its number.
    check(
        &DOCUMENT.replace("eth1", "eth9"),
        &[
            "add:\n-     import:\n            errno: -100\n",
            "line 14, column 18: net: cannot add an NI on eth9",
        ],
    );
    check(
        "net:\n- net type: tcp\n  interfaces: {0: down0}\n  seq_no: 5\n",
        &["seq_no: 5\n            errno: -100"],
    );
    // What is wrong is all reported.
    let wrong = DOCUMENT
        .replace("retry_count", "retry_cuont")
        .replace("rotor", "rotr")
        .replace("credits: 128", "credits: x");
    check(&wrong, &["did you mean 'retry_count'", "did you mean 'rotor'", "line 9, column 24"]);
    check(
        &format!("{DOCUMENT}ip2nets:\n    - net-spc: tcp7\n"),
        &["line 28, column 7: unknown key 'net-spc' in 'ip2nets'; did you mean 'net-spec'?"],
    );
    check("global:\n  discovery:\n", &["no value"]);
    check("foobar:\n", &["invalid key 'foobar'"]);
    check("net: [\n", &["line 2, column 1: not YAML"]);
    node.bad_with("import /nonexistent.yaml", "", 255, &["/nonexistent.yaml", "errno: -2"]);
    let file = node.file("binary.yaml", "");
    std::fs::write(&file, b"net:\n  \xff\n").unwrap();
    node.bad(&format!("import {}", file.display()), 234, &["line 2"]);
    assert_eq!(node.run_with("import", "").status, 0);
}

#[test]
fn tunables_that_limit_each_other_are_set_in_the_order_that_works() {
    let node = Node::start(Model::configured(1));
    for (retries, timeout) in [(160, 200), (5, 10), (100, 150), (99, 100), (140, 160), (0, 1)] {
        let text = format!("global:\n  retry_count: {retries}\n  transaction_timeout: {timeout}\n");
        node.good_with("import", &text);
        let shown = node.good("global show");
        assert!(shown.contains(&format!("retry_count: {retries}\n")), "{shown}");
        assert!(shown.contains(&format!("transaction_timeout: {timeout}\n")), "{shown}");
    }
    let text = "global:\n  retry_count: 7\n  transaction_timeout: 7\n";
    node.bad_with("import", text, 234, &["less is expected"]);
}

#[test]
fn peers_that_are_known_may_stand_in_a_document() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 273));
    let node = Node::start(model);
    let full = node.good("export");
    assert!(full.contains("peer:"));
    node.good_with("import", &full);
    assert!(!node.good("export --backup").contains("peer:"), "it is found again by traffic");
    node.good_with("import", "peer:\n- primary nid: 10.77.0.12@tcp\n  peer ni:\n  - nid: 10.78.0.12@tcp\n");
}

#[test]
fn a_document_of_pings_is_carried_out() {
    let mut model = Model::configured(1);
    model.peers.push(peer(&["10.77.0.12@tcp"], 0));
    let node = Node::start(model);
    let text = "ping:\n  nids:\n    0: 10.77.0.12@tcp\nnet:\n- net type: frob\n";
    assert_eq!(node.good_with("import --exec", text).lines().next(), Some("ping:"));
    node.bad_with("import", text, 234, &["frob"]);
}

#[test]
fn an_export_of_a_node_that_is_down_says_so_on_stderr() {
    let node = Node::start(Model::new(1));
    node.bad("export", 234, &["errno: -100"]);
}

fn spec() -> impl Strategy<Value = NiSpec> {
    let number = |max: u32| prop::option::of(0..max);
    let tunables =
        (number(300), prop::option::of(1_u32..600), prop::option::of(1_u32..9), prop::option::of(1_u32..600));
    let lnd = (
        any::<bool>(),
        0..4_usize,
        prop::option::of(1_u16..),
        number(64),
        number(128),
        prop::option::of(0_i64..256),
        prop::option::of(0_i64..2),
        prop::option::of(0_i64..3),
        prop::option::of(0_i64..3),
    );
    let place = (any::<bool>(), 0_u16..3, 0..4_usize, any::<bool>(), prop::collection::vec(0_u32..2, 0..3));
    (tunables, lnd, place).prop_map(|(tunables, lnd, place)| {
        let (xdp, mode, port, queues, conns_per_peer, tos, checksum, zero_copy, carrier) = lnd;
        let (is_tcp, number, interface, by_nid, mut cpts) = place;
        cpts.dedup();
        let net = Net::new(if is_tcp { NetType::TCP } else { NetType::XDP }, number);
        let xdp = xdp || !is_tcp;
        let mut options = NiOptions::default();
        let values = if xdp {
            vec![
                (NiOption::Lnd, Some(Lnd::Xdp as i64)),
                (NiOption::Mode, Some(mode as i64)),
                (NiOption::Port, port.map(i64::from)),
                (NiOption::Queues, queues.map(i64::from)),
                (NiOption::Checksum, checksum),
                (NiOption::ZeroCopy, zero_copy),
                (NiOption::Carrier, carrier),
            ]
        } else {
            vec![(NiOption::ConnsPerPeer, conns_per_peer.map(i64::from)), (NiOption::Tos, tos)]
        };
        let (peer_timeout, peer_credits, peer_buffer_credits, credits) = tunables;
        let tunables = [peer_timeout, peer_credits, peer_buffer_credits, credits];
        let of_net = NiOption::ALL.into_iter().zip(tunables.map(|value| value.map(i64::from)));
        of_net.chain(values).for_each(|(option, value)| options.set(option, value));
        let interface = ["eth0", "eth1", "eth2", "down0"][interface];
        let nid = (by_nid && interface == "eth0").then(|| format!("10.77.0.113@{net}").parse().unwrap());
        NiSpec { net, interface: Some(interface.to_owned()), nid, options, cpts }
    })
}

fn rule() -> impl Strategy<Value = DropRule> {
    let nid = prop::sample::select(vec!["<?>", "255.255.255.255@tcp", "10.0.0.1@xdp2", "2001:db8::1@tcp"]);
    let nid = nid.prop_map(|text| text.parse::<Nid>().unwrap());
    let errors =
        prop::collection::vec(prop::sample::select(vec![HealthError::Random, HealthError::LocalError]), 0..3);
    (nid.clone(), nid.clone(), nid, any::<u64>(), 0_u32..16, 1_u32.., any::<[bool; 3]>(), errors).prop_map(
        |(
            source,
            destination,
            local_nid,
            portals,
            messages,
            time,
            [by_rate, random, drop_all],
            health_errors,
        )| {
            let (rate, interval_s) = if by_rate { (time, 0) } else { (0, time) };
            let random = random && !by_rate;
            let messages = MessageTypes::from_bits(messages).unwrap();
            DropRule {
                filter: Filter { source, destination, local_nid, portals, messages },
                rate,
                interval_s,
                random,
                drop_all,
                health_errors,
            }
        },
    )
}

fn policy() -> impl Strategy<Value = PortalPolicy> {
    let policy = prop_oneof![
        (0_u8..64).prop_map(|shard| SteeringPolicy::Pin { shard }),
        Just(SteeringPolicy::Initiator),
        Just(SteeringPolicy::Rotor),
        (0_u8..64, 1_u8..65).prop_map(|(shift, bits)| SteeringPolicy::MatchBits { shift, bits, table: None }),
        (0_u8..60, prop::collection::vec(0_u8..64, 4))
            .prop_map(|(shift, table)| { SteeringPolicy::MatchBits { shift, bits: 2, table: Some(table) } }),
    ];
    (0_u8..64, policy).prop_map(|(portal, policy)| PortalPolicy { portal, policy })
}

fn peer_spec() -> impl Strategy<Value = PeerSpec> {
    let nid = |net: u8, host: u8| format!("10.9.{net}.{host}@tcp{net}").parse().unwrap();
    (0..9_u8, prop::collection::vec(1..4_u8, 0..3), any::<bool>(), any::<bool>()).prop_map(
        move |(host, mut nets, multi_rail, lock_primary)| {
            nets.sort_unstable();
            nets.dedup();
            let nids = nets.into_iter().map(|net| nid(net, host)).collect();
            PeerSpec { primary_nid: nid(0, host), nids, multi_rail, lock_primary }
        },
    )
}

fn udsp() -> impl Strategy<Value = Change> {
    let pattern =
        || prop::sample::select(vec!["tcp", "tcp*", "xdp[1-3/2]", "10.0.[1,3-5].*@tcp", "*@xdp1", "7@gni"]);
    (prop::option::of(0..4_u32), pattern(), pattern(), 0..4_u8, 0..3_u32).prop_map(
        |(index, one, other, kind, priority)| {
            let (one, other) = (Some(one.parse().unwrap()), Some(other.parse().unwrap()));
            let rule = match kind {
                0 => UdspRule::new(one, None, None, Some(priority)),
                1 => UdspRule::new(None, one, None, Some(priority.wrapping_sub(1))),
                2 => UdspRule::new(one, other, None, None),
                _ => UdspRule::new(None, one, other, None),
            };
            Change::AddUdsp { index, rule: rule.checked().unwrap() }
        },
    )
}

fn selection() -> impl Strategy<Value = Change> {
    let net = || prop::sample::select(vec!["tcp", "tcp*", "xdp[1-3/2]"]);
    let nid = || prop::sample::select(vec!["10.0.[1,3-5].*@tcp", "*@xdp1", "7@gni"]);
    (net(), nid(), nid(), 0..3_u8, 0..3_u32).prop_map(|(net, one, other, kind, priority)| {
        let (kind, patterns): (_, &[&str]) = match kind {
            0 => (SelectionKind::Net, &[net]),
            1 => (SelectionKind::Nid, &[one]),
            _ => (SelectionKind::Peer, &[one, other]),
        };
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let priority = (kind != SelectionKind::Peer || priority > 0).then_some(priority);
        Change::AddSelection(Selection::new(kind, patterns, priority).unwrap())
    })
}

fn change() -> impl Strategy<Value = Change> {
    use lnet_wire::Global;
    prop_oneof![
        4 => spec().prop_map(Change::AddNi),
        1 => (0..Global::ALL.len(), 0_u32..200).prop_map(|(global, value)| {
            let global = Global::ALL[global];
            let (low, high) = global.range();
            Change::SetGlobal { global, value: value.clamp(low, high) }
        }),
        1 => rule().prop_map(Change::AddDropRule),
        1 => (rule(), 1_u32..).prop_map(|(rule, latency_s)| {
            let DropRule { filter, rate, interval_s, .. } = rule;
            Change::AddDelayRule(DelaySpec { filter, rate, interval_s, latency_s })
        }),
        1 => policy().prop_map(Change::SetSteering),
        1 => peer_spec().prop_map(Change::AddPeer),
        1 => udsp(),
        1 => selection(),
    ]
}

proptest! {
    /// Whatever a node has come to be, its export makes a new node so.
    #[test]
    fn export_and_import_come_back_to_the_same(changes in prop::collection::vec(change(), 0..20)) {
        let mut first = Model::configured(2);
        for change in changes {
            // What cannot be set is no part of what an export makes anew.
            let settable = |change: &Change| !matches!(change, Change::SetGlobal { global, .. } if !global.is_settable());
            if settable(&change) {
                let _ = first.apply(&[change]);
            }
        }
        for backup in [true, false] {
            let text = document::Yaml(&document::export(&first.state(), backup)).to_string();
            let read = document::parse(&text, Mode::Add)
                .map_err(|errors| TestCaseError::fail(format!("{errors:?}\n{text}")))?;
            let mut second = Model::configured(2);
            let planned = read.plan(&second.state());
            let changes: Vec<_> = planned.into_iter().map(|(_, change)| change).collect();
            second.apply(&changes).map_err(|refusal| TestCaseError::fail(format!("{refusal:?}\n{text}")))?;
            prop_assert_eq!(document::Yaml(&document::export(&second.state(), backup)).to_string(), text.clone());
            // Nothing is to be done on the node that it came from.
            let again = read.plan(&first.state());
            let changes: Vec<_> = again.into_iter().map(|(_, change)| change).collect();
            let outcomes = first.clone().apply(&changes).unwrap();
            prop_assert!(document::diff(&first.state(), &changes, &outcomes).is_empty(), "{}", text);
        }
    }
}

/// A former backup stays where a new one finds no room, and what was not written is told.
#[test]
fn what_is_exported_is_whole_or_told() {
    let node = Node::start(Model::configured(1));
    let path = node.file("backup.yaml", "former\n");
    let limited = |words: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 0; exec \"$0\" {words}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_lnetctl")]).env("LNET_SOCKET", &node.socket);
        ran(&mut command, "")
    };
    let ran = limited(&format!("export --backup {}", path.display()));
    assert!(ran.status == 255 && ran.stderr.contains("File too large"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "former\n");
    let ran = limited(&format!("export --backup > {}", path.display()));
    assert!(ran.status == 255 && ran.stderr.starts_with("lnetctl: stdout: "), "{ran:?}");
    let full = node.run("export --backup /dev/full");
    assert!(full.status == 255 && full.stderr.contains("No space left"), "{full:?}");
    node.good(&format!("export --backup {}", path.display()));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), node.good("export --backup"));
    // No half of a file is left behind.
    let names = std::fs::read_dir(&node.directory).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with(".lnet-")));
    let ran = node.run_with("import", " \n");
    assert!(ran.status == 0 && ran.stderr.contains("standard input is empty"), "{ran:?}");
    let ran = node.run_with("import", "# comments alone\n---\n");
    assert!(ran.status == 0 && ran.stderr.contains("standard input is empty"), "{ran:?}");
}

/// A value of megabytes is shown shortened, and nothing of a document acts on a terminal.
#[test]
fn foreign_text_is_shown_short_and_harmless() {
    let node = Node::start(Model::configured(1));
    let long = "\\e[2J".repeat(300_000);
    for document in [
        format!("global:\n    retry_count: \"{long}\"\n"),
        format!("global:\n    \"{long}\": 1\n"),
        format!("\"{long}\": 1\n"),
        format!("net:\n- net type: \"{long}\"\n"),
        format!("net:\n- net type: tcp\n  \"{long}\": 1\n"),
        format!("udsp:\n- src: \"{long}\"\n"),
        format!("peer:\n- primary nid: \"{long}\"\n  \"{long}\": 1\n  \"{long}\": 2\n"),
        format!("ping:\n  nids:\n    0: \"{long}\"\n"),
        format!("\"{long}\""),
    ] {
        for words in ["import", "import --exec", "import --show"] {
            let ran = node.run_with(words, &document);
            assert!(ran.stderr.len() < 2000 && !ran.stderr.contains('\u{1b}'), "{} bytes", ran.stderr.len());
        }
    }
}

/// A plan is made from what the node is when it is carried out.
#[test]
fn what_others_change_meanwhile_is_planned_again() {
    let mut model = Model::configured(1);
    model.interferences = 3;
    let node = Node::start(model);
    node.good_with("import", "global:\n  retry_count: 3\n");
    assert!(node.good("global show").contains("retry_count: 3\n"));
    // Each document says all NIDs of one peer: whichever comes last has it its way.
    let nids = |number: u8| format!("[10.77.0.12@tcp, 10.77.{number}.12@tcp]");
    for round in 0..5 {
        let import = |number: u8| {
            node.good_with("import", &format!("peers:\n- nids: {}\n", nids(number + 2 * round)));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| import(1));
            scope.spawn(|| import(2));
        });
        let shown = node.good("peer show");
        assert_eq!(shown.matches("-     nid: ").count(), 2, "{shown}");
    }
}

/// Blocks and keys of other nodes' exports that ask for nothing here are passed over.
#[test]
fn what_is_off_or_empty_is_taken() {
    let node = Node::start(Model::configured(1));
    let before = node.good("export");
    let pools = "- cpt[0]:\n      tiny: {npages: 0, nbuffers: 0, credits: 0, mincredits: 0}\n";
    for document in [
        "routing: {enable: 0}\n",
        "routing:\n- enable: 0\n",
        &format!("routing:\n{pools}- enable: 0\nbuffers: {{tiny: 1024, small: 8192, large: 512}}\n"),
        "routing:\nbuffers:\nroute:\nip2nets:\n",
        "route: []\nip2nets: []\nrouting: {}\nbuffers: {tiny: 0, small: 0, large: 0}\n",
        "net:\nglobal:\npeer:\nudsp:\nnuma:\nfault:\nsteering:\nselection:\npeers:\nstatistics:\n",
        "global:\n  use_tcp_bonding: 0\n  max_intf: 4096\n",
        "routing: {enable: false}\nbuffers: {tiny: 1024}\n",
        "buffers: {tiny: 1024, small: 8192, large: 512}\n",
        "routing: {enable: no}\n",
        "routing: {enable: Off}\n",
        "routing: [{enable: 0}, {enable: false}]\n",
        "route: ''\nrouting: ''\nip2nets: ''\nbuffers: ''\n",
        "route:\n-\nip2nets: [~]\n",
        "net: ''\npeer:\n-\nudsp: [~]\nglobal: ''\n",
        "numa: {range: ~}\n",
    ] {
        node.good_with("import", document);
        assert_eq!(node.good("export"), before, "{document}");
    }
    let older = "net:\n- net: tcp\n  nid: 10.77.0.11@tcp\n  status: up\n  interfaces: {0: eth0}\n  tcp bonding: 0\n  \
                 dev cpt: 0\n  tunables:\n  lnd tunables:\n  CPT:\n  statistics: {send_count: 1}\n";
    node.good_with("import", older);
    assert!(node.good("net show").contains("10.77.0.11@tcp"));
    node.good_with(
        "import --del",
        &format!("{older}routing: {{enable: 1}}\nbuffers: {{tiny: 9}}\nip2nets:\n- net-spec: tcp\n"),
    );
    for (document, said) in [
        ("net:\n- net type: tcp\n  interfaces: {0: eth0}\n  tcp bonding: 1\n", "'tcp bonding'"),
        ("global:\n  use_tcp_bonding: 1\n", "'use_tcp_bonding'"),
    ] {
        node.bad_with("import", document, 234, &["errno: -95", said]);
    }
    // Keys with nothing behind them are not given.
    let blank = "net:\n- net type: tcp1\n  local NI(s):\n  - interfaces: {0: eth0}\n    nid:\n    tunables: {credits: , \
                 peer_credits: 7}\n    lnd tunables: {conns_per_peer: ~}\npeer:\n- primary nid: 10.77.0.12@tcp1\n  \
                 Multi-Rail:\n  lock_prim: ~\n  tcp bonding: 0\n  status: up\n  peer ni:\n  - nid: 10.77.0.13@tcp1\n    \
                 tcp bonding: 0\n    ni_ref: 4\n    state:\nudsp:\n- src: tcp1\n  dst:\n  rte: ~\n  priority: 0\n";
    node.good_with("import", blank);
    assert!(node.good("net show --net tcp1 -v").contains("peer_credits: 7"));
    assert!(node.good("peer show --nid 10.77.0.13@tcp1").contains("Multi-Rail: true"));
    let bonded = "peer:\n- primary nid: 10.77.0.12@tcp1\n  tcp bonding: 1\n";
    node.bad_with("import", bonded, 234, &["errno: -95", "'tcp bonding'"]);
    node.bad_with("import", "peer:\n- primary nid:\n", 234, &["a peer without 'primary nid'"]);
    node.good("set max_intf 17");
    assert!(node.good("global show").contains("max_interfaces: 17\n"));
    assert_eq!(node.good("fault delay show"), "");
}

/// An item that says a thing twice, differently, is refused with both places.
#[test]
fn contradictions_have_both_places() {
    let node = Node::start(Model::configured(2));
    let of_net = |rest: &str| format!("net:\n- net type: tcp\n  {rest}\n");
    let peer = "- primary nid: 10.77.0.12@tcp\n";
    for (document, expected) in [
        ("routing: [{enable: 0}, {enable: 1}]\n".to_owned(), ["line 1, column 33", "line 1, column 20"]),
        ("routing:\n- enable: off\n- enable: on\n".to_owned(), ["line 3", "line 2"]),
        (
            "steering:\n- portal: 4\n  policy: rotor\n- portal: 4\n  policy: pin\n  shard: 1\n".to_owned(),
            ["line 4, column 3: portal 4 is to be pin to shard 1 here and rotor in", "line 2"],
        ),
        (format!("peer:\n{peer}  lock_prim: true\n{peer}  lock_prim: false\n"), ["line 5", "line 3"]),
        (format!("peer:\n{peer}  peer state: 1048585\n{peer}  lock_prim: false\n"), ["line 5", "line 2"]),
        (format!("peer:\n{peer}  Multi-Rail: true\n{peer}  Multi-Rail: false\n"), ["line 5", "line 3"]),
        (of_net("nid: 10.77.0.11@tcp1"), ["line 3, column 8", "line 2, column 13"]),
        (of_net("net: tcp1"), ["line 3, column 8", "line 2, column 13"]),
        (of_net("local NI(s):\n  - nid: 10.77.0.11@tcp1"), ["line 4, column 10", "line 2, column 13"]),
        (of_net("interfaces:\n  - intf: eth0[0]\n    CPT: '[1]'"), ["[0]", "[1]"]),
        ("udsp:\n- src: tcp\n  priority: 1\n  action: {priority: 2}\n".to_owned(), ["line 4", "line 3"]),
        ("global:\n  numa_range: 1\nnuma:\n  range: 2\n".to_owned(), ["line 4", "line 2"]),
        ("global:\n  max_intf: 17\n  max_interfaces: 18\n".to_owned(), ["line 3", "line 2"]),
        (
            "peer:\n- primary nid: 10.77.0.12@tcp\n  peer state: 1048593\n  lock_prim: false\n".to_owned(),
            ["line 4", "'peer state'"],
        ),
    ] {
        node.bad_with("import", &document, 234, &expected);
    }
    node.good_with(
        "import",
        "net:\n- net type: tcp0\n  net: tcp\n  nid: 10.77.0.11@tcp\n  interfaces: {0: eth0}\n",
    );
    node.good_with("import", "global:\n  numa_range: 3\nnuma:\n  range: 3\n");
    node.good_with("import", &format!("peer:\n{peer}  lock_prim: true\n{peer}  lock_prim: true\n"));
    // Tunables of an NI stand in the place of those of its net.
    node.good_with(
        "import",
        "net:\n- net type: tcp2\n  tunables: {credits: 4}\n  local NI(s):\n  - interfaces: {0: eth0}\n    tunables: \
         {credits: 5}\n",
    );
    assert!(node.good("net show --net tcp2 -v").contains(" credits: 5\n"));
}

/// Tunables of a net are those of its first NI: what others say is told, and what is there is compared.
#[test]
fn tunables_of_a_net_are_those_of_its_first_ni() {
    let node = Node::start(Model::configured(1));
    let ni = |interface: &str, credits: u32| {
        format!("  - interfaces: {{0: {interface}}}\n    tunables: {{peer_credits: {credits}}}\n")
    };
    let document = |first: u32| {
        format!("net:\n- net type: tcp\n  local NI(s):\n{}{}", ni("eth0", first), ni("eth1", 32))
    };
    let told = "peer_credits 32 is passed over: net tcp has 16 from its first NI";
    for _ in 0..2 {
        let ran = node.run_with("import", &document(16));
        assert!(ran.status == 0 && ran.stderr.contains(told) && ran.stderr.contains("line 6"), "{ran:?}");
    }
    node.bad_with("import", &document(64), 234, &["errno: -17", "peer_credits is 16 and not 64"]);
    // A refusal names what prevents the import, and nothing besides.
    let connections = document(16) + "    lnd tunables: {conns_per_peer: 3}\n";
    let refused = node.run_with("import", &connections);
    assert!(refused.status == 234 && refused.stderr.contains("conns_per_peer is"), "{refused:?}");
    assert!(!refused.stderr.contains("peer_credits"), "{refused:?}");
    // `net add` tells as well.
    let added = node.run("net add --net tcp --if eth2 --peer-credits 99 --credits 500");
    for told in
        ["peer_credits 99 is passed over: net tcp has 16 from its first NI", "credits 500 is passed over"]
    {
        assert!(added.status == 0 && added.stderr.contains(told), "{added:?}");
    }
}
