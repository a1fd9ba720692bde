//! The four rings, over memory shared with the kernel or with a stand-in for it.

mod cursor;
mod half;
mod queues;

pub use queues::{CompletionRing, FRAGMENTS_MAX, FillRing, PushError, RingDescriptor, RxRing, TxRing};

pub(super) use half::{Entry, Half, Layout, Side};
#[cfg(any(test, feature = "testing"))]
pub(super) use {half::FLAG_NEED_WAKEUP, queues::OPTION_CONTINUED, queues::RawDescriptor};
