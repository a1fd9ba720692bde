//! Tasks that are polled where they are woken: on threads that drive shards, and under no lock of theirs.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lnet_user::rpc::{Client, Server, ServiceSpec};
use lnet_user::{Ack, Buffer, EntrySpec, EventQueue, Global, Lnet, LnetError, MdOptions, Nid, QueuedEvent};

use crate::common::{LAZY, PATIENCE, PINNED, ROTOR, next, post, spec, start, to_self};

type Body = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that its wakers poll in place.
struct InPlace(Mutex<Option<Body>>);

impl Wake for InPlace {
    fn wake(self: Arc<Self>) {
        let body = self.0.lock().unwrap().take();
        if let Some(mut body) = body
            && body.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self)))).is_pending()
        {
            *self.0.lock().unwrap() = Some(body);
        }
    }
}

/// Polls a task for the first time, on this thread.
fn begin(body: impl Future<Output = ()> + Send + 'static) {
    let task = Arc::new(InPlace(Mutex::new(None)));
    let mut body: Body = Box::pin(body);
    let waker = Waker::from(Arc::clone(&task));
    // A waker that is called meanwhile finds no body. The caller sees to it that none is.
    assert!(body.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    *task.0.lock().unwrap() = Some(body);
}

/// Puts eight bytes to the node itself.
fn put(lnet: &Lnet, queue: &EventQueue, match_bits: u64) {
    let source = lnet.bind(&spec(queue, 8, 1, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
    source.put(&to_self(PINNED[0], match_bits), Ack::NotWanted, 0).queue().unwrap();
    source.detach();
}

/// Has a task wait for a PUT by its queue, or for the end of one by a future, and brings that about. `then`
/// goes on where the task was woken.
fn wake_with<F: Future<Output = ()> + Send>(
    lnet: &Lnet,
    by_future: bool,
    then: impl FnOnce(Lnet, EventQueue) -> F + Send + 'static,
) {
    let shard = lnet.shard(0).unwrap();
    let mut queue = shard.create_event_queue(16).unwrap();
    let handle = lnet.clone();
    // The entry goes with its queue, and the Put may come later than this returns.
    let (sends, match_bits) = (Arc::new(Mutex::new(lnet.create_event_queue(16).unwrap())), 7);
    if by_future {
        // A Put that waits for an entry to be posted.
        let source =
            lnet.bind(&spec(&sends.lock().unwrap(), 8, 2, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
        let outcome = source.put(&to_self(LAZY, match_bits), Ack::Wanted, 0).into_future();
        let kept = Arc::clone(&sends);
        begin(async move {
            drop(outcome.await.unwrap());
            drop(kept);
            then(handle, queue).await;
        });
        source.detach();
        post(&shard, &sends.lock().unwrap(), LAZY, match_bits, 8);
        return;
    }
    post(&shard, &queue, PINNED[0], match_bits, 8);
    begin(async move {
        let queued: Result<QueuedEvent, LnetError> = queue.next().await;
        drop(queued.unwrap());
        then(handle, queue).await;
    });
    put(lnet, &sends.lock().unwrap(), match_bits);
}

fn opened() -> Lnet {
    let lnet = start(1);
    lnet.open().unwrap();
    lnet
}

/// Whether the node goes on: a Put arrives, and a call is answered.
#[track_caller]
fn assert_alive(lnet: &Lnet) {
    let mut queue = lnet.shard(0).unwrap().create_event_queue(16).unwrap();
    post(&lnet.shard(0).unwrap(), &queue, PINNED[0], 99, 8);
    put(lnet, &queue, 99);
    next(&mut queue);
    lnet.shard(0).unwrap().usage().unwrap();
}

#[track_caller]
fn told<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(PATIENCE).expect("the task goes on")
}

#[test]
fn a_task_that_panics_where_it_is_woken_harms_no_other() {
    for by_future in [false, true] {
        let lnet = opened();
        let (tell, seen) = channel();
        wake_with(&lnet, by_future, |_, _| async move {
            tell.send(()).unwrap();
            panic!("this task panics where it is woken");
        });
        told(&seen);
        assert_alive(&lnet);
    }
}

#[test]
fn a_task_that_is_polled_in_place_may_call_the_shard_and_wait() {
    for by_future in [false, true] {
        let lnet = opened();
        let (tell, seen) = channel();
        wake_with(&lnet, by_future, |lnet, mut queue| async move {
            let shard = lnet.shard(0).unwrap();
            shard.usage().unwrap();
            let entry = EntrySpec::new(PINNED[0], 5);
            let md = spec(&queue, 8, 1, MdOptions::PUT);
            shard.attach(&entry, &md, Buffer::zeroed(8)).unwrap().detach();
            put(&lnet, &queue, 5);
            let queued = queue.next_blocking(Some(Duration::from_secs(5)));
            tell.send(queued.map(|queued| queued.is_some())).unwrap();
        });
        assert!(told(&seen).unwrap(), "an event where it waited");
        assert_alive(&lnet);
    }
}

#[test]
fn a_task_that_drops_the_last_handle_where_it_is_woken_ends_the_node() {
    for by_future in [false, true] {
        let lnet = opened();
        let (tell, seen) = channel();
        let (go, may_go) = channel();
        wake_with(&lnet, by_future, move |lnet, queue| async move {
            may_go.recv_timeout(PATIENCE).unwrap();
            drop(queue);
            drop(lnet);
            tell.send(()).unwrap();
        });
        drop(lnet);
        go.send(()).unwrap();
        told(&seen);
    }
}

/// Calls that wait for the node's other threads: the one that controls it, and all shards.
fn call_the_node(lnet: &Lnet) -> Result<usize, LnetError> {
    lnet.ping(Nid::LO, None, PATIENCE)?;
    lnet.set(Global::HealthSensitivity, 100)?;
    lnet.shard(0).unwrap().usage()?;
    Ok(lnet.peers()?.len())
}

#[test]
fn a_task_that_is_polled_in_place_may_call_the_node_and_wait() {
    for (by_future, shards) in [(false, 1), (false, 2), (true, 1)] {
        let lnet = start(shards);
        lnet.open().unwrap();
        let (tell, seen) = channel();
        wake_with(&lnet, by_future, |lnet, _| async move {
            tell.send(call_the_node(&lnet)).unwrap();
        });
        told(&seen).unwrap();
        assert_alive(&lnet);
    }
}

/// The thread that controls the node brings the results of requests.
#[test]
fn a_task_that_a_request_wakes_may_call_the_node_and_wait() {
    let lnet = opened();
    let (tell, seen) = channel();
    let handle = lnet.clone();
    begin(async move {
        let pinged = handle.ping_async(Nid::LO, None, PATIENCE).await;
        tell.send(pinged.and_then(|_| call_the_node(&handle))).unwrap();
    });
    told(&seen).unwrap();
    assert_alive(&lnet);
}

#[test]
fn a_task_that_the_end_of_the_node_wakes_may_call_it_or_panic() {
    for panics in [false, true] {
        let lnet = opened();
        let (tell, seen) = channel();
        let handle = lnet.clone();
        begin(async move {
            handle.ended().await;
            tell.send(handle.peers().map(drop).and_then(|()| handle.ping(Nid::LO, None, PATIENCE).map(drop)))
                .unwrap();
            assert!(!panics, "this task panics where it is woken");
        });
        let shard = lnet.shard(0).unwrap();
        assert!(matches!(shard.run(|_| panic!("a shard panics")), Err(LnetError::Ended(_))));
        assert!(matches!(told(&seen), Err(LnetError::Ended(_))));
    }
}

/// Requests and replies of a service.
#[test]
fn a_task_that_a_reply_wakes_may_call_the_node_or_panic() {
    for panics in [false, true] {
        let lnet = opened();
        let service = ServiceSpec::new(PINNED[1], ROTOR);
        let mut server = Server::start(&lnet, &service).unwrap();
        let client = Client::new(&lnet, &service).unwrap();
        let (tell, seen) = channel();
        let (handle, told_of_reply) = (lnet.clone(), tell.clone());
        begin(async move {
            let reply = client.call(Nid::LO, Buffer::from(b"request".to_vec()), PATIENCE).await;
            told_of_reply.send(reply.and_then(|_| call_the_node(&handle))).unwrap();
            assert!(!panics, "this task panics where it is woken");
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let request = runtime.block_on(server.next()).unwrap();
        let reply = request.reply(Buffer::from(b"reply".to_vec()));
        let handle = lnet.clone();
        let sent = async move {
            let sent = reply.await;
            tell.send(sent.and_then(|()| call_the_node(&handle))).unwrap();
        };
        // The reply may have left by now, so that no waker is called in place.
        runtime.block_on(sent);
        for _ in 0..2 {
            told(&seen).unwrap();
        }
        assert_alive(&lnet);
    }
}

/// The last handle goes while the thread that controls the node waits for the shard.
#[test]
fn a_task_that_drops_the_last_handle_while_the_shard_is_asked_ends_the_node() {
    for _ in 0..10 {
        let lnet = opened();
        let (tell, seen) = channel();
        let (go, may_go) = channel();
        let asking = lnet.clone();
        wake_with(&lnet, false, move |lnet, queue| async move {
            may_go.recv_timeout(PATIENCE).unwrap();
            // Time for a request to reach the thread that controls the node, and its calls the shard.
            std::thread::sleep(Duration::from_millis(5));
            drop((queue, lnet));
            tell.send(()).unwrap();
        });
        drop(lnet);
        // Given up at once; the last handle but one goes with it.
        let task = std::thread::spawn(move || {
            let mut asked = Box::pin(async move { asking.discover_async(Nid::LO, true).await });
            let _ = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        go.send(()).unwrap();
        task.join().unwrap();
        told(&seen);
    }
}
