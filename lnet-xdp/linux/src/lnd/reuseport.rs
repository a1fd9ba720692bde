//! Which shard's socket the kernel gives a datagram to.
//!
//! The sockets of an NI share its address and port, and the kernel chooses among them by a program of classic
//! BPF, for which it wants no privilege. That has no multiplication of 64 bits, so it can follow only what
//! [`steer::shard_of`](lnet_wire::steer::shard_of) does without hashing: cookies, pinned portals, and tables.
//! Datagrams to portals whose shards are hashed (`MatchBits` with `Spread::Hash`, `Initiator`, `Rotor`) are
//! left to the kernel, which goes by addresses and ports: all those of one peer come to one shard, and that
//! hands them over.

use lnet_core::handle::{ShardId, ShardSet};
use lnet_io::reactor::udp::Instruction;
use lnet_wire::MessageType;
use lnet_wire::frame::{KEY_OFFSET, PORTAL_OFFSET, TYPE_OFFSET};
use lnet_wire::steer::{COOKIE_SHARD_SHIFT, PORTALS, Policy, PolicyWord, Spread};

// Codes of include/uapi/linux/bpf_common.h and filter.h.
const LOAD_BYTE: u16 = 0x30;
const SHIFT_LEFT: u16 = 0x64;
const SHIFT_RIGHT: u16 = 0x74;
const AND: u16 = 0x54;
const OR_INDEX: u16 = 0x4C;
const REMAINDER: u16 = 0x94;
const COPY_TO_INDEX: u16 = 0x07;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const RETURN_ACCUMULATOR: u16 = 0x16;

/// No socket has this number: the kernel chooses by itself.
const KERNELS_CHOICE: u32 = u32::MAX;

/// The program for a node of `shards` shards, of which those that serve the NI have a socket each, bound in
/// the order of their shards.
pub(crate) fn program(policies: &[PolicyWord; PORTALS], shards: u32, serving: ShardSet) -> Vec<Instruction> {
    let sockets: Vec<u32> = (0..shards).map(|shard| socket_of(shard as u8, serving)).collect();
    let mut cookie = vec![
        with(LOAD_BYTE, KEY_OFFSET as u32),
        with(SHIFT_RIGHT, COOKIE_SHARD_SHIFT),
        with(REMAINDER, shards),
    ];
    // The number of a shard is that of its socket, up to the first shard without one.
    let moved = (0..).zip(&sockets).filter(|(shard, socket)| shard != *socket);
    cookie.extend(moved.flat_map(|(shard, socket)| [jump(shard, 0, 1), with(RETURN, *socket)]));
    cookie.push(with(RETURN_ACCUMULATOR, 0));
    let mut program = vec![
        with(LOAD_BYTE, TYPE_OFFSET as u32),
        jump(MessageType::Put as u32, 1 + cookie.len() as u8, 0),
        jump(MessageType::Get as u32, cookie.len() as u8, 0),
    ];
    program.extend(cookie);
    program.push(with(LOAD_BYTE, PORTAL_OFFSET as u32));
    for (portal, word) in policies.iter().enumerate() {
        let choice = choice(*word, &sockets);
        if choice != [with(RETURN, 0)] {
            program.push(jump(portal as u32, 0, choice.len() as u8));
            program.extend(choice);
        }
    }
    program.push(with(RETURN, 0));
    program
}

/// The number of the socket that has what is for a shard.
fn socket_of(shard: u8, serving: ShardSet) -> u32 {
    let stand_in = serving.stand_in(ShardId(shard));
    serving.iter().take_while(|other| *other != stand_in).count() as u32
}

/// What chooses the socket by one portal's policy; `sockets` by shard.
fn choice(word: PolicyWord, sockets: &[u32]) -> Vec<Instruction> {
    let socket_of = |shard: u8| sockets[usize::from(shard) % sockets.len()];
    let (shift, bits, table) = match word.unpack() {
        Some(Policy::Pin(shard)) => return vec![with(RETURN, socket_of(shard))],
        Some(Policy::MatchBits { shift, bits, spread: Spread::Table(table) }) => (shift, bits, table),
        Some(Policy::MatchBits { spread: Spread::Hash, .. } | Policy::Initiator | Policy::Rotor) | None => {
            return vec![with(RETURN, KERNELS_CHOICE)];
        }
    };
    let byte = (KEY_OFFSET + usize::from(shift / 8)) as u32;
    let shift = u32::from(shift % 8);
    let mut choice = Vec::new();
    if shift + u32::from(bits) > 8 {
        choice.extend([with(LOAD_BYTE, byte + 1), with(SHIFT_LEFT, 8), with(COPY_TO_INDEX, 0)]);
        choice.extend([with(LOAD_BYTE, byte), with(OR_INDEX, 0)]);
    } else {
        choice.push(with(LOAD_BYTE, byte));
    }
    let values = 1_u32 << bits;
    choice.extend([with(SHIFT_RIGHT, shift), with(AND, values - 1)]);
    for (value, shard) in (0..values).zip(table) {
        choice.extend([jump(value, 0, 1), with(RETURN, socket_of(shard))]);
    }
    choice.push(with(RETURN, KERNELS_CHOICE));
    choice
}

const fn with(code: u16, operand: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, operand }
}

const fn jump(equal_to: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code: JUMP_EQUAL, jump_true, jump_false, operand: equal_to }
}

// The byte that the shard of a cookie is read from holds nothing above it.
const _: () = assert!(COOKIE_SHARD_SHIFT + lnet_wire::steer::COOKIE_SHARD_BITS == 8);

#[cfg(test)]
mod tests {
    use lnet_wire::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};
    use lnet_wire::steer::{self, SteerKey};
    use proptest::prelude::*;

    use super::*;

    /// What the kernel does with it.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut at, mut accumulator, mut index) = (0, 0_u32, 0_u32);
        loop {
            let Instruction { code, jump_true, jump_false, operand } = program[at];
            at += 1;
            match code {
                LOAD_BYTE => accumulator = u32::from(packet[operand as usize]),
                SHIFT_LEFT => accumulator <<= operand,
                SHIFT_RIGHT => accumulator >>= operand,
                AND => accumulator &= operand,
                OR_INDEX => accumulator |= index,
                REMAINDER => accumulator %= operand,
                COPY_TO_INDEX => index = accumulator,
                JUMP_EQUAL => {
                    at += usize::from(if accumulator == operand { jump_true } else { jump_false });
                }
                RETURN => return operand,
                RETURN_ACCUMULATOR => return accumulator,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn policies() -> impl Strategy<Value = Policy> {
        let table =
            (0..64_u8, 1..=3_u8, any::<[u8; 8]>()).prop_map(|(shift, bits, table)| Policy::MatchBits {
                shift: shift.min(64 - bits),
                bits,
                spread: Spread::Table(table.map(|shard| shard % 64)),
            });
        prop_oneof![
            (0..64_u8).prop_map(Policy::Pin),
            table,
            (0..58_u8).prop_map(|shift| Policy::MatchBits { shift, bits: 6, spread: Spread::Hash }),
            Just(Policy::Initiator),
            Just(Policy::Rotor),
        ]
    }

    fn is_hashed(policy: &Policy) -> bool {
        !matches!(policy, Policy::Pin(_) | Policy::MatchBits { spread: Spread::Table(_), .. })
    }

    proptest! {
        #[test]
        fn it_chooses_as_steering_does_unless_that_hashes(
            shards in 1..=64_u32,
            some in proptest::collection::vec((0..64_usize, policies()), 0..64),
            message_type in prop_oneof![
                Just(MessageType::Ack), Just(MessageType::Put), Just(MessageType::Get), Just(MessageType::Reply),
            ],
            portal in 0..64_u8,
            key in any::<u64>(),
            serving in any::<u64>(),
        ) {
            let serving = ShardSet::of((0..shards).filter(|shard| serving >> shard & 1 != 0));
            let serving = serving.unwrap_or(ShardSet::all(shards as u8));
            let mut all = [Policy::Pin(0); PORTALS];
            for (portal, policy) in some {
                all[portal] = policy;
            }
            let words = all.map(|policy| policy.pack().unwrap());
            let program = program(&words, shards, serving);
            prop_assert!(program.len() <= 4096);
            let has_portal = matches!(message_type, MessageType::Put | MessageType::Get);
            let portal = if has_portal { portal } else { 0 };
            let key = SteerKey { message_type, portal, key, message_id: 5, initiator_hash: 7 };
            let mut packet = [0; FRAME_HEADER_BYTES];
            FrameHeader::data(key, 0, 0).encode(&mut packet);
            let expected = if has_portal && is_hashed(&all[usize::from(portal)]) {
                KERNELS_CHOICE
            } else {
                let shard = ShardId(steer::shard_of(&key, words[usize::from(portal)], shards) as u8);
                serving.iter().position(|other| other == serving.stand_in(shard)).unwrap() as u32
            };
            prop_assert_eq!(run(&program, &packet), expected);
        }
    }

    #[test]
    fn frames_without_data_go_to_the_shard_that_they_name() {
        let words = [Policy::Rotor.pack().unwrap(); PORTALS];
        let program = program(&words, 4, ShardSet::all(4));
        for shard in 0..4 {
            let mut packet = [0; FRAME_HEADER_BYTES];
            FrameHeader::other(Kind::Hello, shard, 0).encode(&mut packet);
            assert_eq!(run(&program, &packet), u32::from(shard));
        }
    }
}
