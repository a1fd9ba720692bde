use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use std::format;
use std::string::{String, ToString};

use proptest::prelude::*;

use super::*;
use crate::testing::{large_nids, nid, nids, processes, small_nids};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1));

#[test]
fn small_forms() {
    for (text, value) in [
        ("10.0.0.1@tcp", 0x0002_0000_0A00_0001),
        ("10.0.0.1@tcp7", 0x0002_0007_0A00_0001),
        ("0@lo", 0x0009_0000_0000_0000),
        ("255.255.255.255@o2ib65535", 0x0005_FFFF_FFFF_FFFF),
        ("4294967295@gni", 0x000D_0000_FFFF_FFFF),
        ("10.0.0.1@xdp3", 0x0058_0003_0A00_0001),
        ("<?>", u64::MAX),
    ] {
        assert_eq!(nid(text).to_small(), Some(value), "{text}");
        assert_eq!(Nid::from_small(value), Ok(nid(text)), "{text}");
        assert!(!nid(text).is_large());
    }
    for value in [0x0102_0000_0A00_0001, 0x00FF_0000_0000_0000, u64::MAX - 1, 1 << 63] {
        assert_eq!(Nid::from_small(value), Err(NidError::Small(value)));
    }
}

#[test]
fn large_forms() {
    let mut bytes = [0; NID_BYTES];
    bytes[..8].copy_from_slice(&[0, 2, 0, 7, 10, 0, 0, 1]);
    assert_eq!(nid("10.0.0.1@tcp7").to_bytes(), bytes);
    assert_eq!(Nid::from_bytes(&bytes), Ok(nid("10.0.0.1@tcp7")));
    assert_eq!(bytes[..8], nid("10.0.0.1@tcp7").to_small().unwrap().to_be_bytes());

    let v6 = nid("fe80::1@tcp").to_bytes();
    assert_eq!(v6, [12, 2, 0, 0, 0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(Nid::from_bytes(&v6), Ok(nid("fe80::1@tcp")));
    assert_eq!(nid("fe80::1@tcp").to_small(), None);
    assert!(nid("fe80::1@tcp").is_large());
    assert_eq!(nid("fe80::1@tcp").used_bytes(), 20);
    assert_eq!(nid("10.0.0.1@tcp").used_bytes(), 8);
    assert_eq!(Nid::ANY.to_bytes(), [0xFF; NID_BYTES]);
}

#[test]
fn a_nid_longer_than_its_bytes_is_refused() {
    let mut bytes = nid("fe80::1@tcp").to_bytes();
    bytes[0] = 13;
    assert_eq!(Nid::from_bytes(&bytes), Err(NidError::Size(13)));
    bytes[1] = 0xFF;
    assert_eq!(Nid::from_bytes(&bytes), Ok(Nid::ANY));
}

#[test]
fn stray_bytes_break_equality_and_have_no_small_form() {
    let clean = nid("10.0.0.1@tcp");
    let mut bytes = clean.to_bytes();
    bytes[19] = 1;
    let dirty = Nid::from_bytes(&bytes).unwrap();
    assert_ne!(dirty, clean);
    assert!(dirty.has_stray_bytes());
    assert!(!clean.has_stray_bytes());
    assert!(!Nid::ANY.has_stray_bytes());
    assert_eq!(dirty.to_small(), None);
    assert_eq!(dirty.to_bytes(), bytes);
}

#[test]
fn order_is_that_of_the_wire_bytes() {
    for (smaller, larger) in [
        ("10.0.0.1@tcp", "10.0.0.2@tcp"),
        ("10.0.0.255@tcp", "10.0.1.0@tcp"),
        ("10.0.0.2@tcp", "10.0.0.1@tcp1"),
        ("10.0.0.1@tcp255", "10.0.0.1@tcp256"),
        ("255.255.255.255@tcp9", "10.0.0.1@o2ib"),
        ("255.255.255.255@xdp", "::@tcp"),
        ("fe80::1@tcp", "<?>"),
    ] {
        assert!(nid(smaller) < nid(larger), "{smaller} {larger}");
    }
}

#[test]
fn what_nids_say_of_themselves() {
    assert_eq!(nid("10.0.0.1@tcp3").ip(), Some(V4));
    assert_eq!(nid("fe80::1@xdp").ip(), Some(V6));
    assert_eq!(nid("7@kfi").ip(), None);
    assert_eq!(Nid::LO.ip(), None);
    assert_eq!(Nid::ANY.ip(), None);
    assert_eq!(nid("10.0.0.1@tcp3").net(), Net::new(NetType::TCP, 3));
    assert_eq!(Nid::LO.net(), Net::LO);
    assert_eq!(Nid::ANY.net(), Net::ANY);
    assert!(Nid::LO.is_loopback() && !Nid::ANY.is_loopback() && !nid("10.0.0.1").is_loopback());
    assert!(Nid::ANY.is_any() && !Nid::LO.is_any());
    assert!(Net::ANY.is_any() && !Net::TCP.is_any());
    assert_eq!(ProcessId::lustre(Nid::LO).to_string(), "12345-0@lo");
    let odd = Nid::from_bytes(&[4, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(odd.ip(), None);
    let unknown = Nid::new_ip(Net::new(NetType(99), 0), V4).unwrap();
    assert_eq!(unknown.ip(), None);
}

#[test]
fn constructors_refuse_what_a_net_does_not_have() {
    for net in [Net::LO, Net::new(NetType::KFI, 0), Net::new(NetType::GNI, 1)] {
        assert_eq!(Nid::new_ip(net, V4), Err(NidError::Address { net, address: V4 }));
    }
    let gip = Net::new(NetType::GIP, 0);
    assert!(Nid::new_ip(gip, V4).is_ok());
    assert_eq!(Nid::new_ip(gip, V6), Err(NidError::Address { net: gip, address: V6 }));
    for net in [Net::ANY, Net::new(NetType(255), 0), Net::new(NetType(256), 7)] {
        assert_eq!(Nid::new_ip(net, V6), Err(NidError::Net(net)));
        assert_eq!(Nid::new_number(net, 0), Err(NidError::Net(net)));
    }
    assert_eq!(Nid::new_number(Net::LO, 0), Ok(Nid::LO));
    for (net, address) in [(Net::LO, 1), (Net::new(NetType::LO, 1), 0), (Net::TCP, 0), (gip, 0)] {
        assert_eq!(Nid::new_number(net, address), Err(NidError::Number { net, address }));
    }
}

#[test]
fn nids_as_text_both_ways() {
    for text in [
        "10.0.0.1@tcp",
        "10.0.0.1@tcp1",
        "0.0.0.0@tcp65535",
        "192.168.1.255@o2ib10",
        "0@lo",
        "0@gni",
        "4294967295@kfi7",
        "12@ptlf",
        "3@bxi3f2",
        "10.1.2.3@gip",
        "10.1.2.3@efa",
        "10.1.2.3@xdp",
        "fe80::1@tcp",
        "::@tcp",
        "::1@xdp9",
        "2001:db8:1:2:3:4:5:6@o2ib",
        "::ffff:10.0.0.1@tcp",
        "<?>",
    ] {
        assert_eq!(nid(text).to_string(), text);
    }
    for (text, canonical) in [
        ("10.0.0.1", "10.0.0.1@tcp"),
        ("fe80::1", "fe80::1@tcp"),
        ("10.0.0.1@tcp0", "10.0.0.1@tcp"),
        ("10.0.0.1@tcp007", "10.0.0.1@tcp7"),
        ("FE80:0:0:0::0001@tcp", "fe80::1@tcp"),
        ("0x1F@gni", "31@gni"),
        ("0XfF@gni1", "255@gni1"),
        ("007@kfi", "7@kfi"),
    ] {
        assert_eq!(nid(text).to_string(), canonical, "{text}");
    }
}

#[test]
fn texts_that_are_no_nids() {
    for (text, expected) in [
        ("", Expected::Ip),
        ("@", Expected::NetName),
        ("*", Expected::Ip),
        ("10.0.0.1@", Expected::NetName),
        ("@tcp", Expected::Ip),
        ("10.0.0@tcp", Expected::Ip),
        ("10.0.0.256@tcp", Expected::Ip),
        ("10.0.0.1 @tcp", Expected::Ip),
        ("[fe80::1]@tcp", Expected::Ip),
        ("fe80::1%eth0@tcp", Expected::Ip),
        ("fe80::1@gip", Expected::Ipv4),
        ("1@gip", Expected::Ipv4),
        ("host@tcp", Expected::Ip),
        ("10.0.0.1@TCP", Expected::NetName),
        ("10.0.0.1@tc", Expected::NetName),
        ("10.0.0.1@foo", Expected::NetName),
        ("10.0.0.1@<2:0>", Expected::NetName),
        ("<?>@tcp", Expected::Ip),
        ("10.0.0.1@<?>", Expected::NetName),
        ("10.0.0.1@tcp65536", Expected::NetNumber),
        ("10.0.0.1@tcp99999999999999999999", Expected::NetNumber),
        ("10.0.0.1@tcp-1", Expected::NetNumber),
        ("10.0.0.1@tcp+1", Expected::NetNumber),
        ("10.0.0.1@tcp 1", Expected::NetNumber),
        ("10.0.0.1@tcp1 ", Expected::NetNumber),
        ("10.0.0.1@tcp1x", Expected::NetNumber),
        ("10.0.0.1@tcp@tcp", Expected::NetNumber),
        ("0@lo0", Expected::PlainLo),
        ("0@lo1", Expected::PlainLo),
        ("1@lo", Expected::LoopbackAddress),
        ("0.0.0.0@lo", Expected::LoopbackAddress),
        ("@lo", Expected::LoopbackAddress),
        ("4294967296@kfi", Expected::Number),
        ("0x1@kfi", Expected::Number),
        ("0x@gni", Expected::Number),
        ("0x+1@gni", Expected::Number),
        ("0x1FFFFFFFF@gni", Expected::Number),
        ("+1@gni", Expected::Number),
    ] {
        let error = Nid::from_str(text).unwrap_err();
        assert_eq!((error.text(), error.expected()), (text, expected));
    }
}

#[test]
fn the_star_is_for_configuration_alone() {
    assert_eq!(Nid::from_str_or_any("*"), Ok(Nid::ANY));
    assert_eq!(Nid::from_str_or_any("<?>"), Ok(Nid::ANY));
    assert_eq!(Nid::from_str_or_any("10.0.0.1"), Ok(nid("10.0.0.1@tcp")));
    assert!(Nid::from_str("*").is_err());
    assert!(Nid::from_str_or_any("*@tcp").is_err());
    assert!(Nid::from_str_or_any("**").is_err());
}

#[test]
fn unknown_kinds_print_as_hexadecimal_words() {
    let unknown = Net::new(NetType(99), 5);
    assert_eq!(Nid::new_number(unknown, 0x0A00_0001).unwrap().to_string(), "a000001@<99:5>");
    assert_eq!(Nid::new_ip(unknown, V6).unwrap().to_string(), "fe800000:0:0:1@<99:5>");
    let mut bytes = [4, 2, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Nid::from_bytes(&bytes).unwrap().to_string(), "1020304:5060708@tcp3");
    bytes[0] = 1;
    assert_eq!(Nid::from_bytes(&bytes).unwrap().to_string(), "1020304:5060708@tcp3");
    bytes[..2].copy_from_slice(&[12, 13]);
    assert_eq!(Nid::from_bytes(&bytes).unwrap().to_string(), "1020304:5060708:0:0@gni3");
}

#[test]
fn nets_as_text() {
    for (text, net) in [
        ("tcp", Net::TCP),
        ("lo", Net::LO),
        ("xdp", Net::XDP),
        ("tcp1", Net::new(NetType::TCP, 1)),
        ("o2ib65535", Net::new(NetType::O2IB, 65535)),
        ("bxi3f2", Net::new(NetType::BXI3F, 2)),
        ("<?>", Net::ANY),
    ] {
        assert_eq!(Net::from_str(text), Ok(net));
        assert_eq!(net.to_string(), text);
    }
    assert_eq!(Net::from_str("tcp0"), Ok(Net::TCP));
    assert_eq!(Net::new(NetType(17), 4).to_string(), "<17:4>");
    for text in ["", "*", "tcp,", "lo0", "<17:4>", "1tcp", "xdp65536"] {
        assert_eq!(Net::from_str(text).unwrap_err().text(), text);
    }
    assert_eq!(NetType::XDP.name(), Some("xdp"));
    assert_eq!(NetType(17).name(), None);
    assert_eq!((Net::ANY.net_type(), Net::ANY.number()), (NetType(0xFFFF), 0xFFFF));
}

#[test]
fn processes_as_text() {
    let peer = nid("10.0.0.1@tcp");
    for (text, pid) in [
        ("12345-10.0.0.1@tcp", 12345),
        ("0-10.0.0.1@tcp", 0),
        ("U988-10.0.0.1@tcp", 988 | ProcessId::USER_FLAG),
        ("U0-10.0.0.1@tcp", ProcessId::USER_FLAG),
        ("U2147483646-10.0.0.1@tcp", ProcessId::ANY_PID - 1),
        ("LNET_PID_ANY-10.0.0.1@tcp", ProcessId::ANY_PID),
    ] {
        let process = ProcessId { nid: peer, pid };
        assert_eq!(process.to_string(), text);
        assert_eq!(ProcessId::from_str(text), Ok(process));
    }
    for (text, expected) in [
        ("", Expected::Pid),
        ("10.0.0.1@tcp", Expected::Pid),
        ("-10.0.0.1@tcp", Expected::Pid),
        ("U-10.0.0.1@tcp", Expected::Pid),
        ("UU1-10.0.0.1@tcp", Expected::Pid),
        ("+1-10.0.0.1@tcp", Expected::Pid),
        ("2147483648-10.0.0.1@tcp", Expected::Pid),
        ("U2147483647-10.0.0.1@tcp", Expected::Pid),
        ("U2147483648-10.0.0.1@tcp", Expected::Pid),
        ("lnet_pid_any-10.0.0.1@tcp", Expected::Pid),
        ("1-", Expected::Ip),
        ("1-1-10.0.0.1@tcp", Expected::Ip),
    ] {
        let error = ProcessId::from_str(text).unwrap_err();
        assert_eq!((error.text(), error.expected()), (text, expected));
    }
}

#[test]
fn errors_name_the_value_and_what_was_expected() {
    let message = Nid::from_str("10.0.0.300@tcp").unwrap_err().to_string();
    assert_eq!(message, "\"10.0.0.300@tcp\": expected an ipv4 or ipv6 address before the net");
    let long = "é".repeat(40);
    let error = Nid::from_str(&long).unwrap_err();
    assert_eq!(error.text(), &long[..64]);
    assert!(error.to_string().contains("...: expected"));
    let odd = format!("x{long}");
    assert_eq!(Nid::from_str(&odd).unwrap_err().text(), &odd[..63]);
    for (error, part) in [
        (NidError::Size(13), "21 bytes, expected at most 20"),
        (NidError::Small(1 << 63), "0x8000000000000000"),
        (NidError::Net(Net::ANY), "net <?>"),
        (NidError::Address { net: Net::LO, address: V6 }, "net lo has no addresses such as fe80::1"),
        (NidError::Number { net: Net::TCP, address: 7 }, "net tcp has no addresses such as 7"),
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

fn messy_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9a-fx:.]{0,12}(@)?(lo|tcp|o2ib|gni|gip|ptlf|kfi|efa|bxi3f|xdp|<)?[0-9<:>?@-]{0,6}",
        "(U|LNET_PID_ANY)?[0-9]{0,10}-?[0-9.:]{0,12}@?(tcp)?",
    ]
}

proptest! {
    #[test]
    fn small_form_round_trips(nid in small_nids(), value in any::<u64>()) {
        prop_assert_eq!(Nid::from_small(nid.to_small().unwrap()), Ok(nid));
        for value in [value, value & 0x00FF_FFFF_FFFF_FFFF] {
            if let Ok(nid) = Nid::from_small(value) {
                prop_assert_eq!(nid.to_small(), Some(value));
                prop_assert_eq!(Nid::from_bytes(&nid.to_bytes()), Ok(nid));
            }
        }
    }

    #[test]
    fn large_form_round_trips(mut bytes in any::<[u8; NID_BYTES]>(), is_plausible in any::<bool>()) {
        if is_plausible {
            bytes[0] %= 13;
        }
        if let Ok(nid) = Nid::from_bytes(&bytes) {
            prop_assert_eq!(nid.to_bytes(), if nid.is_any() { [0xFF; NID_BYTES] } else { bytes });
            prop_assert!((8..=NID_BYTES).contains(&nid.used_bytes()));
            let _ = (nid.ip(), nid.net().to_string());
            if nid.can_name_an_ni() {
                prop_assert_eq!(Nid::from_str(&nid.to_string()), Ok(nid));
            }
        } else {
            prop_assert!(bytes[0] > 12);
        }
    }

    #[test]
    fn order_equals_that_of_the_bytes(a in nids(), b in nids()) {
        prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
    }

    #[test]
    fn large_nids_have_no_small_form(nid in large_nids()) {
        prop_assert_eq!(nid.to_small(), None);
    }

    #[test]
    fn text_round_trips(nid in nids(), process in processes(nids())) {
        prop_assert_eq!(Nid::from_str(&nid.to_string()), Ok(nid));
        prop_assert_eq!(ProcessId::from_str(&process.to_string()), Ok(process));
        prop_assert_eq!(Net::from_str(&nid.net().to_string()), Ok(nid.net()));
    }

    #[test]
    fn any_text_is_read_or_refused(text in messy_text()) {
        match Nid::from_str(&text) {
            Ok(nid) => prop_assert_eq!(Nid::from_str(&nid.to_string()), Ok(nid)),
            Err(error) => prop_assert!(text.starts_with(error.text())),
        }
        if let Ok(process) = ProcessId::from_str(&text) {
            prop_assert_eq!(ProcessId::from_str(&process.to_string()), Ok(process));
        }
        if let Ok(net) = Net::from_str(&text) {
            prop_assert_eq!(Net::from_str(&net.to_string()), Ok(net));
        }
        let _ = Nid::from_str_or_any(&text);
    }
}

#[test]
fn what_can_name_an_ni_can_be_printed_and_read() {
    let is_name = |text: &str| Nid::from_str(text).unwrap().can_name_an_ni();
    let names = "10.0.0.1 1.0.0.0 126.255.255.255 128.0.0.0 169.254.1.1 223.255.255.255 fd80::1 2001:db8::ffff:a00:1 \
                 0:0:0:1::1 0:0:0:0:1::1 fec0::1 64:ff9b::a00:1";
    let no_names = "0.0.0.0 0.0.0.1 0.255.255.255 127.0.0.1 127.255.255.255 224.0.0.1 239.255.255.255 \
                    255.255.255.255 :: ::1 ::2 ::10.0.0.1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:0.0.0.0 fe80::1 \
                    fe80::7:1 febf::1 ff02::1 ff0e::1";
    for net in ["tcp", "xdp", "xdp7", "o2ib3"] {
        for (addresses, expected) in [(names, true), (no_names, false)] {
            for address in addresses.split_whitespace() {
                assert_eq!(is_name(&format!("{address}@{net}")), expected, "{address}@{net}");
            }
        }
    }
    for text in ["0@lo", "7@gni", "a000001@<200:3>", "1:0:0:ff@<77:65535>"] {
        assert!(is_name(text) && nid(text).to_string() == text, "{text}");
    }
    assert!(!Nid::ANY.can_name_an_ni());
    // Eight bytes of an address on a net whose addresses have four or sixteen.
    let mut bytes = nid("10.0.0.1@tcp").to_bytes();
    bytes[0] = 4;
    assert!(!Nid::from_bytes(&bytes).unwrap().can_name_an_ni());
    // Bytes behind the address.
    bytes[0] = 0;
    bytes[19] = 1;
    assert!(!Nid::from_bytes(&bytes).unwrap().can_name_an_ni());
    for text in
        ["1@<2:0>", "@<200:0>", "1:2:3:4:5@<200:0>", "123456789@<200:0>", "1@<255:0>", "1@<200:65536>"]
    {
        assert!(Nid::from_str(text).is_err(), "{text}");
    }
}

#[test]
fn a_nid_is_told_from_one_with_another_address() {
    let [one, two, six] =
        ["10.0.0.1@xdp", "10.0.0.2@xdp", "fd00::1@xdp"].map(|text| text.parse::<Nid>().unwrap());
    assert!(two.is_with_ip(&one, &[10, 0, 0, 2]));
    assert!(!two.is_with_ip(&one, &[10, 0, 0, 1]));
    assert!(!Nid::ANY.is_with_ip(&one, &[10, 0, 0, 1]));
    assert!(!"10.0.0.2@xdp1".parse::<Nid>().unwrap().is_with_ip(&one, &[10, 0, 0, 2]), "of another net");
    let Some(std::net::IpAddr::V6(address)) = six.ip() else { panic!("{six}") };
    assert!(six.is_with_ip(&six, &address.octets()));
    assert!(!six.is_with_ip(&one, &[0xFD, 0, 0, 0]), "of another family");
}
