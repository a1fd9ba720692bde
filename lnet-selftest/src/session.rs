//! A node's session: who may drive it, its batches and their tests (LNet `selftest/framework.c`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lnet_user::Hold;
use lnet_wire::selftest::{
    AddTest, BatchControl, BatchOperation, BatchReply, CONCURRENCY_MAX, FEATURES, FrameworkCounters,
    JoinReply, MakeSession, Name, RemoveSession, SessionId, SessionReply, Status, Test,
};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// After so long without a request of its console, a session ends (LNet `session_timeout`).
pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(100);
/// The stamp of an id that is not told.
const STAMP_UNTOLD: i64 = 0;
/// Units of a test at most: destinations times concurrency.
const UNITS_MAX: u64 = 8192;
/// Batches of a session, and tests of a batch, at most.
const BATCHES_MAX: usize = 256;
/// Bytes of memory that the tests of a session take at most, when all of them run.
const SESSION_BYTES_MAX: usize = 64 << 20;
/// Bytes of a test besides its destinations and units.
const TEST_BYTES: usize = 512;

/// Errors that the tests of a session have found.
#[derive(Default, Debug)]
pub(crate) struct Errors {
    pub(crate) brw: Cell<u32>,
    pub(crate) ping: Cell<u32>,
}

/// Bytes of memory that a unit takes while it waits for its turn, with what its task has besides.
pub(crate) const UNIT_BYTES: usize = 1024;

/// A test of a batch on this node, as client.
pub(crate) struct ClientTest {
    pub(crate) test: Test,
    pub(crate) loop_count: u32,
    pub(crate) concurrency: u32,
    pub(crate) stops_on_error: bool,
    pub(crate) destinations: Vec<lnet_user::ProcessId>,
    pub(crate) features: u32,
    /// Units that are active.
    pub(crate) active: Cell<u32>,
    /// True once they are to end.
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) errors: Rc<Errors>,
}

/// A test of a batch: with what a client has to do, if it is one, and its tasks.
struct BatchTest {
    client: Option<Rc<ClientTest>>,
    tasks: Vec<AbortHandle>,
}

impl BatchTest {
    fn active(&self) -> u32 {
        self.client.as_ref().map_or(0, |client| client.active.get())
    }

    fn stop(&mut self, at_once: bool) {
        if let Some(client) = &self.client {
            client.stop.send_replace(true);
        }
        if at_once {
            self.tasks.drain(..).for_each(|task| task.abort());
        }
    }
}

type Batch = Vec<BatchTest>;

struct Session {
    /// The node is needed while there is a session.
    _hold: Option<Hold>,
    id: SessionId,
    name: Name,
    features: u32,
    references: u32,
    begun: Instant,
    seen_at: Instant,
    batches: BTreeMap<u64, Batch>,
    /// Memory that the tests take at most.
    charged_bytes: usize,
    errors: Rc<Errors>,
}

impl Session {
    fn abort(mut self) {
        self.batches.values_mut().flatten().for_each(|test| test.stop(true));
    }
}

/// Bytes of memory that a test takes at most, while it runs. Each unit has its destination.
fn memory_bytes(test: &AddTest) -> usize {
    let destinations = if test.is_client == 0 { 0 } else { test.destinations as usize };
    let units = destinations * test.concurrency as usize;
    TEST_BYTES + destinations * size_of::<lnet_user::ProcessId>() + units * UNIT_BYTES
}

/// The session that the node is in, if any.
#[derive(Default)]
pub(crate) struct Sessions(Option<Session>);

impl Sessions {
    /// Whether the node is in a session.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// The id in a reply to a request about the session `asked`. Who named the session's own id is told that.
    /// Others are told an id of the same console with which nothing can be done: the id is all that a console
    /// shows for itself, by whichever NID it comes. Without a session it is the one that stands for none.
    pub(crate) fn told(&self, asked: &SessionId) -> SessionId {
        match &self.0 {
            None => SessionId::NONE,
            Some(session) if session.id == *asked => session.id,
            Some(session) => SessionId { stamp: STAMP_UNTOLD, ..session.id },
        }
    }

    /// Features of replies.
    pub(crate) fn features(&self) -> u32 {
        self.0.as_ref().map_or(FEATURES, |session| session.features)
    }

    /// Whether the features of a request to an existing session are others than its own.
    pub(crate) fn refuses(&self, features: u32) -> bool {
        self.0.as_ref().is_some_and(|session| session.features != features)
    }

    /// A request about a session has come: if it is this one, its console is there.
    pub(crate) fn touch(&mut self, id: &SessionId) {
        if let Some(session) = self.own(id) {
            session.seen_at = Instant::now();
        }
    }

    /// Ends a session whose console is silent.
    pub(crate) fn expire(&mut self) {
        if let Some(silent) = self.0.take_if(|session| session.seen_at.elapsed() > SESSION_TIMEOUT) {
            tracing::warn!(name = %silent.name, "the console of a selftest session is silent; it ends");
            silent.abort();
        }
    }

    /// Ends the session, whatever is under way.
    pub(crate) fn end(&mut self) {
        if let Some(session) = self.0.take() {
            session.abort();
        }
    }

    /// The session of this id.
    fn own(&mut self, id: &SessionId) -> Option<&mut Session> {
        self.0.as_mut().filter(|session| session.id == *id)
    }

    fn described(&self, status: Status, asked: &SessionId) -> JoinReply {
        let name = self.0.as_ref().map_or(Name::EMPTY, |session| session.name);
        let timeout_s = SESSION_TIMEOUT.as_secs() as u32;
        JoinReply { status, session: self.told(asked), timeout_s, name }
    }

    /// Begins a session, which has the hold on the node for as long as it lasts.
    pub(crate) fn make(
        &mut self,
        request: &MakeSession,
        features: u32,
        hold: impl FnOnce() -> Option<Hold>,
    ) -> JoinReply {
        let asked = &request.session;
        if asked.is_any() {
            return self.described(Status::INVALID, asked);
        }
        if let Some(session) = self.own(asked) {
            session.references = session.references.saturating_add(1);
            return self.described(Status::OK, asked);
        }
        self.expire();
        if self.0.is_some() && request.force == 0 {
            return self.described(Status::BUSY, asked);
        }
        if features & !FEATURES != 0 {
            return self.described(Status::PROTOCOL, asked);
        }
        // The name in the answer is that of the session that was there, as kernel nodes have it.
        let former = self.0.as_ref().map_or(Name::EMPTY, |session| session.name);
        self.end();
        let now = Instant::now();
        self.0 = Some(Session {
            _hold: hold(),
            id: request.session,
            name: request.name,
            features,
            references: 1,
            begun: now,
            seen_at: now,
            batches: BTreeMap::new(),
            charged_bytes: 0,
            errors: Rc::default(),
        });
        JoinReply { name: former, ..self.described(Status::OK, asked) }
    }

    pub(crate) fn remove(&mut self, request: &RemoveSession) -> SessionReply {
        let status = if request.session.is_any() {
            Status::INVALID
        } else if self.0.is_none() {
            Status::NO_SESSION
        } else if let Some(session) = self.own(&request.session) {
            session.references -= 1;
            if session.references == 0 {
                self.end();
            }
            Status::OK
        } else {
            Status::BUSY
        };
        SessionReply { status, session: self.told(&request.session) }
    }

    /// The answer to a query of the session.
    pub(crate) fn describe(&self, asked: &SessionId) -> JoinReply {
        self.described(if self.0.is_some() { Status::OK } else { Status::NO_SESSION }, asked)
    }

    /// Counters of the session of this id, or why there are none.
    pub(crate) fn counters(&mut self, id: &SessionId) -> Result<FrameworkCounters, Status> {
        if id.is_any() {
            return Err(Status::INVALID);
        }
        let session = self.own(id).ok_or(Status::NO_SESSION)?;
        let is_active = |batch: &&Batch| batch.iter().any(|test| test.active() != 0);
        Ok(FrameworkCounters {
            running_ms: session.begun.elapsed().as_millis() as u32,
            active_batches: session.batches.values().filter(is_active).count() as u32,
            zombie_sessions: 0,
            brw_errors: session.errors.brw.get(),
            ping_errors: session.errors.ping.get(),
        })
    }

    /// Whether a test can be added; how many destinations its client is to fetch.
    pub(crate) fn check_test(&mut self, request: &AddTest) -> Result<u32, Status> {
        let units = u64::from(request.destinations) * u64::from(request.concurrency);
        let is_client = request.is_client != 0;
        let is_valid = request.loop_count != 0
            && (1..=CONCURRENCY_MAX).contains(&request.concurrency)
            && !request.session.is_any()
            && (!is_client || request.destinations != 0)
            && units <= UNITS_MAX
            && match request.test {
                Test::Ping { .. } => true,
                Test::Brw { .. } | Test::BrwPages { .. } => !is_client || request.test.bulk().is_some(),
                Test::Unknown { .. } => false,
            };
        if !is_valid {
            return Err(Status::INVALID);
        }
        let session = self.own(&request.session).ok_or(Status::NO_ENTRY)?;
        if session.charged_bytes + memory_bytes(request) > SESSION_BYTES_MAX {
            return Err(Status::NO_MEMORY);
        }
        match session.batches.get(&request.batch) {
            Some(batch) if batch.iter().any(|test| test.active() != 0) => Err(Status::BUSY),
            Some(batch) if batch.len() >= BATCHES_MAX => Err(Status::NO_MEMORY),
            None if session.batches.len() >= BATCHES_MAX => Err(Status::NO_MEMORY),
            _ => Ok(if is_client { request.destinations } else { 0 }),
        }
    }

    /// Adds a test, with the destinations of a client.
    pub(crate) fn add_test(
        &mut self,
        request: &AddTest,
        destinations: Vec<lnet_user::ProcessId>,
    ) -> Result<(), Status> {
        self.check_test(request)?;
        let session = self.own(&request.session).ok_or(Status::NO_ENTRY)?;
        let client = (request.is_client != 0).then(|| {
            Rc::new(ClientTest {
                test: request.test,
                loop_count: request.loop_count,
                concurrency: request.concurrency,
                stops_on_error: request.stops_on_error != 0,
                destinations,
                features: session.features,
                active: Cell::new(0),
                stop: watch::Sender::new(false),
                errors: Rc::clone(&session.errors),
            })
        });
        let batch = session.batches.entry(request.batch).or_default();
        batch.push(BatchTest { client, tasks: Vec::new() });
        session.charged_bytes += memory_bytes(request);
        Ok(())
    }

    /// Runs, stops or queries a batch; `run` starts the units of a test. `None` of an operation that there is
    /// not: it has no answer.
    pub(crate) fn control(
        &mut self,
        request: &BatchControl,
        run: impl Fn(&Rc<ClientTest>) -> Vec<AbortHandle>,
    ) -> Option<BatchReply> {
        let operation = BatchOperation::new(request.operation)?;
        let (status, active) = match self.controlled(operation, request, run) {
            Ok(active) => (Status::OK, active),
            Err(status) => (status, 0),
        };
        Some(BatchReply { status, session: self.told(&request.session), active, time: 0 })
    }

    fn controlled(
        &mut self,
        operation: BatchOperation,
        request: &BatchControl,
        run: impl Fn(&Rc<ClientTest>) -> Vec<AbortHandle>,
    ) -> Result<u32, Status> {
        let session = self.own(&request.session).ok_or(Status::NO_SESSION)?;
        let batch = session.batches.get_mut(&request.batch).ok_or(Status::NO_ENTRY)?;
        match operation {
            BatchOperation::Run => {
                let is_active = batch.iter().any(|test| test.active() != 0);
                for test in batch.iter_mut().filter(|_| !is_active) {
                    if let Some(client) = &test.client {
                        client.stop.send_replace(false);
                        test.tasks = run(client);
                    }
                }
            }
            BatchOperation::Stop => batch.iter_mut().for_each(|test| test.stop(request.argument != 0)),
            BatchOperation::Query if request.test_index != 0 => {
                let test = batch.get(request.test_index as usize - 1).ok_or(Status::NO_ENTRY)?;
                return Ok(test.active());
            }
            BatchOperation::Query => {}
        }
        Ok(batch.iter().filter(|test| test.active() != 0).count() as u32)
    }
}

#[cfg(test)]
mod tests {
    use lnet_user::{Nid, ProcessId};

    use super::*;

    fn id(stamp: i64) -> SessionId {
        SessionId { nid: 1, stamp }
    }

    fn make(stamp: i64) -> MakeSession {
        MakeSession { reply_id: 1, session: id(stamp), force: 0, name: Name::EMPTY }
    }

    fn session() -> Sessions {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.make(&make(1), FEATURES, || None).status, Status::OK);
        sessions
    }

    /// Has time pass.
    fn age(sessions: &mut Sessions, time: Duration) {
        let session = sessions.0.as_mut().unwrap();
        session.seen_at = session.seen_at.checked_sub(time).unwrap();
    }

    #[test]
    fn a_session_whose_console_is_silent_ends_though_others_ask() {
        let mut sessions = session();
        let part = SESSION_TIMEOUT * 2 / 3;
        age(&mut sessions, part);
        sessions.touch(&id(1));
        age(&mut sessions, part);
        sessions.touch(&id(2));
        sessions.expire();
        assert_eq!(sessions.told(&id(1)), id(1));
        assert_eq!(sessions.make(&make(2), FEATURES, || None).status, Status::BUSY);
        age(&mut sessions, part);
        sessions.touch(&id(2));
        sessions.expire();
        assert!(!sessions.is_any());
        // Another console that asks finds it ended already.
        let mut sessions = session();
        age(&mut sessions, 2 * part);
        assert_eq!(sessions.make(&make(2), FEATURES, || None).status, Status::OK);
    }

    /// The id is all that a console shows for itself: who has it may end the session.
    #[test]
    fn the_id_of_a_session_is_told_to_who_names_it() {
        let mut sessions = session();
        let untold = SessionId { stamp: STAMP_UNTOLD, ..id(1) };
        let joined = sessions.make(&make(2), FEATURES, || None);
        assert_eq!((joined.status, joined.session), (Status::BUSY, untold));
        assert_eq!(sessions.describe(&id(2)).session, untold);
        assert_eq!(sessions.describe(&SessionId::NONE).session, untold);
        let remove = |stamp| RemoveSession { reply_id: 1, session: id(stamp) };
        let control = |stamp| BatchControl {
            reply_id: 1,
            session: id(stamp),
            batch: 1,
            operation: BatchOperation::Run as u32,
            argument: 0,
            test_index: 0,
        };
        // An id that was told to a stranger is of no use.
        for stamp in [2, STAMP_UNTOLD] {
            let refused = SessionReply { status: Status::BUSY, session: untold };
            assert_eq!(sessions.remove(&remove(stamp)), refused);
            let refused = sessions.control(&control(stamp), |_| Vec::new()).unwrap();
            assert_eq!((refused.status, refused.session), (Status::NO_SESSION, untold));
            assert_eq!(sessions.counters(&id(stamp)).err(), Some(Status::NO_SESSION));
        }
        assert_eq!(sessions.describe(&id(1)).session, id(1));
        assert_eq!(
            sessions.remove(&remove(1)),
            SessionReply { status: Status::OK, session: SessionId::NONE }
        );
    }

    fn test(batch: u64, concurrency: u32, destinations: u32) -> AddTest {
        AddTest {
            reply_id: 1,
            bulk_id: 1,
            session: id(1),
            batch,
            loop_count: 1,
            concurrency,
            is_client: 1,
            stops_on_error: 0,
            destinations,
            test: Test::Ping { size_bytes: 0, flags: 0 },
        }
    }

    #[test]
    fn the_tests_of_a_session_take_so_much_memory_and_no_more() {
        let mut sessions = session();
        let (mut units, mut tests) = (0, 0);
        let to = ProcessId { nid: Nid::LO, pid: 12345 };
        let refused = 'all: loop {
            for batch in 0..256 {
                for _ in 0..256 {
                    match sessions.add_test(&test(batch, 1024, 1), vec![to]) {
                        Ok(()) => (units, tests) = (units + 1024, tests + 1),
                        Err(refused) => break 'all refused,
                    }
                }
            }
        };
        assert_eq!(refused, Status::NO_MEMORY);
        // Three tests of as many units as the reference has for each of twenty servers.
        assert!((60_000..=SESSION_BYTES_MAX / UNIT_BYTES).contains(&units), "{units} units of {tests} tests");
        assert_eq!(sessions.check_test(&test(1, 1, 0)), Err(Status::INVALID));
        // A server's test costs little, and is bounded as well.
        let server = AddTest { is_client: 0, ..test(300, 1, 0) };
        let charged_bytes = sessions.0.as_ref().unwrap().charged_bytes;
        assert_eq!(sessions.check_test(&server).is_ok(), charged_bytes + TEST_BYTES <= SESSION_BYTES_MAX);
        // All of it goes with the session.
        sessions.end();
        assert_eq!(sessions.make(&make(1), FEATURES, || None).status, Status::OK);
        assert_eq!(sessions.add_test(&test(1, 1024, 8), vec![to; 8]), Ok(()));
    }
}
