//! Calls of one task with many arguments, one after another, for [pools](super::Pool).
//!
//! A task of one parameter treats its argument as a list if a second argument is `Missing`. It returns a list with one
//! entry per argument: 0 and the bytes of a value, or 1 and the bytes of a `TaskError`. Lists are postcard lists of
//! byte strings. The numbers of the objects in an argument list follow the list.

use std::cell::RefCell;

use sandbar_core::{Argument, Code, Fault, Seed, TaskError};

use super::arguments::Arguments;
use super::object::ObjectRef;
use super::value::{Scratch, Value, ValueBytes, write_number};
use crate::registry::{EntryPoint, TaskDefinition};
use crate::{host, random};

/// First byte of a result: a value or an error.
const VALUE: u8 = 0;
const FAILED: u8 = 1;

/// An encoded list of values, and the objects that they contain.
#[derive(Debug, Default)]
struct EncodedList {
    count: usize,
    bytes: Vec<u8>,
    objects: Vec<u64>,
}

impl EncodedList {
    fn push(&mut self, head: &[u8], parts: &[&[u8]], objects: &[u64]) {
        let bytes = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        write_number(&mut self.bytes, bytes as u64);
        self.bytes.extend_from_slice(head);
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.objects.extend_from_slice(objects);
        self.count += 1;
    }

    /// Passes the list's bytes, in parts, and its objects to `take`.
    fn write<T>(&self, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> T {
        let mut head = Vec::new();
        write_number(&mut head, self.count as u64);
        take(&[&head, &self.bytes], &self.objects)
    }
}

/// A list of arguments, one for each call.
#[derive(Debug)]
pub(super) struct List<'a, A>(pub(super) &'a [A]);

impl<A: Value> Value for List<'_, A> {
    fn write<T>(&self, scratch: &mut Scratch, take: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        let mut items = EncodedList::default();
        self.0.iter().try_for_each(|item| item.write(scratch, |parts, objects| items.push(&[], parts, objects)))?;
        let objects = items.objects.clone();
        write_number(&mut items.bytes, objects.len() as u64);
        objects.iter().for_each(|object| write_number(&mut items.bytes, *object));
        Ok(items.write(take))
    }

    fn read(_: ValueBytes<'_>) -> Result<Self, String> {
        Err("a list is read argument by argument".to_owned())
    }

    fn from_json(_: &str) -> Result<Self, String> {
        Err("a list has no JSON".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("a list has no JSON".to_owned())
    }
}

/// The results of a list of calls.
#[derive(Debug)]
pub(super) struct Outcomes<R>(pub(super) Vec<Result<R, TaskError>>);

impl<R: Value> Value for Outcomes<R> {
    fn write<T>(&self, _: &mut Scratch, _: impl FnOnce(&[&[u8]], &[u64]) -> T) -> Result<T, String> {
        Err("outcomes are written result by result".to_owned())
    }

    fn read(bytes: ValueBytes<'_>) -> Result<Self, String> {
        let outcome = |item: &[u8]| match item.split_first() {
            Some((&VALUE, value)) => R::read(ValueBytes::Memory(value)).map(Ok),
            Some((&FAILED, error)) => TaskError::read(ValueBytes::Memory(error)).map(Err),
            _ => Err("a result is neither a value nor an error".to_owned()),
        };
        bytes.with(|bytes| {
            let items: Vec<&[u8]> = postcard::from_bytes(bytes).map_err(|e| e.to_string())?;
            items.into_iter().map(outcome).collect::<Result<_, _>>().map(Outcomes)
        })
    }

    fn from_json(_: &str) -> Result<Self, String> {
        Err("outcomes have no JSON".to_owned())
    }

    fn to_json(&self) -> Result<Vec<u8>, String> {
        Err("outcomes have no JSON".to_owned())
    }
}

thread_local! {
    /// The results of the current list so far; none outside a list.
    static RESULTS: RefCell<Option<ListResults>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct ListResults {
    all: EncodedList,
    /// Handles to the objects in the results: the task itself no longer holds them.
    held: Vec<ObjectRef<()>>,
    /// The error that the current call is about to fail with.
    failure: Option<Vec<u8>>,
}

/// Runs `run` outside any list. (In tests, a call can run other calls inside it.)
pub(super) fn outside_list<T>(run: impl FnOnce() -> T) -> T {
    /// Restores the previous results, also when `run` panics.
    struct RestoreResults(Option<ListResults>);

    impl Drop for RestoreResults {
        fn drop(&mut self) {
            RESULTS.set(self.0.take());
        }
    }

    let _restore = RestoreResults(RESULTS.take());
    run()
}

/// Adds a result to the current list, if any.
pub(super) fn add_result<T: Value>(value: &T, scratch: &mut Scratch) -> Option<Result<(), String>> {
    let mut results = RESULTS.take()?;
    let written = value.write(scratch, |parts, objects| {
        results.all.push(&[VALUE], parts, objects);
        results.held.extend(objects.iter().map(|object| ObjectRef::from_number(*object)));
    });
    RESULTS.set(Some(results));
    Some(written)
}

/// Stores the error that the current call is about to fail with, if a list runs.
pub(super) fn set_failure(error: &[u8]) -> bool {
    RESULTS.with_borrow_mut(|results| match results {
        Some(results) => {
            results.failure = Some(error.to_vec());
            true
        }
        None => false,
    })
}

/// Returns whether the arguments are a list for a task of one parameter.
pub(super) fn is_list(definition: &TaskDefinition, values: &[Argument<'_>]) -> bool {
    definition.arguments.len() == 1 && definition.count == 1 && matches!(values, [_, Argument::Missing])
}

/// Calls a task with each argument of a list.
pub(super) fn run(definition: &'static TaskDefinition, call: u64, list: &Argument<'_>) -> Result<(), String> {
    let EntryPoint::Blocking(run) = definition.run else {
        return Err("a method or a generator takes no list of arguments".to_owned());
    };
    let seed = random::current_seed();
    let each = |bytes: &[u8]| -> Result<(), String> {
        let list = postcard::from_bytes(bytes).map_err(|e| format!("the list of arguments can't be decoded: {e}"));
        let (items, objects): (Vec<&[u8]>, Vec<u64>) = list?;
        // Several arguments may contain the same object: the handles keep it until the last call.
        let _held: Vec<ObjectRef<()>> = objects.into_iter().map(ObjectRef::from_number).collect();
        let mut seeds = Seed::new(seed);
        for item in items {
            random::set_seed(seeds.next_u64());
            if let Err(message) =
                run(&Arguments { parameters: definition.arguments, call, values: vec![Argument::Value(item)] })
            {
                add_failure(definition, message);
            }
        }
        Ok(())
    };
    RESULTS.set(Some(ListResults::default()));
    match list {
        Argument::Value(bytes) => each(bytes)?,
        Argument::Object(object) => {
            let response = host::get(object.0, None);
            ValueBytes::Object(object.0, usize::try_from(response.bytes).unwrap_or(usize::MAX)).with(each)?;
        }
        _ => return Err("the list of arguments is missing".to_owned()),
    }
    random::set_seed(seed);
    let results = RESULTS.take().unwrap_or_default();
    results.all.write(host::returned);
    Ok(())
}

/// Adds the failure of a call to the current list.
fn add_failure(definition: &TaskDefinition, message: String) {
    RESULTS.with_borrow_mut(|results| {
        let results = results.get_or_insert_default();
        let own = || {
            let error =
                TaskError { fault: Fault::new(Code::Refused, message), chain: vec![definition.name.to_owned()] };
            postcard::to_stdvec(&error).expect("an error is texts")
        };
        let error = results.failure.take().unwrap_or_else(own);
        results.all.push(&[FAILED], &[&error], &[]);
    });
}
