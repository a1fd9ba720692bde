//! Transfer machines that have threads of their own: what these do, and how other transfer machines of the
//! process are found.

pub(crate) mod directory;
pub(crate) mod work;
