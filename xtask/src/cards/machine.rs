//! Virtual machines and the net between them.
//!
//! - QEMU emulates the CPU in software: a cell judges what happens, never how fast.
//! - All traffic stays in a network namespace of its own. There are two LANs, one for each NIC of a machine:
//!   a bridge with a tap device of each machine, as several queues of virtio want.
//! - A machine ends with this process, however that ends (`PR_SET_PDEATHSIG`).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xtask::command::{output, output_of, say};
use xtask::netns;

use super::image::{Kernel, find};
use super::monitor::Monitor;
use super::packages::{Cache, Suites};
use super::table::Boot;

/// How long a machine may take to boot.
const BOOT_MAX: Duration = Duration::from_secs(150);
/// How long a command may take, beyond what the machine itself allows.
const ANSWER_MAX: Duration = Duration::from_secs(260);
/// Memory of a machine in MiB.
const MEMORY_MIB: u32 = 640;
/// LANs, in each of which a machine has a card.
const LANS: u8 = 2;
/// The card that another one stands in for (`net_failover`): it is in the first LAN too.
pub(super) const PRIMARY: u8 = 2;
/// The largest MTU of the LANs in bytes.
const LAN_MTU_BYTES: u16 = 9000;
/// LACP's bit among the groups that a bridge's port forwards (IEEE 802.1D, 7.12.6).
const FORWARD_LACP: u16 = 1 << 2;
/// Output of QEMU, in a machine's directory.
const ERRORS: &str = "qemu.log";
/// Beginning of the names of machines' directories; the process that made them follows.
const DIRECTORY: &str = "lnet-cards-";
/// Words of a kernel that is ill.
const ILL: [&str; 7] = [
    "Kernel panic",
    "Oops",
    "BUG:",
    "kernel BUG at",
    "general protection fault",
    "WARNING: ",
    "Out of memory",
];

/// QEMU, and where its files are.
pub(super) struct Qemu {
    program: PathBuf,
    /// Where packages were unpacked that are not installed.
    unpacked: Option<PathBuf>,
}

impl Qemu {
    /// The machine's own QEMU, or Debian's where it has none.
    ///
    /// # Errors
    /// Names the package that could not be had.
    pub(super) fn any(cache: &Cache) -> Result<Self> {
        if find("qemu-system-x86_64").is_some() {
            return Ok(Self { program: PathBuf::from("qemu-system-x86_64"), unpacked: None });
        }
        Self::newer(cache)
    }

    /// QEMU of Debian's backports, which has more models of NICs than older ones. It is not installed: no
    /// package of this machine is removed for it.
    ///
    /// # Errors
    /// Names the package that could not be had.
    pub(super) fn newer(cache: &Cache) -> Result<Self> {
        let sources = ["qemu", "seabios", "ipxe"];
        let unpacked =
            cache.unpacked_with_needs("qemu-10", Suites::Backports, &["qemu-system-x86"], &sources)?;
        Ok(Self { program: unpacked.join("usr/bin/qemu-system-x86_64"), unpacked: Some(unpacked) })
    }

    /// Its version.
    ///
    /// # Errors
    /// When it does not run.
    pub(super) fn version(&self) -> Result<String> {
        let answer = output_of(self.with_libraries(&mut Command::new(&self.program)).arg("--version"));
        let answer = answer.context("QEMU (package qemu-system-x86) does not run")?;
        let version = answer.split_whitespace().nth(3);
        Ok(version.context("QEMU tells no version")?.to_owned())
    }

    fn command(&self, namespace: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ip", "netns", "exec", namespace]).arg(&self.program);
        self.with_libraries(&mut command);
        for share in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            if let Some(unpacked) = &self.unpacked {
                command.arg("-L").arg(unpacked.join(share));
            }
        }
        command
    }

    /// Has a command find QEMU's libraries where they are unpacked.
    fn with_libraries<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(unpacked) = &self.unpacked {
            let libraries = unpacked.join("usr/lib/x86_64-linux-gnu");
            let path = std::env::join_paths([&libraries, &unpacked.join("lib/x86_64-linux-gnu")]);
            command
                .env("QEMU_MODULE_DIR", libraries.join("qemu"))
                .envs(path.map(|path| ("LD_LIBRARY_PATH", path)));
        }
        command
    }
}

/// The namespace of the LANs; removed when dropped.
pub(super) struct Lans {
    namespace: String,
}

impl Lans {
    /// Makes the LANs, with several queues for each machine where `queues` is more than 1.
    ///
    /// # Errors
    /// When `ip` fails; what was made is removed.
    pub(super) fn create(queues: u8) -> Result<Self> {
        let lans = Self { namespace: format!("lnet-{}-cards", std::process::id()) };
        output("ip", ["netns", "add", &lans.namespace])?;
        lans.ip("link set lo up")?;
        let several = if queues > 1 { "multi_queue" } else { "" };
        for lan in 0..LANS {
            lans.ip(&format!("link add lan{lan} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"))?;
            lans.ip(&format!("link set lan{lan} up"))?;
        }
        for (card, several) in [(0, several), (1, several), (PRIMARY, "")] {
            for machine in 1..=2 {
                let (tap, lan) = (tap(machine, card), card % LANS);
                lans.ip(&format!("tuntap add dev {tap} mode tap {several}"))?;
                lans.ip(&format!("link set {tap} mtu {LAN_MTU_BYTES} master lan{lan} up"))?;
                lans.ip(&format!("link set {tap} type bridge_slave group_fwd_mask {FORWARD_LACP}"))?;
            }
        }
        Ok(lans)
    }

    /// Joins the LANs by a wire, or parts them.
    ///
    /// # Errors
    /// When `ip` fails.
    pub(super) fn join(&self, is_joined: bool) -> Result<()> {
        if !is_joined {
            return self.ip("link del wire0").map(drop);
        }
        self.ip("link add wire0 type veth peer name wire1")?;
        for lan in 0..LANS {
            self.ip(&format!("link set wire{lan} mtu {LAN_MTU_BYTES} master lan{lan} up"))?;
        }
        Ok(())
    }

    /// Sets whether the port of a machine's card in its LAN has a carrier.
    ///
    /// # Errors
    /// When `ip` fails.
    pub(super) fn plug(&self, machine: u8, card: u8, is_in: bool) -> Result<()> {
        let state = if is_in { "up" } else { "down" };
        self.ip(&format!("link set {} {state}", tap(machine, card))).map(drop)
    }

    fn ip(&self, arguments: &str) -> Result<String> {
        output("ip", ["-n", &self.namespace].into_iter().chain(arguments.split_whitespace()))
    }
}

impl Drop for Lans {
    fn drop(&mut self) {
        if let Err(error) = netns::remove(&self.namespace) {
            say(format_args!("the network namespace {} was not removed: {error:#}", self.namespace));
        }
    }
}

fn tap(machine: u8, card: u8) -> String {
    format!("vm{machine}-{card}")
}

/// A machine that is up; ended when dropped.
pub(super) struct Machine {
    number: u8,
    process: Child,
    directory: PathBuf,
    agent: BufReader<UnixStream>,
}

impl Machine {
    /// Starts a machine with a directory of its own; [`Machine::await_boot`] waits for it.
    ///
    /// # Errors
    /// When QEMU does not start; the error has what it said.
    pub(super) fn start(
        number: u8,
        boot: Boot,
        (qemu, kernel, root): (&Qemu, &Kernel, &[u8]),
        lans: &Lans,
    ) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("{DIRECTORY}{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let initrd = directory.join("initrd");
        fs::write(&initrd, [root, &fs::read(&kernel.modules)?].concat())?;
        let socket = directory.join("agent");
        let errors = directory.join(ERRORS);
        let mut command = qemu.command(&lans.namespace);
        command.args([
            "-machine",
            "q35,usb=off,vmport=off,smm=off",
            "-accel",
            "tcg,thread=multi,tb-size=256",
        ]);
        command.args(["-cpu", "max,la57=off", "-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-no-reboot", "-m", &MEMORY_MIB.to_string(), "-smp", &boot.cpus.to_string()]);
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initrd);
        command.args(["-append", &kernel_words(number, boot.nic)]);
        command.args(["-serial", &format!("file:{}", console(&directory).display())]);
        command.args(["-chardev", &format!("socket,id=agent,path={},server=on,wait=off", socket.display())]);
        command.args(["-serial", "chardev:agent"]).args(nics(number, boot));
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", monitor(&directory).display())]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&errors)?);
        let mut process = command.process_group(0).spawn().context("`setpriv` did not start")?;
        let agent = connect(&socket, &mut process).with_context(|| {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            // A process that has ended needs no signal.
            let _ = process.kill();
            format!("QEMU does not start: {}", said.trim())
        })?;
        Ok(Self { number, process, directory, agent: BufReader::new(agent) })
    }

    /// Waits until the machine takes commands.
    ///
    /// # Errors
    /// When the machine takes too long or ends; the error has the end of its console.
    pub(super) fn await_boot(&mut self) -> Result<()> {
        self.agent.get_ref().set_read_timeout(Some(BOOT_MAX))?;
        loop {
            match self.line() {
                Ok(line) if line.contains("READY") => break,
                Ok(_) => {}
                Err(error) => return Err(error.context(format!("VM {} does not boot", self.number))),
            }
        }
        Ok(self.agent.get_ref().set_read_timeout(Some(ANSWER_MAX))?)
    }

    /// Gives QEMU's monitor of the machine.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub(super) fn monitor(&self) -> Result<Monitor> {
        Monitor::open(UnixStream::connect(monitor(&self.directory))?)
    }

    /// Runs a command of a shell, one line, and gives its output.
    ///
    /// # Errors
    /// When the command fails, with its output; or when the machine does not answer, with its console.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        ensure!(!command.contains('\n'), "a command is one line: {command:?}");
        self.agent.get_ref().write_all(format!("{command}\n").as_bytes())?;
        let line = self.line()?;
        let mut words = line.split_whitespace();
        let (Some("END"), Some(Ok(status)), Some(Ok(bytes))) =
            (words.next(), words.next().map(str::parse::<i32>), words.next().map(str::parse::<usize>))
        else {
            bail!("VM {} answers {line:?}", self.number)
        };
        let mut answer = vec![0; bytes];
        self.agent.read_exact(&mut answer).with_context(|| self.last_words())?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        ensure!(status == 0, "VM {}: `{command}`: {}", self.number, end_of(&answer, status));
        Ok(answer)
    }

    /// Checks that the kernel has said nothing of a machine that is ill.
    ///
    /// # Errors
    /// The line that it said.
    pub(super) fn check(&mut self) -> Result<()> {
        let console = fs::read(console(&self.directory)).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let ill = console.lines().find(|line| ILL.iter().any(|words| line.contains(words)));
        ensure!(ill.is_none(), "VM {}: {}", self.number, ill.unwrap_or_default().trim());
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.agent.read_line(&mut line);
        if let Err(error) = read {
            bail!("VM {} does not answer ({error}){}", self.number, self.last_words());
        }
        ensure!(!line.is_empty(), "VM {} has ended{}", self.number, self.last_words());
        Ok(line)
    }

    fn last_words(&self) -> String {
        const LINES: usize = 8;
        const ILL_LINES: usize = 40;
        let console = fs::read(console(&self.directory)).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<_> = console.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = match lines.iter().position(|line| ILL.iter().any(|words| line.contains(words))) {
            Some(ill) => lines[ill..].iter().take(ILL_LINES).copied().collect::<Vec<_>>().join("\n"),
            None => lines[lines.len().saturating_sub(LINES)..].join("\n"),
        };
        let last = if last.is_empty() { last } else { format!("; its console ends with:\n{last}") };
        let qemu = fs::read_to_string(self.directory.join(ERRORS)).unwrap_or_default();
        if qemu.is_empty() { last } else { format!("{last}; QEMU: {}", qemu.trim()) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A machine that has ended needs no signal, and leaves what its directory is dropped with.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Removes the directories of machines that killed runs have left.
///
/// # Errors
/// When one cannot be removed.
pub(super) fn remove_stale() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix(DIRECTORY).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            fs::remove_dir_all(entry.path()).with_context(|| name)?;
        }
    }
    Ok(())
}

/// Words of a command that failed, or its status.
fn end_of(answer: &str, status: i32) -> String {
    match answer.trim() {
        "" if status == 137 => "it took too long".to_owned(),
        "" => format!("exit status {status}"),
        said => said.to_owned(),
    }
}

fn console(directory: &Path) -> PathBuf {
    directory.join("console.log")
}

fn monitor(directory: &Path) -> PathBuf {
    directory.join("monitor")
}

/// The kernel's command line.
fn kernel_words(number: u8, nic: &str) -> String {
    let modules = match nic {
        "virtio" | "virtio-iommu" | "virtio-failover" => "virtio_net",
        "virtio-primary" => "e1000e,virtio_net",
        "rtl8139" => "8139cp,8139too",
        other => other,
    };
    format!(
        "console=ttyS0 loglevel=5 panic=-1 mitigations=off nokaslr i8042.noaux i8042.nokbd tsc=reliable cryptomgr.notests \
         net.ifnames=0 cards.id={number} cards.nic={modules}"
    )
}

/// QEMU's arguments for the two NICs of a machine.
fn nics(number: u8, boot: Boot) -> Vec<String> {
    let Boot { nic, queues, .. } = boot;
    let mut model = match nic {
        "virtio" | "virtio-failover" | "virtio-primary" => format!("virtio-net-pci,host_mtu={LAN_MTU_BYTES}"),
        "virtio-iommu" => {
            format!("virtio-net-pci,host_mtu={LAN_MTU_BYTES},iommu_platform=on,disable-legacy=on")
        }
        other => other.to_owned(),
    };
    let mut tap_queues = String::new();
    if queues > 1 {
        model = format!("{model},mq=on,vectors={}", 2 * queues + 2);
        tap_queues = format!(",queues={queues}");
    }
    // Cards of PCI Express have a port of their own: igb's virtual functions find no address elsewhere.
    let is_express = !matches!(nic, "rtl8139");
    let card = |card: u8, model: &str, tap_queues: &str, further: &str| {
        let (tap, lan) = (tap(number, card), card % LANS);
        // Slots in the order of the cards, so that the names of the interfaces are in that order too.
        let slot = 0x10 + card;
        let port =
            format!("pcie-root-port,id=port{card},chassis={card},slot={card},bus=pcie.0,addr={slot:#x}");
        let bus = if is_express { format!("bus=port{card}") } else { format!("bus=pcie.0,addr={slot:#x}") };
        let mut arguments = Vec::new();
        if is_express {
            arguments.extend(["-device".to_owned(), port]);
        }
        arguments.extend([
            "-netdev".to_owned(),
            format!("tap,id=lan{card},ifname={tap},script=no,downscript=no{tap_queues}"),
            "-device".to_owned(),
            format!(
                "{model},id=card{card},romfile=,netdev=lan{card},mac=52:54:77:00:{lan:02x}:{number:02x},{bus}{further}"
            ),
        ]);
        arguments
    };
    // The device before a stand-in and its card is eth0.
    let has_stand_in = matches!(nic, "virtio-failover" | "virtio-primary");
    let mut arguments = card(0, &model, &tap_queues, if has_stand_in { ",failover=on" } else { "" });
    arguments.extend(card(1, &model, &tap_queues, ""));
    if nic == "virtio-primary" {
        arguments.extend(card(PRIMARY, "e1000e", "", ",failover_pair_id=card0"));
    }
    arguments
}

/// Waits for QEMU's socket.
fn connect(socket: &Path, process: &mut Child) -> Result<UnixStream> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => {}
        }
        if let Some(status) = process.try_wait()? {
            bail!("{status}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_virtio_is_told_its_queues() {
        let boot = Boot { kernel: "6.12", nic: "virtio", queues: 4, cpus: 2 };
        let arguments = nics(1, boot).join(" ");
        assert!(arguments.contains("ifname=vm1-1,script=no,downscript=no,queues=4"), "{arguments}");
        assert!(arguments.contains("mq=on,vectors=10,"), "{arguments}");
        let arguments = nics(2, Boot { nic: "igb", queues: 1, ..boot }).join(" ");
        let card = "-device igb,id=card0,romfile=,netdev=lan0,mac=52:54:77:00:00:02,bus=port0";
        assert!(arguments.contains(card), "{arguments}");
        assert!(!arguments.contains("queues"), "{arguments}");
        let arguments = nics(2, Boot { nic: "virtio-iommu", ..boot }).join(" ");
        assert!(arguments.contains("iommu_platform=on,disable-legacy=on,mq=on,"), "{arguments}");
        let arguments = nics(1, Boot { nic: "virtio-primary", ..boot }).join(" ");
        // The card has the address of its stand-in.
        let mac = "mac=52:54:77:00:00:01";
        assert!(arguments.contains(&format!("{mac},bus=port0,failover=on")), "{arguments}");
        assert!(arguments.contains(&format!("{mac},bus=port2,failover_pair_id=card0")), "{arguments}");
    }

    #[test]
    fn a_command_that_says_nothing_tells_its_status() {
        assert_eq!(end_of("\n", 3), "exit status 3");
        assert_eq!(end_of("", 137), "it took too long");
        assert_eq!(end_of("words\n", 1), "words");
    }
}
