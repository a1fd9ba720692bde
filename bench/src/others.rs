//! Other programs that measure a network, over the same link: those that are installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::link::{Link, wait_until};

/// How long a server may take to listen.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
const SOCKPERF_PORT: &str = "11111";
/// Nanoseconds that a message of these programs takes at most where all is well, and what each byte adds:
/// alone, of many, and of many that are emulated.
const ALONE: (f64, f64) = (20_000.0, 0.3);
const MANY: (f64, f64) = (5_000.0, 0.1);
const EMULATED: (f64, f64) = (10_000.0, 1.5);
/// Payload bytes of a UDP datagram at most.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Payload bytes of a datagram of libfabric's at most, whatever the MTU.
const FABRIC_DATAGRAM_BYTES_MAX: usize = 1472;

/// What one of them found for one size.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Found {
    /// Microseconds of one message alone, there and back.
    pub round_trip_us: Option<f64>,
    /// Messages a second while many are under way: received, but of sockperf sent.
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
    /// Programs that poll where they can choose: what stands beside nodes that poll.
    pub const POLLING: [Self; 9] = [
        Self::Ucx(UcxTest::Tag),
        Self::Ucx(UcxTest::ActiveMessage),
        Self::Ucx(UcxTest::Put),
        Self::Ucx(UcxTest::Get),
        Self::Fabric(Protocol::Tcp),
        Self::Fabric(Protocol::Udp),
        Self::Sockperf { polls: true },
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
            Self::Sockperf { polls: true } => "sockperf that polls, UDP (sent)",
            Self::Sockperf { polls: false } => "sockperf that sleeps, UDP (sent)",
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

    /// Port at which its server listens.
    const fn port(self) -> u16 {
        match self {
            Self::Sockperf { .. } => 11_111,
            Self::Iperf(_) => 5201,
            Self::Fabric(_) => 47_592,
            Self::Ucx(_) => 13_337,
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

    /// Measures messages of `bytes` for about `time`, where sockperf and iperf3 take a second at least:
    /// one alone, and many.
    ///
    /// # Errors
    /// When it fails, or prints what is not known.
    pub fn measure(self, link: &Link, bytes: usize, time: Duration) -> anyhow::Result<Found> {
        let round_trip_us = self.round_trip_us(link, bytes, time)?;
        Ok(Found { round_trip_us, per_second: self.per_second(link, bytes, time)? })
    }

    /// Microseconds of one message alone, there and back; `None` where it does not measure that.
    ///
    /// # Errors
    /// When it fails, or prints what is not known.
    pub fn round_trip_us(self, link: &Link, bytes: usize, time: Duration) -> anyhow::Result<Option<f64>> {
        if bytes > self.bytes_max() {
            return Ok(None);
        }
        let ip = far_ip(link)?;
        let (size, rounds) = (bytes.to_string(), rounds(bytes, ALONE, time));
        match self {
            Self::Sockperf { polls } => {
                let said = self.ping_pong(link, bytes, polls, Duration::ZERO, time)?;
                Ok(Some(2.0 * number_after(&said, "Latency is")?))
            }
            Self::Iperf(_) => Ok(None),
            Self::Fabric(protocol) => {
                let [provider, end_point] = match protocol {
                    Protocol::Tcp => ["tcp", "msg"],
                    Protocol::Udp => ["udp", "dgram"],
                };
                let options = ["-p", provider, "-e", end_point, "-I", &rounds, "-S", &size];
                let said = self.run(link, &options, &[&options[..], &[&ip]].concat())?;
                Ok(Some(2.0 * last_row(&said, 6)?))
            }
            Self::Ucx(kind) => {
                // The column is the mean of a whole round trip for Gets, of half a one for others.
                let column = last_row(&self.ucx(link, kind.tests()[0], [&size, &rounds, "1"])?, 3)?;
                Ok(Some(if kind == UcxTest::Get { column } else { 2.0 * column }))
            }
        }
    }

    /// Messages a second while many are under way: those that arrived, but of sockperf those that were sent;
    /// `None` where it does not measure that.
    ///
    /// # Errors
    /// When it fails, or prints what is not known.
    pub fn per_second(self, link: &Link, bytes: usize, time: Duration) -> anyhow::Result<Option<f64>> {
        if bytes > self.bytes_max() {
            return Ok(None);
        }
        let (ip, size, seconds) = (far_ip(link)?, bytes.to_string(), seconds(time));
        match self {
            Self::Sockperf { polls } => {
                let at = ["-i", &ip, "-p", SOCKPERF_PORT];
                let polling: &[_] = if polls { &["--nonblocked"] } else { &[] };
                let client = [&["tp"], &at[..], &["-m", &size, "-t", &seconds], polling].concat();
                let said = self.run(link, &[&["sr"], &at[..], polling].concat(), &client)?;
                Ok(Some(number_after(&said, "Message Rate is")?))
            }
            Self::Iperf(protocol) => {
                // No pace is set.
                let unbounded: &[_] = if protocol == Protocol::Udp { &["-u", "-b", "0"] } else { &[] };
                let client = [&["-c", &ip, "-J", "-t", &seconds, "-l", &size], unbounded].concat();
                let said = self.run(link, &["-s", "-1"], &client)?;
                let said: Value = serde_json::from_str(&said).context("iperf3 printed no JSON")?;
                let bits = received_bits(&said, protocol);
                let bits = bits.with_context(|| format!("iperf3 says {}", said["error"]))?;
                Ok(Some(bits / 8.0 / bytes as f64))
            }
            Self::Fabric(_) => Ok(None),
            Self::Ucx(kind) => {
                let pace = if matches!(kind, UcxTest::Put | UcxTest::Get) { EMULATED } else { MANY };
                let rounds = rounds(bytes, pace, time);
                Ok(Some(last_row(&self.ucx(link, kind.tests()[1], [&size, &rounds, "64"])?, 7)?))
            }
        }
    }

    fn ucx(self, link: &Link, test: &str, [size, rounds, window]: [&str; 3]) -> anyhow::Result<String> {
        let ip = far_ip(link)?;
        self.run(link, &["-f"], &[&ip, "-t", test, "-s", size, "-n", rounds, "-w", "100", "-O", window, "-f"])
    }

    fn ping_pong(
        self,
        link: &Link,
        bytes: usize,
        polls: bool,
        pause: Duration,
        time: Duration,
    ) -> anyhow::Result<String> {
        let ip = far_ip(link)?;
        let at = ["-i", &ip, "-p", SOCKPERF_PORT];
        let polling: &[_] = if polls { &["--nonblocked"] } else { &[] };
        let (size, seconds) = (bytes.to_string(), seconds(time));
        let pace = 1_000_000_u128.checked_div(pause.as_micros()).map(|pace| pace.to_string());
        let pace = pace.as_ref().map(|pace| ["--mps", pace]);
        let options = ["-m", &size, "-t", &seconds];
        let pace = pace.as_ref().map_or(&[][..], |pace| &pace[..]);
        let client = [&["pp"], &at[..], &options, polling, pace].concat();
        self.run(link, &[&["sr"], &at[..], polling].concat(), &client)
    }

    /// Runs the server at the far end and, once that listens, the client at the near one; what the latter
    /// prints.
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
                await_listener(self.port(), &mut server)?;
                ready();
                wait_until(stop);
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

/// Half round trips of sockperf's between ends that sleep, with pauses of about that time, in which its
/// client polls the clock: p50 and p99, in microseconds.
///
/// # Errors
/// When it fails, or prints what is not known.
pub fn sockperf_with_pauses(
    link: &Link,
    bytes: usize,
    pause: Duration,
    time: Duration,
) -> anyhow::Result<[f64; 2]> {
    let said = Other::Sockperf { polls: false }.ping_pong(link, bytes, false, pause, time)?;
    Ok([number_after(&said, "percentile 50.000 =")?, number_after(&said, "percentile 99.000 =")?])
}

fn far_ip(link: &Link) -> anyhow::Result<String> {
    Ok(link.nid_b.ip().context("the far end has no address")?.to_string())
}

/// A time as options have it.
fn seconds(time: Duration) -> String {
    time.as_secs().max(1).to_string()
}

/// Rounds that take about that time, of messages that take so long each: none measured less than a hundred.
fn rounds(bytes: usize, (message_ns, byte_ns): (f64, f64), time: Duration) -> String {
    let each_ns = message_ns + byte_ns * bytes as f64;
    ((time.as_nanos() as f64 / each_ns) as u64).max(100).to_string()
}

/// Waits until a server listens at a port in the namespace of the calling thread (proc(5), `/proc/net/tcp`).
fn await_listener(port: u16, server: &mut Child) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let tables = ["tcp", "tcp6", "udp", "udp6"].iter();
        let mut tables =
            tables.filter_map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")).ok());
        if tables.any(|table| listens(&table, port)) {
            return Ok(());
        }
        let ended = server.try_wait()?;
        ensure!(ended.is_none(), "a server ended before it listened: {ended:?}");
        if begun.elapsed() > STARTS_WITHIN {
            end(server)?;
            bail!("no server listens at port {port} after {STARTS_WITHIN:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a table of sockets has one that listens at a port, or of UDP, one that is bound to it.
fn listens(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (local, state) = (columns.next(), columns.nth(1));
        local.is_some_and(|local| local.ends_with(&port)) && matches!(state, Some("0A" | "07"))
    })
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

    use std::time::Duration;

    use super::{ALONE, Protocol, last_row, listens, number_after, received_bits, rounds};

    #[test]
    fn listeners_are_found_in_the_tables_of_the_kernel() {
        let udp = "  sl  local_address rem_address   st tx_queue\n\
                   2: 0200D30A:2B67 00000000:0000 07 00000000:00000000\n";
        assert!(listens(udp, 11_111) && !listens(udp, 11_112));
        let tcp = "0: 00000000:1451 00000000:0000 0A 0\n1: 0200D30A:1451 0100D30A:9C40 06 0\n";
        assert!(listens(tcp, 5201));
        assert!(!listens("1: 0200D30A:1451 0100D30A:9C40 06 0\n", 5201));
    }

    #[test]
    fn rounds_follow_sizes_and_time() {
        let rounds = |bytes, ms| rounds(bytes, ALONE, Duration::from_millis(ms)).parse::<u64>().unwrap();
        assert_eq!([rounds(0, 1000), rounds(0, 100), rounds(0, 1)], [50_000, 5_000, 100]);
        assert!((2_900..3_100).contains(&rounds(1 << 20, 1000)));
    }

    #[test]
    fn what_the_programs_print_is_understood() {
        let sockperf = "sockperf: Summary: Latency is 16.761 usec\nsockperf: Total 16417 observations\n";
        assert_eq!(number_after(sockperf, "Latency is").unwrap(), 16.761);
        let sockperf =
            "sockperf: ---> percentile 50.000 =    4.123\nsockperf: ---> percentile 25.000 =    4.0\n";
        assert_eq!(number_after(sockperf, "percentile 50.000 =").unwrap(), 4.123);
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
