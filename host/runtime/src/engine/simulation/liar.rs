//! A node that lies: it changes, repeats and omits messages to other nodes.

use sandbar_core::Seed;

use super::super::fuzz::generate_peer_message;

/// Number of sent frames that a liar remembers.
const SENT_MAX: usize = 100;

/// A node whose frames are changed on their way to other nodes.
pub(super) struct Liar {
    node: u32,
    /// The last frames that it has sent.
    sent: Vec<Vec<u8>>,
}

impl Liar {
    pub(super) fn new(node: u32) -> Liar {
        Liar { node, sent: Vec::new() }
    }

    pub(super) fn node(&self) -> u32 {
        self.node
    }

    /// Returns what the liar sends in place of a frame: mostly, the frame itself.
    pub(super) fn change(&mut self, random: &mut Seed, frame: Vec<u8>) -> Vec<u8> {
        let changed = match random.below(16) {
            // Mostly still a message, with another number.
            0 | 1 => {
                let mut changed = frame.clone();
                let at = random.below(changed.len().clamp(1, 24) as u32) as usize;
                if let Some(byte) = changed.get_mut(at) {
                    *byte = byte.wrapping_add(1 + random.below(3) as u8);
                }
                changed
            }
            2 => {
                let index = random.below(self.sent.len().max(1) as u32) as usize;
                self.sent.get(index).unwrap_or(&frame).clone()
            }
            3 => generate_peer_message(&mut |bound| random.below(bound)),
            _ => frame.clone(),
        };
        if self.sent.len() == SENT_MAX {
            self.sent.remove(0);
        }
        self.sent.push(frame);
        changed
    }
}
