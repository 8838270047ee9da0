//! Streams of the test host, in this process and thread: a generator runs when its next item is requested.

use sandbar_core::{Code, Fault, TaskError};

use super::call::CallFrame;
use super::calls::{CallRun, run};
use super::objects::panic_on_deadlock;
use super::program_host::{Generator, ProgramHost, host};
use crate::bindings::program::TaskKind;
use crate::bindings::tasks::{Following, Outcome};
use crate::registry::GeneratorItems;
use crate::task;

/// Registers the generator of a call.
pub(crate) fn add_generator(call: u64, items: GeneratorItems) {
    host(|host| _ = host.streams.insert(call, Generator { items: Some(items), yielded: 0 }));
}

pub(crate) fn yielded(parts: &[&[u8]], objects: &[u64]) {
    host(|host| {
        host.pin(objects);
        let frame = host.frames.last_mut().expect("a generator yields while it runs");
        frame.yielded.push((parts.concat(), objects.to_vec()));
    });
}

/// Runs the generator for one item. Every other step that can run has run already.
pub(crate) fn next_item(stream: u64, timeout: Option<u64>) -> Following {
    // Releases dropped handles before the generator resumes.
    task::release_dropped();
    let Some((chain, mut items)) = host(|host| host.take_generator(stream)) else {
        return match host(|host| host.is_there(stream)) {
            true => Following::Ended,
            false if timeout.is_some() => Following::TimeOut,
            false => panic_on_deadlock(stream),
        };
    };
    let CallRun { outcome: has_ended, frame, .. } =
        run(chain, None, stream, || items.next().transpose().map(|item| item.is_none()));
    host(|host| host.handle_item(stream, items, has_ended, frame))
}

impl ProgramHost {
    /// Takes the iterator of a generator, and the names of the tasks that led to it.
    fn take_generator(&mut self, stream: u64) -> Option<(Vec<String>, GeneratorItems)> {
        let items = self.streams.get_mut(&stream)?.items.take()?;
        Some((self.calls.get(&stream)?.chain.clone(), items))
    }

    /// Handles the outcome of a generator's step.
    fn handle_item(
        &mut self,
        stream: u64,
        items: GeneratorItems,
        has_ended: Result<bool, TaskError>,
        frame: CallFrame,
    ) -> Following {
        let mut yielded = frame.yielded.into_iter();
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
                self.deferred.streams.push(items);
                let count = postcard::to_stdvec(&count).expect("a number is a few bytes");
                self.finish(stream, has_ended.map(|_| vec![(count, Vec::new())]));
                Following::Ended
            }
        };
        // Unpins the objects of values that are not items.
        yielded.for_each(|(_, contains)| self.unpin(&contains));
        following
    }

    /// Stops the generator of a stream that was released.
    pub(super) fn drop_stream(&mut self, number: u64) {
        let call = self.calls.get(&number).filter(|call| call.definition.kind == TaskKind::Generator);
        if let Some(call) = call {
            let fault = Fault::new(Code::Cancelled, "it was cancelled");
            let error = TaskError { fault, chain: call.chain.clone() };
            self.stop(number, error);
        }
    }
}
