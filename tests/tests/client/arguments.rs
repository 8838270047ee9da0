//! Arguments that a submission rejects, and errors that only the component can find.

use sandbar_client::{ClientError, Code, Job, ObjectRef, TaskKind};

use crate::{begin, client, load, run, with_job};

/// Checks the words of a submission's error.
#[track_caller]
fn check<T>(result: Result<T, ClientError>, expected_text: &str) {
    match result {
        Ok(_) => panic!("nothing is wrong: {expected_text}"),
        Err(error) => assert!(error.to_string().contains(expected_text), "`{expected_text}` is not in `{error}`"),
    }
}

async fn add<T: serde::Serialize>(job: &Job, a: T) -> Result<ObjectRef<i64>, ClientError> {
    job.task("add").submit((a, 1)).await
}

#[test]
fn arguments_are_checked_when_they_are_submitted() {
    with_job("tests/programs/tasks", async |_, job| {
        let unknown = job.task("adds").submit::<ObjectRef<i64>>((1, 2)).await;
        check(unknown, "the program has no task `adds`; its tasks are: add, ");
        check(job.task("add").submit::<ObjectRef<i64>>((1,)).await, "`add` takes (a: i64, b: i64), and was given 1 ");
        check(add(&job, "x").await, "`add` takes i64 for `a`, and was given the text \"x\"");
        check(add(&job, u64::MAX).await, "`add` takes i64 for `a`, and was given the number 18446744073709551615");
        check(add(&job, vec![1]).await, "`add` takes i64 for `a`, and was given a list");
        check(job.task("fails").submit::<ObjectRef<i64>>((5,)).await, "takes String for `message`, and was given the ");
        let texts = job.put(&vec!["text"]).await?;
        check(add(&job, &texts).await, "`add` takes i64 for `a`, and was given an object of ");
        check(job.task("add").submit::<ObjectRef<u64>>((1, 2)).await, "`add` returns i64, and was asked for u64");
        type Two = (ObjectRef<i64>, ObjectRef<i64>);
        check(job.task("add").submit::<Two>((1, 2)).await, "`add` returns i64, and was asked for 2 objects");
        let long = "x".repeat(300_000);
        check(job.task("fails").submit::<ObjectRef<i64>>((long,)).await, "store larger values with `put`");
        // Numbers are converted to the type of the parameter.
        for object in [add(&job, 1_u8).await?, add(&job, 1_i32).await?, add(&job, 1_usize).await?] {
            assert_eq!(object.get().await?, 2);
        }
        Ok(())
    });
}

#[test]
fn mismatches_of_unknown_types_are_errors_of_the_task() {
    with_job("tests/programs/tasks", async |_, job| {
        let object: ObjectRef<u64> = job.task("sums_shared").submit((1,)).await?;
        assert_eq!(object.get().await.unwrap_err().fault.code, Code::Refused);
        // The result is decoded as a wrong type.
        let numbers: ObjectRef<(u64, u64, u64, u64, u64)> = job.task("makes").submit((1,)).await?;
        let error = numbers.get().await.unwrap_err();
        assert_eq!(error.fault.code, Code::BadOutput);
        assert!(error.fault.message.contains(" is not a (u64, "), "{error}");
        Ok(())
    });
}

#[test]
fn an_object_of_another_job_is_refused() {
    let lab = sandbar_tests::Lab::new();
    run(async {
        let client = client(&lab);
        let program = load(&client, "tests/programs/actors").await;
        let (one, other) = (begin(&client, &program).await, begin(&client, &program).await);
        let object = one.put(&5_u64).await.unwrap();
        let (number, refused) = (format!("{object:?}"), "and `double` belong to different jobs");
        check(other.task("double").submit::<ObjectRef<u64>>((&object,)).await, refused);
        check(other.put(&vec![object.clone()]).await, "and `put` belong to different jobs");
        // The node rejects a guest that guesses the number of another job's object.
        let (giver, of_giver) = number.trim_matches(|c: char| !c.is_ascii_digit()).split_once('-').unwrap();
        let number = (giver.parse::<u64>().unwrap() << 36) + of_giver.parse::<u64>().unwrap();
        let counter = other.actor("Counter").submit((0,)).await.unwrap();
        let _: ObjectRef<u64> = counter.call("keep", (number,)).await.unwrap();
        let sum: ObjectRef<u64> = counter.call("sum_of_kept", ()).await.unwrap();
        let error = sum.get().await.unwrap_err();
        assert!(error.to_string().contains("does not exist in this job"), "{error}");
        assert_eq!(object.get().await, Ok(5));
    });
}

#[test]
fn a_program_lists_its_tasks() {
    let lab = sandbar_tests::Lab::new();
    run(async {
        let program = load(&client(&lab), "tests/programs/actors").await;
        let found = |name: &str| program.tasks().iter().find(|task| &*task.name == name).unwrap();
        let add = found("Counter.add");
        assert_eq!((add.kind, add.count, add.returns.as_str()), (TaskKind::Method, 1, "u64"));
        assert_eq!(add.arguments, [("number".to_owned(), "u64".to_owned())]);
        assert_eq!((found("Counter.new").kind, found("double").kind), (TaskKind::Make, TaskKind::Task));
    });
}
