//! Carriers of an NI of mode `auto` whose rings are found to be deaf: zero copy is followed by copying, the
//! driver by generic mode, and that by sockets.
//!
//! Invariants: each rung is tried once while an interface has NIs, and the last one stays; rings that have
//! received a frame stay; what an NI wants by its options is never changed.

use std::borrow::Cow;

use lnet_io::driver::Part;
use lnet_io::kind::{Host, LndKind, NiRequest};
use lnet_model::lnd::ZeroCopy;
use lnet_model::ni::XdpMode;

use super::plan::XdpPlan;
use super::{OpenPort, XdpError, XdpKind, XdpNi};
use crate::bpf::ActiveMode;
use crate::lnd::XdpLnd;

/// Carriers of an interface's frames, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rung {
    /// Rings as the driver takes them.
    Best,
    /// Rings of which the kernel copies.
    Copy,
    /// Rings with the program in the kernel's network stack.
    Generic,
    /// Sockets.
    Socket,
}

impl Rung {
    /// The rung of rings that are open.
    pub(super) const fn of(mode: ActiveMode, zero_copy: bool) -> Self {
        match (mode, zero_copy) {
            (ActiveMode::Native, true) => Self::Best,
            (ActiveMode::Native, false) => Self::Copy,
            (ActiveMode::Generic, _) => Self::Generic,
        }
    }

    /// The one that is tried after this.
    const fn next(self) -> Self {
        match self {
            Self::Best => Self::Copy,
            Self::Copy => Self::Generic,
            Self::Generic | Self::Socket => Self::Socket,
        }
    }
}

/// Rings of an interface that were deaf, and what is tried instead.
#[derive(Debug)]
pub(super) struct DeafRings {
    /// The rung from which on carriers are tried.
    from: Rung,
    /// The last one that was deaf.
    former: Rung,
    /// Reason: the rings that were deaf, and how that was found.
    why: String,
    /// Whether nothing else could be had: the rings stay.
    stays: bool,
}

impl XdpKind {
    /// The plan of an NI by what is known of its interface, and why it is another one.
    pub(super) fn by_experience<'a>(&self, plan: &'a XdpPlan) -> (Cow<'a, XdpPlan>, Option<String>) {
        let known = self.deaf.get(&plan.interface.index);
        let Some(deaf) = known.filter(|deaf| plan.is_auto && deaf.from != Rung::Best) else {
            return (Cow::Borrowed(plan), None);
        };
        let mut plan = plan.clone();
        match deaf.from {
            Rung::Best => {}
            Rung::Copy => (plan.zero_copy, plan.is_zero_copy_deaf) = (ZeroCopy::Off, true),
            Rung::Generic => plan.mode = XdpMode::Generic,
            Rung::Socket => plan.mode = XdpMode::Socket,
        }
        (Cow::Owned(plan), Some(deaf.why.clone()))
    }

    /// Whether rings of an interface that are deaf may be followed by something else.
    pub(super) fn is_replaceable(&self, plan: &XdpPlan) -> bool {
        plan.is_auto && self.deaf.get(&plan.interface.index).is_none_or(|deaf| !deaf.stays)
    }

    /// Takes deaf rings back, with the parts of the shards that had them: all NIs that share them.
    pub fn give_up_rings(&mut self, host: &Host, nis: Vec<(XdpNi, Vec<Part<XdpLnd>>)>) {
        let Some(index) = nis.first().map(|(ni, _)| ni.port.interface_index) else { return };
        if let Some((rung, interface, deafness)) = self.deaf_link(index) {
            let name = match rung {
                Rung::Best => "native rings with zero copy",
                Rung::Copy => "native rings",
                Rung::Generic | Rung::Socket => "generic rings",
            };
            let why = format!("{name} were deaf: {deafness}");
            let next = rung.next();
            tracing::warn!(interface, why, ?next, "nothing has come by rings: the next mode is tried");
            let deaf = self.deaf.entry(index).or_insert_with(|| DeafRings {
                from: next,
                former: rung,
                why: String::new(),
                stays: false,
            });
            (deaf.from, deaf.former) = (next, rung);
            let separator = if deaf.why.is_empty() { "" } else { "; " };
            deaf.why = format!("{}{separator}{why}", deaf.why);
        }
        for (ni, parts) in nis {
            self.open.retain(|open| open.port.ni != ni.port.ni);
            self.close_rings(host, &ni.port, parts, true);
        }
    }

    /// Opens an NI whose rings were given up, by what comes next; by what it had, where that cannot be had.
    ///
    /// # Errors
    /// [`XdpError`]: nothing carries it any more.
    pub fn open_instead(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        let plan = self.plan(request)?;
        self.check_watches(&plan)?;
        let opened = self.open_as_planned(host, request, &plan).or_else(|error| {
            let index = plan.interface.index;
            let interface = request.interface;
            tracing::warn!(interface, %error, "the next mode cannot be had: rings that were deaf stay");
            if let Some(deaf) = self.deaf.get_mut(&index) {
                (deaf.from, deaf.stays) = (deaf.former, true);
            }
            self.open_as_planned(host, request, &plan)
        });
        let (ni, parts) = opened?;
        self.open.push(OpenPort { port: ni.port, mode: ni.mode });
        Ok((ni, parts))
    }

    /// Forgets what is known of an interface that has no NI any more.
    pub(super) fn forget_deaf(&mut self, interface_index: u32) {
        if !self.any_open(|open| open.port.interface_index == interface_index) {
            self.deaf.remove(&interface_index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_is_followed_by_a_lesser_one_and_sockets_are_the_last() {
        let best = Rung::of(ActiveMode::Native, true);
        let rungs: Vec<_> = std::iter::successors(Some(best), |rung| Some(rung.next())).take(5).collect();
        assert_eq!(rungs, [Rung::Best, Rung::Copy, Rung::Generic, Rung::Socket, Rung::Socket]);
        assert_eq!(Rung::of(ActiveMode::Native, false).next(), Rung::Generic, "a driver that copies");
        assert_eq!(Rung::of(ActiveMode::Generic, false).next(), Rung::Socket);
    }
}
