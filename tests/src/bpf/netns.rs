//! Network namespaces with a veth pair.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The end of a veth pair that programs are attached to.
pub const NEAR: &str = "near0";
/// The other end.
pub const FAR: &str = "far0";

/// A network namespace, gone when this value is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one, with loopback up.
    ///
    /// # Panics
    /// When `ip` fails.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes something in the kernel")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = Self { name: format!("lnet-bpf-{}-{number}", std::process::id()) };
        ip(&["netns", "add", &namespace.name]);
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// Its name, as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` inside.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.name], arguments].concat());
    }

    /// Moves the calling thread inside until the guard is dropped.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[must_use]
    pub fn enter(&self) -> Inside {
        let outside = File::open("/proc/thread-self/ns/net").expect("namespace of this thread");
        let inside = File::open(format!("/run/netns/{}", self.name)).expect("namespace");
        enter(&inside);
        Inside { outside }
    }

    /// A veth pair: [`NEAR`] with `rx_queues` receive queues, up, and [`FAR`] with one. Without another
    /// namespace the far end stays down, so that nothing arrives but what a test makes up; else it is up
    /// in there.
    ///
    /// # Panics
    /// When `ip` fails.
    pub fn add_veth(&self, rx_queues: u32, other: Option<&Self>) {
        let queues = rx_queues.to_string();
        self.ip(&["link", "add", "name", NEAR, "numrxqueues", &queues, "type", "veth", "peer", "name", FAR]);
        self.ip(&["link", "set", "dev", NEAR, "up"]);
        if let Some(other) = other {
            self.ip(&["link", "set", "dev", FAR, "netns", &other.name]);
            other.ip(&["link", "set", "dev", FAR, "up"]);
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing to be done about a failure here, where another panic may be on its way.
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// Moves the thread back when it is dropped.
#[derive(Debug)]
pub struct Inside {
    outside: File,
}

impl Drop for Inside {
    fn drop(&mut self) {
        enter(&self.outside);
    }
}

fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("enter a namespace");
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip (package iproute2)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {error}", arguments.join(" "));
}
