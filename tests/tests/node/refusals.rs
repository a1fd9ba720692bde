//! What a node refuses to be or to do: each refusal names the value and the way out, and leaves everything as
//! it was.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lnet_core::limits::Limits;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_io::xsk::RingSizes;
use lnet_tests::bpf::load;
use lnet_tests::netns::{Namespace, Netns, Wiring, enter};
use lnet_tests::node::{By, Plan, config, nid_v4, process, start, try_start};
use lnet_user::Buffer;
use lnet_user::node::{NiConfig, NodeConfig, XdpMode, ZeroCopy};
use lnet_user::runtime::{LendError, Worker};
use lnet_wire::Nid;
use lnet_wire::nid::{Net, NetType};
use lnet_wire::steer::{Policy, Spread};
use lnet_xdp::bpf::{ActiveMode, Object, ObjectKind};
use rustix::thread::CapabilitySet;

use crate::privileged;
use crate::traffic::carry_out;

/// A node of this configuration does not start, and says so with all of `parts`.
fn refuse(namespace: &Namespace, config: &NodeConfig, parts: &[&str]) {
    let error = match try_start(namespace, config) {
        Ok(_) => panic!("started: {config:?}"),
        Err(error) => error.to_string(),
    };
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    assert!(!error.contains('\n'), "one line is enough: {error}");
}

/// A node starts there, and carries messages from the other one.
fn works(netns: &Netns) {
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let source = start(netns.a(), &config(netns.a(), a));
    let target = start(netns.b(), &config(netns.b(), b));
    let plan = Plan::of_sizes(vec![(process(a), process(b))], &[10, 14, 16], &[0, 100, 1000]);
    carry_out(plan, source, target, &[By::Application]);
}

fn ip(namespace: &Namespace, arguments: &str) {
    let status = Command::new("ip")
        .args(["-n", namespace.name()])
        .args(arguments.split_whitespace())
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

#[test]
fn configurations_that_cannot_be() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let namespace = netns.a();
    let interface = &namespace.interface().name;
    let nid = nid_v4(namespace.interface(), 0);
    let good = || config(namespace, nid);
    let with_nis = |nis: &[Nid]| good().nis(nis.iter().map(|nid| NiConfig::new(*nid, interface)).collect());
    let check = |config: NodeConfig, parts: &[&str]| refuse(namespace, &config, parts);

    check(good().shards(0), &["0 shards: 1 to 64"]);
    check(good().shards(65), &["65 shards: 1 to 64"]);
    check(good().udp_port(0), &["UDP port 0", "988"]);
    check(with_nis(&[nid, nid]), &["cannot add 10.211.0.1@xdp", "a local nid already"]);
    let other_net = nid_v4(namespace.interface(), 3);
    check(with_nis(&[nid, other_net]), &["10.211.0.1@xdp and 10.211.0.1@xdp3", "same address"]);
    let other = Nid::new_ip(Net::new(NetType::O2IB, 0), namespace.interface().ipv4.into()).unwrap();
    check(with_nis(&[other]), &["net o2ib", "LND type not supported"]);
    let foreign = nid_v4(netns.b().interface(), 0);
    check(
        with_nis(&[foreign]),
        &["veth-a does not have the address of 10.211.0.2@xdp", "it has 10.211.0.1, fd00"],
    );
    let limits = Limits { nis: 1, ..good().limits };
    let two = with_nis(&[nid, other_net]).limits(limits);
    check(two, &["too many NIs: 2 at most, lo included"]);
    let limits = Limits { unlimited_events: 1, ..good().limits };
    check(good().limits(limits), &["unlimited_events: 1", "unlimited_events at least 2"]);
    let rings = RingSizes { fill: u32::MAX, ..RingSizes::default() };
    check(good().rings(rings), &["fill ring of 4294967295 entries", "power of two"]);
    let rings = RingSizes { tx: 1000, ..RingSizes::default() };
    check(good().rings(rings), &["tx ring of 1000 entries", "power of two"]);

    let table = |bits, shard| Policy::MatchBits { shift: 0, bits, spread: Spread::Table([shard; 8]) };
    for (policy, parts) in [
        ((4, Policy::Pin(2)), ["portal 4", "shard 2 of a node with 2", "0 to 1"]),
        ((4, table(3, 7)), ["portal 4", "shard 7 of a node with 2", "0 to 1"]),
        ((4, Policy::Pin(64)), ["portal 4", "shard 64", "below 64"]),
        ((4, table(4, 0)), ["portal 4", "over 4 match bits", "at most 3"]),
        ((64, Policy::Rotor), ["portal", "64", "0 to 63"]),
        (
            (5, Policy::MatchBits { shift: 60, bits: 5, spread: Spread::Hash }),
            ["portal 5", "5 match bits from bit 60", "bits 0 to 63"],
        ),
    ] {
        check(good().policies(vec![policy]), &parts);
    }
    let twice = vec![(4, Policy::Rotor), (4, Policy::Pin(0))];
    check(good().policies(twice), &["portal 4 has two policies"]);
    // A table over one bit has two entries; what stands behind them is never looked up.
    let mut entries = [9; 8];
    (entries[0], entries[1]) = (0, 1);
    let policy = Policy::MatchBits { shift: 0, bits: 1, spread: Spread::Table(entries) };
    drop(start(namespace, &good().policies(vec![(4, policy)])));

    let no_object = good().bpf_object(Some(PathBuf::from("/nonexistent/lnet.bpf.o")));
    check(no_object, &["/nonexistent/lnet.bpf.o", "LNET_BPF_OBJECT", "the built-in one"]);
    let file = std::env::temp_dir().join(format!("lnet-tests-default-{}.o", std::process::id()));
    std::fs::write(&file, Object::BuiltIn(ObjectKind::Default).bytes().unwrap()).unwrap();
    let no_logging = good().bpf_object(Some(file.clone())).log_refusals(true);
    check(no_logging, &["cannot log", "lnet-log.bpf.o"]);
    std::fs::remove_file(&file).unwrap();
    works(&netns);
}

#[test]
fn interfaces_that_do_not_serve() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let namespace = netns.a();
    let [first, second] = namespace.interfaces() else { panic!("two rails") };
    let nid = nid_v4(first, 0);
    let on = |interface: &str| config(namespace, nid).nis(vec![NiConfig::new(nid, interface)]);

    refuse(namespace, &on("nosuch0"), &["\"nosuch0\"", "veth-a"]);
    refuse(namespace, &on("lo"), &["\"lo\"", "loopback", "another interface"]);
    let four = on(&first.name).queues(Some(4));
    refuse(namespace, &four, &["veth-a has 2 receive and 2 transmit queues", "4 of each", "numrxqueues 4"]);
    ip(namespace, "link set dev veth-a1 down");
    let down = config(namespace, nid).nis(vec![NiConfig::new(nid_v4(second, 0), &second.name)]);
    refuse(namespace, &down, &["veth-a1 is down", "ip link set dev veth-a1 up"]);
    // The second rail is what is wrong: the first one is free again afterwards.
    let half = config(namespace, nid)
        .nis(vec![NiConfig::new(nid, &first.name), NiConfig::new(nid_v4(second, 1), &second.name)]);
    refuse(namespace, &half, &["veth-a1 is down"]);

    let port = enter(namespace, || UdpSocket::bind((first.ipv4, 988)).unwrap());
    refuse(namespace, &on(&first.name), &["udp port 988 of 10.211.0.1 is in use", "another port"]);
    drop(port);

    let mut other = load(ObjectKind::Default);
    enter(namespace, || other.attach(&first.name, Some(ActiveMode::Native)).unwrap());
    refuse(namespace, &on(&first.name), &["veth-a has XDP program id", "ip link set dev veth-a xdp off"]);
    drop(other);

    // A second node, with the same port and with another one.
    let running = start(namespace, &on(&first.name));
    refuse(namespace, &on(&first.name), &["udp port 988 of 10.211.0.1 is in use"]);
    let other_port = on(&first.name).udp_port(5000);
    let begun = Instant::now();
    refuse(namespace, &other_port, &["queue 0 of interface veth-a", "an AF_XDP socket of another"]);
    // Sooner than the kernel may take to free a queue that nothing has any more.
    assert!(begun.elapsed() < Duration::from_millis(4500), "{:?}", begun.elapsed());
    let target = start(netns.b(), &config(netns.b(), nid_v4(netns.b().interface(), 0)));
    let rails = vec![(process(nid), process(target.0.nid()))];
    carry_out(Plan::of_sizes(rails, &[10], &[0, 100]), running, target, &[By::Application]);
    works(&netns);
}

#[test]
fn a_driver_that_refuses_xdp() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let namespace = netns.a();
    ip(
        namespace,
        "link add odd0 numrxqueues 1 numtxqueues 1 type veth peer name odd1 numrxqueues 4 numtxqueues 4",
    );
    ip(namespace, "address add 10.212.0.1/24 dev odd0");
    ip(namespace, "link set dev odd0 up");
    ip(namespace, "link set dev odd1 up");
    let nid = Nid::new_ip(Net::new(NetType::XDP, 0), [10, 212, 0, 1].into()).unwrap();
    let on = |mode| config(namespace, nid).mode(mode).nis(vec![NiConfig::new(nid, "odd0")]);
    let parts = ["odd0 (mtu 1500) refuses XDP in native mode", "tx queues", "mode generic works"];
    refuse(namespace, &on(XdpMode::Native), &parts);
    for mode in [XdpMode::Generic, XdpMode::Auto] {
        let (node, _workers) = start(namespace, &on(mode));
        assert_eq!(node.mode().to_string(), "generic");
    }
    works(&netns);
}

/// A veth pair has no zero copy: an NI that must have it is refused, and others say why they have none.
#[test]
fn zero_copy_is_refused_where_it_cannot_be() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let (namespace, interface) = (netns.a(), netns.a().interface());
    let nid = nid_v4(interface, 0);
    let on = |mode, zero_copy| {
        let ni = NiConfig::new(nid, interface.name.as_str()).zero_copy(Some(zero_copy));
        config(namespace, nid).mode(mode).nis(vec![ni])
    };
    for mode in [XdpMode::Auto, XdpMode::Native] {
        let parts = ["cannot have zero copy: the driver has none", "zero_copy auto or off is expected"];
        refuse(namespace, &on(mode, ZeroCopy::On), &parts);
    }
    let parts = ["cannot have zero copy: the XDP program is in generic mode"];
    refuse(namespace, &on(XdpMode::Generic, ZeroCopy::On), &parts);
    refuse(namespace, &on(XdpMode::Socket, ZeroCopy::On), &["zero_copy on is for AF_XDP rings"]);
    for zero_copy in [ZeroCopy::Auto, ZeroCopy::Off] {
        let (node, _workers) = start(namespace, &on(XdpMode::Auto, zero_copy));
        assert_eq!(node.mode(), XdpMode::Native);
    }
    works(&netns);
}

#[test]
fn missing_capabilities_are_named() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let mode = XdpMode::Native;
    let config = config(netns.a(), nid_v4(netns.a().interface(), 0)).mode(mode);
    let without = |lost: CapabilitySet| {
        enter(netns.a(), || {
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(lost);
            rustix::thread::set_capabilities(None, sets).unwrap();
            lnet_user::node::NodeDriver::start(&config).map(drop).unwrap_err().to_string()
        })
    };
    let all = CapabilitySet::all();
    for (lost, parts) in [
        (all, ["not permitted", "CAP_BPF and CAP_NET_ADMIN"]),
        (CapabilitySet::NET_RAW, ["AF_XDP", "CAP_NET_RAW"]),
        (CapabilitySet::NET_BIND_SERVICE, ["udp port 988", "CAP_NET_BIND_SERVICE"]),
        (CapabilitySet::NET_ADMIN, ["permi", "CAP_NET_ADMIN"]),
    ] {
        let error = without(lost);
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}, without {lost:?}");
        }
    }
    works(&netns);
}

fn entry(portal: u32, match_bits: u64, ignore_bits: u64) -> EntrySpec {
    EntrySpec { ignore_bits, ..EntrySpec::new(portal, match_bits) }
}

fn md(length_bytes: u64, options: MdOptions) -> MdSpec {
    MdSpec {
        length_bytes,
        max_size_bytes: None,
        threshold: Threshold::Count(1),
        options,
        auto_unlink: true,
        event_queue: None,
        user_ptr: 0,
    }
}

fn refuse_attach(
    worker: &mut Worker,
    entry: &EntrySpec,
    md: &MdSpec,
    bytes: usize,
    parts: &[&str],
) -> LendError {
    let before = worker.usage();
    let refused = worker.attach(entry, md, Buffer::from(vec![7; bytes])).unwrap_err();
    assert_eq!(refused.buffer[..], vec![7; bytes][..], "the buffer comes back");
    assert_eq!(worker.usage(), before, "nothing was made");
    let text = refused.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    refused.error
}

#[test]
fn entries_and_descriptors_that_a_running_node_refuses() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [a, b] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let mut source = start(netns.a(), &config(netns.a(), a));
    let target = start(netns.b(), &config(netns.b(), b));
    let worker = &mut source.1[0];
    let put = md(100, MdOptions::PUT);

    // Portal 13 looks match bit 1 up in a table, portal 14 is pinned to shard 1, portal 16 belongs to every
    // shard.
    let parts = ["match bits 0x0 of portal 13", "to shard 1", "given to shard 0", "post it on shard 1"];
    refuse_attach(worker, &entry(13, 0, 0), &put, 100, &parts);
    let parts = ["ignore bits 0xff", "bits 0x2", "portal 13", "clear them, or pin the portal"];
    refuse_attach(worker, &entry(13, 2, 0xFF), &put, 100, &parts);
    refuse_attach(worker, &entry(14, 2, 0), &put, 100, &["portal 14", "post it on shard 1"]);
    refuse_attach(worker, &entry(64, 2, 0), &put, 100, &["portal 64", "0 to 63"]);
    let parts = ["buffer of 99 bytes", "descriptor of 100"];
    let error = refuse_attach(worker, &entry(16, 0, 0), &put, 99, &parts);
    assert!(matches!(error, LendError::ShortBuffer { buffer_bytes: 99, length_bytes: 100 }));
    let none = md(100, MdOptions::NONE);
    refuse_attach(worker, &entry(16, 0, 0), &none, 100, &["options 0x0", "PUT or GET"]);
    let refused = worker.bind(&put, Buffer::zeroed(100)).unwrap_err();
    assert!(refused.to_string().contains("neither of them to bind"), "{refused}");
    let long = md(1 << 21, MdOptions::NONE);
    let refused = worker.bind(&long, Buffer::zeroed(1 << 21)).unwrap_err();
    assert!(refused.to_string().contains("length 2097152: at most 1048576"), "{refused}");

    // A descriptor that is gone.
    let md = worker.bind(&none, Buffer::zeroed(100)).unwrap();
    worker.unlink(md).unwrap();
    assert_eq!(worker.unlink(md), Err(md));
    let request = PutRequest {
        md,
        part: None,
        ack: false,
        self_nid: None,
        target: process(b),
        portal: 10,
        match_bits: 0,
        offset: 0,
        hdr_data: 0,
    };
    assert_eq!(worker.put(&request), Err(SubmitError::UnknownMd(md)));

    let plan = Plan::of_sizes(vec![(process(a), process(b))], &[10, 13, 16], &[0, 100, 1000]);
    carry_out(plan, source, target, &[By::ShardThread, By::Application]);
}
