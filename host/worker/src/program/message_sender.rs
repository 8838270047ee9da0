//! Messages of a node to one of its workers: in a ring, or in a queue while the ring is full.

use std::collections::VecDeque;

use super::ring::{RingMemory, Sender};

/// Sends messages in order. None is refused: those that find no room wait for it.
#[derive(Debug)]
pub(super) struct MessageSender {
    ring: Sender,
    /// Messages that wait for room in the ring.
    waiting: VecDeque<Vec<u8>>,
    /// Whether the ring has messages that the worker can't see yet.
    has_unpublished: bool,
}

impl MessageSender {
    pub(super) fn new(ring: RingMemory) -> MessageSender {
        MessageSender { ring: Sender::closed(ring), waiting: VecDeque::new(), has_unpublished: false }
    }

    /// Sends an encoded message. The worker receives it after [`MessageSender::publish`].
    pub(super) fn send(&mut self, message: &[u8]) {
        if self.waiting.is_empty() && self.ring.write(message).is_some() {
            self.has_unpublished = true;
        } else {
            self.waiting.push_back(message.to_owned());
        }
    }

    /// Returns whether messages wait for room, after an attempt to publish them.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Publishes all messages for which there is room. Returns whether there were any; the worker must then be woken.
    pub(super) fn publish(&mut self) -> bool {
        while let Some(message) = self.waiting.front() {
            if self.ring.write(message).is_none() {
                break;
            }
            self.waiting.pop_front();
            self.has_unpublished = true;
        }
        let publishes = std::mem::take(&mut self.has_unpublished);
        if publishes {
            self.ring.publish();
        }
        publishes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sandbar_store::SharedMemory;

    use super::*;
    use crate::program::ring::Receiver;

    /// Each message arrives at the latest at the second attempt to publish after its reader has made room.
    #[test]
    fn messages_that_wait_for_room_arrive() {
        let memory = Arc::new(SharedMemory::new(4096 + 1024).unwrap());
        let ring = RingMemory { memory, word: 0, read: 1, at: 4096, bytes: 1024 };
        let (mut sender, mut receiver) = (MessageSender::new(ring.clone()), Receiver::new(ring));
        let (mut sent, mut received, mut message) = (0_u32, 0_u32, Vec::new());
        for burst in [1, 3, 20, 300] {
            for _ in 0..burst {
                sender.send(&[&sent.to_le_bytes()[..], &[0; 96]].concat());
                sent += 1;
            }
            assert!(sender.publish(), "the first messages find room");
            let before = received;
            while received < sent {
                let expected = received;
                while receiver.next(&mut message).unwrap() {
                    assert_eq!(message[..4], received.to_le_bytes());
                    received += 1;
                }
                assert!(received > expected, "{} of {burst} messages arrived", received - before);
                assert_eq!(sender.publish(), received < sent);
            }
            assert!(!sender.has_waiting() && !sender.publish());
        }
    }
}
