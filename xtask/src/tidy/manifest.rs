//! The dependencies in a `Cargo.toml`, with their lines.

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

/// Reads the dependency tables of a manifest, target-specific and build ones included. The workspace's own
/// table, `[workspace.dependencies]`, is no crate's dependencies and is left out.
pub(super) fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut table = Table::Other;
    for (line, content) in super::source::numbered(text) {
        let content = content.split('#').next().unwrap_or_default().trim();
        if let Some(header) = content.strip_prefix('[') {
            table = Table::of(header.trim_end_matches(']'));
            if let Table::One { name, dev } = &table {
                found.push(Dependency { package: name.clone(), dev: *dev, line });
            }
            continue;
        }
        let Some((key, value)) = content.split_once('=') else { continue };
        let (key, value) = (key.trim().trim_matches('"'), value.trim());
        match &table {
            Table::All { dev } => {
                let name = key.split('.').next().unwrap_or(key);
                let package = renamed(value).unwrap_or(name).to_owned();
                found.push(Dependency { package, dev: *dev, line });
            }
            Table::One { .. } if key == "package" => {
                if let Some(last) = found.last_mut() {
                    last.package = value.trim_matches('"').to_owned();
                }
            }
            _ => {}
        }
    }
    found
}

/// Which table a line stands in.
enum Table {
    /// One line per dependency.
    All { dev: bool },
    /// `[dependencies.name]`.
    One { name: String, dev: bool },
    /// No dependencies.
    Other,
}

impl Table {
    fn of(header: &str) -> Self {
        if header.starts_with("workspace") {
            return Self::Other;
        }
        let parts: Vec<&str> = header.split('.').collect();
        let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
        // A target's cfg may hold dots, so look from the end.
        let Some(at) = parts.iter().rposition(|part| kinds.contains(part)) else { return Self::Other };
        let dev = parts[at] == "dev-dependencies";
        match parts.get(at + 1) {
            None => Self::All { dev },
            Some(name) => Self::One { name: name.trim_matches('"').to_owned(), dev },
        }
    }
}

/// The package in an inline table `{ package = "name", .. }`.
fn renamed(value: &str) -> Option<&str> {
    let (_, after) = value.strip_prefix('{')?.split_once("package")?;
    after.trim_start().strip_prefix('=')?.trim_start().strip_prefix('"')?.split('"').next()
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
}
