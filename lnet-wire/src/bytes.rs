//! Fields of fixed-size byte arrays at constant offsets. That a field lies within its array is checked at
//! compile time, so none of these can panic, in a BPF program either.

/// The `N` bytes at `OFFSET`.
#[inline(always)]
pub(crate) const fn get<const OFFSET: usize, const N: usize, const L: usize>(bytes: &[u8; L]) -> [u8; N] {
    const { assert!(OFFSET + N <= L) };
    let mut field = [0; N];
    field.copy_from_slice(bytes.split_at(OFFSET).1.split_at(N).0);
    field
}

/// Overwrites the `N` bytes at `OFFSET`.
#[inline(always)]
pub(crate) fn put<const OFFSET: usize, const N: usize, const L: usize>(bytes: &mut [u8; L], field: [u8; N]) {
    const { assert!(OFFSET + N <= L) };
    bytes[OFFSET..OFFSET + N].copy_from_slice(&field);
}

/// The little-endian integer at `OFFSET`.
#[inline(always)]
pub(crate) const fn get_u32<const OFFSET: usize, const L: usize>(bytes: &[u8; L]) -> u32 {
    u32::from_le_bytes(get::<OFFSET, 4, L>(bytes))
}

/// The little-endian integer at `OFFSET`.
#[inline(always)]
pub(crate) const fn get_u64<const OFFSET: usize, const L: usize>(bytes: &[u8; L]) -> u64 {
    u64::from_le_bytes(get::<OFFSET, 8, L>(bytes))
}

/// Writes a little-endian integer at `OFFSET`.
#[inline(always)]
pub(crate) fn put_u32<const OFFSET: usize, const L: usize>(bytes: &mut [u8; L], value: u32) {
    put::<OFFSET, 4, L>(bytes, value.to_le_bytes());
}

/// Writes a little-endian integer at `OFFSET`.
#[inline(always)]
pub(crate) fn put_u64<const OFFSET: usize, const L: usize>(bytes: &mut [u8; L], value: u64) {
    put::<OFFSET, 8, L>(bytes, value.to_le_bytes());
}
