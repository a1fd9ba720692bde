//! A control plane with its socket, from the start to the end.

use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use lnet_control::server::{self, Access, Listener, ServerLimits};
use lnet_model::request::{Change, ChangeSet, Effect};
use lnet_model::{Errno, Refusal};
use lnet_user::api::Lnet;
use lnet_wire::Parameter;
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::control::{Control, ControlOptions, SelftestConsole};
use super::error::ControlError;
use super::metrics;

/// What a drain may take beyond its limit: shards have to event that it is over.
const DRAIN_SLACK: Duration = Duration::from_secs(1);
/// Interval between looks at whether all gateways are checked.
const GATEWAY_INTERVAL: Duration = Duration::from_millis(20);

/// Interval between looks at whether what was absent at the start has come.
const START_INTERVAL: Duration = Duration::from_millis(500);

/// How a node is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// The control socket.
    pub socket: PathBuf,
    /// The group that may open it besides; `None` is the process's own.
    pub gid: Option<u32>,
    /// Whether the node is configured at the start: as by `lnet configure`, or, with a start-up, by `lnet
    /// configure --all`.
    pub configures: bool,
    /// The address at which there are metrics for Prometheus.
    pub metrics: Option<SocketAddr>,
    /// How long interfaces and addresses that the start-up names are waited for.
    pub wait: Duration,
    /// How the node is controlled.
    pub control: ControlOptions,
}

/// News of the start of a node that is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartProgress {
    /// Clients can connect, and the start-up waits for what is absent.
    Waiting(String),
    /// All is done.
    Ready,
}

/// Signals to a node that is served.
#[derive(Debug)]
pub struct Signals<S> {
    /// Ready when the node is to end.
    pub stop: S,
    /// Has something when the start-up is to be read again.
    pub reload: UnboundedReceiver<()>,
}

impl ServeOptions {
    /// A node that is not configured at the start, behind this socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            gid: None,
            configures: false,
            metrics: None,
            wait: Duration::ZERO,
            control: ControlOptions::default(),
        }
    }
}

/// Serves a node on a control socket until the signal to stop, with this console for tests; `progress` is
/// told when the start-up is carried out, and gateways are checked where that is demanded. What the start-up
/// names and is absent is waited for as long as the options say; clients are served meanwhile. In the end the
/// node's NIs go, with the time to drain that the options give. The calling thread is in the node's network
/// namespace; it runs an async runtime of its own.
///
/// # Errors
/// [`ControlError`]: the socket cannot be had, the start-up is wrong, or a shard has ended.
pub fn serve(
    lnet: &Lnet,
    options: &ServeOptions,
    console: Option<Box<dyn SelftestConsole>>,
    progress: impl Fn(StartProgress),
    signals: Signals<impl Future<Output = ()>>,
) -> Result<(), ControlError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_name("lnet-control")
        .enable_all()
        .build()
        .map_err(ControlError::Runtime)?;
    let Signals { stop, mut reload } = signals;
    runtime.block_on(async {
        let listener = Listener::bind(&options.socket, Access { gid: options.gid })?;
        let scraped = options.metrics.map(listen).transpose()?;
        let control = Control { console, ..Control::new(lnet, options.control.clone())? };
        let ready = || {
            // First: who reads the line may send a signal at once.
            progress(StartProgress::Ready);
            info!(socket = %options.socket.display(), "ready");
        };
        let served = async {
            let absent = control.start(options).await?;
            let mut stop = pin!(stop);
            if absent.is_none() {
                tokio::select! {
                    () = control.await_gateways() => {}
                    () = &mut stop => {
                        control.shut_down().await;
                        return Ok(());
                    }
                }
                ready();
            }
            let begun = async {
                if let Some(absent) = absent {
                    control.start_later(options, absent, &progress).await?;
                    control.await_gateways().await;
                    ready();
                }
                while reload.recv().await.is_some() {
                    // One reload is enough for all signals so far.
                    while reload.try_recv().is_ok() {}
                    control.reload().await;
                }
                pending().await
            };
            tokio::select! {
                () = server::serve(listener, ServerLimits::default(), &control, &mut stop) => {}
                () = control.tell_metrics(scraped.as_ref()) => {}
                failed = begun => return failed,
            }
            control.shut_down().await;
            Ok(())
        };
        tokio::select! {
            served = served => served,
            ended = lnet.ended() => Err(ended.into()),
        }
    })
}

/// Listens for clients that ask for metrics.
fn listen(address: SocketAddr) -> Result<TcpListener, ControlError> {
    let cannot = |error| ControlError::Metrics { address, error };
    let listener = metrics::listen(address).map_err(cannot)?;
    // The kernel may have chosen the port.
    let address = listener.local_addr().map_err(cannot)?;
    info!(%address, "metrics");
    Ok(listener)
}

/// Changes that are made at the start.
fn first_changes(options: &ServeOptions) -> Vec<Change> {
    let parameters = &options.control.parameters;
    let mut changes: Vec<Change> = parameters.iter().map(|set| set.change()).collect();
    if options.configures {
        changes.push(Change::Configure { all: !options.control.start_up.is_empty(), large: false });
    }
    changes
}

impl Control {
    /// Tells metrics, without end.
    async fn tell_metrics(&self, listener: Option<&TcpListener>) {
        match listener {
            Some(listener) => metrics::serve(listener, self).await,
            None => pending().await,
        }
    }

    /// Does what is to be done at the start; the refusal where something is absent that is waited for. A node
    /// that a client has configured meanwhile stays as it is.
    async fn start(&self, options: &ServeOptions) -> Result<Option<Refusal>, ControlError> {
        let changes = first_changes(options);
        if changes.is_empty() {
            return Ok(None);
        }
        match self.apply_batch(ChangeSet { changes, dry_run: false, generation: None }).await {
            Ok(outcomes) => {
                let is_configured = options.configures && outcomes.last() == Some(&Effect::Unchanged);
                let has_start_up = !options.control.start_up.is_empty();
                if is_configured && has_start_up && self.carried_out.borrow().is_empty() {
                    warn!("a client has configured the node: the start-up is not carried out until SIGHUP");
                }
                Ok(None)
            }
            Err(refusal) if refusal.errno == Errno::NETDOWN && !options.wait.is_zero() => Ok(Some(refusal)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Tries again and again what is to be done at the start, until nothing is absent.
    async fn start_later(
        &self,
        options: &ServeOptions,
        mut absent: Refusal,
        progress: &impl Fn(StartProgress),
    ) -> Result<(), ControlError> {
        let begun = Instant::now();
        let mut told = String::new();
        loop {
            if told != absent.message {
                told.clone_from(&absent.message);
                warn!(wait = ?options.wait, "the start waits for what is absent: {told}");
            }
            progress(StartProgress::Waiting(absent.message));
            if begun.elapsed() >= options.wait {
                let message = format!("{told}: absent for {:?} (--wait)", options.wait);
                return Err(Refusal::new(Errno::NETDOWN, message).into());
            }
            sleep(START_INTERVAL).await;
            match self.start(options).await? {
                Some(refusal) => absent = refusal,
                None => {
                    info!(after = ?begun.elapsed(), "the start waits no more");
                    return Ok(());
                }
            }
        }
    }

    /// Waits until all gateways were checked, where that is demanded (LNet `router.c:
    /// check_routers_before_use`). None that can be checked needs longer than a ping and a push.
    async fn await_gateways(&self) {
        let settings = *self.lnet.machine().settings();
        if settings.parameter(Parameter::CheckRoutersBeforeUse) == 0 {
            return;
        }
        let limit = Duration::from_secs(settings.parameter(Parameter::RouterPingTimeout).into()) * 2;
        let checked = async {
            while self.lnet.machine().awaits_gateways() {
                sleep(GATEWAY_INTERVAL).await;
            }
        };
        if timeout(limit, checked).await.is_err() {
            warn!(?limit, "a gateway is not checked yet: no NI that is up leads to it");
        }
    }

    /// Takes all NIs down, as far as that takes no longer than the drain that the options allow.
    pub async fn shut_down(&self) {
        let limit = self.options.drain + DRAIN_SLACK;
        info!(drain = ?self.options.drain, "stopping");
        match timeout(limit, self.take_down()).await {
            Ok(Ok(())) => info!("stopped"),
            Ok(Err(refusal)) => warn!(%refusal, "stopped, and what was under way is lost"),
            Err(_) => warn!(?limit, "stopped, and what was under way is lost"),
        }
    }
}
