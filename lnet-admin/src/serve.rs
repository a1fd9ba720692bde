//! A control plane with its socket, from the start to the end.

use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use lnet_control::server::{self, Access, Listener, ServerLimits};
use lnet_model::request::{Change, ChangeSet};
use lnet_user::api::Lnet;
use lnet_wire::Parameter;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::control::{Control, ControlOptions, SelftestConsole};
use super::error::ControlError;
use super::metrics;

/// What a drain may take beyond its limit: shards have to event that it is over.
const DRAIN_SLACK: Duration = Duration::from_secs(1);
/// Interval between looks at whether all gateways are checked.
const GATEWAY_INTERVAL: Duration = Duration::from_millis(20);

/// How a node is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// The control socket.
    pub socket: PathBuf,
    /// The group that may open it besides; `None` is the process's own.
    pub gid: Option<u32>,
    /// What is done at the start: nothing, `lnet configure`, or, with a start-up document, `lnet configure
    /// --all`.
    pub configures: bool,
    /// The address at which there are metrics for Prometheus.
    pub metrics: Option<SocketAddr>,
    /// How the node is controlled.
    pub control: ControlOptions,
}

impl ServeOptions {
    /// A node that is not configured at the start, behind this socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, gid: None, configures: false, metrics: None, control: ControlOptions::default() }
    }
}

/// Serves a node on a control socket until `stop` is ready, with this console for tests; `ready` is called
/// when clients can connect, the start-up document is carried out, and gateways are checked where that is
/// demanded. Then the node's NIs go, with the time to drain that the options give. The calling thread is in
/// the node's network namespace; it runs an async runtime of its own.
///
/// # Errors
/// [`ControlError`]: the socket cannot be had, the start-up document is wrong, or a shard has ended.
pub fn serve(
    lnet: &Lnet,
    options: &ServeOptions,
    console: Option<Box<dyn SelftestConsole>>,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ControlError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_name("lnet-control")
        .enable_all()
        .build()
        .map_err(ControlError::Runtime)?;
    runtime.block_on(async {
        let listener = Listener::bind(&options.socket, Access { gid: options.gid })?;
        let scraped = options.metrics.map(listen).transpose()?;
        let control = Control { console, ..Control::new(lnet, options.control.clone())? };
        let served = async {
            let parameters = &options.control.parameters;
            let mut changes: Vec<Change> = parameters.iter().map(|set| set.change()).collect();
            if options.configures {
                let all = options.control.document.is_some();
                changes.push(Change::Configure { all, large: false });
            }
            if !changes.is_empty() {
                control.apply_batch(ChangeSet { changes, dry_run: false, generation: None }).await?;
            }
            let mut stop = pin!(stop);
            tokio::select! {
                () = control.await_gateways() => {}
                () = &mut stop => {
                    control.shut_down().await;
                    return Ok(());
                }
            }
            // First: who reads the line may send a signal at once.
            ready();
            info!(socket = %options.socket.display(), "ready");
            tokio::select! {
                () = server::serve(listener, ServerLimits::default(), &control, &mut stop) => {}
                () = control.tell_metrics(scraped.as_ref()) => {}
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

impl Control {
    /// Tells metrics, without end.
    async fn tell_metrics(&self, listener: Option<&TcpListener>) {
        match listener {
            Some(listener) => metrics::serve(listener, self).await,
            None => pending().await,
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
