//! What both sides have counted of the messages between them: whether all that one has sent has come to the
//! other.

use anyhow::{Context, Result, ensure};
use serde_yaml::Value;

use super::lab::{Lab, OURS};
use super::matrix::KERNEL;

/// Messages that a console's four units may have under way at once, in one direction: a request and its bulk
/// data each.
const UNDER_WAY: u64 = 8;

/// Messages that a node has exchanged with the other one, over all NIs of both; not those with itself, by
/// which kernel nodes try NIs that were ill.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counted {
    sent: Messages,
    received: Messages,
    dropped: u64,
}

/// Messages one way. Both nodes count a sent ACK as a PUT, and a sent REPLY as a GET, and so it is done here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Messages {
    puts: u64,
    gets: u64,
}

impl Messages {
    fn since(self, before: Self) -> Self {
        let Self { puts, gets } = self;
        Self { puts: puts.saturating_sub(before.puts), gets: gets.saturating_sub(before.gets) }
    }

    const fn sum(self) -> u64 {
        self.puts + self.gets
    }

    /// Whether these, which were sent, are those that were received. A ping may be lost with the path that it
    /// tries, so GETs may lack a few; those of bulk data may not, or a test would have told an error. And a
    /// few may have arrived that their sender does not count, `uncounted_max`.
    const fn have_come(self, received: Self, uncounted_max: u64) -> bool {
        self.puts == received.puts
            && self.gets + uncounted_max >= received.gets
            && self.gets <= received.gets + UNDER_WAY
    }
}

impl Counted {
    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.since(before.sent),
            received: self.received.since(before.received),
            dropped: self.dropped.saturating_sub(before.dropped),
        }
    }

    const fn sum(self) -> u64 {
        self.sent.sum() + self.received.sum()
    }

    /// What `peer show -v 4` tells of one peer.
    fn read(shown: &str) -> Result<Self> {
        let shown: Value = serde_yaml::from_str(shown).context("`peer show` prints no YAML")?;
        let items = |value: &Value, key: &str| value.get(key).and_then(Value::as_sequence).cloned();
        let peers = items(&shown, "peer").context("`peer show` tells no peers")?;
        let nis: Vec<_> = peers.iter().filter_map(|peer| items(peer, "peer ni")).flatten().collect();
        ensure!(!nis.is_empty(), "`peer show` tells no peer NIs: {shown:?}");
        let mut counted = Self::default();
        for ni in nis {
            let count = |block: &str, name: &str| {
                let count = ni.get(block).and_then(|block| block.get(name)?.as_u64());
                count.with_context(|| format!("a peer NI has no {name} in {block}: {ni:?}"))
            };
            for (block, messages) in
                [("sent_stats", &mut counted.sent), ("received_stats", &mut counted.received)]
            {
                messages.puts += count(block, "put")? + count(block, "ack")?;
                messages.gets += count(block, "get")? + count(block, "reply")?;
            }
            counted.dropped += count("statistics", "drop_count")?;
        }
        Ok(counted)
    }
}

/// The counters of both sides at a moment at which nothing was under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ledger {
    kernel: Counted,
    ours: Counted,
}

fn of_kernel(lab: &Lab) -> Result<Counted> {
    Counted::read(&lab.on(1, &format!("lnetctl peer show --nid {OURS} -v 4"))?)
}

fn of_ours(lab: &Lab) -> Result<Counted> {
    Counted::read(&lab.tool(&["peer", "show", "--nid", KERNEL, "-v", "4"])?)
}

impl Ledger {
    /// Opened while nothing but pings is under way.
    pub(super) fn open(lab: &Lab) -> Result<Self> {
        let settled = || {
            let before = (of_kernel(lab)?, of_ours(lab)?);
            std::thread::sleep(std::time::Duration::from_millis(200));
            let (kernel, ours) = (of_kernel(lab)?, of_ours(lab)?);
            ensure!(before == (kernel, ours), "messages are under way");
            Ok(Self { kernel, ours })
        };
        lab.until(settled)
    }

    /// Fails until more messages have gone each way than may be under way.
    pub(super) fn has_begun(&self, lab: &Lab) -> Result<()> {
        let Counted { sent, received, .. } = of_ours(lab)?.since(self.ours);
        let has_begun = sent.sum() > UNDER_WAY && received.sum() > UNDER_WAY;
        ensure!(has_begun, "few messages have gone: {sent:?} from our daemon, {received:?} to it");
        Ok(())
    }

    /// Waits until each side has received what the other has sent since the ledger was opened, and none was
    /// dropped: how many messages there were in both directions.
    pub(super) fn balanced(&self, lab: &Lab) -> Result<u64> {
        lab.until(|| {
            // What is counted between the two looks makes them unequal; the next look finds them equal.
            let ours = of_ours(lab)?.since(self.ours);
            let kernel = of_kernel(lab)?.since(self.kernel);
            ensure!(
                // A kernel node counts nothing of a ping whose REPLY it holds for lost with its path (LNet
                // `lib-msg.c: lnet_msg_decommit_tx`, `lnet_msg_decommit_rx`).
                kernel.sent.have_come(ours.received, UNDER_WAY)
                    && ours.sent.have_come(kernel.received, 0)
                    && kernel.dropped + ours.dropped == 0,
                "the kernel node has counted {kernel:?}, ours {ours:?}"
            );
            Ok(ours.sum())
        })
    }

    /// Kills our daemon, and compares what it had counted until then with what the kernel node has.
    pub(super) fn killed_here(&self, lab: &mut Lab) -> Result<u64> {
        let victim = of_ours(lab)?.since(self.ours);
        lab.kill_daemon()?;
        outlived(victim, of_kernel(lab)?.since(self.kernel))
    }

    /// Kills the kernel node, and compares what it had counted until then with what our daemon has.
    pub(super) fn killed_there(&self, lab: &Lab) -> Result<u64> {
        let victim = of_kernel(lab)?.since(self.kernel);
        lab.kill(1)?;
        outlived(victim, of_ours(lab)?.since(self.ours))
    }
}

/// Fails unless all that a killed node had sent has arrived, and it had received nothing that was not sent,
/// but for what was under way: a sender counts a message once it is done with it. How many messages the node
/// had counted.
fn outlived(victim: Counted, witness: Counted) -> Result<u64> {
    let (sent, received) = (victim.sent.sum(), victim.received.sum());
    let is_sound = witness.received.sum() + UNDER_WAY >= sent && witness.sent.sum() + UNDER_WAY >= received;
    ensure!(is_sound, "before it was killed, the node had counted {victim:?}, and the other has {witness:?}");
    ensure!(sent > 0 && received > 0, "the node was killed before it did anything: {victim:?}");
    Ok(victim.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_nis_of_a_peer_are_summed() {
        let ni = |put: u32| {
            format!(
                "{{statistics: {{drop_count: 3}}, sent_stats: {{put: {put}, get: 2, reply: 0, ack: 0}}, \
                 received_stats: {{put: 10, get: 20, reply: 30, ack: 40}}}}"
            )
        };
        let shown = format!("peer: [{{peer ni: [{}, {}]}}]", ni(1), ni(4));
        let (sent, received) = (Messages { puts: 5, gets: 4 }, Messages { puts: 100, gets: 100 });
        assert_eq!(Counted::read(&shown).unwrap(), Counted { sent, received, dropped: 6 });
        assert!(Counted::read("peer: [{peer ni: [{nid: x}]}]").is_err());
        assert!(Counted::read("peer: []").is_err());
    }

    #[test]
    fn all_that_was_sent_has_come_but_for_a_few_pings() {
        let sent = Messages { puts: 5, gets: 20 };
        assert!(sent.have_come(sent, 0));
        assert!(sent.have_come(Messages { puts: 5, gets: 12 }, 0));
        for (puts, gets) in [(4, 20), (6, 20), (5, 21), (5, 11)] {
            assert!(!sent.have_come(Messages { puts, gets }, 0), "{puts} {gets}");
        }
        assert!(sent.have_come(Messages { puts: 5, gets: 28 }, UNDER_WAY));
        assert!(!sent.have_come(Messages { puts: 5, gets: 29 }, UNDER_WAY));
    }

    #[test]
    fn what_a_killed_node_had_sent_must_have_arrived_but_for_what_was_under_way() {
        let counted = |sent, received| {
            let [sent, received] = [sent, received].map(|gets| Messages { puts: 0, gets });
            Counted { sent, received, dropped: 0 }
        };
        assert_eq!(outlived(counted(100, 50), counted(60, 92)).unwrap(), 150);
        assert!(outlived(counted(100, 50), counted(60, 91)).is_err());
        assert_eq!(outlived(counted(100, 50), counted(42, 100)).unwrap(), 150);
        assert!(outlived(counted(100, 50), counted(41, 100)).is_err());
        assert!(outlived(counted(0, 0), counted(0, 0)).is_err());
    }
}
