//! Streams on the in-process test host.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use sandbar_guest::prelude::*;
use sandbar_guest::{Code, Value, testing};

/// Squares, without end.
#[task]
fn squares(from: u64) -> impl Iterator<Item = u64> {
    (from..).map(|i| i * i)
}

/// Numbers, followed by an error.
#[task]
fn fails_at(n: u64) -> impl Iterator<Item = Result<u64, String>> {
    (0..=n).map(move |i| if i < n { Ok(i) } else { Err(format!("{i} is too many")) })
}

/// Numbers, followed by another task's error.
#[task]
fn passes_on(n: u64) -> impl Iterator<Item = Result<u64, TaskError>> {
    fails_at::submit(n).map(|item| item?.get())
}

#[task]
fn panics_at(n: u64) -> impl Iterator<Item = u64> + use<> {
    (0..).inspect(move |i| assert!(*i < n, "it is at {i}"))
}

#[task]
fn words(text: String, twice: bool) -> impl Iterator<Item = (String, usize)> {
    let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let all = if twice { [words.clone(), words].concat() } else { words };
    all.into_iter().map(|word| (word.clone(), word.len()))
}

/// Objects in objects.
#[task]
fn parts(n: u64) -> impl Iterator<Item = Vec<ObjectRef<u64>>> {
    (0..n).map(|i| (0..i).map(|j| put(&j)).collect())
}

#[task]
fn batches(n: u64) -> impl Iterator<Item = Batch> {
    (0..n).map(|i| {
        let numbers: ArrayRef = std::sync::Arc::new(UInt64Array::from_iter_values(0..i));
        RecordBatch::try_from_iter([("numbers", numbers)]).unwrap().into()
    })
}

#[task]
fn sum(parts: Vec<ObjectRef<u64>>) -> Result<u64, TaskError> {
    parts.iter().map(ObjectRef::get).sum()
}

#[track_caller]
fn check<T: std::fmt::Debug + PartialEq + Value>(stream: ObjectStream<T>, expected: &[T], error: Option<(Code, &str)>) {
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for item in stream {
        assert!(errors.is_empty(), "an error is the last");
        match item {
            Ok(item) => values.push(item.get().unwrap()),
            Err(error) => errors.push(error),
        }
    }
    assert_eq!(values, expected);
    let errors: Vec<_> = errors.iter().map(|error| (error.fault.code, error.to_string())).collect();
    let errors: Vec<_> = errors.iter().map(|(code, text)| (*code, text.as_str())).collect();
    assert_eq!(errors, error.into_iter().collect::<Vec<_>>());
    assert_eq!(testing::objects(), 0);
}

#[test]
fn items_come_one_after_another() {
    check(words::submit("a bit of text", true), &words("a bit of text".to_owned(), true).collect::<Vec<_>>(), None);
    check(words::options().buffer(1).submit("", false), &[(String::new(), 0)], None);
    let text = put(&"a b".to_owned());
    assert_eq!(words::submit(&text, false).count(), 2);
    drop(text);
    check(batches::submit(4), &batches(4).collect::<Vec<_>>(), None);
}

#[test]
fn an_error_is_the_last_item() {
    check(fails_at::submit(2), &[0, 1], Some((Code::Refused, "fails_at: 2 is too many [refused]")));
    check(fails_at::submit(0), &[], Some((Code::Refused, "fails_at: 0 is too many [refused]")));
    let chain = "passes_on > fails_at: 2 is too many [refused]";
    check(passes_on::submit(2), &[0, 1], Some((Code::Refused, chain)));
    check(panics_at::submit(2), &[0, 1], Some((Code::Panic, "panics_at: it is at 2 [panic]")));
}

#[test]
fn a_generator_goes_on_while_its_items_are_taken_and_ends_with_its_stream() {
    let mut stream = squares::submit(1);
    let first: Vec<_> = stream.by_ref().take(3).collect::<Result<_, _>>().unwrap();
    assert_eq!(get_all(&first), Ok(vec![1, 4, 9]));
    assert_eq!(stream.next_timeout(Duration::ZERO).unwrap().unwrap().get(), Ok(16));
    drop(stream);
    // Items that were taken remain valid.
    assert_eq!(get_all(&first), Ok(vec![1, 4, 9]));
    drop(first);
    assert_eq!(testing::objects(), 0);
}

#[test]
fn a_dropped_generator_drops_its_items() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    thread_local!(static DROPPED: Rc<Cell<u32>> = Rc::default());
    #[task]
    fn counted() -> impl Iterator<Item = u64> {
        let dropped = Dropped(DROPPED.with(Rc::clone));
        (0..3).inspect(move |_| _ = &dropped)
    }
    let count = || DROPPED.with(|dropped| dropped.get());
    let mut stream = counted::submit();
    assert_eq!((stream.next().is_some(), count()), (true, 0));
    drop(stream);
    assert_eq!(count(), 1);
    assert_eq!((counted::submit().count(), count()), (3, 2));
    assert_eq!(testing::objects(), 0);
}

#[test]
fn items_contain_objects_and_are_passed_on() {
    let sums: Vec<_> = parts::submit(4).map(|item| sum::submit(item.unwrap())).collect();
    assert_eq!(get_all(&sums), Ok(vec![0, 0, 1, 3]));
    drop(sums);
    let part = parts::submit(3).nth(2).unwrap().unwrap().get().unwrap();
    assert_eq!(get_all(&part), Ok(vec![0, 1]));
    drop(part);
    assert_eq!(testing::objects(), 0);
}

#[test]
fn a_stream_is_over_once() {
    let mut stream = fails_at::submit(0);
    assert!(stream.next().unwrap().is_err());
    assert!(stream.next().is_none() && stream.next_timeout(Duration::ZERO).is_none());
    drop(stream);
    // The generator's argument failed.
    check(fails_at::submit(half::submit(1)), &[], Some((Code::Refused, "half: 1 is odd [refused]")));
}

#[task]
fn half(n: u64) -> Result<u64, String> {
    if n.is_multiple_of(2) { Ok(n / 2) } else { Err(format!("{n} is odd")) }
}
