//! Views: lookups by job and name, and unmet demand.

mod dsl;

use dsl::*;
use sandbar_core::JobId;
use sandbar_sched::{DemandSource, ResourceSet};

/// Formats the unmet demand.
fn unmet(world: &World) -> String {
    let name_of = |name_of: DemandSource| match name_of {
        DemandSource::Tasks(first, count) => format!("{count} from t{first}"),
        DemandSource::Group(group) => format!("g{group}"),
    };
    let all = world.steps.unmet_demands().into_iter();
    all.map(|unmet| format!("{}: {}", name_of(unmet.source), unmet.reason)).collect::<Vec<_>>().join("; ")
}

/// Unmet demand after each of several tasks for two GPUs and 10 bytes, on a node with 5 GPUs.
#[test]
fn unmet_demands_name_the_free_resources() {
    let mut world = World::empty();
    world.node(1, resources(8, 5, 25)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 1).worker(2, 1).worker(3, 1);
    world.submit(first(1, 1));
    for (id, expected) in [(10, ""), (11, ""), (12, "1 from t12: 2 gpus, 1 of 5 on the node are free")] {
        world.submit(demanding(t(id), resources(1, 2, 10)));
        assert_eq!(unmet(&world), expected, "t{id}");
    }
    world
        .submit(demanding(t(13), resources(1, 2, 10)))
        .submit(demanding(t(14), resources(1, 0, 20)))
        .submit(demanding(t(15), resources(7, 0, 0)));
    let expected = "2 from t12: 2 gpus, 1 of 5 on the node are free; \
                    1 from t14: 20 bytes of memory, 5 of 25 on the node are free; \
                    1 from t15: 7 cpus, 6 of 8 on the node are free";
    assert_eq!(unmet(&world), expected);
    world.done(10, 1).done(11, 2);
    let expected = "1 from t14: 20 bytes of memory, 5 of 25 on the node are free; \
                    1 from t15: 7 cpus, 6 of 8 on the node are free";
    assert_eq!(unmet(&world), expected);
}

#[test]
fn waiting_for_a_processor_is_not_reported() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).submit(t(11)).submit(demanding(t(12), ResourceSet { cpus: 1, ..ResourceSet::default() }));
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
    world.node(1, resources(4, 0, 0)).node(2, resources(16, 0, 0)).job(1, LIMITS).driver(DRIVER, 1, 1).worker(1, 2);
    world.submit(first(1, 1)).submit(demanding(t(10), resources(7, 0, 0)));
    world.submit(demanding(t(11), resources(10, 0, 0)));
    assert_eq!(unmet(&world), "1 from t11: 10 cpus, 9 of 16 on the node are free");
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
    // The count is up to date within the step in which a task finishes.
    world.done(10, 1);
    assert_eq!(live(&world), "1 main, 1 short, 1 t12");
}

#[test]
fn external_usage_is_not_free() {
    let mut world = World::new(1, 1);
    world
        .remote_node(2, resources(4, 2, 0))
        .worker(2, 2)
        .load(2, resources(0, 1, 0))
        .submit(demanding(t(10), resources(1, 2, 0)));
    assert_eq!(unmet(&world), "1 from t10: 2 gpus, 1 of 2 on the node are free");
}
