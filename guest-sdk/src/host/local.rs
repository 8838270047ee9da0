//! The test host's part for function calls, in this process and thread.

use std::cell::RefCell;

use crate::testing::{GroupFit, Split};

/// Input and output of a function call.
#[derive(Debug, Default)]
pub(crate) struct FunctionHost {
    pub(crate) body: Vec<u8>,
    /// Header and buffers of each batch.
    pub(crate) emitted: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    pub(crate) splits: Vec<Split>,
    pub(crate) models: Vec<Vec<u8>>,
    /// The outcome of each settled group, in order. Predictions have no model and no parameters.
    pub(crate) settled: Vec<Result<GroupFit, String>>,
}

thread_local! {
    static LOCAL: RefCell<Option<FunctionHost>> = const { RefCell::new(None) };
}

/// Runs `call` with this host.
pub(crate) fn with<T>(local: FunctionHost, call: impl FnOnce() -> T) -> (T, FunctionHost) {
    let before = LOCAL.replace(Some(local));
    let result = call();
    (result, LOCAL.replace(before).unwrap_or_default())
}

fn function_host<T>(run: impl FnOnce(&mut FunctionHost) -> T) -> T {
    LOCAL.with_borrow_mut(|local| {
        run(local.as_mut().expect("no test host: call functions through sandbar_guest::testing"))
    })
}

pub(crate) struct GroupRange {
    pub(crate) first_row: u32,
    pub(crate) train_rows: u32,
    pub(crate) test_rows: u32,
    pub(crate) seed: u64,
}

/// Like the import.
///
/// # Safety
/// The caller must own `len` bytes at `to`.
pub(crate) unsafe fn read(offset: usize, to: *mut u8, len: usize) {
    function_host(|local| {
        let from = &local.body[offset..offset + len];
        // SAFETY: the caller owns the bytes written; `from` is as long and lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
    });
}

/// Like the import, but copies.
///
/// # Safety
/// The caller must own `len` bytes at `to`.
pub(crate) unsafe fn map_pages(to: *mut u8, len: usize) {
    let have = function_host(|local| local.body.len());
    // SAFETY: the caller owns `len` bytes at `to`.
    unsafe { read(0, to, len.min(have)) };
}

pub(crate) fn emit(header: &[u8], buffers: &[&[u8]]) {
    function_host(|local| local.emitted.push((header.to_vec(), buffers.iter().map(|b| b.to_vec()).collect())));
}

pub(crate) fn next_group() -> Option<GroupRange> {
    function_host(|local| local.splits.get(local.settled.len()).map(at))
}

pub(crate) fn groups_ahead() -> Vec<GroupRange> {
    function_host(|local| local.splits[local.settled.len()..].iter().map(at).collect())
}

fn at(split: &Split) -> GroupRange {
    let Split { first_row, train_rows, test_rows, seed } = *split;
    GroupRange { first_row, train_rows, test_rows, seed }
}

pub(crate) fn model() -> Vec<u8> {
    function_host(|local| local.models[local.settled.len()].clone())
}

pub(crate) fn fitted(model: &[u8], params: &str, predictions: &[u8]) {
    function_host(|local| {
        local.settled.push(Ok(GroupFit {
            model: model.to_vec(),
            params: params.to_owned(),
            predictions: numbers(predictions),
        }));
    });
}

pub(crate) fn predicted(predictions: &[u8]) {
    fitted(&[], "", predictions);
}

pub(crate) fn failed(message: &str) {
    function_host(|local| local.settled.push(Err(message.to_owned())));
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number)).collect()
}
