//! What drives the state machine: it tells the shards, carries out actions, and watches links and traffic.
//!
//! Invariants: snapshots reach the shards in their order, and before what was decided after them is carried out; what
//! blocks (opening and closing NIs) runs on threads of its own.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use lnet_core::lnd::NiId;
use lnet_core::node::{Action, DriverError, NetTunables, NiSpec, PingId, Report, RequestId};
use lnet_core::topology::NiStatus;
use lnet_wire::steer::Policy;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{error, warn};

use super::error::driver_error;
use super::{Control, LndOptions, records};
use crate::api::{Lnet, LnetError};
use crate::node::{NiConfig, NiState};

/// How often links and new peers are looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How often shards are asked whether they are done with what goes.
const QUIET_INTERVAL: Duration = Duration::from_millis(2);

/// Something that was carried out.
enum Done {
    Opened {
        ni: NiId,
        result: Result<Box<NiState>, DriverError>,
    },
    Closed {
        ni: NiId,
    },
    Answered {
        ping: PingId,
        result: Result<Vec<u8>, DriverError>,
    },
    /// A ping that nobody waits for.
    Forgotten,
}

type Work<'a> = FuturesUnordered<LocalBoxFuture<'a, Done>>;

impl Control {
    /// Does what there is to be done, until a shard ends, which none does by itself. Within a tokio runtime with
    /// time, in the node's network namespace.
    pub async fn drive(&self) -> LnetError {
        let mut work = Work::new();
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let turn = async {
                self.settle(&work).await?;
                tokio::select! {
                    () = self.wake.notified() => Ok(()),
                    () = self.deadline() => {
                        self.node.borrow_mut().handle_timeout(self.clock.now());
                        Ok(())
                    }
                    Some(done) = work.next() => {
                        self.report(done);
                        Ok(())
                    }
                    () = sleep(QUIET_INTERVAL), if self.changing.get() > 0 => self.ask_shards().await,
                    _ = looks.tick() => self.look().await,
                }
            };
            if let Err(error) = turn.await {
                error!(%error, "the node cannot go on");
                return error;
            }
        }
    }

    /// Takes out all that the state machine wants done.
    async fn settle<'a>(&'a self, work: &Work<'a>) -> Result<(), LnetError> {
        loop {
            let snapshot = self.node.borrow_mut().poll_snapshot();
            if let Some(snapshot) = snapshot {
                let confirmations = self.lnet.update_async(&snapshot).await?;
                self.confirm(confirmations);
                continue;
            }
            let action = self.node.borrow_mut().poll_action();
            match action {
                Some(action) => self.carry_out(action, work),
                None => return Ok(()),
            }
        }
    }

    fn carry_out<'a>(&'a self, action: Action<LndOptions>, work: &Work<'a>) {
        match action {
            Action::Open { ni, spec, tunables } => work.push(Box::pin(self.open(ni, spec, tunables))),
            Action::Close { ni } => work.push(Box::pin(self.close(ni))),
            Action::Ping { ping, nid, source, length_bytes } => {
                let (get, abort) = abortable(self.get(nid, source, length_bytes));
                self.gets.borrow_mut().insert(ping, abort);
                work.push(Box::pin(async move {
                    match get.await {
                        Ok(result) => Done::Answered { ping, result },
                        Err(_) => Done::Forgotten,
                    }
                }));
            }
            Action::Forget { ping } => {
                let get = self.gets.borrow_mut().remove(&ping);
                get.into_iter().for_each(|get| get.abort());
            }
            Action::Publish(answer) => {
                *self.answer.borrow_mut() = Some(answer);
                if self.is_configured.get() {
                    self.post_answer();
                }
            }
            Action::Steer { portal, policy } => {
                let policy = policy.unpack().unwrap_or(Policy::Pin(0));
                let steered = self.lnet.with_node(|node| node.set_policy(portal as u8, policy));
                if let Err(error) = steered {
                    // The shards hand over what arrives at the wrong one.
                    warn!(portal, %error, "frames are not steered by the portal's new policy");
                }
            }
            Action::Done { request, result } => self.end(request, result),
        }
    }

    fn end(&self, request: RequestId, result: super::Outcome) {
        if let Some(waiter) = self.waiting.borrow_mut().remove(&request) {
            // Whoever asked may be gone.
            let _ = waiter.send(result);
        }
    }

    async fn open(&self, ni: NiId, spec: NiSpec<LndOptions>, tunables: NetTunables) -> Done {
        let config = NiConfig {
            credits: tunables.credits,
            peer_credits: tunables.peer_credits,
            mode: spec.lnd.mode.map(records::to_mode),
            udp_port: spec.lnd.port,
            queues: spec.lnd.queues.filter(|queues| *queues > 0),
            ..NiConfig::new(spec.nid, &spec.interface)
        };
        let lnet = self.lnet.clone();
        let opened = tokio::task::spawn_blocking(move || open(&lnet, ni, &config)).await;
        let result = match opened {
            Ok(opened) => opened.map(Box::new).map_err(|error| driver_error(&error)),
            Err(panic) => Err(DriverError { errno: 5, message: panic.to_string() }),
        };
        Done::Opened { ni, result }
    }

    async fn close(&self, ni: NiId) -> Done {
        let lnet = self.lnet.clone();
        match tokio::task::spawn_blocking(move || lnet.close_ni(ni)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => error!(ni = ni.0, %error, "an interface is not closed"),
            Err(panic) => error!(ni = ni.0, %panic, "an interface is not closed"),
        }
        Done::Closed { ni }
    }

    fn report(&self, done: Done) {
        let now = self.clock.now();
        let mut node = self.node.borrow_mut();
        match done {
            Done::Opened { ni, result } => {
                let result = result.map(|state| {
                    self.facts.borrow_mut().insert(ni.0, *state);
                });
                node.handle_report(now, Report::Opened { ni, result });
            }
            Done::Closed { ni } => {
                self.facts.borrow_mut().remove(&ni.0);
                node.handle_report(now, Report::Closed { ni });
            }
            Done::Answered { ping, result } => {
                self.gets.borrow_mut().remove(&ping);
                match result {
                    Ok(bytes) => node.handle_report(now, Report::Answered { ping, bytes: &bytes }),
                    Err(error) => node.handle_report(now, Report::Unanswered { ping, error }),
                }
            }
            Done::Forgotten => {}
        }
    }

    /// Ready when the state machine's next deadline is over.
    async fn deadline(&self) {
        let deadline = self.node.borrow().poll_timeout();
        match deadline {
            Some(deadline) => {
                sleep(Duration::from_nanos(deadline.0.saturating_sub(self.clock.now().0))).await
            }
            None => std::future::pending().await,
        }
    }

    async fn ask_shards(&self) -> Result<(), LnetError> {
        let topology = self.lnet.topology();
        let goes = |status| matches!(status, NiStatus::Leaving | NiStatus::Closed);
        if topology.local_nis().any(|(_, local)| goes(local.status)) {
            let confirmations = self.lnet.confirmations_async().await?;
            self.confirm(confirmations);
        }
        Ok(())
    }

    fn confirm(&self, confirmations: Vec<lnet_core::shard::Confirmation>) {
        let mut node = self.node.borrow_mut();
        for confirmation in confirmations {
            node.handle_report(self.clock.now(), Report::Confirmed(confirmation));
        }
    }

    /// Looks at links and traffic.
    async fn look(&self) -> Result<(), LnetError> {
        // Whoever opens or closes an NI has the node for a while.
        if self.changing.get() == 0 {
            self.look_at_links();
        }
        self.hear().await
    }

    fn look_at_links(&self) {
        let states = self.lnet.nis();
        let mut node = self.node.borrow_mut();
        for state in states {
            let (ni, is_up) = (state.ni, state.is_up);
            node.handle_report(self.clock.now(), Report::Link { ni, is_up });
            self.facts.borrow_mut().insert(ni.0, state);
        }
    }

    /// Posts what others hear when they ping, where their messages find it, in place of what was there.
    pub(super) fn post_answer(&self) {
        let Some(answer) = self.answer.borrow().clone() else { return };
        match super::pings::post(&self.lnet, &answer) {
            // The former ones go when the new ones are there.
            Ok(entries) => drop(std::mem::replace(&mut *self.entries.borrow_mut(), entries)),
            Err(error) => error!(%error, "pings are answered as before, or not at all"),
        }
    }

    /// Has something asked of the state machine be carried out.
    pub(super) async fn request(&self, request: lnet_core::node::Request<LndOptions>) -> super::Outcome {
        let id = self.node.borrow_mut().handle_request(self.clock.now(), request)?;
        let (waiter, ended) = tokio::sync::oneshot::channel();
        self.waiting.borrow_mut().insert(id, waiter);
        let _given_up = GivenUp { control: self, id };
        self.wake.notify_one();
        ended.await.unwrap_or(Err(lnet_core::node::RequestError::Cancelled))
    }
}

/// Gives a request up for which nobody waits any more.
struct GivenUp<'a> {
    control: &'a Control,
    id: RequestId,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if self.control.waiting.borrow_mut().remove(&self.id).is_some() {
            // A batch that has begun goes on.
            let _ = self.control.node.borrow_mut().cancel(self.id);
            self.control.wake.notify_one();
        }
    }
}

fn open(lnet: &Lnet, ni: NiId, config: &NiConfig) -> Result<NiState, LnetError> {
    lnet.open_ni(ni, config)?;
    let state = lnet.nis().into_iter().find(|state| state.ni == ni);
    state.ok_or(LnetError::Node(crate::node::NodeError::NoNi(ni.0)))
}
