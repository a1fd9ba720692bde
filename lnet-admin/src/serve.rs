//! A control plane with its socket, from the start to the end.

use std::path::PathBuf;
use std::time::Duration;

use lnet_control::server::{self, Access, Listener, ServerLimits};
use lnet_model::request::{Change, ChangeSet};
use lnet_user::api::Lnet;
use tracing::{info, warn};

use super::control::{Control, ControlOptions, SelftestConsole};
use super::error::ControlError;

/// What a drain may take beyond its limit: shards have to event that it is over.
const DRAIN_SLACK: Duration = Duration::from_secs(1);

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
    /// How the node is controlled.
    pub control: ControlOptions,
}

impl ServeOptions {
    /// A node that is not configured at the start, behind this socket.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { socket, gid: None, configures: false, control: ControlOptions::default() }
    }
}

/// Serves a node on a control socket until `stop` is ready, with this console for tests; `ready` is called
/// when clients can connect and the start-up document is carried out. Then the node's NIs go, with the time
/// to drain that the options give. The calling thread is in the node's network namespace; it runs an async
/// runtime of its own.
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
        let control = Control { console, ..Control::new(lnet, options.control.clone())? };
        let served = async {
            if options.configures {
                let all = options.control.document.is_some();
                let configure = Change::Configure { all, large: false };
                control
                    .apply_batch(ChangeSet { changes: vec![configure], dry_run: false, generation: None })
                    .await?;
            }
            // First: who reads the line may send a signal at once.
            ready();
            info!(socket = %options.socket.display(), "ready");
            server::serve(listener, ServerLimits::default(), &control, stop).await;
            control.shut_down().await;
            Ok(())
        };
        tokio::select! {
            served = served => served,
            ended = lnet.ended() => Err(ended.into()),
        }
    })
}

impl Control {
    /// Takes all NIs down, as far as that takes no longer than the drain that the options allow.
    pub async fn shut_down(&self) {
        let limit = self.options.drain + DRAIN_SLACK;
        info!(drain = ?self.options.drain, "stopping");
        match tokio::time::timeout(limit, self.take_down()).await {
            Ok(Ok(())) => info!("stopped"),
            Ok(Err(refusal)) => warn!(%refusal, "stopped, and what was under way is lost"),
            Err(_) => warn!(?limit, "stopped, and what was under way is lost"),
        }
    }
}
