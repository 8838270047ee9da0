//! Pools on the in-process test host.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use sandbar_guest::prelude::*;
use sandbar_guest::random::{self, rand_core::RngCore};
use sandbar_guest::{Code, testing};

/// Half of an even number.
#[task]
fn half(n: i64) -> Result<i64, String> {
    if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
}

#[task]
fn passes_on(n: i64) -> Result<i64, TaskError> {
    half::submit(n).get()
}

#[task]
fn panics_at_seven(n: i64) -> i64 {
    assert!(n != 7, "not seven");
    n
}

#[task]
fn sum(input: Vec<ObjectRef<i64>>) -> Result<ObjectRef<i64>, TaskError> {
    get_all(&input).map(|all| put(&all.iter().sum()))
}

#[task]
fn text(input: String) -> String {
    input
}

#[task]
fn nothing(_n: u8) {}

#[task]
fn draws(_n: u32) -> u64 {
    random::rng().next_u64()
}

/// Results and errors as text, in order.
fn texts(results: impl Iterator<Item = Result<i64, TaskError>>) -> Vec<String> {
    results.map(|result| result.map_or_else(|error| error.to_string(), |value| value.to_string())).collect()
}

#[test]
fn results_keep_their_order_and_errors_their_place() {
    let expected = ["0", "half: 1 is odd [refused]", "1", "half: 3 is odd [refused]", "2"];
    for chunksize in [1, 2, 3, 100] {
        for in_flight in [1, 2, 100] {
            let pool = || half::pool().chunksize(chunksize).in_flight(in_flight);
            assert_eq!(texts(pool().imap(0..5)), expected);
            let mut unordered = texts(pool().imap_unordered(0..5));
            unordered.sort();
            assert_eq!(unordered, ["0", "1", "2", expected[1], expected[3]]);
            assert_eq!(pool().map((0..5).map(|n| 2 * n)), Ok(vec![0, 1, 2, 3, 4]));
            assert_eq!(pool().map(0..5).unwrap_err().to_string(), expected[1]);
            assert_eq!(pool().map([]), Ok(vec![]));
        }
    }
    // Another task's error keeps its code and chain.
    let passed_on = texts(passes_on::pool().chunksize(3).imap(0..3));
    assert_eq!(passed_on, ["0", "passes_on > half: 1 is odd [refused]", "1"]);
    assert_eq!(nothing::pool().chunksize(2).map(0..3), Ok(vec![(); 3]));
}

#[test]
fn the_end_of_a_call_is_detected() {
    for chunksize in [1, 4, 100] {
        let results: Vec<_> = panics_at_seven::pool().chunksize(chunksize).imap(0..10).collect();
        let failed: Vec<usize> = (0..10).filter(|n| results[*n].is_err()).collect();
        assert_eq!((failed, results.len()), (vec![7], 10));
        let error = results[7].clone().unwrap_err();
        assert_eq!((error.fault.code, error.chain), (Code::Panic, vec!["panics_at_seven".to_owned()]));
        assert_eq!(results[9], Ok(9));
    }
}

#[test]
fn arguments_are_consumed_as_results_are_taken() {
    let consumed = Cell::new(0);
    let arguments = (0..1_000_000).inspect(|_| consumed.set(consumed.get() + 1));
    let mut results = half::pool().chunksize(5).in_flight(4).imap(arguments);
    assert_eq!(consumed.get(), 0);
    for taken in 1..=1000 {
        results.next();
        assert!(consumed.get() < taken + 5 * 5, "{} were asked for, {taken} were taken", consumed.get());
    }
    drop(results);
    assert_eq!(testing::objects(), 0);

    let done = RefCell::new(Vec::new());
    let pool = half::pool().chunksize(4).on_progress(|n| done.borrow_mut().push(n));
    assert_eq!(pool.imap(0..10).count(), 10);
    assert_eq!(*done.borrow(), [4, 8, 10]);
}

#[test]
fn values_of_any_kind() {
    let lists = || (0..10).map(|n| (0..n).map(|i| put(&i)).collect::<Vec<ObjectRef<i64>>>());
    for chunksize in [1, 3, 10] {
        let sums = sum::pool().chunksize(chunksize).map(lists()).unwrap();
        assert_eq!(get_all(&sums), Ok((0..10).map(|n| n * (n - 1) / 2).collect()));
        drop(sums);
        assert_eq!(testing::objects(), 0);
        // Texts beyond the inline limit of a request.
        let texts: Vec<String> = (0..10).map(|n| "x".repeat(n * 10_000)).collect();
        assert_eq!(text::options().cpus(0.5).pool().chunksize(chunksize).map(texts.clone()), Ok(texts));
    }
    // Each call of a list draws other numbers.
    let drawn: HashSet<u64> = draws::pool().chunksize(100).imap(0..200).map(Result::unwrap).collect();
    assert_eq!(drawn.len(), 200);
}
