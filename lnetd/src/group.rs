//! Groups by name.

use std::fs;

use anyhow::{Context, Result, bail};

const GROUPS: &str = "/etc/group";

/// The number of a group that is given by name or number.
pub(crate) fn number(group: &str) -> Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let text =
        fs::read_to_string(GROUPS).with_context(|| format!("--group {group}: cannot read {GROUPS}"))?;
    match find(&text, group) {
        Some(number) => Ok(number),
        None => bail!("--group {group}: there is no such group in {GROUPS}; a name or a number is expected"),
    }
}

/// The number of a group in the lines of group(5).
fn find(text: &str, group: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        if name == group { number.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_whole_name() {
        let text = "root:x:0:\nlnetters:x:12:a,b\nlnet:x:990:\nbad\n";
        assert_eq!(find(text, "lnet"), Some(990));
        assert_eq!(find(text, "root"), Some(0));
        assert_eq!(find(text, "bad"), None);
        assert_eq!(number("17").unwrap(), 17);
        let error = number("no-such-group").unwrap_err().to_string();
        assert!(error.contains("no-such-group") && error.contains("/etc/group"), "{error}");
    }
}
