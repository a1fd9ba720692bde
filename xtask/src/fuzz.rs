//! `cargo xtask fuzz`: libFuzzer looks for bytes that break the codecs, the steering, the shard, the
//! protocols, documents or requests.
//!
//! The targets are a workspace of their own, `tests/fuzz`, built by the stable compiler with the flags that
//! tell libFuzzer where a run has been. What a fuzzer has learnt is kept in `target/fuzz/corpus`, what it has
//! found in `target/fuzz/found`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::command::{output, say, succeed};

use crate::cargo::cargo;
use crate::setup;

/// Coverage of edges and comparisons, where libFuzzer looks for it (LLVM: SanitizerCoverage), with all
/// assertions.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
                     -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";
/// Bytes of an input at most: more steps than `transfer` takes.
const INPUT_BYTES_MAX: u32 = 4096;

/// What to look at, and for how long.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask fuzz
  cargo xtask fuzz transfer --seconds 3600
  cargo xtask fuzz frame header --runs 100000 --seed 7")]
pub(crate) struct Options {
    /// Fuzz targets; all, one after the other, if none is named
    targets: Vec<String>,
    /// How long to look at each target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Inputs to try of each target, however long that takes
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Where the fuzzer's random numbers begin, with nothing that it learnt before; without it goes on where
    /// it was
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seed: Option<u32>,
}

impl Options {
    /// Every target with this number of inputs, from one seed: each run tries the same inputs.
    pub(crate) const fn all_with_runs(runs: u32) -> Self {
        Self { targets: Vec::new(), seconds: 0, runs: Some(runs), seed: Some(1) }
    }
}

/// Builds the targets and has libFuzzer run them; needs a C++ compiler, which it finds or installs. Gives the
/// time that the build took.
///
/// # Errors
/// When a target is not known, the build fails, or an input is found of which something does not hold.
pub(crate) fn fuzz(root: &Path, options: &Options) -> Result<Duration> {
    let fuzz = root.join("tests/fuzz");
    let known = names(&fuzz.join("fuzz_targets"))?;
    for target in &options.targets {
        ensure!(known.contains(target), "there is no fuzz target {target:?}; there are {}", known.join(", "));
    }
    let targets = if options.targets.is_empty() { &known } else { &options.targets };
    setup::ensure_cpp()?;
    let work = root.join("target/fuzz");
    let begun = Instant::now();
    let programs = build(&fuzz, &work)?;
    let built = begun.elapsed();
    for target in targets {
        let (found, is_repeatable) = (work.join("found"), options.seed.is_some());
        let corpus = work.join(if is_repeatable { "scratch" } else { "corpus" }).join(target);
        if is_repeatable && corpus.exists() {
            fs::remove_dir_all(&corpus).with_context(|| corpus.display().to_string())?;
        }
        for directory in [&corpus, &found] {
            fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        let mut command = Command::new(programs.join(target));
        command.arg(match options.runs {
            Some(runs) => format!("-runs={runs}"),
            None => format!("-max_total_time={}", options.seconds),
        });
        command.args(options.seed.map(|seed| format!("-seed={seed}")));
        command.args([format!("-max_len={INPUT_BYTES_MAX}"), "-print_final_stats=1".to_owned()]);
        command.arg(format!("-artifact_prefix={}/{target}-", found.display()));
        command.arg(&corpus).arg(fuzz.join("corpus").join(target));
        say(format_args!("\nfuzz: {target}"));
        succeed(&mut command).with_context(|| {
            format!(
                "an input of {target:?} breaks it, {}/{target}-*: what is mended goes into tests/fuzz/corpus/{target} \
                 under a name of its own, from where `cargo test` replays it",
                found.display()
            )
        })?;
    }
    Ok(built)
}

/// The targets' names, in order.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| directory.display().to_string())?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds all targets; gives the directory of their programs.
fn build(fuzz: &Path, work: &Path) -> Result<PathBuf> {
    let version = output("rustc", ["-vV"])?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` names no host")?;
    // With a target named, cargo leaves build scripts without the flags.
    succeed(
        cargo(fuzz)
            .args(["build", "--release", "--locked", "--target", host])
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", work),
    )?;
    Ok(work.join(host).join("release"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_known_by_their_files() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tests/fuzz");
        let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        let programs = manifest.split("[[bin]]").skip(1);
        let programs: Vec<_> = programs.filter_map(|program| program.split('"').nth(1)).collect();
        assert_eq!(names(&fuzz.join("fuzz_targets")).unwrap(), programs);
    }
}
