//! What a fleet is and what happens to it: a YAML document.

use serde::Deserialize;

/// Nodes at most.
const NODES_MAX: u32 = 100_000;
/// Rails at most: those of a node are a bit each.
const RAILS_MAX: u8 = 16;

/// A fleet: nodes, rails, faults over time, and what the nodes say to each other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Rails; each is a net of its own.
    pub rails: u8,
    /// The nodes, in groups of the same kind.
    pub groups: Vec<Group>,
    /// How long a message takes, in microseconds.
    #[serde(default = "latency_us")]
    pub latency_us: u64,
    /// What fails, and when.
    #[serde(default)]
    pub faults: Vec<RailFault>,
    /// What the nodes say to each other.
    pub workload: Workload,
}

/// Nodes of the same kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// How many.
    pub nodes: u32,
    /// The rails that they have an NI on; all of them by default.
    #[serde(default)]
    pub rails: Vec<u8>,
    /// Whether they take part in discovery.
    #[serde(default = "yes")]
    pub discovery: bool,
}

/// A rail that fails for a while.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailFault {
    /// Which.
    pub rail: u8,
    /// From when, in seconds.
    pub from_s: f64,
    /// Until when.
    pub to_s: f64,
    /// Of how many nodes, the first ones; of all by default.
    pub nodes: Option<u32>,
    /// Whether the nodes see that their link is down; otherwise nothing comes through and none is told.
    #[serde(default)]
    pub link_down: bool,
}

/// Puts with ACK to sampled peers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Peers that a node talks to.
    pub peers_per_node: u32,
    /// Puts of a node in a second.
    pub puts_per_second: f64,
    /// For how long, in seconds.
    pub seconds: f64,
}

const fn latency_us() -> u64 {
    50
}

const fn yes() -> bool {
    true
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

    fn check(&self) -> Result<(), String> {
        if self.rails == 0 || self.rails > RAILS_MAX {
            return Err(format!("rails: {}: 1 to {RAILS_MAX} are expected", self.rails));
        }
        let nodes = self.node_count();
        if !(2..=NODES_MAX).contains(&nodes) {
            return Err(format!("groups: {nodes} nodes: 2 to {NODES_MAX} are expected"));
        }
        let rails = self.groups.iter().flat_map(|group| &group.rails);
        let rails = rails.chain(self.faults.iter().map(|fault| &fault.rail));
        if let Some(rail) = rails.into_iter().find(|rail| **rail >= self.rails) {
            return Err(format!("rail {rail}: below {} is expected", self.rails));
        }
        for RailFault { from_s, to_s, .. } in &self.faults {
            if !(0.0..1e6).contains(from_s) || !(*from_s..1e6).contains(to_s) {
                return Err(format!(
                    "faults: from_s {from_s}, to_s {to_s}: the first is expected to come first"
                ));
            }
        }
        let Workload { puts_per_second, seconds, peers_per_node } = self.workload;
        if !(0.0..=1e4).contains(&puts_per_second) || !(0.0..=1e5).contains(&seconds) {
            return Err(format!(
                "workload: puts_per_second {puts_per_second}, seconds {seconds}: 0 to 10000, and 0 to 100000, are expected"
            ));
        }
        if peers_per_node == 0 || peers_per_node >= nodes {
            return Err(format!(
                "workload: peers_per_node {peers_per_node}: 1 to {} are expected",
                nodes - 1
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        let good =
            "rails: 2\ngroups:\n- nodes: 3\nworkload: {peers_per_node: 2, puts_per_second: 1, seconds: 5}\n";
        assert_eq!(Fleet::parse(good).unwrap().node_count(), 3);
        let wrong = |from: &str, to: &str, expected: &str| {
            let error = Fleet::parse(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        wrong("rails: 2", "rails: 0", "rails: 0: 1 to 16 are expected");
        wrong("nodes: 3", "nodes: 1", "1 nodes: 2 to 100000");
        wrong("nodes: 3", "nodes: 3\n  rails: [2]", "rail 2: below 2");
        wrong("nodes: 3", "colour: 3", "unknown field");
        wrong("peers_per_node: 2", "peers_per_node: 3", "peers_per_node 3: 1 to 2");
        wrong("seconds: 5", "seconds: -5", "seconds -5");
        wrong("workload", "faults: [{rail: 0, from_s: 3, to_s: 2}]\nworkload", "to_s 2");
    }
}
