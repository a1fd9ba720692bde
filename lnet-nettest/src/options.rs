//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_mangen::Man;
use lnet_user::XdpMode;
use serde::{Deserialize, Serialize};

use crate::output::tell;

const EXAMPLES: &str = "\
Examples:
  lnet-nettest local --transport mem --test ping --size 64 --count 100000
  lnet-nettest local --transport lnet --test bulk --size 1m --concurrency 8 --duration 10
  lnet-nettest server --transport rpc --address 10.0.0.1:9000:1
  lnet-nettest client --transport rpc --address 10.0.0.2:9000:1 --server 10.0.0.1:9000:1 --test bulk --size 256k
  lnet-nettest server --transport lnet --interface eth0 --address 10.0.0.1@tcp:12345:34:1
  lnet-nettest client --transport lnet --interface eth0 --address 10.0.0.2@tcp:12345:34:1 \\
      --server 10.0.0.1@tcp:12345:34:1 --test ping --size 4k --concurrency 32
  lnet-nettest node --transport rpc --address 10.0.0.1:9000:1
  lnet-nettest node --transport rpc --address 10.0.0.2:9000:1
  lnet-nettest console --transport rpc --address 10.0.0.3:9000:1 \\
      --servers 10.0.0.1:9000:1 --server-data 10.0.0.1:9000:2 \\
      --clients 10.0.0.2:9000:1 --client-data 10.0.0.2:9000:2 --test ping --count 10000

Addresses: mem a.b.c.d:port, rpc a.b.c.d:port:service, lnet nid:12345:portal:tmid.";

/// Ping and bulk tests over the messaging layer.
#[derive(Parser, Debug)]
#[command(version, about, after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer the clients of tests, until it is killed
    Server {
        #[command(flatten)]
        place: PlaceOptions,
        #[command(flatten)]
        service: Service,
    },
    /// Test a server
    Client {
        #[command(flatten)]
        place: PlaceOptions,
        /// Its address
        #[arg(long)]
        server: String,
        #[command(flatten)]
        test: Test,
    },
    /// Test a server in this process
    Local {
        #[arg(long, value_enum, default_value = "mem")]
        transport: TransportName,
        #[command(flatten)]
        test: Test,
        /// Threads of each transfer machine (mem, rpc)
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        workers: u16,
    },
    /// Be a server or a client of tests, as consoles say, until it is killed
    Node {
        #[command(flatten)]
        place: PlaceOptions,
        /// Messages, and bulk exchanges, that it has room for at once (lnet)
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
        depth: u32,
    },
    /// Have nodes be servers and clients, and print what all of them report
    Console {
        #[command(flatten)]
        place: PlaceOptions,
        #[command(flatten)]
        console: ConsoleOptions,
        #[command(flatten)]
        test: Test,
    },
    /// Write the man page to a directory
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Print completions for a shell
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
}

/// Writes the man page to a directory.
pub(crate) fn write_man_page(directory: &Path) -> Result<()> {
    let written = Man::new(Options::command()).section("8").generate_to(directory).map(drop);
    written.with_context(|| format!("cannot write the man page to {}", directory.display()))
}

/// Prints completions.
pub(crate) fn print_completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "lnet-nettest", &mut script);
    tell(String::from_utf8_lossy(&script).trim_end())
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransportName {
    /// Within the process
    Mem,
    /// ONC RPC over TCP
    Rpc,
    /// A node of LNet in userspace
    Lnet,
}

/// Which nodes a console has.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConsoleOptions {
    /// Addresses of the nodes that are to be servers
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) servers: Vec<String>,
    /// Addresses of the servers for test messages, in the same order
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) server_data: Vec<String>,
    /// Addresses of the nodes that are to be clients
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) clients: Vec<String>,
    /// Addresses of the clients for test messages, in the same order
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) client_data: Vec<String>,
    /// Messages, and bulk exchanges, that a server takes at once [default: what all clients may send]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depth: Option<u32>,
    /// Seconds after which the run ends, be all clients over or not
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

/// Where a transfer machine is.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlaceOptions {
    #[arg(long, value_enum)]
    pub(crate) transport: TransportName,
    /// Its own address
    #[arg(long)]
    pub(crate) address: String,
    /// Interface of the node (lnet): of Linux, or in-process:NAME
    #[arg(long, required_if_eq("transport", "lnet"))]
    pub(crate) interface: Option<String>,
    /// Threads of each transfer machine (mem, rpc)
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) workers: u16,
    /// How frames reach the node (lnet): auto, native, generic or socket
    #[arg(long, default_value = "auto")]
    pub(crate) mode: XdpMode,
    /// UDP port of the node and its peers (lnet, nets of type xdp)
    #[arg(long, default_value_t = 988)]
    pub(crate) port: u16,
    /// Shards of the node (lnet)
    #[arg(long, default_value_t = 1)]
    pub(crate) shards: u32,
    /// Bytes of buffers that the node sends without a copy (lnet, over rings)
    #[arg(long, value_parser = size, value_name = "BYTES")]
    pub(crate) registered: Option<u64>,
}

impl PlaceOptions {
    /// An address with the defaults of everything else.
    pub(crate) fn of(transport: TransportName, address: String) -> Self {
        Self {
            transport,
            address,
            interface: None,
            workers: 1,
            mode: XdpMode::Auto,
            port: 988,
            shards: 1,
            registered: None,
        }
    }
}

/// The messages and bulk buffers that a server is ready for.
#[derive(Args, Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Longest message
    #[arg(long, value_parser = size, default_value = "64k")]
    pub(crate) message_max: u64,
    /// Longest bulk buffer
    #[arg(long, value_parser = size, default_value = "1m")]
    pub(crate) bulk_max: u64,
    /// Messages, and bulk exchanges, that it takes at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depth: u32,
    /// Buffers for messages [default: as many as it takes messages at once]
    #[arg(long, short = 'B', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) buffers: Option<u32>,
}

impl Service {
    /// Number of its message buffers.
    pub(crate) fn buffers(&self) -> u32 {
        self.buffers.unwrap_or(self.depth)
    }

    /// Buffers that a queue of its transfer machine has at once.
    pub(crate) fn room(&self) -> u32 {
        self.depth.max(self.buffers())
    }
}

/// The messages that tell a server the descriptors of bulk buffers.
#[derive(Args, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DescriptorBuffers {
    /// Buffers of a server for messages with descriptors (bulk; local, console) [default: twice the
    /// concurrency of all clients]
    #[arg(short = 'B', long, value_name = "N")]
    pub(crate) server_buffers: Option<u32>,
    /// Buffers of a client for messages with descriptors (bulk) [default: the concurrency]
    #[arg(short = 'b', long, value_name = "N")]
    pub(crate) client_buffers: Option<u32>,
    /// Bytes of such a buffer (bulk)
    #[arg(short = 'f', long, value_parser = size, value_name = "BYTES", default_value = "1k")]
    pub(crate) buffer_size: u64,
    /// Most exchanges that a message has the descriptors of (bulk)
    #[arg(short = 'g', long, value_name = "N", default_value_t = 1)]
    pub(crate) descriptors: u32,
}

impl Default for DescriptorBuffers {
    fn default() -> Self {
        Self { server_buffers: None, client_buffers: None, buffer_size: 1 << 10, descriptors: 1 }
    }
}

#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Messages that come back
    Ping,
    /// Buffers that the server reads, and writes back
    Bulk,
    /// Nothing: what a console's orders take by themselves
    Stub,
}

/// Most seconds of a test: about thirty years. What an order says may be beyond what clocks can tell.
const SECONDS_MAX: u64 = 1_000_000_000;

/// The test that a client does.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Test {
    #[arg(long = "test", value_enum, default_value = "ping")]
    pub(crate) kind: Kind,
    /// Bytes of a message, or of a bulk buffer
    #[arg(long, value_parser = size, default_value = "4k")]
    pub(crate) size: u64,
    /// Exchanges at the same time
    #[arg(long, default_value_t = 8)]
    pub(crate) concurrency: u32,
    /// Exchanges altogether [default: 1000, without a duration]
    #[arg(long, conflicts_with = "duration")]
    pub(crate) count: Option<u64>,
    /// Seconds, in the place of a count
    #[arg(long, value_name = "S")]
    pub(crate) duration: Option<u64>,
    /// Seconds after which an exchange is lost
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) descriptor_buffers: DescriptorBuffers,
}

impl Test {
    /// Whether it can be run.
    pub(crate) fn check(&self) -> Result<()> {
        let DescriptorBuffers { server_buffers, client_buffers, buffer_size, descriptors } =
            self.descriptor_buffers;
        for (name, value) in [
            ("concurrency", self.concurrency.into()),
            ("timeout", self.timeout),
            ("server-buffers", server_buffers.map_or(1, u64::from)),
            ("client-buffers", client_buffers.map_or(1, u64::from)),
            ("buffer-size", buffer_size),
            ("descriptors", descriptors.into()),
        ] {
            if value == 0 {
                bail!("--{name} 0: 1 at least is expected");
            }
        }
        for (name, seconds) in [("timeout", Some(self.timeout)), ("duration", self.duration)] {
            if let Some(seconds) = seconds.filter(|seconds| *seconds > SECONDS_MAX) {
                bail!("--{name} {seconds}: {SECONDS_MAX} at most is expected");
            }
        }
        if self.count == Some(0) || self.duration == Some(0) {
            bail!("--count or --duration of 0: 1 at least is expected");
        }
        let least = if self.kind == Kind::Ping { crate::wire::HEADER_BYTES as u64 } else { 1 };
        if self.size < least {
            bail!("--size {}: {least} bytes at least are expected", self.size);
        }
        Ok(())
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Number of exchanges, unless the duration says.
    pub(crate) fn count(&self) -> u64 {
        self.count.unwrap_or(if self.duration.is_some() { u64::MAX } else { 1000 })
    }

    /// The service that this test needs.
    pub(crate) fn service(&self) -> Service {
        let (message, bulk) = match self.kind {
            Kind::Ping => (self.size, 1),
            Kind::Bulk => (self.descriptor_buffers.buffer_size, self.size),
            Kind::Stub => (1, 1),
        };
        let depth = self.concurrency.saturating_mul(2);
        let buffers = self.descriptor_buffers.server_buffers.filter(|_| self.kind == Kind::Bulk);
        Service { message_max: message, bulk_max: bulk, depth, buffers }
    }

    /// Message buffers that the client sends.
    pub(crate) fn messages(&self) -> u32 {
        match self.kind {
            Kind::Ping => self.concurrency,
            Kind::Bulk => self.descriptor_buffers.client_buffers.unwrap_or(self.concurrency),
            Kind::Stub => 0,
        }
    }

    /// A service for so many clients; `depth` says otherwise.
    pub(crate) fn service_for(&self, clients: usize, depth: Option<u32>) -> Service {
        let service = self.service();
        let all = service.depth.saturating_mul(u32::try_from(clients).unwrap_or(u32::MAX));
        Service { depth: depth.unwrap_or(all), ..service }
    }
}

/// A number of bytes, such as `4096`, `4k` or `1m`.
fn size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, shift) = match lower.strip_suffix(['k', 'm']) {
        Some(digits) => (digits, if lower.ends_with('k') { 10 } else { 20 }),
        None => (&lower[..], 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|number| *number > 0).ok_or_else(|| "bytes are expected, such as 4096, 4k or 1m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_what_clocks_can_tell_are_refused() {
        let test = Test {
            kind: Kind::Ping,
            size: 4096,
            concurrency: 1,
            count: None,
            duration: Some(SECONDS_MAX),
            timeout: SECONDS_MAX,
            descriptor_buffers: DescriptorBuffers::default(),
        };
        test.check().unwrap();
        for beyond in [SECONDS_MAX + 1, u64::MAX] {
            let said = Test { duration: Some(beyond), ..test.clone() }.check().unwrap_err().to_string();
            assert!(said.contains(&format!("--duration {beyond}: 1000000000 at most")), "{said}");
            Test { timeout: beyond, ..test.clone() }.check().unwrap_err();
        }
    }

    #[test]
    fn sizes_and_options() {
        Options::command().debug_assert();
        assert_eq!([size("4096"), size("4k"), size("1M")], [Ok(4096), Ok(4096), Ok(1 << 20)]);
        for wrong in ["", "k", "-1", "0", "4g", "99999999999999999999m"] {
            size(wrong).unwrap_err();
        }
    }
}
