//! Queues of an interface with rings: what its NIs tell of them, and the alarms.

use std::sync::PoisonError;

use lnet_io::locks::Mutex;

/// Queues of an interface with rings. The NIs of the interface share it.
#[derive(Debug)]
pub(super) struct LinkState(Mutex<Queues>);

#[derive(Debug)]
struct Queues {
    /// Receive queues that have sockets.
    served: u32,
    /// Receive and transmit queues that were counted when the sockets were last seen to.
    counted: Option<(u32, u32)>,
    /// Why some queues have no sockets.
    unserved: Option<String>,
    /// Counts of the last look at frames.
    seen: Option<Seen>,
    /// Looks in a row at which frames were steered and none was received.
    deaf_looks: u32,
    /// Fate of frames that arrived nowhere, and the looks since.
    lost: Option<(String, u32)>,
}

/// Frames of an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Frames that the program found no socket for.
    pub(super) no_socket: u64,
    /// Frames that it steered.
    pub(super) steered: u64,
    /// Frames that shards have received.
    pub(super) arrived: u64,
}

/// Looks at which frames are steered in vain before that is said: some may be on their way.
const DEAF_LOOKS: u32 = 2;
/// Looks after which an alarm is over.
const CALM_LOOKS: u32 = 10;

impl LinkState {
    pub(super) fn new(served: u32, counted: Option<(u32, u32)>) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self(Mutex::new(Queues {
            served,
            counted,
            unserved: None,
            seen: None,
            deaf_looks: 0,
            lost: None,
        })))
    }

    fn known(&self) -> lnet_io::locks::MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receive queues that have sockets.
    pub(super) fn served(&self) -> u32 {
        self.known().served
    }

    /// Whether the queues that there are now were not seen to yet.
    pub(super) fn differs(&self, counted: Option<(u32, u32)>) -> bool {
        counted.is_some() && self.known().counted != counted
    }

    /// Takes in how many queues were counted; how many there were before.
    pub(super) fn note_counted(&self, counted: (u32, u32)) -> Option<(u32, u32)> {
        self.known().counted.replace(counted)
    }

    /// All queues that there are have sockets: so many.
    pub(super) fn serve(&self, served: u32) {
        let mut known = self.known();
        (known.served, known.unserved) = (served, None);
    }

    /// Some of the receive queues have no sockets. What is lacking is logged, and told by the NIs.
    pub(super) fn note_unserved(&self, interface: &str, receive: u32, lacking: &str) {
        let mut known = self.known();
        let served = known.served;
        let text = format!(
            "{receive} receive queues, sockets on {served}: flows on the others never arrive: {lacking}; \
             `ethtool -L {interface} ...` gives it fewer queues"
        );
        tracing::warn!(interface, "{text}");
        known.unserved = Some(text);
    }

    /// Takes in what was counted, every few seconds. Frames that have arrived nowhere since are logged
    /// once, and told by the NIs until there were none for a while.
    pub(super) fn note_frames(&self, interface: &str, seen: Seen) {
        let mut known = self.known();
        let Some(former) = known.seen.replace(seen) else { return };
        let [no_socket, steered, arrived] = [
            seen.no_socket.saturating_sub(former.no_socket),
            seen.steered.saturating_sub(former.steered),
            seen.arrived.saturating_sub(former.arrived),
        ];
        known.deaf_looks = match (steered, arrived) {
            (0, 0) => known.deaf_looks,
            (_, 0) => known.deaf_looks + 1,
            _ => 0,
        };
        let text = if no_socket != 0 {
            format!(
                "{no_socket} frames arrived by queues without a socket and were lost: the interface has other \
                 queues than `ethtool -l {interface}` shows, as a bond has; mode socket, or NIs on its slaves"
            )
        } else if steered != 0 && known.deaf_looks >= DEAF_LOOKS {
            "frames are steered and none is received: program and sockets are on different devices, or the driver \
             does not fill its rings; mode generic or socket"
                .to_owned()
        } else {
            known.lost = known.lost.take().map(|(text, looks)| (text, looks + 1));
            known.lost.take_if(|(_, looks)| *looks >= CALM_LOOKS);
            return;
        };
        if known.lost.is_none() {
            tracing::warn!(interface, "{text}");
        }
        known.lost = Some((text, 0));
    }

    /// Alarm, if anything is wrong.
    pub(super) fn alarm(&self) -> Option<String> {
        let known = self.known();
        known.unserved.clone().or_else(|| known.lost.as_ref().map(|(text, _)| text.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(counts: &[[u64; 3]]) -> std::sync::Arc<LinkState> {
        let state = LinkState::new(2, None);
        for &[no_socket, steered, arrived] in counts {
            state.note_frames("eth0", Seen { no_socket, steered, arrived });
        }
        state
    }

    #[test]
    fn frames_that_arrive_nowhere_raise_an_alarm_and_others_do_not() {
        let alarm = |counts: &[[u64; 3]]| looks(counts).alarm();
        assert_eq!(alarm(&[[7, 0, 0]]), None, "before the first look");
        assert!(
            alarm(&[[7, 0, 0], [8, 0, 0]]).unwrap().contains("1 frames arrived by queues without a socket")
        );
        assert_eq!(alarm(&[[0, 5, 5], [0, 9, 5]]), None, "those are on their way");
        assert!(alarm(&[[0, 5, 5], [0, 9, 5], [0, 10, 5]]).unwrap().contains("none is received"));
        assert_eq!(alarm(&[[0, 5, 5], [0, 9, 5], [0, 12, 9], [0, 14, 9]]), None, "some arrive");
        assert_eq!(alarm(&[[0, 5, 5], [0, 5, 5], [0, 5, 5], [0, 5, 5]]), None, "nothing comes");
    }

    #[test]
    fn an_alarm_is_over_after_a_while() {
        let state = looks(&[[0, 0, 0], [3, 0, 0]]);
        for look in 0..CALM_LOOKS {
            assert!(state.alarm().is_some(), "{look}");
            state.note_frames("eth0", Seen { no_socket: 3, steered: 0, arrived: 0 });
        }
        assert_eq!(state.alarm(), None);
    }

    #[test]
    fn queues_without_sockets_are_told_until_all_have_some() {
        let state = looks(&[]);
        assert!(state.differs(Some((4, 4))) && !state.differs(None));
        state.note_counted((4, 4));
        assert!(!state.differs(Some((4, 4))));
        state.note_unserved("eth0", 4, "no memory");
        let alarm = state.alarm().unwrap();
        for part in ["4 receive queues, sockets on 2", "no memory", "ethtool -L eth0"] {
            assert!(alarm.contains(part), "{alarm}");
        }
        state.serve(4);
        assert_eq!((state.alarm(), state.served()), (None, 4));
    }
}
