//! Deadlock detection among actor calls, and the failure of deadlocked calls.

mod dsl;

use std::collections::BTreeMap;

use dsl::{Event, World, actor, call, needs, objects, t};
use sandbar_core::{Code, Fault, TaskId};
use sandbar_sched::{DeadlockSearch, WaitSet};

/// Job 1, and actors 10, 20 and 30 in worker 7.
fn actors() -> World {
    let mut world = World::new(1, 1);
    world.submit_all([10, 20, 30].map(|id| actor(id, 0))).discard_actions();
    world.actor_worker(7, 1);
    world.done(10, 7).done(20, 7).done(30, 7).discard_actions();
    world
}

/// Searches with these wait sets: task, objects, number needed, and whether the task blocks its actor.
fn search(world: &World, waits: &[(u64, &[u64], usize, bool)]) -> DeadlockSearch {
    let waits: BTreeMap<TaskId, WaitSet> = waits
        .iter()
        .map(|(task, on, needed, holds_actor)| {
            (TaskId(*task), WaitSet { objects: objects(on), needed: *needed, holds_actor: *holds_actor })
        })
        .collect();
    world.steps.find_deadlocks(&waits)
}

/// Checks the deadlocked calls and the tasks whose wait sets are requested.
#[track_caller]
fn check(world: &World, waits: &[(u64, &[u64], usize, bool)], found: &[u64], unknown: &[u64]) {
    let search = search(world, waits);
    let calls: Vec<u64> = search.deadlocks.iter().map(|deadlock| deadlock.call.0).collect();
    let unresolved: Vec<u64> = search.unresolved.iter().map(|task| task.0).collect();
    assert_eq!((calls.as_slice(), unresolved.as_slice()), (found, unknown), "{waits:?}: {search:?}");
    assert!(search.deadlocks.iter().all(|deadlock| deadlock.fault.code == Code::Deadlock));
}

#[test]
fn an_actor_that_waits_for_itself_is_a_deadlock() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10)]).discard_actions();
    check(&world, &[(11, &[12], 1, true)], &[12], &[]);
    // Without a wait set; with an unknown object; with a call that lets others start.
    check(&world, &[], &[], &[]);
    check(&world, &[(11, &[99], 1, true)], &[], &[]);
    check(&world, &[(11, &[12], 1, false)], &[], &[10]);
    let message = search(&world, &[(11, &[12], 1, true)]).deadlocks[0].fault.message.clone();
    assert!(message.contains("`t12` (0-12) waits for `t11` (0-11), which waits for `t12` (0-12)"), "{message}");
}

#[test]
fn a_deadlock_leads_through_actors_and_tasks() {
    let mut world = actors();
    world
        .submit_all([call(11, 10), call(21, 20), call(31, 30), call(12, 10), call(22, 20), call(32, 30)])
        .discard_actions();
    let ring: [(u64, &[u64], usize, bool); 3] = [(11, &[22], 1, true), (21, &[32], 1, true), (31, &[12], 1, true)];
    check(&world, &ring, &[22], &[]);
    // An unknown task counts as making progress.
    check(&world, &ring[..2], &[], &[30]);
    // With a task between: it depends on the result of the last call.
    world.submit(needs(t(40), &[12])).discard_actions();
    check(&world, &[(11, &[40], 1, true)], &[12], &[]);
    // A finished call is not part of a cycle.
    world.done(11, 7).discard_actions();
    check(&world, &ring, &[], &[10]);
}

/// Wait sets of blocked calls are requested by their actor.
#[test]
fn a_call_that_comes_back_is_a_deadlock() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(21, 20), call(31, 30), call(12, 10)]).discard_actions();
    world.block(21, 7, true).block(31, 7, true).discard_actions();
    let chain: [(u64, &[u64], usize, bool); 3] = [(11, &[21], 1, true), (21, &[31], 1, true), (31, &[12], 1, true)];
    check(&world, &chain[..1], &[], &[20]);
    check(&world, &chain[..2], &[], &[30]);
    check(&world, &chain, &[12], &[]);
}

#[test]
fn a_wait_for_some_of_several_is_a_deadlock_once_too_few_remain() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10), call(13, 10), t(50)]).discard_actions();
    for (on, needed, found) in [
        (&[12u64, 50][..], 1, false),
        (&[12, 50], 2, true),
        (&[12, 13], 1, true),
        (&[50], 1, false),
        (&[99, 12], 1, false),
        (&[99, 12], 2, true),
    ] {
        let search = search(&world, &[(11, on, needed, true)]);
        assert_eq!(!search.deadlocks.is_empty(), found, "{needed} of {on:?}: {search:?}");
    }
}

#[test]
fn a_call_that_no_worker_has_can_be_failed() {
    let mut world = actors();
    world.submit(t(50)).submit(needs(call(11, 10), &[50])).submit(call(12, 10)).submit(call(21, 20)).discard_actions();
    let deadlock = |call| Event::DeadlockDetected { call: TaskId(call), fault: Fault::new(Code::Deadlock, "for ever") };
    // A call that waits for an object, a call behind it, an assigned call, and two tasks that are not calls.
    world.step(deadlock(12)).emits("finished t12").error_is(12, "main > t12: for ever [deadlock]");
    world
        .step(deadlock(11))
        .emits("finished t11")
        .step(deadlock(21))
        .emits("")
        .step(deadlock(50))
        .emits("")
        .step(deadlock(10))
        .emits("");
    world.done(21, 7).emits("finished t21");
}

#[test]
fn busy_actors_are_those_with_calls_behind_another() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10), call(21, 20)]).discard_actions();
    let busy: Vec<_> = world.steps.busy_actors().map(|(maker, worker, first)| (maker.0, worker.0, first.0)).collect();
    assert_eq!(busy, [(10, 7, 11)]);
}

/// The bytes of a call count until its task finishes; those of a creation task never do.
#[test]
fn bytes_of_calls_count_until_they_end() {
    let mut world = World::with_losses(1, 1, dsl::JobLimits { call_bytes_max: 0, ..dsl::LIMITS });
    let bytes = |world: &World| world.steps.held_submissions(|_| false).map(|(_, bytes, _)| bytes / 88).sum::<u64>();
    // The root task and two more.
    world.submit_all([t(2), t(3)]).submit(actor(10, 0)).discard_actions();
    assert_eq!((bytes(&world), world.steps.has_running(sandbar_core::JobId(1))), (3, true));
    world.done(2, 1).discard_actions();
    assert_eq!(bytes(&world), 2);
    world.cancel(3, false).discard_actions();
    world.finish(3, 0, 1, dsl::failed("it was ended", false), 0).discard_actions();
    assert_eq!(bytes(&world), 1);
}
