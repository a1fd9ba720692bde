//! The veth pair that a bench measures over, one end in each of two network namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use lnet_user::runtime::{available_cpus, pin_to_cpu};
use lnet_wire::{Nid, ProcessId};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Time that an end sleeps before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// Both ends of the pair, as `cargo xtask bench` names them.
#[derive(Debug, Args)]
pub struct Link {
    /// Network namespace of the sending end.
    #[arg(long)]
    pub netns_a: PathBuf,
    /// Network namespace of the answering end.
    #[arg(long)]
    pub netns_b: PathBuf,
    /// Interface of the sending end.
    #[arg(long)]
    pub interface_a: String,
    /// Interface of the answering end.
    #[arg(long)]
    pub interface_b: String,
    /// NID of the sending end.
    #[arg(long)]
    pub nid_a: Nid,
    /// NID of the answering end.
    #[arg(long)]
    pub nid_b: Nid,
    /// Largest IP packet of the pair.
    #[arg(long)]
    pub mtu: usize,
}

/// A second pair between the same namespaces.
#[derive(Debug, Args)]
pub struct SecondRail {
    /// Interface of the second rail at the sending end.
    #[arg(long)]
    pub second_interface_a: String,
    /// Interface of the second rail at the answering end.
    #[arg(long)]
    pub second_interface_b: String,
    /// NID of the second rail at the sending end, on a net of its own.
    #[arg(long)]
    pub second_nid_a: Nid,
    /// NID of the second rail at the answering end.
    #[arg(long)]
    pub second_nid_b: Nid,
}

/// One end of the pair, as seen from its namespace.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its interface.
    pub interface: &'a str,
    /// Its NID.
    pub nid: Nid,
    /// The process at the other end.
    pub peer: ProcessId,
}

impl Link {
    /// The sending end.
    #[must_use]
    pub fn near(&self) -> Side<'_> {
        Side { interface: &self.interface_a, nid: self.nid_a, peer: ProcessId::lustre(self.nid_b) }
    }

    /// The answering end.
    #[must_use]
    pub fn far(&self) -> Side<'_> {
        Side { interface: &self.interface_b, nid: self.nid_b, peer: ProcessId::lustre(self.nid_a) }
    }

    /// Runs `far` in namespace b and, once it says that it is ready, `near` in namespace a, each on a CPU of
    /// its own; then tells `far` to stop.
    ///
    /// # Errors
    /// What either end fails with.
    pub fn pair<R: Send>(
        &self,
        far: impl FnOnce(&dyn Fn(), &AtomicBool) -> anyhow::Result<()> + Send,
        near: impl FnOnce() -> anyhow::Result<R> + Send,
    ) -> anyhow::Result<R> {
        let cpus = available_cpus();
        self.join(far, near, [Some(cpus[0]), Some(cpus[1 % cpus.len()])])
    }

    /// Runs both ends as [`Link::pair`] does, but on whatever CPUs the kernel gives them, as programs run
    /// that say nothing.
    ///
    /// # Errors
    /// The error of the end that fails.
    pub fn pair_anywhere<R: Send>(
        &self,
        far: impl FnOnce(&dyn Fn(), &AtomicBool) -> anyhow::Result<()> + Send,
        near: impl FnOnce() -> anyhow::Result<R> + Send,
    ) -> anyhow::Result<R> {
        self.join(far, near, [None; 2])
    }

    fn join<R: Send>(
        &self,
        far: impl FnOnce(&dyn Fn(), &AtomicBool) -> anyhow::Result<()> + Send,
        near: impl FnOnce() -> anyhow::Result<R> + Send,
        [near_cpu, far_cpu]: [Option<usize>; 2],
    ) -> anyhow::Result<R> {
        let stop = AtomicBool::new(false);
        let (ready, is_ready) = mpsc::channel();
        let panicked = |_| anyhow!("an end of the link panicked");
        let pin = |cpu: Option<usize>| cpu.map_or(Ok(()), pin_to_cpu);
        std::thread::scope(|scope| {
            let stop = &stop;
            // Names tell the threads apart in a profile.
            let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
            let far = named("far").spawn_scoped(scope, move || {
                pin(far_cpu).context("cannot pin the answering end")?;
                enter(&self.netns_b)?;
                // Without a listener the report has no reader.
                far(&|| ready.send(()).unwrap_or_default(), stop)
            })?;
            let near = named("near").spawn_scoped(scope, move || {
                pin(near_cpu).context("cannot pin the sending end")?;
                enter(&self.netns_a)?;
                // An error means that the far end has failed; its own error tells more.
                let _ = is_ready.recv();
                near()
            })?;
            let result = near.join().unwrap_or_else(|cause| Err(panicked(cause)));
            stop.store(true, Ordering::Relaxed);
            far.join().unwrap_or_else(|cause| Err(panicked(cause)))?;
            result
        })
    }
}

/// Waits until told to stop, as an end does whose node answers by itself.
pub fn wait_until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
    }
}

/// Moves the calling thread into the network namespace at `path` (as in `/run/netns`).
///
/// # Errors
/// When there is none, or the thread may not enter it.
pub fn enter(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("no network namespace {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network namespace {}", path.display()))
}
