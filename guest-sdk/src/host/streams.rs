//! Streams of a host in this process and thread, for tests: a generator goes on when it is asked for its next item.

use sandbar_core::{Code, Fault, TaskError};

use super::calls::{Running, run};
use super::objects::{Host, host, never};
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::{Following, Outcome};
use crate::registry::Items;
use crate::task;

/// A generator that was begun.
pub(super) struct Flow {
    /// None while it is asked for an item.
    items: Option<Items>,
    yielded: u64,
}

impl Flow {
    pub(super) fn into_items(self) -> Option<Items> {
        self.items
    }
}

/// A generator was begun: the call of this number.
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

/// What can be done is done already, but for this.
pub(crate) fn next_item(stream: u64, timeout: Option<u64>) -> Following {
    // What the program holds no more is to be known before the generator goes on.
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
    /// A generator that is asked for its next item, and names of the tasks that led to it.
    fn begin_item(&mut self, stream: u64) -> Option<(Vec<String>, Items)> {
        let items = self.streams.get_mut(&stream)?.items.take()?;
        Some((self.calls.get(&stream)?.chain.clone(), items))
    }

    /// What came of it.
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
        // Of what is no item.
        yielded.for_each(|(_, contains)| self.unpin(&contains));
        following
    }

    /// Nobody has an object any more: if it is a stream, its generator is not wanted.
    pub(super) fn drop_stream(&mut self, number: u64) {
        let call = self.calls.get(&number).filter(|call| call.offered.kind == TaskKind::Generator);
        if let Some(call) = call {
            let fault = Fault::new(Code::Cancelled, "it was cancelled, or its job was stopped");
            let error = TaskError { fault, chain: call.chain.clone() };
            self.stop(number, error);
        }
    }
}
