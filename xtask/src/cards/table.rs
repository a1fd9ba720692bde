//! The table of cells: what is booted, and what runs in it.

use std::fmt;

use anyhow::{Result, ensure};

/// Kernels of the table.
const KERNELS: [&str; 3] = ["6.1", "6.12", "sid"];
/// A kernel without what rings and io_uring want of Linux: sockets and tcp work there.
const OLD: &str = "5.10";
/// The small kernel of the cell in `cargo xtask test`.
pub(super) const SMALL: &str = "6.12-cloud";
/// Models of NICs, with the largest MTU that each is tried with. `virtio-iommu` is virtio that goes by the
/// DMA API, which it needs for zero copy.
const NICS: [(&str, u16); 6] = [
    ("virtio", 9000),
    ("virtio-iommu", 9000),
    ("igb", 9000),
    ("e1000e", 9000),
    ("vmxnet3", 9000),
    ("rtl8139", 3500),
];
/// Virtio with `net_failover` before it: without a card that it stands in for, and with one (e1000e).
const STAND_INS: [&str; 2] = ["virtio-failover", "virtio-primary"];
/// Where the net lies: the NIC itself, or a device upon it.
const DEVICES: [&str; 12] = [
    "plain",
    "vlan",
    "bridge",
    "active-backup",
    "balance-xor",
    "802.3ad",
    "team",
    "macvlan",
    "vxlan",
    "ipip",
    "tun",
    "wireguard",
];
/// Devices without Ethernet, which rings need.
const WITHOUT_ETHERNET: [&str; 3] = ["ipip", "tun", "wireguard"];
/// The device of cells with a bad wire: a veth in a bridge with the NIC. Rings pass a NIC's queueing
/// discipline by, and what a bridge sends goes through it.
const BEHIND_BRIDGE: &str = "veth";
/// Cells that are to have a load by each queue of the NIC.
pub(super) const SPREAD: &str = "spread";
/// Cells whose rings, queues, MTU and link change under load.
pub(super) const CHANGES: &str = "changes";
/// Cells whose NI is deleted under load, and whose daemon is killed under load and begins anew.
pub(super) const LIVES: &str = "lives";
/// Cells in which two programs also send bulk data out of registered memory.
pub(super) const REGISTERED: &str = "registered";
/// Cells that get frames of a VLAN which is not theirs.
pub(super) const TAGGED: &str = "tagged";
/// Cells whose NIC begins with one queue, and gets as many as it can have under load.
pub(super) const GROWS: &str = "grows";
/// Cells that also have a net on a veth, whose rings copy, in a bridge with the other NIC.
pub(super) const MIXED: &str = "mixed";
/// Cells with long messages, by what the node chooses to send them by, and by rings.
pub(super) const BY_RINGS: &str = "rings";
/// Cells whose card loses its cable, and then goes, under load: another one stands in for it.
pub(super) const UNPLUGGED: &str = "unplugged";
/// Harms that netem does to what a NIC sends, with its words for them.
const HARMS: [(&str, &str); 5] = [
    ("loss", "loss 1%"),
    ("delay", "delay 20ms"),
    ("reorder", "delay 10ms reorder 25% 50%"),
    ("duplicate", "duplicate 1%"),
    ("corrupt", "corrupt 0.5%"),
];
/// The kernel of cells with a bad wire, and of devices upon a NIC.
const MIDDLE: &str = "6.12";
/// Devices that a card's offloads and queues have to do with.
const KNOWN_TO_CARDS: [&str; 4] = ["vlan", "active-backup", "balance-xor", "802.3ad"];
/// Modes of cells with a bad wire: over rings and over sockets.
const HARMED_MODES: [&str; 2] = ["auto", "socket"];
/// Modes of the `xdp` LND, and the `tcp` LND.
pub(super) const MODES: [&str; 5] = ["auto", "native", "generic", "socket", "tcp"];
/// The MTU of Ethernet.
const MTU_BYTES: u16 = 1500;

/// Two machines of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Boot {
    /// Label of the kernel.
    pub(super) kernel: &'static str,
    /// Model of the two NICs.
    pub(super) nic: &'static str,
    /// Queues that a NIC is given; only virtio takes the number, others have what their driver makes.
    pub(super) queues: u8,
    /// CPUs of each machine.
    pub(super) cpus: u8,
}

/// A cell of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    /// Machine that it runs in.
    pub(super) boot: Boot,
    /// MTU of the NIC in bytes.
    pub(super) mtu_bytes: u16,
    /// Where the net lies: `plain`, or a device on the NIC.
    pub(super) device: &'static str,
    /// How messages travel.
    pub(super) mode: &'static str,
    /// Further part: [`SPREAD`], [`CHANGES`], [`LIVES`], [`REGISTERED`], [`TAGGED`], [`GROWS`], [`MIXED`],
    /// [`BY_RINGS`], [`UNPLUGGED`], a harm, or empty.
    pub(super) with: &'static str,
}

impl fmt::Display for Boot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, nic, queues, cpus } = self;
        write!(formatter, "{kernel}/{nic}/{queues}q/{cpus}c")
    }
}

/// The cell's name: its parts with slashes between them.
impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boot, mtu_bytes, device, mode, with } = self;
        write!(formatter, "{boot}/{mtu_bytes}/{device}/{mode}")?;
        if with.is_empty() { Ok(()) } else { write!(formatter, "/{with}") }
    }
}

impl Cell {
    /// Whether the node is to refuse the mode: the driver lacks native XDP there, or the kernel is too old.
    /// `ndo_bpf` is absent in e1000e, 8139cp and 8139too, in vmxnet3 before Linux 6.6, and in the
    /// devices upon a NIC, but for bonds, on which native rings would be deaf.
    pub(super) fn is_to_be_refused(&self) -> bool {
        let device_lacks = !matches!(self.device, "plain" | BEHIND_BRIDGE);
        let old = self.boot.kernel == "6.1";
        let nic_lacks = matches!(self.boot.nic, "e1000e" | "rtl8139") || old && self.boot.nic == "vmxnet3";
        let is_too_old = self.boot.kernel == OLD && self.mode == "generic";
        self.mode == "native" && (device_lacks || nic_lacks || self.boot.kernel == OLD) || is_too_old
    }

    /// Words for netem, where the wire is bad.
    pub(super) fn harm(&self) -> Option<&'static str> {
        HARMS.iter().find(|(name, _)| *name == self.with).map(|(_, words)| *words)
    }
}

impl Cell {
    /// Whether the net lies on a bond or a team, whose cables are pulled under load.
    pub(super) fn is_bond(&self) -> bool {
        self.device == "802.3ad" || self.has_joined_lans()
    }

    /// Whether the two LANs are one: machines that send by different ones reach each other. LACP wants wires
    /// of its own, whose ends find out that a port has gone.
    pub(super) fn has_joined_lans(&self) -> bool {
        matches!(self.device, "active-backup" | "balance-xor" | "team")
    }

    /// Whether the net lies on the NIC itself: nothing but its own link has to come up, so that the first
    /// ping is answered.
    pub(super) fn is_on_nic(&self) -> bool {
        self.device == "plain" && !STAND_INS.contains(&self.boot.nic)
    }

    /// Whether the kernel tells of the sockets of rings (`XDP_SOCKETS_DIAG`): Debian's 6.1 is built without.
    pub(super) fn tells_sockets(&self) -> bool {
        self.boot.kernel != "6.1"
    }

    /// Receive queues of the NIC, of so many, whose sockets are to have zero copy. The drivers have it in
    /// the newest kernel alone, for frames that fit one buffer. Queues that come once the program is there
    /// copy, since a driver may take them away with it, as virtio does.
    pub(super) fn zero_copy_queues(&self, queues: u32) -> u32 {
        let Self { boot: Boot { kernel, nic, cpus, .. }, mtu_bytes, mode, with, .. } = *self;
        let is_native = self.is_on_nic() && matches!(mode, "auto" | "native");
        match nic {
            _ if !is_native || kernel != "sid" || mtu_bytes > MTU_BYTES => 0,
            _ if with == GROWS => queues.min(1),
            "igb" => queues,
            "virtio-iommu" => queues.min(cpus.into()),
            _ => 0,
        }
    }
}

impl Boot {
    const fn usual(kernel: &'static str, nic: &'static str) -> Self {
        Self { kernel, nic, queues: if has_queues(nic) { 4 } else { 1 }, cpus: 2 }
    }
}

/// Whether a NIC is told how many queues it has.
const fn has_queues(nic: &str) -> bool {
    matches!(nic.as_bytes(), b"virtio" | b"virtio-iommu" | b"virtio-failover" | b"virtio-primary")
}

/// The cell of `cargo xtask test`.
pub(super) const fn short() -> Cell {
    let boot = Boot { kernel: SMALL, nic: "virtio", queues: 4, cpus: 2 };
    Cell { boot, mtu_bytes: MTU_BYTES, device: "plain", mode: "auto", with: "" }
}

/// All cells, those of one boot together:
/// - with an old kernel, each mode; with the others, each NIC with each mode, and in mode `auto` with other
///   numbers of queues and CPUs and with a large MTU;
/// - each device with each mode, over virtio and the middle kernel, and those that a card knows of over igb
///   in mode `auto`; each harm over rings and over sockets with that kernel;
/// - loads by all of four queues; changes under load, queues that come under load, lives, and frames of
///   another VLAN where a driver has something to do with them; bulk data out of registered memory, and
///   rings that copy beside those that do not, where there is zero copy; long messages by rings where the
///   kernel copies.
pub(super) fn cells() -> Vec<Cell> {
    let mut cells = vec![short()];
    let of_old = |nic, mode| Cell { boot: Boot::usual(OLD, nic), mode, ..short() };
    cells.extend(MODES.map(|mode| of_old("virtio", mode)));
    cells.push(of_old("igb", "auto"));
    for kernel in KERNELS {
        for (nic, mtu_max_bytes) in NICS {
            let boot = Boot::usual(kernel, nic);
            let plain = Cell { boot, mtu_bytes: MTU_BYTES, device: "plain", mode: "auto", with: "" };
            // A card's way into memory has to do with rings alone.
            let modes =
                MODES.iter().filter(|mode| nic != "virtio-iommu" || !matches!(**mode, "socket" | "tcp"));
            cells.extend(modes.map(|mode| Cell { mode, ..plain }));
            cells.push(Cell { mtu_bytes: mtu_max_bytes, ..plain });
            let further: &[_] = match (kernel, nic) {
                ("6.1", "virtio" | "igb") | (MIDDLE, "vmxnet3") => &[BY_RINGS],
                (MIDDLE, "virtio") => &[CHANGES, GROWS, BY_RINGS],
                (MIDDLE, "igb") => &[CHANGES, GROWS, BY_RINGS, TAGGED],
                (MIDDLE, "e1000e") => &[CHANGES, TAGGED],
                ("sid", "virtio") => &[GROWS, BY_RINGS],
                ("sid", "igb") => &[CHANGES, GROWS, LIVES, REGISTERED, MIXED, TAGGED],
                ("sid", "virtio-iommu") => &[CHANGES, LIVES, REGISTERED, MIXED],
                _ => &[],
            };
            // Virtio refuses `ethtool -L` while it has a program.
            let mode_of = |with| if (nic, with) == ("virtio", GROWS) { "generic" } else { plain.mode };
            cells.extend(further.iter().map(|&with| Cell { with, mode: mode_of(with), ..plain }));
            if kernel == MIDDLE && matches!(nic, "virtio" | "igb") {
                let modes: &[_] = if nic == "virtio" { &MODES } else { &["auto"] };
                let devices = DEVICES[1..].iter().copied();
                let devices = devices.filter(|device| nic == "virtio" || KNOWN_TO_CARDS.contains(device));
                let each = |device| modes.iter().map(move |&mode| Cell { device, mode, ..plain });
                let fits = |cell: &Cell| {
                    !WITHOUT_ETHERNET.contains(&cell.device) || !matches!(cell.mode, "native" | "generic")
                };
                cells.extend(devices.flat_map(each).filter(fits));
            }
            if kernel == MIDDLE && nic == "virtio" {
                let behind = Cell { device: BEHIND_BRIDGE, ..plain };
                let harms = HARMS.iter().map(|(with, _)| Cell { with, ..behind });
                cells.extend(harms.flat_map(|cell| HARMED_MODES.map(|mode| Cell { mode, ..cell })));
            }
            let others: &[(u8, u8)] = match nic {
                "virtio" => &[(1, 1), (4, 4)],
                // Queues that are as many as CPUs leave none that XDP could add.
                "virtio-iommu" => &[(4, 4)],
                "igb" | "vmxnet3" => &[(1, 1), (1, 4)],
                _ => &[],
            };
            for &(queues, cpus) in others {
                let cell = Cell { boot: Boot { queues, cpus, ..boot }, ..plain };
                cells.push(cell);
                if cpus == 4 && kernel != "6.1" && matches!(nic, "virtio" | "igb") {
                    cells.push(Cell { with: SPREAD, ..cell });
                }
            }
            if kernel == MIDDLE && nic == "virtio" {
                let [alone, with_card] =
                    STAND_INS.map(|nic| Cell { boot: Boot::usual(kernel, nic), ..plain });
                cells.extend([alone, Cell { with: UNPLUGGED, ..with_card }]);
            }
        }
    }
    cells
}

/// The cells that have all of `words` among the parts of their names.
///
/// # Errors
/// When none has; the parts that there are stand in the error.
pub(super) fn only(cells: &[Cell], words: &[String]) -> Result<Vec<Cell>> {
    let has_all = |cell: &Cell| {
        let name = cell.to_string();
        words.iter().all(|word| name.split('/').any(|part| part == word))
    };
    let found: Vec<_> = cells.iter().copied().filter(has_all).collect();
    ensure!(
        !found.is_empty(),
        "no cell has {} in its name; parts of names: {}",
        words.join(" and "),
        parts(cells)
    );
    Ok(found)
}

/// All parts of names, each once.
fn parts(cells: &[Cell]) -> String {
    let mut parts = Vec::new();
    for name in cells.iter().map(Cell::to_string) {
        for part in name.split('/') {
            if !parts.iter().any(|known| known == part) {
                parts.push(part.to_owned());
            }
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn words(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_table_has_each_pair_that_it_promises_and_no_cell_twice() {
        let cells = cells();
        assert!((80..=225).contains(&cells.len()), "{}", cells.len());
        let names: BTreeSet<_> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names.len(), cells.len());
        for kernel in KERNELS {
            for (nic, mtu_bytes) in NICS {
                let of = |cell: &&Cell| cell.boot.kernel == kernel && cell.boot.nic == nic;
                for mode in
                    MODES.iter().filter(|mode| nic != "virtio-iommu" || !matches!(**mode, "socket" | "tcp"))
                {
                    assert!(cells.iter().filter(of).any(|cell| cell.mode == *mode), "{kernel} {nic} {mode}");
                }
                assert!(cells.iter().filter(of).any(|cell| cell.mtu_bytes == mtu_bytes), "{kernel} {nic}");
            }
        }
        for device in DEVICES {
            let modes: Vec<_> =
                cells.iter().filter(|cell| cell.device == device).map(|cell| cell.mode).collect();
            let lacks_ethernet = WITHOUT_ETHERNET.contains(&device);
            for mode in MODES {
                let is_possible = !lacks_ethernet || !matches!(mode, "native" | "generic");
                assert!(modes.contains(&mode) || !is_possible, "{device}: {modes:?}");
            }
        }
        for kernel in ["6.12", "sid"] {
            let of = |with: &str, mode: &str| {
                let mut of_kernel = cells.iter().filter(|cell| cell.boot.kernel == kernel);
                of_kernel.any(|cell| cell.with == with && cell.mode == mode)
            };
            assert!(of(SPREAD, "auto") && of(GROWS, "auto") && of(GROWS, "generic"), "{kernel}");
            assert!(of(BY_RINGS, "auto"), "{kernel}");
            let is_harmed = kernel == MIDDLE;
            for (harm, _) in HARMS {
                assert!(HARMED_MODES.iter().all(|mode| of(harm, mode) == is_harmed), "{kernel} {harm}");
            }
        }
    }

    #[test]
    fn cells_of_one_boot_stand_together() {
        let mut boots: Vec<_> = cells().iter().map(|cell| cell.boot).collect();
        boots.dedup();
        assert_eq!(boots.iter().collect::<BTreeSet<_>>().len(), boots.len());
    }

    #[test]
    fn refusals_are_expected_where_a_driver_has_no_native_xdp() {
        let lacks = |words_: &str| only(&cells(), &words(words_)).unwrap().iter().all(Cell::is_to_be_refused);
        assert!(lacks("vlan native") && lacks("e1000e native") && lacks("6.1 vmxnet3 native"));
        assert!(lacks("5.10 native") && lacks("5.10 generic") && !lacks("5.10 auto"));
        assert!(!lacks("6.12 vmxnet3 native") && lacks("active-backup native") && !lacks("vlan generic"));
    }

    #[test]
    fn zero_copy_is_expected_where_a_driver_has_it() {
        let check = |words_: &str, queues: u32, expected: u32| {
            let found = only(&cells(), &words(words_)).unwrap();
            for cell in found {
                assert_eq!(cell.zero_copy_queues(queues), expected, "{cell}");
            }
        };
        check("sid igb auto 1500 changes", 8, 8);
        check("sid igb auto grows", 8, 1);
        check("sid igb native", 2, 2);
        check("sid virtio-iommu 2c 1500 auto", 4, 2);
        check("sid virtio-iommu 4c 1500 auto", 4, 4);
        for words in ["sid igb 9000", "sid virtio-iommu 9000", "sid virtio", "sid vmxnet3", "sid e1000e"] {
            check(words, 4, 0);
        }
        for words in ["6.12 igb", "6.1 igb", "6.12 virtio-iommu", "sid generic", "sid socket", "sid tcp"] {
            check(words, 4, 0);
        }
        let with = |part: &'static str| cells().into_iter().filter(move |cell| cell.with == part);
        for part in [REGISTERED, MIXED] {
            assert!(with(part).count() == 2 && with(part).all(|cell| cell.zero_copy_queues(4) > 0), "{part}");
        }
        assert!(with(BY_RINGS).count() == 6 && with(BY_RINGS).all(|cell| cell.zero_copy_queues(4) == 0));
    }

    #[test]
    fn a_filter_takes_whole_parts_of_names() {
        let all = cells();
        assert_eq!(only(&all, &[]).unwrap(), all);
        let virtio = only(&all, &words("virtio 6.12")).unwrap();
        assert!(virtio.iter().all(|cell| cell.boot.nic == "virtio" && cell.boot.kernel == "6.12"));
        let loss = only(&all, &words("6.12 loss socket")).unwrap();
        let [loss] = loss[..] else { panic!("{loss:?}") };
        assert_eq!(loss.to_string(), "6.12/virtio/4q/2c/1500/veth/socket/loss");
        assert_eq!(loss.harm(), Some("loss 1%"));
        let one = only(&all, &words("6.12 virtio vlan tcp")).unwrap();
        assert_eq!(one.iter().map(Cell::to_string).collect::<Vec<_>>(), ["6.12/virtio/4q/2c/1500/vlan/tcp"]);
        let error = only(&all, &words("igb 5.4")).unwrap_err().to_string();
        assert!(
            error.starts_with("no cell has igb and 5.4 in its name") && error.contains("rtl8139"),
            "{error}"
        );
    }
}
