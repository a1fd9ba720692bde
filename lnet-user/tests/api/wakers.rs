//! Tasks that are polled where they are woken: on threads that drive shards, and under no lock of theirs.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lnet_user::{Ack, Buffer, EntrySpec, EventQueue, Lnet, LnetError, MdOptions, QueuedEvent};

use crate::common::{LAZY, PATIENCE, PINNED, next, post, spec, start, to_self};

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
    let (sends, match_bits) = (lnet.create_event_queue(16).unwrap(), 7);
    if by_future {
        // A Put that waits for an entry to be posted.
        let source = lnet.bind(&spec(&sends, 8, 2, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
        let outcome = source.put(&to_self(LAZY, match_bits), Ack::Wanted, 0).into_future();
        begin(async move {
            drop(outcome.await.unwrap());
            then(handle, queue).await;
        });
        source.detach();
        post(&shard, &sends, LAZY, match_bits, 8);
        return;
    }
    post(&shard, &queue, PINNED[0], match_bits, 8);
    begin(async move {
        let queued: Result<QueuedEvent, LnetError> = queue.next().await;
        drop(queued.unwrap());
        then(handle, queue).await;
    });
    put(lnet, &sends, match_bits);
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
