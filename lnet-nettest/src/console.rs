//! The console: has nodes be servers and clients of a test, and adds up what they say.
//!
//! Invariants: each step goes to the nodes that have obeyed so far; a node that says nothing for too long is
//! left out, and named; what nodes were told to be ends with the run, whatever came of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::runtime::Runtime;

use crate::options::{ConsoleOptions, PlaceOptions, Test};
use crate::orders::{Answer, Command, Desk, Heard, Order, Outcome, Plan, Role, Said};
use crate::place::Place;
use crate::report::{Counts, Part, Report};

/// Answers that a console has room for, besides two of each node.
const DEPTH: usize = 16;
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often clients are asked how far they are.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How often a console looks for nodes that do not answer.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

/// A node: where it takes orders, and where test messages go.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Member {
    address: String,
    data: String,
}

/// The nodes of one kind, `server` or `client`, by both lists of addresses.
fn members(kind: &str, addresses: &[String], data: &[String]) -> Result<Vec<Member>> {
    if addresses.len() != data.len() {
        let (nodes, given) = (addresses.len(), data.len());
        bail!("--{kind}s: {nodes} addresses, --{kind}-data has {given}: the same number is expected");
    }
    for (option, addresses) in [(format!("{kind}s"), addresses), (format!("{kind}-data"), data)] {
        check_distinct(&option, addresses)?;
    }
    let pairs = addresses.iter().cloned().zip(data.iter().cloned());
    Ok(pairs.map(|(address, data)| Member { address, data }).collect())
}

/// Refuses an address that is given twice.
fn check_distinct(option: &str, addresses: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    match addresses.iter().find(|address| !seen.insert(address.as_str())) {
        Some(address) => bail!("--{option} has `{address}` twice: each address once is expected"),
        None => Ok(()),
    }
}

/// Has each client test each server, and adds up what they report.
pub(crate) fn run(place: &PlaceOptions, options: &ConsoleOptions, test: &Test) -> Result<Report> {
    let servers = members("server", &options.servers, &options.server_data)?;
    let clients = members("client", &options.clients, &options.client_data)?;
    let (limit, depth) = (options.limit.map(Duration::from_secs), options.depth);
    let room = DEPTH + 2 * (servers.len() + clients.len());
    let console = Console::new(&Place::new(place, room as u32)?, room, PATIENCE)?;
    console.run(&servers, &clients, test, depth, limit)
}

struct Console {
    desk: Desk,
    runtime: Runtime,
    /// How long nodes may take to answer.
    patience: Duration,
    number: u64,
    /// Nodes that have been told to be something, and not to end.
    busy: BTreeSet<Member>,
    silent: BTreeSet<String>,
}

impl Console {
    fn new(place: &Place, room: usize, patience: Duration) -> Result<Self> {
        let (busy, silent) = Default::default();
        Ok(Self { desk: Desk::new(place, room)?, runtime: runtime()?, patience, number: 0, busy, silent })
    }

    fn run(
        mut self,
        servers: &[Member],
        clients: &[Member],
        test: &Test,
        depth: Option<u32>,
        limit: Option<Duration>,
    ) -> Result<Report> {
        let result = self.steps(servers, clients, test, depth, limit);
        // What is left of a run that has failed.
        let busy: Vec<_> = std::mem::take(&mut self.busy).into_iter().collect();
        if !busy.is_empty() {
            let _ = self.step(&busy, "STOP", |_| Command::Stop);
        }
        self.desk.0.stop()?;
        Ok(Report { silent: self.silent.into_iter().collect(), ..result? })
    }

    fn steps(
        &mut self,
        servers: &[Member],
        clients: &[Member],
        test: &Test,
        depth: Option<u32>,
        limit: Option<Duration>,
    ) -> Result<Report> {
        let service = test.service_for(clients.len(), depth);
        let init = |member: &Member, role| Command::Init(Box::new(Plan { data: member.data.clone(), role }));
        let servers = self.begin(servers, "INIT", |member| init(member, Role::Server(service)))?;
        let data: Vec<_> = servers.iter().map(|server| server.data.clone()).collect();
        let mut turn = 0;
        let clients = self.begin(clients, "INIT", |member| {
            // Not all on the same server at the beginning.
            let mut servers = data.clone();
            servers.rotate_left(turn % data.len());
            turn += 1;
            init(member, Role::Client { servers, test: test.clone() })
        })?;
        let servers = self.begin(&servers, "START", |_| Command::Start)?;
        let begun = Instant::now();
        let clients = self.begin(&clients, "START", |_| Command::Start)?;
        self.watch(&clients, begun, limit)?;
        let elapsed = begun.elapsed();
        let parts = self.stop(&clients)?;
        let served = self.stop(&servers)?;
        total(test, parts, served, elapsed)
    }

    /// A step towards the start: who answers is busy from then on.
    fn begin(
        &mut self,
        members: &[Member],
        what: &str,
        command: impl FnMut(&Member) -> Command,
    ) -> Result<Vec<Member>> {
        let answered = self.step(members, what, command)?;
        let members: Vec<_> = answered.into_iter().map(|(member, _)| member).collect();
        self.busy.extend(members.iter().cloned());
        Ok(members)
    }

    /// Asks clients how far they are until all are over, none answers, or the time is.
    fn watch(&mut self, clients: &[Member], begun: Instant, limit: Option<Duration>) -> Result<()> {
        let mut working = clients.to_vec();
        while !working.is_empty() && limit.is_none_or(|limit| begun.elapsed() < limit) {
            let next = Instant::now() + STATUS_INTERVAL;
            let told = self.step(&working, "STATUS", |_| Command::Status)?;
            let (mut ended, mut over) = (0, 0);
            working.clear();
            for (member, said) in told {
                let Said::Status(status) = said else { bail!("{} answers STATUS wrongly", member.address) };
                ended += status.ended;
                if status.is_over {
                    over += 1;
                } else {
                    working.push(member);
                }
            }
            eprintln!("{ended} exchanges; {} clients at work, {over} have ended", working.len());
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(begun.elapsed()));
            // The first rounds come soon, so that a short test is over soon.
            let pause = next.saturating_duration_since(Instant::now()).min(begun.elapsed() / 4).min(left);
            std::thread::sleep(if working.is_empty() { Duration::ZERO } else { pause });
        }
        Ok(())
    }

    /// Ends nodes. What came of their work.
    fn stop(&mut self, members: &[Member]) -> Result<Vec<(Member, Outcome)>> {
        let members: Vec<_> = members.iter().filter(|member| self.busy.contains(member)).cloned().collect();
        self.busy.retain(|member| !members.contains(member));
        let stopped = self.step(&members, "STOP", |_| Command::Stop)?.into_iter();
        let outcome = |(member, said): (Member, Said)| match said {
            Said::Stopped(outcome) => Ok((member, outcome)),
            _ => bail!("{} answers STOP wrongly", member.address),
        };
        stopped.map(outcome).collect()
    }

    /// Sends an order to each of these nodes, and waits for what they say.
    ///
    /// # Errors
    /// `ENETUNREACH` where none answers; what one says that does not obey.
    fn step(
        &mut self,
        members: &[Member],
        what: &str,
        mut command: impl FnMut(&Member) -> Command,
    ) -> Result<Vec<(Member, Said)>> {
        let (mut waiting, mut sends) = (BTreeMap::new(), BTreeMap::new());
        for member in members {
            self.number += 1;
            let order = Order { number: self.number, command: command(member) };
            sends.insert(self.desk.send(&member.address, &order)?, self.number);
            waiting.insert(self.number, member.clone());
        }
        let (mut answered, mut refusals) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + self.patience;
        while !waiting.is_empty() && Instant::now() < deadline {
            match self.runtime.block_on(self.desk.next::<Answer>(LOOK))? {
                // Others are answers to orders that were given up.
                Some(Heard::Message(_, Answer { number, said })) => {
                    let Some(member) = waiting.remove(&number) else { continue };
                    match said {
                        Ok(said) => answered.push((member, said)),
                        Err(why) => refusals.push(format!("{}: {what}: {why}", member.address)),
                    }
                }
                Some(Heard::NotSent(id, errno)) => {
                    let Some(member) = sends.get(&id).and_then(|number| waiting.remove(number)) else {
                        continue;
                    };
                    self.leave_out(&member, &format!("{what} was not sent: {errno}"));
                }
                None => {}
            }
        }
        for member in waiting.values() {
            self.leave_out(member, &format!("no answer to {what} in {:?}", self.patience));
        }
        if !refusals.is_empty() {
            bail!("{}", refusals.join("; "));
        }
        if answered.is_empty() && !members.is_empty() {
            let names: Vec<_> = members.iter().map(|member| member.address.as_str()).collect();
            bail!("ENETUNREACH: no node answers {what}: {}", names.join(", "));
        }
        Ok(answered)
    }

    fn leave_out(&mut self, member: &Member, why: &str) {
        eprintln!("lnet-nettest: {} is left out: {why}", member.address);
        self.busy.remove(member);
        self.silent.insert(member.address.clone());
    }
}

/// The report of the whole.
fn total(
    test: &Test,
    clients: Vec<(Member, Outcome)>,
    servers: Vec<(Member, Outcome)>,
    elapsed: Duration,
) -> Result<Report> {
    let (mut counts, mut parts) = (Counts::new()?, Vec::new());
    for (member, outcome) in clients {
        let Outcome::Client { report, round_trips } = outcome else { bail!("{member:?} was no client") };
        counts.add(&report, &round_trips)?;
        parts.push(Part::Client(report));
    }
    for (member, outcome) in servers {
        let Outcome::Server(served) = outcome else { bail!("{member:?} was no server") };
        parts.push(Part::Server { address: member.data, served });
    }
    let report = counts.report_of(test, "all", "all", elapsed);
    Ok(Report { parts, ..report })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;

    use super::*;
    use crate::node::Node;
    use crate::options::{Kind, TransportName};
    use crate::report::{RoundTrips, Served};

    pub(crate) fn place(address: &str) -> Place {
        let (transport, address) = (TransportName::Mem, address.to_owned());
        Place::new(&PlaceOptions::of(transport, address), 64).unwrap()
    }

    pub(crate) fn test(count: u64) -> Test {
        Test { kind: Kind::Ping, size: 64, concurrency: 1, count: Some(count), duration: None, timeout: 60 }
    }

    /// A node on a thread of its own.
    struct Running {
        ends: Arc<AtomicBool>,
        thread: JoinHandle<()>,
    }

    fn end(nodes: impl IntoIterator<Item = Vec<Running>>) {
        let nodes: Vec<_> = nodes.into_iter().flatten().collect();
        nodes.iter().for_each(|node| node.ends.store(true, Ordering::Relaxed));
        nodes.into_iter().for_each(|node| node.thread.join().unwrap());
    }

    fn node(address: &str) -> Running {
        serve(Node::start(place(address)).unwrap())
    }

    fn serve(mut node: Node) -> Running {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            node.serve(|| !ended.load(Ordering::Relaxed)).unwrap();
            node.desk.0.stop().unwrap();
        });
        Running { ends, thread }
    }

    /// Nodes of one kind: addresses are those of one test.
    fn some(net: u8, kind: u8, count: usize) -> Vec<Member> {
        let name = |what: u8, number: usize| format!("127.{net}.{}.{number}:1", kind + what);
        (1..=count).map(|number| Member { address: name(0, number), data: name(1, number) }).collect()
    }

    fn start(members: &[Member]) -> Vec<Running> {
        members.iter().map(|member| node(&member.address)).collect()
    }

    const SERVERS: u8 = 1;
    const CLIENTS: u8 = 3;
    /// How long a node that lives may say nothing, on a machine that has other things to do.
    const TEST_PATIENCE: Duration = Duration::from_secs(5);

    fn console(net: u8, patience: Duration) -> Console {
        Console::new(&place(&format!("127.{net}.9.1:1")), 300, patience).unwrap()
    }

    fn go(net: u8, servers: &[Member], clients: &[Member], test: &Test) -> Result<Report> {
        console(net, TEST_PATIENCE).run(servers, clients, test, None, None)
    }

    fn served(report: &Report) -> Served {
        report.parts.iter().fold(Served::default(), |sum, part| match part {
            Part::Server { served, .. } => sum.plus(served),
            Part::Client(_) => sum,
        })
    }

    #[test]
    fn nt_03_addresses_are_given_once_and_in_pairs() {
        for count in [0, 1, 2, 64] {
            let mut names: Vec<_> =
                some(41, SERVERS, count).into_iter().map(|member| member.address).collect();
            assert_eq!(members("server", &names, &names).unwrap().len(), count);
            if let Some(last) = names.last().cloned() {
                let refused = members("server", &names, &names[1..]).unwrap_err().to_string();
                assert!(refused.contains("the same number"), "{refused}");
                names.insert(0, last.clone());
                let refused = members("client", &names, &names).unwrap_err().to_string();
                assert!(refused.contains(&last) && refused.contains("twice"), "{refused}");
            }
        }
    }

    #[test]
    fn nt_09_one_node_in_many_rounds_and_many_nodes() {
        let (servers, clients) = (some(43, SERVERS, 1), some(43, CLIENTS, 1));
        let nodes = [start(&servers), start(&clients)];
        for _ in 0..32 {
            assert_eq!(go(43, &servers, &clients, &test(2)).unwrap().done, 2);
        }
        end(nodes);

        let (servers, clients) = (some(44, SERVERS, 1), some(44, CLIENTS, 64));
        let nodes = [start(&servers), start(&clients)];
        let report = go(44, &servers, &clients, &test(1)).unwrap();
        assert_eq!((report.done, report.parts.len()), (64, 65));
        end(nodes);
    }

    #[test]
    fn nt_09_nodes_that_do_not_answer_are_left_out() {
        let (servers, clients) = (some(46, SERVERS, 4), some(46, CLIENTS, 4));
        let nodes = [start(&servers[..2]), start(&clients[..2])];
        // These have room for orders, and nothing that does them; others are not there at all.
        let deaf: Vec<_> = [&servers[2], &clients[2]].map(|member| place(&member.address)).into();
        let deaf: Vec<_> = deaf.iter().map(|place| Desk::new(place, DEPTH).unwrap()).collect();
        let report =
            console(46, Duration::from_secs(1)).run(&servers, &clients, &test(5), None, None).unwrap();
        assert_eq!((report.done, report.parts.len()), (20, 4), "{report:?}");
        let silent: Vec<_> =
            [&servers[2..], &clients[2..]].concat().into_iter().map(|member| member.address).collect();
        assert_eq!(report.silent, silent);
        let refused = console(46, Duration::from_secs(1)).run(&servers[2..], &clients, &test(5), None, None);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("ENETUNREACH") && refused.contains("INIT"), "{refused}");
        // Nodes of a run that has failed are free for the next one.
        assert_eq!(go(46, &servers[..2], &clients[..2], &test(1)).unwrap().done, 4);
        end(nodes);
        deaf.into_iter().for_each(|desk| desk.0.stop().unwrap());
    }

    /// The second command queues behind one that the console has given up, and the answers come in that
    /// order.
    #[test]
    fn nt_09_an_answer_that_comes_too_late_is_none_to_the_next_command() {
        let servers = some(52, SERVERS, 1);
        let node = Node::start(place(&servers[0].address)).unwrap();
        let mut console = console(52, Duration::from_secs(1));
        let plan = Plan { data: servers[0].data.clone(), role: Role::Server(test(1).service()) };
        let begun = Instant::now();
        let given_up = console.step(&servers, "INIT", |_| Command::Init(Box::new(plan.clone())));
        assert!(given_up.unwrap_err().to_string().contains("ENETUNREACH"));
        assert!(begun.elapsed() >= Duration::from_secs(1));
        console.patience = TEST_PATIENCE;
        let node = std::thread::spawn(move || {
            node.desk.wait_for(2);
            serve(node)
        });
        let answers = console.step(&servers, "STATUS", |_| Command::Status).unwrap();
        assert!(matches!(&answers[..], [(_, Said::Status(_))]), "{answers:?}");
        console.step(&servers, "STOP", |_| Command::Stop).unwrap();
        console.desk.0.stop().unwrap();
        end([vec![node.join().unwrap()]]);
    }

    #[test]
    fn nt_09_a_node_that_refuses_ends_the_run_and_the_others() {
        let (servers, clients) = (some(47, SERVERS, 1), some(47, CLIENTS, 1));
        let nodes = [start(&servers), start(&clients)];
        let refused = go(47, &servers, &clients, &test(0)).unwrap_err().to_string();
        assert!(refused.contains(&clients[0].address) && refused.contains("1 at least"), "{refused}");
        assert_eq!(go(47, &servers, &clients, &test(1)).unwrap().done, 1);
        end(nodes);
    }

    #[test]
    fn a_run_ends_at_its_limit() {
        let (servers, clients) = (some(48, SERVERS, 1), some(48, CLIENTS, 2));
        let nodes = [start(&servers), start(&clients)];
        let limit = Some(Duration::from_secs(1));
        let begun = Instant::now();
        let report =
            console(48, TEST_PATIENCE).run(&servers, &clients, &test(u64::MAX), None, limit).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert!(report.done > 0 && report.lost + report.failed + report.bad == 0, "{report:?}");
        end(nodes);
    }

    /// What both sides count is the same, where nothing is lost.
    fn check_totals(net: u8, count: usize, test: &Test) {
        let (servers, clients) = (some(net, SERVERS, count), some(net, CLIENTS, count));
        let nodes = [start(&servers), start(&clients)];
        let report = go(net, &servers, &clients, test).unwrap();
        end(nodes);
        let exchanges = test.count() * (count * count) as u64;
        assert_eq!((report.done + report.lost, report.failed, report.bad), (exchanges, 0, 0), "{report:?}");
        let served = served(&report);
        assert!(report.done * 5 >= exchanges * 4, "a fifth at most is lost: {report:?}");
        assert!(served.received >= report.done && served.received <= exchanges, "{served:?}");
        if test.kind == Kind::Bulk {
            assert!(served.written >= report.done && served.read >= served.written, "{served:?}");
        } else {
            assert!(served.sent >= report.done, "{served:?}");
        }
        let round_trips = &report.round_trip_ns;
        assert_eq!(round_trips.count, report.done);
        assert!(round_trips.p50.unwrap() > 0 && round_trips.p50 <= round_trips.p99, "{round_trips:?}");
    }

    #[test]
    fn nt_10_a_stub_one_by_one() {
        let (servers, clients) = (some(49, SERVERS, 1), some(49, CLIENTS, 1));
        let nodes = [start(&servers), start(&clients)];
        let report = go(49, &servers, &clients, &Test { kind: Kind::Stub, ..test(1) }).unwrap();
        assert_eq!((report.done, report.parts.len(), served(&report).received), (0, 2, 0));
        end(nodes);
    }

    #[test]
    fn nt_10_pings_eight_by_eight() {
        check_totals(50, 8, &Test { size: 4096, concurrency: 8, ..test(4096) });
    }

    #[test]
    fn nt_10_bulk_two_by_two() {
        check_totals(51, 2, &Test { kind: Kind::Bulk, size: 1 << 20, concurrency: 2, ..test(64) });
    }

    #[test]
    fn totals_are_those_of_all_parts() {
        let round_trips = RoundTrips::of_values(&[100, 300]);
        let mut counts = Counts::new().unwrap();
        let report = Report { done: 2, lost: 1, ..Report::empty(&test(3), "a", "b") };
        for _ in 0..2 {
            counts.add(&report, &round_trips).unwrap();
        }
        let whole = counts.report_of(&test(3), "all", "all", Duration::from_secs(2));
        assert_eq!((whole.done, whole.lost, whole.exchanges_per_s), (4, 2, 2.0));
        let round_trips = whole.round_trip_ns;
        assert_eq!((round_trips.count, round_trips.min, round_trips.max), (4, 100, 300));
        assert_eq!(round_trips.mean, 200.0);
    }
}
