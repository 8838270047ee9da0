//! Actors: creation, ordered calls, names and kills.

use sandbar_client::{Actor, ActorOptions, ActorRef, ClientError, Code, ObjectRef};

use crate::{begin, load, with_job};

const ACTORS: &str = "tests/programs/actors";

async fn add(actor: &Actor, number: u64) -> Result<ObjectRef<u64>, ClientError> {
    actor.call("add", (number,)).await
}

#[test]
fn calls_of_an_actor_begin_in_order() {
    with_job(ACTORS, async |_, job| {
        let counter = job.actor("Counter").submit((5,)).await?;
        let mut sums = Vec::new();
        for _ in 0..100 {
            sums.push(add(&counter, 1).await?);
        }
        for (sum, expected) in sums.iter().zip(6..) {
            assert_eq!(sum.get().await?, expected);
        }
        // A task that takes the handle, directly and within a value.
        let calls: ObjectRef<u64> = job.task("calls_often").submit((&counter, 10)).await?;
        calls.get().await?;
        assert_eq!(add(&counter, 0).await?.get().await?, 115);
        Ok(())
    });
}

#[test]
fn actors_are_taken_of_values_and_passed_on() {
    with_job(ACTORS, async |_, job| {
        let hired: ObjectRef<ActorRef> = job.task("hires").submit((5,)).await?;
        let handle = hired.get().await?;
        // The handle keeps the actor alive.
        drop(hired);
        let counter = handle.typed("Counter")?;
        assert_eq!(add(&counter, 1).await?.get().await?, 6);
        let calls: ObjectRef<u64> = job.task("calls_often").submit((&handle, 10)).await?;
        calls.get().await?;
        drop(handle);
        assert_eq!(add(&counter, 1).await?.get().await?, 17);
        let hired: ObjectRef<Vec<(String, ActorRef)>> = job.task("hires_many").submit((3,)).await?;
        for ((name, handle), start) in hired.get().await?.iter().zip(0..) {
            assert_eq!(name, &format!("counter {start}"));
            assert_eq!(add(&handle.typed("Counter")?, 1).await?.get().await?, start + 1);
        }
        // A handle has no type: a wrong one shows at a call.
        let (_, handle) = hired.get().await?.remove(0);
        let error = add(&handle.typed("Saved")?, 1).await?.get().await.unwrap_err();
        assert_eq!(error.fault.code, Code::Refused, "{error}");
        let unknown = handle.typed("Counters").unwrap_err().to_string();
        assert!(unknown.contains("`Counters.new`; its actor methods are: Counter.new, "), "{unknown}");
        Ok(())
    });
}

#[test]
fn actors_are_found_by_name_in_their_job_or_everywhere() {
    with_job(ACTORS, async |client, job| {
        let named = ActorOptions::new().name("c");
        let counter = job.actor("Counter").options(named.clone()).submit((5,)).await?;
        let found = job.find_actor("Counter", "c").await?;
        add(&counter, 1).await?;
        assert_eq!(add(&found, 1).await?.get().await?, 7);
        let same = job.actor("Counter").options(named.clone().get_if_exists()).submit((0,)).await?;
        same.ready().await?;
        assert_eq!(add(&same, 1).await?.get().await?, 8);
        let taken = job.actor("Counter").options(named).submit((0,)).await?;
        assert_eq!(taken.ready().await.unwrap_err().fault.code, Code::NameTaken);
        let detached = ActorOptions::new().name("everywhere").detached();
        let counter = job.actor("Counter").options(detached).submit((100,)).await?;
        counter.ready().await?;
        // Another job starts while this one runs, and continues after its end.
        let other = begin(&client, &load(&client, ACTORS).await).await;
        job.end().await?;
        let found = other.find_actor("Counter", "everywhere").await?;
        assert_eq!(add(&found, 1).await?.get().await?, 101);
        match other.find_actor("Counter", "c").await {
            Err(ClientError::Task(error)) => assert_eq!(error.fault.code, Code::NoActor),
            other => panic!("{other:?}"),
        }
        found.kill().await;
        assert_eq!(add(&found, 1).await?.get().await.unwrap_err().fault.code, Code::ActorDied);
        Ok(())
    });
}

#[test]
fn callers_of_an_ended_actor_get_errors() {
    with_job(ACTORS, async |_, job| {
        let counter = job.actor("Counter").submit((0,)).await?;
        let endless: ObjectRef<u64> = counter.call("spins", ()).await?;
        let behind = add(&counter, 1).await?;
        counter.kill().await;
        for object in [endless, behind, add(&counter, 1).await?] {
            assert_eq!(object.get().await.unwrap_err().fault.code, Code::ActorDied);
        }
        let refused = job.actor("Counter").submit((13,)).await?;
        let error = refused.ready().await.unwrap_err();
        let expected = "service > Counter.new: actor `Counter.new` has died: 13 is no start [actor-died]";
        assert_eq!(error.to_string(), expected);
        let restarts = ActorOptions::new().max_restarts(1);
        let saved = job.actor("Saved").options(restarts).submit(()).await?;
        assert_eq!(add(&saved, 3).await?.get().await?, 3);
        saved.restart().await;
        assert_eq!(add(&saved, 4).await?.get().await?, 7);
        Ok(())
    });
}

#[test]
fn methods_are_checked_as_tasks_are() {
    with_job(ACTORS, async |_, job| {
        let counter = job.actor("Counter").submit((0,)).await?;
        for (result, expected_text) in [
            (counter.call::<ObjectRef<u64>>("adds", (1,)).await, "no actor method `Counter.adds`; its actor methods"),
            (counter.call("add", ("x",)).await, "`Counter.add` takes u64 for `number`, and was given the text"),
            (counter.call("add", ()).await, "`Counter.add` takes (number: u64), and was given 0"),
            (job.task("Counter.add").submit((1,)).await, "the program has no task `Counter.add`"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expected_text), "`{expected_text}` is not in `{error}`");
        }
        let error = job.actor("Counters").submit((1,)).await.unwrap_err().to_string();
        assert!(error.contains("`Counters.new`; its actor methods are: Counter.new, "), "{error}");
        Ok(())
    });
}
