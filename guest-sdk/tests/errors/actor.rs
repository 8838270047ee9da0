use sandbar_guest::prelude::*;

struct Counter {
    count: i64,
}

#[actor]
struct Named;

#[actor]
impl Default for Counter {
    fn default() -> Self {
        Counter { count: 0 }
    }
}

mod generic {
    use super::*;

    struct Family<T>(T);

    #[actor]
    impl<T> Family<T> {
        pub fn new(value: T) -> Self {
            Family(value)
        }
    }

    struct OfLists<T>(T);

    #[actor]
    impl OfLists<Vec<i64>> {
        pub fn new() -> Self {
            OfLists(vec![])
        }
    }

    #[actor(name = "x")]
    impl Family<i64> {}
}

#[actor]
impl Counter {
    pub fn of(count: i64) -> Self {
        Counter { count }
    }

    fn new(count: i64) -> Self {
        Counter { count }
    }

    pub fn submit(&self) {}

    fn options(&self) {}

    pub fn any<T>(&self, _value: T) {}

    pub fn family(&self, _value: impl Into<i64>) {}

    pub fn borrows(&mut self, _name: &str) {}

    pub fn lives<'a>(&self, _name: std::borrow::Cow<'a, str>) {}

    pub unsafe fn trusting(&self) {}

    pub fn ends(self) -> i64 {
        self.count
    }

    pub fn shares(self: std::rc::Rc<Self>) {}

    pub fn checkpoint(&mut self) -> i64 {
        self.count
    }

    pub async fn restore(count: i64) -> Self {
        Counter { count }
    }
}

mod not_made {
    use super::*;

    struct Plain;

    #[actor]
    impl Plain {
        pub fn call(&self) {}
    }

    struct Instance;

    #[actor]
    impl Instance {
        pub fn new(&self) -> Self {
            Instance
        }
    }

    struct Other;

    #[actor]
    impl Other {
        pub fn new() -> i64 {
            1
        }
    }

    struct Nothing;

    #[actor]
    impl Nothing {
        pub fn new() {}
    }
}

mod not_saved {
    use super::*;

    struct Restored;

    #[actor]
    impl Restored {
        pub fn new() -> Self {
            Restored
        }

        pub fn restore(_saved: i64) -> Self {
            Restored
        }
    }

    struct Saved;

    #[actor]
    impl Saved {
        pub fn new() -> Self {
            Saved
        }

        pub fn checkpoint(&self) -> i64 {
            1
        }
    }

    struct Mixed;

    #[actor]
    impl Mixed {
        pub fn new() -> Self {
            Mixed
        }

        pub fn checkpoint(&self) -> Result<i64, String> {
            Ok(1)
        }

        pub fn restore(_saved: u8) -> Self {
            Mixed
        }
    }
}

fn main() {}
