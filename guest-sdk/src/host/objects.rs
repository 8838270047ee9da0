//! Tasks and objects of a host in this process and thread, for tests: a task runs when it is submitted.
//!
//! An object is there while the program holds it or another contains it, as with a host: what the program releases too
//! early, or twice, is missed here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sandbar_core::{Argument, Code, Fault, Request, TaskError};

use crate::bindings::tasks::{Got, Outcome};
use crate::{random, registry, task};

/// What the host has.
#[derive(Default)]
struct Objects {
    /// The number given out last.
    last: u64,
    all: HashMap<u64, Object>,
    /// The tasks that run, each called by the one before.
    running: Vec<Running>,
}

struct Object {
    outcome: Outcome,
    bytes: Vec<u8>,
    contains: Vec<u64>,
    /// Whether the program holds it.
    held: bool,
    /// How many objects contain it, and calls that are under way.
    contained: usize,
}

struct Running {
    name: String,
    /// What it returned so far.
    returned: Vec<Returned>,
    /// What another failed with, if it is going to fail with that.
    fails_with: Option<TaskError>,
}

/// The bytes of a value, and which objects it contains.
type Returned = (Vec<u8>, Vec<u64>);

thread_local! {
    static OBJECTS: RefCell<Objects> = RefCell::default();
}

/// How many objects there are.
pub(crate) fn count() -> usize {
    OBJECTS.with_borrow(|objects| objects.all.len())
}

pub(crate) fn submit(function: u32, returns: u32, request: &[u8]) -> u64 {
    let Request { options, arguments, refs } = postcard::from_bytes(request).expect("a request is written by `submit`");
    let offered = registry::task(function).expect("a task's place is one of the list");
    let objects = arguments.iter().filter_map(|argument| match argument {
        Argument::Object(object) => Some(object.0),
        _ => None,
    });
    let refs: Vec<u64> = refs.iter().map(|object| object.0).collect();
    let needed: Vec<u64> = objects.collect();
    let name = options.and_then(|options| options.name).unwrap_or_else(|| offered.name.to_owned());
    with(|host| host.pin(&[&refs[..], &needed].concat()));
    // What the caller holds no more is to be known before the task begins to hold it.
    task::release_gone();
    with(|host| host.hold(&refs));
    let outcome = match with(|host| host.failed(&needed)) {
        Some(failed) => Err(failed),
        None => run(function, returns, &name, &arguments),
    };
    with(|host| {
        let first = host.last + 1;
        for place in 0..returns as usize {
            let (outcome, (bytes, contains)) = match &outcome {
                Ok(returned) => (Outcome::Value, returned[place].clone()),
                Err(bytes) => (Outcome::Failed, (bytes.clone(), Vec::new())),
            };
            host.add(outcome, bytes, contains);
        }
        for (_, contains) in outcome.iter().flatten() {
            host.unpin(contains);
        }
        host.unpin(&refs);
        host.unpin(&needed);
        first
    })
}

/// What the task returns, or the bytes of its error. What is returned contains is pinned.
fn run(place: u32, returns: u32, name: &str, arguments: &[Argument<'_>]) -> Result<Vec<Returned>, Vec<u8>> {
    let arguments = postcard::to_stdvec(arguments).expect("arguments are bytes and numbers");
    with(|host| host.running.push(Running { name: name.to_owned(), returned: Vec::new(), fails_with: None }));
    let seed = random::seed(with(|host| host.last));
    let ended = catch_unwind(AssertUnwindSafe(|| task::run(place, &arguments)));
    random::seed(seed);
    let chain = with(|host| host.running.iter().map(|task| task.name.clone()).collect());
    let Running { returned, fails_with, .. } = with(|host| host.running.pop()).expect("it was pushed above");
    let fault = match ended {
        Ok(Ok(())) if returned.len() == returns as usize => return Ok(returned),
        Ok(Ok(())) => Fault::new(Code::BadOutput, format!("it returned {} values, not {returns}", returned.len())),
        Ok(Err(message)) => Fault::new(Code::Refused, message),
        Err(panic) => Fault::new(Code::Panic, said(panic.as_ref())),
    };
    let error = match fails_with {
        Some(error) if fault.code == Code::Refused => error,
        _ => TaskError { fault, chain },
    };
    Err(postcard::to_stdvec(&error).expect("an error is texts"))
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked").to_owned()
}

pub(crate) fn put(parts: &[&[u8]], objects: &[u64]) -> u64 {
    with(|host| host.add(Outcome::Value, parts.concat(), objects.to_vec()))
}

pub(crate) fn fails_with(error: &[u8]) {
    let error = postcard::from_bytes(error).expect("an error is written by `failed`");
    with(|host| host.running.last_mut().expect("a task fails while it runs").fails_with = Some(error));
}

pub(crate) fn returned(parts: &[&[u8]], objects: &[u64]) {
    with(|host| {
        host.pin(objects);
        let task = host.running.last_mut().expect("a task returns while it runs");
        task.returned.push((parts.concat(), objects.to_vec()));
    });
}

/// All are there already.
pub(crate) fn wait(objects: &[u64], count: u32, _timeout: Option<u64>, ready: &mut [u8]) -> u32 {
    with(|host| objects.iter().for_each(|object| _ = host.object(*object)));
    let count = objects.len().min(count as usize);
    ready.fill(0);
    ready[..count].fill(1);
    count as u32
}

pub(crate) fn get(object: u64, _timeout: Option<u64>) -> Got {
    with(|host| {
        let contains = host.object(object).contains.clone();
        host.hold(&contains);
        let object = host.object(object);
        Got { outcome: object.outcome, bytes: object.bytes.len() as u64 }
    })
}

/// As the import.
///
/// # Safety
/// `len` bytes at `to` must be the caller's to write.
pub(crate) unsafe fn read_object(object: u64, offset: usize, to: *mut u8, len: usize) {
    with(|host| {
        let from = &host.object(object).bytes[offset..offset + len];
        // SAFETY: the caller owns the bytes written; `from` is as long and lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
    });
}

/// As the import, but copies.
///
/// # Safety
/// As [`read_object`].
pub(crate) unsafe fn map_object(object: u64, to: *mut u8, len: usize) {
    let have = with(|host| host.object(object).bytes.len());
    // SAFETY: as the caller says.
    unsafe { read_object(object, 0, to, len.min(have)) };
}

pub(crate) fn release(objects: &[u64]) {
    with(|host| {
        for number in objects {
            let object = host.object(*number);
            assert!(object.held, "object {number} is released twice");
            object.held = false;
            host.drop_if_gone(*number);
        }
    });
}

/// Every task has ended by now.
pub(crate) fn cancel(object: u64, _recursive: bool) {
    with(|host| _ = host.object(object));
}

fn with<T>(ask: impl FnOnce(&mut Objects) -> T) -> T {
    OBJECTS.with_borrow_mut(ask)
}

impl Objects {
    fn object(&mut self, number: u64) -> &mut Object {
        self.all.get_mut(&number).unwrap_or_else(|| panic!("there is no object {number}, or no more"))
    }

    /// A new object, which the program holds.
    fn add(&mut self, outcome: Outcome, bytes: Vec<u8>, contains: Vec<u64>) -> u64 {
        self.last += 1;
        self.pin(&contains);
        self.all.insert(self.last, Object { outcome, bytes, contains, held: true, contained: 0 });
        self.last
    }

    fn hold(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.object(*number).held = true);
    }

    fn pin(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.object(*number).contained += 1);
    }

    fn unpin(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.object(*number).contained -= 1;
            self.drop_if_gone(*number);
        }
    }

    fn drop_if_gone(&mut self, number: u64) {
        let object = self.object(number);
        if !object.held && object.contained == 0 {
            let gone = self.all.remove(&number).map(|object| object.contains);
            self.unpin(&gone.unwrap_or_default());
        }
    }

    /// The error of the first of these objects that has one.
    fn failed(&self, numbers: &[u64]) -> Option<Vec<u8>> {
        let mut needed = numbers.iter().filter_map(|number| self.all.get(number));
        needed.find(|object| object.outcome == Outcome::Failed).map(|object| object.bytes.clone())
    }
}
