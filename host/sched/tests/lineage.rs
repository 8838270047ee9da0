//! Reconstruction of lost values by lineage: attempts, and the lifetime of lineage.

mod dsl;

use dsl::*;
use sandbar_core::ObjectId;

fn losing() -> World {
    World::with_losses(1, 1, LIMITS)
}

/// A task with this number of retries.
fn rerun(id: u64, retries_max: u32) -> Submission<u64> {
    retries(t(id), retries_max)
}

/// Ids of tasks that have a record.
fn records(world: &World) -> Vec<u64> {
    let mut all: Vec<u64> = world.steps.tasks().map(|task| task.id.0).collect();
    all.sort_unstable();
    all
}

#[test]
fn lost_objects_are_reconstructed_within_the_retries() {
    let mut world = losing();
    world.submit(rerun(10, 2)).done(10, 1).discard_actions();
    world.lose_object(10).emits("drop o10, run w1 t10#1").request(10, DRIVER, 1).emits("");
    world.done_rerun(10, 1, 1).emits("finished t10 rerun, deliver w100 o10");
    world.lose_object_for(10, DRIVER).emits("drop o10, run w1 t10#2");
    world.done_rerun(10, 2, 1).emits("finished t10 rerun, deliver w100 o10");
    world.lose_object_for(10, DRIVER).emits("drop o10, deliver w100 o10");
    let why = "its task used all of its 3 attempts (max_retries 2)";
    world.error_is(10, &format!("main > t10: the value of object 10 is lost: {why} [object-lost]"));
    world.lose_object_for(10, DRIVER).emits("deliver w100 o10").release(10, DRIVER).emits("");
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1, 10]));
}

#[test]
fn lost_objects_without_retries_are_errors() {
    let mut world = losing();
    world.submit(t(10)).done(10, 1).lose_object(10).discard_actions();
    let why = "its task has no retries (max_retries 0)";
    world.error_is(10, &format!("main > t10: the value of object 10 is lost: {why} [object-lost]"));
    world.put(11, 1, DRIVER, &[]).lose_object(11).emits("drop o11");
    world.error_is(11, "the value of object 11 is lost: objects that were put are not reconstructed [object-lost]");
}

#[test]
fn inputs_are_reconstructed_before_their_consumers() {
    let mut world = losing();
    world.submit(rerun(10, 1)).submit(needs(rerun(11, 1), &[10])).submit(refs(needs(rerun(12, 1), &[11]), &[10]));
    world.done(10, 1).done(11, 1).done(12, 1).discard_actions();
    world.release(10, DRIVER).emits("drop o10").release(11, DRIVER).emits("drop o11");
    assert_eq!((world.kept(), records(&world)), (vec![1, 12], vec![1, 10, 11, 12]));
    world.lose_object_for(12, DRIVER).emits("drop o12, run w1 t10#1");
    world.done_rerun(10, 1, 1).emits("finished t10 rerun, run w1 t11#1");
    world.done_rerun(11, 1, 1).emits("finished t11 rerun, run w1 t12#1");
    // Nothing else refers to the reconstructed inputs.
    world.done_rerun(12, 1, 1).emits("finished t12 rerun, drop o10, drop o11, deliver w100 o12");
    world.lose_object_for(12, DRIVER).emits("drop o12, deliver w100 o12");
    world.release(12, DRIVER).done(99, 1);
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1]));
}

#[test]
fn stored_objects_are_not_kept_for_their_consumers() {
    let mut world = losing();
    world.put(9, 1, DRIVER, &[]).submit(needs(rerun(10, 3), &[9])).done(10, 1).discard_actions();
    world.lose_object(10).emits("drop o10, run w1 t10#1").done_rerun(10, 1, 1).discard_actions();
    world.release(9, DRIVER).emits("drop o9").lose_object(10).emits("drop o10");
    let why = "its input, object 9, no longer exists";
    world.error_is(10, &format!("main > t10: the value of object 10 is lost: {why} [object-lost]"));
}

#[test]
fn small_results_are_kept_for_their_consumers() {
    let mut world = losing();
    let little = Outcome::Succeeded(vec![(UNLOSABLE, Vec::new())]);
    world
        .submit(rerun(9, 1))
        .finish(9, 0, 1, little, 0)
        .submit(needs(rerun(10, 1), &[9]))
        .done(10, 1)
        .discard_actions();
    assert_eq!(records(&world), [1, 10]);
    world.release(9, DRIVER).emits("").lose_object(10).emits("drop o10, run w1 t10#1");
    world.done_rerun(10, 1, 1).emits(&format!("finished t10 rerun, drop o9={UNLOSABLE}"));
}

#[test]
fn several_losses_of_one_task_cost_one_attempt() {
    let mut world = losing();
    let three = |from| Outcome::Succeeded((from..from + 3).map(|value| (value, Vec::new())).collect());
    world.submit(Submission { returns: 3, ..rerun(10, 1) }).finish(10, 0, 1, three(10), 0).discard_actions();
    world.lose_object(10).emits("drop o10, run w1 t10#1").lose_object(12).emits("drop o12");
    world.finish(10, 1, 1, three(20), 0).emits("drop o11=21, finished t10 rerun");
    assert_eq!(world.steps.value(ObjectId(11)), Some(Ok(&11)));
    assert_eq!(world.steps.value(ObjectId(12)), Some(Ok(&22)));
    // Unreferenced returns are not reconstructed.
    world.release(10, DRIVER).release(11, DRIVER).emits("drop o10=20, drop o11");
    world.lose_object(12).emits("drop o12=22");
    let why = "its task used all of its 2 attempts (max_retries 1)";
    world.error_is(12, &format!("main > t10: the value of object 12 is lost: {why} [object-lost]"));
}

#[test]
fn a_task_that_stands_in_line_waits_again() {
    let mut world = World::with_losses(2, 2, LIMITS);
    world.submit(rerun(10, 1)).done(10, 1).submit(t(20)).submit(t(21)).submit(needs(t(11), &[10])).submit(t(12));
    world.discard_actions().lose_object(10).emits("drop o10").done(20, 1).emits("finished t20, run w1 t10#1");
    world.done(21, 2).emits("finished t21, run w2 t12");
    world.done_rerun(10, 1, 1).emits("finished t10 rerun, run w1 t11");
}

#[test]
fn a_failed_attempt_fails_its_consumers() {
    let mut world = losing();
    world
        .submit(rerun(10, 1))
        .done(10, 1)
        .discard_actions()
        .lose_object(10)
        .submit(needs(t(11), &[10]))
        .discard_actions();
    world.fails(10, 1, 1, true).emits("finished t10 rerun, finished t11").error_is(11, "main > t10: it failed [trap]");
}

#[test]
fn a_call_that_waits_again_keeps_its_place() {
    let mut world = losing();
    world.submit(rerun(10, 1)).done(10, 1).submit(actor(20, 0)).submit(needs(call(21, 20), &[10])).submit(call(22, 20));
    world.submit(child(30, 1, DRIVER)).emits_only("start-worker", "start-worker n1");
    world.lose_object(10).emits("drop o10").actor_worker(7, 1).emits("run w7 t20").done(20, 7).emits("");
    world.submit(call(23, 20)).emits("").done(30, 1).emits("finished t30, run w1 t10#1");
    world.done_rerun(10, 1, 1).emits("run w7 t21, run w7 t22, run w7 t23, finished t10 rerun");
}

#[test]
fn results_of_methods_are_not_reconstructed() {
    let mut world = losing();
    world.submit(actor(20, 0)).actor_worker(7, 1).done(20, 7).submit(retries(call(21, 20), 3)).done(21, 7);
    world.discard_actions().lose_object(21).emits("drop o21");
    let why = "results of actor methods are not reconstructed";
    world.error_is(21, &format!("main > t21: the value of object 21 is lost: {why} [object-lost]"));
}

#[test]
fn no_more_lineage_is_kept_than_may_be() {
    let mut world = World::with_losses(1, 1, JobLimits { lineage_bytes_max: 1200, ..LIMITS });
    world.submit_all([10, 11, 12].map(|id| rerun(id, 1))).done(10, 1).done(11, 1).done(12, 1).discard_actions();
    world.lose_object(10).emits("drop o10").lose_object(11).emits("drop o11, run w1 t11#1");
    let why = "its lineage was dropped: its task was cancelled or failed since, or its job's lineage exceeded 1200 \
               bytes";
    world.error_is(10, &format!("the value of object 10 is lost: {why} [object-lost]"));
}

#[test]
fn cancelled_objects_are_not_reconstructed() {
    let mut world = losing();
    world.submit(rerun(10, 1)).done(10, 1).cancel(10, false).discard_actions().lose_object(10).emits("drop o10");
    assert_eq!(records(&world), [1]);
}

/// Such children are in the existing value, or known to a reader of the lost one.
#[test]
fn children_of_a_successful_attempt_continue() {
    let mut world = World::with_losses(2, 2, LIMITS);
    world.submit(rerun(10, 2)).submit(child(20, 10, 1)).returned(10, 1, &[20]).request(10, DRIVER, 1).discard_actions();
    world.lose_object(10).emits("drop o10, run w1 t10#1");
    world.submit(Submission { parent: Some(parent(10, 1, 1)), ..t(21) }).discard_actions();
    world.fails(10, 1, 1, true).emits_only("interrupt", "");
    assert_eq!((world.state(20), world.state(21)), (Some(TaskState::Running), Some(TaskState::Cancelled)));
}

#[test]
fn a_long_lineage_is_reconstructed_and_goes_at_once() {
    const LAST: u64 = 100_009;
    let limits = JobLimits { objects_max: 1_000_000, lineage_bytes_max: 1 << 30, ..LIMITS };
    let mut world = World::with_losses(1, 1, limits);
    world.submit(rerun(10, 1)).done(10, 1).discard_actions();
    for id in 11..=LAST {
        world.submit(needs(rerun(id, 1), &[id - 1])).done(id, 1).release(id - 1, DRIVER).discard_actions();
    }
    assert_eq!((world.kept(), records(&world).len()), (vec![1, LAST], 100_001));
    world.lose_object_for(LAST, DRIVER).emits(&format!("drop o{LAST}, run w1 t10#1"));
    for id in 10..LAST {
        world.done_rerun(id, 1, 1).emits_only("run", &format!("run w1 t{}#1", id + 1));
    }
    world
        .done_rerun(LAST, 1, 1)
        .emits_only("deliver", &format!("deliver w100 o{LAST}"))
        .release(LAST, DRIVER)
        .discard_actions();
    world.job_ends(2);
    assert_eq!((world.kept(), records(&world)), (vec![1], vec![1]));
    world.job_ends(1).lose(DRIVER, &[]);
    assert!(world.steps.is_empty());
}
