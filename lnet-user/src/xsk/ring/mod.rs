//! The four rings, over memory shared with the kernel or with a stand-in for it.

mod cursor;
mod half;
mod queues;

pub use queues::{
    CompletionRing, FRAGMENTS_MAX, FillRing, PushError, RegisteredPushError, RxDescriptor, RxRing,
    TxDescriptor, TxRing,
};

pub(super) use half::{Entry, Half, Layout, Side, pair};
pub(super) use queues::{OPTION_CONTINUED, RawDescriptor};
