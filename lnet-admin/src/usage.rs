//! Use of the objects that a node may have.

use lnet_model::Refusal;
use lnet_model::records::{ShardUsage, UsageCount, UsageRecord};
use lnet_user::runtime::Worker;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::control::Control;

impl Control {
    pub(super) async fn usage_record(&self) -> Result<UsageRecord, Refusal> {
        let limits = *self.lnet.limits();
        let told = self.on_shards(|worker: &mut Worker| (cpus(), worker.shard().usage())).await?;
        let shard = |(shard, (cpus, usage)): (u32, (Vec<u32>, lnet_core::stats::Usage))| {
            let counts = [
                ("match_entries", usage.match_entries, limits.match_entries),
                ("memory_descs", usage.memory_descs, limits.memory_descs),
                ("events", usage.events, limits.events),
                ("messages", usage.messages, limits.transmits()),
                ("delayed", usage.delayed, limits.delayed),
                ("trackers", usage.trackers, limits.memory_descs),
                ("peers", usage.peers, limits.peers),
            ];
            ShardUsage {
                shard,
                cpus,
                counts: counts.map(|(name, used, limit)| count(name, used, limit)).into(),
            }
        };
        let [nis, known_peers] = {
            let machine = self.lnet.machine();
            let nets = machine.nets();
            let nis = nets.iter().flat_map(|net| &net.nis).filter(|ni| !ni.spec.nid.is_loopback()).count();
            [nis, machine.peers_after(None).count()]
        };
        let peers_max = u64::from(limits.peers) * self.lnet.shard_count() as u64;
        let counts = vec![
            count("nis", nis as u64, limits.nis),
            UsageCount { name: "peers".into(), used: known_peers as u64, limit: peers_max },
        ];
        let [resident_bytes, resident_bytes_max, locked_bytes] =
            ["VmRSS:", "VmHWM:", "VmLck:"].map(memory_bytes);
        let shards = (0..).zip(told).map(shard).collect();
        Ok(UsageRecord { resident_bytes, resident_bytes_max, locked_bytes, counts, shards })
    }
}

fn count(name: &str, used: impl Into<u64>, limit: impl Into<u64>) -> UsageCount {
    UsageCount { name: name.into(), used: used.into(), limit: limit.into() }
}

/// CPUs that the calling thread may run on.
fn cpus() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// Bytes of a line of the process's status; 0 where the kernel has no such line.
pub(super) fn memory_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.unwrap_or(0) << 10
}
