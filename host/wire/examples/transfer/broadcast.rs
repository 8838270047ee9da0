//! to come
pub fn run() {}
pub async fn receiver(_: u32) {}
