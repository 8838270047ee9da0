use sandbar_guest::prelude::*;

struct Thing;

struct Holder;

#[actor]
impl Holder {
    pub fn new() -> Self {
        Holder
    }

    pub fn takes(&mut self, _thing: Thing) {}

    pub async fn returns(&self) -> Thing {
        Thing
    }

    pub fn fails(&self) -> Result<i64, Thing> {
        Err(Thing)
    }

    pub fn add(&self, n: i64) -> i64 {
        n
    }
}

fn calls() {
    let holder = Holder::submit(1);
    holder.add("one");
    holder.subtract(1);
}

fn main() {}
