//! What others use of nodes that are far: what is begun there nevertheless, and what waits for room.

mod dsl;

use dsl::*;
use sandbar_core::{GroupStrategy, NodeId, Strategy};

/// Node 1, near, of one processor with worker 1, and far ones of two processors: node 2 with workers 20 and 21 and its
/// scheduler 22, node 3 likewise.
fn world() -> World {
    let mut world = World::new(1, 1);
    for node in [2, 3] {
        world.far_node(node, of(2, 0, 0)).worker(10 * node, node).worker(10 * node + 1, node).peer(10 * node + 2, node);
    }
    world.somehow();
    world
}

/// What each of two far nodes says that others use of its two processors, and where four tasks go.
#[test]
fn tasks_go_to_nodes_that_have_room() {
    for (on_2, on_3, expected) in [
        (0, 0, "run w1 t10, run w20 t11, run w21 t12, run w30 t13"),
        (1, 0, "run w1 t10, run w20 t11, run w30 t12, run w31 t13"),
        (2, 0, "run w1 t10, run w30 t11, run w31 t12"),
        (2, 1, "run w1 t10, run w30 t11"),
        (2, 2, "run w1 t10"),
        (99, u64::MAX / UNIT, "run w1 t10"),
    ] {
        let mut world = world();
        world.load(2, of(on_2, 0, 0)).load(3, of(on_3, 0, 0)).submit_all((10..14).map(t)).gives(expected);
    }
}

#[test]
fn who_has_room_first_gets_what_waits() {
    let full = of(2, 0, 0);
    let mut world = world();
    world.load(2, full.clone()).load(3, full.clone()).submit_all((10..14).map(t)).gives("run w1 t10");
    world.done(10, 1).gives("ended t10, run w1 t11").load(2, of(1, 0, 0)).gives("run w20 t12");
    // The same again changes nothing.
    world.load(2, of(1, 0, 0)).gives("").load(2, full).gives("").done(12, 20).gives("ended t12");
    world.load(3, of(0, 0, 0)).gives("run w30 t13");
}

#[test]
fn what_others_use_makes_nothing_impossible() {
    let mut world = world();
    world.load(2, of(2, 0, 0)).load(3, of(1, 0, 0)).submit(asks(t(10), of(2, 0, 0))).gives("");
    world.submit(asks(actor(11, 0), of(2, 0, 0))).group(50, GroupStrategy::Pack, &[of(1, 0, 0)]).gives("");
    world.load(3, of(0, 0, 0)).gives("run w32 t11").load(2, of(0, 0, 0)).gives("run w20 t10");
}

#[test]
fn whatever_is_said_of_what_a_node_has_not_or_of_another_does_not_count() {
    let custom = [("tpu".into(), u64::MAX), ("".into(), 1)].into();
    let absurd = Demand { cpus: u64::MAX, gpus: u64::MAX, memory: u64::MAX, custom };
    let mut world = world();
    let tpu = Demand { custom: [("tpu".into(), 1)].into(), ..of(2, 0, 0) };
    world.far_node(4, tpu.clone()).worker(40, 4).load(2, of(0, 9, 9)).load(3, absurd.clone()).load(4, absurd.clone());
    // Those are unknown, and near.
    world.load(77, absurd.clone()).load(1, absurd).gives("");
    world.submit_all((10..14).map(t)).gives("run w1 t10, run w20 t11, run w21 t12");
    let others: Vec<Demand> = (1..5).map(|node| world.others(node)).collect();
    assert_eq!(others, [of(0, 0, 0), of(0, 0, 0), of(2, 0, 0), tpu]);
}

#[test]
fn a_node_that_comes_again_has_said_nothing() {
    let mut world = world();
    world.load(2, of(2, 0, 0)).load(3, of(2, 0, 0)).submit(t(10)).submit(t(11)).gives("run w1 t10").lose_node(2);
    world.far_node(2, of(2, 0, 0)).worker(20, 2).gives("run w20 t11");
}

#[test]
fn what_was_given_stays_when_more_is_used_than_there_is() {
    let mut world = world();
    world.submit_all((10..13).map(t)).gives("run w1 t10, run w20 t11, run w21 t12").load(2, of(2, 0, 0)).gives("");
    assert_eq!(world.free_cpus(2), 0);
    // One processor is given back, and two are used.
    world.load(3, of(2, 0, 0)).submit(t(13)).done(11, 20).gives("ended t11").done(12, 21).gives("ended t12");
    world.load(2, of(1, 0, 0)).gives("run w20 t13");
}

#[test]
fn a_slot_is_given_more_in_advance_unless_its_task_waits_for_others() {
    let mut world = World::empty();
    world.far_node(1, of(1, 0, 0)).worker(1, 1).node(2, of(1, 0, 0)).job(1, LIMITS).driver(DRIVER, 2, 1);
    world.submit(first(1, 1)).submit_all((10..100).map(short)).ran(10, 1, 1_000_000).somehow();
    let runs = |tasks: std::ops::Range<u64>| tasks.map(|task| format!("run w1 t{task}")).collect::<Vec<_>>().join(", ");
    // It has ten, and gets more when most of them have ended.
    (11..17).for_each(|task| _ = world.ran(task, 1, 1_000_000));
    world.gives_of("run", &runs(21..27)).load(1, of(1, 0, 0));
    (17..26).for_each(|task| _ = world.ran(task, 1, 1_000_000));
    world.gives_of("run", "").load(1, of(0, 0, 0)).gives("").ran(26, 1, 1_000_000).gives_of("run", &runs(27..37));
}

#[test]
fn objects_draw_no_tasks_to_where_others_have_taken_all() {
    let mut world = World::lying(1, 1);
    world.far_node(2, of(1, 0, 0)).worker(2, 2).put(2001, 1, DRIVER, &[]).somehow();
    world.submit(needs(t(10), &[2001])).gives("run w2 t10").submit(needs(t(11), &[2001])).gives("");
    world.load(2, of(1, 0, 0)).gives("run w1 t11");
}

#[test]
fn nothing_is_called_back_for_what_has_no_room_beside_others() {
    for (others, expected) in [(0, "recall w1"), (1, "")] {
        let mut world = World::empty();
        world.far_node(1, of(1, 2, 0)).worker(1, 1).node(2, of(0, 0, 0)).job(1, LIMITS).driver(DRIVER, 2, 1);
        world.submit(first(1, 1)).submit_all((10..100).map(short)).ran(10, 1, 100_000).load(1, of(0, others, 0));
        world.somehow().submit(priority(asks(t(200), of(1, 2, 0)), 1)).gives(expected);
    }
}

/// A task for two devices is to run on node 1, of which others use some. Whether room is kept for it there.
#[test]
fn room_is_kept_for_what_could_be_begun_beside_others() {
    for (others, expected) in [(0, ""), (1, "run w2 t12")] {
        let mut world = World::empty();
        world.far_node(1, of(4, 2, 0)).worker(1, 1).worker(2, 1).node(2, of(0, 0, 0)).job(1, LIMITS);
        world.driver(DRIVER, 2, 1).submit(first(1, 1)).submit(asks(t(10), of(1, 1, 0))).somehow();
        world.load(1, of(0, others, 0)).submit(asks(t(11), of(1, 2, 0))).gives("");
        world.submit(asks(t(12), of(1, 1 - others, 0))).gives(expected);
    }
}

#[test]
fn actors_go_where_there_is_room() {
    let mut world = world();
    let spread = |id| on(asks(actor(id, 0), of(1, 0, 0)), Strategy::Spread);
    world.submit(t(10)).load(2, of(2, 0, 0)).somehow();
    world.submit(spread(11)).gives("run w32 t11").done(11, 32).submit(spread(12)).gives("run w32 t12");
    world.submit(asks(actor(13, 0), of(1, 0, 0))).gives("").load(2, of(1, 0, 0)).gives("run w22 t13");
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world.submit(on(asks(actor(14, 0), of(1, 0, 0)), at_2)).gives("").load(2, of(0, 0, 0)).gives("run w22 t14");
}
