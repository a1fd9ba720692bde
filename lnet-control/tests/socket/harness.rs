//! A server in a thread of its own, with a node behind it that takes its time.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::future::pending;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lnet_control::client::Client;
use lnet_control::server::{self, Access, Handler, Listener, ServerLimits};
use lnet_model::capture::CaptureRecord;
use lnet_model::records::{
    CptRecord, Globals, NetRecord, PeerCredits, PeerHealth, PeerNiRecord, PeerPage, PeerQuery, PeerRecord,
    SelftestAnswer, SelftestRequest, Statistics,
};
use lnet_model::request::{Change, ChangeSet, Effect, PingRecord};
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspInfo;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;
use tokio::sync::oneshot;

/// A node of which only globals, and the times that things take, are real.
#[derive(Default)]
pub(crate) struct Model {
    globals: Mutex<Globals>,
    /// Pings that have begun and neither ended nor been dropped.
    pub(crate) pings: AtomicUsize,
    /// Orders under way.
    pub(crate) orders: AtomicUsize,
    /// Changes under way.
    changing: AtomicUsize,
    /// Changes carried out.
    pub(crate) changed: AtomicUsize,
    /// Peers that it has.
    pub(crate) peer_count: AtomicUsize,
    /// Records of CPTs in an answer.
    pub(crate) cpt_count: AtomicUsize,
}

/// Peers of a page.
const PAGE_PEERS: usize = 256;

/// The NID of a peer; they are in order.
fn peer_nid(number: usize) -> Nid {
    let [_, a, b, c] = u32::try_from(number).unwrap().to_be_bytes();
    format!("10.{a}.{b}.{c}@tcp").parse().unwrap()
}

fn peer(number: usize) -> PeerRecord {
    let ni = PeerNiRecord {
        nid: peer_nid(number),
        is_configured: false,
        is_claim: false,
        is_alive: None,
        fsm_state: "CONNECTED".to_owned(),
        credits: PeerCredits::default(),
        traffic: Default::default(),
        health: PeerHealth::default(),
        udsp: UdspInfo::default(),
    };
    PeerRecord {
        primary_nid: peer_nid(number),
        multi_rail: true,
        state: 0,
        is_gateway: false,
        fsm_state: "ACTIVE".to_owned(),
        shared_nids: Vec::new(),
        nis: vec![ni],
    }
}

/// One, as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler for Model {
    async fn nets(&self) -> Result<Vec<NetRecord>, Refusal> {
        Err(Refusal::new(Errno::NETDOWN, "the node is not configured"))
    }

    async fn peer_page(&self, PeerQuery { after, .. }: PeerQuery) -> Result<PeerPage, Refusal> {
        let count = self.peer_count.load(Ordering::SeqCst);
        let begin = after.map_or(0, |NidText(nid)| {
            let bytes = nid.to_bytes();
            1 + u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize
        });
        let end = (begin + PAGE_PEERS).min(count);
        let peers: Vec<_> = (begin..end).map(peer).collect();
        let next = peers.last().filter(|_| end < count).map(|last: &PeerRecord| NidText(last.primary_nid));
        Ok(PeerPage { peers, next })
    }

    async fn cpts_of(&self, _: Vec<NidText>) -> Result<Vec<CptRecord>, Refusal> {
        let record = CptRecord { nid: peer_nid(1), cpt: 0 };
        Ok(vec![record; self.cpt_count.load(Ordering::SeqCst)])
    }

    async fn globals(&self) -> Result<Globals, Refusal> {
        Ok(*self.globals.lock().unwrap())
    }

    async fn statistics(&self) -> Result<Statistics, Refusal> {
        Ok(Statistics { send_count: u64::MAX, ..Statistics::default() })
    }

    async fn steering(&self) -> Result<SteeringRecord, Refusal> {
        Ok(SteeringRecord { shard_count: 2, portals: Vec::new() })
    }

    /// Takes 30 ms a change, and says how many were ever under way at once by their outcomes.
    async fn apply(&self, batch: ChangeSet) -> Result<Vec<Effect>, Refusal> {
        let _changing = Counted::new(&self.changing);
        let mut outcomes = Vec::new();
        for (position, change) in batch.changes.iter().enumerate() {
            tokio::time::sleep(Duration::from_millis(30)).await;
            if self.changing.load(Ordering::SeqCst) != 1 {
                return Err(Refusal::new(Errno::BUSY, "two changes at once").of_change(position));
            }
            let Change::SetGlobal { global, value } = change else {
                return Err(Refusal::new(Errno::OPNOTSUPP, "globals only").of_change(position));
            };
            let mut globals = self.globals.lock().unwrap();
            let same = globals.get(*global) == *value;
            if !batch.dry_run {
                globals.set(*global, *value);
                self.changed.fetch_add(1, Ordering::SeqCst);
            }
            outcomes.push(if same { Effect::Unchanged } else { Effect::Changed });
        }
        Ok(outcomes)
    }

    /// Port 4 of an address never answers; others take 10 ms times their last octet.
    async fn ping(&self, nid: Nid, _: Option<Nid>, _: Duration) -> Result<PingRecord, Refusal> {
        let _ping = Counted::new(&self.pings);
        let last = u64::from(nid.to_bytes()[7]);
        if last == 4 {
            pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(10 * (10 - last))).await;
        Ok(PingRecord { primary_nid: nid, multi_rail: false, nids: vec![nid], shared_nids: vec![] })
    }

    /// Takes longer than a test waits.
    async fn selftest(&self, _: SelftestRequest) -> Result<SelftestAnswer, Refusal> {
        let _order = Counted::new(&self.orders);
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(SelftestAnswer::Nodes(Vec::new()))
    }

    async fn warnings(&self) -> Result<Vec<String>, Refusal> {
        Ok(Vec::new())
    }

    async fn captures(&self) -> Result<Vec<CaptureRecord>, Refusal> {
        // More than a reply may hold.
        let record = CaptureRecord {
            path: "x".repeat(1 << 20),
            is_running: true,
            limit_bytes: 0,
            written_bytes: 0,
            frame_count: 0,
            missed_count: 0,
            failure: None,
        };
        Ok(vec![record; 33])
    }
}

/// A server in a thread of its own, and the directory that its socket is in.
pub(crate) struct Server {
    pub(crate) model: Arc<Model>,
    pub(crate) directory: Directory,
    pub(crate) socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with_limits(ServerLimits::default())
    }

    pub(crate) fn with_limits(limits: ServerLimits) -> Self {
        let directory = Directory::new();
        let socket = directory.path("node.sock");
        let model = Arc::new(Model::default());
        let (stop, stopped) = oneshot::channel();
        let (ready, bound) = std::sync::mpsc::channel();
        let (path, handler) = (socket.clone(), Arc::clone(&model));
        let thread = thread::spawn(move || {
            runtime().block_on(async move {
                let listener = Listener::bind(&path, Access::default()).unwrap();
                ready.send(()).unwrap();
                let stopped = async move {
                    let _ = stopped.await;
                };
                server::serve(listener, limits, &*handler, stopped).await;
            });
        });
        bound.recv().unwrap();
        Self { model, directory, socket, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    pub(crate) fn stream(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }

    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        assert!(!self.socket.exists(), "the socket's file stays behind");
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A directory that goes with its owner.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let path = std::env::temp_dir().join(format!("lnet-socket-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}
