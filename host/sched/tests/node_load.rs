//! External usage of remote nodes: the tasks that still start there, and those that wait.

mod dsl;

use dsl::*;
use sandbar_core::{GroupStrategy, NodeId, Strategy};

/// Local node 1 with one processor and worker 1. Remote nodes with two processors: node 2 with workers 20 and 21 and
/// proxy worker 22, and node 3 likewise.
fn world() -> World {
    let mut world = World::new(1, 1);
    for node in [2, 3] {
        world
            .remote_node(node, resources(2, 0, 0))
            .worker(10 * node, node)
            .worker(10 * node + 1, node)
            .peer(10 * node + 2, node);
    }
    world.discard_actions();
    world
}

/// External usage of each remote node's two processors, and the expected placement of four tasks.
#[test]
fn tasks_go_to_nodes_that_have_room() {
    for (on_2, on_3, expected) in [
        (0, 0, "run w1 t10, run w20 t11, run w21 t12, run w30 t13"),
        (1, 0, "run w1 t10, run w20 t11, run w30 t12, run w31 t13"),
        (2, 0, "run w1 t10, run w30 t11, run w31 t12"),
        (2, 1, "run w1 t10, run w30 t11"),
        (2, 2, "run w1 t10"),
        (99, u64::MAX / RESOURCE_UNIT, "run w1 t10"),
    ] {
        let mut world = world();
        world.load(2, resources(on_2, 0, 0)).load(3, resources(on_3, 0, 0)).submit_all((10..14).map(t)).emits(expected);
    }
}

#[test]
fn waiting_tasks_go_to_the_first_node_with_room() {
    let full = resources(2, 0, 0);
    let mut world = world();
    world.load(2, full.clone()).load(3, full.clone()).submit_all((10..14).map(t)).emits("run w1 t10");
    world.done(10, 1).emits("finished t10, run w1 t11").load(2, resources(1, 0, 0)).emits("run w20 t12");
    // An equal report changes nothing.
    world.load(2, resources(1, 0, 0)).emits("").load(2, full).emits("").done(12, 20).emits("finished t12");
    world.load(3, resources(0, 0, 0)).emits("run w30 t13");
}

#[test]
fn external_usage_makes_no_request_infeasible() {
    let mut world = world();
    world
        .load(2, resources(2, 0, 0))
        .load(3, resources(1, 0, 0))
        .submit(demanding(t(10), resources(2, 0, 0)))
        .emits("");
    world
        .submit(demanding(actor(11, 0), resources(2, 0, 0)))
        .group(50, GroupStrategy::Pack, &[resources(1, 0, 0)])
        .emits("");
    world.load(3, resources(0, 0, 0)).emits("run w32 t11").load(2, resources(0, 0, 0)).emits("run w20 t10");
}

#[test]
fn loads_of_unknown_resources_and_nodes_are_ignored() {
    let custom = [("tpu".into(), u64::MAX), ("".into(), 1)].into();
    let absurd = ResourceSet { cpus: u64::MAX, gpus: u64::MAX, memory: u64::MAX, custom };
    let mut world = world();
    let tpu = ResourceSet { custom: [("tpu".into(), 1)].into(), ..resources(2, 0, 0) };
    world
        .remote_node(4, tpu.clone())
        .worker(40, 4)
        .load(2, resources(0, 9, 9))
        .load(3, absurd.clone())
        .load(4, absurd.clone());
    // Nodes that are unknown or local.
    world.load(77, absurd.clone()).load(1, absurd).emits("");
    world.submit_all((10..14).map(t)).emits("run w1 t10, run w20 t11, run w21 t12");
    let external_usage: Vec<ResourceSet> = (1..5).map(|node| world.external_usage(node)).collect();
    assert_eq!(external_usage, [resources(0, 0, 0), resources(0, 0, 0), resources(2, 0, 0), tpu]);
}

#[test]
fn a_rejoined_node_has_no_load() {
    let mut world = world();
    world
        .load(2, resources(2, 0, 0))
        .load(3, resources(2, 0, 0))
        .submit(t(10))
        .submit(t(11))
        .emits("run w1 t10")
        .lose_node(2);
    world.remote_node(2, resources(2, 0, 0)).worker(20, 2).emits("run w20 t11");
}

#[test]
fn assigned_tasks_stay_when_a_node_is_overcommitted() {
    let mut world = world();
    world
        .submit_all((10..13).map(t))
        .emits("run w1 t10, run w20 t11, run w21 t12")
        .load(2, resources(2, 0, 0))
        .emits("");
    assert_eq!(world.free_cpus(2), 0);
    // One processor is released, but others use two.
    world
        .load(3, resources(2, 0, 0))
        .submit(t(13))
        .done(11, 20)
        .emits("finished t11")
        .done(12, 21)
        .emits("finished t12");
    world.load(2, resources(1, 0, 0)).emits("run w20 t13");
}

#[test]
fn a_slot_queues_more_tasks_unless_its_task_waits() {
    let mut world = World::empty();
    world
        .remote_node(1, resources(1, 0, 0))
        .worker(1, 1)
        .node(2, resources(1, 0, 0))
        .job(1, LIMITS)
        .driver(DRIVER, 2, 1);
    world.submit(first(1, 1)).submit_all((10..100).map(short)).finish_after(10, 1, 1_000_000).discard_actions();
    let runs = |tasks: std::ops::Range<u64>| tasks.map(|task| format!("run w1 t{task}")).collect::<Vec<_>>().join(", ");
    // The worker has ten tasks, and gets more when most of them have finished.
    (11..17).for_each(|task| _ = world.finish_after(task, 1, 1_000_000));
    world.emits_only("run", &runs(21..27)).load(1, resources(1, 0, 0));
    (17..26).for_each(|task| _ = world.finish_after(task, 1, 1_000_000));
    world
        .emits_only("run", "")
        .load(1, resources(0, 0, 0))
        .emits("")
        .finish_after(26, 1, 1_000_000)
        .emits_only("run", &runs(27..37));
}

#[test]
fn objects_draw_no_tasks_to_where_others_have_taken_all() {
    let mut world = World::with_locations(1, 1);
    world.remote_node(2, resources(1, 0, 0)).worker(2, 2).put(2001, 1, DRIVER, &[]).discard_actions();
    world.submit(needs(t(10), &[2001])).emits("run w2 t10").submit(needs(t(11), &[2001])).emits("");
    world.load(2, resources(1, 0, 0)).emits("run w1 t11");
}

#[test]
fn nothing_is_recalled_for_tasks_without_free_resources() {
    for (external_usage, expected) in [(0, "recall w1"), (1, "")] {
        let mut world = World::empty();
        world
            .remote_node(1, resources(1, 2, 0))
            .worker(1, 1)
            .node(2, resources(0, 0, 0))
            .job(1, LIMITS)
            .driver(DRIVER, 2, 1);
        world
            .submit(first(1, 1))
            .submit_all((10..100).map(short))
            .finish_after(10, 1, 100_000)
            .load(1, resources(0, external_usage, 0));
        world.discard_actions().submit(priority(demanding(t(200), resources(1, 2, 0)), 1)).emits(expected);
    }
}

/// A task requests two GPUs of node 1, with this external usage. Node 1 keeps room for the task only if it could run
/// there.
#[test]
fn room_is_kept_for_tasks_that_fit_beside_external_usage() {
    for (external_usage, expected) in [(0, ""), (1, "run w2 t12")] {
        let mut world = World::empty();
        world.remote_node(1, resources(4, 2, 0)).worker(1, 1).worker(2, 1).node(2, resources(0, 0, 0)).job(1, LIMITS);
        world.driver(DRIVER, 2, 1).submit(first(1, 1)).submit(demanding(t(10), resources(1, 1, 0))).discard_actions();
        world.load(1, resources(0, external_usage, 0)).submit(demanding(t(11), resources(1, 2, 0))).emits("");
        world.submit(demanding(t(12), resources(1, 1 - external_usage, 0))).emits(expected);
    }
}

#[test]
fn actors_go_where_there_is_room() {
    let mut world = world();
    let spread = |id| on(demanding(actor(id, 0), resources(1, 0, 0)), Strategy::Spread);
    world.submit(t(10)).load(2, resources(2, 0, 0)).discard_actions();
    world.submit(spread(11)).emits("run w32 t11").done(11, 32).submit(spread(12)).emits("run w32 t12");
    world
        .submit(demanding(actor(13, 0), resources(1, 0, 0)))
        .emits("")
        .load(2, resources(1, 0, 0))
        .emits("run w22 t13");
    let at_2 = Strategy::Node { node: NodeId(2), soft: false };
    world
        .submit(on(demanding(actor(14, 0), resources(1, 0, 0)), at_2))
        .emits("")
        .load(2, resources(0, 0, 0))
        .emits("run w22 t14");
}
