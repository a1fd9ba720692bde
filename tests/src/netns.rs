//! A harness for nodes over veth in network namespaces.
//!
//! ```text
//!   test process (its own namespace: nothing of a test happens there)
//!     |
//!     |-- enter(netns.a()) -> thread in lnet-<pid>-<n>a          lnet-<pid>-<n>b <- enter(netns.b())
//!     |                      +--------------------------+      +--------------------------+
//!     |                      |  lo                      |      |                      lo  |
//!     |                      |  veth-a   10.211.0.1/24  |======|  10.211.0.2/24   veth-b  |
//!     |                      |           fd00:211:0::1  |rail 0|  fd00:211:0::2           |
//!     |                      |  veth-a1  10.211.1.1/24  |======|  10.211.1.2/24  veth-b1  |
//!     |                      +--------------------------+rail 1+--------------------------+
//! ```
//!
//! - Every [`Netns`] has names of its own, so tests of one program run at once, and so do test programs.
//! - A [`Netns`] removes its namespaces when it is dropped, also while a panic unwinds. Those of a test
//!   program that was killed are removed by the next one.
//! - What fails panics, with the output of the command that failed: a harness has no errors to handle.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use xtask::netns::Pair;
pub use xtask::netns::{Inside, Interface, Namespace, Wiring};
pub use xtask::privilege::{BPF, Capability, NET_ADMIN, NET_RAW, NETNS_NODES, SYS_ADMIN};
pub use xtask::testing::{require_privilege, wait_until};

/// Two network namespaces joined by veth rails, for one test; removed when dropped.
#[derive(Debug)]
pub struct Netns {
    pair: Pair,
}

impl Netns {
    /// Makes the pair; every interface is up and has its addresses when this returns.
    ///
    /// # Panics
    /// When `wiring` is out of range or a command fails; the message has its standard output and error.
    #[must_use]
    pub fn new(wiring: Wiring) -> Self {
        static PAIRS: AtomicU32 = AtomicU32::new(0);
        static STALE: OnceLock<()> = OnceLock::new();
        STALE.get_or_init(remove_stale);
        let tag = PAIRS.fetch_add(1, Ordering::Relaxed).to_string();
        match Pair::create(&tag, wiring) {
            Ok(pair) => Self { pair },
            Err(error) => panic!("{error:#}"),
        }
    }

    /// The namespace whose addresses end in 1.
    #[must_use]
    pub fn a(&self) -> &Namespace {
        &self.pair.a
    }

    /// The namespace whose addresses end in 2.
    #[must_use]
    pub fn b(&self) -> &Namespace {
        &self.pair.b
    }

    /// Replaces rail 0 by a veth pair whose ends have these receive and transmit queues.
    ///
    /// # Panics
    /// When a command fails; the message has what it said.
    pub fn replace_rail(&self, a_queues: [u16; 2], b_queues: [u16; 2]) {
        ip(self.a(), &format!("link delete dev {}", self.a().interface().name));
        self.restore_rail(a_queues, b_queues);
    }

    /// Makes rail 0 anew, which was deleted, with these receive and transmit queues.
    ///
    /// # Panics
    /// When a command fails; the message has what it said.
    pub fn restore_rail(&self, [a_rx, a_tx]: [u16; 2], [b_rx, b_tx]: [u16; 2]) {
        let [near, far] = [self.a(), self.b()].map(|namespace| &namespace.interface().name);
        let (near_queues, far_queues) = (
            format!("numrxqueues {a_rx} numtxqueues {a_tx}"),
            format!("numrxqueues {b_rx} numtxqueues {b_tx}"),
        );
        let far_end = format!("peer name {far} {far_queues} netns {}", self.b().name());
        ip(self.a(), &format!("link add {near} {near_queues} type veth {far_end}"));
        for namespace in [self.a(), self.b()] {
            let Interface { name, ipv4, .. } = namespace.interface();
            ip(namespace, &format!("address add {ipv4}/24 dev {name}"));
            ip(namespace, &format!("link set dev {name} up"));
        }
    }
}

/// Runs `body` on a fresh thread inside `namespace` and gives its result; see [`Namespace::enter`].
///
/// # Panics
/// `body` panics, or the namespace cannot be entered.
pub fn enter<R: Send>(namespace: &Namespace, body: impl FnOnce() -> R + Send) -> R {
    match namespace.enter(body) {
        Ok(result) => result,
        Err(error) => panic!("entering the network namespace {}: {error}", namespace.name()),
    }
}

/// Moves the calling thread into `namespace` until the guard is dropped; see [`Namespace::enter_here`].
///
/// # Panics
/// When the namespace cannot be entered.
#[must_use]
pub fn enter_here(namespace: &Namespace) -> Inside {
    match namespace.enter_here() {
        Ok(inside) => inside,
        Err(error) => panic!("entering the network namespace {}: {error}", namespace.name()),
    }
}

/// Runs `ip` on `namespace` with `arguments`, words separated by spaces, and gives its output.
///
/// # Panics
/// When it fails; the message has what it said.
#[track_caller]
pub fn ip(namespace: &Namespace, arguments: &str) -> String {
    match namespace.ip(arguments) {
        Ok(output) => output,
        Err(error) => panic!("{error:#}"),
    }
}

/// Removes what test programs left that were killed, and leaves what `cargo xtask run --keep` kept.
fn remove_stale() {
    match xtask::netns::remove_stale() {
        Ok(stale) => {
            for name in stale.removed {
                eprintln!("removed the network namespace {name}, left by a program that was killed");
            }
        }
        Err(error) => panic!("{error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Duration;

    const NEEDED: [Capability; 2] = [NET_ADMIN, SYS_ADMIN];
    const TIMEOUT: Duration = Duration::from_secs(5);

    fn exists(namespace: &str) -> bool {
        Path::new("/run/netns").join(namespace).exists()
    }

    /// A UDP socket at `address` inside `namespace`.
    fn socket(namespace: &Namespace, address: IpAddr) -> UdpSocket {
        let socket = enter(namespace, || UdpSocket::bind((address, 0)).unwrap());
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    }

    /// The datagram that comes next, and from whom. A wait with a timeout is not taken up again by itself
    /// where something interrupts it (signal(7)).
    fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut bytes = [0; 8];
        loop {
            match socket.recv_from(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => {
                    let (length_bytes, sender) = received.unwrap();
                    return (bytes[..length_bytes].to_vec(), sender);
                }
            }
        }
    }

    fn ping(netns: &Netns, from: IpAddr, to: IpAddr) {
        let (near, far) = (socket(netns.a(), from), socket(netns.b(), to));
        let far_address = far.local_addr().unwrap();
        near.send_to(b"ping", far_address).unwrap();
        let near_address = near.local_addr().unwrap();
        assert_eq!(receive(&far), (b"ping".to_vec(), near_address));
        far.send_to(b"pong", near_address).unwrap();
        assert_eq!(receive(&near), (b"pong".to_vec(), far_address));
    }

    #[test]
    fn each_rail_carries_datagrams_both_ways_at_once() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
        for (a, b) in netns.a().interfaces().iter().zip(netns.b().interfaces()) {
            ping(&netns, a.ipv4.into(), b.ipv4.into());
            let (Some(a_ipv6), Some(b_ipv6)) = (a.ipv6, b.ipv6) else { continue };
            ping(&netns, a_ipv6.into(), b_ipv6.into());
        }
    }

    #[test]
    fn interfaces_have_the_queues_and_the_mtu_asked_for() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        let netns = Netns::new(Wiring { rails: 1, queues: 3, mtu_bytes: 9000 });
        for namespace in [netns.a(), netns.b()] {
            let name = &namespace.interface().name;
            let arguments = ["-n", namespace.name(), "-d", "link", "show", "dev", name];
            let shown = xtask::command::output("ip", arguments).unwrap();
            for part in ["mtu 9000", "numrxqueues 3", "numtxqueues 3", "state UP"] {
                assert!(shown.contains(part), "{part:?} is not in {shown}");
            }
        }
    }

    #[test]
    fn threads_started_inside_are_inside_and_the_caller_stays_outside() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        let netns = Netns::new(Wiring::default());
        let address = SocketAddr::from((netns.a().interface().ipv4, 0));
        let inside = enter(netns.a(), || thread::spawn(move || UdpSocket::bind(address)).join().unwrap());
        assert!(inside.is_ok(), "{inside:?}");
        assert!(UdpSocket::bind(address).is_err(), "the address is also outside");
    }

    #[test]
    fn namespaces_are_gone_after_a_drop_and_after_a_panic() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        let netns = Netns::new(Wiring::default());
        let names = [netns.a().name().to_owned(), netns.b().name().to_owned()];
        assert!(names.iter().all(|name| exists(name)), "{names:?}");
        drop(netns);
        assert!(!names.iter().any(|name| exists(name)), "{names:?}");

        let mut names = Vec::new();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let netns = Netns::new(Wiring::default());
            names.push(netns.a().name().to_owned());
            names.push(netns.b().name().to_owned());
            assert!(names.iter().all(|name| exists(name)), "{names:?}");
            enter(netns.b(), || panic!("on purpose"))
        }));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(names.len(), 2);
        assert!(!names.iter().any(|name| exists(name)), "{names:?}");
    }

    #[test]
    fn namespaces_of_the_dead_are_removed_unless_somebody_is_inside() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        // Above the largest pid that the kernel gives (PID_MAX_LIMIT), so that no process has it.
        let dead = (1 << 22) + std::process::id();
        let [empty, in_use] = [format!("lnet-{dead}-a"), format!("lnet-{dead}-b")];
        for name in [&empty, &in_use] {
            xtask::command::output("ip", ["netns", "add", name]).unwrap();
        }
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &in_use, "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut inside = inside.spawn().unwrap();
        let pid = inside.id().cast_signed();
        let entered = || xtask::netns::processes(&in_use).unwrap().contains(&pid);
        wait_until("the process is inside", TIMEOUT, entered);

        let stale = xtask::netns::remove_stale().unwrap();
        assert!(!exists(&empty) && exists(&in_use));
        assert!(stale.in_use.contains(&(in_use.clone(), vec![pid])), "{stale:?}");

        drop(inside.stdin.take());
        inside.wait().unwrap();
        xtask::netns::remove_stale().unwrap();
        assert!(!exists(&in_use));
    }

    #[test]
    fn a_failing_command_panics_with_what_it_said() {
        if !require_privilege("a pair of network namespaces", &NEEDED) {
            return;
        }
        // The kernel caps the queues of an interface at 4096.
        let panic = catch_unwind(|| Netns::new(Wiring { queues: u16::MAX, ..Wiring::default() }));
        let panic = panic.unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("link add veth-a") && message.contains("stderr: "), "{message}");
    }
}
