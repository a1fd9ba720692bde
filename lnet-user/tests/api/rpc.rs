//! Requests and replies, on one node and between two.

use std::time::{Duration, Instant};

use lnet_core::lnd::Cause;
use lnet_user::api::Threads;
use lnet_user::rpc::{Client, ReceivedRequest, Server, ServiceSpec};
use lnet_user::runtime::Idle;
use lnet_user::{Buffer, Lnet, LnetError, Net, NiConfig, Nid, Status};

use crate::common::{LAZY, PATIENCE, PINNED, ROTOR, await_idle, config, start};

const SERVICE: ServiceSpec = ServiceSpec::new(PINNED[1], ROTOR);

fn nid(host: u8) -> Nid {
    Nid::new_ip(Net::XDP, [10, 9, 6, host].into()).unwrap()
}

fn node(fabric: &str, host: u8) -> Lnet {
    let ni = NiConfig::new(nid(host), &format!("in-process:{fabric}"));
    let config = config(2).nis(vec![ni]).lnd_timeout(Duration::from_secs(2));
    let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    lnet.open().unwrap();
    lnet
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Replies with the request and its length in front, until dropped.
async fn echo(server: &mut Server) -> LnetError {
    loop {
        let call = match server.next().await {
            Ok(call) => call,
            Err(error) => return error,
        };
        let reply = [&[call.request().len() as u8], call.request()].concat();
        if let Err(error) = call.reply(Buffer::from(reply)).await {
            return error;
        }
    }
}

#[test]
fn a_server_is_a_stream_that_ends_with_the_node() {
    use futures_util::StreamExt;

    let lnet = start(1);
    let mut server = Server::start(&lnet, &SERVICE).unwrap();
    let client = Client::new(&lnet, &SERVICE).unwrap();
    lnet.open().unwrap();
    run(async {
        let serve = async {
            let call: ReceivedRequest = server.next().await.unwrap();
            call.reply(Buffer::from(b"so".to_vec())).await.unwrap();
        };
        let call = client.call(Nid::LO, Buffer::from(b"how".to_vec()), PATIENCE);
        assert_eq!(futures_util::join!(serve, call).1.unwrap().payload(), Some(&b"so"[..]));
        lnet.shard(0).unwrap().run(|_| -> () { panic!("on purpose") }).unwrap_err();
        assert!(StreamExt::next(&mut server).await.is_none());
    });
}

/// More calls than the rooms of the server have place for, many at once.
#[test]
fn every_call_has_its_reply() {
    let [near, far] = [1, 2].map(|host| node("rpc", host));
    let service = SERVICE.request_bytes(100).reply_bytes(101).calls(8);
    let mut server = Server::start(&far, &service).unwrap();
    let client = Client::new(&near, &service).unwrap();
    let ask = |number: u8| {
        let (client, bytes) = (&client, vec![number; usize::from(number) % 101]);
        async move {
            let reply = client.call(nid(2), Buffer::from(bytes.clone()), PATIENCE).await.unwrap();
            assert_eq!(reply.payload(), Some(&[&[bytes.len() as u8], &bytes[..]].concat()[..]));
        }
    };
    let all = async {
        for first in 0..30 {
            futures_util::future::join_all((0..8).map(|number| ask(first * 8 + number))).await;
        }
    };
    run(async {
        tokio::select! {
            error = echo(&mut server) => panic!("{error}"),
            () = all => {}
        }
    });
    drop((server, client));
    for node in [near, far] {
        node.shards().for_each(|shard| await_idle(&shard));
    }
}

#[test]
fn a_call_without_reply_ends_in_time_and_leaves_nothing() {
    let lnet = start(2);
    let client = Client::new(&lnet, &SERVICE).unwrap();
    let call = |to, timeout| run(client.call(to, Buffer::from(vec![1; 8]), timeout)).unwrap_err();
    let begun = Instant::now();
    let timeout = Duration::from_millis(50);
    let late = call(Nid::LO, timeout);
    assert!(matches!(late, LnetError::NoReply { server: Nid::LO, .. }), "{late}");
    assert!((timeout..PATIENCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    // One that cannot be sent does not wait for it.
    let unsent = call(nid(9), PATIENCE);
    let LnetError::NotSent { status, .. } = unsent else { panic!("{unsent}") };
    assert_eq!(status, Status::NeverSent(Cause::Unreachable));
    assert!(begun.elapsed() < PATIENCE / 2);
    // One whose future is dropped, in the middle and before it is polled.
    run(async {
        let given_up = client.call(Nid::LO, Buffer::zeroed(8), PATIENCE);
        tokio::select! {
            biased;
            reply = given_up => panic!("{reply:?}"),
            () = std::future::ready(()) => {}
        }
        drop(client.call(Nid::LO, Buffer::zeroed(8), PATIENCE));
    });
    // Many, so that what is left of each would fill the queue.
    for _ in 0..200 {
        assert!(matches!(call(Nid::LO, Duration::ZERO), LnetError::NoReply { .. }));
    }
    let unknown = Client::new(&lnet, &ServiceSpec::new(64, LAZY)).unwrap();
    let refused = run(unknown.call(Nid::LO, Buffer::zeroed(8), PATIENCE)).unwrap_err();
    assert!(refused.to_string().contains("portal 64"), "{refused}");
    drop((client, unknown));
    lnet.shards().for_each(|shard| await_idle(&shard));
}

#[test]
fn a_reply_that_is_too_long_is_told_and_one_that_comes_late_is_dropped() {
    let lnet = start(1);
    let service = SERVICE.reply_bytes(4);
    let mut server = Server::start(&lnet, &service).unwrap();
    let client = Client::new(&lnet, &service).unwrap();
    run(async {
        let ask = client.call(Nid::LO, Buffer::from(vec![7; 9]), PATIENCE);
        let (asked, ended) = tokio::join!(ask, async {
            let call = server.next().await.unwrap();
            assert_eq!((call.request(), call.client()), (&[7; 9][..], Nid::LO));
            call.reply(Buffer::zeroed(5)).await
        });
        assert!(
            matches!(asked, Err(LnetError::LongReply { requested_bytes: 5, reply_bytes: 4 })),
            "{asked:?}"
        );
        ended.unwrap();
    });
    let late = run(client.call(Nid::LO, Buffer::from(vec![8; 9]), Duration::from_millis(1)));
    assert!(matches!(late, Err(LnetError::NoReply { .. })), "{late:?}");
    let call = server.next_blocking(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(call.request(), [8; 9]);
    run(call.reply(Buffer::zeroed(4))).unwrap();
    assert!(server.next_blocking(Some(Duration::from_millis(1))).unwrap().is_none());
    drop((server, client));
    await_idle(&lnet.shard(0).unwrap());
}
