//! The console: has nodes be servers and clients of a test, and adds up what they say.
//!
//! Invariants: each step goes to the nodes that have obeyed so far; a node that says nothing for too long is
//! left out, and named; what nodes were told to be ends with the run, whatever came of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::runtime::Runtime;

use crate::options::{ConsoleOptions, PlaceOptions, Test};
use crate::orders::{Answer, Command, Desk, Heard, Order, Outcome, Plan, Role, Said, Status};
use crate::output::note;
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
        // Nodes that are left of a run that has failed.
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
        self.watch(&clients, &servers, begun, limit)?;
        let elapsed = begun.elapsed();
        let parts = self.stop(&clients)?;
        let served = self.stop(&servers)?;
        total(test, parts, served, elapsed)
    }

    /// A step towards the start: who answers is busy from then on, and a server is where it says.
    fn begin(
        &mut self,
        members: &[Member],
        what: &str,
        command: impl FnMut(&Member) -> Command,
    ) -> Result<Vec<Member>> {
        let answered = self.step(members, what, command)?;
        let as_told = |(member, said)| match said {
            Said::Serves(data) => Member { data, ..member },
            _ => member,
        };
        let members: Vec<_> = answered.into_iter().map(as_told).collect();
        self.busy.extend(members.iter().cloned());
        Ok(members)
    }

    /// Asks nodes how far they are until all clients are over, none answers, or the time is. Servers, and
    /// clients that are over, are asked as well: a node whose console says nothing is free again.
    fn watch(
        &mut self,
        clients: &[Member],
        servers: &[Member],
        begun: Instant,
        limit: Option<Duration>,
    ) -> Result<()> {
        let (mut clients, mut servers, mut is_over) = (clients.to_vec(), servers.to_vec(), false);
        while !is_over && limit.is_none_or(|limit| begun.elapsed() < limit) {
            let next = Instant::now() + STATUS_INTERVAL;
            let (mut ended, mut over) = (0, 0);
            for status in self.ask(&mut clients)? {
                ended += status.ended;
                over += usize::from(status.is_over);
            }
            self.ask(&mut servers)?;
            let working = clients.len() - over;
            note(format_args!("{ended} exchanges; {working} clients at work, {over} have ended"));
            is_over = working == 0;
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(begun.elapsed()));
            // The first rounds come soon, so that a short test is over soon.
            let pause = next.saturating_duration_since(Instant::now()).min(begun.elapsed() / 4).min(left);
            std::thread::sleep(if is_over { Duration::ZERO } else { pause });
        }
        Ok(())
    }

    /// Asks nodes how far they are. Nodes that do not answer are asked no more.
    fn ask(&mut self, nodes: &mut Vec<Member>) -> Result<Vec<Status>> {
        let mut told = Vec::new();
        for (member, said) in self.step(&std::mem::take(nodes), "STATUS", |_| Command::Status)? {
            let Said::Status(status) = said else { bail!("{} answers STATUS wrongly", member.address) };
            told.push(status);
            nodes.push(member);
        }
        Ok(told)
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
        note(format_args!("lnet-nettest: {} is left out: {why}", member.address));
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
    let (mut counts, mut parts) = (Counts::new(), Vec::new());
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
pub(crate) mod tests;
