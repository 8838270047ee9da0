//! Calls of tasks under construction.

use postcard::serialize_with_flavor;
use sandbar_core::{RequestOptions, VALUE_INLINE_BYTES_MAX};

use super::batch::Batch;
use super::call_buffers::CallBuffers;
use super::chunk::List;
use super::object::{Handles, ObjectRef, release_if_many};
use super::value::{AppendFlavor, Value, write_number};
use crate::host;
use crate::registry::TaskDefinition;

/// An argument of a call: a value, or an object that contains the value. Converts from either.
#[derive(Debug)]
pub struct Arg<T>(ArgKind<T>);

#[derive(Debug)]
enum ArgKind<T> {
    Value(T),
    Object(ObjectRef<T>),
}

impl<T> From<T> for Arg<T> {
    fn from(value: T) -> Self {
        Arg(ArgKind::Value(value))
    }
}

impl<T> From<ObjectRef<T>> for Arg<T> {
    fn from(object: ObjectRef<T>) -> Self {
        Arg(ArgKind::Object(object))
    }
}

impl<T> From<&ObjectRef<T>> for Arg<T> {
    fn from(object: &ObjectRef<T>) -> Self {
        Arg(ArgKind::Object(object.clone()))
    }
}

/// For a task whose parameter is the handle itself.
impl<T> From<&ObjectRef<T>> for Arg<ObjectRef<T>> {
    fn from(object: &ObjectRef<T>) -> Self {
        Arg(ArgKind::Value(object.clone()))
    }
}

impl From<&str> for Arg<String> {
    fn from(text: &str) -> Self {
        Arg(ArgKind::Value(text.to_owned()))
    }
}

impl From<arrow_array::RecordBatch> for Arg<Batch> {
    fn from(batch: arrow_array::RecordBatch) -> Self {
        Arg(ArgKind::Value(Batch(batch)))
    }
}

/// A call under construction: an encoded `TaskRequest` of `sandbar-core`.
pub(crate) struct CallBuilder {
    definition: &'static TaskDefinition,
    buffers: Box<CallBuffers>,
    pushed: usize,
}

impl CallBuilder {
    /// Starts a call. For a method, `actor` is the handle of its actor.
    pub(crate) fn begin(
        definition: &'static TaskDefinition,
        options: Option<&RequestOptions>,
        actor: Option<u64>,
    ) -> CallBuilder {
        CallBuilder::with_arity(definition.arguments.len(), definition, options, actor)
    }

    /// Builds a call with a list of arguments, for a task with one parameter.
    pub(super) fn for_list<A: Value>(
        definition: &'static TaskDefinition,
        options: &RequestOptions,
        list: List<'_, A>,
    ) -> CallBuilder {
        let mut call = CallBuilder::with_arity(2, definition, Some(options), None);
        call.push(Arg::from(list));
        // `Argument::Missing`, which marks the first argument as a list.
        call.buffers.request.push(3);
        call
    }

    fn with_arity(
        arguments: usize,
        definition: &'static TaskDefinition,
        options: Option<&RequestOptions>,
        actor: Option<u64>,
    ) -> CallBuilder {
        release_if_many();
        let mut buffers = CallBuffers::take();
        let request = &mut buffers.request;
        match options {
            None => request.push(0),
            Some(options) => {
                request.push(1);
                serialize_with_flavor(options, AppendFlavor(request)).expect("options are numbers and texts");
            }
        }
        match actor {
            None => request.push(0),
            Some(handle) => {
                request.push(1);
                write_number(request, handle);
            }
        }
        write_number(request, arguments as u64);
        CallBuilder { definition, buffers, pushed: 0 }
    }

    pub(super) fn push<T: Value>(&mut self, argument: Arg<T>) {
        let CallBuffers { request, refs, scratch } = &mut *self.buffers;
        let written = match argument.0 {
            ArgKind::Object(object) => Ok(Some(object.number())),
            ArgKind::Value(value) => value.write(scratch, |parts, objects| {
                let bytes: usize = parts.iter().map(|part| part.len()).sum();
                if bytes > VALUE_INLINE_BYTES_MAX {
                    return Some(ObjectRef::<T>::from_number(host::put(parts, objects)).number());
                }
                request.push(0);
                write_number(request, bytes as u64);
                parts.iter().for_each(|part| request.extend_from_slice(part));
                refs.extend_from_slice(objects);
                None
            }),
        };
        match written {
            Ok(None) => {}
            // Dropped handles are released after the call is sent, at the earliest.
            Ok(Some(object)) => {
                request.push(1);
                write_number(request, object);
            }
            Err(e) => panic!("argument {} of `{}` can't be encoded: {e}", self.pushed, self.definition.name),
        }
        self.pushed += 1;
    }

    pub(super) fn send<R: Handles>(mut self) -> R {
        self.finish();
        let number = host::submit(self.definition.index(), R::COUNT, &self.buffers.request);
        self.buffers.recycle();
        R::from_first(number)
    }

    fn finish(&mut self) {
        let CallBuffers { request, refs, .. } = &mut *self.buffers;
        write_number(request, refs.len() as u64);
        refs.iter().for_each(|object| write_number(request, *object));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbar_core::{Argument, Code, ObjectId, TaskRequest};

    use super::super::ref_capture::capture_refs;
    use super::*;
    use crate::Submission;

    fn definition(arguments: usize) -> &'static TaskDefinition {
        const ARGUMENTS: &[(&str, &str)] = &[("a", "A"), ("b", "B")];
        Box::leak(Box::new(TaskDefinition::new("f", "", &ARGUMENTS[..arguments], "()", 1, |_| Ok(()))))
    }

    fn check(
        options: Option<&RequestOptions>,
        push: impl Fn(&mut CallBuilder),
        arguments: &[Argument<'_>],
        refs: &[u64],
    ) {
        for actor in [None, Some(0), Some(1 << 40)] {
            let mut call = CallBuilder::begin(definition(arguments.len()), options, actor);
            push(&mut call);
            call.finish();
            let refs = refs.iter().map(|number| ObjectId(*number)).collect();
            let (options, actor) = (options.cloned().map(Box::new), actor.map(ObjectId));
            let expected = TaskRequest { options, actor, arguments: arguments.to_vec(), refs };
            assert_eq!(postcard::from_bytes(&call.buffers.request), Ok(expected.clone()));
            assert_eq!(call.buffers.request, postcard::to_stdvec(&expected).unwrap());
            call.buffers.recycle();
        }
    }

    fn value<T: Value + serde::Serialize>(value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        capture_refs(&mut Vec::new(), || serialize_with_flavor(value, AppendFlavor(&mut bytes))).unwrap();
        bytes
    }

    #[test]
    fn requests_are_as_postcard_writes_them() {
        let with = |push: &dyn Fn(&mut CallBuilder), arguments: &[Argument<'_>], refs: &[u64]| {
            let options = Submission::<fn(), ()>::new(definition(0));
            let options = options.name("x").cpus(0.5).gpus(1.0).memory(1 << 40).resource("disk", 2.0).max_retries(0);
            let options = options.retry_on([Code::TimeOut]).timeout(Duration::from_micros(1500)).priority(-7);
            assert_eq!(options.chosen().timeout_ms, Some(2));
            for options in [None, Some(&RequestOptions::default()), Some(options.chosen())] {
                check(options, |call| push(call), arguments, refs);
            }
        };
        let objects: Vec<ObjectRef<i64>> = (0..2).map(|i| crate::put(&i)).collect();
        let [first, second] = [objects[0].number(), objects[1].number()];
        let long = "x".repeat(1000);
        with(&|_| {}, &[], &[]);
        with(
            &|call| {
                call.push(Arg::from(300_i64));
                call.push(Arg::<String>::from(long.as_str()));
            },
            &[Argument::Value(&value(&300_i64)), Argument::Value(&value(&long))],
            &[],
        );
        with(
            &|call| {
                call.push(Arg::<i64>::from(&objects[0]));
                call.push(Arg::from((objects.clone(), Some(objects[1].clone()))));
            },
            &[Argument::Object(ObjectId(first)), Argument::Value(&value(&(objects.clone(), Some(objects[1].clone()))))],
            &[first, second, second],
        );
    }

    #[test]
    fn large_values_are_stored_first() {
        let mut call = CallBuilder::begin(definition(1), None, None);
        call.push(Arg::from("x".repeat(VALUE_INLINE_BYTES_MAX)));
        call.finish();
        let request: TaskRequest<'_> = postcard::from_bytes(&call.buffers.request).unwrap();
        assert!(matches!(request.arguments[..], [Argument::Object(_)]), "{request:?}");
    }
}
