//! Processes that are killed while others fetch their buffers: each operation ends once, and the next life is
//! as good as the first.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lnet_messaging::{Addition, BufferId, BulkDescriptor, Event, Operation, QueueType};
use lnet_tests::netns::{Namespace, Netns, Wiring};
use lnet_user::api::Lnet;

use crate::common::{PATIENCE, Party};
use crate::nets::{Carrier, address, config_of, config_on, privileged, start, transport};
use crate::scenarios::pattern;

/// Tells a child its net, its own address and that of the transfer machine which fetches.
const CHILD: &str = "LNET_TEST_MESSAGING_CHILD";
const BULK_BYTES: usize = 1 << 20;
/// Buffers that a child offers at once.
const OFFERED: usize = 4;
/// Operations that go well in a life.
const FETCHES: u32 = 12;
const LIVES: u32 = 3;
/// How long a fetch may take.
const FETCH_TIME: Duration = Duration::from_secs(8);

fn carrier_named(name: &str) -> Carrier {
    let carriers = [Carrier::Rings, Carrier::Sockets, Carrier::Tcp];
    carriers.into_iter().find(|carrier| format!("{carrier:?}") == name).unwrap()
}

/// The node of a process of its own, its transfer machine, and the address of the other one.
pub(crate) fn child() -> Option<(Lnet, Party, String)> {
    let told = std::env::var(CHILD).ok()?;
    let [name, own, to]: [&str; 3] = told.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let config =
        config_on(carrier_named(name), &[(own.split_once('@').unwrap().0.parse().unwrap(), "veth-b")]);
    let lnet = Lnet::start(&config).unwrap();
    lnet.open().unwrap();
    let party = Party::started(&transport(&lnet).shared(), own);
    Some((lnet, party, to.to_owned()))
}

fn offer(party: &Party, to: &str) {
    let send = Operation::PassiveSend { initiator: None, length_bytes: BULK_BYTES as u64 };
    let passive = party.tm.add(party.filled(&pattern(BULK_BYTES)), send).unwrap();
    party.send(to, passive.descriptor.unwrap().as_bytes());
}

/// What is killed, in a process of its own: it offers a buffer for each that was fetched. There is nothing to
/// it in the tests' own process.
#[test]
fn child_that_offers() {
    let Some((_lnet, mut party, to)) = child() else { return };
    (0..OFFERED).for_each(|_| offer(&party, &to));
    loop {
        let event = party.buffer_event();
        if event.queue() == QueueType::PassiveSend {
            assert_eq!(event.status, Ok(()), "its peer lives");
            offer(&party, &to);
        }
    }
}

/// A child that does not outlive the test.
pub(crate) struct Life(Child);

impl Life {
    /// Runs a test of this program in a namespace.
    pub(crate) fn start(namespace: &Namespace, test: &str, told: &str) -> Self {
        let mut command = namespace.command(&std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(CHILD, told);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fetches what is offered.
struct Fetcher {
    party: Party,
    under_way: BTreeSet<BufferId>,
    fetched: u32,
    failed: u32,
}

impl Fetcher {
    fn post(&self) {
        self.party.post(64, 48, 1);
    }

    /// Takes an event; operations on the buffers of a life that is over fail.
    fn take(&mut self) {
        let Event::Buffer(event) = self.party.event() else { panic!("it does not stop") };
        match event.queue() {
            QueueType::Receive => {
                assert_eq!(event.status, Ok(()));
                let from = BulkDescriptor::from_bytes(&event.payload_bytes());
                let fetch = Addition::from(Operation::ActiveReceive { from });
                let fetch = fetch.deadline(Instant::now() + FETCH_TIME);
                self.under_way.insert(self.party.add(self.party.buffer(&[BULK_BYTES]), fetch));
                self.post();
            }
            QueueType::ActiveReceive => {
                assert!(self.under_way.remove(&event.id) && event.is_last(), "{event:?}");
                match event.status {
                    Ok(()) => {
                        assert!(event.payload_bytes() == pattern(BULK_BYTES));
                        self.fetched += 1;
                    }
                    Err(_) => self.failed += 1,
                }
            }
            queue => panic!("{queue:?}"),
        }
    }
}

fn lives(carrier: Carrier) {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let lnet = start(netns.a(), &config_of(netns.a(), carrier));
    let own = address(netns.a(), carrier, 7);
    let party = Party::started(&transport(&lnet).shared(), &own);
    let mut fetcher = Fetcher { party, under_way: BTreeSet::new(), fetched: 0, failed: 0 };
    (0..4 * OFFERED).for_each(|_| fetcher.post());
    for life in 1..=LIVES {
        let told = format!("{carrier:?} {} {own}", address(netns.b(), carrier, 7));
        let child = Life::start(netns.b(), "killed::child_that_offers", &told);
        let begun = Instant::now();
        while fetcher.fetched < life * FETCHES || fetcher.under_way.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "life {life}: {} fetched", fetcher.fetched);
            fetcher.take();
        }
        drop(child);
        while !fetcher.under_way.is_empty() {
            fetcher.take();
        }
    }
    println!("{carrier:?}: {} fetched, {} broke off", fetcher.fetched, fetcher.failed);
    assert!(fetcher.failed >= 1, "each life ends with a fetch under way");
    let stats = fetcher.party.tm.stats(QueueType::ActiveReceive, false).unwrap();
    assert_eq!(stats.num_s_events + stats.num_f_events, stats.num_adds);
    fetcher.party.end();
}

#[test]
fn processes_with_rings_are_killed() {
    lives(Carrier::Rings);
}

#[test]
fn processes_with_sockets_are_killed() {
    lives(Carrier::Sockets);
}

#[test]
fn processes_with_tcp_are_killed() {
    lives(Carrier::Tcp);
}
