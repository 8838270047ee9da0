//! Programs of simulated jobs. The seed of a task determines its behaviour and its result, so that a job's result is known
//! before it runs.

use sandbar_core::{Seed, VALUE_INLINE_BYTES_MAX};

/// Indices of the functions.
pub(super) const TASK: u32 = 0;
pub(super) const GENERATOR: u32 = 1;
pub(super) const ACTOR: u32 = 2;
pub(super) const METHOD: u32 = 3;

/// Flag of a task's number, beside its depth: neither it nor what it submits creates actors, so that its job may be taken
/// over by another node.
pub(super) const WITHOUT_ACTORS: u8 = 0x80;

/// Maximum depth of a root task.
pub(super) const DEPTH_MAX: u8 = 3;

/// Maximum number of children of a task.
const CHILDREN_MAX: u32 = 4;

/// A child of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Child {
    /// A task with at most one input.
    Task(Option<Input>),
    /// A generator of this number of items.
    Generator(u32),
    /// An actor and this number of calls.
    Actor(u32),
    /// A task that its parent cancels.
    Cancelled,
}

/// Input of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// The object that the parent has stored.
    Stored,
    /// The result of the parent's child with this index.
    Child(usize),
}

/// The plan of a task.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Children, with their seeds.
    pub(super) children: Vec<(u64, Child)>,
    /// Whether the result contains the object that the task has stored.
    pub(super) returns_ref: bool,
    /// Duration of the computation in microseconds.
    pub(super) micros: u64,
}

/// Returns the plan of a task with this seed and number: its depth, which is 0 for tasks without children, and flags.
pub(super) fn plan(seed: u64, number: u8) -> Plan {
    let mut random = Seed::new(seed);
    let (depth, has_actors) = (number & !WITHOUT_ACTORS, number & WITHOUT_ACTORS == 0);
    let count = if depth == 0 { 0 } else { 1 + random.below(CHILDREN_MAX) };
    let mut children = Vec::new();
    for index in 0..count as usize {
        let child_seed = random.next_u64();
        let kind = match random.below(12) {
            0 | 1 => Child::Generator(random.below(6)),
            2 | 3 if has_actors => Child::Actor(1 + random.below(4)),
            4 => Child::Cancelled,
            5..8 => Child::Task(Some(Input::Stored)),
            8 | 9 if index > 0 && matches!(children[index - 1], (_, Child::Task(_))) => {
                Child::Task(Some(Input::Child(index - 1)))
            }
            _ => Child::Task(None),
        };
        children.push((child_seed, kind));
    }
    Plan { children, returns_ref: random.below(4) == 0, micros: u64::from(random.below(3000)) }
}

/// Encodes a number as a value: the number, and padding whose length and content it determines. Some values are large enough
/// for the value store, some are too large for messages between nodes.
pub(super) fn encode(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let length = match number % 10 {
        0 | 1 => 6000 + number % 5000,
        2 | 3 => 500,
        4 => VALUE_INLINE_BYTES_MAX as u64 + number % 50_000,
        _ => 0,
    };
    bytes.resize(8 + length as usize, number as u8);
    bytes
}

/// Returns the number of a value, or `None` if the value is wrong.
pub(super) fn decode(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (encode(number) == bytes).then_some(number)
}

/// Returns the value that a task with this seed stores.
pub(super) fn stored_value(seed: u64) -> u64 {
    Seed::new(seed).with(b"stored").value()
}

/// Returns an item of a generator.
pub(super) fn item_value(seed: u64, index: u64) -> u64 {
    Seed::new(seed).with(&index.to_le_bytes()).value()
}

/// Returns the result of a call of an actor.
pub(super) fn call_value(seed: u64) -> u64 {
    Seed::new(seed).with(b"call").value()
}

/// Returns the result of a task with this seed, from its input and its children's results.
pub(super) fn combine(seed: u64, input: Option<u64>, children: &[u64]) -> u64 {
    let mut result = Seed::new(seed).with(&input.unwrap_or(0).to_le_bytes());
    for child in children {
        result = result.with(&child.to_le_bytes());
    }
    result.value()
}

/// Returns a task's number with a depth of at most [`DEPTH_MAX`]: a liar may have submitted the task.
pub(super) fn limited(number: u8) -> u8 {
    (number & !WITHOUT_ACTORS).min(DEPTH_MAX) | number & WITHOUT_ACTORS
}

/// Returns the number of a child.
pub(super) fn child_number(number: u8) -> u8 {
    (number & !WITHOUT_ACTORS).saturating_sub(1) | number & WITHOUT_ACTORS
}

/// Returns the expected result of a task.
pub(super) fn expected(seed: u64, number: u8, input: Option<u64>) -> u64 {
    let Plan { children, .. } = plan(seed, number);
    let mut results: Vec<u64> = Vec::new();
    for (child_seed, child) in children {
        let result = match child {
            Child::Task(input) => {
                let input = input.map(|input| match input {
                    Input::Stored => stored_value(seed),
                    Input::Child(index) => results[index],
                });
                expected(child_seed, child_number(number), input)
            }
            Child::Generator(items) => {
                let items: Vec<u64> = (0..u64::from(items)).map(|index| item_value(child_seed, index)).collect();
                combine(child_seed, None, &items)
            }
            Child::Actor(calls) => {
                let calls: Vec<u64> = (0..calls).map(|call| call_value(call_seed(child_seed, call))).collect();
                combine(child_seed, None, &calls)
            }
            Child::Cancelled => 0,
        };
        results.push(result);
    }
    combine(seed, input, &results)
}

/// Returns the seed of a call of an actor.
pub(super) fn call_seed(actor: u64, call: u32) -> u64 {
    Seed::new(actor).with(&call.to_le_bytes()).value()
}
