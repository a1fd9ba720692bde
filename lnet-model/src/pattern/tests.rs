use alloc::string::{String, ToString};
use std::net::IpAddr;

use lnet_wire::Net;
use proptest::prelude::*;

use super::*;

fn texts(list: &str) -> Vec<String> {
    nids(list).unwrap().iter().map(ToString::to_string).collect()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, errno: Errno) {
    assert_eq!(result.unwrap_err().errno, errno);
}

#[test]
fn integers_are_read_as_c_does() {
    let check = |text, expected| assert_eq!(integer(text), expected, "{text}");
    check("0", Some(0));
    check("42", Some(42));
    check("-1", Some(-1));
    check("+7", Some(7));
    check("0x1F", Some(31));
    check("-0X10", Some(-16));
    check("017", Some(15));
    check("9223372036854775807", Some(i64::MAX));
    check("-9223372036854775808", Some(i64::MIN));
    for bad in ["", "-", "0x", "08", "1 ", " 1", "--1", "0x-1", "1e3", "9223372036854775808", "ü", "1_0"] {
        check(bad, None);
    }
}

#[test]
fn nids_are_enumerated_last_part_fastest() {
    assert_eq!(texts("10.0.0.1@tcp"), ["10.0.0.1@tcp"]);
    assert_eq!(
        texts("10.[1-2].0.[0-2/2]@tcp"),
        ["10.1.0.0@tcp", "10.1.0.2@tcp", "10.2.0.0@tcp", "10.2.0.2@tcp"]
    );
    assert_eq!(
        texts("10.0.0.[1,2,3-4]@tcp0, 7@gni"),
        ["10.0.0.1@tcp", "10.0.0.2@tcp", "10.0.0.3@tcp", "10.0.0.4@tcp", "7@gni"]
    );
    assert_eq!(texts("[5-6]@kfi"), ["5@kfi", "6@kfi"]);
    assert_eq!(texts("10.0.0.[0]@xdp3"), ["10.0.0.0@xdp3"]);
    assert_eq!(texts("2001:db8::[9-a]@tcp"), ["2001:db8::9@tcp", "2001:db8::a@tcp"]);
    assert_eq!(texts("10.0.0.1@tcp,10.0.0.1@tcp").len(), 2);
    assert_eq!(texts("10.0.0.[1-2], 2001:db8::9"), ["10.0.0.1@tcp", "10.0.0.2@tcp", "2001:db8::9@tcp"]);
}

#[test]
fn bad_lists_of_nids_are_refused_whole() {
    for bad in [
        "",
        ",",
        "10.0.0",
        "5",
        "host",
        "10.0.0.1@",
        "10.0.0.1@foo",
        "@tcp",
        "*@tcp",
        "10.0.0.*@tcp",
        "<?>",
        "<?>@tcp",
        "10.0.0.1-5@tcp",
        "10.0.0.[5-1]@tcp",
        "10.0.0.[1-5/0]@tcp",
        "10.0.0.[]@tcp",
        "10.0.0.[1,,2]@tcp",
        "10.0.0.[1-2@tcp",
        "10.0.0.1-2]@tcp",
        "10.0.0.[[1]]@tcp",
        "10.0.0.]1[@tcp",
        "10.0.0.1[2-3]@tcp",
        "10.0.0.[2-3]4@tcp",
        "10.0.0.[256]@tcp",
        "10.0.0.[a]@tcp",
        "10.0.0.[+1]@tcp",
        "1.1.1.1@gni",
        "1@tcp",
        "10.0.0.1@tcp,",
        "10.0.0.1@tcp[1-2]",
        "10.0.0.1@tcp 10.0.0.2@tcp",
        "10.0.0.1@tcp65536",
        "host@tcp",
        "10.0.0.[1]-[2]@tcp",
        "10.0[1].0.1@tcp",
    ] {
        refused(nids(bad), Errno::INVAL);
    }
    refused(nids("10.0.[0-1].[1-65]@tcp"), Errno::TOOBIG);
    refused(nids("[0-255].[0-255].[0-255].[0-255]@tcp"), Errno::TOOBIG);
    refused(nids(&["[0-4294967295]@gni"; 9].join(",")), Errno::TOOBIG);
    assert_eq!(nids("10.0.[0-1].[1-64]@tcp").unwrap().len(), NIDS_MAX);
    assert_eq!(nodes("10.0.[0-15].[0-255]@tcp").unwrap().len(), NODES_MAX);
    let error = nodes("10.0.[0-15].[0-255]@tcp,10.1.0.1@tcp").unwrap_err();
    assert_eq!((error.errno, error.message.contains("at most 4096 nids")), (Errno::TOOBIG, true));
}

#[test]
fn hosts_are_looked_up_and_addresses_are_not() {
    let resolve = |host: &str, _| match host {
        "node-1.example" => Ok(Some(IpAddr::from([10, 0, 0, 7]))),
        other => panic!("{other} is looked up"),
    };
    let found = nids_resolved("node-1.example@xdp2,10.0.0.8@tcp", NIDS_MAX, &resolve).unwrap();
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.7@xdp2", "10.0.0.8@tcp"]);
    let bare = nids_resolved("node-1.example", NIDS_MAX, &resolve).unwrap();
    assert_eq!(bare.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.7@tcp"]);
    refused(nids_resolved("10.0.0.1-5@tcp", NIDS_MAX, &resolve), Errno::INVAL);
    refused(nids_resolved("10.0.0@tcp", NIDS_MAX, &resolve), Errno::INVAL);
}

#[test]
fn single_nids_are_on_tcp_unless_they_say_otherwise() {
    assert_eq!(nid("10.0.0.1").unwrap().to_string(), "10.0.0.1@tcp");
    assert_eq!(nid("10.0.0.1@xdp2").unwrap().to_string(), "10.0.0.1@xdp2");
    for bad in ["", "foo", "<?>", "10.0.0.1@foo", "10.0.0.[1-2]@tcp"] {
        refused(nid(bad), Errno::INVAL);
    }
}

#[test]
fn nids_of_fault_rules_may_be_wildcards() {
    let check = |text: &str, printed: &str, given: &str| {
        let nid = fault_nid(text).unwrap();
        assert_eq!((nid.to_string().as_str(), fault_nid_text(&nid).as_str()), (printed, given));
        assert_eq!(fault_nid(printed), Ok(nid));
        assert_eq!(fault_nid(given), Ok(nid));
    };
    check("*", "<?>", "*");
    check("*@tcp", "255.255.255.255@tcp", "*@tcp");
    check("*@xdp3", "255.255.255.255@xdp3", "*@xdp3");
    check("10.0.0.1@tcp", "10.0.0.1@tcp", "10.0.0.1@tcp");
    for bad in ["", "foo", "*@", "*@foo", "10.0.0.1", "10.0.0.*@tcp"] {
        refused(fault_nid(bad), Errno::INVAL);
    }
}

#[test]
fn interfaces_may_name_cpts() {
    let check = |text: &str, expected: &[(&str, &[u32])]| {
        let found = interfaces(text).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.cpts.as_slice())).collect();
        assert_eq!(found, expected);
    };
    check("eth0", &[("eth0", &[])]);
    check("eth0, eth1", &[("eth0", &[]), ("eth1", &[])]);
    check("eth0[0],eth1[1-3,5]", &[("eth0", &[0]), ("eth1", &[1, 2, 3, 5])]);
    check("eth0:0,eth0", &[("eth0:0", &[]), ("eth0", &[])]);
    for bad in
        ["", ",", "eth0,", "eth0[]", "eth0[1-0]", "eth0[1", "eth0]1[", "[1]", "eth 0", "eth0[1]x", "a/b"]
    {
        refused(interfaces(bad), Errno::INVAL);
    }
    refused(interfaces(&"x".repeat(128)), Errno::INVAL);
    check(&"x".repeat(127), &[(&"x".repeat(127), &[])]);
}

#[test]
fn cpts_keep_their_order() {
    let check = |text: &str, expected: &[u32]| assert_eq!(cpts(text).unwrap(), expected, "{text}");
    check("[0,1,4-6]", &[0, 1, 4, 5, 6]);
    check("[0-7/2]", &[0, 2, 4, 6]);
    check("3", &[3]);
    check("1, 3", &[1, 3]);
    check("[3,1,3]", &[3, 1]);
    check("0-1", &[0, 1]);
    for bad in ["", "[]", "[1-0]", "[1", "1]", "[a]", "[-1]", "[1,]", "[1-2-3]", "[1/2]", "foo", "[0-1/0]"] {
        refused(cpts(bad), Errno::INVAL);
    }
    refused(cpts("[0-4294967295]"), Errno::RANGE);
    refused(cpts("4294967296"), Errno::INVAL);
    assert_eq!(cpts_text(&[0, 1, 7]), "[0,1,7]");
    assert_eq!(cpts_text(&[]), "[]");
}

/// Members of an expression: low, high, stride.
type Members = Vec<(u8, u8, u8)>;

fn members() -> impl Strategy<Value = Members> {
    let member = (any::<u8>(), 0_u8..8, 1_u8..4);
    prop::collection::vec(
        member.prop_map(|(low, more, stride)| (low, low.saturating_add(more), stride)),
        1..3,
    )
}

fn member_text(members: &Members) -> String {
    let texts = members.iter().map(|&(low, high, stride)| match (low == high, stride) {
        (true, _) => format!("{low}"),
        (false, 1) => format!("{low}-{high}"),
        (false, _) => format!("{low}-{high}/{stride}"),
    });
    format!("[{}]", texts.collect::<Vec<_>>().join(","))
}

/// The numbers of an expression, by trying each.
fn member_values(members: &Members) -> Vec<u32> {
    let mut values = Vec::new();
    for &(low, high, stride) in members {
        values
            .extend((0..=255).filter(|v| (low..=high).contains(v) && (v - low) % stride == 0).map(u32::from));
    }
    values
}

proptest! {
    #[test]
    fn lists_of_nids_are_what_naive_expansion_gives(octets in prop::array::uniform4(members()), net in 0_u16..9) {
        let text = octets.each_ref().map(member_text).join(".");
        let values = octets.each_ref().map(member_values);
        let mut expected = Vec::new();
        for a in &values[0] {
            for b in &values[1] {
                for c in &values[2] {
                    for d in &values[3] {
                        expected.push(format!("{a}.{b}.{c}.{d}@{}", Net::new(lnet_wire::NetType::TCP, net)));
                    }
                }
            }
        }
        match nids(&format!("{text}@tcp{net}")) {
            Ok(found) => {
                let found: Vec<_> = found.iter().map(ToString::to_string).collect();
                prop_assert_eq!(found, expected);
            }
            Err(error) => {
                prop_assert_eq!(error.errno, Errno::TOOBIG);
                prop_assert!(expected.len() > NIDS_MAX);
            }
        }
    }

    #[test]
    fn lists_of_cpts_and_interfaces_are_what_naive_expansion_gives(lists in prop::collection::vec(members(), 1..4)) {
        let mut expected = Vec::new();
        let mut text = Vec::new();
        for (number, members) in lists.iter().enumerate() {
            let mut cpts = Vec::new();
            for value in member_values(members) {
                if !cpts.contains(&value) {
                    cpts.push(value);
                }
            }
            text.push(format!("eth{number}{}", member_text(members)));
            prop_assert_eq!(super::cpts(&member_text(members)), Ok(cpts.clone()));
            prop_assert_eq!(super::cpts(&cpts_text(&cpts)), Ok(cpts.clone()));
            expected.push(InterfaceName { name: format!("eth{number}"), cpts });
        }
        prop_assert_eq!(interfaces(&text.join(",")), Ok(expected));
    }

    #[test]
    fn no_text_makes_them_panic(text in "[-0-9a-f.,:@*<>?/ \\[\\]tcplox]{0,40}") {
        let _ = nids(&text);
        let _ = nid(&text);
        let _ = fault_nid(&text);
        let _ = interfaces(&text);
        let _ = cpts(&text);
        let _ = integer(&text);
    }
}

#[test]
fn parts_of_routes_are_refused_in_the_words_of_lnet() {
    assert_eq!(remote_net("tcp0"), Ok(Net::new(lnet_wire::NetType::TCP, 0)));
    for (net, errno, said) in [
        ("lo", Errno::ACCES, "setting @lo not allowed"),
        ("foo", Errno::NXIO, "setting LNET_NET_ANY not allowed: "),
    ] {
        let refusal = remote_net(net).unwrap_err();
        assert!(refusal.errno == errno && refusal.message.starts_with(said), "{refusal:?}");
    }
    refused(remote_net("tcp[1-2]"), Errno::NXIO);
    for (text, expected) in [("-1", None), ("1", Some(1)), ("0xff", Some(255))] {
        assert_eq!(hops(text), Ok(expected), "{text}");
    }
    for text in ["0", "256", "-2", "", "many", "1x"] {
        let refusal = hops(text).unwrap_err();
        let said = "invalid hop count must be between 1 and 255: ";
        assert!(refusal.errno == Errno::INVAL && refusal.message.starts_with(said), "{refusal:?}");
    }
    assert_eq!(["0", "4294967295"].map(route_priority), [Ok(0), Ok(u32::MAX)]);
    for text in ["-1", "4294967296", "", "high"] {
        refused(route_priority(text), Errno::INVAL);
    }
}

#[test]
fn foreign_texts_act_on_nothing() {
    for (text, expected) in [
        ("plain (it's) \"a\" \\ é", "plain (it's) \"a\" \\ é"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\u{1b}[2J\u{9b}1m\u{7f}", "\\u{1b}[2J\\u{9b}1m\\u{7f}"),
        ("\u{202e}abc\u{2066}\u{2028}", "\\u{202e}abc\\u{2066}\\u{2028}"),
    ] {
        assert_eq!((escaped(text).as_str(), shown(text).as_str()), (expected, expected));
        assert!(!quoted(text).chars().any(char::is_control));
    }
    let long = "\u{1b}".repeat(4 << 20);
    assert!(shown(&long).len() < 1000 && shown(&long).ends_with("..."));
}
