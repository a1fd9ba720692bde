//! Writing ping information.

use super::{
    BUFFER_BYTES_MAX, COUNT_OFFSET, ENTRIES_MAX, ENTRY_NID_OFFSET, ENTRY_SIZE_OFFSET, ENTRY_STATUS_OFFSET,
    FEATURES_OFFSET, Features, HEADER_BYTES, LARGE_STATUS_BYTES, MAGIC, MAGIC_OFFSET, NiStatus, PID_OFFSET,
    PingError, PingNi, SMALL_ENTRY_BYTES, large_entry_bytes,
};
use crate::bytes::{put_u32, put_u64};
use crate::nid::Nid;

/// The contents that a buffer will have.
struct Plan {
    /// Entry 0 included.
    small_count: u32,
    has_large: bool,
    is_primary_large: bool,
    total_bytes: usize,
}

impl Plan {
    fn of(interfaces: impl Iterator<Item = PingNi>) -> Result<Self, PingError> {
        let total_bytes = HEADER_BYTES + SMALL_ENTRY_BYTES;
        let mut plan = Self { small_count: 1, has_large: false, is_primary_large: false, total_bytes };
        let mut large_count: u32 = 0;
        for (index, PingNi { nid, .. }) in interfaces.enumerate() {
            if nid.is_any() || nid.is_loopback() || nid.has_stray_bytes() {
                return Err(PingError::Interface(nid));
            }
            let count = if nid.is_large() {
                plan.has_large = true;
                plan.is_primary_large |= index == 0;
                plan.total_bytes += large_entry_bytes(nid.used_bytes());
                &mut large_count
            } else {
                plan.total_bytes += SMALL_ENTRY_BYTES;
                &mut plan.small_count
            };
            *count += 1;
            if *count > ENTRIES_MAX {
                return Err(PingError::Count(*count));
            }
        }
        Ok(plan)
    }

    fn features(&self, features: Features) -> Features {
        let mut bits = features.with(Features::NI_STATUS).without(Features::METADATA);
        for (bit, is_set) in
            [(Features::LARGE_ADDRESSES, self.has_large), (Features::PRIMARY_LARGE, self.is_primary_large)]
        {
            bits = if is_set { bits.with(bit) } else { bits.without(bit) };
        }
        bits
    }
}

const _: () = assert!(BUFFER_BYTES_MAX <= u32::MAX as usize, "entry 0 holds a size in 32 bits");

/// Bytes that [`write()`] needs for these NIs.
///
/// # Errors
/// [`PingError::Interface`], [`PingError::Count`].
pub fn encoded_bytes(interfaces: impl IntoIterator<Item = PingNi>) -> Result<usize, PingError> {
    Ok(Plan::of(interfaces.into_iter())?.total_bytes)
}

/// Writes ping information, little endian, to the start of `bytes` and returns how many bytes it has. Entry
/// 0 is added; the first of `interfaces` is the primary one. Which NIDs are large decides
/// [`Features::LARGE_ADDRESSES`] and [`Features::PRIMARY_LARGE`]; [`Features::NI_STATUS`] is always set and
/// [`Features::METADATA`] never.
///
/// # Errors
/// [`PingError::Interface`], [`PingError::Count`], [`PingError::NoRoom`]; `bytes` are then as they were.
pub fn write<I>(
    bytes: &mut [u8],
    features: Features,
    pid: u32,
    sequence: u32,
    interfaces: I,
) -> Result<usize, PingError>
where
    I: IntoIterator<Item = PingNi>,
    I::IntoIter: Clone,
{
    let interfaces = interfaces.into_iter();
    let plan = Plan::of(interfaces.clone())?;
    let no_room = PingError::NoRoom { length: bytes.len(), expected: plan.total_bytes };
    let mut sink = Sink(bytes.get_mut(..plan.total_bytes).ok_or(no_room)?);

    let mut header = [0; HEADER_BYTES];
    put_u32::<MAGIC_OFFSET, _>(&mut header, MAGIC);
    put_u32::<FEATURES_OFFSET, _>(&mut header, plan.features(features).0);
    put_u32::<PID_OFFSET, _>(&mut header, pid);
    put_u32::<COUNT_OFFSET, _>(&mut header, plan.small_count);
    sink.put(&header);

    let mut entry = small_entry(Nid::LO, NiStatus(sequence));
    if plan.has_large {
        put_u32::<ENTRY_SIZE_OFFSET, _>(&mut entry, plan.total_bytes as u32);
    }
    sink.put(&entry);
    for PingNi { nid, status } in interfaces.clone().filter(|interface| !interface.nid.is_large()) {
        sink.put(&small_entry(nid, status));
    }
    for PingNi { nid, status } in interfaces.filter(|interface| interface.nid.is_large()) {
        sink.put(&status.0.to_le_bytes());
        let padded_bytes = large_entry_bytes(nid.used_bytes()) - LARGE_STATUS_BYTES;
        sink.put(nid.to_bytes().get(..padded_bytes).unwrap_or_default());
    }
    Ok(plan.total_bytes)
}

fn small_entry(nid: Nid, status: NiStatus) -> [u8; SMALL_ENTRY_BYTES] {
    let mut entry = [0; SMALL_ENTRY_BYTES];
    put_u64::<ENTRY_NID_OFFSET, _>(&mut entry, nid.to_small().unwrap_or(Nid::SMALL_ANY));
    put_u32::<ENTRY_STATUS_OFFSET, _>(&mut entry, status.0);
    entry
}

/// The bytes that are left to be written to.
struct Sink<'a>(&'a mut [u8]);

impl Sink<'_> {
    fn put(&mut self, field: &[u8]) {
        if let Some((head, tail)) = core::mem::take(&mut self.0).split_at_mut_checked(field.len()) {
            head.copy_from_slice(field);
            self.0 = tail;
        }
    }
}
