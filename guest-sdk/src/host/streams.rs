//! Streams of the test host, in this process and thread: a generator runs when its next item is requested.

use sandbar_core::{Code, Fault, TaskError};

use super::calls::{Running, run};
use super::objects::{Host, host, never};
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::{Following, Outcome};
use crate::registry::Items;
use crate::task;

/// A started generator.
pub(super) struct Flow {
    /// None while the generator computes an item.
    items: Option<Items>,
    yielded: u64,
}

impl Flow {
    pub(super) fn into_items(self) -> Option<Items> {
        self.items
    }
}

/// Registers the generator of a call.
pub(crate) fn generate(call: u64, items: Items) {
    host(|host| _ = host.streams.insert(call, Flow { items: Some(items), yielded: 0 }));
}

pub(crate) fn yielded(parts: &[&[u8]], objects: &[u64]) {
    host(|host| {
        host.pin(objects);
        let part = host.running.last_mut().expect("a generator yields while it runs");
        part.yielded.push((parts.concat(), objects.to_vec()));
    });
}

/// Runs the generator for one item. Every other step that can run has run already.
pub(crate) fn next_item(stream: u64, timeout: Option<u64>) -> Following {
    // Releases dropped handles before the generator resumes.
    task::release_gone();
    let Some((chain, mut items)) = host(|host| host.begin_item(stream)) else {
        return match host(|host| host.is_there(stream)) {
            true => Following::Ended,
            false if timeout.is_some() => Following::TimeOut,
            false => never(stream),
        };
    };
    let (has_ended, part, _) = run(chain, None, stream, || items.next().transpose().map(|item| item.is_none()));
    host(|host| host.came(stream, items, has_ended, part))
}

impl Host {
    /// Takes the iterator of a generator, and the names of the tasks that led to it.
    fn begin_item(&mut self, stream: u64) -> Option<(Vec<String>, Items)> {
        let items = self.streams.get_mut(&stream)?.items.take()?;
        Some((self.calls.get(&stream)?.chain.clone(), items))
    }

    /// Handles the outcome of a generator's step.
    fn came(&mut self, stream: u64, items: Items, has_ended: Result<bool, TaskError>, part: Running) -> Following {
        let mut yielded = part.yielded.into_iter();
        let item = yielded.next().filter(|_| has_ended == Ok(false));
        let following = match (self.streams.get_mut(&stream), item) {
            (Some(flow), Some((bytes, contains))) => {
                (flow.items, flow.yielded) = (Some(items), flow.yielded + 1);
                let object = self.add(Outcome::Value, bytes, contains.clone());
                self.unpin(&contains);
                Following::Item(object)
            }
            (flow, _) => {
                let count = flow.map_or(0, |flow| flow.yielded);
                self.trash.streams.push(items);
                let count = postcard::to_stdvec(&count).expect("a number is a few bytes");
                self.finish(stream, has_ended.map(|_| vec![(count, Vec::new())]));
                Following::Ended
            }
        };
        // Unpins the objects of values that are no items.
        yielded.for_each(|(_, contains)| self.unpin(&contains));
        following
    }

    /// Stops the generator of a stream that was released.
    pub(super) fn drop_stream(&mut self, number: u64) {
        let call = self.calls.get(&number).filter(|call| call.offered.kind == TaskKind::Generator);
        if let Some(call) = call {
            let fault = Fault::new(Code::Cancelled, "it was cancelled, or its job was stopped");
            let error = TaskError { fault, chain: call.chain.clone() };
            self.stop(number, error);
        }
    }
}
