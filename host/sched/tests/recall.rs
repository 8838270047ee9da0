//! Tasks that are taken back from workers before they are begun.

mod dsl;

use dsl::*;

/// One of two workers has run task 10 of a class of short ones, and has 11 to 15; 16 to 29 wait for a processor.
fn with_a_window() -> World {
    let mut world = World::new(1, 2);
    world.submit_all((10..30).map(short)).ran(10, 1, 100_000);
    world.gives("run w1 t10, ended t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    world
}

#[test]
fn a_task_that_comes_before_those_given_in_advance_calls_them_back() {
    let mut world = with_a_window();
    world.submit(child(50, 11, 1)).gives("recall w1");
    world.submit(child(51, 11, 1)).gives("");
    world.recalled(1, &[12, 13, 14, 15]).gives("");
    world.ran(11, 1, 100_000).gives("ended t11, run w1 t50");
    world.ran(50, 1, 1_000_000).gives("ended t50, run w1 t51");
    world.ran(51, 1, 1_000_000).gives_of("run", "run w1 t12, run w1 t13, run w1 t14, run w1 t15, run w1 t16");
}

#[test]
fn what_was_called_back_keeps_its_turn() {
    let mut world = with_a_window();
    world.submit(priority(t(50), 1)).gives("recall w1");
    world.recalled(1, &[15, 12, 14, 13]).gives("");
    world.ran(11, 1, 100_000).gives("ended t11, run w1 t50");
    world.ran(50, 1, 1).gives_of("run", "run w1 t12, run w1 t13, run w1 t14, run w1 t15, run w1 t16");
}

/// Worker 1 runs task 11, and has 12 and 13 in advance; nothing waits.
fn with_a_rest() -> World {
    let mut world = World::new(1, 1);
    world
        .submit_all((9..21).map(short))
        .ran(9, 1, 100_000)
        .gives_of("run", "run w1 t9, run w1 t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    (16..21).for_each(|id| {
        world.cancel(id, false);
    });
    world.ran(10, 1, 100_000).ran(14, 1, 100_000).ran(15, 1, 100_000).gives_of("run", "");
    world
}

#[test]
fn a_worker_without_work_gets_some_of_what_another_was_given() {
    let mut world = with_a_rest();
    world.node(2, of(1, 0, 0)).worker(2, 2).gives("recall w1");
    world.recalled(1, &[12, 13]).gives("run w2 t12");
    world.ran(12, 2, 100_000).gives("ended t12, run w2 t13");
}

#[test]
fn what_is_queued_and_has_no_place_keeps_no_worker_from_work() {
    let mut world = with_a_rest();
    world.node(2, of(2, 0, 0)).worker(2, 2).node(3, of(0, 1, 0)).recalled(1, &[]).gives("recall w1");
    world.submit(asks(t(30), of(1, 1, 0))).gives("ended t30").submit(asks(t(31), of(0, 1, 0))).ran(11, 1, 100_000);
    world.gives("ended t11, recall w1").recalled(1, &[13]).gives("run w2 t13");
}

#[test]
fn a_task_of_the_same_level_calls_nothing_back() {
    with_a_window().submit(short(60)).gives("");
}

#[test]
fn nothing_is_asked_back_where_there_is_no_room_for_it() {
    let mut world = with_a_rest();
    world.worker(2, 1).gives("").node(2, of(0, 1, 0)).worker(3, 2).gives("");
}

#[test]
fn a_worker_is_not_robbed_again_before_something_has_ended_there() {
    let mut world = with_a_rest();
    world.node(2, of(2, 0, 0)).worker(2, 2).worker(3, 2).gives("recall w1");
    // It had begun them all, it says.
    world.recalled(1, &[]).worker(4, 2).gives("");
    world.ran(11, 1, 100_000).gives("ended t11, recall w1");
}

#[test]
fn a_worker_that_is_asked_for_tasks_is_given_none() {
    let mut world = World::new(1, 1);
    let urgent = |id| priority(short(id), 1);
    world.submit(urgent(8)).ran(8, 1, 100_000).submit_all((10..40).map(short)).ran(10, 1, 100_000).somehow();
    world.submit_all((50..60).map(urgent)).gives("recall w1");
    (11..20).for_each(|id| {
        world.ran(id, 1, 100_000);
    });
    world.gives_of("run", "").recalled(1, &[]);
    world.gives(&(50..59).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
}

#[test]
fn a_cancelled_task_that_comes_back_is_not_run() {
    let mut world = with_a_window();
    world.cancel(13, false).gives("interrupt w1 t13");
    world.submit(priority(t(50), 1)).gives("recall w1");
    world.recalled(1, &[12, 13, 14, 15]).gives("ended t13");
    world.fails(13, 0, 1, false).gives("");
    world.error_is(13, "main > short: it was cancelled [cancelled]");
}
