//! Fuzz target: messages of other nodes to the runtime of one.

use arbitrary::Unstructured;
use sandbar_core::{Argument, NodeId, ObjectId, RequestOptions, Strategy, TaskRequest};
use sandbar_node::{FuzzInput, generate_peer_message, run_fuzz_inputs};
use sandbar_worker::program::{SentValue, WorkerMessage};

use crate::programs::{
    ACTORS, CLIENT, CONSTRUCTOR, GENERATOR, KINDS, METHOD, TASK, TASKS, encode_message, finished, first_id, submit,
};

/// The first of two peers, as a sender.
const PEER: u8 = 4;
/// Maximum messages of one history.
const MESSAGES_MAX: usize = 300;

/// Sends a runtime the messages of two peers and of its workers that the bytes encode.
///
/// # Panics
/// Panics if the runtime does, or if it has any state left after all jobs and workers have ended.
pub fn peer(bytes: &[u8]) -> bool {
    let mut bytes = Unstructured::new(bytes);
    let mut choose = |bound: u32| bytes.int_in_range(0..=bound.max(1) - 1).unwrap_or(0);
    let mut message = || {
        let sender = [CLIENT, CLIENT, TASKS, TASKS, ACTORS, PEER, PEER, PEER + 1][choose(8) as usize];
        let delay_ms = if choose(16) == 0 { 50 } else { 0 };
        let message =
            if sender < PEER { worker_message(sender, &mut choose) } else { generate_peer_message(&mut choose) };
        (sender, message, delay_ms)
    };
    let messages: Vec<(u8, Vec<u8>, u32)> = (0..MESSAGES_MAX).map(|_| message()).collect();
    let inputs = messages.iter().map(|(sender, message, delay_ms)| FuzzInput {
        sender: *sender,
        with_file: false,
        message,
        delay_ms: *delay_ms,
    });
    // Many messages are invalid: the runtime then disconnects the peer, which reconnects.
    run_fuzz_inputs(&KINDS, inputs);
    true
}

/// Returns a worker's message that leads to messages to peers.
fn worker_message(sender: u8, choose: &mut dyn FnMut(u32) -> u32) -> Vec<u8> {
    let any_id = |choose: &mut dyn FnMut(u32) -> u32| {
        let allocator = u64::from(choose(8));
        (if allocator < 5 { allocator * first_id(0) } else { (allocator - 4) << 48 }) + u64::from(choose(16))
    };
    let (own, other, root_task) = (first_id(sender) + u64::from(choose(16)), any_id(choose), u64::from(choose(2)));
    match choose(12) {
        0..4 => {
            let function = [TASK, TASK, TASK, GENERATOR, CONSTRUCTOR, METHOD][choose(6) as usize];
            let actor = (function == METHOD).then_some(ObjectId(other));
            let has_argument = actor.is_none() && choose(2) == 0;
            let arguments = if has_argument { vec![Argument::Object(ObjectId(other))] } else { Vec::new() };
            let refs = if choose(3) == 0 { vec![ObjectId(any_id(choose))] } else { Vec::new() };
            let strategy = match choose(3) {
                0 => Strategy::Spread,
                1 => Strategy::Node { node: NodeId(100 + choose(2)), soft: choose(2) == 0 },
                _ => Strategy::Default,
            };
            let name = (choose(4) == 0).then(|| "one".to_owned());
            let options = Some(Box::new(RequestOptions { strategy, name, ..RequestOptions::default() }));
            submit(own, function, 1, &TaskRequest { options, actor, arguments, refs })
        }
        4 => encode_message(&WorkerMessage::Put {
            object: own,
            task: root_task,
            value: SentValue::Inline(b"\x02"),
            refs: vec![],
        }),
        5 => encode_message(&WorkerMessage::RequestObject(other, root_task)),
        6 | 7 => finished(other, Ok(vec![(SentValue::Inline(b"\x02"), vec![])])),
        8 => encode_message(&WorkerMessage::Blocked(other, choose(2) == 0)),
        9 => encode_message(&WorkerMessage::Release(other, 1)),
        10 => encode_message(&WorkerMessage::Cancel(other, root_task, true)),
        _ => encode_message(&WorkerMessage::ItemsTaken(other, choose(4).into())),
    }
}
