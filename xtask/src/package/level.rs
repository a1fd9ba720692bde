//! The test of the package: it is made, checked by lintian, installed over the machine's own root, started,
//! pinged and removed, beside Lustre's package and without it; the pages for administrators are carried out,
//! and the image and its manifest run as a container.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use xtask::command::say;
use xtask::netns::{Namespace, Pair, Wiring};

use super::root::{Root, Said};
use super::transcript::{Side, Step, fits, steps};
use super::{DOCUMENTS, HOME, LUSTRES, container, make};

/// Pages whose commands are run, and whether the package is installed before.
const PAGES: [(&str, bool); 3] =
    [("docs/install.md", false), ("docs/from-kernel-lnet.md", true), ("docs/troubleshooting.md", true)];
/// Another node of the same nets, which has Lustre's part in the pages.
const PEER: &str =
    "net:\n- net type: tcp\n  local NI(s):\n  - interfaces:\n      0: eth0\n  - interfaces:\n      0: eth1\n";
/// Files that Lustre's package for clients owns, and ours would like to.
const OF_LUSTRE: [&str; 6] = [
    "/usr/sbin/lnetctl",
    "/usr/sbin/lctl",
    "/usr/sbin/lst",
    "/usr/share/man/man8/lnetctl.8.gz",
    "/usr/share/bash-completion/completions/lctl",
    "/etc/lnet.conf",
];

/// Two namespaces with the interfaces of the pages: eth0 and eth1, 10.0.0.1 and 10.1.0.1, and of the peer .2.
fn pair(tag: &str) -> Result<Pair> {
    let pair = Pair::create(tag, Wiring { rails: 2, ..Wiring::default() })?;
    for (side, host) in [(&pair.a, 1), (&pair.b, 2)] {
        for (rail, interface) in side.interfaces().iter().enumerate() {
            let name = &interface.name;
            for words in [
                format!("link set {name} down"),
                format!("address flush dev {name}"),
                format!("link set {name} name eth{rail}"),
                format!("address add 10.{rail}.0.{host}/24 dev eth{rail}"),
                format!("link set eth{rail} up"),
            ] {
                side.ip(&words)?;
            }
        }
    }
    Ok(pair)
}

/// Makes the package of programs that are built with a profile, and tests it.
///
/// # Errors
/// Those of [`test`], and when the package cannot be made.
pub(crate) fn check(root: &Path, profile: &str) -> Result<String> {
    let begun = Instant::now();
    let package = make(root, profile, &root.join("target/debian").join(profile), None)?;
    let made = begun.elapsed().as_secs();
    Ok(format!("made in {made} s; {}", test(root, &package)?))
}

/// Tests a package: all that is said above. Gives a note, how long each part took.
///
/// # Errors
/// Names what is not as it is to be, or what is missing on this machine.
pub(super) fn test(root: &Path, package: &Path) -> Result<String> {
    let test = Test { root: root.to_owned(), package: package.to_owned() };
    let parts: [(&str, Part); 5] = [
        ("alone", Test::comes_and_goes),
        ("beside Lustre's", Test::comes_and_goes_beside_lustre),
        ("container", Test::container),
        ("pages", Test::pages),
        ("lintian", Test::lintian),
    ];
    let mut notes = Vec::new();
    for (name, part) in parts {
        let begun = Instant::now();
        part(&test).with_context(|| format!("the package, {name}"))?;
        notes.push(format!("{name} {} s", begun.elapsed().as_secs()));
    }
    Ok(notes.join(", "))
}

/// A part of the test.
type Part = fn(&Test) -> Result<()>;

/// A package that is tested.
struct Test {
    root: PathBuf,
    package: PathBuf,
}

impl Test {
    /// Has lintian look at the package; what it calls an error is one.
    fn lintian(&self) -> Result<()> {
        let mut command = Command::new("lintian");
        command.args(["--fail-on", "error", "--allow-root", "--tag-display-limit", "3"]).arg(&self.package);
        let said = command.stdin(Stdio::null()).output().context("`lintian` did not start")?;
        let text = String::from_utf8_lossy(&said.stdout);
        ensure!(said.status.success(), "lintian finds errors, {}:\n{text}", said.status);
        say(text.trim_end());
        Ok(())
    }

    /// A root with the package's file in it, in `/tmp`.
    fn root(&self, namespace: &Namespace, name: &str) -> Result<Root> {
        let root = Root::new(Some(namespace), &self.root.join("target/package-roots").join(name))?;
        let name = self.package.file_name().context("a package has a name")?.to_string_lossy();
        root.put(&self.package, &format!("/tmp/{name}"))?;
        root.write("/run/bin/systemctl", SYSTEMCTL)?;
        // Without this file the index of man pages, which takes long, stays as it is.
        root.good("chmod 755 /run/bin/systemctl; rm -f /var/lib/man-db/auto-update")?;
        Ok(root)
    }

    /// The other node: installed, started, with both nets.
    fn peer(&self, namespace: &Namespace) -> Result<Root> {
        let peer = self.root(namespace, "peer")?;
        peer.good(INSTALL)?;
        peer.write("/etc/lnetd.yaml", PEER)?;
        peer.good("systemctl start lnetd")?;
        Ok(peer)
    }

    fn comes_and_goes(&self) -> Result<()> {
        let pair = pair("package")?;
        let node = self.root(&pair.a, "node")?;
        node.good(INSTALL)?;
        let _peer = self.peer(&pair.b)?;
        node.good("systemctl start lnetd")?;
        let version = node.good("lnetctl --version")?;
        ensure!(version.starts_with("lnetctl "), "{version}");
        node.good("lnetctl net add --net tcp --if eth0")?;
        let answer = node.good("lnetctl ping 10.0.0.2@tcp")?;
        ensure!(answer.contains("nid: 10.1.0.2@tcp"), "{answer}");
        for program in LUSTRES {
            let page = node.good(&format!("man --path 8 {program}"))?;
            ensure!(page.trim().ends_with(".8lnet.gz"), "{page}");
            node.good(&format!("test -s /usr/share/bash-completion/completions/{program}"))?;
        }
        let listed = node.good("dpkg --listfiles lnet-userspace")?;
        for part in
            ["grafana/lnet.json", "wireshark/lnet-xdp.lua", "seccomp.json", "systemd/system/lnetd.service"]
        {
            ensure!(listed.contains(part), "{part} is not in the package");
        }
        let crates = node.good(&format!("cat /{DOCUMENTS}/crates"))?;
        ensure!(crates.contains("tokio v") && crates.contains("\tMIT"), "{crates}");
        // Changes by an administrator stay until a purge.
        node.good("echo '# ours' >> /etc/lnetd.yaml")?;
        node.good("systemctl stop lnetd")?;
        node.good("dpkg --remove lnet-userspace")?;
        node.bad("command -v lnetctl lnetd")?;
        node.good("grep ours /etc/lnetd.yaml")?;
        node.good("dpkg --purge lnet-userspace")?;
        let stayed = node.changes()?;
        ensure!(stayed.is_empty(), "a purge leaves: {}", stayed.join(", "));
        node.bad("ls -d /run/lnet")?;
        Ok(())
    }

    /// Lustre's tools stay where they are, whichever package comes first; without them the names are ours.
    fn comes_and_goes_beside_lustre(&self) -> Result<()> {
        let pair = pair("lustre")?;
        for lustre_is_first in [true, false] {
            let node = self.root(&pair.a, "node")?;
            node.good(&lustre_package())?;
            let lustre = "dpkg --install /tmp/lustre.deb";
            let [first, second] = if lustre_is_first { [lustre, INSTALL] } else { [INSTALL, lustre] };
            node.good(first)?;
            node.good(second)?;
            let are_lustres = |when: &str| -> Result<()> {
                for path in OF_LUSTRE {
                    let text = node.good(&format!("cat {path}"))?;
                    ensure!(text.contains("of Lustre"), "{when}: {path} has {text:?}");
                }
                Ok(())
            };
            are_lustres("both are installed")?;
            let ours = node.good(&format!("/{HOME}/bin/lnetctl --version"))?;
            ensure!(ours.starts_with("lnetctl "), "{ours}");
            if lustre_is_first {
                node.good("dpkg --purge lnet-userspace")?;
                are_lustres("ours is gone")?;
                node.good("dpkg --purge lustre-client-utils")?;
            } else {
                node.good("dpkg --purge lustre-client-utils")?;
                let ours = node.good("/usr/sbin/lnetctl --version")?;
                ensure!(ours.starts_with("lnetctl "), "Lustre's is gone: {ours}");
                node.good("dpkg --purge lnet-userspace")?;
            }
            let stayed = node.changes()?;
            ensure!(stayed.is_empty(), "both are gone, and these stay: {}", stayed.join(", "));
        }
        Ok(())
    }

    fn pages(&self) -> Result<()> {
        let ends: Vec<_> = PAGES.iter().map(|(page, is_installed)| self.page(page, *is_installed)).collect();
        ends.into_iter().collect()
    }

    /// Runs the commands of a page.
    fn page(&self, page: &str, is_installed: bool) -> Result<()> {
        let path = self.root.join(page);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let steps = steps(&text)?;
        ensure!(!steps.is_empty(), "there are no commands to run");
        let pair = pair("page")?;
        let peer = self.peer(&pair.b)?;
        let node = self.root(&pair.a, "node")?;
        if is_installed {
            node.good(INSTALL)?;
            node.good("systemctl start lnetd")?;
        }
        let mut differences = Vec::new();
        for Step { line, side, command, printed } in &steps {
            let root = if *side == Side::Node { &node } else { &peer };
            let Said { text, is_good } = root.run(command)?;
            let fits = match printed {
                Some(expected) => fits(expected, &text.lines().collect::<Vec<_>>()),
                None => is_good,
            };
            if !fits {
                differences.push(format!("{page}:{line}: `{command}` prints:\n{text}"));
            }
        }
        ensure!(differences.is_empty(), "{}", differences.join("\n"));
        Ok(())
    }

    fn container(&self) -> Result<()> {
        let pair = pair("image")?;
        let _peer = self.peer(&pair.b)?;
        container::check(&self.root, &self.package, &pair.a, "10.0.0.2@tcp")
    }
}

/// Installs the package as dpkg does, without asking.
const INSTALL: &str = "dpkg --install /tmp/lnet-userspace_*.deb";

/// Makes a package with files that Lustre's has.
fn lustre_package() -> String {
    let files = OF_LUSTRE.map(|path| {
        format!("mkdir -p \"/tmp/lustre$(dirname {path})\" && echo '# of Lustre' > /tmp/lustre{path}")
    });
    let control = "Package: lustre-client-utils\\nVersion: 1\\nArchitecture: all\\nMaintainer: A <a@example.org>\\n\
                   Description: Lustre\\n";
    format!(
        "set -e; {}; mkdir /tmp/lustre/DEBIAN; printf '{control}' > /tmp/lustre/DEBIAN/control; \
         echo /etc/lnet.conf > /tmp/lustre/DEBIAN/conffiles; \
         dpkg-deb --root-owner-group --build /tmp/lustre /tmp/lustre.deb",
        files.join("; ")
    )
}

/// Stands in for systemd, which runs in no such root: carries out the lines of the unit that start the
/// daemon, end it and have it read its document again.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -e
unit=/usr/lib/systemd/system/lnetd.service
value() { sed -n "s/^$1=-\?//p" $unit; }
is_active() { [ -f /run/lnetd.pid ] && kill -0 "$(cat /run/lnetd.pid)" 2> /dev/null; }
export MAINPID="$(cat /run/lnetd.pid 2> /dev/null)"
case "$1" in
start)
    is_active && exit
    eval "$(value Environment)"
    . "$(value EnvironmentFile)"
    mkdir -p /run/lnet
    : > /run/lnetd.log
    eval "exec $(value ExecStart)" > /run/lnetd.log 2>&1 < /dev/null &
    echo $! > /run/lnetd.pid
    for turn in $(seq 1000); do
        grep -q ready /run/lnetd.log && exit
        is_active || break
        sleep 0.02
    done
    cat /run/lnetd.log
    exit 1
    ;;
stop)
    is_active || exit 0
    kill $MAINPID
    while is_active; do sleep 0.02; done
    ;;
restart) "$0" stop lnetd && "$0" start lnetd ;;
reload) eval "$(value ExecReload)" ;;
is-active) is_active && echo active ;;
*) exit 1 ;;
esac
"#;
