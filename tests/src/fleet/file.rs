//! What a fleet is and what happens to it: a YAML document.

use lnet_wire::{Net, NetType};
use serde::Deserialize;

use super::hostile::Hostility;

/// Nodes at most.
const NODES_MAX: u32 = 100_000;
/// Rails at most.
const RAILS_MAX: usize = 16;
/// NIs of a node at most: a pair of them is a bit.
pub(super) const NIS_MAX: usize = 8;
const LATENCY_US_MAX: u64 = 1_000_000;
/// Buffers of each pool of a router at most.
const BUFFERS_MAX: u32 = 1 << 14;

/// A fleet: rails, nodes whose NIs are plugged into them, faults over time, and what the nodes say to each
/// other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// What carries messages between NIs: fabrics, switches. A net may be spread over several, which are
    /// joined then.
    pub rails: Vec<Rail>,
    /// The nodes, in groups of the same kind.
    pub groups: Vec<Group>,
    /// What fails, and when.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What the nodes say to each other.
    pub workload: Workload,
}

/// A fabric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// Its name.
    pub name: String,
    /// How long a message takes through it, in microseconds.
    #[serde(default = "rail_latency_us")]
    pub latency_us: u64,
    /// How many of a hundred messages it loses; the transport sends them again.
    #[serde(default)]
    pub loss_percent: f64,
}

/// Nodes of the same kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How many.
    pub nodes: u32,
    /// The NIs of each, in their order.
    pub nis: Vec<NiPlan>,
    /// Whether they take part in discovery.
    #[serde(default = "yes")]
    pub discovery: bool,
    /// Behaviour of hostile ones: `silent`, `unacknowledging`, `lying` or `naming`.
    pub hostile: Option<Hostility>,
    /// Buffers of each pool of routers; without any they forward nothing.
    #[serde(default)]
    pub router_buffers: u32,
    /// Nets that they reach by routers.
    #[serde(default)]
    pub routes: Vec<RoutePlan>,
    /// The group that they talk to; all that they reach without one, but for routers.
    pub talks_to: Option<String>,
}

/// Routes of each node of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutePlan {
    /// The net that they lead to.
    pub net: String,
    /// The group of the routers.
    pub gateways: String,
    /// How many of these each node uses, evenly spread; all without a number.
    pub each: Option<u32>,
    /// How many routers lie between, if that is said.
    pub hops: Option<u8>,
}

impl RoutePlan {
    /// The net that it leads to.
    ///
    /// # Errors
    /// Expectations of a net.
    pub fn net(&self) -> Result<Net, String> {
        net_named(&self.net)
    }
}

/// An NI of each node of a group, with the link that leads from it to its rail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NiPlan {
    /// Its net, such as `xdp1`; several NIs of a node may be on one.
    pub net: String,
    /// The rail that its link leads to.
    pub rail: String,
    /// How long a message takes over the link, in microseconds.
    #[serde(default)]
    pub latency_us: u64,
    /// How many of a hundred messages the link loses.
    #[serde(default)]
    pub loss_percent: f64,
}

/// What fails for a while: a rail, links, or nodes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The rail, which carries nothing.
    pub rail: Option<String>,
    /// The links, which carry nothing.
    pub links: Option<Links>,
    /// The nodes, which do nothing; nothing reaches them.
    pub nodes: Option<Nodes>,
    /// When it begins, in seconds.
    pub from_s: f64,
    /// Until when.
    pub to_s: f64,
    /// Whether the nodes see that the link of the rail, or of each of the links, is down. Otherwise nothing
    /// comes through and none is told.
    #[serde(default)]
    pub link_down: bool,
    /// How long what the nodes send takes longer, in microseconds: such nodes are slow, and not down.
    #[serde(default)]
    pub slow_us: u64,
    /// Whether the nodes begin anew in the end and know nothing. Otherwise they go on with what they knew.
    #[serde(default)]
    pub restart: bool,
}

/// Some nodes of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Its name.
    pub group: String,
    /// The first one, from 0.
    #[serde(default)]
    pub first: u32,
    /// How many; all that follow by default.
    pub count: Option<u32>,
}

/// One link each of some nodes of a group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// The name of the group.
    pub group: String,
    /// Which NI's link it is, from 0.
    pub ni: usize,
    /// The first node, from 0.
    #[serde(default)]
    pub first: u32,
    /// How many; all that follow by default.
    pub count: Option<u32>,
}

/// Puts with ACK to sampled peers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Peers that a node talks to; all that it shares a net with, if these are fewer.
    pub peers_per_node: u32,
    /// Puts of a node in a second.
    pub puts_per_second: f64,
    /// How long it lasts, in seconds.
    pub seconds: f64,
}

const fn rail_latency_us() -> u64 {
    50
}

const fn yes() -> bool {
    true
}

impl NiPlan {
    /// Its net.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn net(&self) -> Result<Net, String> {
        net_named(&self.net)
    }
}

fn net_named(name: &str) -> Result<Net, String> {
    let net = name.parse::<Net>().ok();
    let net = net.filter(|net| matches!(net.net_type(), NetType::XDP | NetType::TCP) && net.number() < 256);
    net.ok_or_else(|| format!("net {name}: xdp, tcp, and such with a number up to 255 are expected"))
}

impl Fleet {
    /// Reads a fleet from YAML.
    ///
    /// # Errors
    /// What is wrong, with the line where the reader knows it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fleet: Self = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        fleet.check()?;
        Ok(fleet)
    }

    /// Nodes of all groups.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.groups.iter().map(|group| group.nodes).fold(0, u32::saturating_add)
    }

    pub(super) fn rail_index(&self, name: &str) -> Option<usize> {
        self.rails.iter().position(|rail| rail.name == name)
    }

    /// The numbers of some nodes of a group.
    pub(super) fn numbers(&self, group: &str, first: u32, count: Option<u32>) -> std::ops::Range<u32> {
        let before = self.groups.iter().take_while(|its| its.name != group);
        let base: u32 = before.map(|group| group.nodes).sum();
        let nodes = self.groups.iter().find(|its| its.name == group).map_or(0, |group| group.nodes);
        let first = first.min(nodes);
        base + first..base + first + count.unwrap_or(u32::MAX).min(nodes - first)
    }

    /// How many other nodes one of a group shares a net with.
    pub(super) fn reachable(&self, group: usize) -> u32 {
        let nets = |group: &Group| group.nis.iter().filter_map(|ni| ni.net().ok()).collect::<Vec<_>>();
        let own = self.groups.get(group).map(nets).unwrap_or_default();
        let of = self.groups.get(group);
        let leads = |net: &Net| of.is_some_and(|of| of.routes.iter().any(|route| route.net() == Ok(*net)));
        let shares = |group: &&Group| nets(group).iter().any(|net| own.contains(net) || leads(net));
        let is_meant = |group: &&Group| {
            let talks_to = of.and_then(|of| of.talks_to.as_ref());
            group.router_buffers == 0 && talks_to.is_none_or(|name| *name == group.name)
        };
        let sharing = self.groups.iter().filter(|group| shares(group) && is_meant(group));
        let is_among = of.is_some_and(|of| is_meant(&of));
        let sum = sharing.map(|group| group.nodes).fold(0, u32::saturating_add);
        sum.saturating_sub(is_among.into())
    }

    fn check(&self) -> Result<(), String> {
        let rails = self.rails.iter().map(|rail| &rail.name);
        unique("rails", rails.collect(), RAILS_MAX)?;
        unique("groups", self.groups.iter().map(|group| &group.name).collect(), usize::MAX)?;
        let nodes = self.node_count();
        if !(2..=NODES_MAX).contains(&nodes) {
            return Err(format!("groups: {nodes} nodes: 2 to {NODES_MAX} are expected"));
        }
        for Rail { name, latency_us, loss_percent } in &self.rails {
            wire(*latency_us, *loss_percent).map_err(|error| format!("rail {name}: {error}"))?;
        }
        for group in &self.groups {
            self.check_nis(group).map_err(|error| format!("group {}: {error}", group.name))?;
            self.check_routes(group).map_err(|error| format!("group {}: {error}", group.name))?;
        }
        for fault in &self.faults {
            self.check_fault(fault).map_err(|error| format!("faults: {error}"))?;
        }
        self.check_workload(nodes)
    }

    fn check_nis(&self, group: &Group) -> Result<(), String> {
        if !(1..=NIS_MAX).contains(&group.nis.len()) {
            return Err(format!("{} nis: 1 to {NIS_MAX} are expected", group.nis.len()));
        }
        for ni in &group.nis {
            ni.net()?;
            self.known_rail(&ni.rail)?;
            wire(ni.latency_us, ni.loss_percent)?;
        }
        Ok(())
    }

    fn check_routes(&self, group: &Group) -> Result<(), String> {
        if group.router_buffers > BUFFERS_MAX {
            return Err(format!("router_buffers {}: up to {BUFFERS_MAX} are expected", group.router_buffers));
        }
        for RoutePlan { net, gateways, each, .. } in &group.routes {
            net_named(net)?;
            let routers = self.groups.iter().find(|its| its.name == *gateways && its.router_buffers > 0);
            let nodes = routers
                .ok_or_else(|| format!("gateways {gateways}: no group of routers has that name"))?
                .nodes;
            if each.is_some_and(|each| !(1..=nodes).contains(&each)) {
                return Err(format!("each {}: 1 to {nodes} are expected", each.unwrap_or(0)));
            }
        }
        let is_known = |name: &String| self.groups.iter().any(|its| its.name == *name);
        match group.talks_to.as_ref().filter(|name| !is_known(name)) {
            Some(name) => Err(format!("talks_to {name}: no group has that name")),
            None => Ok(()),
        }
    }

    fn known_rail(&self, name: &str) -> Result<(), String> {
        self.rail_index(name).map(|_| ()).ok_or_else(|| format!("rail {name}: no rail has that name"))
    }

    fn check_fault(&self, fault: &Fault) -> Result<(), String> {
        let Fault { rail, links, nodes, from_s, to_s, link_down, slow_us, restart } = fault;
        if !(0.0..1e6).contains(from_s) || !(*from_s..1e6).contains(to_s) {
            return Err(format!("from_s {from_s}, to_s {to_s}: the first is expected to come first"));
        }
        let group = |name: &str, first: u32, count: Option<u32>| {
            let group = self.groups.iter().find(|group| group.name == *name);
            let group = group.ok_or_else(|| format!("group {name}: no group has that name"))?;
            let last = u64::from(first) + u64::from(count.unwrap_or(1));
            if count == Some(0) || last > group.nodes.into() {
                return Err(format!("group {name} has {} nodes: first and count lie outside", group.nodes));
            }
            Ok(group)
        };
        match (rail, links, nodes) {
            _ if *slow_us > LATENCY_US_MAX => Err(format!("slow_us {slow_us}: up to {LATENCY_US_MAX} is expected")),
            (Some(rail), None, None) if !restart && *slow_us == 0 => self.known_rail(rail),
            (None, Some(Links { group: name, ni, first, count }), None) if !restart && *slow_us == 0 => {
                let nis = group(name, *first, *count)?.nis.len();
                if *ni < nis { Ok(()) } else { Err(format!("ni {ni}: below {nis} is expected")) }
            }
            (None, None, Some(Nodes { group: name, first, count }))
                if !(*link_down || *restart && *slow_us > 0) =>
            {
                group(name, *first, *count).map(|_| ())
            }
            _ => Err(
                "one of rail, links and nodes is expected, link_down with the first two, restart or slow_us with nodes"
                    .to_owned(),
            ),
        }
    }

    fn check_workload(&self, nodes: u32) -> Result<(), String> {
        let Workload { puts_per_second, seconds, peers_per_node } = self.workload;
        if !(0.0..=1e4).contains(&puts_per_second) || !(0.0..=1e5).contains(&seconds) {
            return Err(format!(
                "workload: puts_per_second {puts_per_second}, seconds {seconds}: 0 to 10000, and 0 to 100000, are expected"
            ));
        }
        if peers_per_node == 0 || peers_per_node >= nodes {
            let most = nodes - 1;
            return Err(format!("workload: peers_per_node {peers_per_node}: 1 to {most} are expected"));
        }
        Ok(())
    }
}

fn unique(what: &str, mut names: Vec<&String>, most: usize) -> Result<(), String> {
    if names.is_empty() || names.len() > most {
        let range =
            if most == usize::MAX { "at least one is".to_owned() } else { format!("1 to {most} are") };
        return Err(format!("{} {what}: {range} expected", names.len()));
    }
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| Err(format!("{what}: two have the name {}", pair[0])))
}

/// Checks what a rail or a link does to messages.
fn wire(latency_us: u64, loss_percent: f64) -> Result<(), String> {
    if latency_us > LATENCY_US_MAX {
        return Err(format!("latency_us {latency_us}: up to {LATENCY_US_MAX} is expected"));
    }
    let is_share = (0.0..100.0).contains(&loss_percent);
    if is_share {
        Ok(())
    } else {
        Err(format!("loss_percent {loss_percent}: 0 to less than 100 is expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "rails: [{name: left}, {name: right}]
groups:
- {name: all, nodes: 3, nis: [{net: xdp, rail: left}, {net: xdp, rail: right}]}
workload: {peers_per_node: 2, puts_per_second: 1, seconds: 5}
";

    #[track_caller]
    fn check(from: &str, to: &str, expected: &str) {
        assert!(GOOD.contains(from), "{from}");
        let error = Fleet::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(Fleet::parse(GOOD).unwrap().node_count(), 3);
        check("rails: [{name: left}, {name: right}]", "rails: []", "0 rails: 1 to 16 are expected");
        check("name: right", "name: left", "rails: two have the name left");
        check("name: left}", "name: left, latency_us: 1000001}", "rail left: latency_us 1000001");
        check("name: left}", "name: left, loss_percent: 100}", "rail left: loss_percent 100");
        check("rail: left}", "rail: left, loss_percent: -1}", "group all: loss_percent -1");
        check("rail: left}", "rail: up}", "group all: rail up: no rail has that name");
        check("net: xdp,", "net: o2ib,", "group all: net o2ib: xdp, tcp");
        check("[{net: xdp, rail: left}, {net: xdp, rail: right}]", "[]", "group all: 0 nis: 1 to 8");
        check("nodes: 3", "nodes: 1", "1 nodes: 2 to 100000");
        check("nodes: 3", "nodes: many", "at line 3 column");
        check("nodes: 3", "colour: 3", "unknown field `colour`");
        check("peers_per_node: 2", "peers_per_node: 3", "peers_per_node 3: 1 to 2");
        check("seconds: 5", "seconds: -5", "seconds -5");
    }

    #[test]
    fn what_is_wrong_with_routers_is_said() {
        check("nodes: 3", "nodes: 3, router_buffers: 16385", "group all: router_buffers 16385: up to 16384");
        check("nodes: 3", "nodes: 3, talks_to: few", "group all: talks_to few: no group has that name");
        let routes = |route: &str| format!("nodes: 3, routes: [{{{route}}}]");
        check(
            "nodes: 3",
            &routes("net: tcp1, gateways: all"),
            "gateways all: no group of routers has that name",
        );
        check("nodes: 3", &routes("net: gni, gateways: all"), "group all: net gni: xdp, tcp");
        let routes = format!("router_buffers: 1, {}", routes("net: tcp1, gateways: all, each: 4"));
        check("nodes: 3", &routes, "each 4: 1 to 3 are expected");
    }

    #[test]
    fn what_is_wrong_with_a_fault_is_said() {
        let wrong = |fault: &str, expected: &str| {
            check("workload", &format!("faults: [{{{fault}}}]\nworkload"), expected);
        };
        wrong("rail: left, from_s: 3, to_s: 2", "faults: from_s 3, to_s 2");
        wrong("rail: up, from_s: 1, to_s: 2", "rail up: no rail");
        wrong("from_s: 1, to_s: 2", "one of rail, links and nodes");
        wrong("rail: left, nodes: {group: all}, from_s: 1, to_s: 2", "one of rail, links and nodes");
        wrong("rail: left, restart: true, from_s: 1, to_s: 2", "restart or slow_us with nodes");
        wrong("rail: left, slow_us: 1, from_s: 1, to_s: 2", "restart or slow_us with nodes");
        wrong("nodes: {group: all}, slow_us: 1000001, from_s: 1, to_s: 2", "slow_us 1000001: up to");
        wrong("nodes: {group: all}, link_down: true, from_s: 1, to_s: 2", "link_down with the first two");
        wrong("nodes: {group: few}, from_s: 1, to_s: 2", "group few: no group");
        wrong("nodes: {group: all, first: 2, count: 2}, from_s: 1, to_s: 2", "group all has 3 nodes");
        wrong("links: {group: all, ni: 2}, from_s: 1, to_s: 2", "ni 2: below 2");
    }

    /// The first and the last of three groups have no net in common.
    #[test]
    fn nodes_reach_those_that_they_share_a_net_with() {
        let text = GOOD.replace(
            "groups:\n",
            "groups:
- {name: few, nodes: 2, nis: [{net: tcp1, rail: left}]}
- {name: between, nodes: 4, nis: [{net: tcp1, rail: left}, {net: xdp, rail: left}]}
",
        );
        let fleet = Fleet::parse(&text).unwrap();
        assert_eq!([0, 1, 2].map(|group| fleet.reachable(group)), [5, 8, 6]);
    }

    #[test]
    fn nodes_are_numbered_by_group() {
        let text =
            GOOD.replace("groups:\n", "groups:\n- {name: few, nodes: 2, nis: [{net: tcp1, rail: left}]}\n");
        let fleet = Fleet::parse(&text).unwrap();
        assert_eq!(fleet.numbers("few", 0, None), 0..2);
        assert_eq!(fleet.numbers("all", 1, Some(1)), 3..4);
        assert_eq!(fleet.numbers("all", 1, None), 3..5);
    }
}
