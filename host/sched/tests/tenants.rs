//! Tenants: workers of their own, shares, and what one can't do to another.

mod dsl;

use dsl::*;
use sandbar_core::{ActorId, JobId, NodeId, ObjectId, TaskId, TenantId, WorkerId};
use sandbar_sched::DailyAmounts;

/// The drivers of the jobs 1 (tenant 1) and 2 (tenant 2).
const DRIVERS: [u32; 2] = [DRIVER, 200];

/// A node with a job of each of two tenants, and task workers 1 and 2 of tenant 1, 3 and 4 of tenant 2.
fn two_tenants(cpus: u64) -> World {
    start_two_tenants(World::empty(), cpus)
}

fn start_two_tenants(mut world: World, cpus: u64) -> World {
    world.node_with_workers(1, cpus, 2);
    world.running_job_of(1, 1, 1, DRIVERS[0]).running_job_of(2, 2, 2, DRIVERS[1]);
    world.worker_of(1, 1, 1).worker_of(2, 1, 1).worker_of(3, 1, 2).worker_of(4, 1, 2).discard_actions();
    world
}

/// A task of job 2.
fn second(id: u64) -> Submission<u64> {
    Submission { job: JobId(2), parent: Some(parent(2, 0, DRIVERS[1])), ..t(id) }
}

#[test]
fn each_tenant_has_workers_of_its_own() {
    let mut world = World::empty();
    world.node_with_workers(1, 4, 2).running_job_of(1, 1, 1, DRIVERS[0]).running_job_of(2, 2, 2, DRIVERS[1]);
    world.emits("run w100 t1, run w200 t2");
    world.submit(t(10)).emits("start-worker n1 of 1");
    world.submit(second(20)).emits("start-worker n1 of 2");
    // No more than the node permits, and none that is not needed.
    world.submit_all([t(11), t(12), t(13)]).emits("start-worker n1 of 1");
    world.worker_of(3, 1, 2).emits("run w3 t20");
    world.worker_of(1, 1, 1).worker_of(2, 1, 1).emits("run w1 t10, run w2 t11");
    world.done(20, 3).emits("finished t20 of j2");
    assert_eq!(world.free_cpus(1), 2, "the worker of tenant 2 is free, and stays so");
}

#[test]
fn a_lost_worker_is_requested_again_by_need() {
    let mut world = two_tenants(2);
    world.submit(retries(t(10), 1)).emits("run w1 t10");
    world.lose(2, &[]).lose(1, &[10]).emits("start-worker n1 of 1");
    world.worker_of(5, 1, 1).emits("run w5 t10#1");
}

#[test]
fn priority_depth_and_number_count_within_a_tenant() {
    let mut world = two_tenants(1);
    world.submit(t(10)).emits("run w1 t10");
    let urgent = (11..400).map(|id| priority(short(id), i32::MAX));
    world.submit_all(urgent).submit_all([second(520), second(521)]).emits("");
    for (ms, task, worker, next) in [(1, 10, 1, "run w3 t520"), (2, 520, 3, "run w1 t11"), (3, 11, 1, "run w3 t521")] {
        world.at_ms(ms).finish_after(task, worker, 1_000_000).emits_only("run", next);
    }
}

#[test]
fn deep_tasks_do_not_come_before_those_of_others() {
    let mut world = two_tenants(1);
    world.submit(t(10)).submit(second(20)).emits("run w1 t10");
    for (id, parent) in (11..19).zip(10..) {
        world.at_ms(id - 10).submit(child(id, parent, 1)).block(parent, 1, true);
        let last = world.actions_of("run");
        if last.contains(&"run w3 t20".to_owned()) {
            assert_eq!(id, 11, "the first processor that is free goes to the other tenant");
            return;
        }
    }
    panic!("the other tenant never ran");
}

#[test]
fn a_tenant_that_waits_gets_its_share_of_processors_that_others_hold() {
    let mut world = two_tenants(2);
    world.submit_all([t(10), t(11), t(12)]).submit_all([second(20), second(21)]).emits("run w1 t10, run w2 t11");
    world.at_ms(9).emits("");
    world.at_ms(10).emits("run w3 t20");
    // One processor of two is its share.
    world.at_ms(100).at_ms(200).emits("");
    assert_eq!(world.free_cpus(1), -1);
    // The other has more than its share until one of its tasks ends.
    world.done(10, 1).emits("finished t10");
    world.at_ms(300).emits("");
    world.done(20, 3).emits("finished t20 of j2, run w3 t21");
}

#[test]
fn reserved_processors_can_always_be_used() {
    let mut world = two_tenants(2);
    world.share(2, 1, 2).submit_all([t(10), t(11)]).submit_all([second(20), second(21), second(22)]);
    world.emits("run w1 t10, run w2 t11");
    world.at_ms(10).emits("run w3 t20").at_ms(20).emits("run w4 t21").at_ms(30).emits("");
}

#[test]
fn a_root_task_does_not_wait_for_others_to_end() {
    let mut world = two_tenants(1);
    world.submit(t(10)).emits("run w1 t10");
    let root = demanding(first(30, 3), resources(1, 0, 0));
    world.job_of(3, 3).driver(300, 1, 3).submit(root).emits("");
    world.at_ms(20).emits("run w300 t30");
}

#[test]
fn actors_that_hold_all_processors_do_not_keep_others_from_theirs() {
    let mut world = two_tenants(2);
    let hog = |id| demanding(actor(id, 0), resources(1, 0, 0));
    world.submit_all([hog(10), hog(11)]).emits("start-worker n1 for t10");
    world.own_worker(5, 1, 10).emits("run w5 t10, start-worker n1 for t11");
    world.own_worker(6, 1, 11).emits("run w6 t11");
    world.created(10, 5).created(11, 6).discard_actions();
    world.submit(second(20)).emits("").at_ms(15).emits("run w3 t20");
}

#[test]
fn a_worker_that_dies_of_one_task_costs_the_others_no_retry() {
    let mut world = two_tenants(1);
    world.submit(retries(t(10), 1)).block(10, 1, true).submit(retries(t(12), 1)).emits("run w1 t10, run w2 t12");
    world.block(12, 2, true).submit(retries(t(11), 1)).emits("run w1 t11");
    // Task 11 ends its worker in each attempt, task 10 only waits there.
    world.lose_worker_by(1, &[10, 11], 11).emits("run w2 t10#1").block(10, 2, true).emits("run w2 t11#1");
    world.lose_worker_by(2, &[10, 11, 12], 11).discard_actions();
    world.error_is(11, "main > t11: its worker died while it ran, or it failed, in each of 2 attempts [worker-lost]");
    world.worker_of(5, 1, 1).emits("run w5 t10#2").block(10, 5, true).emits("run w5 t12#1").block(12, 5, true);
    // Nobody knows whose fault this is: it counts for both.
    world.lose(5, &[10, 12]).discard_actions().worker_of(6, 1, 1).emits("run w6 t10#3");
    world.block(10, 6, true).emits("run w6 t12#2").block(12, 6, true).lose(6, &[10, 12]).discard_actions();
    world.error_is(10, "main > t10: its worker died while it ran, or it failed, in each of 4 attempts [worker-lost]");
}

/// Jobs of a tenant share workers, and a task may name any number.
#[test]
fn jobs_of_a_tenant_have_objects_of_their_own() {
    let mut world = World::empty();
    world.node_with_workers(1, 4, 1).running_job_of(1, 1, 1, DRIVER).running_job_of(3, 1, 3, 300).worker_of(1, 1, 1);
    let third = Submission { job: JobId(3), parent: Some(parent(3, 0, 300)), ..t(30) };
    world.discard_actions().submit(t(10)).emits("run w1 t10").block(10, 1, true).submit(third).emits("run w1 t30");
    world.put(50, 10, 1, &[]).discard_actions();
    for (task, action) in [(10, "deliver"), (30, "refuse"), (999, "refuse")] {
        world.request(50, 1, task);
        assert_eq!(world.actions_of(action).len(), 1, "{task}");
    }
    let may_use = [10, 999, 30].map(|task| world.steps.may_use(TaskId(task), ObjectId(50)));
    assert_eq!(may_use, [true, false, false]);
}

/// An actor lives in one job, and each call of its methods is of the caller's job.
#[test]
fn methods_use_what_their_actor_has_stored() {
    let mut world = two_tenants(1);
    world.job_of(3, 1);
    world.actor_worker_of(8, 1, 1).submit(with_spec(actor(10, 0), |spec| spec.detached = Some(JobId(3))));
    world.put(50, 10, 8, &[]).discard_actions().created(10, 8).discard_actions();
    world.submit(call(20, 10)).emits("run w8 t20").block(20, 8, true).discard_actions();
    world.request(50, 8, 20).emits("deliver w8 o50");
    world.submit(t(21)).discard_actions();
    for (task, may) in [(20, true), (21, false), (1, false)] {
        assert_eq!(world.steps.may_use(TaskId(task), ObjectId(50)), may, "{task}");
    }
}

#[test]
fn detached_actors_are_of_their_tenant() {
    let mut world = two_tenants(2);
    world.job_of(3, 1).job_of(4, 2);
    let detached = |id, job: u32| {
        with_spec(actor(id, 0), |spec| {
            spec.detached = Some(JobId(job));
            spec.name = Some("store".into());
        })
    };
    world.actor_worker_of(8, 1, 1).submit(detached(10, 3)).discard_actions();
    world.created(10, 8).discard_actions();
    assert_eq!(world.steps.actor_named(JobId(1), "store"), Some(ActorId(10)));
    assert_eq!(world.steps.actor_named(JobId(2), "store"), None);
    // Its number helps nobody: it answers as an actor that never was.
    let call_of_2 = |id, actor| Submission { job: JobId(2), parent: Some(parent(2, 0, DRIVERS[1])), ..call(id, actor) };
    world.submit(call_of_2(20, 10)).error_is(20, "main > t20: actor 10 does not exist or was removed [actor-died]");
    world.submit(call_of_2(21, 99)).error_is(21, "main > t21: actor 99 does not exist or was removed [actor-died]");
    world
        .submit(refs(second(22), &[10]))
        .error_is(22, "main > t22: object 10 does not exist in this job [bad-request]");
    world
        .submit(refs(second(23), &[99]))
        .error_is(23, "main > t23: object 99 does not exist in this job [bad-request]");
    // The name is free for the other tenant.
    let other = Submission { job: JobId(2), parent: Some(parent(2, 0, DRIVERS[1])), ..detached(30, 4) };
    world.submit(other);
    assert_eq!(world.steps.actor_named(JobId(2), "store"), Some(ActorId(30)));
}

fn with_memory(limits: TenantLimits, memory_bytes_max: u64) -> World {
    let mut world = start_two_tenants(World::with_value_bytes(memory_bytes_max), 2);
    world.limit(1, limits);
    world
}

#[test]
fn a_tenant_has_limited_tasks_and_actors() {
    let mut world = with_memory(TenantLimits { tasks_max: 3, actors_max: 1, ..TenantLimits::default() }, u64::MAX);
    world.submit_all([t(10), actor(11, 0)]).submit_all([t(12), second(20), second(21), second(22)]);
    let too_many = "main > t12: its tenant would have 4 unfinished tasks, the limit is 3 (tasks-max): have fewer at once, \
                    or ask the operator [tenant-limit]";
    world.error_is(12, too_many).has_no_error(20).has_no_error(21).has_no_error(22);
    world.discard_actions().done(10, 1).submit(actor(13, 0));
    let too_many = "main > t13: its tenant would have 2 actors, the limit is 1 (actors-max): end some, also those that \
                    outlive their jobs (`host list actors`), or ask the operator [tenant-limit]";
    world.error_is(13, too_many).submit(t(14)).has_no_error(14);
}

/// Jobs that were accepted wait for leases, and can't be told that there is none.
#[test]
fn leases_are_granted_beyond_the_limits_of_tasks() {
    let limits = TenantLimits {
        tasks_max: 0,
        memory_bytes_max: 0,
        daily_max: DailyAmounts::default(),
        ..TenantLimits::default()
    };
    let mut world = start_two_tenants(World::with_value_bytes(u64::MAX), 4);
    world.limit(1, limits);
    world.step(Event::WorkerReady { worker: WorkerId(9), node: NodeId(1), kind: WorkerKind::Leases });
    let lease = Submission { kind: SubmissionKind::Lease, ..Submission::bare(TaskId(30), JobId(1), "call".into(), ()) };
    world.discard_actions().step(Event::LeaseRequested { lease });
    assert_eq!(world.steps.task(TaskId(30)).expect("a task").worker, Some(WorkerId(9)));
}

/// Beyond a budget, tasks fail until the next day. Those that were submitted before run, and other tenants' tasks, and leases.
#[test]
fn budgets_of_a_day_are_limited() {
    let seconds = |seconds: u64| seconds * 1_000_000_000;
    for (max, used, expected) in [
        (
            DailyAmounts { cpu_nanos: seconds(60), ..DailyAmounts::MAX },
            DailyAmounts { cpu_nanos: seconds(61), ..DailyAmounts::default() },
            "used 61 seconds of CPU time on this node today, the limit is 60 (cpu-seconds-per-day-max): wait until 00:00 UTC",
        ),
        (
            DailyAmounts { gpu_nanos: seconds(5), ..DailyAmounts::MAX },
            DailyAmounts { gpu_nanos: seconds(5), ..DailyAmounts::default() },
            "used 5 seconds of GPU time on this node today, the limit is 5 (gpu-seconds-per-day-max)",
        ),
        (
            DailyAmounts { network_bytes: 10, ..DailyAmounts::MAX },
            DailyAmounts { network_bytes: 11, ..DailyAmounts::default() },
            "used 11 bytes from other nodes on this node today, the limit is 10 (network-bytes-per-day-max)",
        ),
        (
            DailyAmounts { log_bytes: 0, ..DailyAmounts::MAX },
            DailyAmounts::default(),
            "used 0 bytes of log lines on this node today, the limit is 0 (log-bytes-per-day-max)",
        ),
    ] {
        let mut world = start_two_tenants(World::with_value_bytes(u64::MAX), 2);
        world.submit(t(10)).discard_actions();
        world.limit(1, TenantLimits { daily_max: max, ..TenantLimits::default() });
        world.step(Event::TenantCharged { tenant: TenantId(1), used }).submit_all([t(11), second(20)]);
        let error = world.error(11).to_string();
        assert!(error.contains(expected) && error.ends_with("[tenant-limit]"), "{error}");
        assert!(world.steps.check_budget(TenantId(1)).is_err() && world.steps.check_budget(TenantId(2)).is_ok());
        world.has_no_error(10).has_no_error(20).discard_actions().done(10, 1).has_no_error(10);
        world.step(Event::DayStarted).submit(t(12));
        if max.log_bytes > 0 {
            world.has_no_error(12);
        }
    }
}

#[test]
fn the_values_of_a_tenant_are_limited() {
    let limits = TenantLimits { memory_bytes_max: 100_000, object_bytes_max: 3 * STORED, ..TenantLimits::default() };
    let mut world = with_memory(limits, u64::MAX);
    let driver = DRIVERS[0];
    world.put(50_000, 1, driver, &[]).has_no_error(50_000);
    world.put(50_001, 1, driver, &[]).put(STORED, 1, driver, &[]).put(STORED + 1, 1, driver, &[]);
    let error = world.error(50_001).to_string();
    assert!(
        error.contains("bytes of the node's memory") && error.contains("limit is 100000 (memory-bytes-max)"),
        "{error}"
    );
    world.has_no_error(STORED + 1).put(STORED + 2, 1, driver, &[]);
    let error = world.error(STORED + 2).to_string();
    assert!(error.contains("would use 3145731 bytes of objects, the limit is 3145728 (object-bytes-max)"), "{error}");
    // A result that finds no room fails its task, and what is released makes room.
    world.submit_all([t(60_000), second(60_001)]).discard_actions().done(60_000, 1).done(60_001, 3);
    assert!(world.error(60_000).to_string().ends_with("[tenant-limit]"));
    world.has_no_error(60_001).release(50_000, driver).put(50_002, 1, driver, &[]).has_no_error(50_002);
}

/// Objects that only carry the error of a limit are limited as well.
#[test]
fn errors_of_limits_take_limited_memory() {
    let limits = JobLimits { objects_max: 1 << 30, ..LIMITS };
    let mut world = World::with_value_bytes(u64::MAX);
    world.node_with_workers(1, 2, 2).limit(1, TenantLimits { memory_bytes_max: 10_000, ..TenantLimits::default() });
    world
        .step(Event::JobStarted { job: JobId(1), tenant: TenantId(1), limits })
        .driver(DRIVER, 1, 1)
        .submit(first(1, 1));
    for object in 0..100_000 {
        world.put(STORED / 2 + object, 1, DRIVER, &[]).discard_actions();
    }
    let objects = world.steps.count_objects(JobId(1));
    assert!((60_000..70_000).contains(&objects), "{objects}");
}

/// The memory for all tenants is full: those above their part of it can't have more, others can.
#[test]
fn a_full_memory_is_shared() {
    let mut world = with_memory(TenantLimits::default(), 1_000_000);
    for object in 60_000..60_017 {
        world.put(object, 1, DRIVERS[0], &[]).has_no_error(object);
    }
    world.put(70_000, 1, DRIVERS[0], &[]).put(70_001, 2, DRIVERS[1], &[]).has_no_error(70_001);
    assert!(world.error(70_000).to_string().ends_with("[tenant-limit]"), "a tenant alone has all");
    world.put(70_002, 1, DRIVERS[0], &[]);
    let error = world.error(70_002).to_string();
    assert!(error.contains("the limit is 500000 (memory-bytes-max)"), "{error}");
}

#[test]
fn submissions_of_a_tenant_wait_before_they_fail() {
    let mut world = with_memory(TenantLimits { memory_bytes_max: 40_000, ..TenantLimits::default() }, u64::MAX);
    let held = |world: &World, are_held: bool| world.steps.held_submissions(|_| are_held).count();
    // A task takes 768 bytes, and 88 of its call. So does the root task.
    for task in 10..32 {
        world.submit(t(task));
    }
    assert_eq!(held(&world, false), 0);
    world.submit(t(32));
    assert_eq!((held(&world, false), held(&world, true)), (1, 1));
    for task in 25..33 {
        world.cancel(task, false);
    }
    assert_eq!((held(&world, false), held(&world, true)), (0, 0));
}
