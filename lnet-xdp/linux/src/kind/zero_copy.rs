//! The choice of zero copy, and what follows from it for the frames of an interface. No I/O.

use std::fmt;

use lnet_io::netlink::XdpFeatures;
use lnet_io::xsk::{Binding, FRAGMENTS_MAX, RECEIVE_BYTES};
use lnet_model::lnd::ZeroCopy;
use lnet_wire::packet::ETHERNET_BYTES;
use rustix::io::Errno;

use crate::bpf::ActiveMode;

/// Bytes of the tag that a frame may have besides its Ethernet header.
const TAG_BYTES: usize = 4;
/// Bytes of a frame in one page, as drivers lay it out for programs: behind room for headers, before what
/// the stack keeps there (net/core: `XDP_PACKET_HEADROOM`, `skb_shared_info`). A longer one comes in pieces.
const PAGE_FRAME_BYTES: usize = 4096 - 256 - 320;

/// Facts by which zero copy is chosen for an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The option of the NI.
    pub(super) option: ZeroCopy,
    /// How the XDP program is attached.
    pub(super) mode: ActiveMode,
    pub(super) mtu_bytes: usize,
    /// Word of the device; `None` where the kernel does not tell: a bind asks there.
    pub(super) features: Option<XdpFeatures>,
}

/// Why an interface has zero copy, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The driver says that it has it.
    Features,
    /// The kernel does not tell of drivers, and a bind succeeded.
    Bound,
    /// The option is `off`.
    Off,
    /// The program runs in the kernel's network stack.
    Generic,
    /// The driver says that it has none.
    NoFeature,
    /// A frame is longer than the buffers that one may have.
    Mtu { mtu_bytes: usize, buffers: u32 },
    /// A bind was refused.
    Refused(Errno),
    /// Rings with zero copy were deaf.
    Deaf,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Features => f.write_str("the driver has it"),
            Self::Bound => f.write_str("the driver takes it"),
            Self::Off => f.write_str("zero_copy is off"),
            Self::Generic => f.write_str("the XDP program is in generic mode"),
            Self::NoFeature => f.write_str("the driver has none"),
            Self::Mtu { mtu_bytes, buffers: 1 } => {
                write!(f, "frames of MTU {mtu_bytes} take more than one buffer of {RECEIVE_BYTES} bytes")
            }
            Self::Mtu { mtu_bytes, buffers } => write!(
                f,
                "frames of MTU {mtu_bytes} take more than the driver's {buffers} buffers of {RECEIVE_BYTES} bytes"
            ),
            Self::Deaf => f.write_str("rings with it were deaf"),
            // Kernels answer so that do not tell of drivers.
            Self::Refused(Errno::OPNOTSUPP) => Self::NoFeature.fmt(f),
            Self::Refused(errno) => write!(f, "the driver refuses it ({errno})"),
        }
    }
}

/// How the rings of an interface are to be, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chosen {
    pub(super) binding: Binding,
    pub(super) reason: Reason,
    mode: ActiveMode,
    /// Descriptors of a frame at most.
    descriptors_max: u32,
}

/// Chooses whether an interface has zero copy.
///
/// # Errors
/// The reason why it has none, where it must.
pub(super) fn choose(asked: &Asked) -> Result<Chosen, Reason> {
    let against = |reason| match asked.option {
        ZeroCopy::On => Err(reason),
        ZeroCopy::Auto | ZeroCopy::Off => Ok(Chosen::copying(asked.mode, reason)),
    };
    if asked.option == ZeroCopy::Off {
        return against(Reason::Off);
    }
    if asked.mode == ActiveMode::Generic {
        return against(Reason::Generic);
    }
    let (buffers, reason) = match asked.features {
        None => (1, Reason::Bound),
        Some(XdpFeatures { zero_copy_segments: None, .. }) => return against(Reason::NoFeature),
        Some(XdpFeatures { zero_copy_segments: Some(segments), .. }) => {
            (segments.min(FRAGMENTS_MAX), Reason::Features)
        }
    };
    let frame_bytes = asked.mtu_bytes + ETHERNET_BYTES + TAG_BYTES;
    // A frame of one buffer does without what some drivers lack; so one that has it takes it for longer ones.
    let multi_buffer = frame_bytes > RECEIVE_BYTES as usize && buffers > 1;
    if frame_bytes > buffers as usize * RECEIVE_BYTES as usize {
        return against(Reason::Mtu { mtu_bytes: asked.mtu_bytes, buffers });
    }
    let binding = Binding { zero_copy: true, multi_buffer };
    let descriptors_max = if multi_buffer { buffers } else { 1 };
    Ok(Chosen { binding, reason, mode: asked.mode, descriptors_max })
}

impl Chosen {
    /// Rings whose frames the kernel copies.
    pub(super) fn copying(mode: ActiveMode, reason: Reason) -> Self {
        Self { binding: Binding::COPY, reason, mode, descriptors_max: FRAGMENTS_MAX }
    }

    /// The choice for queues that come once the program is attached: without zero copy. A driver may take
    /// them away with the program, and the kernel cannot end zero copy on queues that are not there: virtio's
    /// goes on with memory that is gone, and the host panics (seen with Linux 7.2,
    /// drivers/net/virtio_net.c: `virtnet_xsk_pool_disable`).
    pub(super) fn of_further_queues(&self) -> Self {
        match self.binding.zero_copy {
            true => Self::copying(self.mode, self.reason.clone()),
            false => self.clone(),
        }
    }

    /// The choice with what the kernel gave of it.
    pub(super) fn given(mut self, binding: Binding) -> Self {
        if !binding.multi_buffer {
            self.descriptors_max = 1;
        }
        self.binding = binding;
        self
    }

    /// The choice with the mode in which the program was attached.
    pub(super) fn given_mode(self, mode: ActiveMode) -> Self {
        Self { mode, ..self }
    }

    /// Descriptors of a frame at most.
    pub(super) fn descriptors_max(&self) -> usize {
        self.descriptors_max as usize
    }

    /// Bytes of a frame at most, in rings that hold `rings_bytes` of one.
    pub(super) fn frame_max_bytes(&self, rings_bytes: usize) -> usize {
        let Binding { zero_copy, multi_buffer } = self.binding;
        let one_page = !zero_copy && !multi_buffer && self.mode == ActiveMode::Native;
        let buffer_bytes = if one_page { PAGE_FRAME_BYTES } else { RECEIVE_BYTES as usize };
        rings_bytes.min(self.descriptors_max() * buffer_bytes)
    }
}

impl fmt::Display for Chosen {
    /// Writes the choice in force as `net show` has it: with the longest frame where the MTU may exceed it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", if self.binding.zero_copy { "on" } else { "off" }, self.reason)?;
        match self.descriptors_max {
            1 => write!(f, "; frames of {} bytes at most", self.frame_max_bytes(usize::MAX)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_come_later_have_no_zero_copy() {
        let first = choose(&asked(ZeroCopy::Auto, 1500, ONE_BUFFER)).unwrap();
        assert!(first.binding.zero_copy && first.of_further_queues().binding == Binding::COPY);
        let single = Binding { multi_buffer: false, ..Binding::COPY };
        let copying = Chosen::copying(ActiveMode::Native, Reason::Off).given(single);
        assert_eq!(copying.of_further_queues(), copying);
    }

    const ONE_BUFFER: Option<XdpFeatures> = features(Some(1));

    const fn features(zero_copy_segments: Option<u32>) -> Option<XdpFeatures> {
        Some(XdpFeatures { native: true, zero_copy_segments })
    }

    fn asked(option: ZeroCopy, mtu_bytes: usize, features: Option<XdpFeatures>) -> Asked {
        Asked { option, mode: ActiveMode::Native, mtu_bytes, features }
    }

    /// The flags, the descriptors and the bytes of a frame, and the words.
    fn chosen(asked: Asked) -> (bool, bool, usize, usize, String) {
        let chosen = choose(&asked).unwrap();
        let Binding { zero_copy, multi_buffer } = chosen.binding;
        (
            zero_copy,
            multi_buffer,
            chosen.descriptors_max(),
            chosen.frame_max_bytes(60_000),
            chosen.to_string(),
        )
    }

    #[test]
    fn zero_copy_is_taken_where_a_buffer_has_a_frame() {
        let with = |mtu| chosen(asked(ZeroCopy::Auto, mtu, ONE_BUFFER));
        let on = "on, the driver has it; frames of 3840 bytes at most";
        assert_eq!(with(1500), (true, false, 1, 3840, on.into()));
        assert_eq!(with(3822), (true, false, 1, 3840, on.into()));
        let off = "off, frames of MTU 3823 take more than one buffer of 3840 bytes";
        assert_eq!(with(3823), (false, true, 18, 60_000, off.into()));
    }

    #[test]
    fn long_frames_have_zero_copy_where_the_driver_takes_several_buffers() {
        let with = |mtu, count| chosen(asked(ZeroCopy::Auto, mtu, features(Some(count))));
        assert_eq!(with(9000, 8), (true, true, 8, 30_720, "on, the driver has it".into()));
        assert_eq!(with(9000, 200).2, 18);
        assert!(!with(1500, 8).1, "one buffer is enough");
        assert!(with(9000, 2).4.starts_with("off, frames of MTU 9000"));
    }

    #[test]
    fn a_bind_asks_where_the_kernel_does_not_tell() {
        let on = "on, the driver takes it; frames of 3840 bytes at most";
        assert_eq!(chosen(asked(ZeroCopy::Auto, 1500, None)), (true, false, 1, 3840, on.into()));
        assert!(!chosen(asked(ZeroCopy::Auto, 9000, None)).0);
    }

    #[test]
    fn the_kernel_copies_where_zero_copy_is_off_or_cannot_be() {
        let off = |words: &str| (false, true, 18, 60_000, format!("off, {words}"));
        assert_eq!(chosen(asked(ZeroCopy::Off, 1500, ONE_BUFFER)), off("zero_copy is off"));
        assert_eq!(chosen(asked(ZeroCopy::Auto, 1500, features(None))), off("the driver has none"));
        let generic = Asked { mode: ActiveMode::Generic, ..asked(ZeroCopy::Auto, 1500, ONE_BUFFER) };
        assert_eq!(chosen(generic), off("the XDP program is in generic mode"));
        let on = |asked: Asked| choose(&Asked { option: ZeroCopy::On, ..asked });
        assert_eq!(on(generic), Err(Reason::Generic));
        assert_eq!(on(asked(ZeroCopy::On, 1500, features(None))), Err(Reason::NoFeature));
        assert!(matches!(on(asked(ZeroCopy::On, 9000, ONE_BUFFER)), Err(Reason::Mtu { .. })));
        assert!(on(asked(ZeroCopy::On, 1500, ONE_BUFFER)).unwrap().binding.zero_copy);
    }

    #[test]
    fn kernels_without_multi_buffer_take_frames_of_one() {
        let given = |mode| {
            let copying = Chosen::copying(mode, Reason::NoFeature);
            copying.given(Binding { zero_copy: false, multi_buffer: false })
        };
        let generic = given(ActiveMode::Generic);
        assert_eq!((generic.descriptors_max(), generic.frame_max_bytes(60_000)), (1, 3840));
        // Drivers give what is longer than a page in pieces, which such a kernel does not redirect.
        assert_eq!(given(ActiveMode::Native).frame_max_bytes(60_000), 3520);
        assert_eq!(given(ActiveMode::Native).frame_max_bytes(2000), 2000);
        assert_eq!(generic.to_string(), "off, the driver has none; frames of 3840 bytes at most");
    }
}
