//! Units of tests: each sends its requests to one destination, one after the other (LNet `framework.c:
//! sfw_run_test`).

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use lnet_user::ProcessId;
use lnet_wire::selftest::{Body, Brw, Check, Direction, PING_MAGIC, Ping};
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;

use crate::bulk;
use crate::exchange::{Bulk, Call, Exchange};
use crate::session::ClientTest;
use crate::source::Offer;

/// After a request that failed at once, so that nothing spins.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Counts a unit as active until it ends, however that happens.
struct Active(Rc<ClientTest>);

impl Active {
    fn new(test: &Rc<ClientTest>) -> Self {
        test.active.set(test.active.get() + 1);
        Self(Rc::clone(test))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

/// Starts the units of a test.
pub(crate) fn run(exchange: &Rc<Exchange>, test: &Rc<ClientTest>) -> Vec<AbortHandle> {
    let units = test.destinations.iter().flat_map(|to| (0..test.concurrency).map(|_| *to));
    let start = |to: ProcessId| {
        let unit = unit(Rc::clone(exchange), Active::new(test), to);
        tokio::task::spawn_local(unit).abort_handle()
    };
    units.map(start).collect()
}

async fn unit(exchange: Rc<Exchange>, active: Active, to: ProcessId) {
    let test = &active.0;
    let stop = test.stop.subscribe();
    // The data that it writes, once it does.
    let offer = exchange.offer();
    for sequence in 0..test.loop_count {
        let turn = exchange.turn().await;
        if *stop.borrow() {
            return;
        }
        // There are many units, of which few have their turn: what a request takes is boxed until it is over.
        let (errors, result) = match test.test.bulk() {
            Some(bulk) => (&test.errors.brw, Box::pin(transfer(&exchange, test, to, bulk, &offer)).await),
            None => (&test.errors.ping, Box::pin(ping(&exchange, test, to, sequence)).await),
        };
        drop(turn);
        if let Err(error) = result {
            tracing::debug!(to = %to.nid, error, "a selftest request has failed");
            errors.set(errors.get().saturating_add(1));
            if test.stops_on_error {
                return;
            }
            tokio::time::sleep(ERROR_PAUSE).await;
        }
    }
}

/// Bytes that a unit takes; what a task has besides is less than half of
/// [`UNIT_BYTES`](crate::session::UNIT_BYTES).
#[cfg(test)]
pub(crate) fn unit_bytes(exchange: &Rc<Exchange>, test: &Rc<ClientTest>, to: ProcessId) -> usize {
    size_of_val(&unit(Rc::clone(exchange), Active::new(test), to))
}

fn request(test: &ClientTest, to: ProcessId, bulk: Bulk) -> Call {
    Call { to, features: test.features, bulk }
}

async fn ping(exchange: &Exchange, test: &ClientTest, to: ProcessId, sequence: u32) -> Result<(), String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, nanoseconds) = (now.as_secs(), now.subsec_nanos().into());
    let body = |reply_id, _| Body::Ping(Ping { reply_id, magic: PING_MAGIC, sequence, seconds, nanoseconds });
    let called = exchange.call(request(test, to, Bulk::Nothing), body).await;
    match called.map_err(|error| error.to_string())?.0.body {
        Body::PingReply(reply)
            if reply.status.0 == 0 && (reply.magic, reply.sequence) == (PING_MAGIC, sequence) =>
        {
            Ok(())
        }
        reply => Err(format!("{reply:?}; magic {PING_MAGIC:#x} and sequence {sequence} were expected")),
    }
}

async fn transfer(
    exchange: &Exchange,
    test: &ClientTest,
    to: ProcessId,
    (direction, check, length_bytes): (Direction, Check, u32),
    offer: &OnceCell<Offer>,
) -> Result<(), String> {
    let bulk = match direction {
        Direction::Write => {
            let offered = exchange.offered(offer).await;
            Bulk::Offered(offered.map_err(|error| error.to_string())?)
        }
        Direction::Read => Bulk::Sink(exchange.sinks.take(length_bytes as usize, check)),
    };
    let (direction_word, flags) = (direction as u32, check as u32);
    let body = |reply_id, bulk_id| {
        Body::Brw(Brw { reply_id, bulk_id, direction: direction_word, length_bytes, flags })
    };
    let called = exchange.call(request(test, to, bulk), body).await;
    let (reply, sink) = called.map_err(|error| error.to_string())?;
    match reply.body {
        Body::BrwReply(status) if status.status.0 == 0 => {}
        reply => return Err(format!("{reply:?}; status 0 was expected")),
    }
    if direction == Direction::Write {
        return Ok(());
    }
    let sink = sink.ok_or("the buffer of the bulk data is missing")?;
    let is_right = bulk::is_right(&sink, check, reply.is_swapped);
    exchange.sinks.give_back(sink);
    if is_right { Ok(()) } else { Err("bulk data is not what its source is to send".to_owned()) }
}
