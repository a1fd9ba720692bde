use lnet_model::fault::{DelaySpec, Filter, MessageTypes};
use lnet_model::lnd::NiOption;
use lnet_model::ni::{NiName, NiOptions, NiSpec};
use lnet_model::peer::PeerSpec;
use lnet_model::pool::PoolKind;
use lnet_model::request::PingPurpose;
use lnet_model::route::RouteSpec;
use lnet_model::udsp::UdspInfo;
use lnet_wire::{Global, Nid};
use proptest::prelude::*;

use super::*;

/// The errors of a document, as they are printed.
fn errors(text: &str, mode: Mode) -> Vec<String> {
    parse(text, mode).map_or_else(|errors| errors.iter().map(ToString::to_string).collect(), |_| Vec::new())
}

/// A document to be added must be refused with exactly these errors.
fn refused(text: &str, expected: &[&str]) {
    assert_eq!(errors(text, Mode::Add), expected, "{text}");
}

fn changes(text: &str, mode: Mode) -> Vec<Change> {
    let document = parse(text, mode).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
    let change = |item: Item| match item.action {
        Instruction::Change(change) => *change,
        other => panic!("{other:?}"),
    };
    document.items.into_iter().map(change).collect()
}

#[test]
fn mistakes_are_named_with_their_place() {
    refused("foobar:\n", &["line 1, column 1: invalid key 'foobar'"]);
    refused("nett: []\n", &["line 1, column 1: invalid key 'nett'; did you mean 'net'?"]);
    refused("global:\n  retry_count:\n", &["line 2, column 14: no value specified for key 'retry_count'"]);
    refused(
        "global:\n    discovery: foo\n    retry_cuont: 2\n",
        &[
            "line 2, column 16: invalid value 'foo' for key 'discovery': 0 to 1 or verify is expected",
            "line 3, column 5: invalid key 'retry_cuont' in 'global'; did you mean 'retry_count'?",
        ],
    );
    refused(
        "global:\n  discovery: 2\n",
        &["line 2, column 14: invalid value '2' for key 'discovery': 0 to 1 or verify is expected"],
    );
    refused("net:\n  - local NI(s):\n", &["line 2, column 5: a net without 'net type'"]);
    refused(
        "net:\n- net type: foo\n",
        &[
            "line 2, column 13: 'net type': \"foo\": expected a net whose name is one of lo, tcp, o2ib, gni, gip, ptlf, \
         kfi, efa, bxi3f, xdp",
        ],
    );
    refused(
        "net:\n- net type: xdp\n  local NI(s):\n  - interfaces:\n      0: eth0[1-0]\n    tunables:\n      \
         peer_credts: 3\n      credits: many\n    lnd tunables:\n      mode: natve\n      port: 70000\n",
        &[
            "line 5, column 10: 'interfaces': \"[1-0]\": expected a list of CPTs such as [0,2-4]",
            "line 7, column 7: unknown key 'peer_credts' in 'tunables'; did you mean 'peer_credits'?",
            "line 8, column 16: \"many\" for 'credits': a number from -1 to 2147483647 is expected",
            "line 10, column 13: \"natve\" for 'mode': one of auto, native, generic, socket is expected; did you mean \
             'native'?",
            "line 11, column 13: \"70000\" for 'port': a number from 1 to 65535 is expected",
        ],
    );
    refused("net: 3\n", &["line 1, column 6: \"3\" for 'net': a list is expected"]);
    refused("- net\n", &["line 1, column 1: a list as a document: a map with keys such as net: is expected"]);
    refused(
        "peer:\n- primary nid: 10.0.0.1@tcp\n  Multi-Rail: Foobar\n",
        &["line 3, column 15: \"Foobar\" for 'Multi-Rail': true or false is expected"],
    );
    refused(
        "fault:\n- fa_src: '*'\n  fa_dst: nobody\n  da_rate: 2\n",
        &["line 3, column 11: 'fa_dst': \"nobody\": expected a nid, *@net or *"],
    );
    refused(
        "steering:\n- portal: 64\n  policy: pin\n  shard: 0\n- portal: 4\n  policy: rotor\n  shard: 1\n",
        &[
            "line 2, column 11: \"64\" for 'portal': a number from 0 to 63 is expected",
            "line 7, column 3: 'shard' is for the policy 'pin', not for 'rotor'",
        ],
    );
}

/// Each kind of rule has keys of its own.
#[test]
fn delay_rules_are_read_and_checked() {
    let rule = |further: &str| format!("fault:\n- rule_type: delay\n  fa_src: '*'\n  fa_dst: '*'\n{further}");
    let filter = Filter { messages: MessageTypes::ALL, ..Filter::EVERYTHING };
    let spec = DelaySpec { filter, rate: 2, interval_s: 0, latency_s: 3 };
    let text = rule("  la_rate: 2\n  la_latency: 3\n  ls_delayed: 7\n  fs_put: 7\n");
    assert_eq!(changes(&text, Mode::Add), [Change::AddDelayRule(spec)]);
    let gone = Change::DeleteDelayRules { source: Nid::ANY, destination: Nid::ANY };
    assert_eq!(changes(&text, Mode::Delete), [gone]);
    for (further, expected) in [
        ("  la_latency: 3\n", "line 2, column 3: rate 0 and interval 0: exactly one other than zero"),
        ("  la_rate: 1\n", "line 2, column 3: a latency of 0: seconds other than zero"),
        ("  da_rate: 1\n", "unknown key 'da_rate'"),
    ] {
        let found = errors(&rule(further), Mode::Add);
        assert!(found.iter().any(|found| found.contains(expected)), "{found:?}");
    }
}

#[test]
fn routes_are_read_one_for_each_gateway() {
    let text = "route:\n- net: tcp9\n  gateway: 10.0.0.[1-2]@tcp\n  hop: 2\n- {net: xdp1, gateway: 'fd00::1@tcp', \
                priority: 0x10, state: up, type: single-hop}\n- {net: tcp9, gateway: 10.0.0.1@tcp, hop: 2}\n";
    let spec = |net: &str, gateway: &str| RouteSpec::new(net.parse().unwrap(), gateway.parse().unwrap());
    let [first, second] =
        ["10.0.0.1@tcp", "10.0.0.2@tcp"].map(|nid| RouteSpec { hops: Some(2), ..spec("tcp9", nid) });
    let third = RouteSpec { priority: 16, ..spec("xdp1", "fd00::1@tcp") };
    assert_eq!(changes(text, Mode::Add), [first, second, third].map(Change::AddRoute));
    let delete = |RouteSpec { net, gateway, .. }| Change::DeleteRoute { net, gateway };
    assert_eq!(changes(text, Mode::Delete), [first, second, third, first].map(delete));
    // No document takes more memory than it is worth.
    let many = "- {net: tcp9, gateway: '10.[0-127].0.1@tcp'}\n".repeat(1000);
    let wrong = errors(&format!("route:\n{many}"), Mode::Delete);
    assert!(wrong[0].contains("at most 65536 routes are expected"), "{wrong:?}");
}

/// Gateways are made by their routes, unless their state says that a user made them; wherever they stand.
#[test]
fn gateways_are_no_peers_of_a_user() {
    let peer = |state: &str| {
        format!("peer:\n- primary nid: 10.0.1.1@tcp1\n{state}  peer ni: [{{nid: 10.0.0.2@tcp}}]\n")
    };
    let routes = "route:\n- net: tcp9\n  gateway: 10.0.0.[1-2]@tcp\n";
    for mode in [Mode::Add, Mode::Delete] {
        assert_eq!(changes(&(peer("") + routes), mode).len(), 2);
        assert_eq!(changes(&(peer("  peer state: 9\n") + routes), mode).len(), 3);
        assert_eq!(changes(&(routes.replace("[1-2]", "1") + &peer("")), mode).len(), 2);
    }
}

#[test]
fn routing_is_read_in_both_forms() {
    let set = |on| Change::SetRouting { on };
    let pool = |pool, buffer_count| Change::SetPool { pool, buffer_count };
    let (tiny, large) = (pool(PoolKind::Tiny, 1024), pool(PoolKind::Large, 0));
    for (text, expected) in [
        ("routing:\n  enable: 1\n", vec![set(true)]),
        ("routing:\n- cpt[0]:\n    tiny: {nbuffers: 3}\n- enable: 2\n", vec![set(false)]),
        (
            "routing: {enable: On}\nbuffers: {tiny: 1024, small: ~, large: 0}\n",
            vec![set(true), tiny.clone(), large],
        ),
        ("buffers:\n  tiny: 1024\n", vec![tiny]),
        ("routing:\nbuffers:\nroute:\n", vec![]),
    ] {
        assert_eq!(changes(text, Mode::Add), expected, "{text}");
        let goes = expected.iter().any(|change| matches!(change, Change::SetRouting { .. }));
        assert_eq!(changes(text, Mode::Delete), if goes { vec![set(false)] } else { vec![] }, "{text}");
        assert_eq!(changes(text, Mode::Execute), []);
    }
    refused(
        "routing: {enable: 4, on: 1}\nbuffers: {tiny: -1, small: many, huge: 1}\n",
        &[
            "line 1, column 19: \"4\" for 'enable': 0 or 1 is expected",
            "line 1, column 22: unknown key 'on' in 'routing'",
            "line 2, column 17: \"-1\" for 'tiny': a number from 0 to 2147483647 is expected",
            "line 2, column 28: \"many\" for 'small': a number from 0 to 2147483647 is expected",
            "line 2, column 34: unknown key 'huge' in 'buffers'",
        ],
    );
    refused("buffers: 7\n", &["line 1, column 10: \"7\" for 'buffers': a map is expected"]);
}

#[test]
fn what_is_no_yaml_is_told_where() {
    let position = |text: &str, line: usize| {
        let errors = parse(text, Mode::Add).unwrap_err();
        assert_eq!((errors.len(), errors[0].position.line), (1, line), "{errors:?}");
        errors[0].message.clone()
    };
    assert!(position("net:\n  - net type: tcp\n - x\n", 3).starts_with("not YAML"));
    assert!(position("net: [\n", 2).starts_with("not YAML"));
    assert!(position("global:\n  discovery: 1\nglobal:\n", 3).contains("stands already in line 1"));
    assert!(position("a: &x 1\nb: *x\n", 2).contains("alias"));
    assert!(position("? [a]\n: b\n", 1).contains("as a key"));
    assert!(position("global:\n---\nglobal:\n", 2).contains("another document"));
    assert!(position(&"- ".repeat(50), 1).contains("nested too deeply"));
    assert!(position(&format!("net: {}", "[".repeat(100)), 1).contains("nested too deeply"));
    position(&format!("net: {}", "[".repeat(100_000)), 1);
    assert!(position(&" ".repeat(DOCUMENT_BYTES_MAX + 1), 1).contains("expected at most"));
}

#[test]
fn a_tab_is_named_where_it_stands() {
    for (text, place) in [
        ("net:\n\t- net type: xdp\n", "line 2, column 1"),
        ("global:\n  discovery:\t1\n", "line 2, column 13"),
        ("global:\n  discovery: 1\n \tretry_count: 2\n", "line 3, column 2"),
    ] {
        refused(text, &[&format!("{place}: not YAML: a tab where blanks are expected")]);
    }
}

#[test]
fn an_empty_document_says_nothing() {
    for text in ["", "\n", "# nothing\n", "---\n", "---\n...\n", "~\n", "{}\n"] {
        assert_eq!(changes(text, Mode::Add), []);
        assert!(parse(text, Mode::Add).unwrap().is_blank, "{text:?}");
    }
    for text in ["net:\npeer: []\nglobal:\n", "routing:\n- cpt[0]: {}\n"] {
        assert_eq!(changes(text, Mode::Add), []);
        assert!(!parse(text, Mode::Add).unwrap().is_blank, "{text:?}");
    }
}

fn ni(net: &str, interface: &str) -> NiSpec {
    NiSpec { interface: Some(interface.to_owned()), ..NiSpec::new(net.parse().unwrap()) }
}

#[test]
fn tunables_come_from_the_ni_or_from_its_net() {
    let text = "\
net:
    - net type: tcp
      local NI(s):
        - interfaces:
              0: veth0
              1: veth1[1]
          tunables:
              peer_timeout: 60
              peer_credits: 16
              peer_buffer_credits: 0
          lnd tunables:
              conns_per_peer: 4
              tos: 104
          CPT: \"[0-1]\"
        - interfaces:
              0: veth2
          CPT: [1, 2-3]
      tunables:
          peer_timeout: -1
          credits: 0x10
      seq_no: 7
";
    let options = NiOptions::default()
        .with(NiOption::PeerTimeout, 60)
        .with(NiOption::PeerCredits, 16)
        .with(NiOption::ConnsPerPeer, 4)
        .with(NiOption::Tos, 104);
    let first = NiSpec { options, cpts: vec![0, 1], ..ni("tcp", "veth0") };
    let second = NiSpec { interface: Some("veth1".into()), cpts: vec![1], ..first.clone() };
    let options = NiOptions::default().with(NiOption::Credits, 16);
    let third = NiSpec { options, cpts: vec![1, 2, 3], ..ni("tcp", "veth2") };
    assert_eq!(changes(text, Mode::Add), [first, second, third].map(Change::AddNi));
    let names = ["veth0", "veth1", "veth2"].map(|interface| {
        let net = "tcp".parse().unwrap();
        Change::DeleteNi(NiName::Interface { net, interface: interface.to_owned() })
    });
    assert_eq!(changes(text, Mode::Delete), names);
    let document = parse(text, Mode::Add).unwrap();
    assert!(document.items.iter().all(|item| item.seq_no == Some(7)));
    let positions: Vec<_> = document.items.iter().map(|item| item.position.line).collect();
    assert_eq!(positions, [5, 6, 16]);
}

#[test]
fn nets_may_be_written_in_other_ways() {
    let direct = "net:\n- net: tcp\n  interfaces:\n    0: a\n";
    let older = "net:\n- net type: tcp\n  interfaces:\n  - intf: a\n  - intf: b\n    CPT: 0,1\n";
    let expected = [ni("tcp", "a"), NiSpec { cpts: vec![0, 1], ..ni("tcp", "b") }];
    assert_eq!(changes(direct, Mode::Add), [Change::AddNi(ni("tcp", "a"))]);
    assert_eq!(changes(older, Mode::Add), expected.map(Change::AddNi));
    let bare = "net:\n- net type: xdp\n";
    let xdp = "xdp".parse().unwrap();
    assert_eq!(changes(bare, Mode::Add), [Change::AddNi(NiSpec::new(xdp))]);
    assert_eq!(changes(bare, Mode::Delete), [Change::DeleteNet(xdp)]);
    let by_nid = "net:\n- net type: tcp\n  local NI(s):\n  - nid: 10.0.0.1@tcp\n";
    let nid = "10.0.0.1@tcp".parse().unwrap();
    let spec = NiSpec { nid: Some(nid), ..NiSpec::new(nid.net()) };
    assert_eq!(changes(by_nid, Mode::Add), [Change::AddNi(spec)]);
    assert_eq!(changes(by_nid, Mode::Delete), [Change::DeleteNi(NiName::Nid(nid))]);
    // Exports have it.
    assert_eq!(
        changes("net:\n- net type: lo\n  local NI(s):\n  - nid: 0@lo\n    status: up\n", Mode::Add),
        []
    );
}

#[test]
fn tunables_go_with_their_lnd() {
    let text = |net: &str, tunables: &str| {
        format!("net:\n- net type: {net}\n  interfaces: {{0: a}}\n  lnd tunables:\n    {tunables}\n")
    };
    refused(
        &text("tcp", "mode: native"),
        &["line 5, column 5: 'mode' is a tunable of the xdp LND: it goes with 'lnd: xdp'"],
    );
    refused(
        &text("xdp", "tos: 3"),
        &["line 5, column 5: 'tos' is a tunable of the tcp LND: it goes with 'lnd: tcp'"],
    );
    assert_eq!(changes(&text("xdp", "tos: -1"), Mode::Add), [Change::AddNi(ni("xdp", "a"))]);
    assert_eq!(changes(&text("tcp", "{lnd: xdp, mode: socket, port: 1988}"), Mode::Add).len(), 1);
    refused(
        &text("o2ib", "map_on_demand: 1"),
        &["line 5, column 5: 'map_on_demand': it belongs to an LND that is not supported by this version"],
    );
    refused(
        &text("tcp", "conns_per_peer: 200"),
        &["line 5, column 21: \"200\" for 'conns_per_peer': a number from -1 to 127 is expected"],
    );
}

#[test]
fn pings_are_carried_out_in_their_own_mode() {
    let text = "ping:\n  nids:\n    0: 10.0.0.[1-2]@tcp\n  source: 10.0.0.9@tcp\n  timeout: 5000\nnet: []\n";
    assert_eq!(changes(text, Mode::Add), []);
    let items = parse(text, Mode::Execute).unwrap().items;
    let [Item { action: Instruction::Ping(ping), .. }] = items.as_slice() else { panic!("{items:?}") };
    assert_eq!((ping.nids.len(), ping.timeout_ms), (2, Some(5000)));
    assert_eq!(ping.source, Some("10.0.0.9@tcp".parse().unwrap()));
    let older = "ping:\n- primary nid: 10.0.0.1@tcp\n  timeout: 0\n- primary nid: 10.0.0.2@tcp\n";
    assert_eq!(parse(older, Mode::Execute).unwrap().items.len(), 2);
}

#[test]
fn globals_are_set_and_reset() {
    let text = "global:\n  max_intf: 64\n  lnd_timeout: 14\n  recovery_interval: 1\nnuma:\n  range: 3\n";
    let set = |global, value| Change::SetGlobal { global, value };
    assert_eq!(changes(text, Mode::Add), [set(Global::MaxInterfaces, 64), set(Global::NumaRange, 3)]);
    assert_eq!(changes(text, Mode::Delete), [set(Global::MaxInterfaces, 4096), set(Global::NumaRange, 0)]);
    assert_eq!(changes("global:\n  discovery: verify\n", Mode::Add), [set(Global::Discovery, 2)]);
}

#[test]
fn peers_are_made_and_deleted() {
    let text = "peer:\n- primary nid: 10.0.0.1@tcp\n  peer ni:\n  - nid: 10.0.0.1@tcp\n  - nid: 10.0.[1-2].1@tcp\n\
                - primary nid: 10.0.0.9@tcp\n  Multi-Rail: False\n  lock_prim: true\n\
                - primary nid: 10.0.0.7@tcp\n  peer state: 273\n";
    let [first, second, third] =
        ["10.0.0.1@tcp", "10.0.1.1@tcp", "10.0.2.1@tcp"].map(|nid| nid.parse().unwrap());
    let other = "10.0.0.9@tcp".parse().unwrap();
    let spec = |primary_nid, nids: &[Nid], multi_rail| PeerSpec {
        primary_nid,
        nids: nids.to_vec(),
        multi_rail,
        lock_primary: !multi_rail,
    };
    let made = [spec(first, &[first, second, third], true), spec(other, &[], false)].map(Change::AddPeer);
    assert_eq!(changes(text, Mode::Add), made, "what traffic has found is only told");
    let gone = |primary_nid, force| Change::DeletePeer { primary_nid, nids: Vec::new(), force };
    assert_eq!(changes(text, Mode::Delete), [gone(first, false), gone(other, true)]);
    let some = "peer:\n- primary nid: 10.0.0.1@tcp\n  peer ni:\n  - nid: 10.0.1.1@tcp\n";
    let less = Change::DeletePeer { primary_nid: first, nids: vec![second], force: false };
    assert_eq!(changes(some, Mode::Delete), [less]);
}

/// A deletion takes all rules between two NIDs, so that it is there once however many the document has.
#[test]
fn drop_rules_between_the_same_nids_are_deleted_at_once() {
    let rule = |to: &str, rate| format!("- fa_src: '*'\n  fa_dst: {to}\n  da_rate: {rate}\n");
    let [first, second] = ["10.0.0.1@tcp", "10.0.0.2@tcp"];
    let text = format!("fault:\n{}{}{}", rule(first, 2), rule(second, 2), rule(first, 3));
    let document = parse(&text, Mode::Delete).unwrap();
    let planned: Vec<_> = document.plan(&state()).into_iter().map(|(_, change)| change).collect();
    let delete = |nid: &str| Change::DeleteDropRules { source: Nid::ANY, destination: nid.parse().unwrap() };
    assert_eq!(planned, [delete(first), delete(second)]);
}

#[test]
fn selection_policies_are_read_and_deleted_from_behind() {
    let text = "udsp:\n- idx: 0\n  src: tcp\n  action:\n    priority: 4\n- dst: 10.0.0.1@xdp\n  priority: -1\n\
                - idx: 2\n  src: tcp\n  dst: xdp*\n- dst: xdp\n";
    let rules: Vec<_> = changes(text, Mode::Add)
        .into_iter()
        .map(|change| match change {
            Change::AddUdsp { index, rule } => (index, rule.priority, rule.patterns().count()),
            other => panic!("{other:?}"),
        })
        .collect();
    let none = Some(UdspInfo::NONE);
    assert_eq!(rules, [(Some(0), Some(4), 1), (None, none, 1), (Some(2), None, 2), (None, Some(0), 1)]);
    let document = parse("udsp:\n- idx: 0\n- idx: 2\n- idx: 1\n", Mode::Delete).unwrap();
    let planned = document.plan(&state());
    let indices: Vec<_> = planned.iter().map(|(item, change)| (item.position.line, change.clone())).collect();
    let delete = |index| Change::DeleteUdsp { index: Some(index) };
    assert_eq!(indices, [(3, delete(2)), (4, delete(1)), (2, delete(0))]);
    let wrong = errors(
        "udsp:\n- src: bogus\n- src: tcp\n  dst: tcp\n  priority: 3\n- rte: tcp\n- src: tcp\n  action:\n    rank: 1\n",
        Mode::Add,
    );
    let expected = [
        "line 2, column 8: 'src': \"bogus\": expected a net such as tcp",
        "line 3, column 3: priority: a selection policy of two patterns has none",
        "line 6, column 3: a selection policy has src, dst,",
        "line 9, column 5: unknown key 'rank' in 'action'",
    ];
    assert!(wrong.iter().zip(expected).all(|(found, expected)| found.starts_with(expected)), "{wrong:?}");
    assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
}

#[test]
fn peers_are_discovered_by_documents_too() {
    let requests = |text: &str| {
        let items = parse(text, Mode::Execute).unwrap().items.into_iter();
        items.map(|item| match item.action {
            Instruction::Ping(request) => (request.purpose, request.nids.len()),
            other => panic!("{other:?}"),
        })
    };
    let text = "discover:\n  nids:\n    0: 10.0.0.[1-2]@tcp\nping:\n  nids: [10.0.0.1@tcp]\n";
    let found: Vec<_> = requests(text).collect();
    assert_eq!(found, [(PingPurpose::Discover, 2), (PingPurpose::Ping, 1)]);
    let text =
        "discover:\n- primary nid: 10.0.0.1@tcp\n  force: 1\n- primary nid: 10.0.0.2@tcp\n  force: 0\n";
    let found: Vec<_> = requests(text).collect();
    assert_eq!(found, [(PingPurpose::ForceDiscovery, 1), (PingPurpose::Discover, 1)]);
    assert_eq!(changes(text, Mode::Add), []);
    let wrong = errors("discover:\n  nids: [10.0.0.1@tcp]\n  source: 10.0.0.2@tcp\n", Mode::Execute);
    assert!(wrong[0].contains("unknown key 'source' in 'discover'"), "{wrong:?}");
}

/// A node that has nothing.
fn state() -> NodeState {
    NodeState {
        nets: Vec::new(),
        peers: Vec::new(),
        routes: Vec::new(),
        routing: lnet_model::records::RoutingRecord::default(),
        globals: lnet_model::records::Globals::default(),
        udsp: Vec::new(),
        drop_rules: Vec::new(),
        delay_rules: Vec::new(),
        steering: lnet_model::steering::SteeringRecord { shard_count: 1, portals: Vec::new() },
    }
}

/// A document with something of everything.
const EVERYTHING: &str = "\
net:
-     net type: xdp
      local NI(s):
      -     nid: 10.0.0.1@xdp
            status: up
            interfaces:
                  0: veth0[0]
            tunables:
                  peer_timeout: 180
            lnd tunables:
                  lnd: xdp
                  mode: auto
            dev cpt: -1
            CPT: \"[0,1]\"
route:
-     net: tcp9
      gateway: 10.0.0.[2-3]@xdp
      hop: 2
      priority: 1
      state: up
      type: multi-hop
routing:
-     cpt[0]:
            tiny:
                  npages: 0
-     enable: 1
buffers:
      tiny: 512
peer:
-     primary nid: 10.0.0.2@xdp
      Multi-Rail: False
      peer state: 8
      peer ni:
      -     nid: 10.0.0.2@xdp
            state: NA
global:
      discovery: 0
udsp:
-     idx: 0
      src: tcp
      action:
            priority: 1
-     idx: 1
      src: 10.0.[0-3].*@tcp
      dst: \"*@xdp\"
steering:
-     portal: 4
      policy: match_bits
      shift: 0
      bits: 1
      table: \"[0,1]\"
fault:
-     rule_type: drop
      fa_src: <?>
      fa_dst: 255.255.255.255@tcp
      fa_ptl_mask: 18446744073709551615
      da_rate: 3
      da_health_error:
      -     random
statistics:
      send_count: 3
";

#[test]
fn everything_is_understood() {
    assert_eq!(parse(EVERYTHING, Mode::Add).unwrap().items.len(), 11);
    // The sizes of pools are nothing to be deleted.
    assert_eq!(parse(EVERYTHING, Mode::Delete).unwrap().items.len(), 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_document_makes_it_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..4, "[-\\[\\]{}:,&*#!|>'\"%@`? \t\n0-9a-f~é]{0,3}"), 1..12)
    ) {
        let mut text: Vec<char> = EVERYTHING.chars().collect();
        for (index, kind, new) in edits {
            let at = index.index(text.len());
            match kind {
                0 => {
                    text.remove(at);
                }
                1 => {
                    let end = (at + 30).min(text.len());
                    text.drain(at..end);
                }
                _ => {
                    text.splice(at..at, new.chars());
                }
            }
            if text.is_empty() {
                break;
            }
        }
        let text: String = text.into_iter().collect();
        let state = state();
        for mode in [Mode::Add, Mode::Delete, Mode::Execute] {
            let planned = parse(&text, mode).map(|document| {
                document.plan(&state).into_iter().map(|(_, change)| change).collect::<Vec<_>>()
            });
            match planned {
                Ok(changes) => {
                    let outcomes = vec![lnet_model::request::Effect::Changed; changes.len()];
                    prop_assert_eq!(diff(&state, &changes, &outcomes).len(), changes.len());
                }
                Err(errors) => {
                    let lines = text.lines().count();
                    prop_assert!(!errors.is_empty());
                    for error in errors {
                        prop_assert!(error.position.line >= 1 && error.position.line <= lines + 1, "{}", error);
                        prop_assert!(error.position.column >= 1);
                    }
                }
            }
        }
    }

    #[test]
    fn texts_come_back_as_they_were_written(key in "[a-z]{1,8}", text in "\\PC{0,20}", rest in any::<String>()) {
        for text in [text, rest] {
            let document = Map::from_iter([(key.clone(), text.clone().into())]);
            let document = Yaml(&document).to_string();
            let read = super::tree::load(&document).unwrap().unwrap();
            let super::tree::Value::Map(entries) = read.value else { panic!("{document}") };
            let super::tree::Value::Scalar { text: found, .. } = &entries[0].value.value else { panic!("{document}") };
            prop_assert_eq!(found, &text);
        }
    }
}
