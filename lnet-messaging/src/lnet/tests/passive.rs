//! Passive buffers: their entries and descriptors.

use lnet_user::EventKind;

use super::*;

/// Match bits of passive buffers: the identifier steers, and what stands below it was drawn.
#[test]
fn ln_15_match_bits_of_passive_buffers_are_drawn() {
    let mut setup = Setup::new();
    let mut names = Vec::new();
    for _ in 0..64 {
        let (added, call) = setup.add(Operation::PassiveReceive { initiator: None });
        let Call::Attach { match_bits, .. } = call else { panic!("{call:?}") };
        let (tmid, name) = split(match_bits);
        assert_eq!(tmid, 7);
        names.push(name);
        let described = LnetDescriptor::decode(&added.descriptor.unwrap()).unwrap();
        assert_eq!(described.match_bits, match_bits);
        setup.lnet.post(last(event(EventKind::Put, added.id.number)));
        assert_eq!(setup.end(), (Ok(()), 0));
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 64);
    // Two of 64 random numbers of 52 bits are this near in one of 10^9 runs.
    assert!(names[0] != 0 && names.windows(2).all(|pair| pair[1] - pair[0] > 1000), "{names:x?}");
    setup.finish();
}

#[test]
fn the_initiator_of_a_passive_buffer_is_named_in_its_entry() {
    let setup = Setup::new();
    let end_point = setup.tm.create_end_point("10.1.2.3@tcp:12345:34:9").unwrap();
    let nid = || "10.1.2.3@tcp".parse().ok();
    for (named, expected) in [(None, None), (Some(end_point), nid())] {
        let receive = Operation::PassiveReceive { initiator: named.clone() };
        let send = Operation::PassiveSend { initiator: named, length_bytes: 8 };
        for operation in [receive, send] {
            let (_, call) = setup.add(operation);
            let Call::Attach { initiator, .. } = call else { panic!("{call:?}") };
            assert_eq!(initiator, expected);
        }
    }
    setup.finish();
}

#[test]
fn kc_12_and_kc_13_passive_buffers() {
    let mut setup = Setup::new();
    let drawn = |call: &Call| match *call {
        Call::Attach { match_bits, .. } if split(match_bits).0 == 7 => match_bits,
        _ => panic!("{call:?}"),
    };
    for unlinks in [false, true] {
        let (added, call) = setup.add(Operation::PassiveReceive { initiator: None });
        let (match_bits, initiator) = (drawn(&call), None);
        let whole = md(100, 1, &added);
        let expected = Call::Attach { portal: 34, match_bits, allowed: Allowed::Put, initiator, md: whole };
        assert_eq!(call, expected);
        let described = LnetDescriptor::decode(&added.descriptor.unwrap()).unwrap();
        assert_eq!((described.match_bits, described.size_bytes), (match_bits, 100));
        let put = NetworkEvent { length_bytes: 99, ..event(EventKind::Put, added.id.number) };
        setup.lnet.post(last(if unlinks { event(EventKind::Unlink, added.id.number) } else { put }));
        let expected = if unlinks { (Err(Errno::Canceled), 0) } else { (Ok(()), 99) };
        assert_eq!(setup.end(), expected);

        let send = Operation::PassiveSend { initiator: None, length_bytes: 70 };
        let (added, call) = setup.add(send);
        let match_bits = drawn(&call);
        let md = md(70, 1, &added);
        let expected = Call::Attach { portal: 34, match_bits, allowed: Allowed::Get, initiator, md };
        assert_eq!(call, expected);
        let kind = if unlinks { EventKind::Unlink } else { EventKind::Get };
        setup.lnet.post(last(event(kind, added.id.number)));
        assert_eq!(setup.end(), (if unlinks { Err(Errno::Canceled) } else { Ok(()) }, 0));
    }
    setup.finish();
}
