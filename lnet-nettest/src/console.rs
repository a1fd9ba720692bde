//! Nodes that are servers and clients as a console says, by messages of JSON.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lnet_messaging::{Event, Operation, QueueType};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::client;
use crate::options::{PlaceOptions, Service, Test};
use crate::place::{Place, Station};
use crate::report::{Distribution, Report};
use crate::server::{self, Server};

/// Longest order or answer.
const MESSAGE_BYTES: u64 = 1 << 14;
/// Orders that a node has room for, and answers that a console has besides those of its clients.
const DEPTH: usize = 16;
/// Answers of each client that a console has room for.
const ANSWERS: usize = 4;
/// How long a node may say nothing. One that works tells of it once a second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a console looks for clients that say nothing.
const LOOK: Duration = Duration::from_millis(100);

/// What a console asks of a node: be a client of this server.
#[derive(Serialize, Deserialize)]
struct Order {
    number: u64,
    server: String,
    test: Test,
}

/// What a node says of an order.
#[derive(Serialize, Deserialize)]
struct Answer {
    number: u64,
    state: State,
}

#[derive(Serialize, Deserialize)]
enum State {
    /// So many exchanges have ended.
    Working(u64),
    Ended(Result<Box<Report>, String>),
}

/// A transfer machine for orders and answers.
struct Desk(Station);

impl Desk {
    /// With room for so many messages.
    fn new(place: &Place, depth: usize) -> Result<Self> {
        let station = Station::start(place)?;
        for _ in 0..depth {
            station.receive(station.allocate(MESSAGE_BYTES)?)?;
        }
        Ok(Self(station))
    }

    fn send(&self, to: &str, message: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        if text.len() as u64 > MESSAGE_BYTES {
            bail!("a message of {} bytes: {MESSAGE_BYTES} at most are expected", text.len());
        }
        let mut buffer = self.0.allocate(text.len() as u64)?;
        buffer.fill(&text);
        let to = self.0.tm.create_end_point(to)?;
        self.0.tm.add(buffer, Operation::Send { to, length_bytes: text.len() as u64 })?;
        Ok(())
    }

    /// The next message and its sender. What is no such message is passed over; a message that was not sent is an error.
    async fn next<M: for<'a> Deserialize<'a>>(&mut self) -> Result<(String, M)> {
        loop {
            let event = match self.0.events.next().await.context("the transfer machine is gone")? {
                Event::Buffer(event) => event,
                Event::Tm(_) => continue,
            };
            if event.queue() == QueueType::Send {
                event.status.map_err(|errno| anyhow::anyhow!("a message was not sent: {errno}"))?;
                continue;
            }
            let message = serde_json::from_slice(&event.payload_bytes());
            let sender = event.end_point.as_ref().map(|sender| sender.address().to_owned());
            if let Some(buffer) = event.into_buffer() {
                self.0.receive(buffer)?;
            }
            if let (Ok(message), Some(sender)) = (message, sender) {
                return Ok((sender, message));
            }
        }
    }
}

/// A server that is a client as consoles say.
struct Node {
    place: Place,
    data: String,
    server: Server,
    desk: Desk,
}

impl Node {
    fn start(place: Place, data: &str, service: &Service) -> Result<Self> {
        let server = server::start(&place.at(data), service)?;
        Ok(Self { desk: Desk::new(&place, DEPTH)?, place, data: data.to_owned(), server })
    }

    /// Does what a console says, and tells it of that.
    fn serve_one(&mut self, runtime: &Runtime) -> Result<()> {
        let (console, Order { number, server, test }) = runtime.block_on(self.desk.next())?;
        let desk = &self.desk;
        let tell = |state| desk.send(&console, &Answer { number, state });
        tell(State::Working(0))?;
        // What cannot be told now is told a second later.
        let working = |ended| drop(tell(State::Working(ended)));
        let place = self.place.at(&client_address(&self.data)?);
        let outcome = test.check().and_then(|()| client::run(&place, &server, &test, working));
        tell(State::Ended(outcome.map(Box::new).map_err(|error| format!("{error:#}"))))
    }
}

/// Serves, and does what consoles say, one order behind the other.
pub(crate) fn node(place: &PlaceOptions, data: &str, service: &Service) -> Result<()> {
    client_address(data)?;
    let mut node = Node::start(Place::new(place)?, data, service)?;
    eprintln!("serving at {}, for consoles at {}", node.server.address(), node.place.address);
    let runtime = runtime()?;
    loop {
        // A console that has gone meanwhile is no reason to end.
        if let Err(error) = node.serve_one(&runtime) {
            eprintln!("lnet-nettest: {error:#}");
        }
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

/// The address of a node's client: the last number of its data address, and one.
fn client_address(data: &str) -> Result<String> {
    let (before, last) = data.rsplit_once(':').context("an address has parts")?;
    let next = last.parse::<u32>().ok().and_then(|last| last.checked_add(1));
    let next = next.with_context(|| format!("address `{data}`: a number at the end is expected"))?;
    Ok(format!("{before}:{next}"))
}

/// Refuses an address that is given twice.
fn check_distinct(option: &str, addresses: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    match addresses.iter().find(|address| !seen.insert(address.as_str())) {
        Some(address) => bail!("{option} has `{address}` twice: each address once is expected"),
        None => Ok(()),
    }
}

/// Has each client test each server, and adds up what they report.
pub(crate) fn run(
    place: &PlaceOptions,
    clients: &[String],
    servers: &[String],
    test: &Test,
) -> Result<Report> {
    check_distinct("--clients", clients)?;
    check_distinct("--servers", servers)?;
    Console::new(&Place::new(place)?, clients.len(), PATIENCE)?.run(clients, servers, test)
}

/// What is not over of an order.
struct Pending<'a> {
    client: &'a str,
    told_at: Instant,
}

struct Console {
    desk: Desk,
    runtime: Runtime,
    /// How long clients may say nothing.
    patience: Duration,
    parts: Vec<Report>,
    silent: BTreeSet<String>,
}

impl Console {
    fn new(place: &Place, clients: usize, patience: Duration) -> Result<Self> {
        let (parts, silent) = Default::default();
        let desk = Desk::new(place, DEPTH + ANSWERS * clients)?;
        Ok(Self { desk, runtime: runtime()?, patience, parts, silent })
    }

    fn run(mut self, clients: &[String], servers: &[String], test: &Test) -> Result<Report> {
        let begun = Instant::now();
        // Clients work side by side, each on one server at a time, and not all on the same.
        for turn in 0..servers.len() {
            let mut pending = BTreeMap::new();
            for (index, client) in clients.iter().enumerate().filter(|(_, name)| !self.silent.contains(*name))
            {
                let number = (turn * clients.len() + index) as u64;
                let server = servers[(turn + index) % servers.len()].clone();
                self.desk.send(client, &Order { number, server, test: test.clone() })?;
                pending.insert(number, Pending { client, told_at: Instant::now() });
            }
            while !pending.is_empty() {
                self.take(&mut pending)?;
            }
        }
        if self.parts.is_empty() {
            bail!("no client answers: {}", Vec::from_iter(self.silent).join(", "));
        }
        self.desk.0.stop()?;
        let silent = self.silent.into_iter().collect();
        Ok(Report { silent, ..total(test, self.parts, begun.elapsed()) })
    }

    /// Takes an answer, or gives up clients that have said nothing for too long.
    fn take(&mut self, pending: &mut BTreeMap<u64, Pending>) -> Result<()> {
        let next = self.desk.next::<Answer>();
        let answer = self.runtime.block_on(async { tokio::time::timeout(LOOK, next).await });
        if let Ok(answer) = answer {
            let (sender, Answer { number, state }) = answer?;
            match (state, pending.get_mut(&number)) {
                (State::Working(ended), Some(order)) => {
                    order.told_at = Instant::now();
                    eprintln!("{sender}: {ended} exchanges so far");
                }
                (State::Ended(outcome), Some(_)) => {
                    pending.remove(&number);
                    let report = outcome.map_err(anyhow::Error::msg);
                    let report = report.with_context(|| format!("client {sender}"))?;
                    eprintln!("{} and {}: {} exchanges", report.client, report.server, report.done);
                    self.parts.push(*report);
                }
                // Of an order that was given up.
                (_, None) => {}
            }
            return Ok(());
        }
        pending.retain(|_, order| {
            let is_silent = order.told_at.elapsed() > self.patience;
            if is_silent {
                eprintln!("lnet-nettest: {} does not answer", order.client);
                self.silent.insert(order.client.to_owned());
            }
            !is_silent
        });
        Ok(())
    }
}

fn total(test: &Test, parts: Vec<Report>, elapsed: Duration) -> Report {
    let sum = |count: fn(&Report) -> u64| parts.iter().map(count).sum::<u64>();
    let done = sum(|part| part.done);
    let exchanges_per_s = done as f64 / elapsed.as_secs_f64();
    let round_trips = parts.iter().map(|part| &part.round_trip_ns).filter(|part| part.count > 0);
    let weighted: f64 = round_trips.clone().map(|part| part.mean * part.count as f64).sum();
    // Quantiles cannot be added up: they stand in the parts.
    let round_trip_ns = Distribution {
        count: done,
        min: round_trips.clone().map(|part| part.min).min().unwrap_or(0),
        max: round_trips.clone().map(|part| part.max).max().unwrap_or(0),
        mean: if done > 0 { weighted / done as f64 } else { 0.0 },
        ..Distribution::default()
    };
    Report {
        test: test.clone(),
        client: "all".to_owned(),
        server: "all".to_owned(),
        elapsed_s: elapsed.as_secs_f64(),
        done,
        failed: sum(|part| part.failed),
        bad: sum(|part| part.bad),
        lost: sum(|part| part.lost),
        bytes_per_s: exchanges_per_s * test.size as f64,
        exchanges_per_s,
        round_trip_ns,
        exchanges_in_a_second: Distribution::default(),
        parts,
        silent: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::JoinHandle;

    use super::*;
    use crate::options::{Kind, TransportName};

    /// As many messages as there are clients at most.
    const SERVICE: Service = Service { message_max: 4096, bulk_max: 4096, depth: 64 };

    fn place(address: &str) -> Place {
        let (transport, address) = (TransportName::Mem, address.to_owned());
        Place::new(&PlaceOptions { transport, address, interface: None, workers: 1 }).unwrap()
    }

    fn test(count: u64) -> Test {
        Test { kind: Kind::Ping, size: 64, concurrency: 1, count: Some(count), duration: None, timeout: 60 }
    }

    /// A node on a thread of its own.
    struct Running {
        /// The node ends when this goes.
        ends: Sender<()>,
        thread: JoinHandle<()>,
    }

    impl Running {
        fn end(self) {
            drop(self.ends);
            self.thread.join().unwrap();
        }
    }

    /// A node that does so many orders, and serves until it is ended. Addresses are those of one test.
    fn node(net: u8, number: usize, orders: usize) -> Running {
        let data = format!("127.{net}.2.{number}:1");
        let mut node = Node::start(place(&format!("127.{net}.1.{number}:1")), &data, &SERVICE).unwrap();
        let (ends, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = runtime().unwrap();
            (0..orders).for_each(|_| node.serve_one(&runtime).unwrap());
            let _ = ended.recv();
            let Node { server, desk, .. } = node;
            server.stop().unwrap();
            desk.0.stop().unwrap();
        });
        Running { ends, thread }
    }

    fn names(net: u8, kind: u8, numbers: impl Iterator<Item = usize>) -> Vec<String> {
        numbers.map(|number| format!("127.{net}.{kind}.{number}:1")).collect()
    }

    /// How long a client that lives may say nothing, on a machine that has other things to do.
    const TEST_PATIENCE: Duration = Duration::from_secs(5);

    /// Has these clients test these servers; what came of it.
    fn console(net: u8, clients: &[String], servers: &[String], test: &Test) -> Result<Report> {
        let place = place(&format!("127.{net}.3.1:1"));
        Console::new(&place, clients.len(), TEST_PATIENCE).unwrap().run(clients, servers, test)
    }

    #[test]
    fn nt_02_orders_and_answers_are_what_they_were_made_from() {
        for number in [0, 1, u64::from(u8::MAX), u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX] {
            let order = Order { number, server: "a:1".to_owned(), test: test(number) };
            let text = serde_json::to_vec(&order).unwrap();
            let again: Order = serde_json::from_slice(&text).unwrap();
            assert_eq!((again.number, again.test.count), (number, Some(number)));
            for end in 0..text.len() {
                assert!(serde_json::from_slice::<Order>(&text[..end]).is_err());
            }
            let answer = serde_json::to_vec(&Answer { number, state: State::Working(number) }).unwrap();
            let again = serde_json::from_slice::<Answer>(&answer).unwrap();
            assert!(again.number == number && matches!(again.state, State::Working(done) if done == number));
        }
        // What is too long for a message is not sent.
        let desk = Desk::new(&place("127.40.3.1:1"), 1).unwrap();
        let server = "x".repeat(MESSAGE_BYTES as usize);
        let refused = desk.send("127.40.3.2:1", &Order { number: 1, server, test: test(1) }).unwrap_err();
        assert!(refused.to_string().contains("16384 at most"), "{refused}");
        desk.0.stop().unwrap();
    }

    #[test]
    fn nt_03_addresses_are_given_once() {
        for count in [0, 1, 2, 64] {
            let mut addresses = names(41, 1, 0..count);
            check_distinct("--clients", &addresses).unwrap();
            if let Some(last) = addresses.last().cloned() {
                addresses.insert(0, last.clone());
                let refused = check_distinct("--clients", &addresses).unwrap_err().to_string();
                assert!(refused.contains(&last) && refused.contains("twice"), "{refused}");
            }
        }
        assert_eq!(client_address("1.2.3.4:5:6").unwrap(), "1.2.3.4:5:7");
        for wrong in ["", "1.2.3.4", "1.2.3.4:x", "1.2.3.4:4294967295"] {
            client_address(wrong).unwrap_err();
        }
    }

    /// Sends orders, and takes what is said of them until each has ended.
    fn obey(net: u8, orders: &[Order]) -> Vec<(u64, Result<Box<Report>, String>)> {
        let mut desk = Desk::new(&place(&format!("127.{net}.3.9:1")), DEPTH).unwrap();
        for order in orders {
            desk.send(&format!("127.{net}.1.1:1"), order).unwrap();
        }
        let (runtime, mut ended, mut begun) = (runtime().unwrap(), Vec::new(), Vec::new());
        while ended.len() < orders.len() {
            let (_, Answer { number, state }) = runtime.block_on(desk.next()).unwrap();
            match state {
                State::Working(0) => begun.push(number),
                State::Working(_) => {}
                // One begins when the one before it has ended.
                State::Ended(outcome) => {
                    ended.push((number, outcome));
                    assert_eq!(begun.len(), ended.len());
                }
            }
        }
        desk.0.stop().unwrap();
        ended
    }

    #[test]
    fn nt_06_a_node_tells_how_each_order_ended() {
        let node = node(42, 1, 4);
        let order = |number, server: &str, test| Order { number, server: server.to_owned(), test };
        let own = "127.42.2.1:1";
        let ended = obey(
            42,
            &[
                order(1, own, test(3)),
                order(2, own, test(0)),
                order(3, "nonsense", test(3)),
                // There is no such server.
                order(4, "127.42.9.9:1", test(3)),
            ],
        );
        assert_eq!(ended.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let [good, nothing, nonsense, nowhere] = ended.try_into().ok().unwrap();
        assert_eq!(good.1.unwrap().done, 3);
        let [nothing, nonsense] = [nothing, nonsense].map(|(_, outcome)| outcome.unwrap_err());
        assert!(nothing.contains("1 at least") && nonsense.contains("a.b.c.d:port"), "{nothing} {nonsense}");
        let nowhere = nowhere.1.unwrap();
        assert_eq!((nowhere.done, nowhere.failed), (0, 3));
        node.end();
    }

    #[test]
    fn a_server_that_goes_does_not_hold_its_client_up() {
        let server = server::start(&place("127.47.2.1:1"), &SERVICE).unwrap();
        let address = server.address().to_owned();
        let endless = Test { concurrency: 4, timeout: 1, ..test(u64::MAX) };
        let endless = Test { count: None, duration: Some(3), ..endless };
        let client =
            std::thread::spawn(move || client::run(&place("127.47.2.2:1"), &address, &endless, drop));
        std::thread::sleep(Duration::from_millis(500));
        server.stop().unwrap();
        let report = client.join().unwrap().unwrap();
        assert!(report.done > 0 && report.failed > 0 && report.bad == 0, "{report:?}");
    }

    #[test]
    fn nt_09_one_node_in_many_rounds_and_many_nodes() {
        const ROUNDS: usize = 32;
        let one = node(43, 1, ROUNDS);
        let [clients, servers] = [1, 2].map(|kind| names(43, kind, 1..2));
        for _ in 0..ROUNDS {
            assert_eq!(console(43, &clients, &servers, &test(2)).unwrap().done, 2);
        }
        one.end();

        const NODES: usize = 64;
        let nodes: Vec<_> = (0..NODES).map(|number| node(44, number, 1)).collect();
        let report = console(44, &names(44, 1, 0..NODES), &names(44, 2, 0..1), &test(1)).unwrap();
        assert_eq!((report.done, report.parts.len()), (64, NODES));
        nodes.into_iter().for_each(Running::end);
    }

    #[test]
    fn nt_09_clients_that_do_not_answer_are_given_up() {
        let live: Vec<_> = (0..2).map(|number| node(46, number, 2)).collect();
        let silent: Vec<_> =
            (2..4).map(|number| Desk::new(&place(&format!("127.46.1.{number}:1")), DEPTH).unwrap()).collect();
        let report = console(46, &names(46, 1, 0..4), &names(46, 2, 0..2), &test(5)).unwrap();
        assert_eq!((report.done, report.parts.len()), (20, 4));
        assert_eq!(report.silent, names(46, 1, 2..4));
        live.into_iter().for_each(Running::end);
        let refused = console(46, &names(46, 1, 2..4), &names(46, 2, 0..1), &test(5)).unwrap_err();
        assert!(refused.to_string().contains("no client answers"), "{refused}");
        silent.into_iter().for_each(|desk| desk.0.stop().unwrap());
    }
}
