//! What the nodes are configured with: documents for `lnetctl import`, and the scheme of the load.

use std::fmt::Write;

use xtask::netns::Namespace;

use super::SHARDS;
use super::options::{Mode, Options};

/// The portals of a load (`lnet_load::Layout`), each with the policy that the run gives it: all that
/// there are, so that both shards work and each way to steer is used.
const POLICIES: [(u8, &str); 8] = [
    (10, "policy: pin\n      shard: 0"),
    (11, "policy: pin\n      shard: 1"),
    (12, "policy: match_bits\n      shift: 0\n      bits: 1\n      table: \"[0,1]\""),
    (13, "policy: match_bits\n      shift: 0\n      bits: 1\n      table: \"[1,0]\""),
    (14, "policy: match_bits\n      shift: 0\n      bits: 64"),
    (15, "policy: match_bits\n      shift: 0\n      bits: 42"),
    (16, "policy: initiator"),
    (17, "policy: rotor"),
];

/// UDP port over sockets: it is for those who have no privileges, who may not use one below 1024.
const SOCKET_PORT: u16 = 1988;

/// The NIDs of a node, one on each rail.
pub(super) fn nids(namespace: &Namespace) -> Vec<String> {
    let rails = namespace.interfaces().iter().enumerate();
    rails.map(|(rail, interface)| format!("{}@{}", interface.ipv4, net(rail))).collect()
}

/// The net of a rail.
fn net(rail: usize) -> String {
    if rail == 0 { "xdp".to_owned() } else { format!("xdp{rail}") }
}

/// The document of a node: a net on each rail, and the policies of the load's portals.
pub(super) fn node(namespace: &Namespace, options: &Options) -> String {
    let mut text = "net:\n".to_owned();
    for (rail, interface) in namespace.interfaces().iter().enumerate() {
        let _ = write!(
            text,
            "-     net type: {}
      local NI(s):
      -     interfaces:
                  0: {}
            lnd tunables:
                  lnd: xdp
                  mode: {}
                  queues: {SHARDS}
",
            net(rail),
            interface.name,
            options.mode.name(),
        );
        if options.mode == Mode::Socket {
            let _ = writeln!(text, "                  port: {SOCKET_PORT}");
        }
    }
    text += "steering:\n";
    for (portal, policy) in POLICIES {
        let _ = writeln!(text, "-     portal: {portal}\n      {policy}");
    }
    text
}

/// The scheme of the load, if it is not that of all sizes.
pub(super) fn scheme(options: &Options) -> Option<String> {
    let size = options.size?;
    let class = serde_json::json!({"min_bytes": size, "max_bytes": size, "weight": 1});
    Some(serde_json::json!({"sizes": [class]}).to_string() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_written_where_sizes_are_wanted() {
        assert_eq!(scheme(&Options::with_count(1)), None);
        let options = Options { size: Some(64), ..Options::with_count(1) };
        let expected = "{\"sizes\":[{\"min_bytes\":64,\"max_bytes\":64,\"weight\":1}]}\n";
        assert_eq!(scheme(&options).unwrap(), expected);
    }
}
