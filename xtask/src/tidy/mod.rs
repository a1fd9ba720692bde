//! `cargo xtask tidy`: the house rules as a check.
//!
//! - The rules are one table ([`rules::RULES`]); each looks at one file and knows nothing of the others.
//!   Five questions are about all files: whether the licences are there, whether crates and modules use only
//!   what the table of layers says ([`layers`]), how many comments begin with no noun ([`openers`]), whether
//!   types share a name ([`words`]), and whether the carried objects of the XDP program are those of its
//!   sources.
//! - Two counts only shrink: the comments that begin so, and the names that three types and more have.
//! - A finding names file and line. There is no way to silence one from inside a file.

mod layers;
mod manifest;
mod openers;
mod product;
mod rules;
mod size;
mod source;
mod words;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use xtask::command::say;

use crate::build_ebpf;
use rules::RULES;
use source::Source;

/// Files that must be there.
const REQUIRED: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Checks every text file of the workspace and gives the number of files.
///
/// # Errors
/// When a file cannot be read, or anything is found; the findings are on standard error then.
pub(crate) fn tidy(root: &Path) -> Result<usize> {
    let mut sources = Vec::new();
    collect(root, root, &mut sources)?;
    let mut findings: Vec<String> = sources.iter().flat_map(check).collect();
    for required in REQUIRED {
        if !root.join(required).is_file() {
            findings.push(format!("{required}:1: licence: the file is missing"));
        }
    }
    if let Err(error) = build_ebpf::check_origin(root) {
        findings.push(format!("{error:#}"));
    }
    let product = product::product(&sources);
    let openers = openers::check(&product);
    findings.extend(openers.findings);
    let (names, names_max) = words::many(&product);
    if names.len() > names_max {
        let rows = names.iter().map(|(name, places)| format!("`{name}`: {}", places.join(" ")));
        findings.extend(rows);
        findings
            .push(format!("shared name: {} names of three types and more, {names_max} at most", names.len()));
    }
    let layers = layers::check(layers::TABLE, &sources, &product);
    findings.extend(layers.into_iter().map(|finding| format!("{finding} ({})", layers::WHY)));
    for (path, line, name) in words::shared_names(&sources) {
        findings.push(format!("{path}:{line}: shared name: `{name}` is several types (docs/glossary.md)"));
    }
    for finding in &findings {
        say(finding);
    }
    if !openers.lower.is_empty() {
        say(format_args!(
            "fewer comments than are left by xtask/src/tidy/openers.rs: {}",
            openers.lower.join(", ")
        ));
    }
    if names.len() < names_max {
        say(format_args!("xtask/src/tidy/words.rs: {} names of three types and more", names.len()));
    }
    if findings.is_empty() {
        return Ok(sources.len());
    }
    bail!("{} findings in {} files", findings.len(), sources.len())
}

/// A table of how many lines of code each crate has.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn size(root: &Path) -> Result<String> {
    let mut sources = Vec::new();
    collect(root, root, &mut sources)?;
    Ok(size::table(&sources, &product::product(&sources)))
}

/// What the rules find in one file, as `path:line: rule: what`.
fn check(source: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for rule in RULES.iter().filter(|rule| (rule.applies)(&source.path)) {
        for (line, what) in (rule.check)(source) {
            findings.push(format!("{}:{line}: {}: {what} ({})", source.path, rule.name, rule.why));
        }
    }
    findings
}

/// Reads the text files below `directory`, in order of their names. What git does not track by design
/// (target directories, hidden ones but our own) is left out.
fn collect(root: &Path, directory: &Path, sources: &mut Vec<Source>) -> Result<()> {
    let read = || directory.display().to_string();
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).with_context(read)? {
        paths.push(entry.with_context(read)?.path());
    }
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = name.starts_with('.') && ![".ci", ".cargo"].contains(&name.as_ref());
        if hidden || name == "target" || name == "Cargo.lock" || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, sources)?;
            continue;
        }
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        // Captures and corpora are no text; the rules are about what people write.
        if let Ok(text) = String::from_utf8(bytes) {
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            sources.push(Source::new(path, text));
        }
    }
    Ok(())
}
