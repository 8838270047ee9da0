//! Generators consumed by the client: in order, with back-pressure, and to any end.

use std::time::Duration;

use sandbar_client::{Actor, ClientError, Code, Job, ObjectRef, ObjectStream, RetryOn, TaskError, TaskOptions};
use sandbar_tests::Lab;

use crate::jobs::kill_one;
use crate::{begin, client, load, run, with_job};

const STREAMS: &str = "tests/programs/streams";

async fn squares(job: &Job, items: u64, buffer: u32) -> Result<ObjectStream<u64>, ClientError> {
    job.task("squares").options(TaskOptions::new().buffer(buffer)).stream((items, 0)).await
}

/// Returns the number of items, if they are squares in order.
async fn count(mut stream: ObjectStream<u64>) -> Result<u64, TaskError> {
    let mut count = 0;
    while let Some(item) = stream.next().await {
        assert_eq!(item?.get().await?, count * count, "item {count}");
        count += 1;
    }
    assert_eq!(stream.next().await, None);
    Ok(count)
}

/// Waits until `expected` items have been yielded, and returns the maximum lead over those taken.
async fn wait_for_items(gauge: &Actor, expected: u64) -> Result<u64, ClientError> {
    loop {
        let read: ObjectRef<(u64, u64)> = gauge.call("read", ()).await?;
        let (wait_for_items, max) = read.get().await?;
        assert!(wait_for_items <= expected, "{wait_for_items} of {expected} items exist");
        if wait_for_items == expected {
            return Ok(max);
        }
    }
}

/// Checks that no generator runs: a task that needs the whole node can run.
async fn nothing_runs(job: &Job) -> Result<(), ClientError> {
    let whole = TaskOptions::new().cpus(2.0);
    let length: ObjectRef<u64> = job.task("length").options(whole).submit((vec![1_u64, 2],)).await?;
    assert_eq!(length.get().await?, 2);
    Ok(())
}

#[test]
fn items_are_taken_in_order() {
    with_job(STREAMS, async |_, job| {
        for (items, buffer) in [(0, 1), (1, 1), (1000, 1), (1000, 2), (1000, 3), (20_000, 64), (20_000, 100_000)] {
            assert_eq!(count(squares(&job, items, buffer).await?).await?, items, "{buffer}");
        }
        Ok(())
    });
}

#[test]
fn streams_are_taken_side_by_side() {
    with_job(STREAMS, async |_, job| {
        let mut all = Vec::new();
        for items in 0..50 {
            all.push(tokio::spawn(count(squares(&job, 20 * items, 4).await?)));
        }
        for (items, counted) in (0..).zip(all) {
            assert_eq!(counted.await.expect("it does not panic")?, 20 * items);
        }
        Ok(())
    });
}

#[test]
fn items_of_any_size_outlive_their_stream_and_are_passed_on() {
    with_job(STREAMS, async |_, job| {
        // Values that travel in messages, in the store, and in files.
        for numbers in [10, 10_000, 100_000] {
            let mut lists = job.task("lists").stream::<Vec<u64>>((20, numbers)).await?;
            let mut all = Vec::new();
            while let Some(list) = lists.next().await {
                all.push(list?);
            }
            drop(lists);
            for (list, expected) in all.iter().zip(numbers..) {
                let length: ObjectRef<u64> = job.task("length").submit((list,)).await?;
                assert_eq!((list.get().await?.len() as u64, length.get().await?), (expected, expected));
            }
            assert_eq!(all.len(), 20);
        }
        let mut parts = job.task("parts").stream::<Vec<ObjectRef<u64>>>((10,)).await?;
        let mut i = 0;
        while let Some(part) = parts.next().await {
            for part in part?.get().await? {
                assert_eq!(part.get().await?, i);
            }
            i += 1;
        }
        assert_eq!(i, 10);
        Ok(())
    });
}

#[test]
fn a_generator_is_no_more_than_its_buffer_ahead() {
    with_job(STREAMS, async |_, job| {
        for (items, buffer) in [(50, 7), (50, 3), (10, 1)] {
            let gauge = job.actor("Gauge").submit(()).await?;
            let options = TaskOptions::new().buffer(buffer);
            let mut stream = job.task("gauged").options(options).stream::<u64>((&gauge, items)).await?;
            let mut taken = 0;
            // The generator learns of taken items at the latest when the client waits for something else.
            loop {
                let ahead = wait_for_items(&gauge, items.min(taken + u64::from(buffer))).await?;
                assert_eq!(ahead, u64::from(buffer), "{taken}");
                gauge.call::<ObjectRef<()>>("take", ()).await?.get().await?;
                let Some(item) = stream.next().await else { break };
                assert_eq!(item?.get().await?, taken);
                taken += 1;
            }
            assert_eq!(taken, items);
        }
        Ok(())
    });
}

#[test]
fn a_stream_that_is_dropped_ends_its_generator() {
    with_job(STREAMS, async |_, job| {
        let gauge = job.actor("Gauge").submit(()).await?;
        let options = TaskOptions::new().buffer(5);
        let mut stream = job.task("gauged").options(options).stream::<u64>((&gauge, u64::MAX)).await?;
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(stream.next().await.expect("there are more")?);
        }
        wait_for_items(&gauge, 8).await?;
        drop(stream);
        nothing_runs(&job).await?;
        wait_for_items(&gauge, 8).await?;
        for (item, expected) in taken.iter().zip(0..) {
            assert_eq!(item.get().await?, expected);
        }
        // Generators that never yield, and one whose items were never awaited.
        for _ in 0..4 {
            let mut spins = job.task("spins").stream::<u64>(()).await?;
            let waited = spins.next_timeout(Duration::from_millis(1)).await.expect("it goes on");
            assert_eq!(waited.unwrap_err().fault.code, Code::GetTimeOut);
        }
        drop(squares(&job, u64::MAX, 1000).await?);
        nothing_runs(&job).await
    });
}

#[test]
fn an_error_stands_where_it_happened() {
    with_job(STREAMS, async |_, job| {
        let late = TaskOptions::new().timeout(Duration::from_millis(30));
        let failed: ObjectRef<u64> = job.task("fails").submit(()).await?;
        for (mut stream, expected, expected_text) in [
            (job.task("fails_at").stream::<u64>((2,)).await?, 2, "service > fails_at: on purpose [refused]"),
            (job.task("panics_at").stream((1000,)).await?, 1000, "service > panics_at: panicked at "),
            (job.task("passes_on").stream((2,)).await?, 2, "service > passes_on > fails_at: on purpose [refused]"),
            (job.task("spins").options(late).stream(()).await?, 0, "service > spins: it ran longer than 30 ms"),
            (job.task("squares").stream((&failed, 0)).await?, 0, "service > fails: on purpose [refused]"),
        ] {
            for i in 0..expected {
                assert_eq!(stream.next().await.expect(expected_text)?.get().await?, i, "{expected_text}");
            }
            let error = stream.next().await.expect(expected_text).expect_err(expected_text).to_string();
            assert!(error.starts_with(expected_text), "`{expected_text}` is not in `{error}`");
            assert_eq!(stream.next().await, None, "{expected_text}");
        }
        Ok(())
    });
}

#[test]
fn each_item_counts_once_however_often_its_generator_restarts() {
    with_job(STREAMS, async |_, job| {
        let attempts = job.actor("Attempts").submit(()).await?;
        let further = job.task("further").options(TaskOptions::new().retry_on(RetryOn::All));
        assert_eq!(count(further.stream((&attempts, 300)).await?).await?, 300);
        Ok(())
    });
}

#[test]
fn streams_outlive_their_workers() {
    let lab = Lab::new();
    run(async {
        let client = client(&lab);
        let job = begin(&client, &load(&client, STREAMS).await).await;
        let often = job.task("squares").options(TaskOptions::new().max_retries(1000).buffer(8));
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(tokio::spawn(count(often.stream((400, 300_000)).await.unwrap())));
        }
        let mut killed = 0;
        while !all.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if killed < 20 {
                killed += u32::from(tokio::task::block_in_place(|| kill_one(&lab)));
            }
        }
        for counted in all {
            assert_eq!(counted.await.unwrap(), Ok(400));
        }
        let summary = job.end().await.unwrap();
        assert!(killed > 1 && summary.counts.lost_workers > 0, "{killed} {summary:?}");
    });
}

#[test]
fn an_abandoned_wait_loses_no_item() {
    with_job(STREAMS, async |_, job| {
        let mut stream = job.task("squares").stream::<u64>((200, 100_000)).await?;
        let (mut taken, mut timed_out) = (0, 0);
        loop {
            tokio::select! {
                biased;
                item = stream.next() => match item {
                    Some(item) => {
                        assert_eq!(item?.get().await?, taken * taken);
                        taken += 1;
                    }
                    None => break,
                },
                () = tokio::task::yield_now() => timed_out += 1,
            }
        }
        assert_eq!(taken, 200);
        assert!(timed_out > 0);
        Ok(())
    });
}

#[test]
fn an_end_of_the_job_is_one_of_its_streams() {
    with_job(STREAMS, async |client, job| {
        let mut spins = job.task("spins").stream::<u64>(()).await?;
        let waits = tokio::spawn(async move { (spins.next().await, spins.next().await) });
        let mut untaken = squares(&job, u64::MAX, 2).await?;
        nothing_is_wrong(untaken.next().await);
        drop(job);
        let (last, none) = waits.await.expect("it does not panic");
        assert_eq!((last.map(|last| last.unwrap_err().fault.code), none), (Some(Code::Cancelled), None));
        while let Some(Ok(_)) = untaken.next().await {}
        let job = begin(&client, &load(&client, STREAMS).await).await;
        nothing_runs(&job).await?;
        let mut spins = job.task("spins").stream::<u64>(()).await?;
        let waits = tokio::spawn(async move { spins.next().await });
        nothing_is_wrong(squares(&job, 1, 1).await?.next().await);
        drop(client);
        let last = waits.await.expect("it does not panic").expect("an error is the last");
        assert_eq!(last.unwrap_err().fault.code, Code::Cancelled);
        let refused = squares(&job, 1, 1).await.unwrap_err();
        assert!(refused.to_string().contains("its job has ended"), "{refused}");
        Ok(())
    });
}

#[track_caller]
fn nothing_is_wrong(item: Option<Result<ObjectRef<u64>, TaskError>>) {
    item.expect("there are items").expect("nothing is wrong");
}

#[test]
fn generators_are_checked_as_tasks_are() {
    with_job(STREAMS, async |client, job| {
        let submitted = job.task("squares").submit::<ObjectRef<u64>>((1, 0)).await.map(drop);
        for (result, expected_text) in [
            (submitted, "`squares` is a generator of u64: call it with `stream`, not `submit`"),
            (
                job.task("length").stream::<u64>((vec![1],)).await.map(drop),
                "`length` is not a generator: it returns u64; call it with `submit`, not `stream`",
            ),
            (job.task("squares").stream::<String>((1, 0)).await.map(drop), "`squares` returns u64, and was asked for "),
            (job.task("squares").stream::<u64>((1,)).await.map(drop), "`squares` takes (items: u64, steps: u64), and "),
            (
                job.task("square").stream::<u64>((1, 0)).await.map(drop),
                "the program has no task `square`; its tasks are: again, ",
            ),
            (job.task("Gauge.read").stream::<u64>(()).await.map(drop), "the program has no task `Gauge.read`"),
        ] {
            let error = result.expect_err(expected_text).to_string();
            assert!(error.contains(expected_text), "`{expected_text}` is not in `{error}`");
        }
        // An item is an object of its job, like any other.
        let other = begin(&client, &load(&client, STREAMS).await).await;
        let item = job.task("lists").stream::<Vec<u64>>((1, 3)).await?.next().await.expect("there is one")?;
        let error = other.task("length").submit::<ObjectRef<u64>>((&item,)).await.unwrap_err().to_string();
        assert!(error.contains("and `length` belong to different jobs"), "{error}");
        Ok(())
    });
}
