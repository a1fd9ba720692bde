//! The contents of a `Cargo.toml`: the package, and the dependencies with their lines.

use toml::de::DeTable;

/// A dependency.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Dependency {
    /// The package, also where it is renamed.
    pub(super) package: String,
    /// Whether only tests and benches use it.
    pub(super) dev: bool,
    /// Its line, from 1.
    pub(super) line: usize,
}

/// The tables of dependencies, and whether only tests and benches use what is in them.
const TABLES: [(&str, bool); 3] =
    [("dependencies", false), ("dev-dependencies", true), ("build-dependencies", false)];

/// Reads the dependency tables of a manifest, target-specific and build ones included. The workspace's own
/// table, `[workspace.dependencies]`, is no crate's dependencies and is left out. Cargo tells of one that is
/// no TOML.
pub(super) fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let Ok(manifest) = DeTable::parse(text) else { return found };
    let targets = manifest.get_ref().get("target").and_then(|targets| targets.get_ref().as_table());
    let targets = targets.into_iter().flatten().filter_map(|(_, target)| target.get_ref().as_table());
    for table in targets.chain([manifest.get_ref()]) {
        for (kind, dev) in TABLES {
            let all = table.get(kind).and_then(|all| all.get_ref().as_table());
            for (name, value) in all.into_iter().flatten() {
                let package = value.get_ref().get("package").and_then(|package| package.get_ref().as_str());
                let package = package.unwrap_or(name.get_ref()).to_owned();
                let line = text[..name.span().start].matches('\n').count() + 1;
                found.push(Dependency { package, dev, line });
            }
        }
    }
    found
}

/// The package's name; `None` for a manifest of a workspace, which is that of several crates or has one of
/// its own.
pub(super) fn package(text: &str) -> Option<String> {
    let manifest = DeTable::parse(text).ok()?;
    let manifest = manifest.get_ref();
    let name = manifest.get("package")?.get_ref().get("name")?.get_ref().as_str()?;
    (!manifest.contains_key("workspace")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, bool, usize)]) {
        let found = dependencies(text);
        let found: Vec<_> = found.iter().map(|one| (one.package.as_str(), one.dev, one.line)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn dependencies_are_found_in_every_table() {
        check("[package]\nname = \"x\"\n[features]\na = [\"dep:b\"]", &[]);
        check("[dependencies]\na.workspace = true\nb = \"1\" # c\n", &[("a", false, 2), ("b", false, 3)]);
        check("[dependencies]\nyaml = { version = \"1\", package = \"other\" }", &[("other", false, 2)]);
        check("[dev-dependencies]\na = { path = \"a\" }", &[("a", true, 2)]);
        check("[target.'cfg(loom)'.dependencies]\nloom = \"1\"", &[("loom", false, 2)]);
        check("[build-dependencies]\ncc = \"1\"", &[("cc", false, 2)]);
        check("[dependencies.a]\nversion = \"1\"\npackage = \"b\"", &[("b", false, 1)]);
        check("[target.'cfg(a.b)'.dev-dependencies.a]\nversion = \"1\"", &[("a", true, 1)]);
        check("[workspace.dependencies]\naya = \"1\"", &[]);
        check("[dependencies]\na = \"1\"\n[lints]\nworkspace = true", &[("a", false, 2)]);
    }

    #[test]
    fn packages_of_this_workspace_have_names() {
        assert_eq!(package("[package]\nname = \"a\"\n").as_deref(), Some("a"));
        assert_eq!(package("[package]\nname = \"a\"\n[workspace]\n"), None);
        assert_eq!(package("[workspace]\nmembers = []"), None);
        assert_eq!(package("no manifest"), None);
    }
}
