//! Objects inside values that are being encoded.

use std::cell::RefCell;

thread_local! {
    static REF_CAPTURE: RefCell<RefCapture> = const { RefCell::new(RefCapture { depth: 0, objects: Vec::new() }) };
}

/// The objects contained in the values that are being encoded.
struct RefCapture {
    /// Nesting depth: encoding one value may store another.
    depth: usize,
    /// Objects of the innermost value, after those of the outer ones.
    objects: Vec<u64>,
}

/// Calls `write`, and appends the objects that it encoded to `objects`.
pub(super) fn capture_refs<T>(objects: &mut Vec<u64>, write: impl FnOnce() -> T) -> T {
    let start = REF_CAPTURE.with_borrow_mut(|capture| {
        capture.depth += 1;
        capture.objects.len()
    });
    let result = write();
    REF_CAPTURE.with_borrow_mut(|capture| {
        capture.depth -= 1;
        objects.extend(capture.objects.drain(start..));
    });
    result
}

/// Records an object of the value that is being encoded. Returns false outside of an encoding.
pub(super) fn capture_ref(object: u64) -> bool {
    REF_CAPTURE.with_borrow_mut(|capture| {
        let captures = capture.depth > 0;
        capture.objects.extend(captures.then_some(object));
        captures
    })
}
