//! Tasks and objects on the in-process test host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use sandbar_guest::prelude::*;
use sandbar_guest::{Code, Value, testing};

/// The sum of two numbers.
#[task]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[task]
fn nothing() {}

#[task]
fn half(n: i64) -> Result<i64, String> {
    if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
}

/// Submits itself.
#[task]
fn tree(depth: u32, content: ObjectRef<Batch>) -> Result<i64, TaskError> {
    if depth == 0 {
        return Ok(content.get()?.num_rows() as i64);
    }
    let below = [tree::submit(depth - 1, &content), tree::submit(depth - 1, content)];
    Ok(get_all(&below)?.into_iter().sum())
}

/// Quotient and remainder.
#[task(returns = 2)]
fn divided(a: i64, b: i64) -> Result<(i64, i64), String> {
    Ok((a.checked_div(b).ok_or("division by zero")?, a % b))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Parts {
    name: String,
    content: BTreeMap<u32, ObjectRef<Vec<i64>>>,
}

/// Stores parts, and returns handles to them.
#[task]
fn parted(n: i64) -> Parts {
    let content = (0..3).map(|i| (i, put(&(0..n).map(|x| x + i64::from(i)).collect())));
    Parts { name: "parts".to_owned(), content: content.collect() }
}

#[task]
fn total(parts: Parts) -> Result<i64, TaskError> {
    parts.content.values().map(|part| part.get().map(|part| part.iter().sum::<i64>())).sum()
}

#[task]
fn doubled(batch: Batch) -> Batch {
    let x = batch.column(0).as_any().downcast_ref::<Float64Array>().unwrap();
    let x: ArrayRef = Arc::new(x.unary::<_, arrow_array::types::Float64Type>(|x| 2.0 * x));
    RecordBatch::try_from_iter([("x", x), ("text", batch.column(1).clone())]).unwrap().into()
}

#[task]
fn greeting(name: Option<String>, times: u32) -> String {
    format!("hello {} ", name.unwrap_or_else(|| "you".to_owned())).repeat(times as usize)
}

#[task]
fn panics(text: String) -> i64 {
    panic!("it says {text}")
}

/// Names that the generated code uses as well.
mod names {
    use super::*;

    #[task]
    pub fn main(n: u32) -> Result<i64, TaskError> {
        let parts: Vec<ObjectRef<i64>> = (0..n).map(|i| add::submit(i as i64, 1)).collect();
        let chained = add::submit(&parts[0], 5);
        Ok(get_all(&parts)?.into_iter().sum::<i64>() + chained.get()?)
    }

    #[task]
    pub fn arguments(call: Vec<String>, number: bool, r#type: u8) -> String {
        format!("{call:?} {number} {type}", type = r#type)
    }

    #[task]
    pub fn fails(n: i64) -> Result<i64, TaskError> {
        half::submit(n).get()
    }

    #[task]
    pub fn r#use() -> u8 {
        7
    }
}

fn batch(rows: i64) -> Batch {
    let x: ArrayRef = Arc::new(Float64Array::from_iter_values((0..rows).map(|x| x as f64)));
    let text: ArrayRef = Arc::new(StringArray::from_iter((0..rows).map(|x| (x % 3 != 0).then(|| format!("{x}")))));
    RecordBatch::try_from_iter([("x", x), ("text", text)]).unwrap().into()
}

#[test]
fn calls() {
    assert_eq!(add(1, 2), 3);
    assert_eq!(add::submit(1, 2).get(), Ok(3));
    assert_eq!(nothing::submit().get(), Ok(()));
    let three = add::submit(1, 2);
    assert_eq!(add::submit(&three, add::submit(three.clone(), 4)).get(), Ok(10));
    assert_eq!(add::options().cpus(0.5).name("x").submit(three, 2).get(), Ok(5));
    assert_eq!(half::submit(4).get(), Ok(2));
    assert_eq!(half::submit(4).get_timeout(Duration::from_secs(1)), Ok(2));
    assert_eq!(names::main(3), Ok(12));
    let texts = vec!["a".to_owned(), "b".to_owned()];
    assert_eq!(names::arguments::submit(texts, true, 7).get().unwrap(), r#"["a", "b"] true 7"#);
    assert_eq!(greeting::submit(Some("x".to_owned()), 2).get().unwrap(), "hello x hello x ");
    let (quotient, remainder) = divided::submit(17, 5);
    assert_eq!(add::submit(quotient, remainder).get(), Ok(5));
    // Lengths beyond the stack buffer, the inline limit of a request, and the recycled buffers.
    for len in [0, 1, 1000, 200_000, 3_000_000] {
        let text = "x".repeat(len);
        assert_eq!(greeting::submit(put(&Some(text.clone())), 1).get(), Ok(format!("hello {text} ")));
        assert_eq!(greeting::submit(Some(text.clone()), 1).get(), Ok(format!("hello {text} ")));
    }
}

#[test]
fn objects_in_values() {
    let parts = parted::submit(10);
    assert_eq!(total::submit(&parts).get(), Ok(45 + 55 + 65));
    let here = parts.get().unwrap();
    assert_eq!(here.content[&2].get(), Ok((2..12).collect()));
    assert_eq!(total::submit(here.clone()).get(), Ok(45 + 55 + 65));
    assert_eq!(put(&here).get(), Ok(here));
    let nested: ObjectRef<ObjectRef<i64>> = put(&put(&7));
    assert_eq!(nested.get().unwrap().get(), Ok(7));
}

#[test]
fn waiting() {
    let all: Vec<_> = (0..4).map(|n| add::submit(n, 0)).collect();
    let check = |count, expected: &[ObjectRef<i64>], rest: &[ObjectRef<i64>]| {
        assert_eq!(wait(&all, count, None), (expected.to_vec(), rest.to_vec()));
    };
    check(0, &[], &all);
    check(1, &all[..1], &all[1..]);
    check(4, &all, &[]);
    check(9, &all, &[]);
    assert_eq!(wait::<i64>(&[], 1, Some(Duration::ZERO)), (vec![], vec![]));
    assert_eq!(get_all(&all), Ok(vec![0, 1, 2, 3]));
    cancel(&all[0], true);
}

/// Checks the error of a failed task.
fn check_error<T: std::fmt::Debug>(result: Result<T, TaskError>, code: Code, expected: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.fault.code, error.to_string().as_str()), (code, expected));
}

#[test]
fn errors() {
    let [odd, even, other] = [3, 4, 5].map(half::submit);
    check_error(odd.get(), Code::Refused, "half: 3 is odd [refused]");
    check_error(get_all(&[even, other, odd.clone()]), Code::Refused, "half: 5 is odd [refused]");
    check_error(add::submit(&odd, 1).get(), Code::Refused, "half: 3 is odd [refused]");
    check_error(panics::submit("boo").get(), Code::Panic, "panics: it says boo [panic]");
    let (quotient, remainder) = divided::options().name("x").submit(1, 0);
    check_error(quotient.get(), Code::Refused, "x: division by zero [refused]");
    check_error(remainder.get(), Code::Refused, "x: division by zero [refused]");
    // An error of a nested task.
    let outer = names::fails::submit(3).get();
    check_error(outer, Code::Refused, "fails > half: 3 is odd [refused]");
    // Only task values contain objects.
    let object = put(&1);
    assert_eq!(
        serde_json::to_string(&object).unwrap_err().to_string(),
        "an ObjectRef can only be serialised inside a value of a task or an object"
    );
}

#[test]
fn from_json() {
    fn check<R: Value + PartialEq + std::fmt::Debug>(task: &str, arguments: &str, expected: Result<R, &str>) {
        assert_eq!(testing::run(task, arguments), expected.map_err(str::to_owned), "{task} {arguments}");
    }
    check("add", r#"{"a": 1, "b": 2}"#, Ok(3_i64));
    check("nothing", "{}", Ok(()));
    check("greeting", r#"{"times": 1}"#, Ok("hello you ".to_owned()));
    check("greeting", r#"{"name": "x", "times": 1}"#, Ok("hello x ".to_owned()));
    check("main", r#"{"n": 3}"#, Ok(12_i64));
    check("arguments", r#"{"call": ["a"], "number": true, "type": 7}"#, Ok(r#"["a"] true 7"#.to_owned()));
    check("use", "{}", Ok(7_u8));
    let refused = |task: &str, arguments: &str, expected: &str| check::<i64>(task, arguments, Err(expected));
    refused("add", r#"{"a": 1}"#, "add: argument `b` is missing [refused]");
    // A missing string argument is not the text `null`.
    refused("panics", "{}", "panics: argument `text` is missing [refused]");
    refused("add", r#"{"a": 1, "b": 2, "c": 3}"#, "there is no argument `c`");
    refused(
        "add",
        "[1, 2]",
        "the arguments are not a JSON object: invalid type: sequence, expected a map at line 1 column 0",
    );
    refused(
        "add",
        r#"{"a": 1, "b": "two"}"#,
        r#"add: argument `b` can't be read as i64: invalid type: string "two", expected i64 at line 1 column 5 [refused]"#,
    );
    refused(
        "doubled",
        r#"{"batch": []}"#,
        "doubled: argument `batch` can't be read as Batch: a record batch has no JSON form [refused]",
    );
    refused("doubled", "{}", "doubled: argument `batch` is missing [refused]");
    refused(
        "tree",
        r#"{"depth": 1, "content": 5}"#,
        "tree: argument `content` can't be read as ObjectRef<Batch>: an ObjectRef can only be deserialised inside a value \
         of a task or an object [refused]",
    );
    refused("half", r#"{"n": 3}"#, "half: 3 is odd [refused]");
    refused(
        "divided",
        r#"{"a": 1, "b": 0}"#,
        "divided returns 2 objects, and `run` supports one: call the function directly",
    );
    refused("none", "{}", "there is no task none");
}

/// The test host panics when an object is released twice or too early.
#[test]
fn objects_go_with_their_last_handle() {
    assert_eq!(testing::objects(), 0);
    let one = put(&1);
    let same = one.clone();
    drop(one);
    assert_eq!((testing::objects(), same.get()), (1, Ok(1)));
    drop(same);
    assert_eq!(testing::objects(), 0);

    // Objects in other objects.
    let parts = parted::submit(3);
    assert_eq!(testing::objects(), 4);
    let here = parts.get().unwrap();
    drop(parts);
    assert_eq!(testing::objects(), 3);
    let again = put(&here);
    drop(here);
    assert_eq!(testing::objects(), 4);
    assert_eq!((again.get(), again.get()).0, again.get());
    assert_eq!(total::submit(again).get(), Ok(3 + 6 + 9));
    assert_eq!(testing::objects(), 0);

    // Arguments whose last handle is dropped before the task starts.
    assert_eq!(total::submit(parted::submit(3)).get(), Ok(3 + 6 + 9));
    assert_eq!(tree::submit(2, put(&batch(5))).get(), Ok(20));
    assert_eq!(doubled::submit(batch(100_000)).get().map(|b| b.num_rows()), Ok(100_000));
    assert_eq!(testing::objects(), 0);

    // A new handle, before the host learns that the last one was dropped.
    let one = put(&1);
    let inner = put(&one);
    drop(one);
    let one = inner.get().unwrap();
    drop(inner);
    assert_eq!((one.get(), testing::objects()), (Ok(1), 1));
    drop(one);

    // Many objects, without a wait.
    for n in 0..1000 {
        drop(add::submit(n, put(&n)));
    }
    assert_eq!(testing::objects(), 0);
    half::submit(3).get().unwrap_err();
    drop(panics::submit("boo"));
    assert_eq!(testing::objects(), 0);
}

#[test]
fn batches() {
    // Inline in a request, copied, and mapped.
    for rows in [0, 1, 1000, 20_000, 200_000] {
        let stored = put(&batch(rows));
        assert_eq!(stored.get(), Ok(batch(rows)));
        let doubles = doubled::submit(&stored).get().unwrap();
        assert_eq!(doubles, doubled(batch(rows)));
        assert_eq!(doubled::submit(batch(rows)).get(), Ok(doubles));
        assert_eq!(tree::submit(3, stored).get(), Ok(8 * rows));
    }
    let sliced: Batch = batch(100).slice(3, 50).into();
    assert_eq!(put(&sliced).get(), Ok(sliced));
    let none: Batch = RecordBatch::new_empty(Arc::new(arrow_schema::Schema::empty())).into();
    assert_eq!(put(&none).get(), Ok(none));
}
