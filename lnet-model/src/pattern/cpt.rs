//! Lists of CPTs.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::expression::Expression;
use super::{invalid, quoted};
use crate::errno::{Errno, Refusal};

/// Most CPTs that a list names.
const CPTS_MAX: u64 = 4096;

/// The CPTs of a list such as `[0,1,4-6]`, `[0-7/2]`, `3` or `1,3`, in their order and each once.
///
/// # Errors
/// [`Refusal`]: what is no such list, or an empty one.
pub fn cpts(text: &str) -> Result<Vec<u32>, Refusal> {
    let inner = text.trim();
    let inner = match inner.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']'),
        None => Some(inner),
    };
    let expression = inner.and_then(|inner| Expression::parse(inner, u32::MAX, 10));
    let Some(expression) = expression else {
        return Err(invalid(text, "a list of CPTs such as [0,2-4]"));
    };
    if expression.count() > CPTS_MAX {
        let message = format!("{}: expected at most {CPTS_MAX} CPTs", quoted(text));
        return Err(Refusal::new(Errno::RANGE, message));
    }
    let mut cpts = Vec::new();
    for cpt in expression.values() {
        if !cpts.contains(&cpt) {
            cpts.push(cpt);
        }
    }
    Ok(cpts)
}

/// The text of a list of CPTs, as tools print it: `[0,1]`.
#[must_use]
pub fn cpts_text(cpts: &[u32]) -> String {
    let texts: Vec<String> = cpts.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(","))
}

/// The shards of a table such as `[0,1,0,1]`, in their order; `None` if it is none.
#[must_use]
pub fn shards(text: &str) -> Option<Vec<u8>> {
    let inner = text.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let shard = |text: &str| {
        let text = text.trim();
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    inner.split(',').map(shard).collect()
}
