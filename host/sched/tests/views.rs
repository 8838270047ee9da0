//! What can be seen: who is there of which name, and what is asked for and not free.

mod dsl;

use dsl::*;
use sandbar_core::JobId;
use sandbar_sched::{Demand, Unmet};

/// What is not met, as text.
fn unmet(world: &World) -> String {
    let what = |what: Unmet| match what {
        Unmet::Tasks(first, count) => format!("{count} from t{first}"),
        Unmet::Group(group) => format!("g{group}"),
    };
    let all = world.steps.unmet().into_iter();
    all.map(|unmet| format!("{}: {}", what(unmet.what), unmet.reason)).collect::<Vec<_>>().join("; ")
}

/// What is free after so many tasks for two devices and 10 bytes each have been begun on a node of 5 devices.
#[test]
fn what_is_not_free_is_said_with_what_is_left() {
    let mut world = World::empty();
    world.node(1, of(8, 5, 25)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 1).worker(2, 1).worker(3, 1);
    world.submit(first(1, 1));
    for (id, expected) in [(10, ""), (11, ""), (12, "1 from t12: 2 gpus, of 5 on the node 1 are free")] {
        world.submit(asks(t(id), of(1, 2, 10)));
        assert_eq!(unmet(&world), expected, "t{id}");
    }
    world.submit(asks(t(13), of(1, 2, 10))).submit(asks(t(14), of(1, 0, 20))).submit(asks(t(15), of(7, 0, 0)));
    let expected = "2 from t12: 2 gpus, of 5 on the node 1 are free; \
                    1 from t14: 20 bytes of memory, of 25 on the node 5 are free; \
                    1 from t15: 7 cpus, of 8 on the node 6 are free";
    assert_eq!(unmet(&world), expected);
    world.done(10, 1).done(11, 2);
    let expected = "1 from t14: 20 bytes of memory, of 25 on the node 5 are free; \
                    1 from t15: 7 cpus, of 8 on the node 6 are free";
    assert_eq!(unmet(&world), expected);
}

#[test]
fn who_asks_for_a_processor_waits_as_a_matter_of_course() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(t(11)).submit(asks(t(12), Demand { cpus: 1, ..Demand::default() }));
    assert_eq!(unmet(&world), "");
}

#[test]
fn the_objects_of_a_job_are_counted_and_seen_the_last_one_first() {
    let mut world = World::new(1, 1);
    world.job(2, LIMITS).submit(first(2, 2)).submit(t(10)).put(20, 1, DRIVER, &[]).put(21, 1, DRIVER, &[]);
    for (job, objects) in [(1, &[21, 20, 10, 1][..]), (2, &[2]), (3, &[])] {
        let seen: Vec<u64> = world.steps.objects_of(JobId(job)).map(|object| object.id.0).collect();
        assert_eq!((&seen[..], world.steps.count_objects(JobId(job))), (objects, objects.len() as u64), "j{job}");
    }
    world.release(20, DRIVER);
    assert_eq!((world.steps.objects_of(JobId(1)).count(), world.steps.count_objects(JobId(1))), (3, 3));
}

#[test]
fn the_node_that_lacks_least_is_named() {
    let mut world = World::empty();
    world.node(1, of(4, 0, 0)).node(2, of(16, 0, 0)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 2);
    world.submit(first(1, 1)).submit(asks(t(10), of(7, 0, 0)));
    world.submit(asks(t(11), of(10, 0, 0)));
    assert_eq!(unmet(&world), "1 from t11: 10 cpus, of 16 on the node 9 are free");
}

#[test]
fn those_that_have_not_ended_are_counted_by_name() {
    let mut world = World::new(1, 1);
    let live = |world: &World| {
        let mut all: Vec<_> = world.steps.classes().map(|class| format!("{} {}", class.live, class.name)).collect();
        all.sort();
        all.join(", ")
    };
    assert_eq!(live(&world), "1 main");
    world.submit(short(10)).submit(short(11)).submit(t(12));
    assert_eq!(live(&world), "1 main, 1 t12, 2 short");
    // Also in the step in which it ends.
    world.done(10, 1);
    assert_eq!(live(&world), "1 main, 1 short, 1 t12");
}

#[test]
fn what_others_use_of_a_node_is_not_free() {
    let mut world = World::new(1, 1);
    world.far_node(2, of(4, 2, 0)).worker(2, 2).load(2, of(0, 1, 0)).submit(asks(t(10), of(1, 2, 0)));
    assert_eq!(unmet(&world), "1 from t10: 2 gpus, of 2 on the node 1 are free");
}
