//! Limits of jobs, and removal of their state.

mod dsl;

use dsl::*;
use sandbar_core::{JobId, ObjectId, WorkerId};
use sandbar_sched::{Event, JobLimits, Outcome, Submission};

fn limited(limits: JobLimits) -> World {
    let mut world = World::empty();
    world.node(1, resources(4, 0, 0)).job(1, limits).driver(DRIVER, 1, 1).worker(1, 1).worker(2, 1).submit(first(1, 1));
    world.emits("run w100 t1");
    world
}

#[test]
fn a_submission_over_a_limit_is_not_run() {
    let mut world = limited(JobLimits { tasks_max: 2, ..LIMITS });
    world.submit(t(10)).submit(t(11)).emits("run w1 t10").request(11, DRIVER, 1).emits("deliver w100 o11");
    world.error_is(11, "main > t11: would be one of 3 tasks at once, its job's limit is 2 [task-limit]");
    world.done(10, 1).submit(t(12)).emits("finished t10, run w1 t12");

    let mut world = limited(JobLimits { depth_max: 2, ..LIMITS });
    world.submit(t(10)).submit(child(11, 10, 1)).emits("run w1 t10");
    world.error_is(11, "main > t10 > t11: would be nested 3 deep, its job's limit is 2 [task-limit]");

    let mut world = limited(JobLimits { objects_max: 3, ..LIMITS });
    world.submit(Submission { returns: 3, ..t(10) }).put(20, 1, DRIVER, &[]).emits("drop o20");
    world.error_is(12, "main > t10: its job would have 4 objects at once, its limit is 3 [task-limit]");
    world.error_is(20, "main: its job would have 5 objects at once, its limit is 3 [task-limit]");
    [10, 11, 12, 20].into_iter().for_each(|id| {
        world.release(id, DRIVER);
    });
    world
        .finish_inline(t(13), DRIVER, Outcome::Succeeded(vec![(13, vec![])]))
        .put(14, 1, DRIVER, &[])
        .emits("finished t13");
    world.finish_inline(t(15), DRIVER, Outcome::Succeeded(vec![(15, vec![])])).emits("drop o15");
    assert_eq!(world.kept(), [1, 13, 14, 15]);
}

#[test]
fn a_job_without_room_for_its_first_task_is_done() {
    let mut world = World::empty();
    world.job(1, JobLimits { tasks_max: 0, ..LIMITS }).submit(first(1, 1));
    world.emits("done j1 (main: would be one of 1 tasks at once, its job's limit is 0 [task-limit])");
}

#[test]
fn objects_of_failed_submissions_are_limited() {
    let mut world = limited(JobLimits { objects_max: 1, ..LIMITS });
    (0..20).for_each(|index| {
        world.submit(Submission { returns: 10_000, ..t(10 + index * 10_000) });
    });
    assert_eq!(world.kept().len(), 1 + (1 << 16));
    world.submit(Submission { returns: u32::MAX, ..t(1 << 50) }).request(1 << 50, DRIVER, 1);
    world.emits(
        "refuse w100 o1125899906842624 (main: object 1125899906842624 does not exist in this job [bad-request])",
    );
}

#[test]
fn nothing_is_left_of_a_job_that_has_ended() {
    let mut world = World::new(2, 2);
    world.submit_all([t(10), retries(t(11), 1), t(12), needs(t(13), &[12])]).put(20, 1, DRIVER, &[10]);
    world.submit(child(14, 10, 1)).request(10, DRIVER, 1).emits("run w1 t10, run w2 t11");
    world.job_ends(1);
    world.emits("interrupt w100 t1, interrupt w2 t11, interrupt w1 t10, drop o20");
    assert!(world.kept().is_empty() && world.state(10).is_none());
    assert_eq!(world.free_cpus(1), 0, "what runs still takes room");
    // Events for the ended job are ignored.
    world.submit(t(15)).put(21, 1, DRIVER, &[]).release(10, DRIVER).request(10, DRIVER, 1).cancel(11, true);
    world.emits("drop o21, refuse w100 o10 (object 10 does not exist in this job [bad-request])");
    world.job(2, LIMITS).submit(first(2, 2)).driver(200, 1, 2).emits("run w200 t2");
    let other = Submission { job: JobId(2), parent: Some(parent(2, 0, 200)), ..t(30) };
    world.submit(other).emits("");
    world.fails(10, 0, 1, false).emits("run w1 t30");
    world.lose(2, &[11]).done(1, DRIVER).emits("drop o1");
    world
        .done(30, 1)
        .job_ends(2)
        .emits("finished t30 of j2, interrupt w200 t2, drop o30")
        .done(2, 200)
        .emits("drop o2");
    assert_eq!(world.free_cpus(1), 2);
    assert!(world.steps.is_empty());
}

#[test]
fn a_job_is_done_when_its_first_task_has_ended_and_the_others_go_on() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).done(1, DRIVER).emits("run w1 t10, finished t1, done j1, drop o1");
    world.done(10, 1).emits("finished t10").job_ends(1).emits("drop o10");
    assert!(world.steps.is_empty());
}

#[test]
fn duplicate_and_unknown_ids_are_harmless() {
    let mut world = World::new(2, 2);
    world.job(2, LIMITS).submit(first(2, 2)).driver(200, 1, 2).emits("run w200 t2");
    world.submit(Submission { returns: 3, ..t(10) }).emits("run w1 t10");
    // Ids that are in use.
    world.submit(t(10)).submit(t(11)).submit(first(50, 1)).put(12, 1, DRIVER, &[]).emits("drop o12");
    world.submit(Submission { returns: 2, ..t(9) }).submit(Submission { returns: 0, ..t(40) }).emits("");
    world.submit(Submission { returns: 2, ..t(u64::MAX) }).emits("");
    // Objects that do not exist or are of another job.
    world.submit(needs(t(20), &[77])).submit(refs(t(21), &[2])).emits("");
    world.error_is(20, "main > t20: object 77 does not exist in this job [bad-request]");
    world.error_is(21, "main > t21: object 2 does not exist in this job [bad-request]");
    world.put(22, 1, DRIVER, &[2]).emits("drop o22");
    world.error_is(22, "main: object 2 does not exist in this job [bad-request]");
    world.request(2, DRIVER, 1).emits("refuse w100 o2 (main: object 2 does not exist in this job [bad-request])");
    // Events from a worker that does not have the task.
    world.request(10, 2, 1).emits("refuse w2 o10 (object 10 does not exist in this job [bad-request])");
    world.done(10, 2).fails(10, 1, 1, false).release(10, 2).put(23, 10, 2, &[]).emits("drop o10, drop o23");
    world
        .block(10, 2, true)
        .recalled(2, &[10])
        .recalled(1, &[99])
        .finish_inline(child(24, 10, 2), 2, failed("", false))
        .emits("");
    // A value with an object of another job.
    let outcome = Outcome::Succeeded(vec![(10, vec![]), (11, objects(&[2])), (12, vec![])]);
    world.finish(10, 0, 1, outcome, 1).emits("drop o10, drop o11, drop o12, finished t10");
    world.error_is(12, "main > t10: object 2 does not exist in this job [bad-request]");
    world.step(Event::ReferencesReleased { object: ObjectId(10), worker: WorkerId(DRIVER), count: u32::MAX }).emits("");
    world.release(10, DRIVER).release(11, 77).lose(77, &[1]).lose_node(77).job_ends(77).cancel(77, true).emits("");
}
