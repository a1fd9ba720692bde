//! The image's recipe and the manifest for Kubernetes, carried out without an engine: the recipe's steps run
//! in a [`Root`], and crun runs the manifest's container in it, with its capabilities, seccomp profile and
//! probes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use xtask::command::succeed;
use xtask::netns::Namespace;

use super::root::Root;

/// The validator of manifests, and the schemas that it is asked for.
const VALIDATOR: &str = "kubernetes-validate==1.37.0";
/// Packages that the validator imports.
const ITS_LIBRARIES: [&str; 6] =
    ["jsonschema", "packaging", "PyYAML", "typing-extensions", "importlib-resources", "referencing"];
/// How long a container may take until it is started, as its startup probe sees it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Forms of probes that CSI drivers for Lustre have (spec "LNet lnetctl", 6.5).
const PROBES_OF_DRIVERS: [&str; 5] = [
    "lnetctl ping --help > /dev/null",
    "test \"$(lnetctl net show | grep -c 'nid:')\" -gt 1",
    "timeout 10 lnetctl ping \"$(lnetctl net show | grep 'nid:' | grep -v '@lo' | head -n 1 | sed 's/.*nid: //')\"",
    "test \"$(lnetctl net show --net tcp | grep -c 'status: up')\" -eq 1",
    "! lnetctl net show --net tcp | grep 'status: down'",
];

/// The recipe of an image.
#[derive(Debug, Default, PartialEq, Eq)]
struct Recipe {
    /// Files that are copied from the folder of the build, and where to.
    copies: Vec<(String, String)>,
    runs: Vec<String>,
    entrypoint: Vec<String>,
    command: Vec<String>,
}

/// A container of the manifest, and its probes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    args: Vec<String>,
    security_context: SecurityContext,
    startup_probe: Probe,
    readiness_probe: Probe,
    liveness_probe: Probe,
    volume_mounts: Vec<VolumeMount>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecurityContext {
    allow_privilege_escalation: bool,
    capabilities: Capabilities,
}

#[derive(Debug, Deserialize)]
struct Capabilities {
    drop: Vec<String>,
    add: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Probe {
    exec: Exec,
}

#[derive(Debug, Deserialize)]
struct Exec {
    command: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeMount {
    name: String,
    mount_path: String,
}

/// Finds or installs the validator, and gives what python is to find it by.
fn ensure_validator(root: &Path) -> Result<String> {
    let folder = root.join("target/tools/kubernetes-validate");
    let libraries = folder.join("libraries");
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let wheel = || fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path()).find(is_wheel);
    if wheel().is_none() || !libraries.is_dir() {
        let pip = || {
            let mut command = Command::new("python3");
            command.args(["-m", "pip", "--quiet", "--no-input"]);
            command
        };
        // The schemas are many thousand files, which stay packed.
        succeed(pip().args(["download", "--no-deps", VALIDATOR, "--dest"]).arg(&folder))
            .and_then(|()| {
                let mut install = pip();
                install.args(["install", "--root-user-action=ignore", "--target"]).arg(&libraries);
                succeed(install.args(ITS_LIBRARIES))
            })
            .context("manifests are checked by kubernetes-validate, which python3 and pip install")?;
    }
    let wheel = wheel().context("pip brought no wheel of kubernetes-validate")?;
    Ok(format!("{}:{}", wheel.display(), libraries.display()))
}

/// Has manifests read against the schemas of Kubernetes, which know each key.
fn validate(root: &Path, manifest: &Path) -> Result<()> {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", ensure_validator(root)?);
    command.args(["-m", "kubernetes_validate", "-k", "1.37", "--strict"]).arg(manifest);
    succeed(&mut command)
}

/// Carries the recipe out, runs the manifest's container in a network namespace, probes it, and checks that
/// its readiness probe sees a link that is down.
///
/// # Errors
/// When a step fails, or a probe says other than it is to say.
pub(super) fn check(root: &Path, package: &Path, node: &Namespace, peer: &str) -> Result<()> {
    let packaging = root.join("packaging");
    let manifest = packaging.join("kubernetes/lnetd.yaml");
    validate(root, &manifest)?;
    let recipe = recipe(&read(&packaging.join("container/Containerfile"))?)?;
    let (container, documents) = parse(&read(&manifest)?)?;

    let image = Root::new(None, &root.join("target/package-image"))?;
    for (from, to) in &recipe.copies {
        let name = package.file_name().context("a package has a name")?.to_string_lossy();
        let (head, tail) = from.split_once('*').with_context(|| format!("COPY {from}: a pattern"))?;
        ensure!(name.starts_with(head) && name.ends_with(tail), "COPY {from} does not copy {name}");
        image.put(package, &format!("{to}{name}"))?;
    }
    for script in &recipe.runs {
        image.good(script).context("a step of the Containerfile")?;
    }
    let stayed = image.good("find /opt -name '*.deb'; find /var/lib/apt/lists -type f")?;
    ensure!(stayed.is_empty(), "the image has what only its build needs: {stayed}");

    let image = image.inside(node);
    let profile = read(&packaging.join("container/seccomp.json"))?;
    let bundle = bundle(&recipe, &container, &profile)?;
    image.good("mkdir -p /run/bundle /run/lnet /run/document && mount --bind / /mnt")?;
    image.write("/run/bundle/config.json", &serde_json::to_string(&bundle)?)?;
    for (name, text) in &documents {
        image.write(&format!("/run/document/{name}"), text)?;
    }
    let run = "crun --cgroup-manager=disabled run --detach --bundle /run/bundle lnetd > /run/log 2>&1";
    image.good(&format!("{run} < /dev/null || {{ cat /run/log; exit 1; }}"))?;
    let log = || image.good("cat /run/log");
    let inside = |command: &[String]| {
        let words: Vec<_> = command.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        image.run(&format!("crun exec lnetd {}", words.join(" ")))
    };
    let shell = |script: &str| inside(&["/bin/sh".into(), "-ec".into(), script.into()]);

    let begun = Instant::now();
    loop {
        let said = inside(&container.startup_probe.exec.command)?;
        if said.is_good {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "the startup probe fails: {}\n{}", said.text, log()?);
        thread::sleep(Duration::from_millis(50));
    }
    for probe in [&container.readiness_probe, &container.liveness_probe] {
        let said = inside(&probe.exec.command)?;
        ensure!(said.is_good, "{:?} fails: {}\n{}", probe.exec.command, said.text, log()?);
    }
    for script in PROBES_OF_DRIVERS.iter().map(|probe| (*probe).to_owned()).chain([
        format!("lnetctl ping {peer}"),
        // Each capability, and what the profile allows: rings, and io_uring for the rest.
        "lnetctl net add --net xdp --if eth1".into(),
        "lnetctl net show -v | grep 'active mode: native'".into(),
        "! lnetctl net show -v | grep -E 'no rings|no io_uring'".into(),
    ]) {
        let said = shell(&script)?;
        ensure!(said.is_good, "`{script}` fails in the container: {}\n{}", said.text, log()?);
    }
    image.good("ip link set eth0 down")?;
    let said = inside(&container.readiness_probe.exec.command)?;
    ensure!(!said.is_good, "the readiness probe does not see that the link is down: {}", said.text);
    let said = inside(&container.liveness_probe.exec.command)?;
    ensure!(said.is_good, "a link that is down ends the container: {}", said.text);
    image.good("ip link set eth0 up")?;
    image.good("crun kill lnetd TERM; while crun state lnetd | grep -q running; do sleep 0.05; done")?;
    let log = log()?;
    ensure!(!log.contains("ERROR") && !log.contains("panicked"), "the container's log:\n{log}");
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The container of a manifest, and the files of its ConfigMap.
fn parse(manifest: &str) -> Result<(Container, Vec<(String, String)>)> {
    let (mut container, mut documents) = (None, Vec::new());
    for document in serde_yaml::Deserializer::from_str(manifest) {
        let value = Value::deserialize(document).context("the manifest is no YAML")?;
        match value["kind"].as_str() {
            Some("DaemonSet") => {
                let pod = &value["spec"]["template"]["spec"];
                ensure!(pod["hostNetwork"] == true, "the container is tested in the host's network");
                container = Some(Container::deserialize(&pod["containers"][0])?);
            }
            Some("ConfigMap") => {
                let data = value["data"].as_object().context("a ConfigMap has data")?;
                for (name, text) in data {
                    documents.push((name.clone(), text.as_str().context("data are text")?.to_owned()));
                }
            }
            _ => {}
        }
    }
    Ok((container.context("the manifest has a DaemonSet")?, documents))
}

/// Reads a Containerfile. Steps that it does not know are mistakes.
fn recipe(text: &str) -> Result<Recipe> {
    let mut recipe = Recipe::default();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (step, rest) = line.split_once(' ').with_context(|| format!("a step: {line}"))?;
        let words = || serde_json::from_str(rest).with_context(|| format!("a list: {line}"));
        match step {
            "ARG" | "FROM" | "STOPSIGNAL" => {}
            "COPY" => {
                let (from, to) = rest.split_once(' ').with_context(|| format!("two paths: {line}"))?;
                recipe.copies.push((from.to_owned(), to.to_owned()));
            }
            "RUN" => recipe.runs.push(rest.to_owned()),
            "ENTRYPOINT" => recipe.entrypoint = words()?,
            "CMD" => recipe.command = words()?,
            _ => bail!("no step of a recipe that is carried out here: {line}"),
        }
    }
    Ok(recipe)
}

/// The bundle's `config.json` (OCI runtime specification), as a kubelet's runtime would write it.
fn bundle(recipe: &Recipe, container: &Container, seccomp: &str) -> Result<Value> {
    let SecurityContext { allow_privilege_escalation, capabilities } = &container.security_context;
    ensure!(capabilities.drop == ["ALL"], "capabilities are those that are added");
    ensure!(!recipe.command.is_empty(), "an image does something by itself");
    let capabilities: Vec<_> = capabilities.add.iter().map(|name| format!("CAP_{name}")).collect();
    let arguments = [recipe.entrypoint.clone(), container.args.clone()].concat();
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "nodev"] }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] }),
        json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" }),
    ];
    for mount in &container.volume_mounts {
        let source = match mount.name.as_str() {
            "document" => "/run/document",
            "run" => "/run/lnet",
            other => bail!("no such volume is known here: {other}"),
        };
        let options = ["bind"];
        mounts.push(json!({ "destination": mount.mount_path, "source": source, "options": options }));
    }
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": arguments,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": !allow_privilege_escalation,
        },
        "root": { "path": "/mnt" },
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }],
            "seccomp": serde_json::from_str::<Value>(seccomp).context("the seccomp profile")?,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_read_and_unknown_steps_refused() {
        let text =
            "# words\nFROM a\nCOPY b_*.deb /opt/\nRUN c && d\nENTRYPOINT [\"e\"]\nCMD [\"f\", \"g\"]\n";
        let expected = Recipe {
            copies: vec![("b_*.deb".into(), "/opt/".into())],
            runs: vec!["c && d".into()],
            entrypoint: vec!["e".into()],
            command: vec!["f".into(), "g".into()],
        };
        assert_eq!(recipe(text).unwrap(), expected);
        assert!(recipe("ADD x y").is_err() && recipe("CMD f g").is_err());
    }

    #[test]
    fn the_recipe_the_manifest_and_the_profile_are_readable() {
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("packaging");
        let recipe = recipe(&read(&packaging.join("container/Containerfile")).unwrap()).unwrap();
        let (container, documents) = parse(&read(&packaging.join("kubernetes/lnetd.yaml")).unwrap()).unwrap();
        let profile = read(&packaging.join("container/seccomp.json")).unwrap();
        let bundle = bundle(&recipe, &container, &profile).unwrap();
        assert_eq!(bundle["process"]["args"][0], "/usr/bin/lnetd");
        assert_eq!(bundle["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(documents[0].0, "lnetd.yaml");
    }
}
