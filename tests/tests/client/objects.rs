//! Tasks, and the objects that they take and return.

use std::time::{Duration, Instant};

use sandbar_client::{Batch, Code, ObjectRef, TaskError, TaskOptions, wait};
use serde::{Deserialize, Serialize};

use crate::with_job;

const TASKS: &str = "tests/programs/tasks";

/// The type of the same name in the test program.
#[derive(Serialize, Deserialize)]
struct Shared {
    numbers: ObjectRef<Vec<u64>>,
    name: String,
}

#[test]
fn tasks_are_submitted_and_awaited() {
    with_job(TASKS, async |_, job| {
        let tree: ObjectRef<u64> = job.task("tree").submit((3, 10, 10)).await?;
        let first: ObjectRef<i64> = job.task("add").submit((1, 2)).await?;
        let second: ObjectRef<i64> = job.task("add").submit((&first, 5)).await?;
        assert_eq!((second.get().await?, first.get().await?, tree.get().await?), (8, 3, 1000));
        let summary = job.end().await?;
        assert_eq!((summary.counts.tasks, summary.counts.failed), (1113, 0));
        // The value can be read as long as the client has a reference.
        assert_eq!(first.get().await?, 3);
        Ok(())
    });
}

#[test]
fn values_are_stored_shared_and_found_within_others() {
    with_job(TASKS, async |_, job| {
        let bytes: Vec<u8> = (0..64_u32 << 20).map(|place| (place.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        let started = Instant::now();
        let stored = job.put(&bytes).await?;
        let put = started.elapsed();
        assert_eq!(stored.get().await?, bytes);
        eprintln!("64 MiB: put in {put:?}, and got in {:?}", started.elapsed() - put);
        for count in [10, 300_000] {
            let numbers = job.put(&(0..count).collect::<Vec<u64>>()).await?;
            let sum = count * (count - 1) / 2;
            let sums: ObjectRef<u64> = job.task("sums").submit((&numbers, 2)).await?;
            let shared = Shared { numbers: numbers.clone(), name: "four".to_owned() };
            let inside: ObjectRef<u64> = job.task("sums_shared").submit((shared,)).await?;
            drop(numbers);
            let created: ObjectRef<Shared> = job.task("makes").submit((count,)).await?;
            let back = created.get().await?;
            drop(created);
            assert_eq!((sums.get().await?, inside.get().await?), (2 * sum, sum + 4));
            assert_eq!((back.numbers.get().await?.len() as u64, back.name.as_str()), (count, "made"));
            // The object is borrowed again both times.
            assert_eq!(back.numbers.get().await?.iter().sum::<u64>(), sum);
        }
        Ok(())
    });
}

#[test]
fn batches_are_passed_both_ways() {
    with_job("tests/programs/objects", async |_, job| {
        // A batch in a message, and one in a file that is read in place.
        for rows in [100_u64, 1_000_000] {
            let created: ObjectRef<Batch> = job.task("makes").submit((3, rows)).await?;
            let batch = created.get_batch().await?;
            assert_eq!(batch.num_rows() as u64, rows);
            let back = job.put_batch(&batch).await?;
            let right: ObjectRef<u64> = job.task("is_right").submit((&back, 3, rows)).await?;
            assert_eq!(right.get().await?, 1);
            assert_eq!(back.get_batch().await?, batch);
        }
        let text = job.put(&"text").await?;
        let wrong: ObjectRef<u64> = job.task("is_right").submit((&text, 3, 1)).await?;
        assert_eq!(wrong.get().await.unwrap_err().fault.code, Code::Refused);
        Ok(())
    });
}

/// As Ray's `wait`: returns ready objects first, in the given order, and no more than requested.
#[test]
fn waiting_keeps_the_order_and_heeds_the_time() {
    with_job(TASKS, async |_, job| {
        let mut all = Vec::new();
        for number in 0..3 {
            all.push(job.task("add").submit::<ObjectRef<i64>>((number, 0)).await?);
        }
        let limited = TaskOptions::new().timeout(Duration::from_millis(300)).max_retries(0);
        let never: ObjectRef<i64> = job.task("spins").options(limited).submit(()).await?;
        all.insert(1, never.clone());
        let quick = [all[0].clone(), all[2].clone(), all[3].clone()];
        let (ready, rest) = wait(&all, 3, None).await;
        assert_eq!((ready.as_slice(), rest.as_slice()), (&quick[..], std::slice::from_ref(&never)));
        let (ready, rest) = wait(&quick, 1, Some(Duration::ZERO)).await;
        assert_eq!((ready.as_slice(), rest.as_slice()), (&quick[..1], &quick[1..]));
        let (none, left) = wait(std::slice::from_ref(&never), 1, Some(Duration::from_millis(5))).await;
        assert_eq!((none.len(), left.len()), (0, 1));
        let late = never.get_timeout(Duration::from_millis(5)).await.unwrap_err();
        assert_eq!(late.fault.code, Code::GetTimeOut);
        // An error counts as ready.
        let (late, _) = wait(std::slice::from_ref(&never), 7, None).await;
        assert_eq!((late.len(), never.get().await.unwrap_err().fault.code), (1, Code::TimeOut));
        assert_eq!(wait::<i64>(&[], 5, None).await, (Vec::new(), Vec::new()));
        Ok(())
    });
}

#[test]
fn a_cancelled_task_fails_its_dependents() {
    with_job(TASKS, async |_, job| {
        let first: ObjectRef<i64> = job.task("add").submit((1, 1)).await?;
        let endless: ObjectRef<i64> = job.task("slow").submit((&first,)).await?;
        let behind: ObjectRef<i64> = job.task("add").submit((&endless, 1)).await?;
        let tree: ObjectRef<i64> = job.task("endless").submit((2, 3)).await?;
        assert_eq!(first.get().await?, 2);
        endless.cancel(false).await;
        tree.cancel(true).await;
        for object in [&endless, &behind, &tree] {
            assert_eq!(object.get().await.unwrap_err().fault.code, Code::Cancelled);
        }
        assert_eq!(first.get().await?, 2);
        let one: ObjectRef<i64> = job.task("add").submit((1, 0)).await?;
        assert_eq!(one.get().await?, 1);
        Ok(())
    });
}

#[test]
fn errors_name_their_causes() {
    with_job(TASKS, async |_, job| {
        let describe = |error: &TaskError| format!("{}: {}", error.chain.join(" > "), error.fault.code.as_str());
        let mut objects: Vec<(ObjectRef<i64>, &str)> = Vec::new();
        let fails = job.task("fails").submit(("on purpose",)).await?;
        objects.push((fails, "service > fails: refused"));
        objects.push((job.task("passes_on").submit(()).await?, "service > passes_on > fails: refused"));
        objects.push((job.task("panics").submit(()).await?, "service > panics: panic"));
        let named = TaskOptions::new().name("by a name").max_retries(0);
        objects.push((job.task("panics").options(named).submit(()).await?, "service > by a name: panic"));
        let greedy = TaskOptions::new().cpus(100.0);
        objects.push((job.task("add").options(greedy).submit((1, 1)).await?, "service > add: infeasible"));
        for (object, expected) in objects {
            let error = object.get().await.unwrap_err();
            assert_eq!(describe(&error), expected, "{error}");
        }
        Ok(())
    });
}
