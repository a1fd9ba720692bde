//! A tunnel between the two namespaces of a test: devices that carry IP packets, without Ethernet.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::netns::{Namespace, Netns, enter, ip};

/// Name of the device in both namespaces.
pub const DEVICE: &str = "tun0";
/// Longest packet.
const PACKET_BYTES: usize = 1 << 16;

/// Two `tun` devices, [`DEVICE`] in each namespace of a pair, and the thread that carries packets between
/// them. They go when this is dropped.
#[derive(Debug)]
pub struct Tunnel {
    is_over: Arc<AtomicBool>,
    carrier: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Makes the devices, with the addresses 10.212.0.1 and 10.212.0.2.
    ///
    /// # Panics
    /// When the kernel refuses a device, or a command fails.
    #[must_use]
    pub fn new(netns: &Netns) -> Self {
        let ends = [(netns.a(), 1), (netns.b(), 2)].map(|(namespace, last)| {
            let device = open(namespace);
            ip(namespace, &format!("address add 10.212.0.{last}/24 dev {DEVICE}"));
            ip(namespace, &format!("link set {DEVICE} up"));
            device
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let carrier = {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || carry(&ends, &is_over))
        };
        Self { is_over, carrier: Some(carrier) }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

fn open(namespace: &Namespace) -> SyncDevice {
    enter(namespace, || DeviceBuilder::new().name(DEVICE).build_sync().expect("a tun device"))
}

fn carry(ends: &[SyncDevice; 2], is_over: &AtomicBool) {
    let mut packet = vec![0; PACKET_BYTES];
    let interval = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !is_over.load(Ordering::Relaxed) {
        let mut fds = [0, 1].map(|end| PollFd::from_borrowed_fd(ends[end].as_fd(), PollFlags::IN));
        if poll(&mut fds, Some(&interval)).is_err() {
            continue;
        }
        let is_ready = [0, 1].map(|end| fds[end].revents().contains(PollFlags::IN));
        for (from, to) in [(0, 1), (1, 0)] {
            if is_ready[from]
                && let Ok(length) = ends[from].recv(&mut packet)
            {
                // A device that is down takes nothing.
                let _ = ends[to].send(&packet[..length]);
            }
        }
    }
}
