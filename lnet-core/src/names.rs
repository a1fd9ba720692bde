//! Enums with a name for each value: one table says both.

/// The values of a table, in its order.
pub(crate) const fn values<T: Copy, const N: usize>(table: &[(T, &str); N]) -> [T; N] {
    let mut values = [table[0].0; N];
    let mut at = 1;
    while at < N {
        values[at] = table[at].0;
        at += 1;
    }
    values
}
