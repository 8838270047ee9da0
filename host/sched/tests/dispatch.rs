//! Dispatch: which worker runs which task, and when.

mod dsl;

use dsl::*;
use sandbar_sched::RESOURCE_UNIT;

#[test]
fn the_first_task_goes_to_its_driver_and_the_others_to_workers() {
    let mut world = World::empty();
    world.submit(first(1, 1)).emits("");
    world.job(1, LIMITS).submit(first(1, 1)).node(1, resources(2, 0, 0)).worker(1, 1).emits("");
    world.driver(DRIVER, 1, 1).emits("run w100 t1");
    world.submit(t(10)).emits("run w1 t10");
    world.submit(t(11)).emits("");
    world.worker(2, 1).emits("run w2 t11");
}

#[test]
fn a_task_waits_for_its_dependencies() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(needs(t(11), &[10, 10])).submit(needs(t(12), &[10, 11])).emits("run w1 t10");
    world.done(10, 1).emits("finished t10, run w1 t11");
    world.done(11, 1).emits("finished t11, run w1 t12");
}

#[test]
fn higher_priority_comes_first_then_deeper_then_earlier() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(t(11)).submit(priority(t(12), 1)).submit(child(13, 10, 1)).submit(t(14));
    world.emits("run w1 t10");
    for (ended, next) in [(10, "12"), (12, "13"), (13, "11"), (11, "14")] {
        world.done(ended, 1).emits_only("run", &format!("run w1 t{next}"));
    }
}

#[test]
fn tasks_that_waited_for_objects_keep_their_place() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(needs(t(11), &[10])).submit(t(12)).emits("run w1 t10");
    world.done(10, 1).emits("finished t10, run w1 t11");
}

#[test]
fn the_least_loaded_worker_comes_first() {
    let mut world = World::new(3, 3);
    world.submit(t(10)).block(10, 1, true).submit(t(11)).emits("run w1 t10, run w2 t11");
    world.submit(t(12)).submit(t(13)).emits("run w3 t12, run w1 t13");
}

#[test]
fn a_worker_queues_a_millisecond_of_work() {
    let mut world = World::new(1, 1);
    world.submit_all((10..210).map(short)).emits("run w1 t10");
    // 1 ms / 100 µs, with 199 queued tasks.
    world
        .finish_after(10, 1, 100_000)
        .emits_only("run", &(11..21).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
    // The worker gets more only when less than half is left.
    (11..16).for_each(|id| {
        world.finish_after(id, 1, 100_000).emits(&format!("finished t{id}"));
    });
    world
        .finish_after(16, 1, 100_000)
        .emits_only("run", &(21..27).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
    assert_eq!(world.free_cpus(1), 0);
}

#[test]
fn half_of_the_queue_is_left_to_other_workers() {
    let mut world = World::new(2, 2);
    world.submit_all((10..22).map(short)).emits("run w1 t10, run w2 t11");
    world.finish_after(10, 1, 1000).emits_only("run", "run w1 t12, run w1 t13, run w1 t14");
    world.finish_after(11, 2, 1000).emits_only("run", "run w2 t15, run w2 t16");
}

#[test]
fn tasks_in_advance_are_of_one_demand_and_in_order() {
    let mut world = World::new(4, 1);
    world.submit(short(9)).finish_after(9, 1, 1000).submit(short(10)).emits("run w1 t9, finished t9, run w1 t10");
    world
        .submit(short(11))
        .submit(short(12))
        .submit(demanding(short(13), resources(2, 0, 0)))
        .submit(short(14))
        .submit(short(15));
    world.finish_after(10, 1, 1000).emits("finished t10, run w1 t11, run w1 t12");
    world.finish_after(11, 1, 1000).finish_after(12, 1, 1000).emits("finished t11, finished t12, run w1 t13");
    world.finish_after(13, 1, 1000).emits("finished t13, run w1 t14");
}

#[test]
fn tasks_with_other_resources_are_assigned_one_at_a_time() {
    let mut world = World::empty();
    world.node(1, resources(4, 1, 100)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 1).worker(2, 1);
    world.submit(first(1, 1)).emits("run w100 t1");
    let heavy = |id| demanding(short(id), resources(1, 1, 0));
    world.submit_all((10..40).map(heavy)).emits("run w1 t10");
    world.finish_after(10, 1, 1000).emits("finished t10, run w1 t11");
    world.block(11, 1, true).emits("");
    assert_eq!(world.free_cpus(1), 4, "the device stays taken, the processor does not");
    world.finish_after(11, 1, 1000).emits("finished t11, run w1 t12");
}

#[test]
fn a_blocked_task_gives_its_processors_away_and_takes_them_back() {
    let mut world = World::new(1, 3);
    world.submit_all([t(10), t(11), t(12)]).emits("run w1 t10");
    world.block(10, 1, true).emits("run w2 t11");
    world.block(10, 1, false).emits("");
    assert_eq!(world.free_cpus(1), -1);
    world.done(11, 2).emits("finished t11");
    assert_eq!(world.free_cpus(1), 0);
    world.done(10, 1).emits("finished t10, run w1 t12");
}

#[test]
fn tasks_behind_a_blocked_one_run_on_its_processors() {
    let mut world = World::new(1, 2);
    world.submit_all((10..30).map(short)).emits("run w1 t10");
    world
        .finish_after(10, 1, 100_000)
        .emits("finished t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    world.block(11, 1, true).emits("");
    assert_eq!(world.free_cpus(1), 0);
    world.block(11, 1, false).emits("");
    assert_eq!(world.free_cpus(1), 0, "a worker runs one at a time");
}

#[test]
fn a_big_task_gets_its_turn() {
    let mut world = World::new(4, 4);
    world.submit(t(10)).submit(demanding(t(11), resources(4, 0, 0))).submit(t(12)).emits("run w1 t10");
    world.done(10, 1).emits("finished t10, run w1 t11");
    world.done(11, 1).emits("finished t11, run w1 t12");
}

#[test]
fn queued_assignments_are_held_back_for_a_big_task() {
    let mut world = World::new(3, 2);
    world.submit(t(8)).submit(needs(demanding(t(9), resources(3, 0, 0)), &[8])).submit_all((10..40).map(short));
    world.emits("run w1 t8, run w2 t10").finish_after(10, 2, 100_000);
    world.emits(
        "finished t10, run w2 t11, run w2 t12, run w2 t13, run w2 t14, run w2 t15, run w2 t16, run w2 t17, run w2 t18",
    );
    world.done(8, 1).emits("finished t8");
    (11..18).for_each(|id| {
        world.finish_after(id, 2, 100_000).emits(&format!("finished t{id}"));
    });
    world.finish_after(18, 2, 100_000).emits("finished t18, run w1 t9");
}

#[test]
fn resources_unusable_for_a_big_task_are_not_held_back() {
    let mut world = World::new(2, 2);
    world.node(2, resources(4, 1, 0)).worker(3, 2).worker(4, 2).worker(5, 2).emits("");
    let big = |id| demanding(t(id), resources(1, 1, 0));
    world.submit(big(10)).submit(big(11)).emits("run w3 t10");
    // Node 2 keeps one processor for task 11, for the time when a GPU is free.
    world.submit_all((12..17).map(t)).emits("run w1 t12, run w2 t13, run w4 t14, run w5 t15");
    world.done(10, 3).emits("finished t10, run w3 t11");
}

#[test]
fn a_task_that_no_node_has_room_for_fails_once_there_is_a_node() {
    let mut world = World::empty();
    world.job(1, LIMITS).submit(first(1, 1)).emits("");
    world.node(1, resources(2, 0, 50)).driver(DRIVER, 1, 1).worker(1, 1).emits("run w100 t1");
    for (id, demand, message) in [
        (10, resources(3, 0, 0), "asks for 3 cpus, no node has more than 2"),
        (11, resources(1, 4, 0), "asks for 4 gpus, no node has more than 0"),
        (12, resources(0, 0, 51), "asks for 51 bytes of memory, no node has more than 50"),
        (
            13,
            {
                let mut d = resources(0, 0, 0);
                d.custom.insert("tpu".into(), RESOURCE_UNIT / 2);
                d
            },
            "asks for 0.5 of tpu, no node has more than 0",
        ),
    ] {
        world.submit(demanding(t(id), demand)).emits(&format!("finished t{id}"));
        world.error_is(id, &format!("main > t{id}: {message} [infeasible]"));
    }
}

#[test]
fn tasks_that_only_a_lost_node_could_run_fail() {
    let mut world = World::new(1, 1);
    world.node(2, resources(8, 0, 0)).submit(demanding(t(10), resources(8, 0, 0))).emits("");
    world.lose_node(2).emits("finished t10");
}

#[test]
fn a_driver_with_demands_waits_and_holds_its_node() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(t(11)).submit(t(12)).emits("run w1 t10, run w2 t11");
    world.job(2, LIMITS).submit(demanding(first(2, 2), resources(2, 0, 0))).driver(200, 1, 2).emits("");
    world.done(10, 1).emits("finished t10");
    world.done(11, 2).emits("finished t11, run w200 t2");
    world.finish(2, 0, 200, failed("no", false), 1).emits("finished t2 of j2, done j2 (main: no [trap]), run w1 t12");
}

#[test]
fn nothing_is_held_for_a_driver_that_is_not_wanted_any_more() {
    for ends in [false, true] {
        let mut world = World::new(2, 2);
        world
            .submit(t(10))
            .job(2, LIMITS)
            .submit(demanding(first(2, 2), resources(2, 0, 0)))
            .driver(200, 1, 2)
            .submit(t(11));
        world.emits("run w1 t10");
        if ends {
            world.job_ends(2).emits("run w2 t11");
        } else {
            world.cancel(2, false);
            world.emits("finished t2 of j2, done j2 (main: it was cancelled [cancelled]), run w2 t11");
        }
    }
}
