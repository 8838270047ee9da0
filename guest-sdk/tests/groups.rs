//! Placement groups on the in-process test host, where resources are unlimited.

use sandbar_guest::prelude::*;
use sandbar_guest::{Code, NodeId, Strategy, testing};

#[task]
fn double(n: i64) -> i64 {
    2 * n
}

/// Runs a task in the given group.
#[task]
fn within(group: PlacementGroup, n: i64) -> Result<i64, TaskError> {
    group.ready()?;
    double::options().placement_any(&group).submit(n).get()
}

struct Counter(i64);

#[actor]
impl Counter {
    pub fn new(n: i64) -> Counter {
        Counter(n)
    }

    pub fn value(&self) -> i64 {
        self.0
    }
}

#[test]
fn tasks_and_actors_are_placed() {
    let bundles = [Bundle::cpus(1.0), Bundle::default().gpus(0.5).memory(100).resource("tpu", 1.0)];
    let group = PlacementGroup::named("train", bundles, GroupStrategy::Pack);
    assert_eq!(group.ready(), Ok(()));
    assert_eq!(double::options().placement(&group, 1).submit(4).get(), Ok(8));
    assert_eq!(within::submit(group.clone(), 5).get(), Ok(10));
    let counter = Counter::options().placement(&group, 0).submit(7);
    assert_eq!(counter.value().get(), Ok(7));
    let node = Strategy::Node { node: NodeId(1), soft: true };
    assert_eq!(double::options().strategy(node).submit(1).get(), Ok(2));
    drop((group, counter));
    assert_eq!(testing::objects(), 0);
}

#[test]
fn nothing_is_placed_where_no_group_is() {
    let group = PlacementGroup::new([Bundle::cpus(1.0)], GroupStrategy::StrictSpread);
    let code = |result: Result<i64, TaskError>| result.map_err(|error| error.fault.code);
    assert_eq!(code(double::options().placement(&group, 1).submit(4).get()), Err(Code::BadRequest));
    group.remove();
    assert_eq!(code(double::options().placement_any(&group).submit(4).get()), Err(Code::GroupRemoved));
    let counter = Counter::options().placement(&group, 0).submit(7);
    assert_eq!(counter.ready().map_err(|error| error.fault.code), Err(Code::GroupRemoved));
}

#[test]
#[should_panic = "a placement group of 0 bundles: it has from 1 to 100"]
fn a_group_has_bundles() {
    drop(PlacementGroup::new([], GroupStrategy::Spread));
}
