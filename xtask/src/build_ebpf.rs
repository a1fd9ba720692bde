//! `cargo xtask build-ebpf`: compiles the XDP program into the objects that `lnet-xdp` carries, or has
//! clippy read it.
//!
//! The objects are checked in, so that linking `lnet-xdp`, or building this workspace, takes no BPF
//! compiler. Beside them stands of what sources they were made, and by which compiler ([`Origin`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use object::build::elf::{Builder, SectionData};
use object::elf;
use ra_ap_rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};
use sha2::{Digest, Sha256};
use xtask::command::succeed;

use crate::setup::{self, BPF_TARGET, BpfToolchain, Compiler, ensure_clippy};

/// Where the objects are.
const CARRIED: &str = "lnet-xdp/linux/bpf";
/// What is compiled into them, but for other crates and the tests of these.
const SOURCES: [&str; 2] = ["lnet-ebpf/src", "lnet-wire/src"];
/// The file that says of what they were made.
const ORIGIN: &str = "origin";

/// A form of the program: a set of features, with a target directory of its own, so that cargo's notes on
/// one form never make it rebuild the other.
struct Form {
    name: &'static str,
    object: &'static str,
    features: &'static [&'static str],
}

/// The one that loads in aya and libbpf, and the one that logs refusals and loads in aya only.
const FORMS: [Form; 2] = [
    Form { name: "default", object: "lnet.bpf.o", features: &[] },
    Form { name: "log", object: "lnet-log.bpf.o", features: &["--features", "log"] },
];

impl Form {
    fn target_directory(&self, root: &Path) -> PathBuf {
        root.join("target/bpf-build").join(self.name)
    }
}

/// The sources that the objects were made of.
#[derive(PartialEq, Eq, Debug)]
struct Origin {
    /// A digest of the sources without comments.
    sources: String,
    /// Compiler and linker.
    tools: String,
}

impl Origin {
    /// The origin of the objects that are carried; `None` if no file tells it.
    fn carried(root: &Path) -> Option<Self> {
        let text = fs::read_to_string(root.join(CARRIED).join(ORIGIN)).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        Some(Self { sources: value("sources: ")?, tools: value("tools: ")? })
    }

    fn text(&self) -> String {
        format!("sources: {}\ntools: {}\n", self.sources, self.tools)
    }
}

/// Compiles both objects, and has `lnet-user` carry them; quick when nothing changed. Gives their paths.
///
/// # Errors
/// The compiler's exit status; what it had to say it has printed.
pub(crate) fn build(root: &Path, toolchain: &BpfToolchain) -> Result<Vec<PathBuf>> {
    let directory = root.join(CARRIED);
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut objects = Vec::new();
    for form in &FORMS {
        let object = directory.join(form.object);
        install(&compile(root, toolchain, form)?, &object)?;
        objects.push(object);
    }
    let origin = Origin { sources: digest(root)?, tools: toolchain.version() };
    install(origin.text().as_bytes(), &directory.join(ORIGIN))?;
    Ok(objects)
}

/// Compiles both objects if the carried ones were made of other sources.
///
/// # Errors
/// As [`build`], and when there is no BPF toolchain then.
pub(crate) fn refresh(root: &Path) -> Result<()> {
    if check_origin(root).is_err() {
        build(root, &setup::ensure(root)?)?;
    }
    Ok(())
}

/// Checks that the carried objects were made of the present sources.
///
/// # Errors
/// When they were not.
pub(crate) fn check_origin(root: &Path) -> Result<()> {
    let carried = Origin::carried(root).map(|origin| origin.sources);
    ensure!(
        carried == Some(digest(root)?),
        "{CARRIED}: the objects were made of other sources; `cargo xtask build-ebpf` makes them anew"
    );
    Ok(())
}

/// Compiles both objects and checks that the carried ones are the same, as far as they were made by the same
/// compiler; says whether they were.
///
/// # Errors
/// As [`build`], and when they differ.
pub(crate) fn check(root: &Path, toolchain: &BpfToolchain) -> Result<bool> {
    check_origin(root)?;
    let is_same_tools = Origin::carried(root).is_some_and(|origin| origin.tools == toolchain.version());
    for form in &FORMS {
        let built = compile(root, toolchain, form)?;
        let carried = fs::read(root.join(CARRIED).join(form.object)).unwrap_or_default();
        ensure!(
            !is_same_tools || built == carried,
            "{CARRIED}/{}: its sources and the same compiler make another object; `cargo xtask build-ebpf` takes it",
            form.object
        );
    }
    Ok(is_same_tools)
}

/// Compiles a form of the program; its object.
fn compile(root: &Path, toolchain: &BpfToolchain, form: &Form) -> Result<Vec<u8>> {
    succeed(prepare(&mut toolchain.compiler.cargo(), root, toolchain, "build", form))?;
    let built = form.target_directory(root).join(BPF_TARGET).join("release/lnet-ebpf");
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    strip(&bytes).with_context(|| format!("cannot strip {}", built.display()))
}

/// An object without what only debuggers read: BTF, which is made of it, stays.
fn strip(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(object)?;
    for section in builder.sections.iter_mut() {
        section.delete = section.name.starts_with(b".debug") || section.name.starts_with(b".rel.debug");
    }
    builder.delete_orphans();
    // LLVM keeps the names of sections with those of symbols.
    let names = builder.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = elf::SHT_STRTAB;
    names.sh_addralign = 1;
    names.data = SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut stripped)?;
    Ok(stripped)
}

/// A digest of the sources, without comments and white space.
fn digest(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root.join(source), &mut files)?;
    }
    files.sort();
    let mut digest = Sha256::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        digest.update(file.strip_prefix(root).unwrap_or(&file).to_string_lossy().as_bytes());
        for token in tokens(&text) {
            digest.update([0]);
            digest.update(token.as_bytes());
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    tokenize(text, FrontmatterAllowed::No).filter_map(move |token| {
        let (word, left) = rest.split_at(token.len as usize);
        rest = left;
        let is_left_out = matches!(
            token.kind,
            TokenKind::Whitespace | TokenKind::LineComment { .. } | TokenKind::BlockComment { .. }
        );
        (!is_left_out).then_some(word)
    })
}

/// The source files below a directory, but for tests.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Runs clippy over the program in both forms.
///
/// # Errors
/// When clippy is not there, or has something to say, which it has printed.
pub(crate) fn clippy(root: &Path, toolchain: &BpfToolchain) -> anyhow::Result<()> {
    for form in &FORMS {
        let mut command = ensure_clippy(&toolchain.compiler)?;
        succeed(prepare(&mut command, root, toolchain, "clippy", form).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Makes `command`, a cargo of some kind, do `verb` to one form of the program.
fn prepare<'a>(
    command: &'a mut Command,
    root: &Path,
    toolchain: &BpfToolchain,
    verb: &str,
    form: &Form,
) -> &'a mut Command {
    command
        .current_dir(root)
        .args([verb, "--quiet", "--release", "--package", "lnet-ebpf", "--target", BPF_TARGET])
        .args(form.features)
        .env("CARGO_TARGET_DIR", form.target_directory(root))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        // BTF names and types the maps, and is made from the debug information. No machine's directories are
        // in it.
        .env("RUSTFLAGS", format!("-C debuginfo=2 -C link-arg=--btf {}", remapped(root)));
    // The BPF target is a nightly feature of a compiler that is otherwise stable.
    toolchain.compiler.configure(command);
    if matches!(toolchain.compiler, Compiler::Rustup) {
        command.args(["-Z", "build-std=core"]);
    }
    command
}

/// Names the directories of sources alike on all machines.
fn remapped(root: &Path) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let flag = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let home = home.map(|home| flag(&home.join("registry/src"), "registry"));
    [flag(root, "lnet")].into_iter().chain(home).collect::<Vec<_>>().join(" ")
}

/// Makes `bytes` the contents of a file, in one step, so that a reader sees a whole one; one that is equal is
/// left alone.
fn install(bytes: &[u8], path: &Path) -> Result<()> {
    if fs::read(path).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("new.{}", std::process::id()));
    fs::write(&fresh, bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    fs::rename(&fresh, path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_an_equal_object_leaves_the_file_alone() {
        let directory = std::env::temp_dir().join(format!("xtask-build-ebpf-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let object = directory.join("x.bpf.o");
        install(b"one", &object).unwrap();
        let first = object.metadata().unwrap().modified().unwrap();
        install(b"one", &object).unwrap();
        assert_eq!(object.metadata().unwrap().modified().unwrap(), first);
        install(b"two", &object).unwrap();
        assert_eq!(fs::read(&object).unwrap(), b"two");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn comments_make_no_other_sources() {
        let words = |text| tokens(text).collect::<Vec<_>>();
        assert_eq!(words("/// One.\nfn a() {} // two"), words("fn  a()\n{}"));
        assert_ne!(words("fn a() {}"), words("fn b() {}"));
        assert_ne!(words("a b"), words("ab"));
    }

    /// As `cargo xtask tidy` finds it.
    #[test]
    fn objects_of_other_sources_are_found() {
        let root = std::env::temp_dir().join(format!("xtask-origin-{}", std::process::id()));
        let source = root.join("lnet-ebpf/src/main.rs");
        for directory in SOURCES.iter().chain(&[CARRIED]) {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(&source, "fn a() {}").unwrap();
        assert!(check_origin(&root).is_err());
        let origin = Origin { sources: digest(&root).unwrap(), tools: "rustc".into() };
        fs::write(root.join(CARRIED).join(ORIGIN), origin.text()).unwrap();
        check_origin(&root).unwrap();
        assert_eq!(Origin::carried(&root), Some(origin));
        fs::write(root.join("lnet-wire/src/tests.rs"), "fn test() {}").unwrap();
        check_origin(&root).unwrap();
        fs::write(&source, "fn b() {}").unwrap();
        assert!(check_origin(&root).unwrap_err().to_string().contains("cargo xtask build-ebpf"));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn carried_objects_have_no_directories_of_a_machine() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for form in &FORMS {
            let object = fs::read(root.join(CARRIED).join(form.object)).unwrap();
            let text = String::from_utf8_lossy(&object);
            for directory in ["/home/", ".cargo/"] {
                assert!(!text.contains(directory), "{}: {directory}", form.object);
            }
            assert!(text.contains(".BTF") && !text.contains(".debug_info"), "{}", form.object);
        }
    }
}
