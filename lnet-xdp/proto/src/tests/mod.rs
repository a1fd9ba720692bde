//! Transfer machines over a wire in memory.

mod deferred;
mod hostile;
mod impostors;
mod lives;
mod lossy;
mod narrow;
mod nis;
mod partial;
mod policies;
mod preview;
mod rails;
mod refusals;
mod sessions;
mod stalls;
mod wire;
