//! Recall of assigned tasks that have not started.

mod dsl;

use dsl::*;

/// Worker 1 of two has run task 10, of a class of short tasks, and has 11 to 15; tasks 16 to 29 wait for a processor.
fn with_a_window() -> World {
    let mut world = World::new(1, 2);
    world.submit_all((10..30).map(short)).finish_after(10, 1, 100_000);
    world.emits("run w1 t10, finished t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    world
}

#[test]
fn a_task_of_higher_priority_recalls_queued_tasks() {
    let mut world = with_a_window();
    world.submit(child(50, 11, 1)).emits("recall w1");
    world.submit(child(51, 11, 1)).emits("");
    world.recalled(1, &[12, 13, 14, 15]).emits("");
    world.finish_after(11, 1, 100_000).emits("finished t11, run w1 t50");
    world.finish_after(50, 1, 1_000_000).emits("finished t50, run w1 t51");
    world
        .finish_after(51, 1, 1_000_000)
        .emits_only("run", "run w1 t12, run w1 t13, run w1 t14, run w1 t15, run w1 t16");
}

#[test]
fn recalled_tasks_keep_their_place() {
    let mut world = with_a_window();
    world.submit(priority(t(50), 1)).emits("recall w1");
    world.recalled(1, &[15, 12, 14, 13]).emits("");
    world.finish_after(11, 1, 100_000).emits("finished t11, run w1 t50");
    world.finish_after(50, 1, 1).emits_only("run", "run w1 t12, run w1 t13, run w1 t14, run w1 t15, run w1 t16");
}

/// Worker 1 runs task 11 and has 12 and 13 in advance; nothing is queued.
fn with_a_rest() -> World {
    let mut world = World::new(1, 1);
    world
        .submit_all((9..21).map(short))
        .finish_after(9, 1, 100_000)
        .emits_only("run", "run w1 t9, run w1 t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    (16..21).for_each(|id| {
        world.cancel(id, false);
    });
    world.finish_after(10, 1, 100_000).finish_after(14, 1, 100_000).finish_after(15, 1, 100_000).emits_only("run", "");
    world
}

#[test]
fn an_idle_worker_gets_queued_tasks_of_another() {
    let mut world = with_a_rest();
    world.node(2, resources(1, 0, 0)).worker(2, 2).emits("recall w1");
    world.recalled(1, &[12, 13]).emits("run w2 t12");
    world.finish_after(12, 2, 100_000).emits("finished t12, run w2 t13");
}

#[test]
fn unplaceable_tasks_do_not_block_workers() {
    let mut world = with_a_rest();
    world.node(2, resources(2, 0, 0)).worker(2, 2).node(3, resources(0, 1, 0)).recalled(1, &[]).emits("recall w1");
    world
        .submit(demanding(t(30), resources(1, 1, 0)))
        .emits("finished t30")
        .submit(demanding(t(31), resources(0, 1, 0)))
        .finish_after(11, 1, 100_000);
    world.emits("finished t11, recall w1").recalled(1, &[13]).emits("run w2 t13");
}

#[test]
fn a_task_of_the_same_level_calls_nothing_back() {
    with_a_window().submit(short(60)).emits("");
}

#[test]
fn nothing_is_recalled_without_free_resources() {
    let mut world = with_a_rest();
    world.worker(2, 1).emits("").node(2, resources(0, 1, 0)).worker(3, 2).emits("");
}

#[test]
fn a_worker_is_not_robbed_again_before_something_has_ended_there() {
    let mut world = with_a_rest();
    world.node(2, resources(2, 0, 0)).worker(2, 2).worker(3, 2).emits("recall w1");
    // All of the tasks had started.
    world.recalled(1, &[]).worker(4, 2).emits("");
    world.finish_after(11, 1, 100_000).emits("finished t11, recall w1");
}

#[test]
fn a_worker_with_a_pending_recall_gets_no_tasks() {
    let mut world = World::new(1, 1);
    let urgent = |id| priority(short(id), 1);
    world
        .submit(urgent(8))
        .finish_after(8, 1, 100_000)
        .submit_all((10..40).map(short))
        .finish_after(10, 1, 100_000)
        .discard_actions();
    world.submit_all((50..60).map(urgent)).emits("recall w1");
    (11..20).for_each(|id| {
        world.finish_after(id, 1, 100_000);
    });
    world.emits_only("run", "").recalled(1, &[]);
    world.emits(&(50..59).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
}

#[test]
fn a_cancelled_task_that_comes_back_is_not_run() {
    let mut world = with_a_window();
    world.cancel(13, false).emits("interrupt w1 t13");
    world.submit(priority(t(50), 1)).emits("recall w1");
    world.recalled(1, &[12, 13, 14, 15]).emits("finished t13");
    world.fails(13, 0, 1, false).emits("");
    world.error_is(13, "main > short: it was cancelled [cancelled]");
}
