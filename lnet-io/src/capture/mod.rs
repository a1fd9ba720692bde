//! Captures of a node's own xdp frames, as pcapng files. Frames that XDP redirects pass no packet socket, so
//! `tcpdump` does not see them; the node copies its own.
//!
//! ```text
//!  shard: XdpLnd --- Tap ---> ring of bytes ---\
//!  shard: XdpLnd --- Tap ---> ring of bytes ----+--> writer's thread --> file
//! ```
//! A frame of an NI over rings is captured as it was on the wire, Ethernet header included: when it comes off
//! a ring, malformed or misdirected ones too, and when it is put on one. A datagram of an NI over sockets is
//! captured with IP and UDP headers that are made for the capture, link type raw IP: the kernel does not tell
//! which MAC addresses it had. Each interface has a description block for each link type, and a statistics
//! block at the end.
//!
//! Invariants: shards never wait for a capture: what its rings have no room for is counted as missed. A file
//! never grows beyond its limit, and is complete when its capture has ended, by itself too.

mod pcapng;
mod table;
mod tap;
mod writer;

#[cfg(test)]
#[cfg(not(loom))]
pub mod tests;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

pub use lnet_model::capture::CaptureRecord;
pub use lnet_model::capture::CaptureSpec;
use rtrb::RingBuffer;
use thiserror::Error;

use table::Shared;
use tap::RealTime;
use writer::{Output, TapReader, Writer};

pub use table::{CaptureInterface, Link};
pub use tap::{Direction, Tap, TapEnd};

/// Captures that a node has at once, those that ended by themselves included.
pub const CAPTURES_MAX: usize = 16;

/// A capture is not made, or not found; no file is left behind.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// A relative path, which would depend on the node's working directory.
    #[error("{} is no absolute path", .0.display())]
    Relative(PathBuf),
    /// Files are not overwritten.
    #[error("{} exists: remove it, or choose another name", .0.display())]
    Exists(PathBuf),
    /// Where the file is to be there is no directory.
    #[error("{} cannot be made: its directory is not there", .0.display())]
    NoDirectory(PathBuf),
    /// The node may not make the file.
    #[error("{} cannot be made: the node may not write to its directory", .0.display())]
    Forbidden(PathBuf),
    /// The file cannot be made or written for another reason.
    #[error("{} cannot be written: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// No frame would have room in the file.
    #[error(
        "a limit of {limit_bytes} bytes: what the file begins and ends with takes {needed_bytes} already"
    )]
    Limit {
        /// What was asked for.
        limit_bytes: u64,
        /// The least that would do.
        needed_bytes: u64,
    },
    /// Frames of which nothing is kept, or for which there is no buffer.
    #[error("a capture that keeps 0 bytes of each frame, or of all that wait: 1 at least")]
    Nothing,
    /// A name that is none of the node's.
    #[error("the node has no NI on interface {name}; it has some on: {}", .known.join(", "))]
    NoInterface {
        /// What was asked for.
        name: String,
        /// Interfaces of its NIs.
        known: Vec<String>,
    },
    /// The NIs in question have an LND whose bytes the kernel handles.
    #[error(
        "NIs on {} have the LND {lnd}, whose packets are the kernel's: `tcpdump -i {} -w FILE {}` captures them",
        .interfaces.join(", "), .interfaces.first().map_or("any", String::as_str), port_filter(.ports)
    )]
    NoFrames {
        /// Its name.
        lnd: &'static str,
        /// Interfaces of the NIs.
        interfaces: Vec<String>,
        /// The ports of acceptors, that of control connections first.
        ports: [u16; 2],
    },
    /// There are as many captures as there can be.
    #[error("the node has {CAPTURES_MAX} captures: stop one of them")]
    TooMany,
    /// There is no thread to write it.
    #[error("a capture got no thread: {0}")]
    Thread(io::Error),
    /// There is no such capture.
    #[error("no capture writes to {}", .0.display())]
    NoCapture(PathBuf),
}

/// What `tcpdump` calls packets of these ports.
fn port_filter(&[port, other]: &[u16; 2]) -> String {
    if port == other { format!("port {port}") } else { format!("port {port} or port {other}") }
}

/// Takes the taps of a capture off all shards.
type Untap = Arc<dyn Fn(u64) + Send + Sync>;

/// A capture, as the node keeps it. Dropping it ends it.
pub struct Capture {
    spec: CaptureSpec,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    fn state(&self) -> CaptureRecord {
        CaptureRecord {
            path: self.spec.path.clone(),
            // First: what follows is final if it has ended.
            is_running: self.shared.is_running.load(Ordering::Acquire),
            limit_bytes: self.spec.limit_bytes,
            written_bytes: self.shared.written_bytes.load(Ordering::Relaxed),
            frame_count: self.shared.frame_count.load(Ordering::Relaxed),
            missed_count: self.shared.missed_count(),
            failure: self.shared.failure(),
        }
    }

    /// Ends it; what it became.
    pub fn stop(mut self) -> CaptureRecord {
        self.end();
        self.state()
    }

    fn end(&mut self) {
        self.tell_to_end();
        if let Some(thread) = self.thread.take() {
            // A panic of the writer's thread has been printed by then.
            let _ = thread.join();
        }
    }

    /// Tells the writer to end, without waiting for it.
    fn tell_to_end(&self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.end();
    }
}

fn wants(spec: &CaptureSpec, interface: &CaptureInterface) -> bool {
    spec.interfaces.is_empty() || spec.interfaces.contains(&interface.name)
}

/// The captures of a node. Dropping them ends them; their files are complete then.
#[derive(Default)]
pub struct Captures {
    list: Vec<Capture>,
    started: u64,
}

impl Captures {
    /// Starts a capture on so many shards. `interfaces` are those that have NIs. `tap` gives the shards their
    /// taps, in their order; `untap` takes the taps of a capture off all shards that have one
    /// ([`Tap::remove`]) and drops them: when the capture ends, and on its writer's thread.
    ///
    /// # Errors
    /// [`CaptureError`], or what `tap` said: nothing is left of the capture.
    pub fn start<E: From<CaptureError>>(
        &mut self,
        spec: &CaptureSpec,
        (interfaces, shards): (&[CaptureInterface], usize),
        tap: impl FnOnce(Vec<TapEnd>) -> Result<(), E>,
        untap: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<(), E> {
        self.check(spec, interfaces)?;
        let file = make_file(Path::new(&spec.path))?;
        let capture = self.start_in(file, spec, (interfaces, shards), tap, Arc::new(untap));
        if capture.is_err() {
            // A file that cannot be removed is found when it is to be made again.
            let _ = std::fs::remove_file(&spec.path);
        }
        self.list.push(capture?);
        Ok(())
    }

    fn check(&self, spec: &CaptureSpec, interfaces: &[CaptureInterface]) -> Result<(), CaptureError> {
        if self.list.len() >= CAPTURES_MAX {
            return Err(CaptureError::TooMany);
        }
        if spec.frame_bytes == Some(0) || spec.buffer_bytes == 0 {
            return Err(CaptureError::Nothing);
        }
        let known = || interfaces.iter().map(|interface| &interface.name);
        if let Some(name) = spec.interfaces.iter().find(|name| known().all(|known| known != *name)) {
            let known = known().cloned().collect();
            return Err(CaptureError::NoInterface { name: name.clone(), known });
        }
        Ok(())
    }

    fn start_in<E: From<CaptureError>>(
        &mut self,
        file: File,
        spec: &CaptureSpec,
        (interfaces, shards): (&[CaptureInterface], usize),
        tap: impl FnOnce(Vec<TapEnd>) -> Result<(), E>,
        untap: Untap,
    ) -> Result<Capture, E> {
        let shared = Arc::new(Shared::new());
        for interface in interfaces.iter().filter(|interface| wants(spec, interface)) {
            shared.add(interface);
        }
        let limit_bytes = spec.limit_bytes;
        let mut output = Output::begin(file, limit_bytes, spec.frame_bytes.unwrap_or(0), &shared)
            .map_err(|needed_bytes| CaptureError::Limit { limit_bytes, needed_bytes })?;
        let refused = |error| CaptureError::File { path: spec.path.clone().into(), error };
        output.flush(&shared).map_err(refused)?;
        self.started += 1;
        let (id, real_time) = (self.started, RealTime::measure());
        let mut sources = Vec::new();
        let mut make_end = || {
            let (ring, consumer) = RingBuffer::new(spec.buffer_bytes as usize);
            let is_recording = Arc::<AtomicBool>::default();
            sources.push(TapReader::new(consumer, Arc::clone(&is_recording)));
            let frame_bytes = spec.frame_bytes.unwrap_or(u32::MAX);
            TapEnd { id, ring, shared: Arc::clone(&shared), is_recording, real_time, frame_bytes }
        };
        let ends = (0..shards).map(|_| make_end()).collect();
        tap(ends).inspect_err(|_| untap(id))?;
        let writer =
            Writer { id, output, sources, shared: Arc::clone(&shared), real_time, untap: Arc::clone(&untap) };
        let thread = std::thread::Builder::new().name("lnet-capture".to_owned()).spawn(|| writer.run());
        let thread = thread.inspect_err(|_| untap(id)).map_err(CaptureError::Thread)?;
        Ok(Capture { spec: spec.clone(), shared, thread: Some(thread) })
    }

    /// An interface has an NI now: it is captured from here on where it is wanted.
    pub fn add_interface(&self, interface: &CaptureInterface) {
        for capture in self.list.iter().filter(|capture| wants(&capture.spec, interface)) {
            if !capture.shared.add(interface) {
                let (path, name) = (&capture.spec.path, &interface.name);
                tracing::warn!(path, name, "a capture has had too many interfaces: this one is not in it");
            }
        }
    }

    /// Where all of them stand, in the order of their starts.
    pub fn states(&self) -> Vec<CaptureRecord> {
        self.list.iter().map(Capture::state).collect()
    }

    /// Takes a capture out of the list, for [`Capture::stop`].
    pub fn take(&mut self, path: &Path) -> Result<Capture, CaptureError> {
        let index = self.list.iter().position(|capture| Path::new(&capture.spec.path) == path);
        let index = index.ok_or_else(|| CaptureError::NoCapture(path.to_owned()))?;
        Ok(self.list.remove(index))
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        // All at once, before each is waited for.
        self.list.iter().for_each(Capture::tell_to_end);
    }
}

/// Makes a file that was not there, for the node's user alone.
fn make_file(path: &Path) -> Result<File, CaptureError> {
    let path = path.to_owned();
    if !path.is_absolute() {
        return Err(CaptureError::Relative(path));
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CaptureError::Exists(path),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => CaptureError::NoDirectory(path),
        io::ErrorKind::PermissionDenied => CaptureError::Forbidden(path),
        _ => CaptureError::File { path, error },
    })
}
