//! Processes that are killed under load and come back: what was under way ends, what arrives is whole and
//! comes once, and the next life is as good as the first.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lnet_core::handle::ShardId;
use lnet_tests::netns::{Namespace, Netns, Wiring, wait_until};
use lnet_tests::node::{
    Arrivals, By, Checked, FLOOD_WINDOW, Flood, Flooder, LIMITS, LND_TIMEOUT, UNANSWERED,
    assert_nothing_left, config, nid_v4, policies, process, settle, start, stop_all,
};
use lnet_user::node::{NiConfig, NodeConfig, NodeDriver};
use lnet_user::runtime::Worker;
use lnet_wire::Nid;

use crate::privileged;
use crate::traffic::PATIENCE;

/// Tells a child its NID.
const CHILD: &str = "LNET_TEST_KILLED_NID";
/// Tells it which life this is, from 1 on.
const LIFE: &str = "LNET_TEST_KILLED_LIFE";
/// Tells it whom it floods.
const TARGET: &str = "LNET_TEST_KILLED_TARGET";
/// Payload of each Put, of several frames.
const PUT_BYTES: u32 = 3000;
const SHARDS: u64 = 2;
/// Puts that are under way at most.
const WINDOW: u64 = SHARDS * FLOOD_WINDOW;
/// Puts that each life is to take.
const PUTS: u64 = 1000;
/// Acknowledged messages that a life may not have looked at when it is killed. A shard acknowledges what came
/// in a turn at its end; the application looks at that before the next turn. All of that was under way at
/// once.
const UNSEEN: u64 = WINDOW;
/// How many acknowledgements a shard may see between those and the kill: while one shard of the target looks,
/// the other one goes on until all that is under way waits for the first.
const UNSEEN_BEFORE: usize = 4 * FLOOD_WINDOW as usize;
/// Nothing ends by this: a child is there again long before.
const PATIENT_TIMEOUT: Duration = LND_TIMEOUT.saturating_mul(5);

/// What a child was told; `None` in the tests' own process.
fn told<T: std::str::FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok().map(|text| text.parse().ok().unwrap())
}

/// The node of a child.
fn start_child(nid: Nid) -> (NodeDriver, Vec<Worker>) {
    // The thread of a shard that panics ends the child: its parent looks after that.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let config = NodeConfig::new(vec![NiConfig::new(nid, "veth-b")])
        .shards(SHARDS as u32)
        .policies(policies(SHARDS as u8))
        .limits(LIMITS)
        .lnd_timeout(PATIENT_TIMEOUT);
    NodeDriver::start(&config).unwrap_or_else(|error| panic!("{error}"))
}

/// The node that is killed, in a process of its own: there is nothing to it in the tests' own process. Its
/// standard input is where it notes what has arrived.
#[test]
fn target_that_is_killed() {
    let Some(nid) = told::<Nid>(CHILD) else { return };
    let arrivals = Arrivals::new(std::io::stdin().as_fd().try_clone_to_owned().unwrap().into());
    let (mut node, workers) = start_child(nid);
    let _driven = Checked::start_all(&arrivals, told(LIFE).unwrap(), PUT_BYTES, node.steering(), workers);
    node.open().unwrap();
    loop {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(arrivals.broken(), 0, "its peer lives");
    }
}

/// The child that is killed at the other end than [`target_that_is_killed`].
#[test]
fn initiator_that_is_killed() {
    let Some(nid) = told::<Nid>(CHILD) else { return };
    let (mut node, workers) = start_child(nid);
    node.open().unwrap();
    let first = told::<u64>(LIFE).unwrap() << 20;
    let flood = Flood::starting_at(first, process(told(TARGET).unwrap()), 1 << 20, PUT_BYTES);
    let _driven = Flooder::start_all(&flood, By::Application, workers);
    loop {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(flood.failed(), 0, "{:?}", flood.failures());
    }
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Killed {
    fn start(namespace: &Namespace, test: &str, input: Stdio, variables: &[(&str, String)]) -> Self {
        let mut command: Command = namespace.command(&std::env::current_exe().unwrap());
        command.args(["--exact", &format!("killed::{test}"), "--nocapture"]);
        command.envs(variables.iter().cloned()).stdin(input).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// Whether it has not ended by itself.
    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Kills it by SIGKILL.
    fn kill(mut self) {
        assert!(self.lives(), "it has not failed before, see above");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail when it has ended already, as it should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for something that a child is to bring about.
fn wait_for(child: &mut Killed, what: &str, mut done: impl FnMut() -> bool) {
    wait_until(what, PATIENCE, || done() || !child.lives());
    assert!(child.lives(), "the child has failed, see above, before {what}");
}

/// Drives the shards until nothing of a peer that is gone is under way.
fn outlast(workers: &mut [Worker]) {
    settle(workers, PATIENCE);
    let begun = Instant::now();
    let is_left = |worker: &Worker| {
        let usage = worker.xdp().expect("there is an NI").transfer_usage();
        (usage.messages, usage.frames, usage.incoming, usage.partials, usage.buffered) != (0, 0, 0, 0, 0)
    };
    while workers.iter().any(is_left) && begun.elapsed() < PATIENCE {
        workers.iter_mut().for_each(|worker| {
            worker.progress();
        });
    }
}

/// Where an acknowledgement stands: with which shard, and in which place among all that it has seen.
type Place = (ShardId, usize);

/// The places of Puts that were acknowledged and have not been seen to arrive.
fn unseen(flood: &Flood, arrivals: &Arrivals) -> Vec<Place> {
    let lives = arrivals.lives();
    let is_unseen = |number: u64| lives.get(number as usize).is_none_or(|life| *life == 0);
    let numbers = flood.acked_numbers().into_iter();
    let places = numbers.flat_map(|(shard, numbers)| {
        (0..).zip(numbers).filter(|(_, number)| is_unseen(*number)).map(move |(place, _)| (shard, place))
    });
    places.collect()
}

/// Acknowledgements that each shard has seen.
fn acked_by_shard(flood: &Flood) -> BTreeMap<ShardId, usize> {
    flood.acked_numbers().into_iter().map(|(shard, numbers)| (shard, numbers.len())).collect()
}

/// Kills a target, which may not have looked at what was acknowledged in these places.
fn kill_unseen(flood: &Flood, target: Killed) -> BTreeMap<ShardId, Range<usize>> {
    let before = acked_by_shard(flood);
    target.kill();
    // What was acknowledged last may be on its way still, to a shard that gets no CPU for a while.
    let end = |(shard, acked): (ShardId, usize)| (shard, acked + FLOOD_WINDOW as usize);
    let until = acked_by_shard(flood).into_iter().map(end);
    let from = |shard: &ShardId| before.get(shard).map_or(0, |acked| acked.saturating_sub(UNSEEN_BEFORE));
    until.map(|(shard, until)| (shard, from(&shard)..until)).collect()
}

fn restarts(workers: &[Worker]) -> u64 {
    workers
        .iter()
        .map(|worker| worker.xdp().expect("there is an NI").transfer_counters().peers_restarted)
        .sum()
}

/// Puts to the life before end with an event that says so, those to the next one arrive.
#[test]
fn a_target_is_killed() {
    const LIVES: u8 = 20;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let source_config = config(netns.a(), a).lnd_timeout(PATIENT_TIMEOUT);
    let (_source, source_workers) = start(netns.a(), &source_config);
    let file = Arrivals::file();
    let begin = |life: u8| {
        let variables = [(CHILD, b.to_string()), (LIFE, life.to_string())];
        Killed::start(netns.b(), "target_that_is_killed", file.try_clone().unwrap().into(), &variables)
    };
    let flood = Flood::new(process(b), 1 << 40, PUT_BYTES);
    let reset = || flood.failures().get("Unknown(Reset)").copied().unwrap_or(0);
    let sources = Flooder::start_all(&flood, By::Application, source_workers);
    let mut target = begin(1);
    let mut resets = Vec::new();
    let mut kills = Vec::new();
    let taken = flood.acked();
    wait_for(&mut target, "the first life takes Puts", || flood.acked() > taken + PUTS);
    for life in 1..=LIVES {
        let reset_before = reset();
        kills.push(kill_unseen(&flood, target));
        target = begin(life + 1);
        let acked = flood.acked();
        // A window is always under way, so that something breaks off.
        wait_for(&mut target, &format!("life {} takes Puts, those to life {life} fail", life + 1), || {
            flood.acked() > acked + PUTS && reset() > reset_before
        });
        resets.push(reset() - reset_before);
    }
    flood.stop();
    wait_for(&mut target, "every Put has ended", || flood.acked() + flood.failed() == flood.started());
    let (mut workers, _) = stop_all(sources);
    outlast(&mut workers);
    assert_nothing_left(&workers);
    assert!(workers.iter().all(|worker| worker.usage().memory_descs == 0));

    let (acked, failed, mut failures) = (flood.acked(), flood.failed(), flood.failures());
    let arrivals = Arrivals::new(file);
    // What the last life has acknowledged it looks at in no time, and the others had but for their last
    // turns.
    let unseen = || unseen(&flood, &arrivals);
    let is_by_kill = |(shard, place): &Place| {
        kills.iter().any(|kill| kill.get(shard).is_some_and(|it| it.contains(place)))
    };
    println!("{acked} acknowledged, {} not seen, {failures:?}, resets by life {resets:?}", unseen().len());
    wait_for(&mut target, "what was acknowledged has arrived", || unseen().iter().all(is_by_kill));
    let unseen = unseen().len() as u64;
    assert!(unseen <= u64::from(LIVES) * UNSEEN, "{unseen} of {acked} were acknowledged and never seen");
    let lives = arrivals.lives();
    let took = |life: u8| lives.iter().filter(|of| **of == life).count() as u64;
    let arrived = lives.len() as u64 - took(0);
    assert!(arrived <= acked + failed, "{arrived} of {acked} and {failed}");
    for life in 1..=LIVES + 1 {
        // Acknowledgements that were still on their way from the life before count here.
        let count = took(life);
        assert!(count + 2 * WINDOW > PUTS, "life {life} took {count}");
    }
    assert!(failures.remove("Unknown(Reset)").is_some_and(|count| count >= LIVES.into()), "{resets:?}");
    assert!(failures.remove(UNANSWERED).unwrap_or(0) <= u64::from(LIVES) * WINDOW, "{:?}", flood.failures());
    assert!(failures.is_empty(), "{failures:?}");
    assert!(resets.iter().all(|count| *count <= 2 * WINDOW), "only what was under way fails: {resets:?}");
    let restarts = restarts(&workers);
    assert!(restarts >= u64::from(LIVES), "{restarts} restarts of {LIVES} were noticed");
}

/// What the life before has begun ends at the target too, and the next one's Puts arrive.
#[test]
fn an_initiator_is_killed() {
    const LIVES: u8 = 4;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let (target, target_workers) = start(netns.a(), &config(netns.a(), a));
    let arrivals = Arrivals::new(Arrivals::file());
    // Numbers say which life of the initiator a Put is of.
    let targets = Checked::start_all(&arrivals, 1, PUT_BYTES, target.steering(), target_workers);
    for life in 1..=LIVES {
        let variables = [(CHILD, b.to_string()), (LIFE, life.to_string()), (TARGET, a.to_string())];
        let mut source = Killed::start(netns.b(), "initiator_that_is_killed", Stdio::null(), &variables);
        let before = arrivals.count();
        wait_for(&mut source, &format!("Puts of life {life}"), || arrivals.count() > before + PUTS);
        source.kill();
    }
    let (mut workers, mut targets) = stop_all(targets);
    // What had come in part ends with an event.
    outlast(&mut workers);
    for (worker, target) in workers.iter_mut().zip(&mut targets) {
        target.turn(worker);
    }
    assert_nothing_left(&workers);
    println!("{} arrived, {} in part, {} restarts", arrivals.count(), arrivals.broken(), restarts(&workers));
    assert!(arrivals.broken() <= u64::from(LIVES) * WINDOW, "{} of {}", arrivals.broken(), arrivals.count());
}
