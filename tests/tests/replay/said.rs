//! Streams, cut into what is said on them.

use lnet_wire::Header;
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, HELLO_BYTES_MAX, Hello, PREFIX_BYTES, Parsed,
    Prefix, PrefixKind,
};

use crate::pcap::Connection;

/// One thing that is said on a connection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Said {
    Request(ConnectionRequest),
    Hello(Hello),
    /// A prefix without a message.
    Noop(Prefix),
    /// A message of protocol version 2 or 3.
    Message {
        prefix: Prefix,
        header: Header,
        payload: Vec<u8>,
    },
}

impl Said {
    /// What the next bytes of a stream are, of which `index` things have been said; how many bytes it has.
    pub(crate) fn decode(bytes: &[u8], is_dialler: bool, index: usize) -> (Self, usize) {
        let hello_index = usize::from(is_dialler);
        let (said, length) = if index < hello_index {
            whole(bytes, ConnectionRequest::parse(bytes), Self::Request)
        } else if index == hello_index {
            whole(bytes, Hello::parse(bytes), Self::Hello)
        } else {
            Self::decode_message(bytes)
        };
        assert_eq!(said.encode(), bytes[..length], "{said:?}");
        (said, length)
    }

    fn decode_message(bytes: &[u8]) -> (Self, usize) {
        let prefix = Prefix::decode(bytes.first_chunk().unwrap(), ByteOrder::Little).unwrap();
        if prefix.kind == PrefixKind::Noop {
            return (Self::Noop(prefix), PREFIX_BYTES);
        }
        let header = Header::decode_small(bytes[PREFIX_BYTES..].first_chunk().unwrap()).unwrap();
        assert_eq!(header.check_payload(), Ok(()));
        let begin = PREFIX_BYTES + SMALL_HEADER_BYTES;
        let end = begin + header.payload_length as usize;
        (Self::Message { prefix, header, payload: bytes[begin..end].to_vec() }, end)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let of_prefix = |prefix: &Prefix| {
            let mut bytes = [0; PREFIX_BYTES];
            prefix.encode(&mut bytes);
            bytes.to_vec()
        };
        match self {
            Self::Request(request) => {
                let mut bytes = [0; CONNECTION_REQUEST_BYTES_MAX];
                let length = request.encode(&mut bytes);
                bytes[..length].to_vec()
            }
            Self::Hello(hello) => {
                let mut bytes = [0; HELLO_BYTES_MAX];
                let length = hello.encode(&mut bytes).unwrap();
                bytes[..length].to_vec()
            }
            Self::Noop(prefix) => of_prefix(prefix),
            Self::Message { prefix, header, payload } => {
                let mut small = [0; SMALL_HEADER_BYTES];
                header.encode_small(&mut small).unwrap();
                [of_prefix(prefix), small.to_vec(), payload.clone()].concat()
            }
        }
    }

    pub(crate) fn payload(&self) -> Option<&[u8]> {
        match self {
            Self::Message { payload, .. } => Some(payload),
            _ => None,
        }
    }
}

fn whole<T, E: std::fmt::Debug>(
    bytes: &[u8],
    parsed: Result<Parsed<T>, E>,
    said: fn(T) -> Said,
) -> (Said, usize) {
    match parsed {
        Ok(Parsed::Whole(value, length)) => (said(value), length),
        Ok(Parsed::Needs(count)) => panic!("{} bytes, {count} are expected", bytes.len()),
        Err(error) => panic!("{error:?} in {bytes:02x?}"),
    }
}

/// What was said, by whom, and when.
pub(crate) struct Unit {
    /// The packet with its last byte.
    pub(crate) packet: usize,
    pub(crate) connection: usize,
    /// 0: the dialler says it; 1: the listener does.
    pub(crate) direction: usize,
    /// How many things were said before on this stream.
    pub(crate) index: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) said: Said,
}

/// All that was said on these connections, stream by stream, which leaves no byte over.
pub(crate) fn units(connections: &[Connection]) -> Vec<Unit> {
    let mut units = Vec::new();
    for (number, connection) in connections.iter().enumerate() {
        for direction in [0, 1] {
            let (stream, reached) = (&connection.streams[direction], &connection.reached[direction]);
            let (mut begin, mut index) = (0, 0);
            while begin != stream.len() {
                let (said, length) = Said::decode(&stream[begin..], direction == 0, index);
                let end = begin + length;
                let (_, packet) = *reached.iter().find(|(bytes, _)| *bytes >= end).unwrap();
                let bytes = stream[begin..end].to_vec();
                units.push(Unit { packet, connection: number, direction, index, bytes, said });
                (begin, index) = (end, index + 1);
            }
        }
    }
    units
}
