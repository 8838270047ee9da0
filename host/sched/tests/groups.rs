//! Placement groups: placement, tasks in bundles, and removal. Named after Ray's behaviours.

mod dsl;

use dsl::*;
use sandbar_core::GroupStrategy::{self, Pack, Spread, StrictPack, StrictSpread};
use sandbar_core::{NodeId, Strategy};

/// Job 1 with its driver, on nodes with these numbers of processors. Node 1 has workers 10 and 11, node 2 has 20 and
/// 21, and so on.
fn nodes(cpus: &[u64]) -> World {
    let mut world = World::empty();
    for (node, cpus) in (1..).zip(cpus) {
        world.node(node, resources(*cpus, 0, 0)).worker(10 * node, node).worker(10 * node + 1, node);
    }
    world.job(1, LIMITS).driver(DRIVER, 1, 1).submit(first(1, 1)).discard_actions();
    world
}

fn cpus<const N: usize>(cpus: [u64; N]) -> [ResourceSet; N] {
    cpus.map(|cpus| resources(cpus, 0, 0))
}

/// Processors of the nodes and of the bundles, and the expected placement.
#[test]
fn pack_spread_strict_pack_and_strict_spread_choose_these_nodes() {
    let table: &[(GroupStrategy, &[u64], &[u64], &str)] = &[
        (Pack, &[4, 4], &[2, 2], "Created 1 1"),
        (Pack, &[1, 2, 1], &[1, 1], "Created 2 2"),
        (Pack, &[2, 3, 2], &[2, 2, 1], "Created 1 2 2"),
        (Pack, &[1, 1], &[1, 1], "Created 1 2"),
        (Pack, &[2, 4, 2, 4], &[2, 2, 2, 2, 2], "Created 1 2 2 4 4"),
        (Spread, &[4, 4], &[2, 2], "Created 1 2"),
        (Spread, &[2, 2, 2, 2], &[1, 1, 1, 1], "Created 1 2 3 4"),
        (Spread, &[4, 4], &[1, 1, 1], "Created 1 2 1"),
        (Spread, &[4], &[2, 2], "Created 1 1"),
        (Spread, &[4, 1], &[2, 2], "Created 1 1"),
        (StrictPack, &[1, 1, 2], &[1, 1], "Created 3 3"),
        (StrictPack, &[2, 2], &[2, 1], "Infeasible - -"),
        (StrictPack, &[1, 3, 2, 3], &[1, 1, 1], "Created 2 2 2"),
        (StrictSpread, &[4, 4], &[1, 1], "Created 1 2"),
        (StrictSpread, &[1, 2, 1, 2], &[2, 1, 2, 1], "Created 2 1 4 3"),
        (StrictSpread, &[1, 4], &[2, 1], "Created 2 1"),
        (StrictSpread, &[4], &[1, 1], "Infeasible - -"),
        (StrictSpread, &[1, 4, 1], &[2, 2], "Infeasible - - "),
    ];
    for (strategy, of_nodes, bundles, expected) in table {
        let bundles: Vec<ResourceSet> = bundles.iter().map(|cpus| resources(*cpus, 0, 0)).collect();
        eprintln!("{strategy:?} {of_nodes:?} {bundles:?}");
        nodes(of_nodes).group(50, *strategy, &bundles).group_is(50, expected.trim_end());
    }
}

#[test]
fn a_group_is_placed_as_a_whole_or_not_at_all_and_in_its_turn() {
    let mut world = nodes(&[2]);
    world.submit(t(20)).emits("run w10 t20").request(50, DRIVER, 1);
    world.discard_actions().group(50, Pack, &cpus([1, 1])).group(51, Pack, &cpus([2])).request(50, DRIVER, 1).emits("");
    world.group_is(50, "Pending - -");
    assert_eq!(world.free_cpus(1), 1);
    // Task 21 was submitted later and must not start before the group.
    world.submit(t(21)).emits("").done(20, 10).emits("finished t20, deliver w100 o50").group_is(50, "Created 1 1");
    world.group_is(51, "Pending -");
    assert_eq!(world.free_cpus(1), 0);
    world.remove_group(50).emits("").group_is(50, "gone").group_is(51, "Created 1");
    world.remove_group(51).emits("run w10 t21");
    assert_eq!(world.free_cpus(1), 1);
}

#[test]
fn other_tasks_continue_beside_an_unplaceable_group() {
    let mut world = nodes(&[2]);
    world.group(50, Pack, &cpus([1])).group(51, Pack, &cpus([2])).group_is(51, "Pending -");
    world.submit(t(20)).emits("run w10 t20").group(52, Pack, &cpus([1])).group_is(52, "Pending -");
    world.done(20, 10).emits("finished t20").group_is(52, "Created 1").remove_group(50).group_is(51, "Pending -");
    world.remove_group(52).group_is(51, "Created 1");
}

#[test]
fn tasks_run_in_their_bundle_and_in_no_other_room() {
    let mut world = nodes(&[4]);
    world.group(50, Pack, &cpus([1, 1])).submit(within(t(20), 50, Some(0))).emits("run w10 t20");
    world.submit(within(t(21), 50, Some(0))).emits("").submit(within(t(22), 50, None)).emits("run w11 t22");
    assert_eq!(world.free_cpus(1), 2);
    world.worker(12, 1).emits("").submit(t(23)).emits("run w12 t23");
    world.done(22, 11).emits("finished t22").done(20, 10).emits("finished t20, run w10 t21");
    let bundles = |world: &World| -> Vec<i128> {
        let group = world.steps.groups().next().expect("it is there");
        group
            .bundles
            .iter()
            .filter_map(|bundle| bundle.placed)
            .map(|(_, cpus, _)| cpus / i128::from(RESOURCE_UNIT))
            .collect()
    };
    assert_eq!(bundles(&world), [0, 1]);
    // A blocked task releases its processor to other tasks of its bundle.
    world.submit(within(t(24), 50, Some(0))).block(21, 10, true).emits("run w11 t24");
    world.done(24, 11).discard_actions().block(21, 10, false);
    assert_eq!(bundles(&world), [0, 1]);
}

#[test]
fn many_short_tasks_of_a_bundle_are_queued_in_advance() {
    let mut world = nodes(&[4]);
    world.group(50, Pack, &cpus([1])).submit_all((20..40).map(|id| within(short(id), 50, None))).emits("run w10 t20");
    world
        .finish_after(20, 10, 100_000)
        .emits("finished t20, run w10 t21, run w10 t22, run w10 t23, run w10 t24, run w10 t25");
}

#[test]
fn tasks_wait_for_their_group_and_fail_with_it() {
    let mut world = nodes(&[2]);
    world.group(50, Pack, &cpus([2])).group(51, Pack, &cpus([2])).submit(within(t(20), 51, None)).emits("");
    world.remove_group(50).emits("run w10 t20");
    world.group(52, Pack, &cpus([1])).submit(within(t(21), 52, None)).request(52, DRIVER, 1).emits("");
    world.remove_group(52).emits("drop o52, finished t21, deliver w100 o52");
    let removed = "placement group 0-52 was removed [group-removed]";
    world.error_is(52, &format!("main: {removed}")).error_is(21, &format!("main: {removed}"));
}

#[test]
fn removal_of_a_group_ends_its_tasks_and_those_waiting_for_it() {
    let mut world = nodes(&[2]);
    world.group(50, Pack, &cpus([1, 1]));
    world.submit_all(
        (20..23)
            .map(|id| within(retries_on(t(id), 3, RetryOn::All), 50, None))
            .chain([needs(within(t(23), 50, None), &[20])]),
    );
    world.emits("run w10 t20, run w11 t21").remove_group(50);
    world.emits("interrupt w10 t20, interrupt w11 t21, finished t22").group_is(50, "gone");
    assert_eq!(world.free_cpus(1), 0, "what runs there takes it of the node from here on");
    let removed_text = "placement group 0-50 was removed [group-removed]";
    world.error_is(22, &format!("main > t22: {removed_text}"));
    world
        .fails(20, 0, 10, true)
        .emits("finished t20, finished t23")
        .error_is(20, &format!("main > t20: {removed_text}"));
    // The late result does not count.
    world.done(21, 11).emits("drop o21, finished t21").error_is(21, &format!("main > t21: {removed_text}"));
    assert_eq!(world.free_cpus(1), 2);
    let removed_text = "placement group 0-50 does not exist or was removed [group-removed]";
    world.submit(within(t(24), 50, None)).error_is(24, &format!("main > t24: {removed_text}"));
}

#[test]
fn an_actor_goes_with_its_group() {
    let mut world = nodes(&[2]);
    world.group(50, Pack, &[resources(1, 0, 0)]).actor_worker(7, 1);
    let small = |id| {
        within(demanding(actor(id, 5), ResourceSet { cpus: RESOURCE_UNIT / 2, ..ResourceSet::default() }), 50, Some(0))
    };
    world
        .submit_all([20, 21, 22].map(small))
        .emits("run w7 t20, start-worker n1, run w7 t21")
        .done(20, 7)
        .done(21, 7)
        .discard_actions();
    world.submit(call(30, 20)).emits("run w7 t30").remove_group(50);
    world.emits("interrupt w7 t20, interrupt w7 t21, finished t22").fails(30, 0, 7, true).dies(20, 0, 7);
    world.emits("finished t30, finished t20");
    let removed_text = "has died: placement group 0-50 was removed [actor-died]";
    world.submit(call(31, 20)).error_is(31, &format!("main > t31: actor `t20` {removed_text}"));
    world.dies(21, 0, 7).discard_actions();
    assert_eq!(world.free_cpus(1), 2);
}

#[test]
fn an_actor_of_a_processor_gets_a_worker_of_its_own_where_its_bundle_is() {
    let mut world = nodes(&[1, 2]);
    world
        .group(50, Pack, &cpus([2]))
        .submit(within(demanding(actor(20, 0), resources(2, 0, 0)), 50, None))
        .emits("start-worker n2 for t20");
    world.own_worker(7, 2, 20).emits("run w7 t20").done(20, 7).emits("");
    assert_eq!(world.free_cpus(2), 0);
    world.lose(7, &[]).emits("finished t20");
}

#[test]
fn invalid_requests_are_rejected() {
    let mut world = nodes(&[2, 1]);
    world.group(50, Pack, &[resources(1, 0, 0), resources(2, 0, 0)]).discard_actions();
    for (id, task, message) in [
        (20, within(t(20), 50, Some(2)), "placement group 0-50 has no bundle 2: it has 2, from 0 on [bad-request]"),
        (
            21,
            within(demanding(t(21), resources(2, 0, 0)), 50, Some(0)),
            "asks for 2 cpus, bundle 0 of placement group 0-50 has no more than 1 [infeasible]",
        ),
        (
            22,
            within(demanding(t(22), resources(1, 1, 0)), 50, None),
            "asks for 1 gpus, no bundle of placement group 0-50 has more than 0 [infeasible]",
        ),
        (23, within(t(23), 51, None), "placement group 0-51 does not exist or was removed [group-removed]"),
        (
            24,
            on(t(24), Strategy::Node { node: NodeId(7), soft: false }),
            "requires node 7, which is not in the cluster [infeasible]",
        ),
        (
            25,
            demanding(on(t(25), Strategy::Node { node: NodeId(2), soft: false }), resources(2, 0, 0)),
            "asks for 2 cpus, node 2 has no more than 1 [infeasible]",
        ),
    ] {
        world.submit(task).error_is(id, &format!("main > t{id}: {message}"));
    }
    for (id, strategy, bundles, message) in [
        (60, Pack, vec![], "a placement group of 0 bundles: it has from 1 to 100 [bad-request]"),
        (
            61,
            Pack,
            vec![resources(1, 0, 0); 101],
            "a placement group of 101 bundles: it has from 1 to 100 [bad-request]",
        ),
        (
            62,
            Pack,
            vec![resources(1, 0, 0), resources(0, 0, 0)],
            "bundle 1 of a placement group requests no resources [bad-request]",
        ),
    ] {
        world
            .discard_actions()
            .group(id, strategy, &bundles)
            .emits(&format!("drop o{id}"))
            .error_is(id, &format!("main: {message}"));
    }
}

#[test]
fn an_infeasible_group_names_the_missing_resources() {
    for (strategy, bundles, message) in [
        (Pack, cpus([1, 3]), "can't be placed: bundle 1 asks for 3 cpus, no node has more than 2"),
        (
            StrictPack,
            cpus([1, 2]),
            "can't be placed: its bundles together, on one node, ask for 3 cpus, no node has more than 2",
        ),
        (Pack, cpus([2, 2]), "can't be placed: its 2 bundles don't fit on 2 nodes, PACK"),
    ] {
        let mut world = nodes(&[1, 2]);
        world.group(50, strategy, &bundles).error_is(50, &format!("main: placement group 0-50 {message} [infeasible]"));
        world
            .submit(within(t(20), 50, None))
            .error_is(20, &format!("main > t20: placement group 0-50 {message} [infeasible]"));
    }
    let mut world = nodes(&[1, 2]);
    let message = "can't be placed: it needs 3 nodes, the cluster has 2 nodes";
    world
        .group(50, StrictSpread, &cpus([1, 1, 1]))
        .error_is(50, &format!("main: placement group 0-50 {message} [infeasible]"));
}

#[test]
fn no_more_groups_than_a_job_may_have() {
    let mut world = nodes(&[1]);
    for id in 50..60 {
        world.group(id, Pack, &cpus([1]));
    }
    world.group(60, Pack, &cpus([1]));
    world.error_is(60, "main: its job would have 11 placement groups at once, its limit is 10 [task-limit]");
    world.remove_group(55).group(61, Pack, &cpus([1])).group_is(61, "Pending -");
}

#[test]
fn bundles_of_a_lost_node_are_placed_again() {
    let mut world = nodes(&[1, 2, 2]);
    world
        .group(50, StrictSpread, &[resources(2, 0, 0), resources(2, 0, 0)])
        .group_is(50, "Created 2 3")
        .discard_actions();
    world.submit(within(retries(t(20), 1), 50, Some(0))).submit(within(t(21), 50, Some(1)));
    world.emits("run w20 t20, run w30 t21").node(4, resources(2, 0, 0)).worker(40, 4).lose_node(2);
    world.emits("run w40 t20#1").group_is(50, "Created 4 3");
    world.done(21, 30).emits("finished t21");
    world.lose_node(3).group_is(50, "Infeasible - -").emits("interrupt w40 t20#1");
    let missing = "placement group 0-50 can't be placed: its 2 bundles don't fit on 2 nodes, STRICT_SPREAD";
    world.fails(20, 1, 40, true).emits("finished t20").error_is(20, &format!("main > t20: {missing} [infeasible]"));
}

#[test]
fn a_group_waits_for_room_for_bundles_that_it_lost() {
    let mut world = nodes(&[1, 2, 2]);
    world
        .submit(demanding(on(t(20), Strategy::Node { node: NodeId(3), soft: false }), resources(2, 0, 0)))
        .emits("run w30 t20");
    world.group(50, Pack, &cpus([2])).group_is(50, "Created 2").lose_node(2).group_is(50, "Rescheduling -");
    world
        .submit(within(t(21), 50, None))
        .emits("")
        .done(20, 30)
        .emits("finished t20, run w30 t21")
        .group_is(50, "Created 3");
}

#[test]
fn groups_go_with_their_job() {
    let mut world = nodes(&[4]);
    world.group(50, Pack, &cpus([2])).group(51, Pack, &cpus([3])).submit(within(t(20), 50, None)).emits("run w10 t20");
    world.job_ends(1).discard_actions();
    assert_eq!((world.free_cpus(1), world.steps.groups().count()), (3, 0));
    world.done(20, 10).lose(DRIVER, &[]).discard_actions();
    assert_eq!(world.free_cpus(1), 4);
    assert!(world.steps.is_empty());
}

#[test]
fn only_tasks_of_its_job_use_and_remove_a_group() {
    let mut world = nodes(&[4]);
    world.group(50, Pack, &cpus([2])).job(2, LIMITS).driver(200, 1, 2).submit(first(2, 2)).discard_actions();
    let of_job_2 = |task: Submission<u64>| Submission { job: sandbar_core::JobId(2), ..task };
    world.submit(of_job_2(within(child(20, 2, 200), 50, None)));
    world.error_is(20, "main > t20: placement group 0-50 does not exist or was removed [group-removed]");
    let (group, task, worker) = (sandbar_core::GroupId(50), sandbar_core::TaskId(2), sandbar_core::WorkerId(200));
    world.step(Event::GroupRemoved { group, task, worker }).group_is(50, "Created 1");
}

#[test]
fn spread_tasks_go_to_the_node_with_the_fewest() {
    let mut world = nodes(&[2, 2, 2]);
    let spread = |id| on(t(id), Strategy::Spread);
    world.submit_all([20, 21, 22, 23].map(spread)).emits("run w10 t20, run w20 t21, run w30 t22, run w11 t23");
    world.submit(t(24)).emits("run w21 t24");
}

#[test]
fn a_task_for_a_node_waits_for_it() {
    let mut world = nodes(&[1, 1]);
    let hard = |id| on(t(id), Strategy::Node { node: NodeId(2), soft: false });
    let soft = |id, node| on(t(id), Strategy::Node { node: NodeId(node), soft: true });
    world.submit(hard(20)).submit(hard(21)).submit(soft(22, 2)).emits("run w20 t20");
    world.submit(soft(23, 7)).emits("run w10 t23").done(20, 20).emits("finished t20, run w20 t21");
    world.node(3, resources(1, 0, 0)).worker(30, 3).emits("").lose_node(2).emits_only("run", "run w30 t22");
}
