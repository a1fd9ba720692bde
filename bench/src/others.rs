//! Other programs that measure a network, over the same link: those that are installed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::link::Link;

/// How long a server may take to listen.
const STARTS_WITHIN: Duration = Duration::from_millis(500);
/// Payload bytes of a UDP datagram at most.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Payload bytes of a datagram of libfabric's at most, whatever the MTU.
const FABRIC_DATAGRAM_BYTES_MAX: usize = 1472;

/// What one of them found for one size.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Found {
    /// Microseconds of one message alone, there and back.
    pub round_trip_us: Option<f64>,
    /// Messages received a second while many are under way.
    pub per_second: Option<f64>,
}

/// A program, and the protocol or operation that it measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Other {
    /// `ucx_perftest` over TCP.
    Ucx(UcxTest),
    /// `fi_pingpong` with a provider of libfabric's.
    Fabric(Protocol),
    /// `sockperf` over UDP, whose ends poll, or sleep in the kernel.
    Sockperf {
        /// Whether they poll.
        polls: bool,
    },
    /// `iperf3`.
    Iperf(Protocol),
}

/// A protocol of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "their names say it")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// A kind of messages of UCX. Its puts and gets are emulated over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "their names say it")]
pub enum UcxTest {
    Tag,
    ActiveMessage,
    Put,
    Get,
}

impl UcxTest {
    /// Its tests of one message alone, and of many.
    const fn tests(self) -> [&'static str; 2] {
        match self {
            Self::Tag => ["tag_lat", "tag_bw"],
            Self::ActiveMessage => ["ucp_am_lat", "ucp_am_bw"],
            Self::Put => ["ucp_put_lat", "ucp_put_bw"],
            Self::Get => ["ucp_get", "ucp_get"],
        }
    }
}

impl Other {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ucx(UcxTest::Tag),
        Self::Ucx(UcxTest::ActiveMessage),
        Self::Ucx(UcxTest::Put),
        Self::Ucx(UcxTest::Get),
        Self::Fabric(Protocol::Tcp),
        Self::Fabric(Protocol::Udp),
        Self::Sockperf { polls: true },
        Self::Sockperf { polls: false },
        Self::Iperf(Protocol::Tcp),
        Self::Iperf(Protocol::Udp),
    ];

    /// Its row in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ucx(UcxTest::Tag) => "ucx_perftest tag, TCP",
            Self::Ucx(UcxTest::ActiveMessage) => "ucx_perftest active message, TCP",
            Self::Ucx(UcxTest::Put) => "ucx_perftest put, TCP",
            Self::Ucx(UcxTest::Get) => "ucx_perftest get, TCP",
            Self::Fabric(Protocol::Tcp) => "fi_pingpong, TCP",
            Self::Fabric(Protocol::Udp) => "fi_pingpong, UDP",
            Self::Sockperf { polls: true } => "sockperf that polls, UDP",
            Self::Sockperf { polls: false } => "sockperf, UDP",
            Self::Iperf(Protocol::Tcp) => "iperf3, TCP",
            Self::Iperf(Protocol::Udp) => "iperf3, UDP",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Sockperf { .. } => "sockperf",
            Self::Iperf(_) => "iperf3",
            Self::Fabric(_) => "fi_pingpong",
            Self::Ucx(_) => "ucx_perftest",
        }
    }

    /// The Debian package that has it.
    #[must_use]
    pub const fn package(self) -> &'static str {
        match self {
            Self::Sockperf { .. } => "sockperf",
            Self::Iperf(_) => "iperf3",
            Self::Fabric(_) => "libfabric-bin",
            Self::Ucx(_) => "ucx-utils",
        }
    }

    /// Bytes of a message at most.
    const fn bytes_max(self) -> usize {
        match self {
            Self::Sockperf { .. } | Self::Iperf(Protocol::Udp) => DATAGRAM_BYTES_MAX,
            Self::Fabric(Protocol::Udp) => FABRIC_DATAGRAM_BYTES_MAX,
            _ => usize::MAX,
        }
    }

    /// Whether it is installed.
    #[must_use]
    pub fn is_installed(self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder: PathBuf| folder.join(self.program()).is_file())
    }

    /// Measures messages of `bytes` for about `time`, a second at least.
    ///
    /// # Errors
    /// When it fails, or prints what is not known.
    pub fn measure(self, link: &Link, bytes: usize, time: Duration) -> anyhow::Result<Found> {
        let ip = link.nid_b.ip().context("the far end has no address")?.to_string();
        let seconds = time.as_secs().max(1).to_string();
        let size = bytes.to_string();
        // A long message takes longer.
        let rounds = (4 << 30) / (bytes as u64 + (1 << 19));
        let run = |server: &[&str], client: &[&str]| self.run(link, server, client);
        if bytes > self.bytes_max() {
            return Ok(Found::default());
        }
        match self {
            Self::Sockperf { polls } => {
                let at = ["-i", &ip, "-p", "11111"];
                let polling: &[_] = if polls { &["--nonblocked"] } else { &[] };
                let server = [&["sr"], &at[..], polling].concat();
                let options = ["-m", &size, "-t", &seconds];
                let latency = run(&server, &[&["pp"], &at[..], &options, polling].concat())?;
                let rate = run(&server, &[&["tp"], &at[..], &options, polling].concat())?;
                Ok(Found {
                    round_trip_us: Some(2.0 * number_after(&latency, "Latency is")?),
                    per_second: Some(number_after(&rate, "Message Rate is")?),
                })
            }
            Self::Iperf(protocol) => {
                // No pace is set.
                let unbounded: &[_] = if protocol == Protocol::Udp { &["-u", "-b", "0"] } else { &[] };
                let client = [&["-c", &ip, "-J", "-t", &seconds, "-l", &size], unbounded].concat();
                let said = run(&["-s", "-1"], &client)?;
                let said: Value = serde_json::from_str(&said).context("iperf3 printed no JSON")?;
                let bits = received_bits(&said, protocol);
                let bits = bits.with_context(|| format!("iperf3 says {}", said["error"]))?;
                Ok(Found { round_trip_us: None, per_second: Some(bits / 8.0 / bytes as f64) })
            }
            Self::Fabric(protocol) => {
                let rounds = rounds.min(2000).to_string();
                let [provider, end_point] = match protocol {
                    Protocol::Tcp => ["tcp", "msg"],
                    Protocol::Udp => ["udp", "dgram"],
                };
                let options = ["-p", provider, "-e", end_point, "-I", &rounds, "-S", &size];
                let said = run(&options, &[&options[..], &[&ip]].concat())?;
                Ok(Found { round_trip_us: Some(2.0 * last_row(&said, 6)?), per_second: None })
            }
            Self::Ucx(kind) => {
                let [alone, many] = kind.tests();
                let [few, rounds] = [rounds.min(1000), rounds].map(|rounds| rounds.to_string());
                let client = |test, window| {
                    let rounds = if window == "1" { &few } else { &rounds };
                    [&ip, "-t", test, "-s", &size, "-n", rounds, "-w", "100", "-O", window, "-f"]
                };
                // The column is the mean of a whole round trip for Gets, of half a one for others.
                let round_trip = last_row(&run(&["-f"], &client(alone, "1"))?, 3)?;
                let rate = last_row(&run(&["-f"], &client(many, "64"))?, 7)?;
                let is_whole = kind == UcxTest::Get;
                Ok(Found {
                    round_trip_us: Some(if is_whole { round_trip } else { 2.0 * round_trip }),
                    per_second: Some(rate),
                })
            }
        }
    }

    /// Runs the server at the far end and the client at the near one; what the latter prints.
    fn run(self, link: &Link, server: &[&str], client: &[&str]) -> anyhow::Result<String> {
        // Some look for interfaces in /sys, which `ip netns exec` mounts as the namespace has it.
        let command = |netns: &Path, arguments: &[&str], interface: &str| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec"]).args(netns.file_name()).arg(self.program());
            command.args(arguments).env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", interface);
            command.env("UCX_WARN_UNUSED_ENV_VARS", "n").stdin(Stdio::null());
            command
        };
        link.pair(
            |ready, stop: &AtomicBool| {
                let mut server = command(&link.netns_b, server, &link.interface_b);
                let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
                std::thread::sleep(STARTS_WITHIN);
                ready();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                end(&mut server)
            },
            || {
                let words = format!("{} {}", self.program(), client.join(" "));
                let output = command(&link.netns_a, client, &link.interface_a).output();
                let output = output.with_context(|| format!("`{words}` did not start"))?;
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let complaint = String::from_utf8_lossy(&output.stderr);
                ensure!(output.status.success(), "`{words}` failed, {}: {said}{complaint}", output.status);
                Ok(said)
            },
        )
    }
}

fn end(child: &mut Child) -> anyhow::Result<()> {
    child.kill().and_then(|()| child.wait()).context("a server does not end")?;
    Ok(())
}

/// Bits a second that the far end has received.
fn received_bits(said: &Value, protocol: Protocol) -> Option<f64> {
    let end = &said["end"];
    match protocol {
        Protocol::Tcp => end["sum_received"]["bits_per_second"].as_f64(),
        // The bits that were sent, less what was lost of them.
        Protocol::Udp => {
            let sum = &end["sum"];
            Some(sum["bits_per_second"].as_f64()? * (1.0 - sum["lost_percent"].as_f64()? / 100.0))
        }
    }
}

/// The number behind some words.
fn number_after(said: &str, words: &str) -> anyhow::Result<f64> {
    let Some((_, rest)) = said.split_once(words) else { bail!("no {words:?} in: {said}") };
    let number = rest.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("{number:?} behind {words:?} is no number"))
}

/// The number in a column of the last row that begins with one.
fn last_row(said: &str, column: usize) -> anyhow::Result<f64> {
    let mut rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_row =
        |row: &Vec<&str>| row.first().is_some_and(|first| first.starts_with(|it: char| it.is_ascii_digit()));
    let row = rows.rfind(is_row).with_context(|| format!("no row of numbers in: {said}"))?;
    let cell = row.get(column).with_context(|| format!("no column {column} in {row:?}"))?;
    cell.parse().with_context(|| format!("{cell:?} in column {column} is no number"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Protocol, last_row, number_after, received_bits};

    #[test]
    fn what_the_programs_print_is_understood() {
        let sockperf = "sockperf: Summary: Latency is 16.761 usec\nsockperf: Total 16417 observations\n";
        assert_eq!(number_after(sockperf, "Latency is").unwrap(), 16.761);
        let sockperf = "sockperf: Summary: Message Rate is 68383 [msg/sec]\n";
        assert_eq!(number_after(sockperf, "Message Rate is").unwrap(), 68383.0);
        assert!(number_after("", "Latency is").unwrap_err().to_string().contains("Latency is"));
        let fabric = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                      64      2k      =2k      250k        0.92s      0.28     229.18       0.00\n";
        assert_eq!(last_row(fabric, 6).unwrap(), 229.18);
        let ucx = "+------+\n  20000      3.306    16.701    16.702        3.65       3.65       59877       59878\n";
        assert_eq!([3, 7].map(|column| last_row(ucx, column).unwrap()), [16.702, 59878.0]);
        let tcp = json!({"end": {"sum_received": {"bits_per_second": 5e9}}});
        assert_eq!(received_bits(&tcp, Protocol::Tcp), Some(5e9));
        let udp = json!({"end": {"sum": {"bits_per_second": 8e9, "lost_percent": 25.0}}});
        assert_eq!(received_bits(&udp, Protocol::Udp), Some(6e9));
        assert_eq!(received_bits(&json!({"error": "refused"}), Protocol::Udp), None);
        assert!(last_row("nothing", 1).unwrap_err().to_string().contains("no row"));
    }
}
