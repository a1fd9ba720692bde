//! Nodes of one process test each other, commanded by the console of one of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lnet_model::records::{
    SelftestAnswer, SelftestCommand as Command, SelftestCounters, SelftestNode, SelftestRequest,
    SelftestState, SelftestTest,
};
use lnet_model::{Errno, Refusal};
use lnet_user::api::{Ack, OwnedRequest, QueuedEvent, Target};
use lnet_user::{Buffer, Lnet, MdOptions, NiConfig, Nid, NodeConfig, ProcessId, Status, Threshold};
use lnet_wire::selftest::{
    AddTest, Body, Brw, Check, Direction, FEATURES, MakeSession, Message, Name, REPLY_PORTAL, SessionId, Test,
};
use lnet_wire::steer::{Policy, Spread};

use crate::console::COMMANDS_MAX;
use crate::exchange::Exchange;
use crate::session::{ClientTest, UNIT_BYTES};
use crate::source::Offer;
use crate::{Console, Selftest, bulk, client};

const KEY: u32 = 7;
const PATIENCE: Duration = Duration::from_secs(30);

/// A node of two shards with this address.
fn node(name: &str, address: u8) -> (Lnet, Selftest) {
    node_of(2, name, address)
}

fn node_of(shards: u32, name: &str, address: u8) -> (Lnet, Selftest) {
    let ni = NiConfig::new(nid(address), &format!("in-process:{name}"));
    let config = NodeConfig::new(vec![ni]).shards(shards);
    let lnet = Lnet::start(&config).unwrap();
    let selftest = Selftest::start(&lnet).unwrap();
    lnet.open().unwrap();
    (lnet, selftest)
}

fn nid(address: u8) -> Nid {
    format!("10.0.0.{address}@xdp").parse().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

async fn run(console: &Console, command: Command) -> Result<SelftestAnswer, Refusal> {
    console.run(SelftestRequest { key: KEY, command, timeout_s: None }).await
}

/// What nodes have answered, each without a failure.
async fn agreed(console: &Console, command: Command) -> Vec<SelftestNode> {
    match run(console, command.clone()).await.unwrap() {
        SelftestAnswer::Nodes(nodes) => {
            assert!(nodes.iter().all(|node| node.failed.is_none()), "{command:?}: {nodes:?}");
            nodes
        }
        answer => panic!("{command:?}: {answer:?}"),
    }
}

async fn counters(console: &Console, target: &str) -> Vec<SelftestCounters> {
    match run(console, Command::Stat { targets: vec![target.to_owned()] }).await.unwrap() {
        SelftestAnswer::Stats(stats) => {
            stats.concat().into_iter().map(|stats| stats.counters.unwrap()).collect()
        }
        answer => panic!("{answer:?}"),
    }
}

fn new_session() -> Command {
    Command::NewSession { name: "test".into(), timeout_s: 60, force: false, features: 1 }
}

fn add_group(name: &str, addresses: &[u8]) -> Command {
    Command::AddGroup { name: name.into(), nids: addresses.iter().map(|address| nid(*address)).collect() }
}

/// A test for one server.
fn add_test(loop_count: u32, test: SelftestTest) -> Command {
    add_test_for(1, loop_count, test)
}

/// A test whose clients each send to so many servers.
fn add_test_for(span: u32, loop_count: u32, test: SelftestTest) -> Command {
    Command::AddTest {
        batch: "b".into(),
        loop_count,
        concurrency: 4,
        distribute: 1,
        span,
        stops_on_error: true,
        from: "c".into(),
        to: "s".into(),
        test,
    }
}

fn brw(is_write: bool, length_bytes: u32) -> SelftestTest {
    SelftestTest::Brw { is_write, check: 3, length_bytes, offset_bytes: 0 }
}

#[test]
fn pings_and_bulk_data_of_each_size_in_each_direction() {
    for shards in [1, 2] {
        all_tests(shards);
    }
}

fn all_tests(shards: u32) {
    let nodes = [1, 2, 3].map(|address| node_of(shards, "tests", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        let joined = agreed(&console, add_group("c", &[1])).await;
        assert_eq!(joined[0].state, SelftestState::Active);
        agreed(&console, add_group("s", &[2, 3])).await;
        run(&console, Command::AddBatch { name: "b".into() }).await.unwrap();
        let tests = [4096, 8, 1 << 20].map(|length| [brw(false, length), brw(true, length)]);
        for test in tests.into_iter().flatten().chain([SelftestTest::Ping]) {
            agreed(&console, add_test_for(2, 25, test)).await;
        }
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        while agreed(&console, Command::Query { batch: "b".into(), test: 0, of_servers: false }).await[0]
            .active
            != 0
        {
            assert!(begun.elapsed() < PATIENCE, "the batch does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for counted in counters(&console, "c").await.into_iter().chain(counters(&console, "s").await) {
            let SelftestCounters { brw_errors, ping_errors, rpc_errors, rpc_expired, .. } = counted;
            assert_eq!([brw_errors, ping_errors, rpc_errors, rpc_expired], [0; 4], "{counted:?}");
        }
        // 4 units for each of 2 servers, 25 times: of each length a read and a write.
        let moved = 4 * 2 * 25 * (4096 + 8 + (1 << 20));
        let client = counters(&console, "c").await[0];
        assert!(client.received_bytes > moved && client.sent_bytes > moved, "{client:?}");
        agreed(&console, Command::EndSession).await;
        assert_eq!(run(&console, Command::ShowSession).await.unwrap_err().errno, Errno::SRCH);
    });
}

#[test]
fn a_batch_is_stopped_and_runs_again() {
    let nodes = [1, 2].map(|address| node("stopped", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        agreed(&console, add_group("c", &[1])).await;
        agreed(&console, add_group("s", &[2])).await;
        run(&console, Command::AddBatch { name: "b".into() }).await.unwrap();
        agreed(&console, add_test(u32::MAX, brw(true, 4096))).await;
        for force in [false, true] {
            agreed(&console, Command::Run { batch: "b".into() }).await;
            assert_eq!(
                agreed(&console, Command::Query { batch: "b".into(), test: 1, of_servers: false }).await[0]
                    .active,
                4
            );
            agreed(&console, Command::Stop { batch: "b".into(), force }).await;
            let begun = Instant::now();
            while agreed(&console, Command::Query { batch: "b".into(), test: 1, of_servers: false }).await[0]
                .active
                != 0
            {
                assert!(begun.elapsed() < PATIENCE, "the units do not end");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        agreed(&console, Command::EndSession).await;
    });
}

/// The memory that a session is charged for each unit.
#[test]
fn a_unit_that_waits_for_its_turn_takes_little() {
    let lnet = plain_node("units", 1);
    let (exchange, _events) = Exchange::new(&lnet).unwrap();
    let to = ProcessId { nid: nid(2), pid: ProcessId::LUSTRE_PID };
    let test = Rc::new(ClientTest {
        test: Test::Ping { size_bytes: 0, flags: 0 },
        loop_count: 1,
        concurrency: 1,
        stops_on_error: false,
        destinations: vec![to],
        features: FEATURES,
        active: Cell::new(0),
        stop: tokio::sync::watch::Sender::new(false),
        errors: Rc::default(),
    });
    let bytes = client::unit_bytes(&exchange, &test, to);
    assert!(bytes <= UNIT_BYTES / 2, "{bytes} bytes");
}

/// More than a server answers at once, and than its source has event slots.
#[test]
fn many_reads_at_once_are_answered() {
    let nodes = [1, 2, 3].map(|address| node("many", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        agreed(&console, add_group("c", &[1, 2])).await;
        agreed(&console, add_group("s", &[3])).await;
        run(&console, Command::AddBatch { name: "b".into() }).await.unwrap();
        let mut many = add_test(4, brw(false, 4096));
        if let Command::AddTest { concurrency, .. } = &mut many {
            *concurrency = 200;
        }
        agreed(&console, many).await;
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        let query = || Command::Query { batch: "b".into(), test: 0, of_servers: false };
        while agreed(&console, query()).await.iter().any(|node| node.active != 0) {
            assert!(begun.elapsed() < PATIENCE, "the batch does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let clients = counters(&console, "c").await;
        for counted in clients.iter().chain(&counters(&console, "s").await) {
            let SelftestCounters { brw_errors, rpc_errors, rpc_expired, rpc_dropped, .. } = *counted;
            assert_eq!([brw_errors, rpc_errors, rpc_expired, rpc_dropped], [0; 4], "{counted:?}");
        }
        let moved = 200 * 4 * 4096;
        assert!(clients.iter().all(|client| client.received_bytes > moved), "{clients:?}");
        agreed(&console, Command::EndSession).await;
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let nodes = [1, 2].map(|address| node("refused", address));
    let console = nodes[0].1.console();
    let other = nodes[1].1.console();
    runtime().block_on(async {
        assert_eq!(run(&console, Command::ListGroups).await.unwrap_err().errno, Errno::SRCH);
        run(&console, new_session()).await.unwrap();
        assert_eq!(run(&console, new_session()).await.unwrap_err().errno, Errno::EXIST);
        let foreign = SelftestRequest { key: KEY + 1, command: Command::EndSession, timeout_s: None };
        assert_eq!(console.run(foreign).await.unwrap_err().errno, Errno::ACCES);
        agreed(&console, add_group("c", &[1])).await;
        agreed(&console, add_group("s", &[2])).await;
        run(&console, Command::AddBatch { name: "b".into() }).await.unwrap();
        for nameless in [Command::AddBatch { name: String::new() }, add_group("", &[1])] {
            assert_eq!(run(&console, nameless).await.unwrap_err().errno, Errno::INVAL);
        }
        // A kernel node would panic at such lengths.
        for length in [0, 4, 12, 4097, (1 << 20) + 8] {
            let refused = run(&console, add_test(1, brw(true, length))).await.unwrap_err();
            assert_eq!(refused.errno, Errno::INVAL, "{length}: {refused}");
        }
        assert_eq!(run(&console, add_test(0, SelftestTest::Ping)).await.unwrap_err().errno, Errno::INVAL);
        let wide = add_test_for(2, 1, SelftestTest::Ping);
        assert_eq!(run(&console, wide).await.unwrap_err().errno, Errno::INVAL);
        // A batch without tests runs, and there is nothing to do: so the reference has it.
        let Ok(SelftestAnswer::Nodes(idle)) = run(&console, Command::Run { batch: "b".into() }).await else {
            panic!()
        };
        assert_eq!(idle.len(), 0);
        run(&console, Command::Stop { batch: "b".into(), force: false }).await.unwrap();
        let nowhere = Command::Run { batch: "nowhere".into() };
        assert_eq!(run(&console, nowhere).await.unwrap_err().errno, Errno::NOENT);
        agreed(&console, add_test(1, SelftestTest::Ping)).await;
        let deleted = run(&console, Command::DeleteGroup { name: "c".into() }).await;
        assert_eq!(deleted.unwrap_err().errno, Errno::BUSY);
        // A node is in one session at a time, unless another console insists.
        run(&other, new_session()).await.unwrap();
        let Ok(SelftestAnswer::Nodes(nodes)) = run(&other, add_group("s", &[1])).await else { panic!() };
        assert_eq!((nodes[0].state, nodes[0].failed), (SelftestState::Busy, Some(Errno::BUSY)));
        run(&other, Command::EndSession).await.unwrap();
        let force = Command::NewSession { name: "other".into(), timeout_s: 60, force: true, features: 1 };
        run(&other, force).await.unwrap();
        agreed(&other, add_group("s", &[1])).await;
        // The first session has lost the node.
        let Ok(SelftestAnswer::Nodes(nodes)) = run(&console, Command::Run { batch: "b".into() }).await else {
            panic!()
        };
        assert_eq!(nodes[0].failed, Some(Errno::SRCH));
    });
}

#[test]
fn a_console_is_answered_while_many_requests_wait() {
    let nodes = [1, 2].map(|address| node("waiting", address));
    let console = nodes[0].1.console();
    let gone = node("waiting", 3);
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        agreed(&console, add_group("c", &[1, 2])).await;
        agreed(&console, add_group("s", &[3])).await;
        run(&console, Command::AddBatch { name: "b".into() }).await.unwrap();
        let Command::AddTest { batch, from, to, test, .. } = add_test(1, brw(true, 8)) else { panic!() };
        let many = Command::AddTest {
            batch,
            loop_count: u32::MAX,
            concurrency: 1024,
            distribute: 1,
            span: 1,
            stops_on_error: false,
            from,
            to,
            test,
        };
        agreed(&console, many).await;
        // Its server has nothing to answer with any more.
        drop(gone.1);
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        assert_eq!(counters(&console, "c").await.len(), 2);
        agreed(&console, Command::Stop { batch: "b".into(), force: true }).await;
        assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
    });
}

/// Sends a request so many times.
async fn flood(from: &Lnet, to: Nid, body: Body, count: usize) {
    let shard = from.shard(0).unwrap();
    let events = shard.create_event_queue(8).unwrap();
    let service = body.request().unwrap().0;
    let target = Target::new(to, service.portal(), service.match_bits());
    let message = Message::new(FEATURES, body).encode();
    for _ in 0..count {
        let bytes = Buffer::from(message.to_vec());
        let md = bytes.spec(Threshold::Count(1), MdOptions::NONE, events.handle());
        let sent = shard.send(OwnedRequest::put(&md, bytes, &target, Ack::NotWanted, 0)).await.unwrap();
        assert_eq!(sent.event.status(), Status::Ok);
    }
}

/// A session with the groups `c` and `s`, and the batch `b` without tests.
async fn begin(console: &Console, clients: &[u8], servers: &[u8]) {
    run(console, new_session()).await.unwrap();
    agreed(console, add_group("c", clients)).await;
    agreed(console, add_group("s", servers)).await;
    run(console, Command::AddBatch { name: "b".into() }).await.unwrap();
}

/// Data and destinations that a server fetches, and that no entry has: the GETs of it get no REPLY.
#[test]
fn a_source_whose_answers_hang_keeps_no_other_from_its_own() {
    const FLOOD: usize = 4000;
    let nodes = [1, 2].map(|address| node("hanging", address));
    let hostile = plain_node("hanging", 3);
    let console = nodes[1].1.console();
    runtime().block_on(async {
        begin(&console, &[2], &[1]).await;
        for test in [SelftestTest::Ping, brw(true, 4096), brw(false, 4096)] {
            agreed(&console, add_test(25, test)).await;
        }
        let (direction, flags) = (Direction::Write as u32, Check::Full as u32);
        let write = Brw { reply_id: 1, bulk_id: 1, direction, length_bytes: 4096, flags };
        flood(&hostile, nid(1), Body::Brw(write), FLOOD).await;
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        let query = || Command::Query { batch: "b".into(), test: 0, of_servers: false };
        while agreed(&console, query()).await[0].active != 0 {
            assert!(begun.elapsed() < PATIENCE / 2, "the batch does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let client = counters(&console, "c").await[0];
        let SelftestCounters { brw_errors, ping_errors, rpc_errors, rpc_expired, .. } = client;
        assert_eq!([brw_errors, ping_errors, rpc_errors, rpc_expired], [0; 4], "{client:?}");
        // What exceeds the share of a source in the places and in the room is dropped, and counted.
        let begun = Instant::now();
        loop {
            let server = counters(&console, "s").await[0];
            if (FLOOD - 3302..FLOOD).contains(&(server.rpc_dropped as usize)) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{server:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let session = SessionId { nid: 3, stamp: 1 };
        let name = Name::new("hostile").unwrap();
        let make = MakeSession { reply_id: 1, session, force: 1, name };
        flood(&hostile, nid(1), Body::MakeSession(make), 1).await;
        let begun = Instant::now();
        let is_lost = async || {
            let stat = Command::Stat { targets: vec!["s".into()] };
            let Ok(SelftestAnswer::Stats(stats)) = run(&console, stat).await else { panic!() };
            stats[0][0].failed.is_some()
        };
        while !is_lost().await {
            assert!(begun.elapsed() < PATIENCE, "the other session does not begin");
        }
        let test = AddTest {
            reply_id: 1,
            bulk_id: 1,
            session,
            batch: 1 << 32,
            loop_count: 1,
            concurrency: 1,
            is_client: 1,
            stops_on_error: 0,
            destinations: 1,
            test: Test::Ping { size_bytes: 0, flags: 0 },
        };
        flood(&hostile, nid(1), Body::AddTest(test), 500).await;
        let begun = Instant::now();
        agreed(&console, Command::Ping { targets: vec!["s".into()] }).await;
        assert!(begun.elapsed() < PATIENCE / 3, "{:?}", begun.elapsed());
    });
}

/// A node that takes part in no tests.
fn plain_node(name: &str, address: u8) -> Lnet {
    let ni = NiConfig::new(nid(address), &format!("in-process:{name}"));
    let lnet = Lnet::start(&NodeConfig::new(vec![ni])).unwrap();
    lnet.open().unwrap();
    lnet
}

/// Silent nodes: more than are asked at once.
fn silent(name: &str) -> (Vec<u8>, Vec<Lnet>) {
    let addresses: Vec<u8> = (100..=100 + COMMANDS_MAX as u8).collect();
    let nodes = addresses.iter().map(|address| plain_node(name, *address)).collect();
    (addresses, nodes)
}

#[test]
fn nodes_that_do_not_answer_leave_others_their_time() {
    let (silent_nids, _silent) = silent("silent");
    let nodes = [1, 2].map(|address| node("silent", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        let session = Command::NewSession { name: "silent".into(), timeout_s: 3, force: false, features: 1 };
        run(&console, session).await.unwrap();
        let all = [silent_nids.as_slice(), &[2]].concat();
        let Ok(SelftestAnswer::Nodes(joined)) = run(&console, add_group("all", &all)).await else { panic!() };
        let (alive, silent) = joined.split_last().unwrap();
        assert_eq!((alive.failed, alive.state), (None, SelftestState::Active));
        assert!(silent.iter().all(|node| node.failed == Some(Errno::TIMEDOUT)), "{silent:?}");
        // Several targets are all asked at the same time.
        let begun = Instant::now();
        let targets = silent_nids.iter().take(5).map(|address| nid(*address).to_string());
        let targets = targets.chain(["all".to_owned()]).collect();
        let Ok(SelftestAnswer::Stats(stats)) = run(&console, Command::Stat { targets }).await else {
            panic!()
        };
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        let told: Vec<_> = stats.iter().map(|nodes| nodes.last().unwrap().failed).collect();
        assert_eq!(told, [[Some(Errno::TIMEDOUT); 5].as_slice(), &[None]].concat());
    });
}

/// Commands of clients that have gone meanwhile are carried out, questions are not.
#[test]
fn what_no_client_waits_for_any_more_is_not_asked() {
    let (silent_nids, _silent) = silent("gone");
    let nodes = [1, 2].map(|address| node("gone", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        let session = Command::NewSession { name: "gone".into(), timeout_s: 3, force: false, features: 1 };
        run(&console, session).await.unwrap();
        let begun = Instant::now();
        let left = async |command| {
            let left = tokio::time::timeout(Duration::from_millis(1), run(&console, command)).await;
            assert!(left.is_err(), "{left:?}");
        };
        left(add_group("silent", &silent_nids[..1])).await;
        for _ in 0..10 {
            left(Command::Ping { targets: vec!["silent".into()] }).await;
        }
        left(Command::AddBatch { name: "b".into() }).await;
        let refused = run(&console, Command::AddBatch { name: "b".into() }).await.unwrap_err();
        assert_eq!(refused.errno, Errno::EXIST);
        // The first of them takes 3 seconds, and each question that is asked as many.
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    });
}

#[test]
fn targets_of_too_many_nodes_in_all_are_refused() {
    let node = node("many", 1);
    let console = node.1.console();
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        let targets = vec!["10.0.[0-15].[0-255]@xdp".to_owned(), "10.1.0.1@xdp".to_owned()];
        for command in [Command::Stat { targets: targets.clone() }, Command::Ping { targets }] {
            let answer = tokio::time::timeout(PATIENCE, run(&console, command)).await.unwrap();
            assert_eq!(answer.err().map(|refused| refused.errno), Some(Errno::TOOBIG));
        }
    });
}

/// A node that hears nothing for long ends the session.
#[test]
fn nodes_are_asked_whether_they_are_there_while_a_command_waits_for_silent_ones() {
    let (silent_nids, _silent) = silent("kept");
    let nodes = [1, 2].map(|address| node("kept", address));
    let console = nodes[0].1.console();
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        agreed(&console, add_group("alive", &[2])).await;
        let received = || nodes[1].0.shards().map(|shard| shard.counters().unwrap().received.messages);
        let before: u64 = received().sum();
        let joined = run(&console, add_group("silent", &silent_nids));
        let kept = async {
            let begun = Instant::now();
            while received().sum::<u64>() == before {
                // The first of the silent ones have 30 seconds.
                assert!(begun.elapsed() < Duration::from_secs(25), "nothing was asked");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = kept => {}
            joined = joined => panic!("{joined:?}"),
        }
    });
}

#[test]
fn a_node_whose_group_is_deleted_leaves_the_session() {
    let nodes = [1, 2].map(|address| node("left", address));
    let [console, other] = nodes.each_ref().map(|(_, selftest)| selftest.console());
    runtime().block_on(async {
        run(&console, new_session()).await.unwrap();
        run(&other, new_session()).await.unwrap();
        for _ in 0..2 {
            agreed(&console, add_group("c", &[1])).await;
            assert_eq!(agreed(&console, Command::DeleteGroup { name: "c".into() }).await.len(), 1);
        }
        // The node is free for another console.
        agreed(&other, add_group("c", &[1])).await;
        let remove =
            Command::UpdateGroup { name: "c".into(), remove: vec![nid(1)], clean: vec![], refresh: false };
        run(&other, remove).await.unwrap();
        agreed(&console, add_group("c", &[1])).await;
    });
}

/// What a peer that knows the match bits of an offer gets from there with a buffer of this length.
async fn get(peer: &Lnet, match_bits: u64, offset: u32, length: usize) -> QueuedEvent {
    let shard = peer.shard(0).unwrap();
    let events = shard.create_event_queue(8).unwrap();
    let room = Buffer::zeroed(length);
    let md = room.spec(Threshold::Count(2), MdOptions::NONE, events.handle());
    let from = Target { offset, ..Target::new(nid(1), REPLY_PORTAL, match_bits) };
    let descriptor = shard.bind(&md, room).unwrap();
    descriptor.get(&from).await.unwrap()
}

#[test]
fn peers_read_the_pattern_of_an_offer_as_often_as_they_like_and_nothing_else() {
    const LENGTH: usize = 1 << 20;
    let [(own, _selftest), (peer, _other)] = [1, 2].map(|address| node("offer", address));
    runtime().block_on(async {
        let policy = Policy::MatchBits { shift: 0, bits: 64, spread: Spread::Hash };
        own.set_policy(REPLY_PORTAL as u8, policy).unwrap();
        let mut draws = 0..;
        let offer = Offer::post(&own, || 0xF00D_0000_0000 + draws.next().unwrap()).await.unwrap();
        // An entry of each shard has its turn.
        let bits = [(); 4].map(|()| offer.match_bits());
        assert!(bits[0] != bits[1] && bits[..2] == bits[2..], "{bits:x?}");
        let dropped = || own.shards().map(|shard| shard.counters().unwrap().dropped().messages).sum::<u64>();
        let before = dropped();
        let has_dropped = async |count: u64| {
            let begun = Instant::now();
            while dropped() - before < count {
                assert!(begun.elapsed() < PATIENCE, "{} of {count} were dropped", dropped() - before);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(dropped() - before, count);
        };
        let mut expected = 0;
        for match_bits in bits {
            let target = Target::new(nid(1), REPLY_PORTAL, match_bits);
            let shard = peer.shard(0).unwrap();
            let events = shard.create_event_queue(8).unwrap();
            let md = Buffer::zeroed(8).spec(Threshold::Count(1), MdOptions::NONE, events.handle());
            let put = shard.bind(&md, Buffer::zeroed(8)).unwrap();
            assert_eq!(put.put(&target, Ack::NotWanted, 0).await.unwrap().event.status(), Status::Ok);
            for (offset, length) in [(0, LENGTH), (4096, 8), (0, LENGTH), (8, LENGTH - 8)] {
                let got = get(&peer, match_bits, offset, length).await;
                assert_eq!((got.event.status(), got.event.manipulated_bytes()), (Status::Ok, length as u32));
                assert!(bulk::is_right(&got.into_buffer().unwrap(), Check::Full, false));
            }
            // What would leave it is dropped: no byte of it comes.
            expected += 2;
            tokio::select! {
                () = has_dropped(expected) => {}
                got = get(&peer, match_bits, 8, LENGTH) => panic!("{:?}", got.event),
            }
        }
        // Dropping the offer takes its entries back.
        drop(offer);
        tokio::select! {
            () = has_dropped(expected + 1) => {}
            got = get(&peer, bits[0], 0, 8) => panic!("{:?}", got.event),
        }
    });
}

/// What one server does not answer holds up no write to another.
#[test]
fn a_write_that_is_not_answered_harms_no_other() {
    let nodes = [1, 2].map(|address| node("unanswered", address));
    let gone = node("unanswered", 3);
    let console = nodes[0].1.console();
    runtime().block_on(async {
        begin(&console, &[1], &[2, 3]).await;
        agreed(&console, add_test_for(2, u32::MAX, brw(true, 1 << 20))).await;
        drop(gone.1);
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        let mut sent_bytes = 0;
        while sent_bytes < 100 << 20 {
            assert!(begun.elapsed() < PATIENCE, "{sent_bytes} bytes were sent");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let counted = counters(&console, "c").await[0];
            let SelftestCounters { brw_errors, rpc_errors, rpc_expired, .. } = counted;
            assert_eq!([brw_errors, rpc_errors, rpc_expired], [0; 3], "{counted:?}");
            sent_bytes = counted.sent_bytes;
        }
        // Writes that run anew have another offer.
        agreed(&console, Command::Stop { batch: "b".into(), force: true }).await;
        agreed(&console, Command::Run { batch: "b".into() }).await;
        let begun = Instant::now();
        let before = counters(&console, "c").await[0].sent_bytes;
        while counters(&console, "c").await[0].sent_bytes < before + (100 << 20) {
            assert!(begun.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}
