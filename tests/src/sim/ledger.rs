//! What was asked for, and what has become of it: the checkers that know all nodes.
//!
//! Each PUT and GET is an operation with a number, which its messages carry: a PUT in its header data, a GET
//! and an ACK in the upper half of their match bits, a REPLY by the descriptor that it is for.

use std::collections::{HashMap, HashSet, VecDeque};

use lnet_core::handle::MdHandle;
use lnet_core::lnd::{PING_MATCH_BITS, Status};
use lnet_wire::{Body, Header, Nid, WireHandle};

use super::plan::MS;
use super::strangers::Stranger;

/// The number of no operation: what the names of hostile nodes say has it.
pub(super) const STRANGE: u32 = u32::MAX;
/// Handles that are remembered for who answers in the stead of others.
const GIVEN_MAX: usize = 64;

/// The router that a message goes to, if not to the node that it is for.
pub(super) type Hop = Option<usize>;

/// Which message of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Leg {
    /// The PUT or GET.
    Request,
    /// The ACK or REPLY.
    Response,
}

/// A node, its life, and the life of its transfer machines in that.
pub(super) type Life = (usize, u32, u32);

/// Arrivals of a message at a node in one of its lives: one for each life of its transfer machines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The node, and its life.
    pub(super) by: (usize, u32),
    /// Times that it took the message.
    pub(super) times: u32,
    /// Events of these that were seen.
    pub(super) events: u32,
}

/// What is known of one message.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Flight {
    /// The node, and its life, that was shown it last. What has ended there, and was not acknowledged, may go
    /// to the next life.
    pub(super) life: Option<Life>,
    /// Times that this life was shown its header.
    pub(super) seen: u32,
    /// Whether its receiver is done with it.
    pub(super) ended: bool,
    /// Whether that was with all of it, or because nothing wants it.
    pub(super) well: bool,
    /// How it ended at its sender.
    pub(super) sent: Option<Status>,
}

/// A PUT or GET.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) node: usize,
    /// Life of its initiator.
    pub(super) life: u32,
    /// When it was started.
    pub(super) begun_at: u64,
    /// Whether a hostile node has started it, or is asked.
    pub(super) is_hostile: bool,
    /// Payload of a PUT.
    pub(super) seed: u64,
    /// Where its part of the descriptor begins.
    pub(super) offset: u64,
    /// What the REPLY is made of: seed and offset.
    pub(super) source: Option<(u64, u64)>,
    pub(super) request: Flight,
    pub(super) response: Flight,
    /// Times that its SEND event was seen.
    pub(super) send_events: u32,
    /// Whether its shard took it.
    pub(super) started: bool,
    /// The node, and its life, on which there is an entry for it and nothing else.
    pub(super) entry: Option<(usize, u32)>,
    /// The life that took its request last, and the one that took its ACK or REPLY.
    pub(super) taken: Option<Taken>,
    pub(super) answered: Option<Taken>,
    /// Whether it asks for an ACK or REPLY, and its target does not withhold that.
    pub(super) awaits: bool,
    /// Whether its descriptor is for it alone.
    pub(super) is_alone: bool,
    /// Whether its payload is of a node's own service: no pattern.
    pub(super) is_of_node: bool,
}

/// What went wrong first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The checker that found it.
    pub checker: &'static str,
    /// What it found.
    pub found: String,
}

/// All operations.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) operations: Vec<Operation>,
    /// Operations by the descriptor that their answer names, of a node's life.
    awaited: HashMap<((usize, u32), u64), u32>,
    /// Operations by the handle that their answer has.
    replies: HashMap<WireHandle, u32>,
    /// Messages on their way to routers, and those that several lives of a router were shown.
    to_routers: HashMap<((u32, Leg), usize), Flight>,
    copied: HashSet<(u32, Leg)>,
    /// Handles that left last, and the NIDs that were asked by them.
    pub(super) given: VecDeque<(Nid, WireHandle)>,
    /// Hostile names, which answer in the stead of others alone.
    strangers: HashSet<Nid>,
    pub(super) violation: Option<Violation>,
    /// Whether nothing happens that may make a message fail.
    pub(super) gentle: bool,
    /// Whether a message that was sent has arrived: streams do not tell that.
    pub(super) sent_is_arrived: bool,
    /// Messages whose receiver had them.
    pub(super) delivered: u64,
    /// The time, in ns.
    pub(super) now: u64,
    /// How long a message between two nodes that are not hostile may take, while there is an attack.
    pub(super) friendly_ns: Option<u64>,
}

impl Ledger {
    pub(super) fn new(gentle: bool, sent_is_arrived: bool, strangers: &[Stranger]) -> Self {
        let strangers = strangers.iter().map(Stranger::nid).collect();
        Self { gentle, sent_is_arrived, strangers, ..Self::default() }
    }

    /// Notes what went wrong, unless something has already.
    pub(super) fn fail(&mut self, checker: &'static str, found: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation { checker, found: found() });
        }
    }

    /// Fails unless `holds`.
    pub(super) fn expect(&mut self, holds: bool, checker: &'static str, found: impl FnOnce() -> String) {
        if !holds {
            self.fail(checker, found);
        }
    }

    /// The REPLY to a GET of a node's life, or the ACK of a push, will name this descriptor.
    pub(super) fn await_reply(&mut self, life: (usize, u32), md: MdHandle, number: u32) {
        self.awaited.insert((life, md.0.0), number);
    }

    /// Notes the handle that a request of a node's life leaves with, which its answer will have. A GET for a
    /// part of a descriptor has one of its own, which its program does not see, and its number in its bits.
    pub(super) fn note_handle(&mut self, life: (usize, u32), header: &Header) {
        let (handle, number) = match header.body {
            Body::Put { ack_md, .. } => (ack_md, None),
            Body::Get { return_md, match_bits: PING_MATCH_BITS, .. } => (return_md, None),
            Body::Get { return_md, match_bits, .. } => (return_md, Some((match_bits >> 32) as u32)),
            _ => return,
        };
        let number = number.or_else(|| self.awaited.get(&(life, handle.object_cookie)).copied());
        if let Some(number) = number {
            self.replies.insert(handle, number);
        }
        if !handle.is_none() {
            self.given.truncate(GIVEN_MAX - 1);
            self.given.push_front((header.destination.nid, handle));
        }
    }

    /// The message that a header is of.
    pub(super) fn identify(&mut self, header: &Header) -> Option<(u32, Leg)> {
        let is_response = matches!(header.body, Body::Ack { .. } | Body::Reply { .. });
        if is_response && self.strangers.contains(&header.source.nid) {
            return Some((STRANGE, Leg::Response));
        }
        let (number, leg) = match header.body {
            Body::Put { hdr_data, .. } => (hdr_data as u32, Leg::Request),
            // Pings and pushes have the same bits at all nodes.
            Body::Get { match_bits: PING_MATCH_BITS, return_md, .. } => {
                (self.named(return_md)?, Leg::Request)
            }
            Body::Ack { match_bits: PING_MATCH_BITS, md, .. } => (self.named(md)?, Leg::Response),
            Body::Get { match_bits, .. } => ((match_bits >> 32) as u32, Leg::Request),
            Body::Ack { match_bits, .. } => ((match_bits >> 32) as u32, Leg::Response),
            Body::Reply { md } => (self.named(md)?, Leg::Response),
            Body::Hello { .. } => return None,
        };
        (number == STRANGE || (number as usize) < self.operations.len()).then_some((number, leg))
    }

    /// The operation whose descriptor has this handle.
    fn named(&self, md: WireHandle) -> Option<u32> {
        if md.interface_cookie == u64::MAX {
            return Some(STRANGE);
        }
        self.replies.get(&md).copied()
    }

    pub(super) fn flight(&mut self, (number, leg): (u32, Leg), hop: Hop) -> &mut Flight {
        if let Some(router) = hop {
            return self.to_routers.entry(((number, leg), router)).or_default();
        }
        let operation = &mut self.operations[number as usize];
        match leg {
            Leg::Request => &mut operation.request,
            Leg::Response => &mut operation.response,
        }
    }

    /// Whether several lives of a router may have sent a message on: then so many may arrive.
    fn is_copied(&self, message: (u32, Leg)) -> bool {
        self.copied.contains(&message)
    }

    /// A receiver is shown the header of a message.
    pub(super) fn seen(&mut self, message: (u32, Leg), hop: Hop, life: Life) {
        if message.0 == STRANGE {
            return;
        }
        let flight = self.flight(message, hop);
        let is_again = flight.life.replace(life).is_some_and(|former| former != life);
        if is_again && hop.is_some() {
            self.copied.insert(message);
        }
        let flight = self.flight(message, hop);
        if is_again {
            (flight.seen, flight.ended, flight.well) = (0, false, false);
            if message.1 == Leg::Request && hop.is_none() {
                // The next life answers as well.
                self.operations[message.0 as usize].response = Flight::default();
                let response = (message.0, Leg::Response);
                self.to_routers.retain(|(of, _), _| *of != response);
            }
        }
        let flight = self.flight(message, hop);
        flight.seen += 1;
        let flight = *flight;
        let is_copied = self.is_copied(message);
        self.expect(!is_copied || !self.gentle, "what can arrive does arrive", || {
            format!("{message:?} goes by several routers")
        });
        self.expect(flight.seen == 1 || is_copied, "each message arrives at most once in a life", || {
            format!("{message:?} arrives for the {}. time", flight.seen)
        });
        let request = self.operations[message.0 as usize].request;
        let is_due = message.1 == Leg::Request || (request.ended && request.well);
        self.expect(is_due, "what is answered has arrived", || format!("{message:?}: {request:?}"));
        let never = matches!(flight.sent, Some(Status::NeverSent(_)));
        self.expect(!never || is_copied, "what was never sent never arrives", || {
            format!("{message:?} was {flight:?}")
        });
    }

    fn taken_of(&mut self, (number, leg): (u32, Leg)) -> &mut Option<Taken> {
        let operation = &mut self.operations[number as usize];
        match leg {
            Leg::Request => &mut operation.taken,
            Leg::Response => &mut operation.answered,
        }
    }

    /// The event of a message is seen; whether one was due. A message that ends while its shard delays it has
    /// one, too, and was never taken.
    pub(super) fn has_event(&mut self, message: (u32, Leg)) -> bool {
        self.taken_of(message).as_mut().is_none_or(|taken| {
            taken.events += 1;
            taken.events <= taken.times
        })
    }

    /// A node, in its life, takes a message.
    pub(super) fn taken(&mut self, message: (u32, Leg), life: (usize, u32)) {
        if message.0 == STRANGE {
            return;
        }
        let taken = self.taken_of(message);
        let former = taken.filter(|former| former.by == life);
        let Taken { times, events, .. } = former.unwrap_or(Taken { by: life, times: 0, events: 0 });
        *taken = Some(Taken { by: life, times: times + 1, events });
    }

    /// A node, in its life, has found no entry for a message.
    pub(super) fn expect_no_entry(&mut self, message: (u32, Leg), life: (usize, u32)) {
        if message.0 == STRANGE {
            return;
        }
        let Operation { entry, taken, .. } = self.operations[message.0 as usize];
        // Transfer machines that were renewed may have had it once before.
        let there = entry == Some(life) && taken.is_none_or(|taken| taken.by != life);
        self.expect(message.1 == Leg::Response || !there, "what has an entry is matched", || {
            format!("{message:?}")
        });
    }

    /// A receiver is done with a message: `well` if it has all of it, or wants nothing of it.
    pub(super) fn ended(&mut self, message: (u32, Leg), hop: Hop, well: bool) {
        if message.0 == STRANGE {
            return;
        }
        let is_copied = self.is_copied(message);
        let flight = self.flight(message, hop);
        flight.well = well;
        let twice = core::mem::replace(&mut flight.ended, true);
        self.delivered += u64::from(!twice && hop.is_none());
        self.expect(!twice || is_copied, "a message ends once at its receiver", || {
            format!("{message:?} ends again")
        });
        let Operation { begun_at, is_hostile, .. } = self.operations[message.0 as usize];
        self.expect_in_time(message, begun_at, is_hostile);
    }

    /// A message of a friend to another one, or its answer, has ended.
    fn expect_in_time(&mut self, message: (u32, Leg), begun_at: u64, is_hostile: bool) {
        let lasted_ns = self.now - begun_at;
        let is_late = !is_hostile && self.friendly_ns.is_some_and(|most_ns| lasted_ns > most_ns);
        self.expect(!is_late, "friends are answered under attack", || {
            format!("{message:?} took {:.1} ms", lasted_ns as f64 / MS as f64)
        });
    }

    /// A shard hands a message to its driver: once more if the driver could not send it.
    pub(super) fn submitted(&mut self, message: (u32, Leg), hop: Hop) {
        if message.0 == STRANGE {
            return;
        }
        let is_copied = self.is_copied(message);
        let former = self.flight(message, hop).sent.take();
        self.expect(
            is_copied || matches!(former, None | Some(Status::NeverSent(_))),
            "a message ends once at its sender",
            || format!("{message:?} ended as {former:?} and is sent anew"),
        );
    }

    /// A sender is told how a message ended.
    pub(super) fn sent(&mut self, message: (u32, Leg), hop: Hop, status: Status) {
        if message.0 == STRANGE {
            return;
        }
        let gentle = self.gentle && !self.operations[message.0 as usize].is_hostile;
        let is_copied = self.is_copied(message);
        let flight = self.flight(message, hop);
        let former = flight.sent.replace(status);
        let flight = *flight;
        self.expect(former.is_none() || is_copied, "a message ends once at its sender", || {
            format!("{message:?} ended as {former:?}, and as {status:?}")
        });
        match status {
            Status::Ok if !self.sent_is_arrived || is_copied => {}
            Status::Ok => self.expect(flight.ended && flight.well, "what counts as sent has arrived", || {
                format!("{message:?} was sent, its receiver has {flight:?}")
            }),
            Status::NeverSent(_) => {
                self.expect(flight.seen == 0 || is_copied, "what was never sent never arrives", || {
                    format!("{message:?} ended as {status:?} and arrived")
                })
            }
            Status::Unknown(_) => {}
        }
        self.expect(!gentle || status == Status::Ok, "what can arrive does arrive", || {
            format!("{message:?} ended as {status:?}")
        });
        let Operation { begun_at, is_hostile, .. } = self.operations[message.0 as usize];
        self.expect_in_time(message, begun_at, is_hostile);
    }
}
