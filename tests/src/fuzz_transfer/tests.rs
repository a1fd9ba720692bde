//! Attacks that fill one table each, from both addresses of the hostile peer: the honest one notices nothing.

use super::*;

/// Frame kinds by their numbers in an input.
const DATA: u8 = 0;
const HELLO: u8 = 4;

/// A frame of a life of the hostile peer from one of its addresses.
fn frame(kind: u8, life: u8, address: u8) -> [u8; STEP_BYTES] {
    let mut step = [0; STEP_BYTES];
    // Under the token that was given there; its number and id follow the last ones.
    (step[0], step[1], step[2], step[3]) = (3, kind, 1 << 4 | 1 << 5, 2 << 2);
    (step[4], step[5], step[8], step[23]) = (1, life, 1, address << 4 | 1);
    step
}

impl Scene {
    /// A message, or a fragment of one, with units of 16 bytes in total, and of 64 bytes in its frame. The
    /// window of its stream stays where it began.
    fn begin(&mut self, (life, address): (u8, u8), portal: u8, total: u8, length: u8, fragment: u8) {
        let mut step = frame(DATA, life, address);
        step[6..8].copy_from_slice(&(self.id as u16).to_le_bytes());
        (step[12], step[13], step[16], step[17]) = (portal, total, fragment, length);
        self.step(&step);
    }

    /// A life of the hostile peer is given a session at one of its addresses.
    fn meet(&mut self, life: u8, address: u8) {
        // Certificates are checked as often as this.
        self.now = self.now + Duration::from_millis(64);
        self.step(&frame(HELLO, life, address));
    }

    /// Both addresses begin messages until no more are taken.
    fn fill(&mut self, portal: u8, total: u8, length: u8, fragment: u8) {
        let senders = [(0, 0), (1, 1)];
        senders.into_iter().for_each(|(life, address)| self.meet(life, address));
        for (life, address) in senders {
            for _ in 0..LIMITS.incoming {
                self.begin((life, address), portal, total, length, fragment);
            }
        }
    }
}

#[test]
fn fragments_of_messages_that_never_end() {
    let mut scene = Scene::new();
    scene.fill(1, 255, 16, 0);
    assert_eq!(scene.nodes[0].xfer.usage().partials, LIMITS.partials - 1);
    scene.honest_message(3000);
    scene.conclude();
}

#[test]
fn delayed_messages() {
    let mut scene = Scene::new();
    scene.fill(DELAYING as u8, 4, 1, 0);
    let usage = scene.nodes[0].xfer.usage();
    // Half. At its second address the peer says that its first life is there, which ends the other one.
    assert_eq!(usage.incoming, LIMITS.incoming / 2, "{usage:?}");
    scene.honest_message(3000);
    scene.conclude();
}

#[test]
fn fragments_ahead_of_their_messages() {
    let mut scene = Scene::new();
    scene.fill(1, 255, 16, 1);
    assert_eq!(scene.nodes[0].xfer.usage().buffered, LIMITS.buffered - 1);
    scene.honest_message(3000);
    scene.conclude();
}

#[test]
fn lives_and_their_streams() {
    let mut scene = Scene::new();
    // The honest peer is forgotten.
    for _ in 0..4 {
        scene.now = scene.now + Duration::from_secs(10);
        scene.exchange();
    }
    assert_eq!(scene.nodes[0].xfer.usage().receive_streams, 0);
    for life in 0..LIVES as u8 {
        let address = life / (LIVES as u8 / 2);
        scene.meet(life, address);
        scene.begin((life, address), 1, 4, 1, 0);
    }
    let usage = scene.nodes[0].xfer.usage();
    // Each address was asked who is there, and that ended the others.
    assert_eq!(usage.receive_streams, 2, "{usage:?}");
    scene.honest_message(3000);
    scene.conclude();
}
