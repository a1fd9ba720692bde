//! The wire of rpc: vectors and faults (RP-08, RP-09). The vectors are written out as RFC 5531 and RFC 4506
//! have them.

use proptest::prelude::*;

use super::address::RpcAddress;
use super::message::{self, Procedure, put_call};
use super::program::{self, NoDescriptor, RpcDescriptor, put_address, put_status};
use super::xdr::{Decoder, put_hyper, put_opaque, put_word};
use super::{handlers, record};
use crate::errno::Errno;
use crate::operation::BulkDescriptor;
use crate::queue::QueueType;

/// Bytes from words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn address(text: &str) -> RpcAddress {
    RpcAddress::parse(text).unwrap()
}

fn descriptor() -> RpcDescriptor {
    RpcDescriptor {
        queue: QueueType::PassiveSend,
        name: 0x0102_0304_0506_0708,
        initiator: Some(address("10.0.0.2:258:3")),
        passive: address("127.0.0.1:988:4660"),
        length_bytes: 0x000A_0B0C,
    }
}

/// The bytes of the descriptor, written out.
const DESCRIPTOR: [u32; 10] =
    [0x0102_0304, 0x0506_0708, 0x0A00_0002, 258, 3, 0x7F00_0001, 988, 4660, 3, 0x000A_0B0C];

/// The words before the arguments of a call.
fn header(procedure: u32) -> [u32; 10] {
    [7, 0, 2, 0x2c4e_4554, 1, procedure, 0, 0, 0, 0]
}

#[test]
fn rp_08_vectors() {
    assert_eq!(descriptor().encode().as_bytes(), words(&DESCRIPTOR));
    assert_eq!(RpcDescriptor::decode(&descriptor().encode()), Ok(descriptor()));
    let mut call = Vec::new();
    put_call(&mut call, 7, Procedure::Message);
    put_address(&mut call, address("127.0.0.1:988:1"));
    put_address(&mut call, address("127.0.0.1:989:2"));
    put_opaque(&mut call, 5, [&b"he"[..], b"llo"].into_iter());
    let arguments = [0x7F00_0001, 988, 1, 0x7F00_0001, 989, 2, 5, 0x6865_6C6C, 0x6F00_0000];
    assert_eq!(call, words(&[&header(1)[..], &arguments].concat()));
    let mut status = Vec::new();
    put_status(&mut status, Err(Errno::NoBuffers));
    put_status(&mut status, Ok(()));
    assert_eq!(status, words(&[0xFFFF_FF97, 0]));
    let mut decoder = Decoder::new(&status);
    assert_eq!(program::status(&mut decoder), Ok(Err(Errno::NoBuffers)));
    assert_eq!(program::status(&mut decoder), Ok(Ok(())));
    // A record in one fragment, the last one.
    assert_eq!(record::build(|to| put_word(to, 9)), words(&[4 | 1 << 31, 9]));
}

/// Checks what a call is answered with. `None`: nothing.
#[track_caller]
fn check(call: &[u32], expected: Option<&[u32]>) {
    let expected = expected.map(|reply| {
        let reply = words(reply);
        [words(&[reply.len() as u32 | 1 << 31]), reply].concat()
    });
    assert_eq!(handlers::answer(&words(call)), expected, "{call:x?}");
}

#[test]
fn rp_08_every_fault_has_its_reply() {
    check(&header(0), Some(&[7, 1, 0, 0, 0, 0]));
    let changed = |at: usize, to: u32| {
        let mut header = header(0);
        header[at] = to;
        header
    };
    check(&changed(2, 3), Some(&[7, 1, 1, 0, 2, 2]));
    check(&changed(3, 100_000), Some(&[7, 1, 0, 0, 0, 1]));
    check(&changed(4, 2), Some(&[7, 1, 0, 0, 0, 2, 1, 1]));
    check(&changed(5, 4), Some(&[7, 1, 0, 0, 0, 3]));
    // Arguments that are too many, too few, or too long.
    check(&[&header(0)[..], &[0]].concat(), Some(&[7, 1, 0, 0, 0, 4]));
    check(&header(1), Some(&[7, 1, 0, 0, 0, 4]));
    check(&[&header(1)[..], &[0; 6], &[0x0040_0001]].concat(), Some(&[7, 1, 0, 0, 0, 4]));
    check(&[&header(2)[..], &DESCRIPTOR].concat(), Some(&[7, 1, 0, 0, 0, 4]));
    check(&[&header(3)[..], &DESCRIPTOR, &[0, 0x0004_0001]].concat(), Some(&[7, 1, 0, 0, 0, 4]));
    check(&[&header(3)[..], &DESCRIPTOR, &[0, 1]].concat(), Some(&[7, 1, 0, 0, 0, 4]));
    // There is no such transfer machine, or there can be none: the results say so.
    let unreachable = Errno::NetworkUnreachable.number().wrapping_neg().cast_unsigned();
    let invalid = Errno::Invalid.number().wrapping_neg().cast_unsigned();
    check(&[&header(2)[..], &DESCRIPTOR, &[0]].concat(), Some(&[7, 1, 0, 0, 0, 0, unreachable, 0, 0]));
    check(&[&header(3)[..], &DESCRIPTOR, &[0, 1, 0]].concat(), Some(&[7, 1, 0, 0, 0, 0, unreachable]));
    check(&[&header(2)[..], &[0; 11]].concat(), Some(&[7, 1, 0, 0, 0, 0, invalid, 0, 0]));
    check(&[&header(1)[..], &[0; 7]].concat(), Some(&[7, 1, 0, 0, 0, 0, invalid]));
    // Credentials of 400 bytes are passed over; longer ones are refused; so are verifiers.
    let with = |credentials: usize, verifier: usize| {
        let opaque = |bytes: usize| [&[1, bytes as u32][..], &vec![0; bytes / 4]].concat();
        [&header(0)[..6], &opaque(credentials), &opaque(verifier)].concat()
    };
    check(&with(400, 400), Some(&[7, 1, 0, 0, 0, 0]));
    check(&with(404, 0), Some(&[7, 1, 1, 1, 1]));
    check(&with(0, 404), Some(&[7, 1, 1, 1, 3]));
    // What is no call has no answer.
    check(&[], None);
    check(&[7], None);
    check(&[7, 1, 0, 0, 0, 0], None);
    check(&header(0)[..5], None);
}

/// Padding may have any value; that is tolerated, not copied.
#[test]
fn rp_08_padding() {
    let mut decoder = Decoder::new(&[0, 0, 0, 1, 7, 8, 9, 10]);
    assert_eq!(decoder.opaque(1), Ok(&[7][..]));
    decoder.end().unwrap();
    assert!(Decoder::new(&[0, 0, 0, 1, 7, 8, 9]).opaque(1).is_err());
}

fn addresses() -> impl Strategy<Value = RpcAddress> {
    (any::<u32>(), 1..u16::MAX, 1..u32::MAX)
        .prop_map(|(ip, port, service)| RpcAddress::new(ip.into(), port, service).unwrap())
}

fn descriptors() -> impl Strategy<Value = RpcDescriptor> {
    let queue = prop_oneof![Just(QueueType::PassiveSend), Just(QueueType::PassiveReceive)];
    let initiator = proptest::option::of(addresses());
    (queue, any::<u64>(), initiator, addresses(), any::<u32>()).prop_map(
        |(queue, name, initiator, passive, length_bytes)| RpcDescriptor {
            queue,
            name,
            initiator,
            passive,
            length_bytes: length_bytes.into(),
        },
    )
}

proptest! {
    #[test]
    fn rp_09_decoding_is_the_inverse_of_encoding(
        descriptor in descriptors(),
        hyper: u64,
        bytes in proptest::collection::vec(any::<u8>(), 0..70),
        end in 0_usize..200,
    ) {
        let mut encoded = Vec::new();
        descriptor.put(&mut encoded);
        put_hyper(&mut encoded, hyper);
        put_opaque(&mut encoded, bytes.len(), bytes.chunks(3));
        prop_assert_eq!(encoded.len() % 4, 0);
        let mut decoder = Decoder::new(&encoded);
        prop_assert_eq!(RpcDescriptor::take(&mut decoder), Ok(descriptor));
        prop_assert_eq!(decoder.hyper(), Ok(hyper));
        prop_assert_eq!(decoder.opaque(70), Ok(&bytes[..]));
        prop_assert_eq!(decoder.end(), Ok(()));
        prop_assert_eq!(RpcAddress::parse(&descriptor.passive.to_string()), Ok(descriptor.passive));
        // Cut somewhere, something is missing.
        let cut = &encoded[..end.min(encoded.len() - 1)];
        let mut decoder = Decoder::new(cut);
        let all = RpcDescriptor::take(&mut decoder).is_ok()
            && decoder.hyper().is_ok()
            && decoder.opaque(70).is_ok();
        prop_assert!(!all);
    }

    /// Whatever comes, there is an answer or none, and a descriptor or none.
    #[test]
    fn rp_09_any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        procedure in 0_u32..5,
    ) {
        let _ = handlers::answer(&bytes);
        let _ = message::results(&bytes, 7);
        let _ = RpcDescriptor::decode(&BulkDescriptor::from_bytes(&bytes));
        let mut call = words(&header(procedure));
        call.extend(&bytes);
        let reply = handlers::answer(&call).unwrap();
        prop_assert!(reply.len() >= 28);
    }
}

#[test]
fn what_no_descriptor_says_is_not_decoded() {
    for (at, to, expected) in [
        (8, 1, NoDescriptor::Invalid),
        (8, 6, NoDescriptor::Invalid),
        (6, 0, NoDescriptor::Invalid),
        (6, 65_536, NoDescriptor::Invalid),
        (7, 0, NoDescriptor::Invalid),
        (4, 0, NoDescriptor::Invalid),
    ] {
        let mut changed = DESCRIPTOR;
        changed[at] = to;
        assert_eq!(RpcDescriptor::take(&mut Decoder::new(&words(&changed))), Err(expected), "{changed:?}");
    }
    assert_eq!(RpcDescriptor::take(&mut Decoder::new(&words(&DESCRIPTOR[..9]))), Err(NoDescriptor::Garbage));
}
