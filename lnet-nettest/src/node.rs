//! A node: a server or a client of tests, as its console says.
//!
//! Invariants: an order is answered once; INIT comes before START, and STOP ends what INIT began; a node
//! whose console has gone is free again after a while.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use crate::client::{self, Watch};
use crate::console;
use crate::options::PlaceOptions;
use crate::orders::{Answer, Command, Desk, Heard, Order, Outcome, Plan, Role, Said, Status};
use crate::output::note;
use crate::place::Place;
use crate::report::Counts;
use crate::server::{self, Server};

/// Orders that a node has room for.
const DEPTH: usize = 16;
/// How often a node looks whether its console has gone, and after which silence it has. Consoles ask once a
/// second.
const LOOK: Duration = Duration::from_secs(1);
const ABANDONED: Duration = Duration::from_secs(30);

/// The state of a node at the moment.
enum State {
    Free,
    Server { server: Server, is_started: bool },
    Ready { plan: Box<Plan> },
    Client { plan: Box<Plan>, watch: Arc<Watch>, thread: JoinHandle<Result<Counts>> },
}

pub(crate) struct Node {
    place: Place,
    pub(crate) desk: Desk,
    state: State,
    /// Who said INIT, and when something came from there last.
    console: Option<(String, Instant)>,
}

impl Node {
    pub(crate) fn start(place: Place) -> Result<Self> {
        Ok(Self { desk: Desk::new(&place, DEPTH)?, place, state: State::Free, console: None })
    }

    /// Does what consoles say, as long as `goes_on`.
    pub(crate) fn serve(&mut self, goes_on: impl Fn() -> bool) -> Result<()> {
        let runtime = console::runtime()?;
        while goes_on() {
            match runtime.block_on(self.desk.next(LOOK))? {
                Some(Heard::Message(sender, Order { number, command })) => {
                    let said = self.obey(&sender, command).map_err(|error| format!("{error:#}"));
                    // A console that has gone meanwhile is no reason to end.
                    if let Err(error) = self.desk.send(&sender, &Answer { number, said }) {
                        note(format_args!("lnet-nettest: {sender} gets no answer: {error:#}"));
                    }
                }
                Some(Heard::NotSent(_, errno)) => {
                    note(format_args!("lnet-nettest: an answer was not sent: {errno}"))
                }
                None => self.look(ABANDONED)?,
            }
        }
        Ok(())
    }

    /// Is free again where the console has said nothing for so long.
    fn look(&mut self, silence: Duration) -> Result<()> {
        if self.console.as_ref().is_some_and(|(_, at)| at.elapsed() > silence) {
            note("lnet-nettest: the console has gone");
            self.end()?;
        }
        Ok(())
    }

    /// Does what an order says.
    pub(crate) fn obey(&mut self, sender: &str, command: Command) -> Result<Said> {
        if let Some((console, at)) = &mut self.console {
            if console != sender {
                bail!("EBUSY: the node works for {console}");
            }
            *at = Instant::now();
        }
        match command {
            Command::Init(plan) => self.init(sender, plan),
            Command::Start => self.begin(),
            Command::Status => self.status().map(Said::Status),
            Command::Stop => self.end().map(Said::Stopped),
        }
    }

    fn init(&mut self, sender: &str, plan: Box<Plan>) -> Result<Said> {
        if !matches!(self.state, State::Free) {
            bail!("EBUSY: INIT of a node that is free is expected");
        }
        let said = match &plan.role {
            Role::Server(service) => {
                let server = server::start(&self.place.at(&plan.data), service)?;
                let said = Said::Serves(server.address().to_owned());
                self.state = State::Server { server, is_started: false };
                said
            }
            Role::Client { test, .. } => {
                test.check()?;
                self.state = State::Ready { plan };
                Said::Done
            }
        };
        self.console = Some((sender.to_owned(), Instant::now()));
        Ok(said)
    }

    fn begin(&mut self) -> Result<Said> {
        match std::mem::replace(&mut self.state, State::Free) {
            State::Server { server, is_started: false } => {
                self.state = State::Server { server, is_started: true };
            }
            State::Ready { plan } => {
                let (watch, place) = (Arc::new(Watch::default()), self.place.at(&plan.data));
                let (watched, work) = (Arc::clone(&watch), plan.clone());
                let thread = std::thread::Builder::new().name("nettest-client".to_owned());
                let thread = thread.spawn(move || match &work.role {
                    Role::Client { servers, test } => client::run(&place, servers, test, &watched),
                    Role::Server(_) => Ok(Counts::new()),
                })?;
                self.state = State::Client { plan, watch, thread };
            }
            other => {
                self.state = other;
                bail!("EPERM: START behind INIT, and once, is expected");
            }
        }
        Ok(Said::Done)
    }

    fn status(&self) -> Result<Status> {
        Ok(match &self.state {
            State::Free => bail!("EPERM: STATUS behind INIT is expected"),
            State::Ready { .. } => Status { ended: 0, is_over: false },
            State::Server { server, .. } => Status { ended: server.served().sent, is_over: false },
            State::Client { watch, thread, .. } => {
                Status { ended: watch.ended(), is_over: thread.is_finished() }
            }
        })
    }

    /// Ends what was begun, and is free.
    fn end(&mut self) -> Result<Outcome> {
        self.console = None;
        match std::mem::replace(&mut self.state, State::Free) {
            State::Free => bail!("EPERM: STOP behind INIT is expected"),
            State::Server { server, .. } => server.stop().map(Outcome::Server),
            State::Ready { plan } => outcome(&Counts::new(), &plan),
            State::Client { plan, watch, thread } => {
                watch.stop();
                let counts = thread.join().map_err(|_| anyhow!("the client has panicked"))??;
                outcome(&counts, &plan)
            }
        }
    }
}

fn outcome(counts: &Counts, plan: &Plan) -> Result<Outcome> {
    let Role::Client { servers, test } = &plan.role else { bail!("a client has an outcome of its own") };
    let report = Box::new(counts.report(test, &plan.data, &servers.join(",")));
    Ok(Outcome::Client { report, round_trips: counts.round_trips() })
}

/// Does what consoles say until it is killed.
pub(crate) fn node(place: &PlaceOptions, depth: u32) -> Result<()> {
    let mut node = Node::start(Place::new(place, depth)?)?;
    note(format_args!("waiting for consoles at {}", node.desk.0.address));
    node.serve(|| true)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::console::tests::{place, test};
    use crate::options::Service;

    fn said(node: &mut Node, command: Command) -> Result<Said, String> {
        node.obey("console", command).map_err(|error| error.to_string())
    }

    fn init(data: &str, role: Role) -> Command {
        Command::Init(Box::new(Plan { data: data.to_owned(), role }))
    }

    const SERVICE: Service = Service { message_max: 64, bulk_max: 64, depth: 4, buffers: None };

    #[test]
    fn nt_06_a_server_obeys_in_order_and_counts() {
        let mut node = Node::start(place("127.42.1.1:1")).unwrap();
        let status = |node: &mut Node| said(node, Command::Status);
        for early in [Command::Start, Command::Status, Command::Stop] {
            assert!(said(&mut node, early).unwrap_err().starts_with("EPERM"));
        }
        let data = "127.42.2.1:1";
        assert!(
            said(&mut node, init("nonsense", Role::Server(SERVICE))).unwrap_err().contains("a.b.c.d:port")
        );
        assert!(
            matches!(said(&mut node, init(data, Role::Server(SERVICE))), Ok(Said::Serves(at)) if at == data)
        );
        assert!(said(&mut node, init(data, Role::Server(SERVICE))).unwrap_err().starts_with("EBUSY"));
        assert!(node.obey("another", Command::Stop).unwrap_err().to_string().contains("works for console"));
        assert!(matches!(said(&mut node, Command::Start), Ok(Said::Done)));
        assert!(said(&mut node, Command::Start).unwrap_err().starts_with("EPERM"));
        let counts = client::run(&place("127.42.4.1:1"), &[data.to_owned()], &test(3), &Watch::default());
        assert_eq!(counts.unwrap().tally.done, 3);
        // The last answer has left a little before the server knows.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !matches!(status(&mut node), Ok(Said::Status(Status { ended: 3, is_over: false }))) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        let Ok(Said::Stopped(Outcome::Server(served))) = said(&mut node, Command::Stop) else { panic!() };
        assert_eq!((served.received, served.sent, served.failed, served.bad), (3, 3, 0, 0));
        assert!(status(&mut node).unwrap_err().starts_with("EPERM"), "it is free again");
        node.desk.0.stop().unwrap();
    }

    /// Both orders lie at the node before it looks at the first, and both answers at the console before that
    /// looks.
    #[test]
    fn nt_09_two_commands_queue_one_behind_the_other() {
        let mut node = Node::start(place("127.42.1.3:1")).unwrap();
        let mut console = Desk::new(&place("127.42.3.3:1"), DEPTH).unwrap();
        let runtime = console::runtime().unwrap();
        let init = || init("127.42.2.3:1", Role::Server(SERVICE));
        let pairs = [
            [(Command::Start, "EPERM"), (init(), "Serves")],
            [(init(), "EBUSY"), (Command::Start, "Done")],
            [(Command::Status, "Status"), (Command::Stop, "Stopped")],
            [(Command::Stop, "EPERM"), (Command::Status, "EPERM")],
        ];
        let mut sent = 0;
        for pair in pairs {
            let mut expected = Vec::new();
            for (command, begin) in pair {
                sent += 1;
                console.send(&node.place.address, &Order { number: sent, command }).unwrap();
                expected.push((sent, begin));
            }
            node.desk.wait_for(sent);
            let left = Cell::new(2);
            node.serve(|| left.replace(left.get() - 1) > 0).unwrap();
            console.wait_for(sent);
            for (number, begin) in expected {
                let heard = runtime.block_on(console.next(Duration::from_secs(60))).unwrap();
                let Some(Heard::Message(_, Answer { number: answered, said })) = heard else {
                    panic!("{heard:?}")
                };
                let said = said.map_or_else(|why| why, |said| format!("{said:?}"));
                assert_eq!(answered, number, "{said}");
                assert!(said.starts_with(begin), "{said} instead of {begin}");
            }
        }
        console.0.stop().unwrap();
        node.desk.0.stop().unwrap();
    }

    #[test]
    fn nt_06_a_client_is_stopped_on_the_way_and_says_what_it_has() {
        let server = server::start(&place("127.42.2.9:1"), &SERVICE).unwrap();
        let mut node = Node::start(place("127.42.1.2:1")).unwrap();
        let role = |test| Role::Client { servers: vec![server.address().to_owned()], test };
        let data = "127.42.2.2:1";
        assert!(said(&mut node, init(data, role(test(0)))).unwrap_err().contains("1 at least"));
        // Never started: nothing was done.
        said(&mut node, init(data, role(test(5)))).unwrap();
        let Ok(Said::Stopped(Outcome::Client { report, .. })) = said(&mut node, Command::Stop) else {
            panic!()
        };
        assert_eq!((report.tally.done, report.tally.failed), (0, 0));
        // Without an end of its own.
        said(&mut node, init(data, role(test(u64::MAX)))).unwrap();
        said(&mut node, Command::Start).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let far = loop {
            let Ok(Said::Status(Status { ended, is_over: false })) = said(&mut node, Command::Status) else {
                panic!()
            };
            assert!(Instant::now() < deadline);
            if ended > 10 {
                break ended;
            }
        };
        let Ok(Said::Stopped(Outcome::Client { report, round_trips })) = said(&mut node, Command::Stop)
        else {
            panic!()
        };
        assert!(
            report.tally.done >= far && report.tally.lost + report.tally.bad + report.tally.failed == 0,
            "{report:?}"
        );
        assert_eq!(round_trips.distribution().count(), report.tally.done);
        // A console that says nothing any more does not keep the node.
        said(&mut node, init(data, role(test(1)))).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        node.look(Duration::from_millis(1)).unwrap();
        assert!(said(&mut node, Command::Status).unwrap_err().starts_with("EPERM"));
        node.desk.0.stop().unwrap();
        server.stop().unwrap();
    }
}
