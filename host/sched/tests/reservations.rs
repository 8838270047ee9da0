//! Placement groups on remote nodes: reservation requests, replies, and releases.

mod dsl;

use dsl::*;
use sandbar_core::GroupStrategy::{self, Pack, Spread, StrictPack, StrictSpread};
use sandbar_core::{NodeId, Strategy};

/// Job 1 with its driver on local node 1, which has `local` processors and workers 10 and 11; remote nodes from 2 on
/// with these numbers of processors. Node 2 has workers 20 and 21 and proxy worker 29.
fn world(local: u64, remote: &[u64]) -> World {
    let mut world = World::empty();
    world.node(1, resources(local, 0, 0)).worker(10, 1).worker(11, 1);
    for (node, cpus) in (2..).zip(remote) {
        world.remote_node(node, resources(*cpus, 0, 0)).worker(10 * node, node).worker(10 * node + 1, node);
        world.peer(10 * node + 9, node);
    }
    world.job(1, LIMITS).driver(DRIVER, 1, 1).submit(first(1, 1)).discard_actions();
    world
}

fn cpus<const N: usize>(cpus: [u64; N]) -> [ResourceSet; N] {
    cpus.map(|cpus| resources(cpus, 0, 0))
}

/// Free processors of nodes 1 to `nodes`.
fn free(world: &World, nodes: u32) -> Vec<i128> {
    (1..=nodes).map(|node| world.free_cpus(node)).collect()
}

/// Processors of the local node; processors and external usage of remote nodes; the bundles; and the expected
/// placement.
#[test]
fn nodes_that_are_local_come_first_where_that_is_left_open() {
    type Row<'a> = (GroupStrategy, u64, &'a [(u64, u64)], &'a [u64], &'a str);
    let table: &[Row<'_>] = &[
        (Pack, 2, &[(9, 0)], &[1, 1], "Created 1 1"),
        (Pack, 2, &[(9, 0)], &[2, 1], "Pending (2) (2)"),
        (Pack, 2, &[(4, 0), (4, 0)], &[2, 2, 2], "Pending (1) (2) (2)"),
        (Pack, 2, &[(4, 1), (4, 0)], &[2, 2, 2], "Pending (1) (3) (3)"),
        (Pack, 0, &[(4, 0), (2, 0)], &[2, 2, 2], "Pending (2) (2) (3)"),
        (Pack, 1, &[(4, 3)], &[2], "Pending -"),
        (Pack, 1, &[(4, 0)], &[5], "Infeasible -"),
        (StrictPack, 2, &[(2, 0)], &[1, 1], "Created 1 1"),
        (StrictPack, 1, &[(2, 0)], &[1, 1], "Pending (2) (2)"),
        (StrictPack, 1, &[(2, 1), (3, 1)], &[1, 1], "Pending (3) (3)"),
        (StrictPack, 2, &[(2, 0)], &[1, 2], "Infeasible - -"),
        (Spread, 4, &[(4, 0)], &[1, 1], "Pending (1) (2)"),
        (Spread, 4, &[(4, 4)], &[1, 1], "Created 1 1"),
        (Spread, 4, &[(4, 0), (4, 0)], &[1], "Created 1"),
        (StrictSpread, 4, &[(4, 0), (4, 0)], &[1, 1, 1], "Pending (1) (2) (3)"),
        (StrictSpread, 1, &[(4, 0), (4, 0)], &[2, 2], "Pending (2) (3)"),
        (StrictSpread, 4, &[(4, 4)], &[1, 1], "Pending - -"),
        (StrictSpread, 4, &[(4, 0)], &[1, 1, 1], "Infeasible - - -"),
    ];
    for (strategy, local, remote, bundles, expected) in table {
        let mut world = world(*local, &remote.iter().map(|(total, _)| *total).collect::<Vec<_>>());
        for (node, (_, external_usage)) in (2..).zip(*remote) {
            world.load(node, resources(*external_usage, 0, 0));
        }
        let bundles: Vec<ResourceSet> = bundles.iter().map(|cpus| resources(*cpus, 0, 0)).collect();
        eprintln!("{strategy:?} {local} {remote:?} {bundles:?}");
        world.group(50, *strategy, &bundles).group_is(50, expected);
    }
}

#[test]
fn nodes_that_are_local_come_first_whatever_their_numbers() {
    for (strategy, bundles, expected) in [
        (Pack, &cpus([1, 1])[..], "Created 9 9"),
        (StrictPack, &cpus([2]), "Created 9"),
        (Spread, &cpus([1]), "Created 9"),
        (Spread, &cpus([1, 1]), "Pending (9) (2)"),
        (Pack, &cpus([2, 2]), "Pending (9) (2)"),
    ] {
        let mut world = world(0, &[2, 2]);
        world.node(9, resources(2, 0, 0)).group(50, strategy, bundles).group_is(50, expected);
    }
}

#[test]
fn a_group_is_placed_when_all_nodes_have_granted() {
    let mut world = world(0, &[2, 2, 2]);
    world.request(50, DRIVER, 1).discard_actions().group(50, StrictSpread, &cpus([1, 1, 1])).request(50, DRIVER, 1);
    world.emits("reserve n2 g50 0, reserve n3 g50 1, reserve n4 g50 2").submit(within(t(20), 50, None));
    assert_eq!(free(&world, 4), [0, 1, 1, 1], "requested resources are reserved");
    world.reserve_reply(3, 50, 0, true).reserve_reply(2, 50, 0, true).emits("").group_is(50, "Pending (2) (3) (4)");
    world.reserve_reply(4, 50, 0, true).emits("run w20 t20, deliver w100 o50").group_is(50, "Created 2 3 4");
    // Repeated, late and unknown replies are ignored.
    world
        .reserve_reply(4, 50, 0, false)
        .reserve_reply(2, 50, 1, false)
        .reserve_reply(7, 50, 0, false)
        .reserve_reply(2, 77, 0, false)
        .emits("");
    world.group_is(50, "Created 2 3 4").remove_group(50);
    world.emits("release n2 g50, release n3 g50, release n4 g50, interrupt w20 t20");
    world.fails(20, 0, 20, true).emits("finished t20").reserve_reply(2, 50, 0, true).emits("");
    assert_eq!(free(&world, 4), [0, 2, 2, 2]);
}

#[test]
fn a_node_gets_one_request_for_several_bundles() {
    let mut world = world(0, &[4]);
    world.group(50, StrictPack, &cpus([1, 1, 2])).emits("reserve n2 g50 0 1 2").reserve_reply(2, 50, 0, true);
    world.group_is(50, "Created 2 2 2").emits("").lose_node(2).group_is(50, "Infeasible - - -").emits("");
}

#[test]
fn a_rejected_group_releases_its_reservations() {
    let mut world = world(1, &[2, 2]);
    world.group(50, StrictSpread, &cpus([1, 2, 2])).emits("reserve n2 g50 1, reserve n3 g50 2");
    world.group_is(50, "Pending (1) (2) (3)").reserve_reply(2, 50, 0, true).reserve_reply(3, 50, 0, false);
    world.emits("release n2 g50").group_is(50, "Pending - - -");
    assert_eq!(free(&world, 3), [1, 2, 2]);
    // The next request to node 3 follows its report of its load, whatever happens on other nodes.
    world.submit(t(20)).emits("run w10 t20").done(20, 10).load(2, resources(0, 0, 0)).reserve_reply(3, 50, 0, true);
    world.node(9, resources(1, 0, 0)).emits("finished t20").load(3, resources(1, 0, 0)).emits("");
    world.load(3, resources(0, 0, 0)).emits("reserve n2 g50#1 1, reserve n3 g50#1 2");
    world.reserve_reply(3, 50, 0, false).reserve_reply(3, 50, 1, true).reserve_reply(2, 50, 1, true).emits("");
    world.group_is(50, "Created 1 2 3");
}

#[test]
fn other_nodes_are_tried_at_once() {
    let mut world = world(0, &[2, 2, 2]);
    world.group(50, StrictSpread, &cpus([2, 2])).emits("reserve n2 g50 0, reserve n3 g50 1");
    // The reply may cross the release.
    world.reserve_reply(2, 50, 0, false).emits("release n3 g50, reserve n3 g50#1 0, reserve n4 g50#1 1");
    world.reserve_reply(3, 50, 0, true).emits("").group_is(50, "Pending (3) (4)");
    world.reserve_reply(4, 50, 1, true).emits("").reserve_reply(3, 50, 1, false).emits("release n4 g50#1");
    world.group_is(50, "Pending - -").load(3, resources(2, 0, 0)).emits("").load(2, resources(0, 0, 0));
    world.emits("reserve n2 g50#2 0, reserve n4 g50#2 1");
}

#[test]
fn each_group_tracks_its_own_refusals() {
    let mut world = world(0, &[4]);
    world.group(50, Pack, &cpus([3])).group(51, Pack, &cpus([2])).emits("reserve n2 g50 0");
    world
        .reserve_reply(2, 50, 0, false)
        .emits("reserve n2 g51 0")
        .reserve_reply(2, 51, 0, true)
        .group_is(51, "Created 2");
    world.remove_group(51).emits("release n2 g51").group_is(50, "Pending -");
    world.load(2, resources(0, 0, 0)).emits("reserve n2 g50#1 0");
}

#[test]
fn resources_of_a_refusing_node_are_not_held() {
    let mut world = world(0, &[2]);
    world.group(50, Pack, &cpus([2])).emits("reserve n2 g50 0").reserve_reply(2, 50, 0, false).emits("");
    world.submit(t(20)).emits("run w20 t20").load(2, resources(0, 0, 0)).submit(t(21)).emits("");
    // External usage does not hold the node either.
    world
        .load(2, resources(1, 0, 0))
        .emits("")
        .load(2, resources(0, 0, 0))
        .done(20, 20)
        .emits("finished t20, reserve n2 g50#1 0");
    world.reserve_reply(2, 50, 1, false).emits("run w20 t21");
}

/// A group waits for the three processors of node 2, one of which is in use by a task or externally; whether the next
/// task waits too.
#[test]
fn a_node_is_held_for_resources_of_tasks_but_not_for_external_usage() {
    for (external_usage, expected) in [(0, ""), (1, "run w21 t21")] {
        let mut world = world(0, &[3]);
        world
            .submit(demanding(t(20), resources(1, 0, 0)))
            .load(2, resources(external_usage, 0, 0))
            .group(50, Pack, &cpus([3]))
            .discard_actions();
        world.submit(t(21)).emits(expected).group_is(50, "Pending -");
    }
}

#[test]
fn a_node_may_be_lost_during_reservation() {
    let mut world = world(1, &[2, 2, 2]);
    world.group(50, StrictSpread, &cpus([1, 2, 2])).emits("reserve n2 g50 1, reserve n3 g50 2");
    world.reserve_reply(2, 50, 0, true).lose_node(3).emits("release n2 g50, reserve n2 g50#1 1, reserve n4 g50#1 2");
    // The same for a node that granted its reservation.
    world.node(9, resources(1, 0, 0)).reserve_reply(2, 50, 1, true).lose_node(2).emits("release n4 g50#1, drop o50");
    world.group_is(50, "Infeasible - - -");
    assert_eq!(free(&world, 1), [1]);
    let why = "its 3 bundles don't fit on 3 nodes, STRICT_SPREAD";
    world.error_is(50, &format!("main: placement group 0-50 can't be placed: {why} [infeasible]"));
}

#[test]
fn a_rejoined_node_is_requested_again() {
    let mut world = world(0, &[2, 2, 2]);
    world.load(4, resources(2, 0, 0)).group(50, Pack, &cpus([2, 2])).emits("reserve n2 g50 0, reserve n3 g50 1");
    world.reserve_reply(2, 50, 0, false).emits("release n3 g50").node(9, resources(0, 0, 0)).lose_node(2).emits("");
    world.remote_node(2, resources(2, 0, 0)).emits("reserve n2 g50#1 0, reserve n3 g50#1 1");
}

#[test]
fn a_local_node_that_is_lost_ends_the_attempt() {
    let mut world = world(1, &[2]);
    world.node(9, resources(2, 0, 0)).node(8, resources(2, 0, 0));
    world.group(50, StrictSpread, &cpus([2, 2])).group_is(50, "Created 8 9").remove_group(50);
    world.group(51, StrictSpread, &cpus([2, 2, 2])).emits("reserve n2 g51 2").group_is(51, "Pending (8) (9) (2)");
    world.node(7, resources(2, 0, 0)).lose_node(8).emits("release n2 g51, reserve n2 g51#1 2");
    world.reserve_reply(2, 51, 0, true).reserve_reply(2, 51, 1, true).group_is(51, "Created 7 9 2");
}

#[test]
fn reservations_of_removed_groups_are_released() {
    for ends in [World::remove_group as fn(&mut World, u64) -> &mut World, |world: &mut World, _| world.job_ends(1)] {
        let mut world = world(1, &[2, 2, 2]);
        world
            .group(50, StrictSpread, &cpus([2, 2, 2]))
            .discard_actions()
            .reserve_reply(2, 50, 0, true)
            .reserve_reply(4, 50, 0, true);
        ends(&mut world, 50).emits_only("release", "release n2 g50, release n3 g50, release n4 g50");
        world.reserve_reply(3, 50, 0, true).emits("").load(2, resources(0, 0, 0)).emits("");
        assert_eq!(free(&world, 4), [1, 2, 2, 2]);
        world.job_ends(1).done(1, DRIVER).discard_actions();
        assert!(world.steps.is_empty());
    }
}

#[test]
fn tasks_and_actors_run_in_remote_bundles() {
    let mut world = world(1, &[4]);
    world.group(50, Pack, &cpus([2, 1])).reserve_reply(2, 50, 0, true).discard_actions();
    world.submit(within(t(20), 50, Some(1))).emits("run w20 t20").bundle_is(20, Some((50, 1)));
    world.submit(within(t(21), 50, None)).emits("run w21 t21").bundle_is(21, Some((50, 0)));
    // A task in a bundle uses neither free resources beside the bundles nor what others use.
    world.worker(22, 2).load(2, resources(4, 0, 0)).submit(within(t(22), 50, Some(1))).emits("").bundle_is(22, None);
    world
        .submit(within(demanding(actor(30, 0), resources(1, 0, 0)), 50, None))
        .emits("run w29 t30")
        .bundle_is(30, Some((50, 0)));
    world.done(30, 29).emits("").bundle_is(30, Some((50, 0))).submit(call(31, 30)).emits("run w29 t31");
    world.bundle_is(31, None).block(20, 20, true).bundle_is(20, Some((50, 1))).emits("run w22 t22");
    assert_eq!((world.free_cpus(1), world.free_cpus(2)), (1, 1));
    world
        .remove_group(50)
        .emits("release n2 g50, interrupt w21 t21, interrupt w29 t30, interrupt w20 t20, interrupt w22 t22");
    for task in [20, 21, 30] {
        world.bundle_is(task, None);
    }
    world.bundle_is(1, None).bundle_is(99, None);
}

#[test]
fn tasks_of_a_bundle_go_in_advance_whatever_others_use() {
    let mut world = world(0, &[1]);
    world.group(50, Pack, &cpus([1])).reserve_reply(2, 50, 0, true).load(2, resources(1, 0, 0));
    world.submit_all((20..200).map(|id| within(short(id), 50, None))).finish_after(20, 20, 1_000_000).discard_actions();
    (21..27).for_each(|task| _ = world.finish_after(task, 20, 1_000_000));
    let assigned: Vec<String> = (31..37).map(|task| format!("run w20 t{task}")).collect();
    world.emits_only("run", &assigned.join(", ")).bundle_is(36, Some((50, 0)));
}

#[test]
fn bundles_of_a_remote_node_that_is_lost_are_placed_again() {
    let mut world = world(1, &[2, 2, 4]);
    world
        .group(50, StrictSpread, &cpus([1, 2, 2]))
        .reserve_reply(2, 50, 0, true)
        .reserve_reply(3, 50, 0, true)
        .discard_actions();
    world.submit(within(retries(t(20), 1), 50, Some(1))).emits("run w20 t20").lose_node(2);
    world.emits("reserve n4 g50#1 1").group_is(50, "Rescheduling 1 (4) 3");
    // Placed bundles remain usable.
    world.submit(within(t(21), 50, Some(2))).emits("run w30 t21").reserve_reply(4, 50, 1, true).emits("run w40 t20#1");
    world.group_is(50, "Created 1 4 3").bundle_is(20, Some((50, 1)));
    // Both reservations are released, each with its own attempt.
    world.remove_group(50).emits_only("release", "release n3 g50, release n4 g50#1");
}

#[test]
fn all_that_is_missing_is_placed_at_once() {
    let mut world = world(0, &[1, 1, 1, 1]);
    world.group(50, Spread, &cpus([1, 1, 1])).discard_actions();
    (2..5).for_each(|node| _ = world.reserve_reply(node, 50, 0, true));
    world
        .group_is(50, "Created 2 3 4")
        .lose_node(2)
        .emits("reserve n5 g50#1 0")
        .remote_node(6, resources(1, 0, 0))
        .emits("");
    // Another node is lost before the first bundle is placed again.
    world.lose_node(3).emits("release n5 g50#1, reserve n5 g50#2 0, reserve n6 g50#2 1");
    world.reserve_reply(5, 50, 1, true).reserve_reply(5, 50, 2, true).group_is(50, "Rescheduling (5) (6) 4");
    world.reserve_reply(6, 50, 2, false).emits("release n5 g50#2").group_is(50, "Rescheduling - - 4");
    world.remote_node(7, resources(2, 0, 0)).emits("reserve n5 g50#3 0, reserve n7 g50#3 1");
    world.reserve_reply(7, 50, 3, true).reserve_reply(5, 50, 3, true).group_is(50, "Created 5 7 4");
}

#[test]
fn a_node_may_have_bundles_of_several_attempts() {
    let mut world = world(0, &[2, 1]);
    world
        .group(50, Spread, &cpus([1, 1]))
        .reserve_reply(2, 50, 0, true)
        .reserve_reply(3, 50, 0, true)
        .discard_actions();
    world.lose_node(3).emits("reserve n2 g50#1 1").reserve_reply(2, 50, 1, true).group_is(50, "Created 2 2");
    world.remove_group(50).emits("release n2 g50, release n2 g50#1");
}

#[test]
fn a_draining_node_gets_no_reservations() {
    let mut world = world(0, &[2, 2]);
    world.drain_node(2).group(50, Pack, &cpus([1])).emits("reserve n3 g50 0").reserve_reply(3, 50, 0, true);
    world.drain_node(3).group(51, Pack, &cpus([1])).emits("").group_is(50, "Created 3").group_is(51, "Pending -");
}

#[test]
fn groups_that_wait_for_replies_are_described() {
    let mut world = world(0, &[2, 2]);
    world.group(50, StrictSpread, &cpus([2, 2])).reserve_reply(2, 50, 0, true).group(51, Pack, &cpus([2]));
    let reasons: Vec<String> = world.steps.unmet_demands().into_iter().map(|unmet| unmet.reason).collect();
    let waiting = "STRICT_SPREAD, nodes without a reply to the reservation request: 1";
    assert_eq!(reasons, [waiting, "PACK, 2 cpus, 0 of 2 on the node are free"]);
}

/// Node 2 requests a group here, on nodes 1 and 3, for job 1. Its proxy task is 2, in worker 29.
fn local_request() -> World {
    let mut world = world(2, &[8]);
    world.node(3, resources(3, 0, 0)).worker(30, 3).proxy_task(2, 1, 29).emits("");
    world
}

#[test]
fn room_for_another_scheduler_is_local_or_nowhere() {
    for (strategy, bundles, expected) in [
        (Pack, &cpus([2])[..], "Created 1"),
        (Pack, &cpus([2, 2]), "Created 1 3"),
        (Spread, &cpus([1, 1, 1]), "Created 1 3 1"),
        (Pack, &cpus([4]), "Infeasible -"),
        (StrictPack, &cpus([2, 2]), "Infeasible - -"),
        (StrictSpread, &cpus([1, 1, 1]), "Infeasible - - -"),
    ] {
        local_request().local_group(50, 2, 29, strategy, bundles).emits_only("reserve", "").group_is(50, expected);
    }
    let mut world = local_request();
    for (group, strategy, bundles, why) in [
        (50, Pack, &cpus([4])[..], "bundle 0 asks for 4 cpus, no local node has more than 3"),
        (51, StrictSpread, &cpus([1, 1, 1]), "it needs 3 nodes, the cluster has 2 local nodes"),
        (52, Pack, &cpus([2, 2, 2]), "its 3 bundles don't fit on 2 local nodes, PACK"),
    ] {
        world.local_group(group, 2, 29, strategy, bundles);
        world.error_is(group, &format!("main: placement group 0-{group} can't be placed: {why} [infeasible]"));
    }
}

#[test]
fn reservations_are_answered_at_once_and_can_be_returned() {
    let mut world = local_request();
    let remove = |world: &mut World, group| {
        let (group, task, worker) = (sandbar_core::GroupId(group), sandbar_core::TaskId(2), sandbar_core::WorkerId(29));
        world.step(Event::GroupRemoved { group, task, worker });
    };
    world.local_group(50, 2, 29, Pack, &cpus([3])).group_is(50, "Created 3");
    world.local_group(51, 2, 29, Pack, &cpus([3])).group_is(51, "Pending -");
    remove(&mut world, 51);
    world.group_is(51, "gone").emits("drop o51").submit(within(child(20, 2, 29), 50, None)).emits("run w30 t20");
    remove(&mut world, 50);
    world.emits("interrupt w30 t20").fails(20, 0, 30, true).emits("finished t20");
    assert_eq!(world.free_cpus(3), 3);
}

#[test]
fn room_for_another_scheduler_goes_with_its_proxy_task() {
    let ends: [fn(&mut World) -> &mut World; 3] = [
        |world| world.cancel(2, true).discard_actions().fails(2, 0, 29, false),
        |world| world.lose_node(2),
        |world| world.lose(29, &[]),
    ];
    for end in ends {
        let mut world = local_request();
        world.local_group(50, 2, 29, Pack, &cpus([3])).local_group(51, 2, 29, Pack, &cpus([3])).group(
            52,
            Pack,
            &cpus([1]),
        );
        world.submit(within(t(20), 50, None)).emits("run w30 t20");
        end(&mut world).emits_only("interrupt", "interrupt w30 t20").group_is(50, "gone").group_is(51, "gone");
        world.group_is(52, "Created 1").fails(20, 0, 30, true).job_ends(1).fails(1, 0, DRIVER, true).discard_actions();
        assert!(world.steps.is_empty());
        assert_eq!((world.free_cpus(1), world.free_cpus(3)), (2, 3));
    }
}

#[test]
fn a_task_may_be_on_a_node_beside_bundles_there() {
    let mut world = world(0, &[2]);
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world
        .group(50, Pack, &cpus([1]))
        .submit(on(t(20), at_2))
        .submit(on(t(21), at_2))
        .emits("reserve n2 g50 0, run w20 t20");
    world.reserve_reply(2, 50, 0, false).emits("run w21 t21");
}
