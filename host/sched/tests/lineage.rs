//! What was lost is made again from its lineage, as often as its task may be begun, and how long that is kept.

mod dsl;

use dsl::*;
use sandbar_core::{Attempt, ObjectId, TaskId, WorkerId};

fn losing() -> World {
    World::losing(1, 1, LIMITS)
}

/// A task that may be begun again so often.
fn again(id: u64, retries_max: u32) -> Submission<u64> {
    retries(t(id), retries_max)
}

/// Tasks of which there is a record.
fn records(world: &World) -> Vec<u64> {
    let mut all: Vec<u64> = world.steps.tasks().map(|task| task.id.0).collect();
    all.sort_unstable();
    all
}

#[test]
fn what_is_lost_is_made_again_as_often_as_its_task_may_be_begun() {
    let mut world = losing();
    world.submit(again(10, 2)).done(10, 1).somehow();
    world.lose_object(10).gives("drop o10, run w1 t10#1").want(10, DRIVER, 1).gives("");
    world.done_again(10, 1, 1).gives("ended t10 again, deliver w100 o10");
    world.lose_object_for(10, DRIVER).gives("drop o10, run w1 t10#2");
    world.done_again(10, 2, 1).gives("ended t10 again, deliver w100 o10");
    world.lose_object_for(10, DRIVER).gives("drop o10, deliver w100 o10");
    let why = "its task was begun 3 times, as often as it may be (max_retries 2)";
    world.error_is(10, &format!("main > t10: the value of object 10 is gone, and {why} [object-lost]"));
    world.lose_object_for(10, DRIVER).gives("deliver w100 o10").release(10, DRIVER).gives("");
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1, 10]));
}

#[test]
fn what_may_not_be_begun_again_is_an_error() {
    let mut world = losing();
    world.submit(t(10)).done(10, 1).lose_object(10).somehow();
    let why = "its task may not be begun again (max_retries 0)";
    world.error_is(10, &format!("main > t10: the value of object 10 is gone, and {why} [object-lost]"));
    world.put(11, 1, DRIVER, &[]).lose_object(11).gives("drop o11");
    world.error_is(11, "the value of object 11 is gone, and what was put is not made again [object-lost]");
}

#[test]
fn what_it_was_made_of_is_not_kept_and_made_again_before() {
    let mut world = losing();
    world.submit(again(10, 1)).submit(needs(again(11, 1), &[10])).submit(refs(needs(again(12, 1), &[11]), &[10]));
    world.done(10, 1).done(11, 1).done(12, 1).somehow();
    world.release(10, DRIVER).gives("drop o10").release(11, DRIVER).gives("drop o11");
    assert_eq!((world.kept(), records(&world)), (vec![1, 12], vec![1, 10, 11, 12]));
    world.lose_object_for(12, DRIVER).gives("drop o12, run w1 t10#1");
    world.done_again(10, 1, 1).gives("ended t10 again, run w1 t11#1");
    world.done_again(11, 1, 1).gives("ended t11 again, run w1 t12#1");
    // These are not referred to by anything else.
    world.done_again(12, 1, 1).gives("ended t12 again, drop o10, drop o11, deliver w100 o12");
    world.lose_object_for(12, DRIVER).gives("drop o12, deliver w100 o12");
    world.release(12, DRIVER).done(99, 1);
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1]));
}

#[test]
fn what_was_put_is_not_kept_for_what_was_made_of_it() {
    let mut world = losing();
    world.put(9, 1, DRIVER, &[]).submit(needs(again(10, 3), &[9])).done(10, 1).somehow();
    world.lose_object(10).gives("drop o10, run w1 t10#1").done_again(10, 1, 1).somehow();
    world.release(9, DRIVER).gives("drop o9").lose_object(10).gives("drop o10");
    let why = "object 9, of which it was made, is not there any more";
    world.error_is(10, &format!("main > t10: the value of object 10 is gone, and {why} [object-lost]"));
}

#[test]
fn what_is_little_is_kept_for_what_was_made_of_it() {
    let mut world = losing();
    let little = Outcome::Succeeded(vec![(LITTLE, Vec::new())]);
    world.submit(again(9, 1)).finish(9, 0, 1, little, 0).submit(needs(again(10, 1), &[9])).done(10, 1).somehow();
    assert_eq!(records(&world), [1, 10]);
    world.release(9, DRIVER).gives("").lose_object(10).gives("drop o10, run w1 t10#1");
    world.done_again(10, 1, 1).gives(&format!("ended t10 again, drop o9={LITTLE}"));
}

#[test]
fn several_losses_of_one_task_cost_one_attempt() {
    let mut world = losing();
    let three = |from| Outcome::Succeeded((from..from + 3).map(|value| (value, Vec::new())).collect());
    world.submit(Submission { returns: 3, ..again(10, 1) }).finish(10, 0, 1, three(10), 0).somehow();
    world.lose_object(10).gives("drop o10, run w1 t10#1").lose_object(12).gives("drop o12");
    world.finish(10, 1, 1, three(20), 0).gives("drop o11=21, ended t10 again");
    assert_eq!(world.steps.value(ObjectId(11)), Some(Ok(&11)));
    assert_eq!(world.steps.value(ObjectId(12)), Some(Ok(&22)));
    // None of them is made of what nobody refers to.
    world.release(10, DRIVER).release(11, DRIVER).gives("drop o10=20, drop o11");
    world.lose_object(12).gives("drop o12=22");
    let why = "its task was begun 2 times, as often as it may be (max_retries 1)";
    world.error_is(12, &format!("main > t10: the value of object 12 is gone, and {why} [object-lost]"));
}

#[test]
fn a_task_that_stands_in_line_waits_again() {
    let mut world = World::losing(2, 2, LIMITS);
    world.submit(again(10, 1)).done(10, 1).submit(t(20)).submit(t(21)).submit(needs(t(11), &[10])).submit(t(12));
    world.somehow().lose_object(10).gives("drop o10").done(20, 1).gives("ended t20, run w1 t10#1");
    world.done(21, 2).gives("ended t21, run w2 t12");
    world.done_again(10, 1, 1).gives("ended t10 again, run w1 t11");
}

#[test]
fn an_attempt_that_fails_fails_what_waits_for_it() {
    let mut world = losing();
    world.submit(again(10, 1)).done(10, 1).somehow().lose_object(10).submit(needs(t(11), &[10])).somehow();
    world.fails(10, 1, 1, true).gives("ended t10 again, ended t11").error_is(11, "main > t10: it failed [trap]");
}

#[test]
fn a_call_that_waits_again_keeps_its_place() {
    let mut world = losing();
    world.submit(again(10, 1)).done(10, 1).submit(actor(20, 0)).submit(needs(call(21, 20), &[10])).submit(call(22, 20));
    world.submit(child(30, 1, DRIVER)).gives_of("hire", "hire n1");
    world.lose_object(10).gives("drop o10").actor_worker(7, 1).gives("run w7 t20").done(20, 7).gives("");
    world.submit(call(23, 20)).gives("").done(30, 1).gives("ended t30, run w1 t10#1");
    world.done_again(10, 1, 1).gives("run w7 t21, run w7 t22, run w7 t23, ended t10 again");
}

#[test]
fn what_a_method_returns_is_not_made_again() {
    let mut world = losing();
    world.submit(actor(20, 0)).actor_worker(7, 1).done(20, 7).submit(retries(call(21, 20), 3)).done(21, 7);
    world.somehow().lose_object(21).gives("drop o21");
    let why = "what a method of an actor has returned is not made again";
    world.error_is(21, &format!("main > t21: the value of object 21 is gone, and {why} [object-lost]"));
}

#[test]
fn no_more_lineage_is_kept_than_may_be() {
    let mut world = World::losing(1, 1, JobLimits { lineage_bytes_max: 1200, ..LIMITS });
    world.submit_all([10, 11, 12].map(|id| again(id, 1))).done(10, 1).done(11, 1).done(12, 1).somehow();
    world.lose_object(10).gives("drop o10").lose_object(11).gives("drop o11, run w1 t11#1");
    let why = "how it was made is not kept: its task was cancelled or failed since, or its job had more than 1200 bytes \
               of that to keep";
    world.error_is(10, &format!("the value of object 10 is gone, and {why} [object-lost]"));
}

#[test]
fn what_is_cancelled_is_not_made_again() {
    let mut world = losing();
    world.submit(again(10, 1)).done(10, 1).cancel(10, false).somehow().lose_object(10).gives("drop o10");
    assert_eq!(records(&world), [1]);
}

/// They are what the value that is there refers to, or whoever has read the one that was lost.
#[test]
fn what_an_attempt_has_submitted_that_succeeded_is_left_alone() {
    let mut world = World::losing(2, 2, LIMITS);
    world.submit(again(10, 2)).submit(child(20, 10, 1)).returned(10, 1, &[20]).want(10, DRIVER, 1).somehow();
    world.lose_object(10).gives("drop o10, run w1 t10#1");
    world.submit(Submission { parent: Some((TaskId(10), Attempt(1), WorkerId(1))), ..t(21) }).somehow();
    world.fails(10, 1, 1, true).gives_of("interrupt", "");
    assert_eq!((world.state(20), world.state(21)), (Some(TaskState::Running), Some(TaskState::Stopped)));
}

#[test]
fn a_long_lineage_is_made_again_and_goes_at_once() {
    const LAST: u64 = 100_009;
    let limits = JobLimits { objects_max: 1_000_000, lineage_bytes_max: 1 << 30, ..LIMITS };
    let mut world = World::losing(1, 1, limits);
    world.submit(again(10, 1)).done(10, 1).somehow();
    for id in 11..=LAST {
        world.submit(needs(again(id, 1), &[id - 1])).done(id, 1).release(id - 1, DRIVER).somehow();
    }
    assert_eq!((world.kept(), records(&world).len()), (vec![1, LAST], 100_001));
    world.lose_object_for(LAST, DRIVER).gives(&format!("drop o{LAST}, run w1 t10#1"));
    for id in 10..LAST {
        world.done_again(id, 1, 1).gives_of("run", &format!("run w1 t{}#1", id + 1));
    }
    world.done_again(LAST, 1, 1).gives_of("deliver", &format!("deliver w100 o{LAST}")).release(LAST, DRIVER).somehow();
    world.job_ends(2);
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1]));
    world.job_ends(1).lose(DRIVER, &[]);
    assert!(world.steps.is_empty());
}
