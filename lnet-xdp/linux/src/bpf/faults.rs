//! The fault rules of an attached program, for tests of what a node does where frames are lost.
//!
//! Rules stand in a map of the program, which the kernel finds by the interface: so they are set from
//! outside, whatever program of this machine has attached it.

use std::fmt;

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::{ProgramError, loaded_programs};
use lnet_io::netlink::Interface;
use lnet_wire::MessageType;
use rustix::io::Errno;

use super::error::{BpfError, chain, errno_of};
use super::program::{at_most, write};

/// The map.
pub(super) const FAULTS: &str = "FAULTS";
/// Class of the map: all frames that are not steered; `lnet-ebpf` reads it.
const OTHERS: u32 = 7;
/// Message types that frames carry.
const TYPES: [MessageType; 4] = [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply];
/// All of a million.
const MILLION: u32 = 1_000_000;

/// The fault rules of one program.
pub struct Faults {
    map: Array<MapData, u64>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Faults").finish_non_exhaustive()
    }
}

impl Faults {
    pub(super) const fn new(map: Array<MapData, u64>) -> Self {
        Self { map }
    }

    /// Faults of the program that is attached to an interface, a name in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// [`BpfError::Interface`]; [`BpfError::NotAttached`] where no program of this kind is;
    /// [`BpfError::Privilege`].
    pub fn attached_to(interface_name: &str) -> Result<Self, BpfError> {
        let interface = Interface::by_name(interface_name)?;
        let not_attached = || BpfError::NotAttached { interface: interface.name.clone() };
        let id = interface.xdp_program_id.ok_or_else(not_attached)?;
        let refused = |error: ProgramError| match errno_of(&error) {
            Some(Errno::PERM) => BpfError::Privilege { action: "look at the XDP program".to_owned() },
            _ => BpfError::Map { map: FAULTS, action: "find".to_owned(), reason: chain(&error) },
        };
        let mut programs = loaded_programs().filter_map(Result::ok);
        let program = programs.find(|program| program.id() == id).ok_or_else(not_attached)?;
        let map_ids = program.map_ids().map_err(refused)?.unwrap_or_default();
        let is_wanted = |id: &u32| MapInfo::from_id(*id).is_ok_and(|map| map.name_as_str() == Some(FAULTS));
        let map_id = map_ids.into_iter().find(is_wanted).ok_or_else(not_attached)?;
        let map = MapData::from_id(map_id).and_then(|data| Array::try_from(Map::Array(data)));
        map.map(Self::new).map_err(|error| BpfError::map(FAULTS, "open", &error))
    }

    /// Sets a fault, like [`XdpProgram::set_fault`](super::XdpProgram::set_fault).
    ///
    /// # Errors
    /// As there.
    pub fn set(
        &mut self,
        message_type: MessageType,
        drop_per_million: u32,
        corrupt_per_million: u32,
    ) -> Result<(), BpfError> {
        if message_type == MessageType::Hello {
            return Err(BpfError::NoFrameType { message_type });
        }
        at_most("frames to drop per million", drop_per_million, MILLION)?;
        at_most("frames to corrupt per million", corrupt_per_million, MILLION)?;
        let rule = u64::from(drop_per_million) | u64::from(corrupt_per_million) << 32;
        write(FAULTS, &mut self.map, message_type as u32, rule)
    }

    /// Sets a loss, like [`XdpProgram::set_loss`](super::XdpProgram::set_loss).
    ///
    /// # Errors
    /// As there.
    pub fn set_loss(&mut self, drop_per_million: u32) -> Result<(), BpfError> {
        at_most("frames to drop per million", drop_per_million, MILLION)?;
        write(FAULTS, &mut self.map, OTHERS, u64::from(drop_per_million))?;
        TYPES.into_iter().try_for_each(|message_type| self.set(message_type, drop_per_million, 0))
    }
}
