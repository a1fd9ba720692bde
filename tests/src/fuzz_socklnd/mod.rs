//! The bodies of the fuzz targets of the socklnd protocol: its codecs, and `socklnd`, a machine that hostile
//! peers dial and are dialled by, with an honest peer beside them. They use `lnet-wire` and `lnet-core`
//! alone, so that the fuzzer has little to instrument.
//!
//! What must hold of the machine: nothing panics; each message ends once; it has no more connections than it
//! may, and a connection that it has forgotten was closed; bytes wait no longer than they have to; what the
//! honest peer sends is delivered and acknowledged, and what is sent to it arrives.

mod node;

use lnet_wire::socklnd::{
    Acks, ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, HELLO_BYTES_MAX, Hello, HelloError,
    PREFIX_BYTES, Parsed, Prefix, Version,
};
use lnet_wire::{Nid, ProcessId};

use node::{HOSTS, Node};

/// Bytes of the longest thing that a stream begins with: a HELLO of version 1 with 16 addresses.
const BEGINNING_BYTES_MAX: usize = 136;

/// A connection request: what is read comes back, and each beginning of it asks for more.
pub fn connection_request(input: &[u8]) {
    let Some(request) = parsed(input, ConnectionRequest::parse) else { return };
    let mut bytes = [0xAA; CONNECTION_REQUEST_BYTES_MAX];
    let length = request.encode(&mut bytes);
    assert_eq!(ConnectionRequest::parse(&bytes[..length]), Ok(Parsed::Whole(request, length)));
}

/// A HELLO: what is read comes back in the byte order of this node, and each beginning of it asks for more.
pub fn hello(input: &[u8]) {
    let Some(hello) = parsed(input, Hello::parse) else { return };
    assert!(!hello.source.nid.is_any());
    let mut bytes = [0xAA; HELLO_BYTES_MAX];
    let length = hello.encode(&mut bytes).expect("the NIDs fit the version that they came in");
    let own = Hello { order: ByteOrder::Little, ..hello };
    assert_eq!(Hello::parse(&bytes[..length]), Ok(Parsed::Whole(own, length)));
    let oldest = Hello { version: Version::V1, ..own };
    match oldest.encode(&mut bytes) {
        Ok(length) => {
            let known = Hello { destination: ProcessId::ANY, destination_incarnation: 0, ..oldest };
            assert_eq!(Hello::parse(&bytes[..length]), Ok(Parsed::Whole(known, length)));
        }
        Err(error) => assert!(matches!(error, HelloError::LargeNid(nid) if nid.is_large())),
    }
}

/// What the beginning of a stream is, once it is whole.
fn parsed<T: Copy + PartialEq + std::fmt::Debug, E: std::fmt::Display>(
    input: &[u8],
    parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
) -> Option<T> {
    match parse(input) {
        Ok(Parsed::Needs(count)) => {
            assert!((input.len() + 1..=BEGINNING_BYTES_MAX).contains(&count));
            None
        }
        Ok(Parsed::Whole(value, length)) => {
            assert!(length <= input.len().min(BEGINNING_BYTES_MAX));
            for begun in 0..length {
                let needs = parse(&input[..begun]).ok();
                let is_more =
                    |needs| matches!(needs, Parsed::Needs(count) if count > begun && count <= length);
                assert!(needs.is_some_and(is_more), "{begun} bytes of {length}");
            }
            Some(value)
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// A prefix: what is read in either byte order comes back.
pub fn prefix(input: &[u8]) {
    let Some(bytes) = input.first_chunk::<PREFIX_BYTES>() else { return };
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let prefix = match Prefix::decode(bytes, order) {
            Ok(prefix) => prefix,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let mut own = [0xAA; PREFIX_BYTES];
        prefix.encode(&mut own);
        assert_eq!(Prefix::decode(&own, ByteOrder::Little), Ok(prefix));
        assert!(order == ByteOrder::Big || own == *bytes);
        match prefix.acks() {
            Acks::None | Acks::Keepalive => {}
            Acks::One(cookie) => assert!(cookie > 1 && cookie == prefix.cookies[1]),
            Acks::Two(first, second) => assert!(first > second && second != 0),
            Acks::Range(first, second) => assert!(first <= second && first != 0),
        }
    }
}

fn nid(host: u8) -> Nid {
    Nid::from_small(2 << 48 | 10 << 24 | u64::from(host)).expect("a NID")
}

/// Bytes, taken from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn up_to(&mut self, count: usize) -> &'a [u8] {
        self.0.split_off(..count.min(self.0.len())).unwrap_or_default()
    }
}

/// A machine and its peers, by steps: the first two bytes say what it is like, each step begins with what
/// happens (its low three bits) and to which of the connections (the others).
pub fn socklnd(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (Some(flags), Some(verdicts)) = (input.byte(), input.byte()) else { return };
    let mut node = Node::new(flags, verdicts);
    node.honest_speaks();
    while let Some(step) = input.byte() {
        let which = step >> 3;
        match step & 7 {
            0 => {
                let length = input.byte().unwrap_or(0);
                if !node.say(usize::from(which), input.up_to(length.into())) {
                    return;
                }
            }
            1 => node.accept(which),
            2 => node.submit(HOSTS[usize::from(which) % HOSTS.len()], u32::from(which) * 100),
            3 => node.connected(which),
            4 => node.end(usize::from(which)),
            5 => node.wait(1 << (which & 7)),
            6 => node.resume(which),
            _ => node.lend(which),
        }
        node.settle();
        node.honest_speaks();
    }
    node.finish();
}
