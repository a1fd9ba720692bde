//! Single runs of the program on frames that never were on a wire (`BPF_PROG_TEST_RUN`), for tests.
//!
//! Source: the kernel's `Documentation/bpf/bpf_prog_run.rst`.

/// A frame to run the program on.
#[derive(Clone, Copy, Debug)]
pub struct TestFrame<'a> {
    /// Its bytes from the Ethernet header on, 14 or more.
    pub bytes: &'a [u8],
    /// Bytes of its linear part, at most those of the frame; the kernel makes it shorter where a page does
    /// not hold it, and kernels before 6.18 take no shorter one.
    pub linear_bytes: usize,
    /// The receive queue that it arrives on: 0, or one in use of the interface that the program is
    /// attached to.
    pub queue: u32,
}

impl<'a> TestFrame<'a> {
    /// A frame whose linear part is as long as the kernel makes it.
    #[must_use]
    pub const fn new(bytes: &'a [u8], queue: u32) -> Self {
        Self { bytes, linear_bytes: bytes.len(), queue }
    }

    /// The `struct xdp_md` that describes it.
    pub(super) fn context(&self, interface_index: u32) -> [u8; CONTEXT_BYTES] {
        let words = [0, self.linear_bytes as u32, 0, interface_index, self.queue, 0];
        let mut bytes = [0; CONTEXT_BYTES];
        for (bytes_of, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes_of = word.to_ne_bytes();
        }
        bytes
    }
}

/// Bytes of `struct xdp_md`.
pub(super) const CONTEXT_BYTES: usize = 24;

/// What the program answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// `XDP_DROP`.
    Drop,
    /// `XDP_PASS`: up to the kernel's network stack.
    Pass,
    /// `XDP_REDIRECT`: to the socket of a slot.
    Redirect,
    /// A value that the program never returns.
    Other(u32),
}

impl From<u32> for Action {
    fn from(value: u32) -> Self {
        match value {
            1 => Self::Drop,
            2 => Self::Pass,
            4 => Self::Redirect,
            other => Self::Other(other),
        }
    }
}
