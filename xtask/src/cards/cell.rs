//! One cell: two daemons join a net, each pings the other, a load is verified, frames are accounted for.

use std::collections::BTreeMap;
use std::thread;

use anyhow::{Context, Result, ensure};

use super::image::Kernel;
use super::machine::{Lans, Machine, Qemu};
use super::outcomes::Seen;
use super::table::{Boot, CHANGES, Cell, LIVES, REGISTERED, SPREAD, TAGGED};

/// Messages of the load, half of them Puts, half Gets.
const MESSAGES: u32 = 400;
/// Messages of a load by one of several nets.
const NET_MESSAGES: u32 = 64;
/// Frames of another VLAN.
const TAGGED_FRAMES: u32 = 50;
/// UDP ports of nets on one interface, which differ in many bits: with the source ports of four lanes they
/// are flows enough that a card's hash leaves no queue out but once in some hundreds of times.
const PORTS: [u16; 8] = [988, 1731, 2846, 4393, 8211, 16_900, 33_000, 20_477];

/// Result of a cell.
pub(super) struct Ran {
    /// Facts seen at its end, also where it failed.
    pub(super) seen: Seen,
    /// `Some` where the node refused what the kernel lacks.
    pub(super) result: Result<Option<String>>,
}

/// Two machines of one kind, up.
pub(super) struct Pair {
    machines: [Machine; 2],
    /// Removed last.
    _lans: Lans,
}

impl Pair {
    /// Boots both machines at once.
    ///
    /// # Errors
    /// When one does not boot.
    pub(super) fn boot(boot: Boot, qemu: &Qemu, kernel: &Kernel, root: &[u8]) -> Result<Self> {
        let lans = Lans::create(boot.queues)?;
        let start = |number| Machine::start(number, boot, (qemu, kernel, root), &lans);
        let mut machines = [start(1)?, start(2)?];
        both(&mut machines, Machine::await_boot)?;
        Ok(Self { machines, _lans: lans })
    }

    /// Runs a cell.
    pub(super) fn run(&mut self, cell: Cell) -> Ran {
        let result = self.steps(cell);
        let (seen, frames) = match self.look() {
            Ok((seen, frames)) => (seen, frames),
            Err(error) => (Seen::default(), Err(error)),
        };
        let stopped = both(&mut self.machines, |machine| machine.run("cell stop").map(drop));
        let healthy = both(&mut self.machines, Machine::check);
        let after = frames.and(stopped).and(healthy);
        Ran { seen, result: result.and_then(|refusal| after.map(|()| refusal)) }
    }

    fn steps(&mut self, cell: Cell) -> Result<Option<String>> {
        let Cell { boot, mtu_bytes, device, mode, with } = cell;
        let on_both = |machines: &mut [Machine; 2], command: String| {
            both(machines, |machine| machine.run(&command).map(drop))
        };
        on_both(&mut self.machines, format!("cell device {device} {mtu_bytes}"))?;
        if let Some(harm) = cell.harm() {
            on_both(&mut self.machines, format!("cell harm {harm}"))?;
        }
        if with == SPREAD && boot.nic == "igb" {
            // By itself it spreads UDP by addresses alone.
            on_both(&mut self.machines, "ethtool -N eth0 rx-flow-hash udp4 sdfn".to_owned())?;
        }
        if with == REGISTERED {
            self.registered()?;
        }
        on_both(&mut self.machines, format!("cell start {}", boot.cpus))?;
        let (net, mode) = match mode {
            "tcp" => ("tcp", ""),
            "auto" => ("xdp", ""),
            mode => ("xdp", mode),
        };
        match on_both(&mut self.machines, format!("cell add {net} {mode}")) {
            Err(refusal) if cell.is_to_be_refused() => Ok(Some(format!("{refusal:#}"))),
            added => {
                added.context("net add")?;
                self.exchange(cell)?;
                match with {
                    SPREAD => self.spread(boot.cpus)?,
                    LIVES => self.lives()?,
                    TAGGED => self.tagged()?,
                    _ => {}
                }
                if cell.harm().is_some() {
                    for machine in &mut self.machines {
                        check_harmed(&machine.run("cell harmed")?)?;
                    }
                }
                Ok(None)
            }
        }
    }

    /// Sends loads both ways by nets with ports of their own, and checks that each of so many queues has
    /// received frames.
    fn spread(&mut self, queues: u8) -> Result<()> {
        // The other machine has one by now.
        self.machines[0].run("cell target").context("load")?;
        for (net, port) in PORTS.iter().enumerate().skip(1) {
            both(&mut self.machines, |machine| {
                machine.run(&format!("cell add xdp{net} '' {port}")).map(drop)
            })
            .context("net add")?;
            for (from, to) in [(0, 1), (1, 0)] {
                let load = format!("cell load 10.97.0.{}@xdp{net} {NET_MESSAGES}", to + 1);
                self.machines[from].run(&load).context("load")?;
            }
        }
        for machine in &mut self.machines {
            check_spread(&machine.run("cell queues")?, queues.into())?;
        }
        Ok(())
    }

    fn exchange(&mut self, cell: Cell) -> Result<()> {
        let net = if cell.mode == "tcp" { "tcp" } else { "xdp" };
        let [one, two] = &mut self.machines;
        one.run(&format!("cell ping 10.97.0.2@{net}")).context("ping")?;
        two.run(&format!("cell ping 10.97.0.1@{net}")).context("ping")?;
        two.run("cell target").context("load")?;
        // Both ends lose a cable, and the messages that are under way may take another way; or the interfaces
        // of both change. No message ends.
        let step = match cell {
            _ if cell.is_bond() => "cuts",
            Cell { with: CHANGES, .. } => "changes",
            _ => {
                one.run(&format!("cell load 10.97.0.2@{net} {MESSAGES}")).context("load")?;
                return Ok(());
            }
        };
        let (loaded, changed) = thread::scope(|scope| {
            let changes = scope.spawn(|| two.run(&format!("cell {step}")));
            let loaded = one.run(&format!("cell loads {step} 10.97.0.2@{net} {MESSAGES}"));
            (loaded, changes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        changed.context(step)?;
        loaded.with_context(|| format!("load during {step}")).map(drop)
    }

    /// Has programs with nodes of their own, instead of the daemons, send bulk data out of registered memory.
    fn registered(&mut self) -> Result<()> {
        let [one, two] = &mut self.machines;
        two.run("cell serve").context("serve")?;
        let asked = one.run("cell ask").context("ask")?;
        ensure!(asked.matches("was expected").count() == 3, "three answers are expected: {asked}");
        two.run("cell served").context("served")?;
        Ok(())
    }

    /// Deletes the NI of the second machine under load, and adds it; kills its daemon under load, and starts
    /// another one. Each time a load passes afterwards.
    fn lives(&mut self) -> Result<()> {
        let [one, two] = &mut self.machines;
        let load = format!("cell load 10.97.0.2@xdp {MESSAGES}");
        for step in ["renewed", "killed"] {
            let (_, ended) = thread::scope(|scope| {
                // What is under way when its target goes may fail.
                let loaded = scope.spawn(|| one.run(&load));
                let ended = two.run(&format!("cell {step}"));
                (loaded.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), ended)
            });
            ended.context(step)?;
            one.run("cell ping 10.97.0.2@xdp").with_context(|| format!("ping after {step}"))?;
            one.run(&load).with_context(|| format!("load after {step}"))?;
        }
        Ok(())
    }

    /// Sends frames of another VLAN that look like the second machine's but for their tag. None is taken.
    fn tagged(&mut self) -> Result<()> {
        let [one, two] = &mut self.machines;
        let mac = two.run("cell vlan")?;
        let before = Reasons::read(&two.run("cell frames")?)?;
        one.run("cell vlan")?;
        one.run(&format!("cell strangers {} {TAGGED_FRAMES}", mac.trim()))
            .context("frames of another VLAN")?;
        let after = Reasons::read(&two.run("cell frames")?)?;
        after.check_passed(&before)
    }

    /// Looks at both nodes; the second result is whether all frames are accounted for.
    fn look(&mut self) -> Result<(Seen, Result<()>)> {
        let mut seen = Seen::default();
        let mut frames = Ok(());
        for machine in &mut self.machines {
            let lost = read_state(&machine.run("cell state")?, &mut seen);
            if let Some(lost) = lost.filter(|_| frames.is_ok()) {
                frames = Err(anyhow::anyhow!("frames check: {lost}"));
            }
        }
        Ok((seen, frames))
    }
}

/// Frames by the reason why an XDP program did not steer them.
#[derive(Default, Debug)]
struct Reasons(BTreeMap<String, u64>);

impl Reasons {
    /// Reads `lnetctl --json frames show`.
    fn read(shown: &str) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Frames {
            reasons: BTreeMap<String, u64>,
        }
        let frames: Frames = serde_json::from_str(shown.trim()).with_context(|| shown.to_owned())?;
        Ok(Self(frames.reasons))
    }

    /// Checks that all frames of another VLAN were passed up since `before`, and none was looked into.
    fn check_passed(&self, before: &Self) -> Result<()> {
        let more = |name: &str| {
            let [after, before] = [self, before].map(|reasons| reasons.0.get(name).copied().unwrap_or(0));
            after.saturating_sub(before)
        };
        let (passed, looked_into) = (more("not_ours"), more("bad_magic"));
        ensure!(
            passed >= u64::from(TAGGED_FRAMES) && looked_into == 0,
            "{TAGGED_FRAMES} frames of another VLAN are to be passed up, not {passed}, and none looked into, not {looked_into}"
        );
        Ok(())
    }
}

/// Checks that a load went through netem, by what `tc` tells.
fn check_harmed(shown: &str) -> Result<()> {
    let words = shown.split_whitespace();
    let sent = words.clone().zip(words.skip(1)).find(|(_, unit)| *unit == "pkt");
    let packets = sent.and_then(|(count, _)| count.parse::<u32>().ok());
    let is_netem = shown.contains("qdisc netem");
    ensure!(
        is_netem && packets.is_some_and(|packets| packets >= MESSAGES),
        "the load did not go through netem: {}",
        shown.trim()
    );
    Ok(())
}

/// Checks that each of so many queues has received frames, by what `net show` tells.
fn check_spread(shown: &str, queues: usize) -> Result<()> {
    let counts = shown.lines().filter_map(|line| line.split_once(": "));
    let counts: Vec<u64> = counts.filter_map(|(_, count)| count.trim().parse().ok()).collect();
    ensure!(
        counts.len() == queues && counts.iter().all(|count| *count > 0),
        "frames by {queues} queues are expected, not {counts:?}"
    );
    Ok(())
}

/// Does something on both machines at once.
fn both(machines: &mut [Machine; 2], action: impl Fn(&mut Machine) -> Result<()> + Sync) -> Result<()> {
    let [one, two] = machines;
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| action(one));
        let second = action(two);
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    first.and(second)
}

/// Reads the lines of `cell state`; gives what `frames check` said, if it failed.
fn read_state(text: &str, seen: &mut Seen) -> Option<String> {
    let mut frames = None;
    for (key, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        let value = value.trim();
        match key {
            "active mode" => value.clone_into(&mut seen.active_mode),
            "zc" => {
                let words: Vec<_> = value.split_whitespace().collect();
                for pair in words.chunks_exact(2) {
                    let count: u32 = pair[0].parse().unwrap_or(0);
                    seen.zero_copy.1 += count;
                    seen.zero_copy.0 += if pair[1] == "zc:1" { count } else { 0 };
                }
            }
            "driver" => value.clone_into(&mut seen.driver),
            "queues" => seen.queues = value.parse().unwrap_or(0),
            "frames" => frames = Some(value.to_owned()),
            _ => {
                let said = if key == "log" { without_time(value) } else { format!("{key}: {value}") };
                if !seen.said.contains(&said) {
                    seen.said.push(said);
                }
            }
        }
    }
    frames
}

/// A line of the log from its level on.
fn without_time(line: &str) -> String {
    let begins = ["WARN ", "ERROR "].iter().filter_map(|level| line.find(level)).min();
    line[begins.unwrap_or(0)..].to_owned()
}

/// Checks that a cell has gone as the one in `cargo xtask test` is to go: over rings in a driver's own mode.
///
/// # Errors
/// Says what was seen instead.
pub(super) fn check_native(seen: &Seen) -> Result<()> {
    ensure!(seen.active_mode == "native", "mode `native` is expected in force, not {seen:?}");
    ensure!(seen.zero_copy.1 > 0, "sockets of rings are expected, not {seen:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_harmed_where_netem_has_sent_its_packets() {
        let shown = |packets: u32| {
            format!(
                "qdisc netem 8001: root refcnt 5 limit 1000 loss 1%\n Sent 52166 bytes {packets} pkt (dropped 4, overlimits 0)\n"
            )
        };
        check_harmed(&shown(MESSAGES)).unwrap();
        assert!(check_harmed(&shown(MESSAGES - 1)).unwrap_err().to_string().contains("399 pkt"));
        check_harmed(&shown(9000).replace("netem", "mq")).unwrap_err();
    }

    #[test]
    fn a_load_is_spread_where_each_queue_has_frames() {
        check_spread("  0: 4\n  1: 70\n", 2).unwrap();
        for (shown, queues) in [("0: 4\n1: 0\n", 2), ("0: 4\n", 2), ("", 0)] {
            assert_eq!(check_spread(shown, queues).is_err(), queues != 0, "{shown}");
        }
        assert!(check_spread("0: 4\n1: 0\n", 2).unwrap_err().to_string().contains("not [4, 0]"));
    }

    #[test]
    fn frames_of_another_vlan_are_not_looked_into() {
        let read = |ours: u32, bad: u32| {
            Reasons::read(&format!(r#"{{"reasons":{{"not_ours":{ours},"bad_magic":{bad}}},"slots":[]}}"#))
                .unwrap()
        };
        let before = read(7, 3);
        read(7 + TAGGED_FRAMES, 3).check_passed(&before).unwrap();
        for after in [read(6 + TAGGED_FRAMES, 3), read(7 + TAGGED_FRAMES, 4), Reasons::default()] {
            after.check_passed(&before).unwrap_err();
        }
    }

    #[test]
    fn the_state_of_both_machines_is_added_up() {
        let mut seen = Seen::default();
        let state = "active mode: native\nzc:  2 zc:0 1 zc:1 \ndriver: igb\nqueues: 4\n\
                     log: 2026-01-01T00:00:00Z  WARN a: b\n";
        assert_eq!(read_state(state, &mut seen), None);
        let state = format!("{state}no rings: why\nframes: 3 frames are missing\n");
        assert_eq!(read_state(&state, &mut seen).as_deref(), Some("3 frames are missing"));
        let said = ["WARN a: b", "no rings: why"].map(str::to_owned).to_vec();
        let expected =
            Seen { active_mode: "native".into(), zero_copy: (2, 6), driver: "igb".into(), queues: 4, said };
        assert_eq!(seen, expected);
        check_native(&seen).unwrap();
        check_native(&Seen::default()).unwrap_err();
    }
}
