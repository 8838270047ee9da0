use sandbar_guest::prelude::*;

struct Thing;

#[task]
fn takes(_thing: Thing) {}

#[task]
fn returns() -> Thing {
    Thing
}

#[task(returns = 2)]
fn returns_two() -> Result<(i64, RecordBatch), String> {
    Err(String::new())
}

#[task]
fn fails() -> Result<i64, Thing> {
    Err(Thing)
}

#[task]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

fn submits() {
    add::submit("one", 2);
    add::submit(1);
    let texts: ObjectRef<String> = put(&String::new());
    add::submit(1, &texts);
}

fn main() {}
