//! Calls of actors that wait for each other: found by what their workers say that they wait for, and failed.

mod dsl;

use std::collections::BTreeMap;

use dsl::{Event, World, actor, call, needs, objects, t};
use sandbar_core::{Code, Fault, TaskId};
use sandbar_sched::{Circles, Waits};

/// Job 1, and actors 10, 20 and 30 in worker 7.
fn actors() -> World {
    let mut world = World::new(1, 1);
    world.submit_all([10, 20, 30].map(|id| actor(id, 0))).somehow();
    world.actor_worker(7, 1);
    world.done(10, 7).done(20, 7).done(30, 7).somehow();
    world
}

/// What is found when tasks wait for so many of these objects, each a call that has its actor if it says so.
fn circles(world: &World, waits: &[(u64, &[u64], usize, bool)]) -> Circles {
    let waits: BTreeMap<TaskId, Waits> = waits
        .iter()
        .map(|(task, on, needed, holds_actor)| {
            (TaskId(*task), Waits { objects: objects(on), needed: *needed, holds_actor: *holds_actor })
        })
        .collect();
    world.steps.circles(&waits)
}

/// Checks which calls are found to be in a circle, and who is to be asked.
#[track_caller]
fn check(world: &World, waits: &[(u64, &[u64], usize, bool)], found: &[u64], unknown: &[u64]) {
    let circles = circles(world, waits);
    let calls: Vec<u64> = circles.found.iter().map(|circle| circle.call.0).collect();
    let asked: Vec<u64> = circles.unknown.iter().map(|task| task.0).collect();
    assert_eq!((calls.as_slice(), asked.as_slice()), (found, unknown), "{waits:?}: {circles:?}");
    assert!(circles.found.iter().all(|circle| circle.fault.code == Code::Deadlock));
}

#[test]
fn an_actor_that_waits_for_itself_is_a_circle() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10)]).somehow();
    check(&world, &[(11, &[12], 1, true)], &[12], &[]);
    // It waits, and nobody for it; what it waits for is there; it lets others begin.
    check(&world, &[], &[], &[]);
    check(&world, &[(11, &[99], 1, true)], &[], &[]);
    check(&world, &[(11, &[12], 1, false)], &[], &[10]);
    let message = circles(&world, &[(11, &[12], 1, true)]).found[0].fault.message.clone();
    assert!(message.contains("`t12` (0-12) waits for `t11` (0-11), which waits for `t12` (0-12)"), "{message}");
}

#[test]
fn a_circle_leads_through_actors_and_tasks() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(21, 20), call(31, 30), call(12, 10), call(22, 20), call(32, 30)]).somehow();
    let ring: [(u64, &[u64], usize, bool); 3] = [(11, &[22], 1, true), (21, &[32], 1, true), (31, &[12], 1, true)];
    check(&world, &ring, &[22], &[]);
    // Whoever is not known goes on, as far as is known.
    check(&world, &ring[..2], &[], &[30]);
    // A task between: it needs the result of the last call.
    world.submit(needs(t(40), &[12])).somehow();
    check(&world, &[(11, &[40], 1, true)], &[12], &[]);
    // A call that has ended is no part of it.
    world.done(11, 7).somehow();
    check(&world, &ring, &[], &[10]);
}

/// What a call waits for that was not the first of its actor's to wait is asked of the actor.
#[test]
fn a_call_that_comes_back_is_a_circle() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(21, 20), call(31, 30), call(12, 10)]).somehow();
    world.block(21, 7, true).block(31, 7, true).somehow();
    let chain: [(u64, &[u64], usize, bool); 3] = [(11, &[21], 1, true), (21, &[31], 1, true), (31, &[12], 1, true)];
    check(&world, &chain[..1], &[], &[20]);
    check(&world, &chain[..2], &[], &[30]);
    check(&world, &chain, &[12], &[]);
}

#[test]
fn who_waits_for_some_of_several_is_stuck_once_too_few_can_come() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10), call(13, 10), t(50)]).somehow();
    for (on, needed, found) in [
        (&[12u64, 50][..], 1, false),
        (&[12, 50], 2, true),
        (&[12, 13], 1, true),
        (&[50], 1, false),
        (&[99, 12], 1, false),
        (&[99, 12], 2, true),
    ] {
        let circles = circles(&world, &[(11, on, needed, true)]);
        assert_eq!(!circles.found.is_empty(), found, "{needed} of {on:?}: {circles:?}");
    }
}

#[test]
fn a_call_that_no_worker_has_can_be_failed() {
    let mut world = actors();
    world.submit(t(50)).submit(needs(call(11, 10), &[50])).submit(call(12, 10)).submit(call(21, 20)).somehow();
    let doom = |call| Event::Doomed { call: TaskId(call), fault: Fault::new(Code::Deadlock, "for ever") };
    // One that waits for an object, one behind it, one that its worker has, and what is no call.
    world.step(doom(12)).gives("ended t12").error_is(12, "main > t12: for ever [deadlock]");
    world.step(doom(11)).gives("ended t11").step(doom(21)).gives("").step(doom(50)).gives("").step(doom(10)).gives("");
    world.done(21, 7).gives("ended t21");
}

#[test]
fn busy_actors_are_those_with_calls_behind_another() {
    let mut world = actors();
    world.submit_all([call(11, 10), call(12, 10), call(21, 20)]).somehow();
    let busy: Vec<_> = world.steps.busy_actors().map(|(maker, worker, first)| (maker.0, worker.0, first.0)).collect();
    assert_eq!(busy, [(10, 7, 11)]);
}

/// What calls take counts until they have ended; what makes an actor, for nothing.
#[test]
fn bytes_of_calls_count_until_they_end() {
    let mut world = World::losing(1, 1, dsl::LIMITS);
    let bytes = |world: &World| world.steps.call_bytes().map(|(_, bytes, _)| bytes / 88).sum::<u64>();
    // The first task, and two.
    world.submit_all([t(2), t(3)]).submit(actor(10, 0)).somehow();
    assert_eq!((bytes(&world), world.steps.has_running(sandbar_core::JobId(1))), (3, true));
    world.done(2, 1).somehow();
    assert_eq!(bytes(&world), 2);
    world.cancel(3, false).somehow();
    world.finish(3, 0, 1, dsl::failed("it was ended", false), 0).somehow();
    assert_eq!(bytes(&world), 1);
}
