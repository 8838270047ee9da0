use sandbar_guest::prelude::*;

#[scalar]
fn f(a: i64, b: std::collections::HashMap<String, i64>) -> i64 {
    a + b.len() as i64
}

fn main() {}
