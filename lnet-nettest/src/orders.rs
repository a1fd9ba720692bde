//! Orders of a console to nodes and their answers, as JSON in messages of their own transfer machines.

use std::time::Duration;

use anyhow::{Result, bail};
use lnet_messaging::{BufferId, Errno, Operation, QueueType};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::options::{Service, Test};
use crate::place::{Place, Station};
use crate::report::{Report, RoundTrips, Served};

/// Longest order or answer.
pub(crate) const MESSAGE_BYTES: u64 = 1 << 14;

/// An order of a console to a node. The answer has the same number.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) command: Command,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) enum Command {
    /// Be this from now on.
    Init(Box<Plan>),
    Start,
    /// Say how far it is.
    Status,
    /// End, and say what came of it. The node is free then.
    Stop,
}

/// The role that a node is to have.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Plan {
    /// Its address for test messages.
    pub(crate) data: String,
    pub(crate) role: Role,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) enum Role {
    Server(Service),
    /// A client of these servers, one behind the other.
    Client {
        servers: Vec<String>,
        test: Test,
    },
}

/// The answer of a node to an order: `Err` why it does not obey.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) said: Result<Said, String>,
}

#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Said {
    /// The answer to START, and to INIT of a client.
    Done,
    /// The answer to INIT of a server: its address for test messages, with the identifier that was chosen.
    Serves(String),
    Status(Status),
    Stopped(Outcome),
}

/// How far a node is.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    /// Exchanges that have ended.
    pub(crate) ended: u64,
    /// Whether there will be no more: never of a server.
    pub(crate) is_over: bool,
}

/// The outcome of a node's work.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) enum Outcome {
    Server(Served),
    Client { report: Box<Report>, round_trips: RoundTrips },
}

/// An arrival at a desk.
#[derive(Debug)]
pub(crate) enum Heard<M> {
    /// A message from this sender.
    Message(String, M),
    /// A message of the desk's own did not leave.
    NotSent(BufferId, Errno),
}

/// A transfer machine for orders and answers.
pub(crate) struct Desk(pub(crate) Station);

impl Desk {
    /// A desk with room for so many messages.
    pub(crate) fn new(place: &Place, depth: usize) -> Result<Self> {
        let station = Station::start(place)?;
        for _ in 0..depth {
            station.receive(station.allocate(MESSAGE_BYTES)?)?;
        }
        Ok(Self(station))
    }

    /// Sends a message, within this time.
    pub(crate) fn send(&self, to: &str, message: &impl Serialize) -> Result<BufferId> {
        let text = serde_json::to_vec(message)?;
        if text.len() as u64 > MESSAGE_BYTES {
            bail!("a message of {} bytes: {MESSAGE_BYTES} at most are expected", text.len());
        }
        let mut buffer = self.0.allocate(text.len() as u64)?;
        buffer.fill(&text);
        let to = self.0.tm.create_end_point(to)?;
        let added = self.0.tm.add(buffer, Operation::Send { to, length_bytes: text.len() as u64 })?;
        Ok(added.id)
    }

    /// The next arrival, if there is one within this time. Messages of another kind are passed over.
    ///
    /// # Errors
    /// When the transfer machine is gone.
    pub(crate) async fn next<M: DeserializeOwned>(&mut self, within: Duration) -> Result<Option<Heard<M>>> {
        tokio::time::timeout(within, self.heard()).await.ok().transpose()
    }

    async fn heard<M: DeserializeOwned>(&mut self) -> Result<Heard<M>> {
        loop {
            let event = self.0.next().await?;
            if event.queue() == QueueType::Send {
                match event.status {
                    Ok(()) => continue,
                    Err(errno) => return Ok(Heard::NotSent(event.id, errno)),
                }
            }
            let message = serde_json::from_slice(&event.payload_bytes());
            let sender = event.end_point.as_ref().map(|sender| sender.address().to_owned());
            if let Some(buffer) = event.into_buffer() {
                self.0.receive(buffer)?;
            }
            if let (Ok(message), Some(sender)) = (message, sender) {
                return Ok(Heard::Message(sender, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::console::tests::{place, test};
    use crate::report::Summary;

    impl Desk {
        /// Waits until so many messages have come altogether, whether or not they have been looked at.
        pub(crate) fn wait_for(&self, messages: u64) {
            let deadline = Instant::now() + Duration::from_secs(60);
            while self.0.tm.stats(QueueType::Receive, false).unwrap().num_s_events < messages {
                assert!(Instant::now() < deadline, "{messages} messages do not come");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn nt_02_orders_and_answers_are_what_they_were_made_from() {
        let commands = || {
            let client =
                Role::Client { servers: vec!["a:1".to_owned(), "b:2".to_owned()], test: test(u64::MAX) };
            let server =
                Role::Server(Service { message_max: u64::MAX, bulk_max: 1, depth: u32::MAX, buffers: None });
            let plan = |role| Command::Init(Box::new(Plan { data: "c:3".to_owned(), role }));
            [plan(client), plan(server), Command::Start, Command::Status, Command::Stop]
        };
        let numbers = [0, 1, u64::from(u8::MAX), u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX];
        for (command, number) in commands().into_iter().cycle().zip(numbers.into_iter().cycle()).take(30) {
            let order = Order { number, command };
            let text = serde_json::to_vec(&order).unwrap();
            let again: Order = serde_json::from_slice(&text).unwrap();
            assert_eq!(format!("{again:?}"), format!("{order:?}"));
            for end in 0..text.len() {
                assert!(serde_json::from_slice::<Order>(&text[..end]).is_err(), "{end}");
            }
        }
        let status = Status { ended: u64::MAX, is_over: true };
        let served = Served { received: u64::MAX, ..Served::default() };
        for said in [
            Ok(Said::Done),
            Ok(Said::Serves("a:1".to_owned())),
            Ok(Said::Status(status)),
            Ok(Said::Stopped(Outcome::Server(served))),
            Err("no".to_owned()),
        ] {
            let answer = Answer { number: 7, said };
            let again: Answer = serde_json::from_slice(&serde_json::to_vec(&answer).unwrap()).unwrap();
            assert_eq!(format!("{again:?}"), format!("{answer:?}"));
        }
    }

    /// What is too long for a message is not sent, and the longest answer is not.
    #[test]
    fn nt_02_messages_have_a_longest_one() {
        let desk = Desk::new(&place("127.40.3.1:1"), 1).unwrap();
        let plan = Plan { data: "x".repeat(MESSAGE_BYTES as usize), role: Role::Server(test(1).service()) };
        let order = Order { number: 1, command: Command::Init(Box::new(plan)) };
        let refused = desk.send("127.40.3.2:1", &order).unwrap_err();
        assert!(refused.to_string().contains("16384 at most"), "{refused}");
        desk.0.stop().unwrap();

        let round_trips = RoundTrips::all_different();
        let report = Report {
            round_trip_ns: Summary::of(&round_trips.distribution()),
            ..Report::empty(&test(1), &"client".repeat(20), &"server".repeat(20))
        };
        let said = Ok(Said::Stopped(Outcome::Client { report: Box::new(report), round_trips }));
        let length = serde_json::to_vec(&Answer { number: u64::MAX, said }).unwrap().len();
        assert!((1000..=MESSAGE_BYTES as usize).contains(&length), "{length}");
    }
}
