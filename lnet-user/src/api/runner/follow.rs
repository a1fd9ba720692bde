//! What the runner looks at itself: with which peers shards have traffic, what they have learned of peers and
//! interfaces, and how links are. The state machine hears of it, and the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, ready};
use lnet_core::node::{NamedClaim, NodeChange, Report, Request};
use lnet_io::blocking;
use lnet_io::netlink::{Interface, packets};
use lnet_xdp::RingTraffic;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::{Done, Work};
use crate::api::peer_log::refused;
use crate::api::service::Service;
use crate::api::traffic::moved;
use crate::api::{Core, LnetError, ShardEnd};
use crate::node::{DownReason, NiConfig, NiState};
use crate::runtime::Worker;

/// How long a link may take to carry when an NI was opened on it, and how often that is looked at. Resets by
/// drivers take up to 3 s.
const CARRIER_PATIENCE: Duration = Duration::from_secs(5);
const CARRIER_INTERVAL: Duration = Duration::from_millis(50);

impl Core {
    /// Has the state machine hear what shards have learned, and do what follows.
    pub(in crate::api) async fn follow_shards(&self) -> Result<(), LnetError> {
        self.follow_traffic().await?;
        self.follow_peers().await?;
        self.runner.wake.notify_one();
        Ok(())
    }

    /// Finds out with which peers there was traffic.
    pub(super) async fn follow_traffic(&self) -> Result<(), LnetError> {
        let totals = self.runner.books().traffic.totals();
        let before = move |worker: &Worker| totals.get(usize::from(worker.shard_id().0)).copied();
        let told = self.look(move |worker| moved(worker.shard(), before(worker).unwrap_or_default())).await?;
        let traffic = self.runner.books().traffic.note(told);
        let now = std::time::Instant::now();
        let spoke = traffic.iter().map(|(nid, is_incoming, _)| (*nid, *is_incoming));
        self.runner.books().log.note_traffic(now, spoke);
        let mut machine = self.runner.machine();
        for (nid, is_incoming, first_ni) in traffic {
            machine.handle_report(self.runner.clock.now(), Report::Traffic { nid, is_incoming, first_ni });
        }
        Ok(())
    }

    /// Has all shards tell something, as [`Core::ask`] does. A driver that sleeps is not woken for that: then
    /// it is done here, and must not change what the shard watches.
    async fn look<R: Send + 'static, F>(&self, look: F) -> Result<Vec<R>, LnetError>
    where
        F: Fn(&mut Worker) -> R + Clone + Send + 'static,
    {
        let begin = |end: &ShardEnd| {
            let here = |look: F, worker: &mut Worker, service: &mut Service| {
                service.run_alone(|worker, _| look(worker), worker)
            };
            Ok::<_, LnetError>(match end.thread.try_call_at_rest(look.clone(), Service::is_free, here) {
                Ok(told) => Either::Left(ready(Ok(told.map_err(LnetError::Ended)?))),
                Err(look) => Either::Right(end.caller.begin(move |worker, _| look(worker))?),
            })
        };
        let begun =
            self.shards.iter().map(|end| Ok((end, begin(end)?))).collect::<Result<Vec<_>, LnetError>>()?;
        let mut told = Vec::with_capacity(begun.len());
        for (end, answer) in begun {
            told.push(answer.await.map_err(|_| end.caller.ended())?);
        }
        Ok(told)
    }

    /// Has the state machine hear which peers are to be found out about, and how interfaces fare.
    pub(super) async fn follow_peers(&self) -> Result<(), LnetError> {
        let told = self.look(|worker| {
            let wanted: Vec<_> = std::iter::from_fn(|| worker.poll_wanted()).collect();
            let came_from: Vec<_> = std::iter::from_fn(|| worker.poll_came_from()).collect();
            let waiting: Vec<_> = std::iter::from_fn(|| worker.poll_waiting()).collect();
            let foreign: Vec<_> = std::iter::from_fn(|| worker.poll_foreign()).collect();
            let pinged: Vec<_> = std::iter::from_fn(|| worker.poll_pinged()).collect();
            let paths: Vec<_> = std::iter::from_fn(|| worker.poll_paths()).collect();
            let health: Vec<_> = std::iter::from_fn(|| worker.poll_health()).collect();
            (wanted, (came_from, waiting, foreign), pinged, paths, health)
        });
        let told = told.await?;
        let mut machine = self.runner.machine();
        let now = self.runner.clock.now();
        for (wanted, (came_from, waiting, foreign), pinged, paths, health) in told {
            pinged.into_iter().for_each(|ni| machine.handle_report(now, Report::Pinged { ni }));
            for (nid, address) in came_from {
                machine.handle_report(now, Report::CameFrom { nid, address });
            }
            waiting.into_iter().for_each(|nid| machine.handle_report(now, Report::Waiting { nid }));
            for (by, net) in foreign {
                machine.handle_report(now, Report::Foreign { by, net });
            }
            wanted.into_iter().for_each(|nid| machine.handle_report(now, Report::Wanted { nid }));
            paths.into_iter().for_each(|note| machine.handle_report(now, Report::Path(note)));
            health.into_iter().for_each(|note| machine.handle_report(now, Report::Health(note)));
        }
        Ok(())
    }

    /// Logs what shards have learned of peers.
    pub(super) async fn log_peers(&self) -> Result<(), LnetError> {
        let now = std::time::Instant::now();
        let is_due = self.runner.books().log.is_due(now);
        let told = self.look(move |worker| {
            let changes: Vec<_> = std::iter::from_fn(|| worker.poll_peer_change()).collect();
            (changes, is_due.then(|| refused(worker)))
        });
        let told = told.await?;
        let (refused_discovery, evicted_discovery, differences, claims) = {
            let mut machine = self.runner.machine();
            let differences: Vec<_> = std::iter::from_fn(|| machine.poll_difference()).collect();
            let claims = is_due.then(|| (machine.poll_proven(), machine.poll_contradicted()));
            let counters = machine.discovery_counters();
            let counted = (counters.proven, counters.contradicted);
            let refused = counters.refused + counters.answers_refused;
            (refused, counters.evicted, differences, claims.map(|claims| (claims, counted)))
        };
        let mut books = self.runner.books();
        if is_due && refused_discovery != books.refused_discovery {
            // The LNDs may count from 0 on again since.
            let count = refused_discovery.checked_sub(books.refused_discovery).unwrap_or(refused_discovery);
            if count > 0 {
                warn!(count, "pushes and answers to pings refused: malformed, or not about their senders");
            }
            books.refused_discovery = refused_discovery;
        }
        if is_due && evicted_discovery != books.evicted_discovery {
            let count = evicted_discovery.checked_sub(books.evicted_discovery).unwrap_or(evicted_discovery);
            if count > 0 {
                warn!(count, "discoveries of silent peers given up: others had no room");
            }
            books.evicted_discovery = evicted_discovery;
        }
        if let Some(((proven, contradicted), (proven_count, contradicted_count))) = claims {
            if let Some(NamedClaim { nid, claimant }) = proven {
                info!(%nid, peer = %claimant, proven_count, "a NID has proven to be that of the peer that tells it");
            }
            if let Some(NamedClaim { nid, claimant }) = contradicted {
                let text = "a NID is not that of the peer that tells it: each keeps what it has proven";
                warn!(%nid, peer = %claimant, contradicted_count, "{text}");
            }
        }
        let log = &mut books.log;
        told.iter().flat_map(|(changes, _)| changes).for_each(|(nid, change)| log.note(now, *nid, *change));
        differences.iter().for_each(|difference| log.note_difference(now, difference));
        if is_due {
            let refused = told.into_iter().filter_map(|(_, refused)| refused).flatten();
            log.note_refused(now, self.view.limits().peers, refused);
        }
        Ok(())
    }

    /// Looks whether frames arrive nowhere.
    pub(super) async fn watch_frames(&self) -> Result<(), LnetError> {
        if !self.view.has_rings() {
            return Ok(());
        }
        let unheard: Vec<u32> = self.view.unheard().into_iter().map(|(index, _)| index).collect();
        let packets = match unheard.is_empty() {
            true => BTreeMap::new(),
            // Before the programs and the shards are asked, which count a frame later than the kernel.
            false => blocking::run(move || packets(&unheard)).await.unwrap_or_default(),
        };
        let traffic = |worker: &mut Worker| {
            worker.xdp().map(|lnd| lnd.ring_traffic().collect::<Vec<_>>()).unwrap_or_default()
        };
        let mut sums = BTreeMap::<u32, RingTraffic>::new();
        for (interface_index, traffic) in self.look(traffic).await?.into_iter().flatten() {
            sums.entry(interface_index).or_default().add(traffic);
        }
        if let Err(error) = self.view.watch_frames(&sums, &packets) {
            warn!(%error, "frames that arrive nowhere are not noticed");
        }
        Ok(())
    }

    pub(in crate::api) fn look_at_links(&self) {
        if let Some(interface) = self.view.unfollowed() {
            self.runner.fate.end(&format!("the netlink thread of {interface} has panicked"));
            return;
        }
        let states = self.view.nis();
        let mut machine = self.runner.machine();
        let mut books = self.runner.books();
        for state in states {
            // An NI that is being opened is told by the thread that opens it.
            if !books.nis.contains_key(&state.ni.0) {
                continue;
            }
            let (ni, is_up, now) = (state.ni, state.down.is_none(), self.runner.clock.now());
            let is_awaited = state.down == Some(DownReason::NoLink);
            machine.handle_report(now, Report::Carrier { ni, is_awaited });
            machine.handle_report(now, Report::Link { ni, is_up });
            if let Some(reach) = &state.reach {
                machine.handle_report(now, Report::Reach { ni, reach });
            }
            let former = books.nis.insert(ni.0, state.clone());
            let Some(former) = former.filter(|former| former.config.nid == state.config.nid) else {
                continue;
            };
            let NiConfig { nid, interface, .. } = state.config;
            if former.config.interface != interface {
                info!(%nid, former = former.config.interface, interface, "the interface of an NI is renamed");
                machine.handle_report(now, Report::Renamed { ni, interface: interface.clone() });
            }
            match state.down {
                reason if reason == former.down => {}
                Some(reason) => warn!(%nid, interface, %reason, "NI down"),
                None => info!(%nid, interface, "NI up"),
            }
        }
    }
}

/// Has something else carry the frames of NIs whose rings are deaf.
pub(super) fn replace(core: &Arc<Core>, work: &Work) {
    let mut books = core.runner.books();
    for ni in core.view.deaf() {
        if books.nis.contains_key(&ni.0) && books.followed.insert(ni) {
            let core = Arc::clone(core);
            work.push(Box::pin(async move {
                let replacing = Arc::clone(&core);
                let replaced = blocking::run(move || replacing.replace_rings(ni)).await;
                for nid in replaced.unwrap_or_default() {
                    let changes = vec![NodeChange::ReopenNi { nid }];
                    let request = Request::Batch { changes, drain_timeout: Duration::ZERO };
                    if let Err(error) = core.runner.request(request).await {
                        error!(%nid, %error, "an NI is not opened anew");
                    }
                }
                Done::Followed { ni }
            }));
        }
    }
}

/// Waits for the carrier of an NI that was opened: drivers reset the link when a program is attached.
/// Without one the NI is there all the same.
pub(super) async fn await_carrier(state: &NiState, begun: Instant) {
    // An NI without an interface has nothing to wait for.
    if state.lnd().is_none_or(|lnd| lnd.asked.is_none()) {
        return;
    }
    loop {
        let interface = state.config.interface.clone();
        let lacks_carrier = move || Interface::by_name(&interface).is_ok_and(|found| !found.up);
        if !blocking::run(lacks_carrier).await.unwrap_or(false) {
            return;
        }
        if begun.elapsed() >= CARRIER_PATIENCE {
            let NiConfig { nid, interface, .. } = &state.config;
            warn!(%nid, interface, "NI added, its link does not carry: messages wait for it");
            return;
        }
        sleep(CARRIER_INTERVAL).await;
    }
}
