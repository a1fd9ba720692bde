//! What can go wrong with the XDP program.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use aya::maps::MapError;
use aya::programs::ProgramError;
use lnet_io::netlink::NetlinkError;
use lnet_wire::steer::PolicyError;
use rustix::io::Errno;

use super::Object;
use super::program::ActiveMode;

/// Why the XDP program cannot be loaded, attached or configured. Messages name the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The file that was named as the object cannot be read.
    #[error(
        "cannot read {}, named as the object of the XDP program ({} or NodeConfig::bpf_object): {source}; without \
         it the built-in one is loaded",
        path.display(), super::OBJECT_VARIABLE
    )]
    ObjectUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The bytes are not an object of this program, or of another version of it.
    #[error("{object} is no XDP program of this version: {reason}; `cargo xtask build-ebpf` builds it")]
    ObjectInvalid {
        /// The object.
        object: Object,
        /// What about it.
        reason: String,
    },
    /// The kernel refused for want of privileges.
    #[error(
        "cannot {action}: not permitted; run as root or with CAP_BPF and CAP_NET_ADMIN, and CAP_PERFMON where \
         the CPU has mitigations (the verifier allows sums of pointers to that alone)"
    )]
    Privilege {
        /// What was attempted.
        action: String,
    },
    /// The kernel is older than XDP programs for frames of several buffers.
    #[error(
        "kernel {kernel} does not know multi-buffer XDP (section xdp.frags); rings need Linux 6.1 or later, mode `socket` does not"
    )]
    FragsUnsupported {
        /// Its release, as `uname -r` prints it.
        kernel: String,
    },
    /// The kernel's verifier refused the program.
    #[error("the kernel refused the XDP program ({source}): {log}")]
    Verifier {
        /// The last lines of the verifier's log.
        log: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The interface is not there, or none that frames come by.
    #[error(transparent)]
    Interface(#[from] NetlinkError),
    /// Another XDP program is attached.
    #[error(
        "{interface} has XDP program id {program_id} already; `ip link set dev {interface} xdp off` removes it \
         (one held by a process goes when that ends)"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// The id of its program, as `ip link` shows it.
        program_id: u32,
    },
    /// This program is attached to an interface; one program serves one.
    #[error("this program is attached to {interface}; load another one for another interface")]
    AlreadyAttached {
        /// Where it is.
        interface: String,
    },
    /// No program of this kind is attached.
    #[error("{interface} has no XDP program of lnet: a node attaches one with its first NI over rings there")]
    NotAttached {
        /// The interface.
        interface: String,
    },
    /// The driver or the kernel refused to attach.
    #[error("{interface} (mtu {mtu_bytes}) refuses XDP in {mode} mode: {source}; {}", hint(*mode, source))]
    Refused {
        /// The interface.
        interface: String,
        /// The mode that was asked for.
        mode: ActiveMode,
        /// Its MTU.
        mtu_bytes: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// A map operation failed.
    #[error("cannot {action} map {map}: {reason}")]
    Map {
        /// The map.
        map: &'static str,
        /// What was attempted.
        action: String,
        /// Why not.
        reason: String,
    },
    /// A number beyond what the maps hold.
    #[error("{what} {value} is out of range: at most {max}")]
    OutOfRange {
        /// What it counts.
        what: &'static str,
        /// The number.
        value: u64,
        /// The largest that is taken.
        max: u64,
    },
    /// A message type that frames never carry.
    #[error("message type {message_type:?} never crosses the interface as a frame")]
    NoFrameType {
        /// The type.
        message_type: lnet_wire::MessageType,
    },
    /// A portal policy that does not pack.
    #[error("policy of portal {portal}: {reason:?}")]
    Policy {
        /// The portal.
        portal: u8,
        /// What about it.
        reason: PolicyError,
    },
    /// The loaded object is the one without log lines.
    #[error("the loaded object cannot log; the built-in one for logging can, and lnet-log.bpf.o")]
    NoLogging,
    /// The log is being pumped already.
    #[error("the log of this program is taken")]
    LogTaken,
    /// The kernel's test facility refused a frame.
    #[error("the kernel's test facility refused {frame_bytes} bytes on queue {queue}: {source}")]
    TestRun {
        /// Bytes of the frame.
        frame_bytes: usize,
        /// The queue it should arrive on.
        queue: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// Reading the log failed.
    #[error("cannot read the log of the XDP program: {0}")]
    Log(#[source] io::Error),
}

impl BpfError {
    /// Whether root, or the capabilities that the message names, would have helped.
    #[must_use]
    pub const fn is_privilege(&self) -> bool {
        matches!(self, Self::Privilege { .. })
    }

    pub(super) fn map(map: &'static str, action: impl Into<String>, error: &MapError) -> Self {
        let action = action.into();
        match errno_of(error) {
            Some(Errno::PERM) => Self::Privilege { action: format!("{action} map {map}") },
            _ => Self::Map { map, action, reason: chain(error) },
        }
    }
}

fn hint(mode: ActiveMode, error: &io::Error) -> &'static str {
    match (mode, Errno::from_io_error(error)) {
        (ActiveMode::Native, Some(Errno::OPNOTSUPP)) => {
            "its driver has no native XDP, or not for this MTU or with LRO or hardware GRO on \
             (`ethtool -K`); mode generic works with every driver"
        }
        (ActiveMode::Native, _) => {
            "native XDP may need a smaller MTU, LRO and hardware GRO off (`ethtool -K`), or spare \
             channels (`ethtool -L`; on veth no fewer rx than the peer's tx queues); mode generic works \
             with every driver"
        }
        (ActiveMode::Generic, _) => "generic XDP needs LRO and hardware GRO off (`ethtool -K`)",
    }
}

/// The errno somewhere below an error of aya.
pub(super) fn errno_of(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        let io_error = error
            .downcast_ref::<io::Error>()
            .or_else(|| match error.downcast_ref::<MapError>() {
                Some(MapError::IoError(inner)) => Some(inner),
                Some(MapError::SyscallError(inner)) => Some(&inner.io_error),
                _ => None,
            })
            .or_else(|| match error.downcast_ref::<ProgramError>() {
                Some(ProgramError::IOError(inner)) => Some(inner),
                Some(ProgramError::SyscallError(inner)) => Some(&inner.io_error),
                _ => None,
            });
        if let Some(errno) = io_error.and_then(Errno::from_io_error) {
            return Some(errno);
        }
        next = error.source();
    }
    None
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_value_and_the_way_out() {
        let refused = BpfError::Refused {
            interface: "eth7".into(),
            mode: ActiveMode::Native,
            mtu_bytes: 9000,
            source: Errno::OPNOTSUPP.into(),
        };
        let occupied = BpfError::Occupied { interface: "eth7".into(), program_id: 42 };
        let privilege = BpfError::Privilege { action: "load the XDP program".into() };
        for (error, parts) in [
            (&refused, ["eth7", "mtu 9000", "mode generic"]),
            (&occupied, ["eth7", "id 42", "ip link set dev eth7 xdp off"]),
            (&privilege, ["load the XDP program", "CAP_BPF and CAP_NET_ADMIN", "CAP_PERFMON"]),
        ] {
            let text = error.to_string();
            for part in parts {
                assert!(text.contains(part), "{part:?} is not in {text:?}");
            }
        }
        assert!(privilege.is_privilege() && !occupied.is_privilege());
    }

    #[test]
    fn errno_is_found_behind_wrappers() {
        let error = MapError::IoError(Errno::PERM.into());
        assert_eq!(errno_of(&error), Some(Errno::PERM));
        let error = MapError::CreateError { name: "XSKS".into(), io_error: Errno::INVAL.into() };
        assert_eq!(errno_of(&error), Some(Errno::INVAL));
        assert_eq!(errno_of(&MapError::KeyNotFound), None);
        assert!(BpfError::map("XSKS", "write", &MapError::IoError(Errno::PERM.into())).is_privilege());
    }
}
