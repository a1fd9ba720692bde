//! Lists of interfaces.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::cpt::cpts;
use super::{invalid, split_list};
use crate::errno::Refusal;

/// Longest name of an interface, as LNet has it.
const NAME_BYTES_MAX: usize = 127;

/// A network interface, and the CPTs named with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceName {
    /// Its name, which may be the label of an alias (`eth0:1`).
    pub name: String,
    /// CPTs; none are named where the list is empty.
    pub cpts: Vec<u32>,
}

/// The interfaces of a list such as `eth0,eth1[0,2-4]`.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn interfaces(text: &str) -> Result<Vec<InterfaceName>, Refusal> {
    let expected = "interfaces such as eth0,eth1[0,1], with CPTs in the brackets";
    let parts = split_list(text).ok_or_else(|| invalid(text, expected))?;
    parts.into_iter().map(interface).collect()
}

fn interface(text: &str) -> Result<InterfaceName, Refusal> {
    let (name, cpts) = match text.split_once('[') {
        Some((name, _)) => (name, cpts(text.get(name.len()..).unwrap_or_default())?),
        None => (text, Vec::new()),
    };
    let fits = |one: char| !one.is_whitespace() && !one.is_control() && !"/@]".contains(one);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(fits) {
        let expected = "the name of an interface, of at most 127 bytes";
        return Err(invalid(text, expected));
    }
    Ok(InterfaceName { name: name.to_owned(), cpts })
}
