//! What fails, what is begun again, and what fails with it.

mod dsl;

use dsl::*;
use sandbar_core::{Code, ObjectId};
use sandbar_sched::{Outcome, TaskState};

#[test]
fn a_task_that_fails_by_itself_is_begun_again_only_if_it_asks_for_that() {
    // It fails with `trap`.
    for (retry_on, system, again) in [
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
        if again {
            world.gives("run w1 t10, run w1 t10#1").fails(10, 1, 1, system).gives("ended t10");
        } else {
            world.gives("run w1 t10, ended t10");
        }
        world.error_is(10, "main > t10: it failed [trap]");
    }
}

#[test]
fn an_error_goes_to_all_that_needs_it() {
    let mut world = World::new(1, 1);
    world.submit_all([t(10), needs(t(11), &[10]), needs(t(12), &[11]), refs(t(13), &[12])]).want(12, DRIVER, 1);
    world.fails(10, 0, 1, false).gives("run w1 t10, ended t10, ended t11, ended t12, run w1 t13, deliver w100 o12");
    let error = |id| world.steps.value(ObjectId(id)).expect("known").expect_err("failed");
    assert!(std::sync::Arc::ptr_eq(error(10), error(12)), "it is one error");
    world.submit(needs(t(14), &[12])).gives("ended t14");
    world.error_is(14, "main > t10: it failed [trap]");
}

#[test]
fn a_wrong_number_of_values_is_an_error() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).finish(10, 0, 1, Outcome::Succeeded(vec![(1, vec![]), (2, vec![])]), 1);
    world.gives("run w1 t10, drop o10=1, drop o11=2, ended t10");
    world.error_is(10, "main > t10: handed back 2 values, it returns 1 [bad-output]");
}

#[test]
fn a_dead_worker_costs_those_an_attempt_that_it_had_begun() {
    let mut world = World::new(1, 1);
    world.submit(short(9)).ran(9, 1, 1000).submit_all((10..14).map(|id| retries(short(id), 1)));
    world.ran(10, 1, 1000).gives("run w1 t9, ended t9, run w1 t10, ended t10, run w1 t11, run w1 t12");
    world.lose(1, &[11, 77, 13]).gives("");
    world.worker(2, 1).gives("run w2 t11#1, run w2 t12");
    world.lose(2, &[11]).worker(3, 1).gives("ended t11, run w3 t12");
    world.error_is(11, "main > short: its worker died while it ran, or it failed, in each of 2 attempts [worker-lost]");
}

#[test]
fn blocked_tasks_of_a_dead_worker_had_begun() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).block(10, 1, true).lose(1, &[]).gives("run w1 t10, ended t10");
    world.error_is(10, "main > t10: its worker died while it ran [worker-lost]");
}

#[test]
fn children_of_a_lost_attempt_are_cancelled() {
    let mut world = World::new(3, 3);
    world.submit(retries(t(10), 1)).submit(child(20, 10, 1)).submit(child(30, 20, 2)).submit(child(31, 20, 2));
    world.submit(t(11)).gives("run w1 t10, run w2 t20, run w3 t30");
    world.done(20, 2).gives("ended t20, run w2 t31");
    world.lose(1, &[10]).gives("interrupt w2 t31, interrupt w3 t30, drop o20");
    world.worker(4, 1).gives("run w4 t10#1");
    // What the first attempt still had to say comes to nothing.
    world.submit(child(40, 10, 1)).gives("");
    world.done(30, 3).gives("drop o30, ended t30, run w3 t11");
    assert_eq!(world.kept(), [1, 10, 11, 30, 31], "worker 2 holds what its task submitted");
}

#[test]
fn children_of_what_has_ended_go_on() {
    let mut world = World::new(2, 2);
    world.submit(t(10)).submit(child(20, 10, 1)).done(10, 1).gives("run w1 t10, run w2 t20, ended t10");
    world.fails(20, 0, 2, false).gives("ended t20");
    world.submit(t(11)).submit(child(21, 11, 1)).fails(11, 0, 1, false).gives_of("interrupt", "");
}

#[test]
fn a_lost_node_takes_its_workers_with_it() {
    let mut world = World::new(0, 0);
    world.node(2, of(2, 0, 0)).worker(1, 2).worker(2, 2).submit(t(10)).submit(retries(t(11), 1));
    world.gives("run w1 t10, run w2 t11");
    world.lose_node(2).gives("ended t10, ended t11");
    world.error_is(11, "main > t11: asks for 1 cpus, no node has more than 0 [infeasible]");
    world.lose(1, &[]).node(2, of(1, 0, 0)).worker(3, 2).submit(t(12)).gives("run w3 t12");
}

#[test]
fn a_job_whose_driver_dies_is_over_unless_it_may_be_begun_again() {
    let mut world = World::new(1, 1);
    world
        .submit(t(10))
        .lose(DRIVER, &[1])
        .gives_of("done", "done j1 (main: its worker died while it ran [worker-lost])");
    let mut world = World::new(1, 1);
    world.job(2, LIMITS).submit(retries(first(2, 2), 1)).driver(200, 1, 2).gives("run w200 t2");
    world.lose(200, &[2]).gives("").driver(201, 1, 2).gives("run w201 t2#1");
    world.finish(2, 1, 201, Outcome::Succeeded(vec![(2, vec![])]), 1).gives("ended t2 of j2, done j2, drop o2");
}

#[test]
fn a_child_that_ran_inline_is_as_if_it_had_been_submitted() {
    let mut world = World::new(1, 1);
    world
        .submit(t(10))
        .inline(child(20, 10, 1), 1, Outcome::Succeeded(vec![(20, vec![])]))
        .gives("run w1 t10, ended t20");
    world.want(20, 1, 10).release(20, 1).gives("deliver w1 o20, drop o20");
    world.inline(child(21, 10, 1), 1, failed("no", false)).gives("ended t21");
    world.error_is(21, "main > t10 > t21: no [trap]");
    world.inline(retries(child(22, 10, 1), 1), 1, failed("no", true)).gives("");
    assert_eq!(world.state(22), Some(TaskState::Queued));
    world.inline(child(23, 10, 2), 2, Outcome::Succeeded(vec![(23, vec![])])).gives("drop o23");
    world.inline(child(24, 10, 1), DRIVER, Outcome::Succeeded(vec![(24, vec![])])).gives("drop o24");
}

#[test]
fn a_child_that_began_inline_is_in_its_worker() {
    let mut world = World::new(1, 1);
    world.submit(t(10)).block(10, 1, true).submit(t(11)).gives("run w1 t10, run w1 t11");
    world.begin(child(20, 10, 1), 1).gives("");
    assert_eq!((world.state(20), world.free_cpus(1)), (Some(TaskState::Running), 0));
    world.begin(asks(child(21, 10, 1), of(2, 0, 0)), 1).gives("");
    assert_eq!(world.free_cpus(1), -2, "as where a task goes on");
    world.cancel(10, true).gives("interrupt w1 t10, interrupt w1 t21, interrupt w1 t20");
    world
        .done(21, 1)
        .gives("drop o21, ended t21")
        .fails(20, 0, 1, false)
        .gives("ended t20")
        .lose(1, &[])
        .gives_of("ended", "ended t10");
    // What is not to be begun is ended there.
    world.worker(2, 1).gives("run w2 t11").begin(asks(child(22, 11, 2), of(1, 1, 0)), 2).gives("interrupt w2 t22");
    world.error_is(
        22,
        "main > t11 > t22: was begun where it was submitted, and asks for more than processors [bad-request]",
    );
    world.begin(needs(child(23, 11, 2), &[77]), 2).gives("interrupt w2 t23").done(23, 2).gives("drop o23");
    world.begin(child(24, 11, 1), 1).begin(child(25, 11, 2), DRIVER).gives("");
    assert_eq!((world.state(24), world.state(25)), (None, None));
}

#[test]
fn an_error_names_no_more_tasks_than_is_useful() {
    let mut world = World::empty();
    let limits = JobLimits { depth_max: 300, ..LIMITS };
    world.node(1, of(0, 0, 0)).job(1, limits).driver(DRIVER, 1, 1).submit(first(1, 1));
    (1..200u32).for_each(|id| {
        let worker = if id == 1 { DRIVER } else { DRIVER + id };
        world.worker(DRIVER + id + 1, 1);
        world.submit(asks(child(u64::from(id) + 1, u64::from(id), worker), of(0, 0, 0)));
    });
    world.fails(200, 0, DRIVER + 200, false);
    let chain = world.error(200).chain;
    assert_eq!(
        (chain.len(), chain[0].as_str(), chain[32].as_str(), chain[64].as_str()),
        (65, "main", "(136 more)", "t200")
    );
}
