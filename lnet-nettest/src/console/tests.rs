use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::*;
use crate::node::Node;
use crate::options::{DescriptorBuffers, Kind, TransportName};
use crate::report::{RoundTrips, Served, Tally};

pub(crate) fn place(address: &str) -> Place {
    let (transport, address) = (TransportName::Mem, address.to_owned());
    Place::new(&PlaceOptions::of(transport, address), 64).unwrap()
}

pub(crate) fn test(count: u64) -> Test {
    Test {
        kind: Kind::Ping,
        size: 64,
        concurrency: 1,
        count: Some(count),
        duration: None,
        timeout: 60,
        descriptor_buffers: DescriptorBuffers::default(),
    }
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
        let mut names: Vec<_> = some(41, SERVERS, count).into_iter().map(|member| member.address).collect();
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
        assert_eq!(go(43, &servers, &clients, &test(2)).unwrap().tally.done, 2);
    }
    end(nodes);

    let (servers, clients) = (some(44, SERVERS, 1), some(44, CLIENTS, 64));
    let nodes = [start(&servers), start(&clients)];
    let report = go(44, &servers, &clients, &test(1)).unwrap();
    assert_eq!((report.tally.done, report.parts.len()), (64, 65));
    end(nodes);
}

#[test]
fn nt_09_nodes_that_do_not_answer_are_left_out() {
    let (servers, clients) = (some(46, SERVERS, 4), some(46, CLIENTS, 4));
    let nodes = [start(&servers[..2]), start(&clients[..2])];
    // Two nodes have room for orders, and nothing that does them; others are not there at all.
    let deaf: Vec<_> = [&servers[2], &clients[2]].map(|member| place(&member.address)).into();
    let deaf: Vec<_> = deaf.iter().map(|place| Desk::new(place, DEPTH).unwrap()).collect();
    let report = console(46, Duration::from_secs(1)).run(&servers, &clients, &test(5), None, None).unwrap();
    assert_eq!((report.tally.done, report.parts.len()), (20, 4), "{report:?}");
    let silent: Vec<_> =
        [&servers[2..], &clients[2..]].concat().into_iter().map(|member| member.address).collect();
    assert_eq!(report.silent, silent);
    let refused = console(46, Duration::from_secs(1)).run(&servers[2..], &clients, &test(5), None, None);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("ENETUNREACH") && refused.contains("INIT"), "{refused}");
    // Nodes of a run that has failed are free for the next one.
    assert_eq!(go(46, &servers[..2], &clients[..2], &test(1)).unwrap().tally.done, 4);
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
    assert_eq!(go(47, &servers, &clients, &test(1)).unwrap().tally.done, 1);
    end(nodes);
}

#[test]
fn a_run_ends_at_its_limit() {
    let (servers, clients) = (some(48, SERVERS, 1), some(48, CLIENTS, 2));
    let nodes = [start(&servers), start(&clients)];
    let limit = Some(Duration::from_secs(1));
    let begun = Instant::now();
    let report = console(48, TEST_PATIENCE).run(&servers, &clients, &test(u64::MAX), None, limit).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(
        report.tally.done > 0 && report.tally.lost + report.tally.failed + report.tally.bad == 0,
        "{report:?}"
    );
    end(nodes);
}

/// Servers are asked how far they are as clients are: a node whose console says nothing is free again.
#[test]
fn servers_are_asked_as_long_as_clients_are_at_work() {
    let (servers, clients) = (some(56, SERVERS, 1), some(56, CLIENTS, 1));
    let nodes = [start(&clients)];
    let mut server = Node::start(place(&servers[0].address)).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ends);
    let serving = std::thread::spawn(move || {
        let (runtime, mut orders) = (runtime().unwrap(), Vec::new());
        while !ended.load(Ordering::Relaxed) {
            let heard = runtime.block_on(server.desk.next(LOOK)).unwrap();
            let Some(Heard::Message(sender, Order { number, command })) = heard else { continue };
            orders.push(format!("{command:?}"));
            let said = server.obey(&sender, command).map_err(|error| error.to_string());
            server.desk.send(&sender, &Answer { number, said }).unwrap();
        }
        server.desk.0.stop().unwrap();
        orders
    });
    assert_eq!(go(56, &servers, &clients, &test(50)).unwrap().tally.done, 50);
    end(nodes);
    ends.store(true, Ordering::Relaxed);
    let orders = serving.join().unwrap();
    assert!(orders[0].starts_with("Init") && orders[1] == "Start", "{orders:?}");
    let asked = &orders[2..orders.len() - 1];
    assert!(!asked.is_empty() && asked.iter().all(|order| order == "Status"), "{orders:?}");
}

/// What both sides count is the same, where nothing is lost.
fn check_totals(net: u8, count: usize, test: &Test) {
    let (servers, clients) = (some(net, SERVERS, count), some(net, CLIENTS, count));
    let nodes = [start(&servers), start(&clients)];
    let report = go(net, &servers, &clients, test).unwrap();
    end(nodes);
    let exchanges = test.count() * (count * count) as u64;
    assert_eq!(
        (report.tally.done + report.tally.lost, report.tally.failed, report.tally.bad),
        (exchanges, 0, 0),
        "{report:?}"
    );
    let served = served(&report);
    assert!(report.tally.done * 5 >= exchanges * 4, "a fifth at most is lost: {report:?}");
    let of_one = if test.kind == Kind::Bulk { test.descriptor_buffers.descriptors.into() } else { 1 };
    assert!(served.received * of_one >= report.tally.done && served.received <= exchanges, "{served:?}");
    if test.kind == Kind::Bulk {
        assert!(served.written >= report.tally.done && served.read >= served.written, "{served:?}");
    } else {
        assert!(served.sent >= report.tally.done, "{served:?}");
    }
    let round_trips = &report.round_trip_ns;
    assert_eq!(round_trips.count, report.tally.done);
    assert!(round_trips.p50.unwrap() > 0 && round_trips.p50 <= round_trips.p99, "{round_trips:?}");
}

#[test]
fn nt_10_a_stub_one_by_one() {
    let (servers, clients) = (some(49, SERVERS, 1), some(49, CLIENTS, 1));
    let nodes = [start(&servers), start(&clients)];
    let report = go(49, &servers, &clients, &Test { kind: Kind::Stub, ..test(1) }).unwrap();
    assert_eq!((report.tally.done, report.parts.len(), served(&report).received), (0, 2, 0));
    end(nodes);
}

#[test]
fn nt_10_pings_eight_by_eight() {
    check_totals(50, 8, &Test { size: 4096, concurrency: 8, ..test(4096) });
}

#[test]
fn nt_10_bulk_two_by_two() {
    let descriptor_buffers = DescriptorBuffers {
        server_buffers: Some(16),
        client_buffers: Some(8),
        buffer_size: 16 << 10,
        descriptors: 8,
    };
    let bulk = Test { kind: Kind::Bulk, size: 1 << 20, concurrency: 2, descriptor_buffers, ..test(64) };
    check_totals(51, 2, &bulk);
}

/// Exchanges that begin together have one message, or as many as they need where a
/// buffer has no room for all of their descriptors; later ones may have one each.
#[test]
fn a_message_has_the_descriptors_of_several_exchanges() {
    for (net, buffer_size, descriptors, most) in
        [(52, 16 << 10, 8, 73), (53, 16 << 10, 3, 78), (54, 300, 8, 80)]
    {
        let (servers, clients) = (some(net, SERVERS, 1), some(net, CLIENTS, 1));
        let nodes = [start(&servers), start(&clients)];
        let descriptor_buffers =
            DescriptorBuffers { client_buffers: Some(1), buffer_size, descriptors, ..Default::default() };
        let bulk = Test { kind: Kind::Bulk, size: 64, concurrency: 8, descriptor_buffers, ..test(80) };
        let report = go(net, &servers, &clients, &bulk).unwrap();
        end(nodes);
        assert_eq!((report.tally.done, report.tally.lost), (80, 0), "{report:?}");
        let messages = served(&report).received;
        assert!(messages <= most && messages >= 80_u64.div_ceil(descriptors.into()), "{messages}");
    }
}

#[test]
fn a_message_buffer_without_room_for_one_exchange_is_named() {
    let (servers, clients) = (some(55, SERVERS, 1), some(55, CLIENTS, 1));
    let nodes = [start(&servers), start(&clients)];
    let descriptor_buffers = DescriptorBuffers { buffer_size: 20, ..Default::default() };
    let refused = go(55, &servers, &clients, &Test { kind: Kind::Bulk, descriptor_buffers, ..test(1) });
    end(nodes);
    let said = format!("{refused:?}");
    assert!(said.contains("--buffer-size 20"), "{said}");
}

#[test]
fn totals_are_those_of_all_parts() {
    let round_trips = RoundTrips::of_values(&[100, 300]);
    let mut counts = Counts::new();
    let report =
        Report { tally: Tally { done: 2, lost: 1, ..Tally::default() }, ..Report::empty(&test(3), "a", "b") };
    for _ in 0..2 {
        counts.add(&report, &round_trips).unwrap();
    }
    let whole = counts.report_of(&test(3), "all", "all", Duration::from_secs(2));
    assert_eq!((whole.tally.done, whole.tally.lost, whole.exchanges_per_s), (4, 2, 2.0));
    let round_trips = whole.round_trip_ns;
    assert_eq!((round_trips.count, round_trips.min, round_trips.max), (4, 100, 300));
    assert_eq!(round_trips.mean, 200.0);
}

/// A server whose identifier is chosen says which it is: clients test it, and the report names it.
#[test]
fn an_identifier_that_a_server_chose_is_told_to_its_clients() {
    let at = |host: u8, end: &str| format!("10.0.0.{host}@xdp:12345:34:{end}");
    let place = |address: String| {
        let interface = Some("in-process:console".to_owned());
        Place::new(&PlaceOptions { interface, ..PlaceOptions::of(TransportName::Lnet, address) }, 64).unwrap()
    };
    let nodes = [1, 2].map(|host| vec![serve(Node::start(place(at(host, "1"))).unwrap())]);
    let member = |host, data| vec![Member { address: at(host, "1"), data: at(host, data) }];
    let console = Console::new(&place(at(3, "1")), 64, TEST_PATIENCE).unwrap();
    let report = console.run(&member(1, "*"), &member(2, "*"), &test(5), None, None).unwrap();
    end(nodes);
    assert_eq!(
        (report.tally.done, report.tally.lost + report.tally.failed + report.tally.bad),
        (5, 0),
        "{report:?}"
    );
    let served = report.parts.iter().filter_map(|part| match part {
        Part::Server { address, .. } => Some(address.clone()),
        Part::Client(_) => None,
    });
    assert_eq!(served.collect::<Vec<_>>(), [at(1, "4095")]);
}
