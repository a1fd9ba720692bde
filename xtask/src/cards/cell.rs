//! One cell: two daemons join a net, each pings the other, a load is verified, frames are accounted for.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::image::Kernel;
use super::machine::{Lans, Machine, PRIMARY, Qemu};
use super::monitor::Monitor;
use super::outcomes::Seen;
use super::state::{
    Carried, Reasons, State, check_harmed, check_registered, check_shared, check_spread, frames_of,
};
use super::table::{
    BY_RINGS, Boot, CHANGES, Cell, GROWS, LIVES, MIXED, REGISTERED, SPREAD, TAGGED, UNPLUGGED,
};

/// Messages of the load, half of them Puts, half Gets.
pub(super) const MESSAGES: u32 = 400;
/// Messages of a load by one of several nets.
const NET_MESSAGES: u32 = 64;
/// Messages of a load of long ones.
const LONG_MESSAGES: u32 = 64;
/// Frames of another VLAN.
pub(super) const TAGGED_FRAMES: u32 = 50;
/// UDP ports of nets on one interface, which differ in many bits: with the source ports of four lanes they
/// are flows enough that a card's hash leaves no queue out but once in some hundreds of times.
const PORTS: [u16; 8] = [988, 1731, 2846, 4393, 8211, 16_900, 33_000, 20_477];
/// Cables that are pulled under load: the machines that lose theirs, the card, and for how long. The ends of
/// the second wire differ: a partner that is not heard is left out by LACP after three seconds.
const PULLS: [(&[usize], u8, Duration); 2] =
    [(&[0, 1], 0, Duration::from_secs(3)), (&[1], 1, Duration::from_secs(6))];
/// How long all is well before a cable is pulled, and after the last one.
const PAUSE: Duration = Duration::from_secs(3);

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
    monitors: [Monitor; 2],
    /// Removed last.
    lans: Lans,
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
        let monitors = [machines[0].monitor()?, machines[1].monitor()?];
        Ok(Self { machines, monitors, lans })
    }

    /// Runs a cell.
    pub(super) fn run(&mut self, cell: Cell) -> Ran {
        let join = |pair: &Self, is_joined| {
            if cell.has_joined_lans() { pair.lans.join(is_joined) } else { Ok(()) }
        };
        let mut told = Vec::new();
        let result = join(self, true).and_then(|()| self.steps(cell, &mut told));
        let is_up = matches!(result, Ok(None));
        let (mut seen, checked) = match self.look(cell, is_up) {
            Ok(looked) => looked,
            Err(error) => (Seen::default(), Err(error)),
        };
        seen.said.append(&mut told);
        let stopped = self.on_both("cell stop").map(drop);
        let healthy = both(&mut self.machines, Machine::check).map(drop);
        let after = checked.and(stopped).and(healthy).and(join(self, false));
        Ran { seen, result: result.and_then(|refusal| after.map(|()| refusal)) }
    }

    fn steps(&mut self, cell: Cell, told: &mut Vec<String>) -> Result<Option<String>> {
        let Cell { boot, mtu_bytes, device, mode, with } = cell;
        self.on_both(&format!("cell device {device} {mtu_bytes}"))?;
        if let Some(harm) = cell.harm() {
            self.on_both(&format!("cell harm {harm}"))?;
        }
        if matches!(with, SPREAD | GROWS) && boot.nic == "igb" {
            // By itself it spreads UDP by addresses alone.
            self.on_both("ethtool -N eth0 rx-flow-hash udp4 sdfn")?;
        }
        match with {
            REGISTERED => self.registered(cell)?,
            GROWS => drop(self.on_both("cell few").context("one queue")?),
            MIXED => drop(self.on_both("cell beside")?),
            BY_RINGS => drop(self.on_both("cell long")?),
            _ => {}
        }
        self.on_both(&format!("cell start {}", boot.cpus))?;
        let (net, mode) = match mode {
            "tcp" => ("tcp", String::new()),
            "auto" => ("xdp", String::new()),
            mode => ("xdp", format!("--mode {mode}")),
        };
        match self.on_both(&format!("cell add {net} {mode}")) {
            Err(refusal) if cell.is_to_be_refused() => return Ok(Some(format!("{refusal:#}"))),
            added => added.context("net add")?,
        };
        self.exchange(cell, told)?;
        match with {
            SPREAD => self.spread(boot.cpus)?,
            LIVES => self.lives()?,
            TAGGED => self.tagged()?,
            MIXED => self.mixed()?,
            BY_RINGS => self.by_rings(told)?,
            _ => {}
        }
        if cell.harm().is_some() {
            for shown in self.on_both("cell harmed")? {
                check_harmed(&shown)?;
            }
        }
        Ok(None)
    }

    /// Runs a command on both machines at once.
    fn on_both(&mut self, command: &str) -> Result<[String; 2]> {
        both(&mut self.machines, |machine| machine.run(command))
    }

    /// Sends loads both ways by nets with ports of their own, and checks that each of so many queues has
    /// received frames.
    fn spread(&mut self, queues: u8) -> Result<()> {
        // The other machine has one by now.
        self.machines[0].run("cell target").context("load")?;
        for (net, port) in PORTS.iter().enumerate().skip(1) {
            self.on_both(&format!("cell add xdp{net} --port {port}")).context("net add")?;
            for (from, to) in [(0, 1), (1, 0)] {
                let load = format!("cell load 10.97.0.{}@xdp{net} {NET_MESSAGES}", to + 1);
                self.machines[from].run(&load).context("load")?;
            }
        }
        for shown in self.on_both("cell queues xdp")? {
            check_spread(&shown, queues.into())?;
        }
        Ok(())
    }

    fn exchange(&mut self, cell: Cell, told: &mut Vec<String>) -> Result<()> {
        let net = if cell.mode == "tcp" { "tcp" } else { "xdp" };
        for (machine, to) in self.machines.iter_mut().zip([2, 1]) {
            if cell.is_on_nic() {
                // The machines have both added the net, and said so.
                let first = machine.run(&format!("lnetctl ping 10.97.0.{to}@{net}"));
                first.context("first ping after `net add`")?;
            } else {
                let tries = machine.run(&format!("cell ping 10.97.0.{to}@{net}")).context("ping")?;
                told.extend(tries.lines().map(str::to_owned));
            }
        }
        self.machines[1].run("cell target").context("load")?;
        let nid = format!("10.97.0.2@{net}");
        match cell.with {
            _ if cell.is_bond() => self.cuts(&nid),
            UNPLUGGED => self.unplugged(&nid),
            CHANGES | GROWS => {
                let step = if cell.with == CHANGES { "changes" } else { "grow" };
                let refused = self.under_load(step, &nid, |two, _, _| two.run(&format!("cell {step}")))?;
                told.extend(refused.lines().map(str::to_owned));
                self.machines[0]
                    .run(&format!("cell load {nid} {MESSAGES}"))
                    .context("load after it")
                    .map(drop)
            }
            with => {
                let messages = if with == BY_RINGS { LONG_MESSAGES } else { MESSAGES };
                self.machines[0].run(&format!("cell load {nid} {messages}")).context("load").map(drop)
            }
        }
    }

    /// Has the first machine send loads while it does a step, and something else happens. No message ends.
    fn under_load<T: Send>(
        &mut self,
        step: &str,
        nid: &str,
        happen: impl FnOnce(&mut Machine, &mut [Monitor; 2], &Lans) -> Result<T> + Send,
    ) -> Result<T> {
        let Self { machines: [one, two], monitors, lans } = self;
        let (loaded, happened) = thread::scope(|scope| {
            let happened = scope.spawn(|| happen(two, monitors, lans));
            let loaded = one.run(&format!("cell loads '{step}' {nid} {MESSAGES}"));
            (loaded, happened.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let happened = happened.with_context(|| step.to_owned())?;
        loaded.with_context(|| format!("load during {step}"))?;
        Ok(happened)
    }

    /// Pulls cables under load, at both ends of each: the messages that are under way take another way.
    fn cuts(&mut self, nid: &str) -> Result<()> {
        let lost = |pair: &mut Self| -> Result<Vec<u64>> {
            let lost = pair.on_both("cell pulled")?.concat();
            lost.lines().map(|count| count.parse().with_context(|| lost.clone())).collect()
        };
        let before = lost(self)?;
        let lasting = PULLS.map(|(_, _, lasting)| PAUSE + lasting).iter().sum::<Duration>() + PAUSE;
        self.under_load(&format!("sleep {}", lasting.as_secs()), nid, |_, monitors, lans| {
            for (machines, card, lasting) in PULLS {
                thread::sleep(PAUSE);
                for is_in in [false, true] {
                    for &machine in machines {
                        monitors[machine].plug(card, is_in)?;
                        lans.plug(machine as u8 + 1, card, is_in)?;
                    }
                    thread::sleep(if is_in { Duration::ZERO } else { lasting });
                }
            }
            Ok(())
        })?;
        let more: Vec<_> = lost(self)?.iter().zip(before).map(|(after, before)| after - before).collect();
        let is_cut: Vec<_> = more.iter().map(|more| *more > 0).collect();
        ensure!(is_cut == [true, false, true, true], "carriers of the NICs were lost {more:?} times");
        Ok(())
    }

    /// Pulls the cable of the second machine's card under load, and then takes the card out: the one that
    /// stands in for it carries the load.
    fn unplugged(&mut self, nid: &str) -> Result<()> {
        const CARDS: &str = "ls /sys/bus/pci/drivers/e1000e | grep -c : || true";
        let cards = |pair: &mut Self| {
            Ok::<_, anyhow::Error>(pair.on_both(CARDS)?.map(|count| count.trim().to_owned()))
        };
        let there = cards(self)?;
        ensure!(there == ["1", "1"], "a card behind each stand-in is expected, not {there:?}");
        let lasting = 4 * PAUSE;
        self.under_load(&format!("sleep {}", lasting.as_secs()), nid, |_, monitors, lans| {
            for is_in in [false, true] {
                thread::sleep(PAUSE);
                monitors[1].plug(PRIMARY, is_in)?;
                lans.plug(2, PRIMARY, is_in)?;
            }
            thread::sleep(PAUSE);
            monitors[1].unplug(PRIMARY)
        })?;
        let there = cards(self)?;
        ensure!(there == ["1", "0"], "the second machine's card is to have gone, not {there:?}");
        self.machines[0]
            .run(&format!("cell load {nid} {MESSAGES}"))
            .context("load without the card")
            .map(drop)
    }

    /// Has programs with nodes of their own, instead of the daemons, send bulk data out of registered memory.
    fn registered(&mut self, cell: Cell) -> Result<()> {
        let [one, two] = &mut self.machines;
        two.run("cell serve").context("serve")?;
        let asked = one.run("cell ask").context("ask")?;
        let served = two.run("cell served").context("served")?;
        check_registered(cell, &asked, &served)
    }

    /// Adds a net on a veth, and sends loads by it and by the NIC, one each way at a time.
    fn mixed(&mut self) -> Result<()> {
        self.on_both("lnetctl net add --net xdp1 --if upper").context("net add on a veth")?;
        let [one, two] = &mut self.machines;
        one.run("cell ping 10.97.1.2@xdp1").context("ping by the veth")?;
        one.run("cell target").context("load")?;
        let (by_veth, by_nic) = thread::scope(|scope| {
            let by_veth = scope.spawn(|| one.run(&format!("cell load 10.97.1.2@xdp1 {MESSAGES}")));
            let by_nic = two.run(&format!("cell load 10.97.0.1@xdp {MESSAGES}"));
            (by_veth.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), by_nic)
        });
        by_veth.context("load by the veth")?;
        by_nic.context("load by the NIC")?;
        let shown = ["xdp", "xdp1"].map(|net| self.on_both(&format!("cell queues {net}")));
        let [by_nic, by_veth] = shown;
        for (nic, veth) in by_nic?.iter().zip(&by_veth?) {
            check_shared(frames_of(nic), frames_of(veth))?;
        }
        Ok(())
    }

    /// Looks by what long messages have gone, and has them leave by rings.
    fn by_rings(&mut self, told: &mut Vec<String>) -> Result<()> {
        let carried = |pair: &mut Self| -> Result<Vec<Carried>> {
            pair.on_both("cell beside_rings")?.iter().map(|shown| Carried::read(shown)).collect()
        };
        let chosen = carried(self)?;
        self.on_both("cell by_rings")?;
        let load = format!("cell load 10.97.0.2@xdp {LONG_MESSAGES}");
        self.machines[0].run(&load).context("load by rings")?;
        for (before, after) in chosen.iter().zip(carried(self)?) {
            after.check_by_rings(before)?;
        }
        told.push(format!("auto takes: {}", chosen[0].carrier));
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

    /// Looks at both nodes; the second result is whether what they tell is as it is to be.
    fn look(&mut self, cell: Cell, is_up: bool) -> Result<(Seen, Result<()>)> {
        let mut seen = Seen::default();
        let mut checked = Ok(());
        for told in self.on_both("cell state")? {
            let state = State::read(&told, &mut seen);
            checked = checked.and(state.check_frames());
            if is_up {
                checked = checked.and(state.check(cell));
            }
        }
        Ok((seen, checked))
    }
}

/// Does something on both machines at once.
fn both<T: Send>(
    machines: &mut [Machine; 2],
    action: impl Fn(&mut Machine) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    let [one, two] = machines;
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| action(one));
        let second = action(two);
        (first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second)
    });
    Ok([first?, second?])
}
