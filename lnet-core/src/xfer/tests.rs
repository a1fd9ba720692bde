//! Two transfer machines over a wire in memory.
