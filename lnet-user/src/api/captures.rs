//! Captures of the node's frames while its shards run ([`lnet_io::capture`]).

use std::path::Path;
use std::sync::PoisonError;

use lnet_core::lnd::NiId;
use lnet_io::capture::{CaptureError, CaptureInterface, CaptureRecord, CaptureSpec, Captures, Link, TapEnd};
use lnet_io::locks::MutexGuard;
use lnet_io::netlink::device_of;

use super::calls::Caller;
use super::{Core, Lnet, LnetError};
use crate::node::{NiState, XdpMode};

impl Lnet {
    /// Starts a capture: from now on all frames of its interfaces are written to a new file, until that is as
    /// long as it may be, or the capture is stopped, or the node stops. Several may run at once.
    ///
    /// # Errors
    /// [`LnetError::Capture`], [`LnetError::Ended`]: no file is left behind.
    pub fn start_capture(&self, spec: &CaptureSpec) -> Result<(), LnetError> {
        // An NI that is opened from now on is shown to the capture.
        let mut captures = self.inner.lock_captures();
        let nis = self.inner.view.nis();
        check_lnds(&nis, spec, self.inner.accept_ports)?;
        let interfaces: Vec<CaptureInterface> = nis.into_iter().filter_map(interface_of).collect();
        let spec = &of_devices(spec, &interfaces);
        let callers: Vec<Caller> = self.inner.shards.iter().map(|end| end.caller.clone()).collect();
        let tap = |ends: Vec<TapEnd>| {
            let mut shards = self.inner.shards.iter().zip(ends);
            shards.try_for_each(|(shard, end)| shard.run(move |worker, _| worker.tap(end)))
        };
        let untap = move |id| {
            for caller in &callers {
                // What they give back is dropped here; those of a shard that has ended are gone with it.
                let _ = caller.run(move |worker, _| worker.untap(id));
            }
        };
        captures.start(spec, (&interfaces, self.shard_count()), tap, untap)
    }

    /// The captures that run, and those that ended by themselves, in the order of their starts.
    #[must_use]
    pub fn captures(&self) -> Vec<CaptureRecord> {
        self.inner.lock_captures().states()
    }

    /// Stops a capture, once all frames are in its file that shards have handled before, and takes it off the
    /// list; what it has become. Its file is complete. One that ended by itself is taken off the list.
    ///
    /// # Errors
    /// [`LnetError::Capture`] if there is none that writes to `path`.
    pub fn stop_capture(&self, path: &Path) -> Result<CaptureRecord, LnetError> {
        let capture = self.inner.lock_captures().take(path)?;
        Ok(capture.stop())
    }
}

impl Core {
    /// Tells captures of an NI that was opened.
    pub(super) fn show_captures(&self, ni: NiId) {
        let captures = self.lock_captures();
        let opened = self.view.nis().into_iter().find(|state| state.ni == ni);
        if let Some(interface) = opened.and_then(interface_of) {
            captures.add_interface(&interface);
        }
    }

    fn lock_captures(&self) -> MutexGuard<'_, Captures> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a capture of interfaces where the kernel alone has the packets.
fn check_lnds(nis: &[NiState], spec: &CaptureSpec, ports: [u16; 2]) -> Result<(), CaptureError> {
    let device = |ni: &NiState| device_of(&ni.config.interface).to_owned();
    let is_asked = |ni: &&NiState| spec.interfaces.iter().any(|name| device_of(name) == device(ni));
    let nis: Vec<_> = nis.iter().filter(|ni| spec.interfaces.is_empty() || is_asked(ni)).collect();
    let has_frames = |name: &String| {
        nis.iter().any(|ni| ni.lnd().is_some_and(|lnd| lnd.has_frames) && device(ni) == *name)
    };
    // NIs between nodes of one process have no device, and so no packets either.
    let of_kernel: Vec<_> = nis
        .iter()
        .filter_map(|ni| {
            Some((ni.lnd().filter(|lnd| lnd.asked.is_some() && !lnd.has_frames)?.name, device(ni)))
        })
        .collect();
    let mut interfaces: Vec<_> = of_kernel.iter().map(|(_, name)| name.clone()).collect();
    interfaces.retain(|name| !has_frames(name));
    interfaces.dedup();
    // Without a list: a net whose frames can be captured does, and others may come later.
    let is_bare = of_kernel.len() == nis.len();
    match of_kernel.first() {
        Some(&(lnd, _)) if !interfaces.is_empty() && (is_bare || !spec.interfaces.is_empty()) => {
            Err(CaptureError::NoFrames { lnd, interfaces, ports })
        }
        _ => Ok(()),
    }
}

/// The capture with the devices of the aliases that it names; other names stay, to be refused as they are.
fn of_devices(spec: &CaptureSpec, devices: &[CaptureInterface]) -> CaptureSpec {
    let is_known = |name: &str| devices.iter().any(|device| device.name == name);
    let known = |name: &String| if is_known(device_of(name)) { device_of(name) } else { name }.to_owned();
    CaptureSpec { interfaces: spec.interfaces.iter().map(known).collect(), ..spec.clone() }
}

/// What an NI's frames come by; an in-process one has none. NIs on the aliases of a device share its frames.
fn interface_of(state: NiState) -> Option<CaptureInterface> {
    let xdp = state.xdp?;
    let link = if xdp.mode == XdpMode::Socket { Link::RawIp } else { Link::Ethernet };
    let name = device_of(&state.config.interface).to_owned();
    Some(CaptureInterface { index: xdp.interface_index, name, link })
}
