//! Pools of buffers, into which a router receives what it forwards.

words! {
    /// A pool of a router, by the payload of the messages that its buffers take.
    PoolKind {
        /// None.
        Tiny = "tiny",
        /// Up to a page.
        Small = "small",
        /// Up to 1 MiB, the most that a message has.
        Large = "large",
    }
}

impl PoolKind {
    /// Pages of 4096 bytes of one buffer (LNet `router.c: lnet_rtrpools_alloc`).
    #[must_use]
    pub const fn page_count(self) -> u32 {
        match self {
            Self::Tiny => 0,
            Self::Small => 1,
            Self::Large => 256,
        }
    }

    /// Name of the setting for the number of its buffers.
    #[must_use]
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Tiny => "tiny_buffers",
            Self::Small => "small_buffers",
            Self::Large => "large_buffers",
        }
    }
}
