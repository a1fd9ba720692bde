//! Output of `lnetctl --json` of real nodes is as its schema says.

use lnet_tests::netns::{NETNS_NODES, require_privilege};

use crate::run::Two;
use crate::schema;

#[test]
fn json_of_real_nodes_is_as_documented() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["xdp", "tcp"], "");
    let [near, far] = [two.netns.a(), two.netns.b()];
    let [xdp, tcp] = [0, 1].map(|rail| far.interfaces()[rail].ipv4);
    let gateway = format!("{tcp}@tcp");
    for words in [
        &format!("ping {xdp}@xdp {gateway}"),
        &format!("route add --net tcp9 --gateway {gateway} --hop 2"),
        "fault drop add -s * -d 10.9.9.9@tcp -r 2 -e local_error",
        "fault delay add -s * -d 10.9.9.9@tcp -i 2 -l 1",
        "udsp add --src tcp --priority 1",
        "steering set --portal 7 --policy rotor",
        &format!("capture start {}", two.a.directory.0.join("capture.pcapng").display()),
        "load start target",
        "load start initiator --to 0@lo --messages 5",
        "load wait 2",
    ] {
        two.a.good(words);
    }
    let own = near.interfaces()[0].ipv4;
    for words in [
        "net show -v 4",
        "net show",
        "peer show -v 4",
        "peer list",
        "route show -v",
        "routing show",
        "global show",
        "stats show",
        "udsp show",
        "fault drop show",
        "fault delay show",
        "steering show",
        "param get",
        "debug recovery --local",
        "usage",
        "capture show",
        "frames show",
        "load show",
        "load stop 2",
        "export",
        "export --backup",
        &format!("cpt-of-nid {xdp}@xdp"),
        &format!("explain {gateway}"),
        "explain 10.9.9.9@tcp9",
        &format!("ping {own}@xdp"),
        &format!("discover {gateway}"),
        "watch --seconds 1",
        "top --interval 50",
    ] {
        schema::check(&two.a.good(&format!("{words} --json")));
    }
    let refused = two.a.run("peer show --nid 10.9.9.9@tcp --json");
    assert!(refused.status == 234 && refused.stderr.starts_with("{\"show\":[{\"peer\":"), "{refused:?}");
    schema::check(&refused.stderr);
}
