//! Cancellation of tasks.

mod dsl;

use dsl::*;
use sandbar_sched::TaskState;

#[test]
fn waiting_tasks_fail_at_once_and_running_tasks_are_interrupted() {
    let mut world = World::new(1, 1);
    world.submit_all([t(10), retries_on(t(11), 3, RetryOn::All)]).emits("run w1 t10");
    world
        .cancel(11, false)
        .emits("finished t11")
        .cancel(10, false)
        .emits("interrupt w1 t10")
        .cancel(10, false)
        .emits("");
    world.error_is(11, "main > t11: it was cancelled [cancelled]");
    // The result comes after the cancellation and does not count.
    world.done(10, 1).emits("drop o10, finished t10");
    world.error_is(10, "main > t10: it was cancelled [cancelled]");
}

#[test]
fn a_cancelled_task_is_never_retried() {
    let mut world = World::new(1, 1);
    world.submit(retries_on(t(10), 3, RetryOn::All)).cancel(10, false).fails(10, 0, 1, true);
    world.emits("run w1 t10, interrupt w1 t10, finished t10");
    world
        .submit(retries_on(t(11), 3, RetryOn::All))
        .cancel(11, false)
        .lose(1, &[11])
        .emits("run w1 t11, interrupt w1 t11, finished t11");
    world.error_is(11, "main > t11: it was cancelled [cancelled]");
}

#[test]
fn consumers_of_a_cancelled_task_fail() {
    let mut world = World::new(4, 4);
    world.submit_all([t(11), needs(t(12), &[11]), needs(t(13), &[12]), needs(t(14), &[13])]);
    world.cancel(13, false).emits("run w1 t11, finished t13, finished t14");
    world.done(11, 1).emits("finished t11, run w1 t12");
}

#[test]
fn children_are_cancelled_on_request() {
    for recursive in [false, true] {
        let mut world = World::new(2, 2);
        world.submit(t(10)).submit(child(20, 10, 1)).submit(child(30, 20, 2)).emits("run w1 t10, run w2 t20");
        world.cancel(10, recursive);
        if recursive {
            world.emits("interrupt w1 t10, interrupt w2 t20, finished t30");
            world.error_is(30, "main > t10 > t20 > t30: it was cancelled [cancelled]");
            world.submit(child(21, 10, 1)).submit(child(31, 20, 2)).emits("");
            world.error_is(31, "main > t10 > t20 > t31: it was cancelled [cancelled]");
        } else {
            world.emits("interrupt w1 t10").submit(child(21, 10, 1)).emits("");
            assert_eq!(world.state(21), Some(TaskState::Queued));
        }
    }
}

#[test]
fn recursive_cancellation_finds_children_of_ended_tasks() {
    let mut world = World::new(4, 4);
    world.submit(t(10)).submit(child(20, 10, 1)).submit(child(30, 20, 2)).submit(child(31, 20, 2)).done(20, 2);
    world.emits("run w1 t10, run w2 t20, run w3 t30, run w4 t31, finished t20");
    world
        .done(31, 4)
        .emits("finished t31")
        .submit(child(32, 30, 3))
        .submit(child(33, 32, 2))
        .done(30, 3)
        .discard_actions();
    world.cancel(10, true).emits("interrupt w1 t10, interrupt w2 t32, interrupt w4 t33");
}
