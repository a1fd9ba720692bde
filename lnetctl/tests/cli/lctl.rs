//! `lctl`, with the output of Lustre's tool.

use std::process::Command;

use crate::commands::configured;
use crate::model::Model;
use crate::model_records::peer;
use crate::run::{Node, Ran, ran};

fn lctl(node: &Node, words: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lctl"));
    command.args(words.split_ascii_whitespace()).env("LNET_SOCKET", &node.socket);
    ran(&mut command, "")
}

#[track_caller]
fn good(node: &Node, words: &str) -> String {
    let ran = lctl(node, words);
    assert!(ran.status == 0 && ran.stderr.is_empty(), "lctl {words}: {ran:?}");
    ran.stdout
}

#[track_caller]
fn bad(node: &Node, words: &str, status: i32, expected: &str) {
    let ran = lctl(node, words);
    let fits = ran.stderr.contains(expected) && ran.stdout.is_empty();
    assert!(ran.status == status && fits, "lctl {words}: {ran:?}");
}

#[test]
fn lnet_goes_up_and_down() {
    let node = Node::start(Model::new(1));
    bad(&node, "list_nids", 234, "not configured");
    assert_eq!(good(&node, "network up"), "LNET configured\n");
    assert_eq!(good(&node, "net up"), "LNET configured\n");
    assert_eq!(good(&node, "list_nids"), "");
    assert_eq!(good(&node, "list_nids all"), "0@lo\n");
    assert_eq!(good(&node, "net down"), "LNET ready to unload\n");
    bad(&node, "net tcp", 2, "unconfigure");
    bad(&node, "conf_param", 2, "unrecognized subcommand");
    bad(&node, "", 2, "Usage: lctl");
    drop(node);
}

#[test]
fn nids_are_listed_pinged_and_chosen() {
    let node = configured();
    node.good("net add --net tcp --if eth0,eth1");
    node.good("net add --net tcp1 --if eth0");
    let nids = good(&node, "list_nids");
    let [first, second, third] = nids.lines().collect::<Vec<_>>()[..] else { panic!("{nids}") };
    assert!(first.ends_with("@tcp") && second.ends_with("@tcp") && third.ends_with("@tcp1"), "{nids}");
    assert_eq!(good(&node, &format!("which_nid 10.9.0.1@tcp {second}")), format!("{second}\n"));
    assert_eq!(good(&node, "which_nid 10.9.0.1@tcp7 10.9.0.1@tcp1"), "10.9.0.1@tcp1\n");
    bad(&node, "which_nid 10.9.0.1@tcp7", 255, "No reachable NID");
    bad(&node, "which_nid 10.9.0.1@frob", 234, "frob");
    node.good("peer add --prim_nid 10.77.0.12@tcp");
    let pinged = good(&node, "ping 10.77.0.12@tcp 5");
    assert!(pinged.starts_with("12345-0@lo\n12345-"), "{pinged}");
    bad(&node, "ping 10.77.0.99@tcp", 255, "failed to ping 12345-10.77.0.99@tcp: ");
    bad(&node, "ping 10.77.0.12@tcp 0", 234, "--timeout");
}

#[test]
fn rules_are_printed_as_lustre_does() {
    let node = configured();
    assert_eq!(good(&node, "net_drop_list"), "LNet drop rules:\nfound total 0\n");
    let add = "net_drop_add -s *@tcp -d 10.77.0.12@tcp -r 10 -m PUT -m GET -p 50";
    assert_eq!(good(&node, add), "Added drop rule *@tcp->10.77.0.12@tcp (1/10)\n");
    let add = "net_delay_add --source * --dest *@tcp1 --interval 3 --latency 2";
    assert_eq!(good(&node, add), "Added delay rule *->*@tcp1 (1/0)\n");
    let rule =
        "*@tcp->10.77.0.12@tcp (1/10 | 0) ptl 0x4000000000000, msg 6, 0/0, PUT 0, ACK 0, GET 0, REP 0\n";
    assert_eq!(good(&node, "net_drop_list"), format!("LNet drop rules:\n{rule}found total 1\n"));
    let rule = "*->*@tcp1 (1/0 | 3, latency 2) ptl 0x0, msg f, 0/0, PUT 0, ACK 0, GET 0, REP 0\n";
    assert_eq!(good(&node, "net_delay_list"), format!("LNet delay rules:\n{rule}found total 1\n"));
    assert_eq!(good(&node, "net_drop_reset") + &good(&node, "net_delay_reset"), "");
    bad(&node, "net_drop_del -s * -d 10.77.0.12@tcp", 234, "no rule from");
    bad(&node, "net_drop_add -s * -d * -r 1 -i 1", 255, "exactly one");
    assert_eq!(good(&node, "net_drop_del -a"), "Removed 1 drop rules\n");
    assert_eq!(good(&node, "net_delay_del -s * -d *@tcp1"), "Removed 1 delay rules\n");
}

#[test]
fn routes_are_printed_as_lustre_does() {
    let node = configured();
    node.good("net add --net tcp --if eth0");
    assert_eq!(good(&node, "show_route"), "");
    node.good("route add --net tcp7 --gateway 10.77.0.12@tcp --hop 2 --priority 3");
    node.good("route add --net tcp8 --gateway 10.77.0.12@tcp");
    let expected = "net               tcp7 hops 2 gw                   10.77.0.12@tcp down pri 3\n\
                    net               tcp8 hops 4294967295 gw                   10.77.0.12@tcp down pri 0\n";
    assert_eq!(good(&node, "show_route"), expected);
    assert_eq!(good(&node, "route_list"), expected);
}

/// Heads, columns and widths are those of a kernel node (LNet `router_proc.c`).
#[test]
fn tables_are_read_as_lustre_has_them() {
    let mut model = Model::configured(2);
    model.peers.push(peer(&["10.77.0.12@tcp", "10.78.0.12@tcp"], 273));
    model.statistics.send_count = 7;
    model.statistics.drop_length = 4096;
    let node = Node::start(model);
    node.good("net add --net tcp --if eth0");
    let own = good(&node, "list_nids");
    let nis = format!(
        "nid                      status alive refs peer  rtr   max    tx   min\n\
         0@lo                         up     0    1    0    0     0     0     0\n\
         {:<24}     up     0    1    8    0   256   256   253\n",
        own.trim()
    );
    let peers = "nid                      refs state  last   max   rtr   min    tx   min queue\n\
                 10.77.0.12@tcp              1    NA    -1     8     0     0     0    -2 0\n\
                 10.78.0.12@tcp              1    NA    -1     8     0     0     0    -2 0\n";
    let stats = "0 0 0 7 0 0 0 0 0 0 4096\n";
    for (name, text) in [("nis", nis.as_str()), ("peers", peers), ("stats", stats)] {
        assert_eq!(good(&node, &format!("get_param -n {name}")), text);
        assert_eq!(node.good(&format!("param get {name}")), text);
        assert!(node.good(&format!("param get {name} --json")).contains("\\n"));
    }
    assert_eq!(good(&node, "get_param lnet.nis"), format!("nis=\n{nis}"));
    assert_eq!(good(&node, "get_param stats"), format!("stats={stats}"));
    assert_eq!(good(&node, "get_param -n buffers"), "pages count credits     min\n");
    assert_eq!(good(&node, "get_param -n routers"), "ref  rtr_ref alive router\n");
    node.good("route add --net tcp7 --gateway 10.77.0.12@tcp --hop 2 --priority 3");
    node.good("route add --net tcp8 --gateway 10.77.0.12@tcp");
    let routes = "Routing disabled\nnet      hops priority   state router\n\
                  tcp7        2        3    down 10.77.0.12@tcp\n\
                  tcp8       -1        0    down 10.77.0.12@tcp\n";
    assert_eq!(good(&node, "get_param -n routes"), routes);
    assert_eq!(
        good(&node, "get_param -n routers"),
        "ref  rtr_ref alive router\n2          2  down 10.77.0.12@tcp\n"
    );
    assert_eq!(good(&node, "get_param -N rou*s"), "routers\nroutes\n");
    assert_eq!(good(&node, "set_param stats=0"), "stats=0\n");
    assert_eq!(good(&node, "get_param -n stats"), "0 0 0 0 0 0 0 0 0 0 0\n");
    bad(&node, "set_param nis=0", 234, "No such file or directory");
    good(&node, "net down");
    bad(&node, "get_param nis", 234, "No such file or directory");
}

#[test]
fn parameters_are_read_and_set_by_name() {
    let node = configured();
    let set = good(&node, "set_param lnet.transaction_timeout=60 router_ping_timeout=7");
    assert_eq!(set, "transaction_timeout=60\nrouter_ping_timeout=7\n");
    assert_eq!(good(&node, "get_param transaction_timeout"), "transaction_timeout=60\n");
    assert_eq!(good(&node, "get_param -n lnet.router_ping_timeout"), "7\n");
    let names = good(&node, "get_param -N *_timeout");
    assert_eq!(names, "lnd_timeout\nrouter_ping_timeout\ntransaction_timeout\n");
    assert_eq!(good(&node, "set_param -n retry_count=1"), "");
    bad(&node, "get_param frob", 234, "error: get_param: param_path 'frob': No such file or directory");
    bad(&node, "set_param frob=1", 234, "'frob=1': No such file or directory");
    bad(&node, "set_param lnd_timeout=1", 234, "Invalid argument");
    bad(&node, "set_param router_ping_timeout=0", 234, "1 to 2147483647 is expected");
    bad(&node, "set_param retry_count", 234, "NAME=VALUE is expected");
    // A node that is not configured has its parameters.
    good(&node, "net down");
    assert_eq!(good(&node, "get_param router_ping_timeout"), "router_ping_timeout=7\n");
}
