//! Generators and the consumption of their items.

mod dsl;

use dsl::*;
use sandbar_core::{Attempt, Code, Fault, ObjectId, TaskId, WorkerId};

/// A generator in worker 1 whose stream the driver consumes.
fn generating(buffer: u32) -> World {
    let mut world = World::new(2, 2);
    world.submit(stream(10, buffer)).emits("run w1 t10").request(10, DRIVER, 1).emits("");
    world
}

#[test]
fn items_and_the_end_go_to_the_submitter_of_the_generator() {
    let mut world = generating(4);
    world.yields(10, 1, 0, 20).emits("item w100 o10 o20");
    world.yields(10, 1, 1, 21).emits("item w100 o10 o21");
    world.done(10, 1).emits("finished t10, deliver w100 o10");
    assert_eq!(world.kept(), [1, 10, 20, 21]);
    world.release(20, DRIVER).emits("drop o20").release(10, DRIVER).emits("drop o10");
    world.release(21, DRIVER).emits("drop o21");
}

#[test]
fn items_of_a_failed_generator_stay() {
    let mut world = generating(4);
    world.yields(10, 1, 0, 20).fails(10, 0, 1, false).emits("item w100 o10 o20, finished t10, deliver w100 o10");
    world.error_is(10, "main > t10: it failed [trap]");
    assert_eq!(world.steps.value(ObjectId(20)).map(|value| value.is_ok()), Some(true));
}

#[test]
fn a_generator_gets_credits_for_taken_items() {
    let mut world = generating(2);
    world.yields(10, 1, 0, 20).yields(10, 1, 1, 21).emits("item w100 o10 o20, item w100 o10 o21");
    // The item exceeds the buffer.
    world.yields(10, 1, 2, 22).emits("drop o22");
    world.consumes(10, DRIVER, 1).emits("credit w1 t10 1").yields(10, 1, 2, 22).emits("item w100 o10 o22");
    for (worker, taken) in [(DRIVER, 1), (DRIVER, 0), (1, 2), (2, 2), (7, 2)] {
        world.consumes(10, worker, taken).emits("");
    }
    // The count is clamped to the yielded items.
    world.consumes(10, DRIVER, 1000).emits("credit w1 t10 3");
}

#[test]
fn a_retried_attempt_yields_only_new_items() {
    let mut world = World::new(2, 2);
    world.submit(retries(stream(10, 2), 1)).emits("run w1 t10").yields(10, 1, 0, 20).yields(10, 1, 1, 21);
    world.emits("item w100 o10 o20, item w100 o10 o21");
    world.lose(1, &[10]).emits("run w2 t10#1").consumes(10, DRIVER, 2).emits("credit w2 t10 2");
    // The new worker may not know the earlier credits.
    world.yields_with_refs(10, 1, 2, 0, 30, &[]).emits("credit w2 t10 2, drop o30");
    world.yields_with_refs(10, 1, 2, 1, 31, &[]).emits("drop o31").yields_with_refs(10, 1, 2, 2, 32, &[]);
    world
        .emits("item w100 o10 o32")
        .finish(10, 1, 2, Outcome::Succeeded(vec![(3, Vec::new())]), 1)
        .emits("finished t10");
}

#[test]
fn items_out_of_order_are_dropped() {
    let mut world = generating(8);
    world.submit(t(11)).emits("run w2 t11");
    world.yields(10, 2, 0, 20).yields_with_refs(10, 1, 1, 0, 21, &[]).yields(11, 2, 0, 22).yields(99, 1, 0, 23);
    world.yields(10, 1, 1, 24).yields(10, 1, u64::MAX, 25).yields(10, 1, 0, 11).yields(10, 7, 0, 26);
    world.emits("drop o20, drop o21, drop o22, drop o23, drop o24, drop o25, drop o11, drop o26");
    world.yields(10, 1, 0, 20).emits("item w100 o10 o20");
}

#[test]
fn an_item_may_contain_objects_and_be_an_error() {
    let mut world = generating(8);
    world.put(20, 10, 1, &[]).yields_with_refs(10, 0, 1, 0, 21, &[20]).release(20, 1).emits("item w100 o10 o21");
    assert_eq!(world.steps.object(ObjectId(20)).map(|object| object.holders), Some(vec![(WorkerId(DRIVER), 1)]));
    world.release(21, DRIVER).emits("drop o21").release(20, DRIVER).emits("drop o20");
    world.yields_with_refs(10, 0, 1, 1, 22, &[99]).emits("drop o22, item w100 o10 o22");
    world.error_is(22, "main > t10: object 99 does not exist in this job [bad-request]");
    let (value, refs) = (Err(Fault::new(Code::StoreFull, "no room")), Vec::new());
    let (task, attempt, worker, index, object) = (TaskId(10), Attempt(0), WorkerId(1), 2, ObjectId(23));
    world.step(Event::Yielded { task, attempt, worker, index, object, value, refs }).emits("item w100 o10 o23");
    world.error_is(23, "main > t10: no room [store-full]");
}

#[test]
fn items_count_among_the_objects_of_their_job() {
    let mut world = World::empty();
    world.node(1, resources(2, 0, 0)).job(1, JobLimits { objects_max: 3, ..LIMITS }).driver(DRIVER, 1, 1).worker(1, 1);
    world.submit(first(1, 1)).submit(stream(10, 8)).emits("run w100 t1, run w1 t10");
    world.yields(10, 1, 0, 20).yields(10, 1, 1, 21).emits("item w100 o10 o20, drop o21, item w100 o10 o21");
    world.error_is(21, "main > t10: its job would have 4 objects at once, its limit is 3 [task-limit]");
}

#[test]
fn a_stream_that_is_dropped_ends_its_generator() {
    let mut world = generating(8);
    world.yields(10, 1, 0, 20).emits("item w100 o10 o20");
    world.submit(child(11, 10, 1)).release(10, DRIVER).emits("run w2 t11, interrupt w1 t10");
    world.yields(10, 1, 1, 21).emits("drop o21").fails(10, 0, 1, false).emits_only("finished", "finished t10");
    // Consumed items may contain the returns of its children.
    world.done(11, 2).emits("finished t11");
    world.release(20, DRIVER).emits("drop o20");
}

#[test]
fn a_generator_that_is_not_started_ends_with_its_stream() {
    let mut world = World::new(1, 1);
    world.submit(t(9)).submit(stream(10, 8)).submit(needs(stream(11, 8), &[9])).emits("run w1 t9");
    world.release(10, DRIVER).release(11, DRIVER).emits("finished t10, finished t11");
    assert_eq!(world.kept(), [1, 9]);
}

#[test]
fn a_stream_ends_with_its_consumer() {
    let mut world = World::new(3, 3);
    world.submit(retries(t(10), 1)).submit(child(11, 10, 1)).emits("run w1 t10, run w2 t11");
    let of_11 = |id| Submission { parent: Some(parent(11, 0, 2)), ..stream(id, 2) };
    world.submit(of_11(12)).yields(12, 3, 0, 20).emits("run w3 t12, item w2 o12 o20");
    world.lose(2, &[11]).emits_only("interrupt", "interrupt w3 t12");
    world.yields(12, 3, 1, 21).emits("drop o21");
    world.fails(12, 0, 3, false).emits_only("finished", "finished t12");
    assert!(!world.kept().contains(&20) && !world.kept().contains(&12));
}

#[test]
fn a_cancelled_generator_is_the_end_of_its_stream() {
    let mut world = generating(8);
    world.yields(10, 1, 0, 20).cancel(10, false).emits("item w100 o10 o20, interrupt w1 t10");
    world.fails(10, 0, 1, false).emits("finished t10, deliver w100 o10");
    world.error_is(10, "main > t10: it was cancelled [cancelled]");
}

#[test]
fn a_job_ends_with_its_streams() {
    let mut world = generating(8);
    world.yields(10, 1, 0, 20).discard_actions().job_ends(1).emits_only("drop", "drop o20");
    world.yields(10, 1, 1, 21).emits("drop o21").consumes(10, DRIVER, 1).emits("");
    world.fails(10, 0, 1, false).finish(1, 0, DRIVER, failed("it ended", false), 1).emits("");
    assert!(world.steps.is_empty());
}

#[test]
fn a_generator_is_no_first_task_and_not_run_by_its_parent() {
    let mut world = World::new(1, 1);
    world.start_inline(stream(10, 8), DRIVER).emits("interrupt w100 t10");
    world.error_is(
        10,
        "main > t10: is a generator, which inline tasks and first tasks of jobs may not be [bad-request]",
    );
    world.finish_inline(stream(11, 8), DRIVER, Outcome::Succeeded(vec![(11, Vec::new())])).emits("drop o11");
    let error = "done j2 (main: is a generator, which inline tasks and first tasks of jobs may not be [bad-request])";
    world.job(2, LIMITS).submit(Submission { kind: SubmissionKind::Generator(1), ..first(2, 2) }).emits(error);
}
