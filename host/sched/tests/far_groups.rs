//! Placement groups over nodes that are far: who is asked for room, what comes of the answers, and what is given back.

mod dsl;

use dsl::*;
use sandbar_core::GroupStrategy::{self, Pack, Spread, StrictPack, StrictSpread};
use sandbar_core::{NodeId, Strategy};

/// Job 1 with its driver on node 1, which is near and has `near` processors and workers 10 and 11, and far nodes from 2 on
/// of so many processors each. Node 2 has workers 20 and 21, and its scheduler is 29.
fn world(near: u64, far: &[u64]) -> World {
    let mut world = World::empty();
    world.node(1, of(near, 0, 0)).worker(10, 1).worker(11, 1);
    for (node, cpus) in (2..).zip(far) {
        world.far_node(node, of(*cpus, 0, 0)).worker(10 * node, node).worker(10 * node + 1, node);
        world.peer(10 * node + 9, node);
    }
    world.job(1, LIMITS).driver(DRIVER, 1, 1).submit(first(1, 1)).somehow();
    world
}

fn cpus<const N: usize>(cpus: [u64; N]) -> [Demand; N] {
    cpus.map(|cpus| of(cpus, 0, 0))
}

/// What is free on nodes 1 and on.
fn free(world: &World, nodes: u32) -> Vec<i128> {
    (1..=nodes).map(|node| world.free_cpus(node)).collect()
}

/// Processors of the near node and of far ones, what others use of these, a group of these bundles, and where they lie.
#[test]
fn nodes_that_are_near_come_first_where_that_is_left_open() {
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
    for (strategy, near, far, bundles, expected) in table {
        let mut world = world(*near, &far.iter().map(|(total, _)| *total).collect::<Vec<_>>());
        for (node, (_, others)) in (2..).zip(*far) {
            world.load(node, of(*others, 0, 0));
        }
        let bundles: Vec<Demand> = bundles.iter().map(|cpus| of(*cpus, 0, 0)).collect();
        eprintln!("{strategy:?} {near} {far:?} {bundles:?}");
        world.group(50, *strategy, &bundles).group_is(50, expected);
    }
}

#[test]
fn nodes_that_are_near_come_first_whatever_their_numbers() {
    for (strategy, bundles, expected) in [
        (Pack, &cpus([1, 1])[..], "Created 9 9"),
        (StrictPack, &cpus([2]), "Created 9"),
        (Spread, &cpus([1]), "Created 9"),
        (Spread, &cpus([1, 1]), "Pending (9) (2)"),
        (Pack, &cpus([2, 2]), "Pending (9) (2)"),
    ] {
        let mut world = world(0, &[2, 2]);
        world.node(9, of(2, 0, 0)).group(50, strategy, bundles).group_is(50, expected);
    }
}

#[test]
fn a_group_is_placed_when_all_nodes_have_said_yes() {
    let mut world = world(0, &[2, 2, 2]);
    world.want(50, DRIVER, 1).somehow().group(50, StrictSpread, &cpus([1, 1, 1])).want(50, DRIVER, 1);
    world.gives("set-aside n2 g50 0, set-aside n3 g50 1, set-aside n4 g50 2").submit(within(t(20), 50, None));
    assert_eq!(free(&world, 4), [0, 1, 1, 1], "what was asked for is there for nobody else");
    world.answers(3, 50, 0, true).answers(2, 50, 0, true).gives("").group_is(50, "Pending (2) (3) (4)");
    world.answers(4, 50, 0, true).gives("run w20 t20, deliver w100 o50").group_is(50, "Created 2 3 4");
    // What comes twice, or of nobody, or late, does not count.
    world.answers(4, 50, 0, false).answers(2, 50, 1, false).answers(7, 50, 0, false).answers(2, 77, 0, false).gives("");
    world.group_is(50, "Created 2 3 4").remove_group(50);
    world.gives("give-back n2 g50, give-back n3 g50, give-back n4 g50, interrupt w20 t20");
    world.fails(20, 0, 20, true).gives("ended t20").answers(2, 50, 0, true).gives("");
    assert_eq!(free(&world, 4), [0, 2, 2, 2]);
}

#[test]
fn a_node_has_several_bundles_and_is_asked_once() {
    let mut world = world(0, &[4]);
    world.group(50, StrictPack, &cpus([1, 1, 2])).gives("set-aside n2 g50 0 1 2").answers(2, 50, 0, true);
    world.group_is(50, "Created 2 2 2").gives("").lose_node(2).group_is(50, "Infeasible - - -").gives("");
}

#[test]
fn a_group_that_is_refused_gives_back_what_others_have_set_aside() {
    let mut world = world(1, &[2, 2]);
    world.group(50, StrictSpread, &cpus([1, 2, 2])).gives("set-aside n2 g50 1, set-aside n3 g50 2");
    world.group_is(50, "Pending (1) (2) (3)").answers(2, 50, 0, true).answers(3, 50, 0, false);
    world.gives("give-back n2 g50").group_is(50, "Pending - - -");
    assert_eq!(free(&world, 3), [1, 2, 2]);
    // Node 3 is not asked again before it has said what others use there, whatever happens elsewhere.
    world.submit(t(20)).gives("run w10 t20").done(20, 10).load(2, of(0, 0, 0)).answers(3, 50, 0, true);
    world.node(9, of(1, 0, 0)).gives("ended t20").load(3, of(1, 0, 0)).gives("");
    world.load(3, of(0, 0, 0)).gives("set-aside n2 g50#1 1, set-aside n3 g50#1 2");
    world.answers(3, 50, 0, false).answers(3, 50, 1, true).answers(2, 50, 1, true).gives("");
    world.group_is(50, "Created 1 2 3");
}

#[test]
fn other_nodes_are_tried_at_once() {
    let mut world = world(0, &[2, 2, 2]);
    world.group(50, StrictSpread, &cpus([2, 2])).gives("set-aside n2 g50 0, set-aside n3 g50 1");
    // It may have been about to answer when it was told.
    world.answers(2, 50, 0, false).gives("give-back n3 g50, set-aside n3 g50#1 0, set-aside n4 g50#1 1");
    world.answers(3, 50, 0, true).gives("").group_is(50, "Pending (3) (4)");
    world.answers(4, 50, 1, true).gives("").answers(3, 50, 1, false).gives("give-back n4 g50#1");
    world.group_is(50, "Pending - -").load(3, of(2, 0, 0)).gives("").load(2, of(0, 0, 0));
    world.gives("set-aside n2 g50#2 0, set-aside n4 g50#2 1");
}

#[test]
fn each_group_finds_out_by_itself_who_refuses_it() {
    let mut world = world(0, &[4]);
    world.group(50, Pack, &cpus([3])).group(51, Pack, &cpus([2])).gives("set-aside n2 g50 0");
    world.answers(2, 50, 0, false).gives("set-aside n2 g51 0").answers(2, 51, 0, true).group_is(51, "Created 2");
    world.remove_group(51).gives("give-back n2 g51").group_is(50, "Pending -");
    world.load(2, of(0, 0, 0)).gives("set-aside n2 g50#1 0");
}

#[test]
fn what_a_node_that_has_refused_had_is_not_held_for_the_group() {
    let mut world = world(0, &[2]);
    world.group(50, Pack, &cpus([2])).gives("set-aside n2 g50 0").answers(2, 50, 0, false).gives("");
    world.submit(t(20)).gives("run w20 t20").load(2, of(0, 0, 0)).submit(t(21)).gives("");
    // Nor what others use.
    world.load(2, of(1, 0, 0)).gives("").load(2, of(0, 0, 0)).done(20, 20).gives("ended t20, set-aside n2 g50#1 0");
    world.answers(2, 50, 1, false).gives("run w20 t21");
}

/// A group waits for two processors of node 2, of which a task or others have one: whether the next task waits as well.
#[test]
fn a_node_is_held_for_what_tasks_give_back_and_not_for_what_others_may() {
    for (others, expected) in [(0, ""), (1, "run w21 t21")] {
        let mut world = world(0, &[3]);
        world.submit(asks(t(20), of(1, 0, 0))).load(2, of(others, 0, 0)).group(50, Pack, &cpus([3])).somehow();
        world.submit(t(21)).gives(expected).group_is(50, "Pending -");
    }
}

#[test]
fn a_node_may_be_lost_while_others_are_asked() {
    let mut world = world(1, &[2, 2, 2]);
    world.group(50, StrictSpread, &cpus([1, 2, 2])).gives("set-aside n2 g50 1, set-aside n3 g50 2");
    world.answers(2, 50, 0, true).lose_node(3).gives("give-back n2 g50, set-aside n2 g50#1 1, set-aside n4 g50#1 2");
    // Also one that is near, or has said yes.
    world.node(9, of(1, 0, 0)).answers(2, 50, 1, true).lose_node(2).gives("give-back n4 g50#1, drop o50");
    world.group_is(50, "Infeasible - - -");
    assert_eq!(free(&world, 1), [1]);
    let why = "its 3 bundles don't fit on the nodes there are (3), STRICT_SPREAD";
    world.error_is(50, &format!("main: placement group 0-50 can't be placed: {why} [infeasible]"));
}

#[test]
fn a_node_that_comes_again_is_asked_again() {
    let mut world = world(0, &[2, 2, 2]);
    world.load(4, of(2, 0, 0)).group(50, Pack, &cpus([2, 2])).gives("set-aside n2 g50 0, set-aside n3 g50 1");
    world.answers(2, 50, 0, false).gives("give-back n3 g50").node(9, of(0, 0, 0)).lose_node(2).gives("");
    world.far_node(2, of(2, 0, 0)).gives("set-aside n2 g50#1 0, set-aside n3 g50#1 1");
}

#[test]
fn a_near_node_that_is_lost_ends_the_attempt() {
    let mut world = world(1, &[2]);
    world.node(9, of(2, 0, 0)).node(8, of(2, 0, 0));
    world.group(50, StrictSpread, &cpus([2, 2])).group_is(50, "Created 8 9").remove_group(50);
    world.group(51, StrictSpread, &cpus([2, 2, 2])).gives("set-aside n2 g51 2").group_is(51, "Pending (8) (9) (2)");
    world.node(7, of(2, 0, 0)).lose_node(8).gives("give-back n2 g51, set-aside n2 g51#1 2");
    world.answers(2, 51, 0, true).answers(2, 51, 1, true).group_is(51, "Created 7 9 2");
}

#[test]
fn what_is_removed_or_goes_with_its_job_is_given_back_before_it_was_set_aside() {
    for ends in [World::remove_group as fn(&mut World, u64) -> &mut World, |world: &mut World, _| world.job_ends(1)] {
        let mut world = world(1, &[2, 2, 2]);
        world.group(50, StrictSpread, &cpus([2, 2, 2])).somehow().answers(2, 50, 0, true).answers(4, 50, 0, true);
        ends(&mut world, 50).gives_of("give-back", "give-back n2 g50, give-back n3 g50, give-back n4 g50");
        world.answers(3, 50, 0, true).gives("").load(2, of(0, 0, 0)).gives("");
        assert_eq!(free(&world, 4), [1, 2, 2, 2]);
        world.job_ends(1).done(1, DRIVER).somehow();
        assert!(world.steps.is_empty());
    }
}

#[test]
fn tasks_and_actors_are_in_bundles_that_lie_far() {
    let mut world = world(1, &[4]);
    world.group(50, Pack, &cpus([2, 1])).answers(2, 50, 0, true).somehow();
    world.submit(within(t(20), 50, Some(1))).gives("run w20 t20").bundle_is(20, Some((50, 1)));
    world.submit(within(t(21), 50, None)).gives("run w21 t21").bundle_is(21, Some((50, 0)));
    // No room beside the bundles, and none that others use, is for who is in one.
    world.worker(22, 2).load(2, of(4, 0, 0)).submit(within(t(22), 50, Some(1))).gives("").bundle_is(22, None);
    world.submit(within(asks(actor(30, 0), of(1, 0, 0)), 50, None)).gives("run w29 t30").bundle_is(30, Some((50, 0)));
    world.done(30, 29).gives("").bundle_is(30, Some((50, 0))).submit(call(31, 30)).gives("run w29 t31");
    world.bundle_is(31, None).block(20, 20, true).bundle_is(20, Some((50, 1))).gives("run w22 t22");
    assert_eq!((world.free_cpus(1), world.free_cpus(2)), (1, 1));
    world
        .remove_group(50)
        .gives("give-back n2 g50, interrupt w21 t21, interrupt w29 t30, interrupt w20 t20, interrupt w22 t22");
    for task in [20, 21, 30] {
        world.bundle_is(task, None);
    }
    world.bundle_is(1, None).bundle_is(99, None);
}

#[test]
fn tasks_of_a_bundle_go_in_advance_whatever_others_use() {
    let mut world = world(0, &[1]);
    world.group(50, Pack, &cpus([1])).answers(2, 50, 0, true).load(2, of(1, 0, 0));
    world.submit_all((20..200).map(|id| within(short(id), 50, None))).ran(20, 20, 1_000_000).somehow();
    (21..27).for_each(|task| _ = world.ran(task, 20, 1_000_000));
    let given: Vec<String> = (31..37).map(|task| format!("run w20 t{task}")).collect();
    world.gives_of("run", &given.join(", ")).bundle_is(36, Some((50, 0)));
}

#[test]
fn bundles_of_a_far_node_that_is_lost_are_placed_anew() {
    let mut world = world(1, &[2, 2, 4]);
    world.group(50, StrictSpread, &cpus([1, 2, 2])).answers(2, 50, 0, true).answers(3, 50, 0, true).somehow();
    world.submit(within(retries(t(20), 1), 50, Some(1))).gives("run w20 t20").lose_node(2);
    world.gives("set-aside n4 g50#1 1").group_is(50, "Rescheduling 1 (4) 3");
    // What lies somewhere can be used meanwhile.
    world.submit(within(t(21), 50, Some(2))).gives("run w30 t21").answers(4, 50, 1, true).gives("run w40 t20#1");
    world.group_is(50, "Created 1 4 3").bundle_is(20, Some((50, 1)));
    // What it gives back was set aside at different times.
    world.remove_group(50).gives_of("give-back", "give-back n3 g50, give-back n4 g50#1");
}

#[test]
fn all_that_is_missing_is_placed_at_once() {
    let mut world = world(0, &[1, 1, 1, 1]);
    world.group(50, Spread, &cpus([1, 1, 1])).somehow();
    (2..5).for_each(|node| _ = world.answers(node, 50, 0, true));
    world.group_is(50, "Created 2 3 4").lose_node(2).gives("set-aside n5 g50#1 0").far_node(6, of(1, 0, 0)).gives("");
    // Another node is lost before the first bundle is placed anew.
    world.lose_node(3).gives("give-back n5 g50#1, set-aside n5 g50#2 0, set-aside n6 g50#2 1");
    world.answers(5, 50, 1, true).answers(5, 50, 2, true).group_is(50, "Rescheduling (5) (6) 4");
    world.answers(6, 50, 2, false).gives("give-back n5 g50#2").group_is(50, "Rescheduling - - 4");
    world.far_node(7, of(2, 0, 0)).gives("set-aside n5 g50#3 0, set-aside n7 g50#3 1");
    world.answers(7, 50, 3, true).answers(5, 50, 3, true).group_is(50, "Created 5 7 4");
}

#[test]
fn a_node_may_have_bundles_of_several_attempts() {
    let mut world = world(0, &[2, 1]);
    world.group(50, Spread, &cpus([1, 1])).answers(2, 50, 0, true).answers(3, 50, 0, true).somehow();
    world.lose_node(3).gives("set-aside n2 g50#1 1").answers(2, 50, 1, true).group_is(50, "Created 2 2");
    world.remove_group(50).gives("give-back n2 g50, give-back n2 g50#1");
}

#[test]
fn a_node_that_is_to_go_is_asked_for_nothing() {
    let mut world = world(0, &[2, 2]);
    world.drain_node(2).group(50, Pack, &cpus([1])).gives("set-aside n3 g50 0").answers(3, 50, 0, true);
    world.drain_node(3).group(51, Pack, &cpus([1])).gives("").group_is(50, "Created 3").group_is(51, "Pending -");
}

#[test]
fn what_waits_for_answers_says_so() {
    let mut world = world(0, &[2, 2]);
    world.group(50, StrictSpread, &cpus([2, 2])).answers(2, 50, 0, true).group(51, Pack, &cpus([2]));
    let reasons: Vec<String> = world.steps.unmet().into_iter().map(|unmet| unmet.reason).collect();
    let asked = "STRICT_SPREAD, nodes that were asked for room and have not answered: 1";
    assert_eq!(reasons, [asked, "PACK, 2 cpus, of 2 on the node 0 are free"]);
}

/// Node 2 wants room set aside here, on one of nodes 1 and 3, for job 1: its seat is task 2, in worker 29.
fn asked() -> World {
    let mut world = world(2, &[8]);
    world.node(3, of(3, 0, 0)).worker(30, 3).seat(2, 1, 29).gives("");
    world
}

#[test]
fn room_for_another_scheduler_is_near_or_nowhere() {
    for (strategy, bundles, expected) in [
        (Pack, &cpus([2])[..], "Created 1"),
        (Pack, &cpus([2, 2]), "Created 1 3"),
        (Spread, &cpus([1, 1, 1]), "Created 1 3 1"),
        (Pack, &cpus([4]), "Infeasible -"),
        (StrictPack, &cpus([2, 2]), "Infeasible - -"),
        (StrictSpread, &cpus([1, 1, 1]), "Infeasible - - -"),
    ] {
        asked().near_group(50, (2, 29), strategy, bundles).gives_of("set-aside", "").group_is(50, expected);
    }
    let mut world = asked();
    for (group, strategy, bundles, why) in [
        (50, Pack, &cpus([4])[..], "bundle 0 asks for 4 cpus, no node that is near has more than 3"),
        (51, StrictSpread, &cpus([1, 1, 1]), "it asks for 3 nodes, there are 2 that are near"),
        (52, Pack, &cpus([2, 2, 2]), "its 3 bundles don't fit on the nodes there are (2 that are near), PACK"),
    ] {
        world.near_group(group, (2, 29), strategy, bundles);
        world.error_is(group, &format!("main: placement group 0-{group} can't be placed: {why} [infeasible]"));
    }
}

#[test]
fn who_asks_sees_at_once_whether_there_is_room_and_gives_it_back() {
    let mut world = asked();
    let remove = |world: &mut World, group| {
        let (group, task, worker) = (sandbar_core::GroupId(group), sandbar_core::TaskId(2), sandbar_core::WorkerId(29));
        world.step(Event::GroupRemoved { group, task, worker });
    };
    world.near_group(50, (2, 29), Pack, &cpus([3])).group_is(50, "Created 3");
    world.near_group(51, (2, 29), Pack, &cpus([3])).group_is(51, "Pending -");
    remove(&mut world, 51);
    world.group_is(51, "gone").gives("drop o51").submit(within(child(20, 2, 29), 50, None)).gives("run w30 t20");
    remove(&mut world, 50);
    world.gives("interrupt w30 t20").fails(20, 0, 30, true).gives("ended t20");
    assert_eq!(world.free_cpus(3), 3);
}

#[test]
fn room_for_another_scheduler_goes_with_its_seat() {
    let ends: [fn(&mut World) -> &mut World; 3] = [
        |world| world.cancel(2, true).somehow().fails(2, 0, 29, false),
        |world| world.lose_node(2),
        |world| world.lose(29, &[]),
    ];
    for end in ends {
        let mut world = asked();
        world.near_group(50, (2, 29), Pack, &cpus([3])).near_group(51, (2, 29), Pack, &cpus([3])).group(
            52,
            Pack,
            &cpus([1]),
        );
        world.submit(within(t(20), 50, None)).gives("run w30 t20");
        end(&mut world).gives_of("interrupt", "interrupt w30 t20").group_is(50, "gone").group_is(51, "gone");
        world.group_is(52, "Created 1").fails(20, 0, 30, true).job_ends(1).fails(1, 0, DRIVER, true).somehow();
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
        .gives("set-aside n2 g50 0, run w20 t20");
    world.answers(2, 50, 0, false).gives("run w21 t21");
}
