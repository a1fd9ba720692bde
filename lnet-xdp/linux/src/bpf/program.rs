//! The loaded program: its maps, its interface.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, TestRun, TestRunOptions, Xdp, XdpError, XdpMode};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfError, EbpfLoader, Pod};
use lnet_io::netlink::{Interface, Mac, NetlinkError, Role};
use lnet_wire::MessageType;
use lnet_wire::packet::{Endpoint, EthernetAddress, endpoint, ethernet_address};
use lnet_wire::steer::{PORTALS, Policy, QUEUES_MAX, SHARDS_MAX, slot_of};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::Object;
use super::counters::{Counters, Outline};
use super::error::{BpfError, chain, errno_of};
use super::faults::{FAULTS, Faults};
use super::log::LogPump;
use super::run::{Action, TestFrame};

/// Names of the programs in their object.
const STEERING: &str = "lnet_xdp";
const BASELINE: &str = "lnet_baseline";
/// The map of a logging object that aya-log reads.
const LOG_MAP: &str = "AYA_LOGS";
/// Entries of `CONFIG`; `lnet-ebpf` reads them.
const CONFIG_SHARDS: u32 = 0;
const CONFIG_LOG: u32 = 1;
const CONFIG_ADMISSION: u32 = 2;
/// Entries of `ADMISSIONS`.
const ADMISSIONS_MAX: u32 = 16;
/// How often the program is loaded that is interrupted each time.
const LOADS_MAX: u32 = 20;
/// Time between two such loads.
const LOAD_INTERVAL: Duration = Duration::from_millis(1);

/// How a program is attached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActiveMode {
    /// Attached to the driver.
    Native,
    /// Attached to the kernel's network stack.
    Generic,
}

impl fmt::Display for ActiveMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// The XDP program, loaded, with its maps; attached to at most one interface.
pub struct XdpProgram {
    // Detached before the program and its maps go.
    attachment: Option<Attachment>,
    ebpf: Ebpf,
    name: &'static str,
    can_log: bool,
    /// Why the driver would not have the program.
    native_refusal: Option<String>,
    sockets: XskMap<MapData>,
    endpoints: HashMap<MapData, Endpoint, u32>,
    admissions: Array<MapData, [u32; 7]>,
    /// The admission that holds, and the number of its entry.
    admission: (Admission, u32),
    policies: Array<MapData, u64>,
    config: Array<MapData, u32>,
    faults: Faults,
    slot_frames: PerCpuArray<MapData, u64>,
    reason_frames: PerCpuArray<MapData, u64>,
}

/// Address and first endpoint, which the program compares a frame with first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Admission {
    /// The Ethernet address of the interface; zeros while it is not known.
    mac: EthernetAddress,
    /// The endpoint that it looks at before all others.
    first: Option<Endpoint>,
}

impl Admission {
    fn words(&self) -> [u32; 7] {
        let ([low, high], [a, b, c, d, e]) = (self.mac, self.first.unwrap_or_default());
        [low, high, a, b, c, d, e]
    }
}

struct Attachment {
    interface: String,
    index: u32,
    mode: ActiveMode,
    /// Detaches when it is closed.
    _link: FdLink,
}

impl fmt::Debug for XdpProgram {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("XdpProgram")
            .field("interface", &self.interface())
            .field("can_log", &self.can_log)
            .finish_non_exhaustive()
    }
}

/// Why mode `auto` takes generic mode on interfaces of a kind, whatever their drivers take.
pub(crate) const fn generic_by_role(role: Role) -> Option<&'static str> {
    match role {
        // A bond takes a program in native mode and passes it to its slaves. A socket of the bond never sees
        // what is redirected there: it came by a queue of another device (xsk.c: xsk_rcv_check).
        Role::Bond => {
            Some("frames of a bond come by the queues of its slaves, where native rings of the bond are deaf")
        }
        Role::Device | Role::Veth | Role::Bridge => None,
    }
}

impl XdpProgram {
    /// Loads an object into the kernel. It steers nothing
    /// before it is attached and has shards.
    ///
    /// # Errors
    /// [`BpfError::ObjectUnreadable`], [`BpfError::ObjectInvalid`]; [`BpfError::Privilege`];
    /// [`BpfError::FragsUnsupported`]; [`BpfError::Verifier`].
    pub fn load(object: &Object) -> Result<Self, BpfError> {
        Self::load_named(object, STEERING)
    }

    /// Loads the program that benches measure against: it looks at no packet and gives every one to the
    /// socket of shard 0 on its queue, as if nothing had to be steered.
    ///
    /// # Errors
    /// As [`XdpProgram::load`].
    pub fn load_baseline(object: &Object) -> Result<Self, BpfError> {
        Self::load_named(object, BASELINE)
    }

    fn load_named(object: &Object, name: &'static str) -> Result<Self, BpfError> {
        let bytes = object.bytes()?;
        // Nothing is relocated by the kernel's types, which take 17 MiB: they are dropped before anything is
        // made that lives longer, so that the next program finds room where they were.
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        let mut ebpf = loader.load(&bytes).map_err(|error| object_error(object, &error))?;
        let program: Result<&mut Xdp, _> = match ebpf.program_mut(name) {
            Some(program) => program.try_into(),
            None => Err(ProgramError::UnexpectedProgramType),
        };
        program
            .and_then(|program| uninterrupted(|| program.load(), |error| errno_of(error)))
            .map_err(|error| load_error(object, error))?;
        Ok(Self {
            attachment: None,
            name,
            native_refusal: None,
            can_log: ebpf.map(LOG_MAP).is_some(),
            sockets: take(&mut ebpf, object, "XSKS")?,
            endpoints: take(&mut ebpf, object, "ENDPOINTS")?,
            admissions: take(&mut ebpf, object, "ADMISSIONS")?,
            admission: (Admission::default(), 0),
            policies: take(&mut ebpf, object, "POLICIES")?,
            config: take(&mut ebpf, object, "CONFIG")?,
            faults: Faults::new(take(&mut ebpf, object, FAULTS)?),
            slot_frames: take(&mut ebpf, object, "SLOT_FRAMES")?,
            reason_frames: take(&mut ebpf, object, "REASON_FRAMES")?,
            ebpf,
        })
    }

    /// Attaches the program to `interface`, a name in the calling thread's network namespace, and says in
    /// which mode: in the driver where that can, else in the network stack, unless one of them is asked for.
    /// It detaches when this value is dropped or its process ends.
    ///
    /// # Errors
    /// [`BpfError::Interface`]; [`BpfError::AlreadyAttached`] when this program serves one;
    /// [`BpfError::Occupied`]; [`BpfError::Privilege`]; [`BpfError::Refused`] by the driver (in mode
    /// that was asked for; else in both).
    pub fn attach(&mut self, interface_name: &str, mode: Option<ActiveMode>) -> Result<ActiveMode, BpfError> {
        if let Some(attachment) = &self.attachment {
            return Err(BpfError::AlreadyAttached { interface: attachment.interface.clone() });
        }
        let interface = Interface::by_name(interface_name)?;
        if let Some(occupied) = interface.xdp_program_id.and_then(|_| occupied(&interface)) {
            return Err(occupied);
        }
        match mode {
            Some(mode) => self.attach_as(&interface, mode),
            None if let Some(why) = generic_by_role(interface.role) => {
                tracing::info!(interface = interface.name, why, "generic mode");
                self.attach_as(&interface, ActiveMode::Generic)
            }
            None => match self.attach_as(&interface, ActiveMode::Native) {
                Err(error @ BpfError::Refused { .. }) => {
                    tracing::info!(%error, "trying generic mode");
                    self.native_refusal = Some(error.to_string());
                    self.attach_as(&interface, ActiveMode::Generic)
                }
                other => other,
            },
        }
    }

    fn attach_as(&mut self, interface: &Interface, mode: ActiveMode) -> Result<ActiveMode, BpfError> {
        let aya_mode = match mode {
            ActiveMode::Native => XdpMode::Driver,
            ActiveMode::Generic => XdpMode::Skb,
        };
        let Interface { name, index, mtu_bytes, .. } = interface;
        let refused =
            |source| BpfError::Refused { interface: name.clone(), mode, mtu_bytes: *mtu_bytes, source };
        let program = self.program_mut();
        let link = program
            .attach_to_if_index(*index, aya_mode)
            .and_then(|id| program.take_link(id))
            .map_err(|error| match attach_errno(&error) {
                Some(Errno::PERM) => BpfError::Privilege { action: format!("attach to {name}") },
                Some(Errno::NODEV) => NetlinkError::NoSuchIndex { index: *index }.into(),
                Some(errno @ (Errno::BUSY | Errno::EXIST)) => {
                    occupied(interface).unwrap_or_else(|| refused(errno.into()))
                }
                Some(errno) => refused(errno.into()),
                None => refused(std::io::Error::other(chain(&error))),
            })?;
        // Without a bpf_link aya attaches through netlink, and that would outlive a killed process.
        let link = FdLink::try_from(link).map_err(|_| refused(Errno::OPNOTSUPP.into()))?;
        let attachment = Attachment { interface: name.clone(), index: *index, mode, _link: link };
        self.attachment = Some(attachment);
        Ok(mode)
    }

    /// Takes the program off its interface and attaches it there again, in the same mode: a veth has its
    /// queues that have come since go without (`drivers/net/veth.c: veth_enable_range_safe`). Frames pass
    /// up meanwhile.
    ///
    /// # Errors
    /// Errors of [`XdpProgram::attach`]: the program is not attached any more.
    pub(crate) fn attach_anew(&mut self) -> Result<(), BpfError> {
        let Some(Attachment { interface, mode, .. }) = self.attachment.take() else { return Ok(()) };
        self.attach_as(&Interface::by_name(&interface)?, mode).map(drop)
    }

    /// Detaches the program from its interface, if it has one. Its maps stay as they are.
    pub fn detach(&mut self) {
        self.attachment = None;
    }

    /// Why the driver would not have the program, where that was tried.
    pub(crate) fn native_refusal(&self) -> Option<String> {
        self.native_refusal.clone()
    }

    /// The interface that the program is attached to.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.attachment.as_ref().map(|attachment| attachment.interface.as_str())
    }

    /// How the program is attached; `None` while it is not.
    #[must_use]
    pub fn mode(&self) -> Option<ActiveMode> {
        self.attachment.as_ref().map(|attachment| attachment.mode)
    }

    /// Sets the number of shards of the node, at most [`SHARDS_MAX`]. With 0, as after loading, all frames
    /// pass up.
    ///
    /// # Errors
    /// [`BpfError::OutOfRange`]; [`BpfError::Map`].
    pub fn set_shards(&mut self, shards: u32) -> Result<(), BpfError> {
        at_most("number of shards", shards, SHARDS_MAX)?;
        write("CONFIG", &mut self.config, CONFIG_SHARDS, shards)
    }

    /// Makes frames to this address and UDP port ours. Adding one twice changes nothing.
    ///
    /// # Errors
    /// [`BpfError::Map`] when there are too many.
    pub fn add_endpoint(&mut self, address: IpAddr, port: u16) -> Result<(), BpfError> {
        let added = endpoint(address, port);
        self.endpoints
            .insert(added, 1, 0)
            .map_err(|error| BpfError::map("ENDPOINTS", format!("add {address} port {port} to"), &error))?;
        let (admission, _) = self.admission;
        if admission.first.is_none() {
            self.admit(Admission { first: Some(added), ..admission })
        } else {
            Ok(())
        }
    }

    /// Passes frames to this address and UDP port up again. Returns whether they were ours.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn remove_endpoint(&mut self, address: IpAddr, port: u16) -> Result<bool, BpfError> {
        let gone = endpoint(address, port);
        let (admission, _) = self.admission;
        if admission.first == Some(gone) {
            let first = self.endpoints.keys().filter_map(Result::ok).find(|other| *other != gone);
            self.admit(Admission { first, ..admission })?;
        }
        removed(self.endpoints.remove(&gone))
            .map_err(|error| BpfError::map("ENDPOINTS", format!("remove {address} port {port} from"), &error))
    }

    /// Makes frames to this Ethernet address ours, and no others any more: the one that the interface has, or
    /// the bond of which it is a slave. After loading none are.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn set_mac(&mut self, mac: Mac) -> Result<(), BpfError> {
        let (admission, _) = self.admission;
        self.admit(Admission { mac: ethernet_address(mac), ..admission })
    }

    /// Changes what the program compares frames with first: in the next entry, and then to that entry. The
    /// kernel writes an entry in pieces, and a run of the program may still read a former one.
    fn admit(&mut self, admission: Admission) -> Result<(), BpfError> {
        let (former, entry) = self.admission;
        if admission == former {
            return Ok(());
        }
        let entry = (entry + 1) % ADMISSIONS_MAX;
        write("ADMISSIONS", &mut self.admissions, entry, admission.words())?;
        // The entry is there for all CPUs before its number is.
        fence(Ordering::Release);
        write("CONFIG", &mut self.config, CONFIG_ADMISSION, entry)?;
        self.admission = (admission, entry);
        Ok(())
    }

    /// Sets how PUTs and GETs to `portal` find their shard. After loading that is `Pin(0)`.
    ///
    /// # Errors
    /// [`BpfError::OutOfRange`] for a portal of 64 or more; [`BpfError::Policy`]; [`BpfError::Map`].
    pub fn set_policy(&mut self, portal: u8, policy: Policy) -> Result<(), BpfError> {
        at_most("portal", u32::from(portal), PORTALS as u32 - 1)?;
        let word = policy.pack().map_err(|reason| BpfError::Policy { portal, reason })?;
        write("POLICIES", &mut self.policies, portal.into(), word.0)
    }

    /// Gives frames of `queue` that belong to `shard` to an `AF_XDP` socket; the map holds a reference of
    /// its own until the slot is cleared or the socket closed.
    ///
    /// The socket must be bound to this queue of this interface: the kernel drops what it is given for
    /// another one.
    ///
    /// # Errors
    /// [`BpfError::OutOfRange`]; [`BpfError::Map`] for a descriptor that is no `AF_XDP` socket with a
    /// receive ring.
    pub fn set_socket(&mut self, queue: u32, shard: u32, socket: impl AsFd) -> Result<(), BpfError> {
        let slot = checked_slot(queue, shard)?;
        let descriptor = socket.as_fd().as_raw_fd();
        self.sockets.set(slot, descriptor, 0).map_err(|error| {
            BpfError::map("XSKS", format!("put the socket of queue {queue}, shard {shard} into"), &error)
        })
    }

    /// Empties a slot, if it is not: its frames pass up from now on.
    ///
    /// # Errors
    /// [`BpfError::OutOfRange`]; [`BpfError::Map`].
    pub fn clear_socket(&mut self, queue: u32, shard: u32) -> Result<(), BpfError> {
        let slot = checked_slot(queue, shard)?;
        self.sockets
            .unset(slot)
            .map_err(|error| BpfError::map("XSKS", format!("clear queue {queue}, shard {shard} in"), &error))
    }

    /// Sets the fault rule of frames of `message_type`: how many of a million, chosen at random, are
    /// dropped, and how many of the rest have one byte of their UDP payload changed. 0 and 0, as after
    /// loading, is no rule.
    ///
    /// # Errors
    /// [`BpfError::NoFrameType`] for `Hello`; [`BpfError::OutOfRange`]; [`BpfError::Map`].
    pub fn set_fault(
        &mut self,
        message_type: MessageType,
        drop_per_million: u32,
        corrupt_per_million: u32,
    ) -> Result<(), BpfError> {
        self.faults.set(message_type, drop_per_million, corrupt_per_million)
    }

    /// Sets how many of a million frames that come by the interface, whatever they carry and to whatever
    /// address, are dropped: neither shards nor the kernel see them. Replaces all other fault rules; 0 is no
    /// rule.
    ///
    /// # Errors
    /// [`BpfError::OutOfRange`]; [`BpfError::Map`].
    pub fn set_loss(&mut self, drop_per_million: u32) -> Result<(), BpfError> {
        self.faults.set_loss(drop_per_million)
    }

    /// Turns log lines for refused frames on or off; off after loading.
    ///
    /// # Errors
    /// [`BpfError::NoLogging`] with an object that cannot; [`BpfError::Map`].
    pub fn set_logging(&mut self, on: bool) -> Result<(), BpfError> {
        if !self.can_log {
            return Err(BpfError::NoLogging);
        }
        write("CONFIG", &mut self.config, CONFIG_LOG, on.into())
    }

    /// The program's log, to be forwarded by the caller. There is one.
    ///
    /// # Errors
    /// [`BpfError::NoLogging`] with an object that cannot; [`BpfError::LogTaken`] the second time.
    pub fn take_log(&mut self) -> Result<LogPump, BpfError> {
        if self.can_log { LogPump::new(&mut self.ebpf) } else { Err(BpfError::NoLogging) }
    }

    /// What the program counted since it was loaded. Costs a few thousand system calls, some milliseconds.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn counters(&self) -> Result<Counters, BpfError> {
        Counters::read(&self.slot_frames, &self.reason_frames)
    }

    /// Outline of the frames of the first so many queues and shards.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub(crate) fn outline(&self, queues: u32, shards: u32) -> Result<Outline, BpfError> {
        Counters::outline(&self.slot_frames, &self.reason_frames, (queues, shards))
    }

    /// Frames that the program saw, other than those that were redirected. Costs some thousand system calls.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub(crate) fn passed(&self) -> Result<u64, BpfError> {
        Counters::passed(&self.reason_frames)
    }

    /// Instructions that the kernel's verifier walked through before it took the program; `None` from
    /// kernels before 5.16.
    #[must_use]
    pub fn verified_instructions(&self) -> Option<u32> {
        self.program().info().ok()?.verified_instruction_count()
    }

    /// Runs the program once on `frame` with the kernel's test facility: counters count, but the frame
    /// goes nowhere. `after`, if given, receives the frame's bytes as the program left them and must be as
    /// long as the frame.
    ///
    /// # Errors
    /// [`BpfError::TestRun`] for a frame that is too short or too long, or a queue that the attached
    /// interface does not have.
    pub fn test_run(&self, frame: &TestFrame<'_>, after: Option<&mut [u8]>) -> Result<Action, BpfError> {
        let index = self.attachment.as_ref().map_or(0, |attachment| attachment.index);
        let context = frame.context(index);
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame.bytes);
        options.data_out = after;
        options.ctx_in = Some(&context);
        match self.program().test_run(options) {
            Ok(result) => Ok(Action::from(result.return_value)),
            Err(error) => Err(BpfError::TestRun {
                frame_bytes: frame.bytes.len(),
                queue: frame.queue,
                source: errno_of(&error).map_or_else(|| std::io::Error::other(chain(&error)), Into::into),
            }),
        }
    }

    // `load` has looked both up already.
    fn program(&self) -> &Xdp {
        let program = self.ebpf.program(self.name).map(TryInto::try_into);
        let Some(Ok(program)) = program else { unreachable!("{} was loaded", self.name) };
        program
    }

    fn program_mut(&mut self) -> &mut Xdp {
        let program = self.ebpf.program_mut(self.name).map(TryInto::try_into);
        let Some(Ok(program)) = program else { unreachable!("{} was loaded", self.name) };
        program
    }
}

pub(super) fn write<V: Pod>(
    name: &'static str,
    map: &mut Array<MapData, V>,
    index: u32,
    value: V,
) -> Result<(), BpfError> {
    map.set(index, value, 0).map_err(|error| BpfError::map(name, "write", &error))
}

fn take<M: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    object: &Object,
    name: &'static str,
) -> Result<M, BpfError> {
    let map = ebpf.take_map(name).ok_or_else(|| "missing".to_owned());
    let map = map.and_then(|map| M::try_from(map).map_err(|error| chain(&error)));
    map.map_err(|reason| BpfError::ObjectInvalid {
        object: object.clone(),
        reason: format!("map {name}: {reason}"),
    })
}

/// Does it again while the verifier was interrupted (`EAGAIN` of `signal_pending` in `do_check`): work that
/// io_uring has for a thread counts as a signal. Gives up in the end, as what interrupts may go on.
///
/// # Errors
/// The last one.
fn uninterrupted<T, E>(
    mut load: impl FnMut() -> Result<T, E>,
    errno_of: impl Fn(&E) -> Option<Errno>,
) -> Result<T, E> {
    let mut loaded = load();
    for _ in 1..LOADS_MAX {
        match &loaded {
            Err(error) if errno_of(error) == Some(Errno::AGAIN) => {
                std::thread::sleep(LOAD_INTERVAL);
                loaded = load();
            }
            _ => break,
        }
    }
    loaded
}

fn object_error(object: &Object, error: &EbpfError) -> BpfError {
    match errno_of(error) {
        Some(Errno::PERM) => BpfError::Privilege { action: "load the XDP program".to_owned() },
        _ => BpfError::ObjectInvalid { object: object.clone(), reason: chain(error) },
    }
}

fn load_error(object: &Object, error: ProgramError) -> BpfError {
    // Without this capability the verifier refuses sums of pointers, and says so as of any bad program.
    let is_trusted = || {
        let sets = rustix::thread::capabilities(None);
        sets.is_ok_and(|sets| sets.effective.intersects(CapabilitySet::PERFMON | CapabilitySet::SYS_ADMIN))
    };
    match errno_of(&error) {
        Some(Errno::PERM) => return BpfError::Privilege { action: "load the XDP program".to_owned() },
        Some(Errno::ACCESS) if !is_trusted() => {
            return BpfError::Privilege { action: "load the XDP program".to_owned() };
        }
        _ => {}
    }
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            if KernelVersion::current().is_ok_and(|kernel| kernel < KernelVersion::new(5, 18, 0)) {
                let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
                return BpfError::FragsUnsupported { kernel };
            }
            BpfError::Verifier { log: last_lines(&verifier_log.to_string()), source: io_error }
        }
        other => BpfError::ObjectInvalid { object: object.clone(), reason: chain(&other) },
    }
}

/// The end of a verifier log, where it says what it refuses.
fn last_lines(log: &str) -> String {
    const SHOWN: usize = 12;
    let lines: Vec<_> = log.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

fn attach_errno(error: &ProgramError) -> Option<Errno> {
    match error {
        ProgramError::XdpError(XdpError::NetlinkError(error)) | ProgramError::NetlinkError(error) => {
            error.raw_os_error().map(Errno::from_raw_os_error)
        }
        other => errno_of(other),
    }
}

/// Names the program that an interface has; `None` if it has none, as a macvlan's parent, whose refusal has
/// another cause. Where the program came since the interface was looked at, its id is looked up again.
fn occupied(interface: &Interface) -> Option<BpfError> {
    let now = || Interface::by_name(&interface.name).ok()?.xdp_program_id;
    let program_id = interface.xdp_program_id.or_else(now)?;
    Some(BpfError::Occupied { interface: interface.name.clone(), program_id })
}

fn removed(result: Result<(), MapError>) -> Result<bool, MapError> {
    match result {
        Ok(()) => Ok(true),
        Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(false),
        Err(error) if errno_of(&error) == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn checked_slot(queue: u32, shard: u32) -> Result<u32, BpfError> {
    at_most("queue", queue, QUEUES_MAX - 1)?;
    at_most("shard", shard, SHARDS_MAX - 1)?;
    Ok(slot_of(queue, shard))
}

pub(super) fn at_most(what: &'static str, value: u32, max: u32) -> Result<(), BpfError> {
    if value <= max {
        Ok(())
    } else {
        Err(BpfError::OutOfRange { what, value: u64::from(value), max: u64::from(max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_stay_within_the_map() {
        assert_eq!(checked_slot(63, 63).unwrap(), 4095);
        assert_eq!(checked_slot(2, 5).unwrap(), 133);
        let text = checked_slot(64, 0).unwrap_err().to_string();
        assert_eq!(text, "queue 64 is out of range: at most 63");
        assert!(checked_slot(0, 64).is_err());
    }

    #[test]
    fn a_file_that_is_no_object_is_refused_by_name() {
        let path = std::env::temp_dir().join(format!("lnet-user-not-an-object-{}", std::process::id()));
        std::fs::write(&path, b"not an ELF file").unwrap();
        let object = Object::File(path.clone());
        let error = XdpProgram::load(&object).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(
            matches!(&error, BpfError::ObjectInvalid { object: named, .. } if *named == object),
            "{error}"
        );
        assert!(matches!(XdpProgram::load(&object).unwrap_err(), BpfError::ObjectUnreadable { .. }));
    }

    #[test]
    fn a_load_that_was_interrupted_is_tried_again_and_no_other() {
        let check = |outcomes: &[Result<u8, Errno>], expected, count| {
            let (mut left, mut loads) = (outcomes.iter().copied(), 0);
            let load = || {
                loads += 1;
                left.next().unwrap_or(Err(Errno::AGAIN))
            };
            assert_eq!(uninterrupted(load, |error| Some(*error)), expected);
            assert_eq!(loads, count);
        };
        check(&[Ok(1)], Ok(1), 1);
        check(&[Err(Errno::AGAIN), Err(Errno::AGAIN), Ok(2)], Ok(2), 3);
        check(&[Err(Errno::AGAIN), Err(Errno::PERM), Ok(3)], Err(Errno::PERM), 2);
        check(&[], Err(Errno::AGAIN), LOADS_MAX);
    }

    #[test]
    fn the_end_of_a_verifier_log_is_kept() {
        let log: String = (0..40).map(|line| format!("{line}\n\n")).collect();
        assert_eq!(last_lines(&log).lines().next(), Some("28"));
        assert_eq!(last_lines(&log).lines().last(), Some("39"));
    }
}
