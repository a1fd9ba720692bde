//! Numbers that are the same in every run.

/// A linear congruential generator.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The generator at its start.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "the start is no default value")]
    pub const fn new() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }

    /// A number below `bound`, which has at most 32 bits.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * bound) >> 32
    }
}
