//! Transfer machines over a wire in memory.

mod hostile;
mod impostors;
mod interfaces;
mod lossy;
mod parking;
mod policies;
mod preview;
mod sessions;
mod wire;
