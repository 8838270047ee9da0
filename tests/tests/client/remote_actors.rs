//! Actors on several nodes: created, kept and called wherever their job runs something.

use sandbar_client::{Actor, ActorOptions, ActorRef, ClientError, Code, ObjectRef};

use crate::in_process_peers::{on, with_nodes};

const ACTORS: &str = "tests/programs/actors";

/// Returns options that place an actor on the node of this number.
fn kept_on(number: u16) -> ActorOptions {
    ActorOptions::new().resource(format!("node{number}"), 1.0)
}

async fn add(actor: &Actor, number: u64) -> Result<ObjectRef<u64>, ClientError> {
    actor.call("add", (number,)).await
}

/// Tasks on each node see local and remote actors alike.
#[test]
fn tasks_of_all_nodes_have_actors() {
    with_nodes(ACTORS, async |_, job| {
        for number in 1..=3 {
            let counts: ObjectRef<u64> = job.task("counts").options(on(number)).submit((300,)).await?;
            let shared: ObjectRef<u64> = job.task("shared").options(on(number)).submit((6, 50)).await?;
            let held: ObjectRef<u64> = job.task("keeps").options(on(number)).submit((20,)).await?;
            let asking: ObjectRef<u64> = job.task("asking").options(on(number)).submit((10,)).await?;
            assert_eq!(counts.get().await?, 300, "node {number}");
            assert_eq!(shared.get().await?, 300, "node {number}");
            assert_eq!(held.get().await?, 380, "node {number}");
            assert_eq!(asking.get().await?, 65, "node {number}");
        }
        for task in ["in_order", "failures", "begins_anew", "restored", "cancels"] {
            // One after another: some compute for long, and others would wait for them.
            let here: ObjectRef<String> = job.task(task).options(on(1)).submit(()).await?;
            let here = here.get().await?;
            let there: ObjectRef<String> = job.task(task).options(on(2)).submit(()).await?;
            assert_eq!(there.get().await?, here, "{task}");
        }
        Ok(())
    });
}

#[test]
fn an_actor_may_be_on_any_node() {
    with_nodes(ACTORS, async |_, job| {
        for number in 1..=3 {
            let counter = job.actor("Counter").options(kept_on(number)).submit((5,)).await?;
            let mut sums = Vec::new();
            for _ in 0..100 {
                sums.push(add(&counter, 1).await?);
            }
            for (sum, expected) in sums.iter().zip(6..) {
                assert_eq!(sum.get().await?, expected, "node {number}");
            }
            let mut calls: Vec<ObjectRef<u64>> = Vec::new();
            for caller in 1..=3 {
                calls.push(job.task("calls_often").options(on(caller)).submit((&counter, 50)).await?);
            }
            for call in calls {
                call.get().await?;
            }
            assert_eq!(add(&counter, 1).await?.get().await?, 256, "node {number}");
            // Its resources are free for the next.
            counter.kill().await;
            assert_eq!(add(&counter, 1).await?.get().await.unwrap_err().fault.code, Code::ActorDied);
        }
        // An actor's resources are free again once no handle exists.
        for start in 0..5 {
            let counter = job.actor("Counter").options(kept_on(2)).submit((start,)).await?;
            assert_eq!(add(&counter, 1).await?.get().await?, start + 1);
        }
        Ok(())
    });
}

#[test]
fn actors_take_objects_and_call_tasks() {
    with_nodes(ACTORS, async |_, job| {
        for number in 1..=3 {
            let counter = job.actor("Counter").options(kept_on(number)).submit((0,)).await?;
            let count: ObjectRef<u64> = counter.call("adds_double", (7,)).await?;
            assert_eq!(count.get().await?, 14, "node {number}");
            let double: ObjectRef<u64> = job.task("double").options(on(3)).submit((&count,)).await?;
            let sum: ObjectRef<u64> = counter.call("add", (&double,)).await?;
            assert_eq!(sum.get().await?, 42, "node {number}");
        }
        Ok(())
    });
}

#[test]
fn actors_that_tasks_of_other_nodes_make_outlive_these() {
    with_nodes(ACTORS, async |nodes, job| {
        let hired: ObjectRef<ActorRef> = job.task("hires").options(on(3)).submit((5,)).await?;
        let many: ObjectRef<Vec<(String, ActorRef)>> = job.task("hires_many").options(on(3)).submit((3,)).await?;
        let counter = hired.get().await?.typed("Counter")?;
        assert_eq!(add(&counter, 1).await?.get().await?, 6);
        let many = many.get().await?;
        drop(nodes.pop());
        for ((name, handle), start) in many.iter().zip(0..) {
            assert_eq!(name, &format!("counter {start}"));
            assert_eq!(add(&handle.typed("Counter")?, 1).await?.get().await?, start + 1);
        }
        assert_eq!(add(&counter, 1).await?.get().await?, 7);
        Ok(())
    });
}

#[test]
fn an_actor_is_found_by_its_name_on_all_nodes() {
    with_nodes(ACTORS, async |_, job| {
        let counter = job.actor("Counter").options(kept_on(2).name("c")).submit((5,)).await?;
        for number in 1..=3 {
            let found: ObjectRef<u64> = job.task("finds").options(on(number)).submit(("c", 1)).await?;
            assert_eq!(found.get().await?, 5 + u64::from(number));
            let missing: ObjectRef<u64> = job.task("finds").options(on(number)).submit(("nobody", 1)).await?;
            assert_eq!(missing.get().await.unwrap_err().fault.code, Code::NoActor);
            // The first caller creates the actor.
            let created: ObjectRef<u64> = job.task("meets").options(on(number)).submit(("d", 1)).await?;
            assert_eq!(created.get().await?, u64::from(number));
        }
        assert_eq!(add(&counter, 0).await?.get().await?, 8);
        Ok(())
    });
}

#[test]
fn an_actor_of_a_lost_node_restarts_on_another_or_has_died() {
    with_nodes(ACTORS, async |nodes, job| {
        let mortal = job.actor("Counter").options(kept_on(3)).submit((5,)).await?;
        // At least one actor on each of the other nodes.
        let options = ActorOptions::new().resource("other", 0.5).max_restarts(1).max_task_retries(1);
        let mut restarted = Vec::new();
        for _ in 0..3 {
            let actor = job.actor("Counter").options(options.clone()).submit((7,)).await?;
            actor.ready().await?;
            restarted.push(actor);
        }
        assert_eq!(add(&mortal, 1).await?.get().await?, 6);
        for actor in &restarted {
            assert_eq!(add(actor, 1).await?.get().await?, 8);
        }
        drop(nodes.pop());
        assert_eq!(add(&mortal, 1).await?.get().await.unwrap_err().fault.code, Code::ActorDied);
        let mut sums = Vec::new();
        for actor in &restarted {
            sums.push(add(actor, 1).await?.get().await?);
        }
        sums.sort_unstable();
        // One actor has lost its state.
        assert_eq!(sums, [8, 9, 9]);
        Ok(())
    });
}

/// Some actors are on a node that is lost, with state that travels in messages or as objects.
#[test]
fn an_actor_of_a_lost_node_continues_from_its_checkpoint() {
    with_nodes(ACTORS, async |nodes, job| {
        let options = ActorOptions::new().resource("other", 0.5).max_restarts(3).max_task_retries(1);
        let mut hoards = Vec::new();
        for numbers in [10u64, 200_000, 10, 200_000] {
            let hoard = job.actor("Hoard").options(options.clone()).submit((numbers,)).await?;
            hoard.ready().await?;
            hoards.push((hoard, numbers));
        }
        for (hoard, _) in &hoards {
            for number in 1..=20u64 {
                // The actors are on all nodes.
                let object: ObjectRef<u64> =
                    job.task("double").options(on(number as u16 % 2 + 1)).submit((number,)).await?;
                let kept: ObjectRef<u64> = hoard.call("keep", (vec![object],)).await?;
                assert_eq!(kept.get().await?, number);
            }
        }
        drop(nodes.pop());
        for (hoard, numbers) in &hoards {
            // The actor is not checkpointed after this call, wherever it is by now.
            let panics: ObjectRef<u64> = hoard.call("panics", ()).await?;
            assert_eq!(panics.get().await.unwrap_err().fault.code, Code::Panic);
            let sums: ObjectRef<(u64, u64)> = hoard.call("sums", ()).await?;
            let (objects, sum) = sums.get().await?;
            assert_eq!(sum, numbers * (numbers - 1) / 2);
            // State that is an object may be some calls old.
            let is_so = if *numbers == 10 { objects == 420 } else { (1..=20).any(|kept| objects == kept * (kept + 1)) };
            assert!(is_so, "{objects} of {numbers} numbers");
        }
        Ok(())
    });
}

#[test]
fn callers_of_an_ended_remote_actor_get_errors() {
    with_nodes(ACTORS, async |_, job| {
        let counter = job.actor("Counter").options(kept_on(2)).submit((0,)).await?;
        let endless: ObjectRef<u64> = counter.call("spins", ()).await?;
        let behind = add(&counter, 1).await?;
        counter.kill().await;
        for object in [endless, behind, add(&counter, 1).await?] {
            assert_eq!(object.get().await.unwrap_err().fault.code, Code::ActorDied);
        }
        let refused = job.actor("Counter").options(kept_on(2)).submit((13,)).await?;
        let error = refused.ready().await.unwrap_err();
        let expected = "service > Counter.new: actor `Counter.new` has died: 13 is no start [actor-died]";
        assert_eq!(error.to_string(), expected);
        let saved = job.actor("Saved").options(kept_on(2).max_restarts(2)).submit(()).await?;
        assert_eq!(add(&saved, 3).await?.get().await?, 3);
        saved.restart().await;
        assert_eq!(add(&saved, 4).await?.get().await?, 7);
        let panics: ObjectRef<u64> = saved.call("panics", ()).await?;
        assert_eq!(panics.get().await.unwrap_err().fault.code, Code::Panic);
        assert_eq!(add(&saved, 1).await?.get().await?, 8);
        Ok(())
    });
}
