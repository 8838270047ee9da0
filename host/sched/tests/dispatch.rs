//! Which worker runs what, and when.

mod dsl;

use dsl::*;
use sandbar_sched::UNIT;

#[test]
fn the_first_task_goes_to_its_driver_and_the_others_to_workers() {
    let mut world = World::empty();
    world.submit(first(1, 1)).gives("");
    world.job(1, LIMITS).submit(first(1, 1)).node(1, of(2, 0, 0)).worker(1, 1).gives("");
    world.driver(DRIVER, 1, 1).gives("run w100 t1");
    world.submit(t(10)).gives("run w1 t10");
    world.submit(t(11)).gives("");
    world.worker(2, 1).gives("run w2 t11");
}

#[test]
fn a_task_waits_for_what_it_needs() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(needs(t(11), &[10, 10])).submit(needs(t(12), &[10, 11])).gives("run w1 t10");
    world.done(10, 1).gives("ended t10, run w1 t11");
    world.done(11, 1).gives("ended t11, run w1 t12");
}

#[test]
fn higher_priority_comes_first_then_deeper_then_earlier() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(t(11)).submit(priority(t(12), 1)).submit(child(13, 10, 1)).submit(t(14));
    world.gives("run w1 t10");
    for (ended, next) in [(10, "12"), (12, "13"), (13, "11"), (11, "14")] {
        world.done(ended, 1).gives_of("run", &format!("run w1 t{next}"));
    }
}

#[test]
fn what_had_to_wait_for_objects_keeps_its_turn() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(needs(t(11), &[10])).submit(t(12)).gives("run w1 t10");
    world.done(10, 1).gives("ended t10, run w1 t11");
}

#[test]
fn the_least_loaded_worker_comes_first() {
    let mut world = World::new(3, 3);
    world.submit(t(10)).block(10, 1, true).submit(t(11)).gives("run w1 t10, run w2 t11");
    world.submit(t(12)).submit(t(13)).gives("run w3 t12, run w1 t13");
}

#[test]
fn a_worker_is_given_a_millisecond_of_work_of_which_a_part_waits() {
    let mut world = World::new(1, 1);
    world.submit_all((10..210).map(short)).gives("run w1 t10");
    // 1 ms / 100 µs, of 199 that wait.
    world
        .ran(10, 1, 100_000)
        .gives_of("run", &(11..21).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
    // No more before less than half is left.
    (11..16).for_each(|id| {
        world.ran(id, 1, 100_000).gives(&format!("ended t{id}"));
    });
    world
        .ran(16, 1, 100_000)
        .gives_of("run", &(21..27).map(|id| format!("run w1 t{id}")).collect::<Vec<_>>().join(", "));
    assert_eq!(world.free_cpus(1), 0);
}

#[test]
fn half_of_what_waits_is_left_to_others() {
    let mut world = World::new(2, 2);
    world.submit_all((10..22).map(short)).gives("run w1 t10, run w2 t11");
    world.ran(10, 1, 1000).gives_of("run", "run w1 t12, run w1 t13, run w1 t14");
    world.ran(11, 2, 1000).gives_of("run", "run w2 t15, run w2 t16");
}

#[test]
fn tasks_in_advance_are_of_one_demand_and_in_order() {
    let mut world = World::new(4, 1);
    world.submit(short(9)).ran(9, 1, 1000).submit(short(10)).gives("run w1 t9, ended t9, run w1 t10");
    world.submit(short(11)).submit(short(12)).submit(asks(short(13), of(2, 0, 0))).submit(short(14)).submit(short(15));
    world.ran(10, 1, 1000).gives("ended t10, run w1 t11, run w1 t12");
    world.ran(11, 1, 1000).ran(12, 1, 1000).gives("ended t11, ended t12, run w1 t13");
    world.ran(13, 1, 1000).gives("ended t13, run w1 t14");
}

#[test]
fn tasks_that_ask_for_more_than_processors_are_given_one_at_a_time() {
    let mut world = World::empty();
    world.node(1, of(4, 1, 100)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 1).worker(2, 1);
    world.submit(first(1, 1)).gives("run w100 t1");
    let heavy = |id| asks(short(id), of(1, 1, 0));
    world.submit_all((10..40).map(heavy)).gives("run w1 t10");
    world.ran(10, 1, 1000).gives("ended t10, run w1 t11");
    world.block(11, 1, true).gives("");
    assert_eq!(world.free_cpus(1), 4, "the device stays taken, the processor does not");
    world.ran(11, 1, 1000).gives("ended t11, run w1 t12");
}

#[test]
fn a_blocked_task_gives_its_processors_away_and_takes_them_back() {
    let mut world = World::new(1, 3);
    world.submit_all([t(10), t(11), t(12)]).gives("run w1 t10");
    world.block(10, 1, true).gives("run w2 t11");
    world.block(10, 1, false).gives("");
    assert_eq!(world.free_cpus(1), -1);
    world.done(11, 2).gives("ended t11");
    assert_eq!(world.free_cpus(1), 0);
    world.done(10, 1).gives("ended t10, run w1 t12");
}

#[test]
fn tasks_behind_a_blocked_one_run_on_its_processors() {
    let mut world = World::new(1, 2);
    world.submit_all((10..30).map(short)).gives("run w1 t10");
    world.ran(10, 1, 100_000).gives("ended t10, run w1 t11, run w1 t12, run w1 t13, run w1 t14, run w1 t15");
    world.block(11, 1, true).gives("");
    assert_eq!(world.free_cpus(1), 0);
    world.block(11, 1, false).gives("");
    assert_eq!(world.free_cpus(1), 0, "a worker runs one at a time");
}

#[test]
fn a_big_task_gets_its_turn() {
    let mut world = World::new(4, 4);
    world.submit(t(10)).submit(asks(t(11), of(4, 0, 0))).submit(t(12)).gives("run w1 t10");
    world.done(10, 1).gives("ended t10, run w1 t11");
    world.done(11, 1).gives("ended t11, run w1 t12");
}

#[test]
fn what_is_given_in_advance_is_held_back_for_a_big_task_as_well() {
    let mut world = World::new(3, 2);
    world.submit(t(8)).submit(needs(asks(t(9), of(3, 0, 0)), &[8])).submit_all((10..40).map(short));
    world.gives("run w1 t8, run w2 t10").ran(10, 2, 100_000);
    world.gives(
        "ended t10, run w2 t11, run w2 t12, run w2 t13, run w2 t14, run w2 t15, run w2 t16, run w2 t17, run w2 t18",
    );
    world.done(8, 1).gives("ended t8");
    (11..18).for_each(|id| {
        world.ran(id, 2, 100_000).gives(&format!("ended t{id}"));
    });
    world.ran(18, 2, 100_000).gives("ended t18, run w1 t9");
}

#[test]
fn what_a_big_task_can_not_use_is_not_held_back_for_it() {
    let mut world = World::new(2, 2);
    world.node(2, of(4, 1, 0)).worker(3, 2).worker(4, 2).worker(5, 2).gives("");
    let big = |id| asks(t(id), of(1, 1, 0));
    world.submit(big(10)).submit(big(11)).gives("run w3 t10");
    // Of node 2 one processor is kept for task 11, whenever there is a device.
    world.submit_all((12..17).map(t)).gives("run w1 t12, run w2 t13, run w4 t14, run w5 t15");
    world.done(10, 3).gives("ended t10, run w3 t11");
}

#[test]
fn a_task_that_no_node_has_room_for_fails_once_there_is_a_node() {
    let mut world = World::empty();
    world.job(1, LIMITS).submit(first(1, 1)).gives("");
    world.node(1, of(2, 0, 50)).driver(DRIVER, 1, 1).worker(1, 1).gives("run w100 t1");
    for (id, demand, message) in [
        (10, of(3, 0, 0), "asks for 3 cpus, no node has more than 2"),
        (11, of(1, 4, 0), "asks for 4 gpus, no node has more than 0"),
        (12, of(0, 0, 51), "asks for 51 bytes of memory, no node has more than 50"),
        (
            13,
            {
                let mut d = of(0, 0, 0);
                d.custom.insert("tpu".into(), UNIT / 2);
                d
            },
            "asks for 0.5 of tpu, no node has more than 0",
        ),
    ] {
        world.submit(asks(t(id), demand)).gives(&format!("ended t{id}"));
        world.error_is(id, &format!("main > t{id}: {message} [infeasible]"));
    }
}

#[test]
fn what_only_a_lost_node_had_room_for_fails() {
    let mut world = World::new(1, 1);
    world.node(2, of(8, 0, 0)).submit(asks(t(10), of(8, 0, 0))).gives("");
    world.lose_node(2).gives("ended t10");
}

#[test]
fn a_driver_that_asks_for_processors_waits_for_them_and_holds_its_node() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(t(11)).submit(t(12)).gives("run w1 t10, run w2 t11");
    world.job(2, LIMITS).submit(asks(first(2, 2), of(2, 0, 0))).driver(200, 1, 2).gives("");
    world.done(10, 1).gives("ended t10");
    world.done(11, 2).gives("ended t11, run w200 t2");
    world.finish(2, 0, 200, failed("no", false), 1).gives("ended t2 of j2, done j2 (main: no [trap]), run w1 t12");
}

#[test]
fn nothing_is_held_for_a_driver_that_is_not_wanted_any_more() {
    for ends in [false, true] {
        let mut world = World::new(2, 2);
        world.submit(t(10)).job(2, LIMITS).submit(asks(first(2, 2), of(2, 0, 0))).driver(200, 1, 2).submit(t(11));
        world.gives("run w1 t10");
        if ends {
            world.job_ends(2).gives("run w2 t11");
        } else {
            world.cancel(2, false);
            world.gives("ended t2 of j2, done j2 (main: it was cancelled [cancelled]), run w2 t11");
        }
    }
}
