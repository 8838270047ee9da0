//! Objects of the test host, in this process and thread.
//!
//! As with a real host, an object exists while the program holds it or another object contains it. So tests notice a
//! program that releases an object too early or twice.

use super::program_host::{Object, ProgramHost, host};
use crate::bindings::tasks::{Got, Outcome};

/// Number of objects.
pub(crate) fn count() -> usize {
    host(|host| host.objects.len())
}

pub(crate) fn put(parts: &[&[u8]], objects: &[u64]) -> u64 {
    host(|host| host.add(Outcome::Value, parts.concat(), objects.to_vec()))
}

/// Does not wait: every step that can run has run already.
pub(crate) fn wait(objects: &[u64], count: u32, timeout: Option<u64>, ready: &mut [u8]) -> u32 {
    let count = objects.len().min(count as usize);
    ready.fill(0);
    let mut there = 0;
    let mut missing = None;
    for (object, ready) in objects.iter().zip(ready) {
        match host(|host| host.is_there(*object)) {
            true if there < count => (*ready, there) = (1, there + 1),
            true => {}
            false => missing = Some(*object),
        }
    }
    if let Some(object) = missing.filter(|_| there < count && timeout.is_none()) {
        panic_on_deadlock(object);
    }
    there as u32
}

pub(crate) fn get(object: u64, timeout: Option<u64>) -> Got {
    let response = host(|host| {
        let contains = host.object(object).contains.clone();
        host.hold(&contains);
        let object = host.object(object);
        Got { outcome: object.outcome, bytes: object.bytes.len() as u64 }
    });
    if response.outcome == Outcome::TimeOut && timeout.is_none() {
        panic_on_deadlock(object);
    }
    response
}

pub(super) fn panic_on_deadlock(object: u64) -> ! {
    panic!("object {object} will never be ready: its task waits for a task that waits for it");
}

/// Like the import.
///
/// # Safety
/// The caller must own `len` bytes at `to`.
pub(crate) unsafe fn read_object(object: u64, offset: usize, to: *mut u8, len: usize) {
    host(|host| {
        let from = &host.object(object).bytes[offset..offset + len];
        // SAFETY: the caller owns the bytes written; `from` is as long and lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
    });
}

/// Like the import, but copies.
///
/// # Safety
/// Like [`read_object`].
pub(crate) unsafe fn map_object(object: u64, to: *mut u8, len: usize) {
    let have = host(|host| host.object(object).bytes.len());
    // SAFETY: the caller owns `len` bytes at `to`.
    unsafe { read_object(object, 0, to, len.min(have)) };
}

pub(crate) fn release(objects: &[u64]) {
    host(|host| {
        for number in objects {
            let object = host.object(*number);
            assert!(object.held, "object {number} is released twice");
            object.held = false;
            host.drop_if_unreferenced(*number);
        }
    });
}

impl ProgramHost {
    fn object(&mut self, number: u64) -> &mut Object {
        self.objects.get_mut(&number).unwrap_or_else(|| panic!("object {number} does not exist, or was released"))
    }

    /// Adds an object, to which the program holds a reference.
    pub(super) fn add(&mut self, outcome: Outcome, bytes: Vec<u8>, contains: Vec<u64>) -> u64 {
        self.last += 1;
        self.pin(&contains);
        self.objects.insert(self.last, Object { outcome, bytes, contains, held: true, contained: 0 });
        self.last
    }

    /// Sets the outcome of an object, unless the object was released.
    pub(super) fn set(&mut self, number: u64, outcome: Outcome, bytes: &[u8], contains: &[u64]) {
        if self.objects.contains_key(&number) {
            self.pin(contains);
            let object = self.object(number);
            (object.outcome, object.bytes, object.contains) = (outcome, bytes.to_vec(), contains.to_vec());
        }
    }

    pub(super) fn is_there(&mut self, number: u64) -> bool {
        self.object(number).outcome != Outcome::TimeOut
    }

    /// Returns the bytes of an object that has a value.
    pub(super) fn value(&self, number: u64) -> Option<&[u8]> {
        let object = self.objects.get(&number)?;
        (object.outcome == Outcome::Value).then_some(&object.bytes)
    }

    pub(super) fn hold(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.object(*number).held = true);
    }

    pub(super) fn pin(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.object(*number).contained += 1);
    }

    pub(super) fn unpin(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.object(*number).contained -= 1;
            self.drop_if_unreferenced(*number);
        }
    }

    fn drop_if_unreferenced(&mut self, number: u64) {
        let object = self.object(number);
        if !object.held && object.contained == 0 {
            let released = self.objects.remove(&number).map(|object| object.contains);
            self.unpin(&released.unwrap_or_default());
            self.drop_actor(number);
            self.drop_stream(number);
        }
    }

    /// Returns the error of the first of these objects that has one.
    pub(super) fn failed(&self, numbers: &[u64]) -> Option<Vec<u8>> {
        let mut needed = numbers.iter().filter_map(|number| self.objects.get(number));
        needed.find(|object| object.outcome == Outcome::Failed).map(|object| object.bytes.clone())
    }
}
