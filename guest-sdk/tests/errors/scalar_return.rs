use sandbar_guest::prelude::*;

struct Point;

#[scalar]
fn f(_a: i64) -> Point {
    Point
}

#[scalar]
fn g(_a: i64) -> Result<i64, Point> {
    Ok(1)
}

fn main() {}
