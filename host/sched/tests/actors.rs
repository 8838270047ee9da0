//! Actors: placement, call order, and the outcome of calls when an actor dies.

mod dsl;

use dsl::{
    DRIVER, World, actor, call, child, demanding, first, needs, refs, resources, retries, retries_on, t, with_spec,
};
use sandbar_core::{ActorId, Code, JobId, RetryOn};
use sandbar_sched::ActorState;

/// Job 1 with root task 1, and actor 10 in worker 7 of a node with one processor.
fn alive(restarts_max: u32) -> World {
    let mut world = World::new(1, 1);
    world.submit(actor(10, restarts_max)).emits("start-worker n1");
    world.actor_worker(7, 1).emits("run w7 t10");
    world.done(10, 7).emits("").actor_is(10, Some(ActorState::Alive));
    world
}

#[test]
fn an_actor_is_called_in_the_order_of_its_calls() {
    let mut world = World::new(1, 1);
    world.submit(actor(10, 0)).submit(call(11, 10)).submit(call(12, 10)).emits("start-worker n1");
    world.actor_is(10, Some(ActorState::Creating));
    world.actor_worker(7, 1).emits("run w7 t10");
    world.done(10, 7).emits("run w7 t11, run w7 t12");
    world.submit(call(13, 10)).emits("run w7 t13");
    world.done(11, 7).emits("finished t11").done(12, 7).emits("finished t12").done(13, 7).emits("finished t13");
    assert_eq!(world.free_cpus(1), 1);
}

#[test]
fn a_call_waits_for_its_objects_and_later_ones_of_its_caller_for_it() {
    let mut world = alive(0);
    world.submit(t(20)).submit(t(30)).emits("run w1 t20");
    world.submit(needs(call(11, 10), &[20])).submit(call(12, 10)).emits("");
    // Calls of another caller do not wait.
    world.done(20, 1).emits("run w7 t11, run w7 t12, finished t20, run w1 t30");
    world.submit(child(40, 30, 1)).emits_only("run", "").submit(needs(call(13, 10), &[40])).emits("");
    world.submit(dsl::Submission { parent: child(14, 30, 1).parent, ..call(14, 10) }).emits("run w7 t14");
    world.submit(call(15, 10)).emits("");
    // A failed call is skipped.
    world.cancel(40, false).emits("finished t40, finished t13, run w7 t15");
}

#[test]
fn each_actor_that_requests_a_processor_has_a_worker() {
    let mut world = World::new(2, 2);
    world.submit(demanding(actor(10, 0), resources(1, 0, 0))).emits("start-worker n1 for t10");
    world.submit_all([11, 12].map(|id| demanding(actor(id, 0), resources(1, 0, 0)))).emits("");
    world.own_worker(7, 1, 10).emits("run w7 t10, start-worker n1 for t11").done(10, 7);
    world.own_worker(8, 1, 11).emits("run w8 t11").done(11, 8).emits("");
    assert_eq!(world.free_cpus(1), 0);
    world.kill(10, false).emits("interrupt w7 t10").dies(10, 0, 7).emits("finished t10, start-worker n1 for t12");
    world.own_worker(9, 1, 12).emits("run w9 t12");
    world.submit(demanding(actor(13, 0), resources(3, 0, 0))).emits("finished t13");
    world.error_is(13, "main > t13: actor `t13` has died: asks for 3 cpus, no node has more than 2 [actor-died]");
}

#[test]
fn actors_are_spread_over_workers() {
    let mut world = World::new(2, 2);
    world.submit_all([10, 11, 12].map(|id| actor(id, 0))).emits("start-worker n1");
    world.actor_worker(7, 1).emits("run w7 t10, start-worker n1, run w7 t11, run w7 t12");
    world.actor_worker(8, 1).submit(actor(13, 0)).emits("run w8 t13").submit(actor(14, 0)).emits("run w8 t14");
}

#[test]
fn calls_fail_with_an_actor_that_is_not_restarted() {
    let mut world = alive(0);
    world
        .submit(call(11, 10))
        .submit(call(12, 10))
        .submit(needs(call(13, 10), &[12]))
        .submit(call(14, 10))
        .discard_actions();
    world.dies(10, 0, 7).emits_only("finished", "finished t10, finished t14, finished t13, finished t12, finished t11");
    world.error_is(12, "main > t12: actor `t10` has died: it trapped [actor-died]");
    world.submit(call(15, 10)).error_is(15, "main > t15: actor `t10` has died: it trapped [actor-died]");
    world.actor_is(10, Some(ActorState::Dead)).release(10, DRIVER).actor_is(10, None);
}

#[test]
fn an_actor_is_restarted_and_calls_that_were_not_started_with_it() {
    let mut world = alive(1);
    world.submit_all([11, 12, 13].map(|id| call(id, 10))).submit(retries(call(14, 10), 1)).discard_actions();
    world.done(11, 7).discard_actions();
    world.actor_worker(8, 1).lose(7, &[12, 14]).emits("finished t12, run w8 t10#1");
    world.error_is(12, "main > t12: the actor died during the call: its worker died [actor-died]");
    world.actor_is(10, Some(ActorState::Restarting));
    world.finish(10, 1, 8, dsl::failed("x", true), 0).discard_actions();
    let mut world = alive(2);
    world.submit_all([11, 12].map(|id| call(id, 10))).submit(retries(call(13, 10), 1)).discard_actions();
    world.dies(10, 0, 7).emits("run w7 t10#1");
    world.submit(call(14, 10)).finish(10, 1, 7, dsl::Outcome::Succeeded(vec![(77, vec![])]), 0);
    world.emits("drop o10=77, run w7 t11, run w7 t12, run w7 t13, run w7 t14");
    world.lose(7, &[13]).emits("start-worker n1").actor_worker(9, 1).emits("run w9 t10#2");
    world.finish(10, 2, 9, dsl::Outcome::Succeeded(vec![(78, vec![])]), 0);
    world.emits("drop o10=78, run w9 t11, run w9 t12, run w9 t13#1, run w9 t14");
    world.lose(9, &[]).emits_only("finished", "finished t10, finished t14, finished t13, finished t12, finished t11");
}

#[test]
fn an_actor_goes_with_its_last_handle_and_not_before_its_calls() {
    let mut world = alive(5);
    world.submit(call(11, 10)).emits("run w7 t11").release(10, DRIVER).emits("");
    world.done(11, 7).emits("finished t11, interrupt w7 t10, drop o10").dies(10, 0, 7).emits("finished t10");
    world.actor_is(10, None);
    // A reference within a value keeps the actor alive.
    let mut world = alive(0);
    world.put(50, 1, DRIVER, &[10]).release(10, DRIVER).emits("");
    world.release(50, DRIVER).emits("drop o50, interrupt w7 t10, drop o10");
}

#[test]
fn killing_ends_all_calls_or_restarts() {
    let mut world = alive(1);
    world.submit(call(11, 10)).discard_actions().kill(10, true).emits("interrupt w7 t10");
    world.fails(11, 0, 7, true).emits("finished t11").dies(10, 0, 7).emits("run w7 t10#1");
    world.submit(call(12, 10)).emits("").kill(10, false).emits("interrupt w7 t10#1");
    world.dies(10, 1, 7).emits("finished t10, finished t12");
    let removed = "actor `t10` was killed, or its last handle was dropped";
    world.error_is(12, &format!("main > t12: {removed} [actor-died]"));
}

#[test]
fn a_call_is_taken_back_unless_it_is_started() {
    let mut world = alive(0);
    world.submit(call(11, 10)).submit(call(12, 10)).discard_actions();
    world.cancel(12, false).emits("withdraw w7 t12").done(11, 7).emits("finished t11");
    world.fails(12, 0, 7, false).emits("finished t12").error_is(12, "main > t12: it was cancelled [cancelled]");
}

/// The method fails with `trap`, and its actor stays alive.
#[test]
fn a_call_is_retried_after_the_errors_in_its_options() {
    for (retry_on, rerun) in
        [(RetryOn::System, false), (RetryOn::All, true), (Code::Trap.into(), true), (Code::Panic.into(), false)]
    {
        let mut world = alive(0);
        world.submit(retries_on(call(11, 10), 1, retry_on)).emits("run w7 t11").fails(11, 0, 7, false);
        world.emits(if rerun { "run w7 t11#1" } else { "finished t11" });
    }
}

#[test]
fn an_actor_restarts_from_its_last_checkpoint() {
    let mut world = alive(1);
    world.put(50, 10, 7, &[]).checkpoint(10, 0, 7, 50).release(50, 7).emits("");
    world.put(51, 10, 7, &[]).checkpoint(10, 0, 7, 51).release(51, 7).emits("drop o50");
    world.checkpoint(10, 1, 7, 51).checkpoint(10, 0, 8, 51).dies(10, 0, 7).emits("run w7 t10#1");
    assert_eq!(world.steps.actor(ActorId(10)).and_then(|actor| actor.checkpoint), Some(sandbar_core::ObjectId(51)));
    world.dies(10, 1, 7).emits("finished t10, drop o51");
}

#[test]
fn names_are_of_one_actor_and_go_with_it() {
    let mut world = alive(0);
    let named = |id| with_spec(actor(id, 0), |spec| spec.name = Some("a".into()));
    world.submit(named(20)).discard_actions();
    assert_eq!(world.steps.actor_named(JobId(1), "a"), Some(ActorId(20)));
    world.submit(named(21)).error_is(21, "main > t21: there is an actor `a` already [name-taken]");
    world.done(20, 7).kill(20, false).dies(20, 0, 7).discard_actions();
    assert_eq!(world.steps.actor_named(JobId(1), "a"), None);
    world.submit(named(22)).discard_actions().job_ends(1);
    assert!(world.discard_actions().steps.actor_named(JobId(1), "a").is_none());
}

#[test]
fn a_detached_actor_outlives_its_job_and_is_its_tenants() {
    let mut world = alive(0);
    world.job(9, dsl::LIMITS).discard_actions();
    let spec = |task| {
        with_spec(task, |spec| {
            spec.name = Some("a".into());
            spec.detached = Some(JobId(9));
        })
    };
    world.submit(spec(actor(20, 0))).emits("run w7 t20").done(20, 7).discard_actions();
    world
        .submit(needs(spec(actor(21, 0)), &[20]))
        .error_is(21, "main > t21: is detached and takes objects of its job: pass values instead [bad-request]");
    world.job(2, dsl::LIMITS).driver(200, 1, 2).submit(first(2, 2)).discard_actions();
    assert_eq!(world.steps.actor_named(JobId(2), "a"), Some(ActorId(20)));
    let of_job_2 =
        |task: dsl::Submission<u64>| dsl::Submission { job: JobId(2), parent: Some(dsl::parent(2, 0, 200)), ..task };
    world.submit(of_job_2(call(30, 20))).emits("run w7 t30");
    world.submit(refs(of_job_2(t(31)), &[20])).emits("run w1 t31");
    // A call of another job's actor is rejected.
    world
        .submit(of_job_2(call(32, 10)))
        .error_is(32, "main > t32: actor 10 does not exist or was removed [actor-died]");
    world.job_ends(1).discard_actions().actor_is(20, Some(ActorState::Alive)).actor_is(10, None);
    world.job_ends(2).emits_only("withdraw", "withdraw w7 t30").job_ends(9).discard_actions().actor_is(20, None);
}

#[test]
fn a_detached_actor_that_ends_leaves_the_tasks_of_its_job_in_place() {
    let mut world = World::new(2, 2);
    let spec = |id| with_spec(actor(id, 0), |spec| spec.detached = Some(JobId(2)));
    world.job(2, dsl::LIMITS).submit(first(2, 2)).driver(200, 1, 2).submit_all([spec(10), spec(11)]).discard_actions();
    world.actor_worker(9, 1).discard_actions().done(10, 9).kill(10, false).dies(10, 0, 9).discard_actions();
    world.job_ends(2).job_ends(1).discard_actions();
    assert!(world.kept().is_empty() && world.state(2).is_none() && world.state(11).is_none());
}

#[test]
fn no_more_calls_wait_than_may() {
    let mut world = World::new(1, 1);
    world.submit(with_spec(actor(10, 0), |spec| spec.calls_max = 2)).submit_all([11, 12, 13].map(|id| call(id, 10)));
    world.error_is(13, "main > t13: actor 10 has 2 unfinished calls, which is its limit [pending-calls]");
}

#[test]
fn nothing_is_left_of_an_actor() {
    let mut world = alive(1);
    world.submit(call(11, 10)).submit(needs(call(12, 10), &[11])).discard_actions().job_ends(1).discard_actions();
    world.dies(10, 0, 7).lose(DRIVER, &[]).discard_actions();
    assert!(world.steps.is_empty());
    assert_eq!(world.free_cpus(1), 1);
}
