//! Failures, retries, and their effect on other tasks.

mod dsl;

use dsl::*;
use sandbar_core::{Code, ObjectId};
use sandbar_sched::{Outcome, TaskState};

#[test]
fn a_task_error_is_retried_only_on_request() {
    // The task fails with `trap`.
    for (retry_on, system, rerun) in [
        (RetryOn::System, false, false),
        (RetryOn::System, true, true),
        (RetryOn::All, false, true),
        (RetryOn::All, true, true),
        (Code::Trap.into(), false, true),
        ([Code::Panic, Code::Trap].into(), false, true),
        ([Code::Panic, Code::TimeOut].into(), false, false),
        ([Code::Panic, Code::TimeOut].into(), true, true),
        ([].into(), false, false),
    ] {
        let mut world = World::new(1, 1);
        world.submit(retries_on(t(10), 1, retry_on)).fails(10, 0, 1, system);
        if rerun {
            world.emits("run w1 t10, run w1 t10#1").fails(10, 1, 1, system).emits("finished t10");
        } else {
            world.emits("run w1 t10, finished t10");
        }
        world.error_is(10, "main > t10: it failed [trap]");
    }
}

#[test]
fn an_error_goes_to_all_that_needs_it() {
    let mut world = World::new(1, 1);
    world.submit_all([t(10), needs(t(11), &[10]), needs(t(12), &[11]), refs(t(13), &[12])]).request(12, DRIVER, 1);
    world
        .fails(10, 0, 1, false)
        .emits("run w1 t10, finished t10, finished t11, finished t12, run w1 t13, deliver w100 o12");
    let error = |id| world.steps.value(ObjectId(id)).expect("known").expect_err("failed");
    assert!(std::sync::Arc::ptr_eq(error(10), error(12)), "it is one error");
    world.submit(needs(t(14), &[12])).emits("finished t14");
    world.error_is(14, "main > t10: it failed [trap]");
}

#[test]
fn a_wrong_number_of_values_is_an_error() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).finish(10, 0, 1, Outcome::Succeeded(vec![(1, vec![]), (2, vec![])]), 1);
    world.emits("run w1 t10, drop o10=1, drop o11=2, finished t10");
    world.error_is(10, "main > t10: returned 2 values instead of 1 [bad-output]");
}

#[test]
fn a_dead_worker_costs_those_an_attempt_that_it_had_started() {
    let mut world = World::new(1, 1);
    world.submit(short(9)).finish_after(9, 1, 1000).submit_all((10..14).map(|id| retries(short(id), 1)));
    world.finish_after(10, 1, 1000).emits("run w1 t9, finished t9, run w1 t10, finished t10, run w1 t11, run w1 t12");
    world.lose(1, &[11, 77, 13]).emits("");
    world.worker(2, 1).emits("run w2 t11#1, run w2 t12");
    world.lose(2, &[11]).worker(3, 1).emits("finished t11, run w3 t12");
    world.error_is(11, "main > short: its worker died while it ran, or it failed, in each of 2 attempts [worker-lost]");
}

#[test]
fn blocked_tasks_of_a_dead_worker_had_started() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).block(10, 1, true).lose(1, &[]).emits("run w1 t10, finished t10");
    world.error_is(10, "main > t10: its worker died while it ran [worker-lost]");
}

#[test]
fn children_of_a_lost_attempt_are_cancelled() {
    let mut world = World::new(3, 3);
    world.submit(retries(t(10), 1)).submit(child(20, 10, 1)).submit(child(30, 20, 2)).submit(child(31, 20, 2));
    world.submit(t(11)).emits("run w1 t10, run w2 t20, run w3 t30");
    world.done(20, 2).emits("finished t20, run w2 t31");
    world.lose(1, &[10]).emits("interrupt w2 t31, interrupt w3 t30, drop o20");
    world.worker(4, 1).emits("run w4 t10#1");
    // Late submissions of the first attempt are ignored.
    world.submit(child(40, 10, 1)).emits("");
    world.done(30, 3).emits("drop o30, finished t30, run w3 t11");
    assert_eq!(world.kept(), [1, 10, 11, 30, 31], "worker 2 holds what its task submitted");
}

#[test]
fn children_of_ended_tasks_continue() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(child(20, 10, 1)).done(10, 1).emits("run w1 t10, run w2 t20, finished t10");
    world.fails(20, 0, 2, false).emits("finished t20");
    world.submit(t(11)).submit(child(21, 11, 1)).fails(11, 0, 1, false).emits_only("interrupt", "");
}

#[test]
fn a_lost_node_takes_its_workers_with_it() {
    let mut world = World::new(0, 0);
    world.node(2, resources(2, 0, 0)).worker(1, 2).worker(2, 2).submit(t(10)).submit(retries(t(11), 1));
    world.emits("run w1 t10, run w2 t11");
    world.lose_node(2).emits("finished t10, finished t11");
    world.error_is(11, "main > t11: asks for 1 cpus, no node has more than 0 [infeasible]");
    world.lose(1, &[]).node(2, resources(1, 0, 0)).worker(3, 2).submit(t(12)).emits("run w3 t12");
}

#[test]
fn a_job_ends_with_its_driver_unless_retries_are_left() {
    let mut world = World::new(1, 1);
    world
        .submit(t(10))
        .lose(DRIVER, &[1])
        .emits_only("done", "done j1 (main: its worker died while it ran [worker-lost])");
    let mut world = World::new(1, 1);
    world.job(2, LIMITS).submit(retries(first(2, 2), 1)).driver(200, 1, 2).emits("run w200 t2");
    world.lose(200, &[2]).emits("").driver(201, 1, 2).emits("run w201 t2#1");
    world.finish(2, 1, 201, Outcome::Succeeded(vec![(2, vec![])]), 1).emits("finished t2 of j2, done j2, drop o2");
}

#[test]
fn a_child_that_ran_inline_is_as_if_it_had_been_submitted() {
    let mut world = World::new(1, 1);
    world
        .submit(t(10))
        .finish_inline(child(20, 10, 1), 1, Outcome::Succeeded(vec![(20, vec![])]))
        .emits("run w1 t10, finished t20");
    world.request(20, 1, 10).release(20, 1).emits("deliver w1 o20, drop o20");
    world.finish_inline(child(21, 10, 1), 1, failed("no", false)).emits("finished t21");
    world.error_is(21, "main > t10 > t21: no [trap]");
    world.finish_inline(retries(child(22, 10, 1), 1), 1, failed("no", true)).emits("");
    assert_eq!(world.state(22), Some(TaskState::Queued));
    world.finish_inline(child(23, 10, 2), 2, Outcome::Succeeded(vec![(23, vec![])])).emits("drop o23");
    world.finish_inline(child(24, 10, 1), DRIVER, Outcome::Succeeded(vec![(24, vec![])])).emits("drop o24");
}

#[test]
fn a_child_that_began_inline_is_in_its_worker() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).block(10, 1, true).submit(t(11)).emits("run w1 t10, run w1 t11");
    world.start_inline(child(20, 10, 1), 1).emits("");
    assert_eq!((world.state(20), world.free_cpus(1)), (Some(TaskState::Running), 0));
    world.start_inline(demanding(child(21, 10, 1), resources(2, 0, 0)), 1).emits("");
    assert_eq!(world.free_cpus(1), -2, "as where a task goes on");
    world.cancel(10, true).emits("interrupt w1 t10, interrupt w1 t21, interrupt w1 t20");
    world
        .done(21, 1)
        .emits("drop o21, finished t21")
        .fails(20, 0, 1, false)
        .emits("finished t20")
        .lose(1, &[])
        .emits_only("finished", "finished t10");
    // A rejected inline task is interrupted.
    world
        .worker(2, 1)
        .emits("run w2 t11")
        .start_inline(demanding(child(22, 11, 2), resources(1, 1, 0)), 2)
        .emits("interrupt w2 t22");
    world.error_is(22, "main > t11 > t22: was started inline and asks for more than processors [bad-request]");
    world.start_inline(needs(child(23, 11, 2), &[77]), 2).emits("interrupt w2 t23").done(23, 2).emits("drop o23");
    world.start_inline(child(24, 11, 1), 1).start_inline(child(25, 11, 2), DRIVER).emits("");
    assert_eq!((world.state(24), world.state(25)), (None, None));
}

#[test]
fn an_error_names_no_more_tasks_than_is_useful() {
    let mut world = World::empty();
    let limits = JobLimits { depth_max: 300, ..LIMITS };
    world.node(1, resources(0, 0, 0)).job(1, limits).driver(DRIVER, 1, 1).submit(first(1, 1));
    (1..200u32).for_each(|id| {
        let worker = if id == 1 { DRIVER } else { DRIVER + id };
        world.worker(DRIVER + id + 1, 1);
        world.submit(demanding(child(u64::from(id) + 1, u64::from(id), worker), resources(0, 0, 0)));
    });
    world.fails(200, 0, DRIVER + 200, false);
    let chain = world.error(200).chain;
    assert_eq!(
        (chain.len(), chain[0].as_str(), chain[32].as_str(), chain[64].as_str()),
        (65, "main", "(136 more)", "t200")
    );
}
