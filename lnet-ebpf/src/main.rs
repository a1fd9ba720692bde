//! The XDP program of an interface: it gives each frame of the `xdp` LND to the `AF_XDP` socket of the
//! shard that owns it, and passes everything else up.
//!
//! What a frame is and which shard owns it, `lnet_wire::steer` says, the same code as on the host. This
//! crate adds where the bytes and tables are, the fault rules and the counters. Invariants: a frame is
//! dropped or changed by a fault rule and by nothing else; a frame that is not ours, or whose slot holds no
//! socket, passes up; maps hold integers and arrays of them only.
#![no_std]
#![no_main]
// Packet loads and map values are raw pointers here, and only the kernel's verifier can prove them.
#![allow(unsafe_code)]
// The entry point's wrapper is public because the macro makes it so, and no crate links this one.
#![allow(missing_docs, unreachable_pub)]

use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers::bpf_get_prandom_u32;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use lnet_wire::packet::{self, Reason};
use lnet_wire::steer;
use lnet_wire::verdict::{self, Verdict};

mod linear;
#[cfg(feature = "log")]
mod log;
mod maps;

use linear::Linear;
use maps::MapTables;

/// Decides about one frame.
#[xdp(frags)]
pub(crate) fn lnet_xdp(context: XdpContext) -> u32 {
    let queue = context.rx_queue_index();
    let packet = Linear::new(&context);
    match verdict::steer(&packet, queue, &MapTables) {
        Verdict::Pass(reason) => {
            let fault = maps::fault_of_others();
            if fault != 0 && chosen(fault as u32) {
                maps::count_reason(queue, Reason::FaultDropped);
                return xdp_action::XDP_DROP;
            }
            pass(&context, queue, reason)
        }
        Verdict::Redirect { shard, key } => {
            let fault = maps::fault(key.message_type as u32);
            if fault != 0 {
                if chosen(fault as u32) {
                    maps::count_reason(queue, Reason::FaultDropped);
                    return xdp_action::XDP_DROP;
                }
                // The key was read before, so that a changed key cannot change the shard.
                if chosen((fault >> 32) as u32) && corrupt(context.ctx) != 0 {
                    maps::count_reason(queue, Reason::FaultCorrupted);
                }
            }
            let slot = steer::slot_of(queue, shard);
            if maps::redirect(slot) {
                maps::count_slot(slot);
                xdp_action::XDP_REDIRECT
            } else {
                pass(&context, queue, Reason::NoSocket)
            }
        }
    }
}

/// The baseline of benches: every frame to the socket of shard 0 on its queue, unseen and uncounted.
#[xdp(frags)]
pub(crate) fn lnet_baseline(context: XdpContext) -> u32 {
    let queue = context.rx_queue_index();
    let redirected = queue < steer::QUEUES_MAX && maps::redirect(steer::slot_of(queue, 0));
    if redirected { xdp_action::XDP_REDIRECT } else { xdp_action::XDP_PASS }
}

#[inline(always)]
fn pass(context: &XdpContext, queue: u32, reason: Reason) -> u32 {
    maps::count_reason(queue, reason);
    #[cfg(feature = "log")]
    log::refusal(context, queue, reason);
    #[cfg(not(feature = "log"))]
    let _ = context;
    xdp_action::XDP_PASS
}

/// True `per_million` times in a million.
#[inline(always)]
fn chosen(per_million: u32) -> bool {
    // A product instead of a remainder: it maps the 32 random bits evenly and needs no division.
    let random = u64::from(random());
    (random * 1_000_000) >> 32 < u64::from(per_million)
}

#[inline(always)]
fn random() -> u32 {
    // SAFETY: the helper takes no arguments and may be called in any program.
    unsafe { bpf_get_prandom_u32() }
}

/// Changes one byte, chosen at random, of the UDP payload as far as the program can reach it. Returns
/// whether it did. A function of its own, since rules of this kind are rare and finding the payload again
/// is cheaper than carrying its place through every frame.
#[inline(never)]
fn corrupt(context: *mut xdp_md) -> u32 {
    let packet = Linear::new(&XdpContext::new(context));
    let Ok(located) = packet::locate(&packet) else { return 0 };
    let reach = packet.linear_length().saturating_sub(located.payload_offset).min(located.payload_length);
    let index = (u64::from(random()) * reach as u64) >> 32;
    let change = (random() % 255) as u8 + 1;
    u32::from(packet.change(located.payload_offset + index as usize, change))
}

/// Never runs: the verifier refuses the program if anything that could panic is reachable.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// No helper that the program calls asks for a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 18] = *b"MIT OR Apache-2.0\0";
