//! Fuzz target: messages of other nodes to the runtime of one.

use arbitrary::Unstructured;
use sandbar_core::{Argument, NodeId, ObjectId, RequestOptions, Strategy, TaskRequest};
use sandbar_node::{Saying, hear_any, said_any};
use sandbar_worker::program::{SentValue, WorkerMessage};

use crate::programs::{
    ACTORS, CLIENT, GENERATOR, KINDS, MAKE, METHOD, TASK, TASKS, finished, first, message_of, submit,
};

/// The first of two peers.
const NODE: u8 = 4;
/// Maximum messages of one history.
const MESSAGES_MAX: usize = 300;

/// Sends a runtime the messages of two peers and of its workers that the bytes encode.
///
/// # Panics
/// Panics if the runtime does, or if it holds anything after all have ended.
pub fn peer(bytes: &[u8]) -> bool {
    let mut bytes = Unstructured::new(bytes);
    let mut pick = |bound: u32| bytes.int_in_range(0..=bound.max(1) - 1).unwrap_or(0);
    let mut message = || {
        let who = [CLIENT, CLIENT, TASKS, TASKS, ACTORS, NODE, NODE, NODE + 1][pick(8) as usize];
        let after_ms = if pick(16) == 0 { 50 } else { 0 };
        (who, if who < NODE { worker_message(who, &mut pick) } else { said_any(&mut pick) }, after_ms)
    };
    let all: Vec<(u8, Vec<u8>, u32)> = (0..MESSAGES_MAX).map(|_| message()).collect();
    let saying =
        all.iter().map(|(who, message, after_ms)| Saying { who: *who, with_file: false, message, after_ms: *after_ms });
    // Many messages are invalid: the runtime then drops the peer, which reconnects.
    hear_any(&KINDS, saying);
    true
}

/// Returns a worker's message that leads to messages to peers.
fn worker_message(who: u8, pick: &mut dyn FnMut(u32) -> u32) -> Vec<u8> {
    let number = |pick: &mut dyn FnMut(u32) -> u32| {
        let of = u64::from(pick(8));
        (if of < 5 { of * first(0) } else { (of - 4) << 48 }) + u64::from(pick(16))
    };
    let (own, other, of_client) = (first(who) + u64::from(pick(16)), number(pick), u64::from(pick(2)));
    match pick(12) {
        0..4 => {
            let function = [TASK, TASK, TASK, GENERATOR, MAKE, METHOD][pick(6) as usize];
            let actor = (function == METHOD).then_some(ObjectId(other));
            let is_given = actor.is_none() && pick(2) == 0;
            let arguments = if is_given { vec![Argument::Object(ObjectId(other))] } else { Vec::new() };
            let refs = if pick(3) == 0 { vec![ObjectId(number(pick))] } else { Vec::new() };
            let strategy = match pick(3) {
                0 => Strategy::Spread,
                1 => Strategy::Node { node: NodeId(100 + pick(2)), soft: pick(2) == 0 },
                _ => Strategy::Default,
            };
            let name = (pick(4) == 0).then(|| "one".to_owned());
            let options = Some(Box::new(RequestOptions { strategy, name, ..RequestOptions::default() }));
            submit(own, function, 1, &TaskRequest { options, actor, arguments, refs })
        }
        4 => message_of(&WorkerMessage::Put {
            object: own,
            task: of_client,
            value: SentValue::Inline(b"\x02"),
            refs: vec![],
        }),
        5 => message_of(&WorkerMessage::RequestObject(other, of_client)),
        6 | 7 => finished(other, Ok(vec![(SentValue::Inline(b"\x02"), vec![])])),
        8 => message_of(&WorkerMessage::Blocked(other, pick(2) == 0)),
        9 => message_of(&WorkerMessage::Release(other, 1)),
        10 => message_of(&WorkerMessage::Cancel(other, of_client, true)),
        _ => message_of(&WorkerMessage::ItemsTaken(other, pick(4).into())),
    }
}
