//! Actors: where they are, in which order they are called, and what becomes of calls when they die.

mod dsl;

use dsl::{DRIVER, World, actor, asks, call, child, first, needs, of, refs, retries, retries_on, t, with_spec};
use sandbar_core::{ActorId, Code, JobId, RetryOn};
use sandbar_sched::ActorState;

/// Job 1, whose first task is 1, an actor 10 in worker 7 of a node with one processor.
fn alive(restarts_max: u32) -> World {
    let mut world = World::new(1, 1);
    world.submit(actor(10, restarts_max)).gives("hire n1");
    world.actor_worker(7, 1).gives("run w7 t10");
    world.done(10, 7).gives("").actor_is(10, Some(ActorState::Alive));
    world
}

#[test]
fn an_actor_is_called_in_the_order_of_its_calls() {
    let mut world = World::new(1, 1);
    world.submit(actor(10, 0)).submit(call(11, 10)).submit(call(12, 10)).gives("hire n1");
    world.actor_is(10, Some(ActorState::Creating));
    world.actor_worker(7, 1).gives("run w7 t10");
    world.done(10, 7).gives("run w7 t11, run w7 t12");
    world.submit(call(13, 10)).gives("run w7 t13");
    world.done(11, 7).gives("ended t11").done(12, 7).gives("ended t12").done(13, 7).gives("ended t13");
    assert_eq!(world.free_cpus(1), 1);
}

#[test]
fn a_call_waits_for_its_objects_and_later_ones_of_its_caller_for_it() {
    let mut world = alive(0);
    world.submit(t(20)).submit(t(30)).gives("run w1 t20");
    world.submit(needs(call(11, 10), &[20])).submit(call(12, 10)).gives("");
    // Another caller's come first.
    world.done(20, 1).gives("run w7 t11, run w7 t12, ended t20, run w1 t30");
    world.submit(child(40, 30, 1)).gives_of("run", "").submit(needs(call(13, 10), &[40])).gives("");
    world.submit(dsl::Submission { parent: child(14, 30, 1).parent, ..call(14, 10) }).gives("run w7 t14");
    world.submit(call(15, 10)).gives("");
    // One that fails is passed over.
    world.cancel(40, false).gives("ended t40, ended t13, run w7 t15");
}

#[test]
fn each_actor_that_asks_for_a_processor_has_a_worker() {
    let mut world = World::new(2, 2);
    world.submit(asks(actor(10, 0), of(1, 0, 0))).gives("hire n1 for t10");
    world.submit_all([11, 12].map(|id| asks(actor(id, 0), of(1, 0, 0)))).gives("");
    world.own_worker(7, 1, 10).gives("run w7 t10, hire n1 for t11").done(10, 7);
    world.own_worker(8, 1, 11).gives("run w8 t11").done(11, 8).gives("");
    assert_eq!(world.free_cpus(1), 0);
    world.kill(10, false).gives("interrupt w7 t10").dies(10, 0, 7).gives("ended t10, hire n1 for t12");
    world.own_worker(9, 1, 12).gives("run w9 t12");
    world.submit(asks(actor(13, 0), of(3, 0, 0))).gives("ended t13");
    world.error_is(13, "main > t13: actor `t13` has died: asks for 3 cpus, no node has more than 2 [actor-died]");
}

#[test]
fn actors_are_spread_over_workers() {
    let mut world = World::new(2, 2);
    world.submit_all([10, 11, 12].map(|id| actor(id, 0))).gives("hire n1");
    world.actor_worker(7, 1).gives("run w7 t10, hire n1, run w7 t11, run w7 t12");
    world.actor_worker(8, 1).submit(actor(13, 0)).gives("run w8 t13").submit(actor(14, 0)).gives("run w8 t14");
}

#[test]
fn calls_fail_with_an_actor_that_is_not_begun_anew() {
    let mut world = alive(0);
    world.submit(call(11, 10)).submit(call(12, 10)).submit(needs(call(13, 10), &[12])).submit(call(14, 10)).somehow();
    world.dies(10, 0, 7).gives_of("ended", "ended t10, ended t14, ended t13, ended t12, ended t11");
    world.error_is(12, "main > t12: actor `t10` has died: it trapped [actor-died]");
    world.submit(call(15, 10)).error_is(15, "main > t15: actor `t10` has died: it trapped [actor-died]");
    world.actor_is(10, Some(ActorState::Dead)).release(10, DRIVER).actor_is(10, None);
}

#[test]
fn an_actor_is_begun_anew_and_calls_that_were_not_begun_with_it() {
    let mut world = alive(1);
    world.submit_all([11, 12, 13].map(|id| call(id, 10))).submit(retries(call(14, 10), 1)).somehow();
    world.done(11, 7).somehow();
    world.actor_worker(8, 1).lose(7, &[12, 14]).gives("ended t12, run w8 t10#1");
    world.error_is(12, "main > t12: the actor died while it was called: its worker died [actor-died]");
    world.actor_is(10, Some(ActorState::Restarting));
    world.finish(10, 1, 8, dsl::failed("x", true), 0).somehow();
    let mut world = alive(2);
    world.submit_all([11, 12].map(|id| call(id, 10))).submit(retries(call(13, 10), 1)).somehow();
    world.dies(10, 0, 7).gives("run w7 t10#1");
    world.submit(call(14, 10)).finish(10, 1, 7, dsl::Outcome::Succeeded(vec![(77, vec![])]), 0);
    world.gives("drop o10=77, run w7 t11, run w7 t12, run w7 t13, run w7 t14");
    world.lose(7, &[13]).gives("hire n1").actor_worker(9, 1).gives("run w9 t10#2");
    world.finish(10, 2, 9, dsl::Outcome::Succeeded(vec![(78, vec![])]), 0);
    world.gives("drop o10=78, run w9 t11, run w9 t12, run w9 t13#1, run w9 t14");
    world.lose(9, &[]).gives_of("ended", "ended t10, ended t14, ended t13, ended t12, ended t11");
}

#[test]
fn an_actor_goes_with_its_last_handle_and_not_before_its_calls() {
    let mut world = alive(5);
    world.submit(call(11, 10)).gives("run w7 t11").release(10, DRIVER).gives("");
    world.done(11, 7).gives("ended t11, interrupt w7 t10, drop o10").dies(10, 0, 7).gives("ended t10");
    world.actor_is(10, None);
    // Within a value it is kept.
    let mut world = alive(0);
    world.put(50, 1, DRIVER, &[10]).release(10, DRIVER).gives("");
    world.release(50, DRIVER).gives("drop o50, interrupt w7 t10, drop o10");
}

#[test]
fn killing_ends_all_calls_or_begins_anew() {
    let mut world = alive(1);
    world.submit(call(11, 10)).somehow().kill(10, true).gives("interrupt w7 t10");
    world.fails(11, 0, 7, true).gives("ended t11").dies(10, 0, 7).gives("run w7 t10#1");
    world.submit(call(12, 10)).gives("").kill(10, false).gives("interrupt w7 t10#1");
    world.dies(10, 1, 7).gives("ended t10, ended t12");
    let gone = "actor `t10` was killed, or nobody referred to it any more";
    world.error_is(12, &format!("main > t12: {gone} [actor-died]"));
}

#[test]
fn a_call_is_taken_back_unless_it_is_begun() {
    let mut world = alive(0);
    world.submit(call(11, 10)).submit(call(12, 10)).somehow();
    world.cancel(12, false).gives("withdraw w7 t12").done(11, 7).gives("ended t11");
    world.fails(12, 0, 7, false).gives("ended t12").error_is(12, "main > t12: it was cancelled [cancelled]");
}

/// The method fails with `trap`, and its actor goes on.
#[test]
fn a_call_is_begun_again_after_the_errors_that_it_says() {
    for (retry_on, again) in
        [(RetryOn::System, false), (RetryOn::All, true), (Code::Trap.into(), true), (Code::Panic.into(), false)]
    {
        let mut world = alive(0);
        world.submit(retries_on(call(11, 10), 1, retry_on)).gives("run w7 t11").fails(11, 0, 7, false);
        world.gives(if again { "run w7 t11#1" } else { "ended t11" });
    }
}

#[test]
fn an_actor_is_begun_anew_with_what_was_saved_last() {
    let mut world = alive(1);
    world.put(50, 10, 7, &[]).saved(10, 0, 7, 50).release(50, 7).gives("");
    world.put(51, 10, 7, &[]).saved(10, 0, 7, 51).release(51, 7).gives("drop o50");
    world.saved(10, 1, 7, 51).saved(10, 0, 8, 51).dies(10, 0, 7).gives("run w7 t10#1");
    assert_eq!(world.steps.actor(ActorId(10)).and_then(|actor| actor.saved), Some(sandbar_core::ObjectId(51)));
    world.dies(10, 1, 7).gives("ended t10, drop o51");
}

#[test]
fn names_are_of_one_actor_and_go_with_it() {
    let mut world = alive(0);
    let named = |id| with_spec(actor(id, 0), |spec| spec.name = Some("a".into()));
    world.submit(named(20)).somehow();
    assert_eq!(world.steps.actor_named(JobId(1), "a"), Some(ActorId(20)));
    world.submit(named(21)).error_is(21, "main > t21: there is an actor `a` already [name-taken]");
    world.done(20, 7).kill(20, false).dies(20, 0, 7).somehow();
    assert_eq!(world.steps.actor_named(JobId(1), "a"), None);
    world.submit(named(22)).somehow().job_ends(1);
    assert!(world.somehow().steps.actor_named(JobId(1), "a").is_none());
}

#[test]
fn a_detached_actor_outlives_its_job_and_is_everybodys() {
    let mut world = alive(0);
    world.job(9, dsl::LIMITS).somehow();
    let spec = |task| {
        with_spec(task, |spec| {
            spec.name = Some("a".into());
            spec.detached = Some(JobId(9));
        })
    };
    world.submit(spec(actor(20, 0))).gives("run w7 t20").done(20, 7).somehow();
    world
        .submit(needs(spec(actor(21, 0)), &[20]))
        .error_is(21, "main > t21: outlives its job, and is made with objects of that: pass values [bad-request]");
    world.job(2, dsl::LIMITS).driver(200, 1, 2).submit(first(2, 2)).somehow();
    assert_eq!(world.steps.actor_named(JobId(2), "a"), Some(ActorId(20)));
    let of_job_2 = |task: dsl::Submission<u64>| dsl::Submission {
        job: JobId(2),
        parent: Some((sandbar_core::TaskId(2), sandbar_core::Attempt(0), sandbar_core::WorkerId(200))),
        ..task
    };
    world.submit(of_job_2(call(30, 20))).gives("run w7 t30");
    world.submit(refs(of_job_2(t(31)), &[20])).gives("run w1 t31");
    // An actor of another job can't be called.
    world.submit(of_job_2(call(32, 10))).error_is(32, "main > t32: actor 10 is of another job [bad-request]");
    world.job_ends(1).somehow().actor_is(20, Some(ActorState::Alive)).actor_is(10, None);
    world.job_ends(2).gives_of("withdraw", "withdraw w7 t30").job_ends(9).somehow().actor_is(20, None);
}

#[test]
fn a_detached_actor_that_ends_leaves_the_tasks_of_its_job_in_place() {
    let mut world = World::new(2, 2);
    let spec = |id| with_spec(actor(id, 0), |spec| spec.detached = Some(JobId(2)));
    world.job(2, dsl::LIMITS).submit(first(2, 2)).driver(200, 1, 2).submit_all([spec(10), spec(11)]).somehow();
    world.actor_worker(9, 1).somehow().done(10, 9).kill(10, false).dies(10, 0, 9).somehow();
    world.job_ends(2).job_ends(1).somehow();
    assert!(world.kept().is_empty() && world.state(2).is_none() && world.state(11).is_none());
}

#[test]
fn no_more_calls_wait_than_may() {
    let mut world = World::new(1, 1);
    world.submit(with_spec(actor(10, 0), |spec| spec.calls_max = 2)).submit_all([11, 12, 13].map(|id| call(id, 10)));
    world.error_is(13, "main > t13: actor 10 has 2 calls that have not ended, as many as it may [pending-calls]");
}

#[test]
fn nothing_is_left_of_an_actor() {
    let mut world = alive(1);
    world.submit(call(11, 10)).submit(needs(call(12, 10), &[11])).somehow().job_ends(1).somehow();
    world.dies(10, 0, 7).lose(DRIVER, &[]).somehow();
    assert!(world.steps.is_empty());
    assert_eq!(world.free_cpus(1), 1);
}
