//! The maps that the program shares with `lnet-user`. Their names and layouts are a contract with
//! `lnet-user`'s `bpf` module.

use aya_ebpf::bindings::xdp_action;
use aya_ebpf::btf_maps::{Array, HashMap, PerCpuArray, XskMap};
use aya_ebpf::macros::btf_map;
use lnet_wire::packet::{self, Endpoint, Located, Reason};
use lnet_wire::steer::{PORTALS, PolicyWord, QUEUES_MAX, SLOTS};
use lnet_wire::verdict::Tables;

/// Addresses that the node's NIs may have on one interface.
const ENDPOINTS_MAX: usize = 1024;
/// Entries of [`CONFIG`].
const CONFIG_ENTRIES: usize = 8;
/// Entry of [`CONFIG`]: shards of the node.
const CONFIG_SHARDS: u32 = 0;
/// Entry of [`CONFIG`]: other than 0 when refusals are logged.
#[cfg(feature = "log")]
const CONFIG_LOG: u32 = 1;
/// Entry of [`CONFIG`]: which one of [`ADMISSIONS`] holds.
const CONFIG_ADMISSION: u32 = 2;
/// Entries of [`ADMISSIONS`], a power of two.
const ADMISSIONS_MAX: u32 = 16;
/// Classes of [`FAULTS`]: the LNet message types, with room for more; the last is [`FAULT_OTHERS`].
const FAULT_CLASSES: usize = 8;
/// Class of [`FAULTS`]: all frames that are not steered. They are not corrupted.
const FAULT_OTHERS: u32 = FAULT_CLASSES as u32 - 1;
/// Entries of [`REASON_FRAMES`] per queue.
const REASONS_PER_QUEUE: u32 = 32;
/// One row per queue that steering reaches and a last one for all queues beyond.
const REASON_ENTRIES: u32 = (QUEUES_MAX + 1) * REASONS_PER_QUEUE;

const _: () = assert!(Reason::ALL.len() <= REASONS_PER_QUEUE as usize);

/// Socket of each slot, see [`lnet_wire::steer::slot_of`].
#[btf_map]
static XSKS: XskMap<{ SLOTS as usize }> = XskMap::new();

/// Whose frames are admitted, in words: the Ethernet address of the interface, and the endpoint that most
/// frames are for, or zeros; comparing with it costs nothing next to hashing.
type Admission = [u32; 7];

/// The node's own endpoints.
#[btf_map]
static ENDPOINTS: HashMap<Endpoint, u32, ENDPOINTS_MAX> = HashMap::new();

/// The admission that holds, and former ones. The kernel writes an entry in pieces, so a change is written to
/// the next one, and then a byte of [`CONFIG`] says that it holds: a frame meets all of it or nothing.
#[btf_map]
static ADMISSIONS: Array<Admission, { ADMISSIONS_MAX as usize }> = Array::new();

/// Packed policy of each portal.
#[btf_map]
static POLICIES: Array<u64, PORTALS> = Array::new();

/// Settings, see `CONFIG_*`.
#[btf_map]
static CONFIG: Array<u32, CONFIG_ENTRIES> = Array::new();

/// Per class the frames of a million to drop (low 32 bits) and to corrupt (high 32 bits).
#[btf_map]
static FAULTS: Array<u64, FAULT_CLASSES> = Array::new();

/// Frames redirected to each slot.
#[btf_map]
static SLOT_FRAMES: PerCpuArray<u64, { SLOTS as usize }> = PerCpuArray::new();

/// Frames counted under each [`Reason`], per queue.
#[btf_map]
static REASON_FRAMES: PerCpuArray<u64, { REASON_ENTRIES as usize }> = PerCpuArray::new();

/// What `steer` looks up, in the maps.
pub(crate) struct MapTables;

impl Tables for MapTables {
    #[inline(always)]
    fn is_ours(&self, Located { mac, destination, .. }: &Located) -> bool {
        let admission = ADMISSIONS.get(config(CONFIG_ADMISSION) & (ADMISSIONS_MAX - 1));
        let Some([low, high, first @ ..]) = admission else { return false };
        packet::is_same(&[*low, *high], mac)
            && (packet::is_same(first, destination) || ENDPOINTS.get_ptr(destination).is_some())
    }

    #[inline(always)]
    fn policy(&self, portal: u8) -> PolicyWord {
        PolicyWord(POLICIES.get(u32::from(portal)).copied().unwrap_or_default())
    }

    #[inline(always)]
    fn shards(&self) -> u32 {
        config(CONFIG_SHARDS)
    }
}

#[inline(always)]
fn config(entry: u32) -> u32 {
    CONFIG.get(entry).copied().unwrap_or_default()
}

/// Whether refusals are to be logged.
#[cfg(feature = "log")]
#[inline(always)]
pub(crate) fn log_enabled() -> bool {
    config(CONFIG_LOG) != 0
}

/// The fault rule of a class, in the form of [`FAULTS`].
#[inline(always)]
pub(crate) fn fault(class: u32) -> u64 {
    FAULTS.get(class).copied().unwrap_or_default()
}

/// The fault rule of frames that are not steered.
#[inline(always)]
pub(crate) fn fault_of_others() -> u64 {
    fault(FAULT_OTHERS)
}

/// Makes the kernel deliver the frame to the slot's socket; false when the slot is empty.
#[inline(always)]
pub(crate) fn redirect(slot: u32) -> bool {
    XSKS.redirect(slot, u64::from(xdp_action::XDP_PASS)).is_ok()
}

/// Counts a frame that went to `slot`.
#[inline(always)]
pub(crate) fn count_slot(slot: u32) {
    increment(SLOT_FRAMES.get_ptr_mut(slot));
}

/// Counts a frame under `reason`.
#[inline(always)]
pub(crate) fn count_reason(queue: u32, reason: Reason) {
    let row = queue.min(QUEUES_MAX);
    increment(REASON_FRAMES.get_ptr_mut(row * REASONS_PER_QUEUE + reason as u32));
}

#[inline(always)]
fn increment(counter: Option<*mut u64>) {
    let Some(counter) = counter else { return };
    // SAFETY: the lookup returned this CPU's own value, and programs do not preempt each other on it.
    let value = unsafe { counter.read() };
    // SAFETY: as above.
    unsafe { counter.write(value.wrapping_add(1)) };
}
