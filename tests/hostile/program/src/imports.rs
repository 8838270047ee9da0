//! Imports of the contract, called with any numbers and bytes. The SDK passes only those that the host has given out.

#[link(wasm_import_module = "sandbar:udf/tasks@0.1.0")]
unsafe extern "C" {
    #[link_name = "submit"]
    fn import_submit(function: i32, returns: i32, request: *const u8, bytes: usize) -> i64;
    #[link_name = "open"]
    fn import_open(file: i64) -> i64;
    #[link_name = "get"]
    fn import_get(object: i64, has_timeout: i32, timeout: i64, got: *mut u64);
    #[link_name = "read"]
    fn import_read(object: i64, offset: i64, region: *mut u8, bytes: usize);
    #[link_name = "map-pages"]
    fn import_map_pages(object: i64, offset: i64, region: *mut u8, bytes: usize);
    #[link_name = "release"]
    fn import_release(objects: *const u64, count: usize);
    #[link_name = "kill"]
    fn import_kill(actor: i64, restart: i32);
    #[link_name = "awaits"]
    fn import_awaits(objects: *const u64, count: usize);
    #[link_name = "failed"]
    fn import_failed(error: *const u8, bytes: usize);
    #[link_name = "group"]
    fn import_group(request: *const u8, bytes: usize) -> i64;
    #[link_name = "remove-group"]
    fn import_remove_group(group: i64);
    #[link_name = "returned"]
    fn import_returned(parts: *const u8, count: usize, objects: *const u64, objects_count: usize);
    #[link_name = "yielded"]
    fn import_yielded(parts: *const u8, count: usize, objects: *const u64, objects_count: usize);
    #[link_name = "next"]
    fn import_next(items: i64, has_timeout: i32, timeout: i64, following: *mut u64);
}

pub fn submit(function: u32, returns: u32, request: &[u8]) -> u64 {
    // SAFETY: the request is readable.
    unsafe { import_submit(function.cast_signed(), returns.cast_signed(), request.as_ptr(), request.len()) }
        .cast_unsigned()
}

pub fn open(file: u64) -> u64 {
    // SAFETY: the import takes a number.
    unsafe { import_open(file.cast_signed()) }.cast_unsigned()
}

/// Gets an object without waiting. Returns the number of the outcome: value, failed, time-out.
pub fn get(object: u64) -> u8 {
    let mut got = [0; 2];
    // SAFETY: the result has 16 bytes.
    unsafe { import_get(object.cast_signed(), 1, 0, got.as_mut_ptr()) };
    got[0] as u8
}

pub fn read(object: u64, offset: u64, region: &mut [u8]) {
    // SAFETY: the region is writable.
    unsafe { import_read(object.cast_signed(), offset.cast_signed(), region.as_mut_ptr(), region.len()) };
}

pub fn map_pages(object: u64, offset: u64, region: &mut [u8]) {
    // SAFETY: the region is writable, and nothing refers to it.
    unsafe { import_map_pages(object.cast_signed(), offset.cast_signed(), region.as_mut_ptr(), region.len()) };
}

pub fn release(objects: &[u64]) {
    // SAFETY: the objects are readable.
    unsafe { import_release(objects.as_ptr(), objects.len()) };
}

pub fn kill(actor: u64, restart: bool) {
    // SAFETY: the import takes numbers.
    unsafe { import_kill(actor.cast_signed(), i32::from(restart)) };
}

pub fn awaits(objects: &[u64]) {
    // SAFETY: the objects are readable.
    unsafe { import_awaits(objects.as_ptr(), objects.len()) };
}

pub fn failed(error: &[u8]) {
    // SAFETY: the error is readable.
    unsafe { import_failed(error.as_ptr(), error.len()) };
}

pub fn group(request: &[u8]) -> u64 {
    // SAFETY: the request is readable.
    unsafe { import_group(request.as_ptr(), request.len()) }.cast_unsigned()
}

pub fn remove_group(group: u64) {
    // SAFETY: the import takes a number.
    unsafe { import_remove_group(group.cast_signed()) };
}

/// Returns a value without parts that contains these objects.
pub fn returned(objects: &[u64]) {
    // SAFETY: the objects are readable, and there are no parts.
    unsafe { import_returned(std::ptr::dangling(), 0, objects.as_ptr(), objects.len()) };
}

pub fn yielded(objects: &[u64]) {
    // SAFETY: the objects are readable, and there are no parts.
    unsafe { import_yielded(std::ptr::dangling(), 0, objects.as_ptr(), objects.len()) };
}

/// Takes an item without waiting. Returns the number of the outcome: item, ended, time-out.
pub fn next(items: u64) -> u8 {
    let mut following = [0; 2];
    // SAFETY: the result has 16 bytes.
    unsafe { import_next(items.cast_signed(), 1, 0, following.as_mut_ptr()) };
    following[0] as u8
}
