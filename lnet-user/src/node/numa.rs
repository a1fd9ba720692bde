//! How far the devices of interfaces are from the memory of a node's shards, as the kernel tells it in sysfs.
//!
//! Invariant: what the kernel does not tell is as far as anything can be, so that no device is preferred for
//! that.

use std::fs;
use std::path::{Path, PathBuf};

use crate::runtime::available_cpus;

/// Where the kernel tells of devices.
const SYSFS: &str = "/sys";
/// The distance on a machine that tells nothing: that of memory from itself.
const LOCAL_DISTANCE: u32 = 10;
/// Most CPUs or nodes that a list of the kernel's names.
const NUMBERS_MAX: u32 = 1 << 16;

/// The NUMA nodes of the machine, and which of them each shard runs on.
#[derive(Clone, Debug)]
pub(crate) struct Numa {
    root: PathBuf,
    /// Memory nodes by number: the distances of each to all of them, in their order.
    nodes: Vec<(u32, Vec<u32>)>,
    /// Memory nodes of each shard: those that have CPUs which it may run on.
    memory: Vec<Vec<u32>>,
}

impl Numa {
    /// The distances on this machine, for so many shards, each on the CPU in its place. A shard without one
    /// runs on all that this process may run on.
    pub(crate) fn of_shards(cpus: &[usize], shards: usize) -> Self {
        let cpus_of = |shard| cpus.get(shard).map_or_else(available_cpus, |cpu| vec![*cpu]);
        Self::read(Path::new(SYSFS), &(0..shards).map(cpus_of).collect::<Vec<_>>())
    }

    fn read(root: &Path, cpus: &[Vec<usize>]) -> Self {
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let system = root.join("devices/system/node");
        let mut nodes = Vec::new();
        let mut memory = vec![Vec::new(); cpus.len()];
        for node in numbers(&text(system.join("online"))) {
            let directory = system.join(format!("node{node}"));
            let distances = text(directory.join("distance"));
            let distances = distances.split_whitespace().map_while(|number| number.parse().ok()).collect();
            nodes.push((node, distances));
            let own: Vec<_> = numbers(&text(directory.join("cpulist"))).map(|cpu| cpu as usize).collect();
            for (memory, cpus) in memory.iter_mut().zip(cpus) {
                if cpus.iter().any(|cpu| own.contains(cpu)) {
                    memory.push(node);
                }
            }
        }
        Self { root: root.to_owned(), nodes, memory }
    }

    /// How far the device of an interface is from each shard: from the farthest memory that it may run on.
    pub(crate) fn distances(&self, interface: &str) -> Vec<u32> {
        let own = self.node_of(interface);
        let from = |memory: &Vec<u32>| self.distance(own, memory);
        self.memory.iter().map(from).collect()
    }

    /// How far the device of an interface is from each memory node, by the number of that; none on a machine
    /// of one node.
    pub(crate) fn memory_distances(&self, interface: &str) -> Vec<u32> {
        let last = self.nodes.iter().map(|(node, _)| *node).max().filter(|_| self.nodes.len() > 1);
        let own = self.node_of(interface);
        last.map_or_else(Vec::new, |last| (0..=last).map(|node| self.distance(own, &[node])).collect())
    }

    /// The memory node that the device of an interface is on, with its distances.
    fn node_of(&self, interface: &str) -> Option<&(u32, Vec<u32>)> {
        let device = self.root.join("class/net").join(interface).join("device/numa_node");
        let device = fs::read_to_string(device).ok().and_then(|text| text.trim().parse::<u32>().ok());
        device.and_then(|device| self.nodes.iter().find(|(node, _)| *node == device))
    }

    /// How far the farthest of these memory nodes is from the one with these distances.
    fn distance(&self, own: Option<&(u32, Vec<u32>)>, memory: &[u32]) -> u32 {
        let to = |(_, distances): &(u32, Vec<u32>), node: u32| {
            let position = self.nodes.iter().position(|(other, _)| *other == node)?;
            distances.get(position).copied()
        };
        let farthest = || self.nodes.iter().flat_map(|(_, distances)| distances).copied().max();
        let known = own.and_then(|own| memory.iter().filter_map(|node| to(own, *node)).max());
        known.or_else(farthest).unwrap_or(LOCAL_DISTANCE)
    }
}

/// The numbers of a list such as `0-3,8`; what is none is left out.
fn numbers(list: &str) -> impl Iterator<Item = u32> {
    list.trim().split(',').flat_map(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        match (low.parse::<u32>(), high.parse::<u32>()) {
            (Ok(low), Ok(high)) => low..high.min(NUMBERS_MAX).saturating_add(1),
            _ => 0..0,
        }
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// A machine of two nodes with two CPUs each, and devices on both.
    fn machine() -> tempdir::Directory {
        let directory = tempdir::Directory::new();
        directory.write("devices/system/node/online", "0-1\n");
        for (node, cpus, distances) in [(0, "0-1", "10 21"), (1, "2,3", "21 10")] {
            directory.write(&format!("devices/system/node/node{node}/cpulist"), cpus);
            directory.write(&format!("devices/system/node/node{node}/distance"), distances);
        }
        for (interface, node) in [("eth0", "0"), ("eth1", "1"), ("veth0", "-1")] {
            directory.write(&format!("class/net/{interface}/device/numa_node"), node);
        }
        directory
    }

    #[test]
    fn a_device_is_as_far_as_the_farthest_memory_of_each_shard() {
        let machine = machine();
        let numa = Numa::read(&machine.0, &[vec![0, 1], vec![3], vec![1, 2]]);
        let distances = ["eth0", "eth1", "veth0", "absent"].map(|interface| numa.distances(interface));
        assert_eq!(distances, [[10, 21, 21], [21, 10, 21], [21, 21, 21], [21, 21, 21]]);
        let distances = ["eth0", "eth1", "veth0", "absent"].map(|interface| numa.memory_distances(interface));
        assert_eq!(distances, [[10, 21], [21, 10], [21, 21], [21, 21]]);
    }

    #[test]
    fn a_machine_that_tells_nothing_has_one_distance() {
        let nothing = Numa::read(Path::new("/nonexistent"), &[vec![0], vec![1]]);
        assert_eq!(nothing.distances("eth0"), [LOCAL_DISTANCE; 2]);
        assert!(nothing.memory_distances("eth0").is_empty());
        let present = Numa::of_shards(&[0], 3).distances("lo");
        assert!(
            present.len() == 3 && present.iter().all(|distance| *distance >= LOCAL_DISTANCE),
            "{present:?}"
        );
        assert_eq!(numbers("0-2,7,x,9-8,4294967290-4294967295").collect::<Vec<_>>(), [0, 1, 2, 7]);
    }

    mod tempdir {
        use std::fs;
        use std::path::PathBuf;
        use std::sync::atomic::{AtomicU32, Ordering};

        /// A directory that goes with the test.
        pub(super) struct Directory(pub(super) PathBuf);

        impl Directory {
            pub(super) fn new() -> Self {
                static COUNT: AtomicU32 = AtomicU32::new(0);
                let number = COUNT.fetch_add(1, Ordering::Relaxed);
                Self(std::env::temp_dir().join(format!("lnet-numa-{}-{number}", std::process::id())))
            }

            pub(super) fn write(&self, path: &str, text: &str) {
                let path = self.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }

        impl Drop for Directory {
            fn drop(&mut self) {
                let _ = fs::remove_dir_all(&self.0);
            }
        }
    }
}
