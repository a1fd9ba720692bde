//! The console: has nodes join a session, gives them tests, and asks for their counters (LNet
//! `selftest/console.c`, `conrpc.c`).
//!
//! Invariants: nodes that are asked together are asked at the same time, and answered for in their order; a
//! node that does not answer counts as down until it is asked anew; a test is at all its nodes, or not in the
//! batch.

mod asker;
mod state;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use asker::Asker;
use lnet_model::pattern::{NODES_MAX, escaped};
use lnet_model::records::{
    SelftestAnswer, SelftestCommand, SelftestCounters, SelftestJoined, SelftestNode, SelftestRequest,
    SelftestSession, SelftestState, SelftestStats, SelftestTest,
};
use lnet_model::{Errno, Refusal};
use lnet_user::{Buffer, Nid, ProcessId};
use lnet_wire::selftest::{
    AddTest, BatchControl, BatchOperation, Body, Check, Debug, Destination, Direction,
    FEATURE_VARIABLE_LENGTH, FEATURES, MakeSession, Name, PAGE_BYTES, RemoveSession, SessionId, Stats, Test,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::exchange::{Bulk, Exchange};
#[cfg(test)]
pub(crate) use asker::COMMANDS_MAX;
use state::{BatchTest, Session, refused};

/// How long a node may take to answer: the session's timeout within these (LNet `LST_TRANS_MIN_TIMEOUT`,
/// `LST_TRANS_TIMEOUT`).
const PATIENCE_S: RangeInclusive<u32> = 3..=30;
/// Nodes that do nothing else are asked so often whether they are there (LNet `LST_PING_INTERVAL`).
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(8);
/// Groups, batches and tests of a batch at most.
const OBJECTS_MAX: usize = 256;

/// A command and where its answer goes.
pub(crate) type Order = (SelftestRequest, oneshot::Sender<Result<SelftestAnswer, Refusal>>);

/// The terms that a session's requests have in common.
#[derive(Clone, Copy)]
struct Terms {
    features: u32,
    patience: Duration,
    /// The console asks by itself, whatever command is under way.
    is_keepalive: bool,
}

/// The part of a batch that is controlled.
#[derive(Clone, Copy)]
struct Scope {
    /// The number of a test, from 1; 0 for all.
    test_index: u32,
    /// Cut off what is under way.
    force: bool,
    /// Its servers are asked, instead of its clients.
    of_servers: bool,
}

impl Scope {
    const WHOLE: Self = Self { test_index: 0, force: false, of_servers: false };
}

/// The console of a node.
pub(crate) struct Console {
    asker: Rc<Asker>,
    session: RefCell<Option<Session>>,
    begun: Instant,
}

/// Carries out commands, one after the other.
pub(crate) async fn serve(exchange: Rc<Exchange>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let console = Rc::new(Console {
        asker: Rc::new(Asker::new(exchange)),
        session: RefCell::default(),
        begun: Instant::now(),
    });
    let keeper = Rc::clone(&console);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(KEEPALIVE_INTERVAL).await;
            let active = keeper.nodes_in(SelftestState::Active);
            // Nodes that do not answer are down from now on.
            let terms = Terms { is_keepalive: true, ..keeper.terms(None) };
            let _ = keeper.query_sessions(terms, active).await;
        }
    });
    while let Some((request, answer)) = orders.recv().await {
        // Questions of clients that have gone would hold up others; what changes something is carried out.
        if request.command.is_question() && answer.is_closed() {
            continue;
        }
        let _ = answer.send(console.run(request).await);
    }
}

impl Console {
    async fn run(
        &self,
        SelftestRequest { key, command, timeout_s }: SelftestRequest,
    ) -> Result<SelftestAnswer, Refusal> {
        if let SelftestCommand::NewSession { name, timeout_s, force, features } = command {
            return self.new_session(key, &name, timeout_s, force, features).await;
        }
        match &*self.session.borrow() {
            // There is nothing to be ended.
            None if command == SelftestCommand::EndSession => return Ok(SelftestAnswer::Nodes(Vec::new())),
            None => return refused(Errno::SRCH, "there is no session; begin one with new_session"),
            // The key is shown to those who look for it.
            Some(session) if session.key != key && command != SelftestCommand::ShowSession => {
                return refused(
                    Errno::ACCES,
                    format!("key {key} is not that of the session {}", session.name),
                );
            }
            Some(_) => {}
        }
        let terms = self.terms(timeout_s);
        match command {
            SelftestCommand::NewSession { .. } | SelftestCommand::ShowSession => self.show_session(),
            SelftestCommand::EndSession => self.end_session().await,
            SelftestCommand::AddGroup { name, nids } => self.add_group(name, nids).await,
            SelftestCommand::UpdateGroup { name, remove, clean, refresh } => {
                self.update_group(&name, &remove, &clean, refresh).await
            }
            SelftestCommand::DeleteGroup { name } => self.delete_group(&name).await,
            SelftestCommand::ListGroups => self.with(|session| Ok(SelftestAnswer::Groups(session.groups()))),
            SelftestCommand::AddBatch { name } => self.with(|session| session.add_batch(name)),
            SelftestCommand::ListBatches => {
                self.with(|session| Ok(SelftestAnswer::Batches(session.batches())))
            }
            SelftestCommand::Run { batch } => {
                self.control(&batch, BatchOperation::Run, Scope::WHOLE, terms).await
            }
            SelftestCommand::Stop { batch, force } => {
                self.control(&batch, BatchOperation::Stop, Scope { force, ..Scope::WHOLE }, terms).await
            }
            SelftestCommand::Query { batch, test, of_servers } => {
                let scope = Scope { test_index: test, of_servers, ..Scope::WHOLE };
                self.control(&batch, BatchOperation::Query, scope, terms).await
            }
            SelftestCommand::Stat { targets } => self.stat(targets, terms).await,
            SelftestCommand::Ping { targets } => {
                let nodes = self.with(|session| match targets.as_slice() {
                    [] => Ok(session.all_nodes()),
                    targets => Ok(session.targets(targets)?.concat()),
                })?;
                Ok(SelftestAnswer::Nodes(self.query_sessions(terms, nodes).await))
            }
            SelftestCommand::AddTest { .. } => self.add_test(command).await,
        }
    }

    /// Looks at the session, or changes it.
    fn with<T>(&self, look: impl FnOnce(&mut Session) -> Result<T, Refusal>) -> Result<T, Refusal> {
        match &mut *self.session.borrow_mut() {
            Some(session) => look(session),
            None => refused(Errno::SRCH, "the session has ended meanwhile"),
        }
    }

    fn nodes_in(&self, state: SelftestState) -> Vec<Nid> {
        let session = self.session.borrow();
        let nodes = session.iter().flat_map(|session| &session.nodes);
        nodes.filter(|(_, known)| **known == state).map(|(nid, _)| *nid).collect()
    }

    async fn new_session(
        &self,
        key: u32,
        name: &str,
        timeout_s: u32,
        force: bool,
        features: u32,
    ) -> Result<SelftestAnswer, Refusal> {
        let Some(wire_name) = Name::new(name).filter(|_| !name.is_empty()) else {
            return refused(Errno::INVAL, format!("session {name:?}: 1 to 31 bytes are expected"));
        };
        if features & !FEATURES != 0 {
            return refused(Errno::INVAL, format!("features {features}: 0 or {FEATURES} is expected"));
        }
        if self.session.borrow().is_some() {
            if !force {
                return refused(Errno::EXIST, "there is a session; end it, or use --force");
            }
            self.end_session().await?;
        }
        let topology = self.asker.exchange.lnet.topology();
        let mut own =
            topology.local_nis().filter_map(|(_, ni)| ni.nid.to_small().map(|small| (ni.nid, small)));
        // The loopback NI comes first, and means another node elsewhere.
        let Some((_, nid)) =
            own.find(|(nid, _)| *nid != Nid::LO).or(Nid::LO.to_small().map(|small| (Nid::LO, small)))
        else {
            return refused(Errno::NETDOWN, "no NI has a NID that a session can be named by (IPv4)");
        };
        let stamp = self.begun.elapsed().as_millis() as i64 + 1;
        *self.session.borrow_mut() = Some(Session {
            key,
            name: wire_name,
            _hold: self.asker.exchange.lnet.hold(&format!("the LNet selftest session {}", escaped(name))),
            id: SessionId { nid, stamp },
            features,
            timeout_s,
            force,
            nodes: HashMap::new(),
            groups: Vec::new(),
            batches: state::first_batches(),
            next_batch: 2,
        });
        self.show_session()
    }

    fn show_session(&self) -> Result<SelftestAnswer, Refusal> {
        self.with(|session| {
            let console = Nid::from_small(session.id.nid).unwrap_or(Nid::LO);
            Ok(SelftestAnswer::Session(SelftestSession {
                name: session.name.to_string(),
                key: session.key,
                console,
                stamp: session.id.stamp,
                features: session.features,
                timeout_s: session.timeout_s,
                nodes: session.all_nodes().iter().map(|nid| session.node(nid, None, 0)).collect(),
            }))
        })
    }

    async fn end_session(&self) -> Result<SelftestAnswer, Refusal> {
        let (mut nodes, id) = self.with(|session| Ok((session.all_nodes(), session.id)))?;
        let active = self.nodes_in(SelftestState::Active);
        nodes.retain(|nid| active.contains(nid));
        let ended = self.dismiss(nodes, id).await;
        *self.session.borrow_mut() = None;
        Ok(SelftestAnswer::Nodes(ended))
    }

    /// Has nodes leave the session.
    async fn dismiss(&self, nodes: Vec<Nid>, session: SessionId) -> Vec<SelftestNode> {
        let body = move |_: usize, reply_id, _| Body::RemoveSession(RemoveSession { reply_id, session });
        self.ask(self.terms(None), nodes, Rc::new(body), |_| Bulk::Nothing, |_| 0).await
    }

    async fn add_group(&self, name: String, nids: Vec<Nid>) -> Result<SelftestAnswer, Refusal> {
        let (fresh, id, force, session_name) = self.with(|session| {
            let fits = session.nodes.len() + nids.len() <= NODES_MAX && session.groups.len() < OBJECTS_MAX;
            if !fits {
                return refused(Errno::NOMEM, format!("more than {NODES_MAX} nodes or {OBJECTS_MAX} groups"));
            }
            if Name::new(&name).is_none() || name.is_empty() {
                return refused(Errno::INVAL, format!("group {name:?}: 1 to 31 bytes are expected"));
            }
            if session.groups.iter().any(|(known, _)| *known == name) {
                return refused(Errno::EXIST, format!("there is a group {}", escaped(&name)));
            }
            state::check_names(&nids)?;
            if let Some(large) = nids.iter().find(|nid| nid.to_small().is_none()) {
                let message =
                    format!("{large}: messages of selftest have room for NIDs of 8 bytes alone (IPv4)");
                return refused(Errno::INVAL, message);
            }
            let mut fresh = Vec::new();
            for nid in nids {
                if !fresh.contains(&nid) {
                    fresh.push(nid);
                    session.nodes.entry(nid).or_insert(SelftestState::Unknown);
                }
            }
            session.groups.push((name, fresh.clone()));
            Ok((fresh, session.id, session.force, session.name))
        })?;
        Ok(SelftestAnswer::Nodes(self.invite(fresh, id, force, session_name).await))
    }

    /// Has nodes join the session.
    async fn invite(
        &self,
        nodes: Vec<Nid>,
        session: SessionId,
        force: bool,
        name: Name,
    ) -> Vec<SelftestNode> {
        let (known, fresh): (Vec<_>, Vec<_>) = {
            let active = self.nodes_in(SelftestState::Active);
            nodes.iter().copied().partition(|nid| active.contains(nid))
        };
        let body = move |_: usize, reply_id, _| {
            Body::MakeSession(MakeSession { reply_id, session, force: u32::from(force), name })
        };
        let mut invited = self.ask(self.terms(None), fresh, Rc::new(body), |_| Bulk::Nothing, |_| 0).await;
        let there =
            |nid| SelftestNode { nid, state: SelftestState::Active, failed: None, active: 0, session: None };
        invited.extend(known.into_iter().map(there));
        invited.sort_by_key(|node| nodes.iter().position(|nid| *nid == node.nid));
        let _ = self.with(|session| {
            for node in &mut invited {
                node.state = match node.failed {
                    None => SelftestState::Active,
                    Some(Errno::BUSY) => SelftestState::Busy,
                    // No more is known of it than before.
                    Some(_) => node.state,
                };
                session.nodes.insert(node.nid, node.state);
            }
            Ok(())
        });
        invited
    }

    async fn update_group(
        &self,
        name: &str,
        remove: &[Nid],
        clean: &[SelftestState],
        refresh: bool,
    ) -> Result<SelftestAnswer, Refusal> {
        let (gone, stale, id, force, session_name) = self.with(|session| {
            let nodes = session.nodes.clone();
            let state = |nid: &Nid| nodes.get(nid).copied().unwrap_or(SelftestState::Unknown);
            session.check_unused(name)?;
            let group = session.group_mut(name)?;
            group.retain(|nid| !remove.contains(nid) && !clean.contains(&state(nid)));
            let stale = |nid: &&Nid| refresh && state(nid) != SelftestState::Active;
            let stale: Vec<Nid> = group.iter().filter(stale).copied().collect();
            session.groups.retain(|(known, nids)| known != name || !nids.is_empty());
            let gone = session.forget_nodes();
            Ok((gone, stale, session.id, session.force, session.name))
        })?;
        self.dismiss(gone, id).await;
        Ok(SelftestAnswer::Nodes(self.invite(stale, id, force, session_name).await))
    }

    async fn delete_group(&self, name: &str) -> Result<SelftestAnswer, Refusal> {
        let (gone, id) = self.with(|session| {
            session.group_mut(name)?;
            session.check_unused(name)?;
            session.groups.retain(|(known, _)| known != name);
            Ok((session.forget_nodes(), session.id))
        })?;
        Ok(SelftestAnswer::Nodes(self.dismiss(gone, id).await))
    }

    async fn query_sessions(&self, terms: Terms, nodes: Vec<Nid>) -> Vec<SelftestNode> {
        let Ok(id) = self.with(|session| Ok(session.id)) else { return Vec::new() };
        let body = move |_: usize, reply_id, _| Body::Debug(Debug { reply_id, session: id, flags: 0 });
        self.ask(terms, nodes, Rc::new(body), |_| Bulk::Nothing, |_| 0).await
    }

    async fn control(
        &self,
        batch: &str,
        operation: BatchOperation,
        Scope { test_index, force, of_servers }: Scope,
        terms: Terms,
    ) -> Result<SelftestAnswer, Refusal> {
        let (nodes, id, session) = self.with(|session| {
            let id = session.id;
            let batch = session.batch_mut(batch)?;
            if test_index as usize > batch.tests.len() {
                let message = format!("test {test_index}: the batch has {} tests", batch.tests.len());
                return refused(Errno::NOENT, message);
            }
            match operation {
                BatchOperation::Run => batch.is_running = true,
                BatchOperation::Stop => batch.is_running = false,
                BatchOperation::Query => {}
            }
            // Nodes of the test alone are asked, where one is meant.
            let (clients, servers) = match test_index.checked_sub(1) {
                Some(index) => (&batch.tests[index as usize].clients, &batch.tests[index as usize].servers),
                None => (&batch.clients, &batch.servers),
            };
            Ok((if of_servers { servers } else { clients }.clone(), batch.id, id))
        })?;
        let body = move |_: usize, reply_id, _| {
            Body::Batch(BatchControl {
                reply_id,
                session,
                batch: id,
                operation: operation as u32,
                test_index,
                argument: u32::from(force),
            })
        };
        let active = |body: &Body| if let Body::BatchReply(reply) = body { reply.active } else { 0 };
        Ok(SelftestAnswer::Nodes(self.ask(terms, nodes, Rc::new(body), |_| Bulk::Nothing, active).await))
    }

    async fn add_test(&self, command: SelftestCommand) -> Result<SelftestAnswer, Refusal> {
        let SelftestCommand::AddTest {
            batch,
            loop_count,
            concurrency,
            distribute,
            span,
            stops_on_error,
            from,
            to,
            test,
        } = command
        else {
            return self.show_session();
        };
        let (id, features, batch_id, clients, servers) = self.with(|session| {
            let (id, features) = (session.id, session.features);
            let mut groups = [&from, &to].map(|name| session.group_mut(name).cloned());
            for group in &mut groups {
                let active = |nid: &Nid| session.nodes.get(nid) == Some(&SelftestState::Active);
                if let Ok(nodes) = group {
                    nodes.retain(active);
                }
            }
            let [clients, servers] = groups;
            let (clients, servers) = (clients?, servers?);
            for (name, nodes) in [(&from, &clients), (&to, &servers)] {
                if nodes.is_empty() {
                    return refused(Errno::INVAL, format!("group {} has no active node", escaped(name)));
                }
            }
            let batch = session.batch_mut(&batch)?;
            if batch.is_running {
                return refused(Errno::BUSY, "the batch runs; stop it first");
            }
            if batch.tests.len() >= OBJECTS_MAX {
                return refused(Errno::NOMEM, format!("more than {OBJECTS_MAX} tests in a batch"));
            }
            Ok((id, features, batch.id, clients, servers))
        })?;
        if [loop_count, concurrency, distribute, span].contains(&0) {
            return refused(Errno::INVAL, "loop, concurrency, distribute and span: 1 or more is expected");
        }
        let words = described(&test);
        let test = wire_test(&test, features)?;
        let (span, distribute) = (span as usize, distribute as usize);
        if span > servers.len() {
            let message =
                format!("distribute {distribute}:{span}: group {to} has {} active nodes", servers.len());
            return refused(Errno::INVAL, message);
        }
        let server_loops = clients.len().div_ceil(distribute).div_ceil(servers.len().div_ceil(span))
            * distribute
            * concurrency as usize;
        let added = AddTest {
            reply_id: 0,
            bulk_id: 0,
            session: id,
            batch: batch_id,
            loop_count: server_loops as u32,
            concurrency,
            is_client: 0,
            stops_on_error: 1,
            destinations: 0,
            test,
        };
        let serves = move |_: usize, reply_id, _| Body::AddTest(AddTest { reply_id, ..added });
        let mut done =
            self.ask(self.terms(None), servers.clone(), Rc::new(serves), |_| Bulk::Nothing, |_| 0).await;
        if done.iter().all(|node| node.failed.is_none()) {
            let sends = move |_: usize, reply_id, bulk_id| {
                Body::AddTest(AddTest {
                    reply_id,
                    bulk_id,
                    loop_count,
                    is_client: 1,
                    stops_on_error: u8::from(stops_on_error),
                    destinations: span as u32,
                    ..added
                })
            };
            let list = |client: usize| {
                let first = client / distribute * span % servers.len();
                Bulk::Source(destinations(&servers, first, span, features))
            };
            done.extend(self.ask(self.terms(None), clients.clone(), Rc::new(sends), list, |_| 0).await);
        }
        if done.iter().all(|node| node.failed.is_none()) {
            self.with(|session| {
                let added = BatchTest { words, loop_count, concurrency, from, to, clients, servers };
                session.batch_mut(&batch)?.push(added);
                Ok(())
            })?;
        }
        Ok(SelftestAnswer::Nodes(done))
    }

    async fn stat(&self, targets: Vec<String>, terms: Terms) -> Result<SelftestAnswer, Refusal> {
        let (groups, id) = self.with(|session| Ok((session.targets(&targets)?, session.id)))?;
        let ask = |nid: Nid| {
            let asker = Rc::clone(&self.asker);
            let body = move |reply_id, _| Body::Stat(Stats { reply_id, session: id, kind: 0 });
            let asked = tokio::task::spawn_local(async move {
                match asker.call(nid, terms, Bulk::Nothing, body).await {
                    Ok(Body::StatReply(reply)) => Ok(counters(&reply)),
                    Ok(_) => Err(Errno::IO),
                    Err(errno) => Err(errno),
                }
            });
            (nid, asked)
        };
        let asked: Vec<Vec<_>> =
            groups.into_iter().map(|nodes| nodes.into_iter().map(ask).collect()).collect();
        let mut stats = Vec::new();
        for asked in asked {
            let mut of_group = Vec::new();
            for (nid, asked) in asked {
                let answer = asked.await.unwrap_or(Err(Errno::IO));
                of_group.push(SelftestStats { nid, counters: answer.ok(), failed: answer.err() });
            }
            stats.push(of_group);
        }
        Ok(SelftestAnswer::Stats(stats))
    }

    /// The terms of requests; nodes may take as long as the session says, or so many seconds.
    fn terms(&self, asked_s: Option<u32>) -> Terms {
        let session = self.session.borrow();
        let (features, timeout_s) = session
            .as_ref()
            .map_or((FEATURES, *PATIENCE_S.end()), |session| (session.features, session.timeout_s));
        let patience_s = asked_s.unwrap_or(timeout_s).clamp(*PATIENCE_S.start(), *PATIENCE_S.end());
        Terms { features, patience: Duration::from_secs(patience_s.into()), is_keepalive: false }
    }

    /// Asks nodes at the same time, and notes which are down. `body` makes the request of the node's number
    /// and the match bits of reply and bulk data.
    async fn ask(
        &self,
        terms: Terms,
        nodes: Vec<Nid>,
        body: Rc<impl Fn(usize, u64, u64) -> Body + 'static>,
        bulk: impl Fn(usize) -> Bulk,
        active: impl Fn(&Body) -> u32,
    ) -> Vec<SelftestNode> {
        let asked = nodes.into_iter().enumerate().map(|(number, nid)| {
            let (asker, body, bulk) = (Rc::clone(&self.asker), Rc::clone(&body), bulk(number));
            let called = tokio::task::spawn_local(async move {
                asker.call(nid, terms, bulk, |reply, bulk| body(number, reply, bulk)).await
            });
            (nid, called)
        });
        let mut answers = Vec::new();
        for (nid, asked) in asked.collect::<Vec<_>>() {
            let answer = asked.await.unwrap_or(Err(Errno::IO));
            let joined = answer.as_ref().ok().and_then(joined);
            let mut session = self.session.borrow_mut();
            let state = session.as_mut().and_then(|session| {
                let told = match (&answer, &joined) {
                    (Err(Errno::TIMEDOUT | Errno::HOSTUNREACH), _) => Some(SelftestState::Down),
                    (_, Some((id, _))) if *id == session.id => Some(SelftestState::Active),
                    (_, Some(_)) => Some(SelftestState::Busy),
                    _ => None,
                };
                match session.nodes.get_mut(&nid) {
                    // A node that never answered is unknown yet.
                    Some(known) if told == Some(SelftestState::Down) && *known != SelftestState::Active => {
                        Some(*known)
                    }
                    Some(known) => {
                        *known = told.unwrap_or(*known);
                        Some(*known)
                    }
                    None => told.filter(|told| *told != SelftestState::Down),
                }
            });
            answers.push(SelftestNode {
                nid,
                state: state.unwrap_or(SelftestState::Unknown),
                active: answer.as_ref().map_or(0, &active),
                failed: answer.err(),
                session: joined.map(|(_, joined)| joined),
            });
        }
        answers
    }
}

/// The session that a node has said it is in.
fn joined(body: &Body) -> Option<(SessionId, SelftestJoined)> {
    let Body::DebugReply(reply) = body else { return None };
    let console = Nid::from_small(reply.session.nid).ok()?;
    Some((reply.session, SelftestJoined { name: reply.name.to_string(), console }))
}

fn counters(reply: &lnet_wire::selftest::StatReply) -> SelftestCounters {
    SelftestCounters {
        running_ms: reply.framework.running_ms,
        active_batches: reply.framework.active_batches,
        brw_errors: reply.framework.brw_errors,
        ping_errors: reply.framework.ping_errors,
        rpc_errors: reply.rpc.errors,
        rpc_dropped: reply.rpc.dropped,
        rpc_expired: reply.rpc.expired,
        sent: reply.lnet.sent,
        received: reply.lnet.received,
        sent_bytes: reply.lnet.sent_bytes,
        received_bytes: reply.lnet.received_bytes,
    }
}

/// The test as nodes are told of it.
fn wire_test(test: &SelftestTest, features: u32) -> Result<Test, Refusal> {
    let SelftestTest::Brw { is_write, check, length_bytes, offset_bytes } = *test else {
        return Ok(Test::Ping { size_bytes: 0, flags: 0 });
    };
    let direction = if is_write { Direction::Write } else { Direction::Read };
    let wire = if features & FEATURE_VARIABLE_LENGTH == 0 {
        if !length_bytes.is_multiple_of(PAGE_BYTES) || offset_bytes != 0 {
            let message =
                format!("size={length_bytes} off={offset_bytes}: whole pages are expected without feature 1");
            return refused(Errno::INVAL, message);
        }
        Test::BrwPages { direction: direction as u32, pages: length_bytes / PAGE_BYTES, flags: check.into() }
    } else {
        Test::Brw { direction: direction as u16, flags: check, length_bytes, offset_bytes }
    };
    // Kernel nodes panic at others, and where bulk data and all of the offset before it take more pages than
    // the data alone: so at any offset of a page and more.
    let pages = offset_bytes.saturating_add(length_bytes).div_ceil(PAGE_BYTES);
    match wire.bulk().filter(|_| pages == length_bytes.div_ceil(PAGE_BYTES)) {
        Some(_) => Ok(wire),
        None => refused(
            Errno::INVAL,
            format!(
                "size={length_bytes} off={offset_bytes} check={check}: multiples of 8 are expected, a size of 8 to \
                 1048576 that takes as many pages alone as with the offset before it, and a check of 1 to 4"
            ),
        ),
    }
}

fn described(test: &SelftestTest) -> String {
    match *test {
        SelftestTest::Ping => "ping".to_owned(),
        SelftestTest::Brw { is_write, check, length_bytes, .. } => {
            let direction = if is_write { "write" } else { "read" };
            let check = match Check::new(check.into()) {
                Some(Check::Simple) => "simple",
                Some(Check::Full) => "full",
                Some(Check::Discard) => "discard",
                Some(Check::None) | None => "none",
            };
            format!("brw {direction} check={check} size={length_bytes}")
        }
    }
}

/// The list of destinations of a client: so many of the servers, from this one on.
fn destinations(servers: &[Nid], first: usize, count: usize, features: u32) -> Buffer {
    let page = PAGE_BYTES as usize;
    let pages = count.div_ceil(Destination::PER_PAGE);
    let is_whole = pages > 1 || features & FEATURE_VARIABLE_LENGTH == 0;
    let mut bytes = vec![0; if is_whole { pages * page } else { count * Destination::BYTES }];
    for index in 0..count {
        let nid = servers[(first + index) % servers.len()].to_small().unwrap_or(u64::MAX);
        let entry = Destination { nid, pid: ProcessId::LUSTRE_PID }.encode();
        let at = index / Destination::PER_PAGE * page + index % Destination::PER_PAGE * Destination::BYTES;
        bytes[at..at + Destination::BYTES].copy_from_slice(&entry);
    }
    Buffer::from(bytes)
}
