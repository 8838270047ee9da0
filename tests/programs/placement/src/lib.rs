//! Programs that reserve resources and choose their placement.

use std::hint::black_box;
use std::time::Duration;

use sandbar_guest::prelude::*;
use sandbar_guest::{Code, NodeId, Strategy, log};

/// Computes for `steps` steps.
#[task]
fn spins(steps: u64) -> u64 {
    (0..steps).fold(1, |sum, step| black_box(sum ^ step).rotate_left(1))
}

/// A flag that other tasks set.
struct Sign {
    up: bool,
}

#[actor]
impl Sign {
    pub fn new() -> Sign {
        Sign { up: false }
    }

    pub fn raise(&mut self) {
        self.up = true;
    }

    pub fn is_up(&self) -> bool {
        self.up
    }
}

/// Sets the flag, and never returns.
#[task]
fn stays(sign: SignHandle) -> Result<u64, TaskError> {
    sign.raise().get()?;
    loop {
        black_box(1);
    }
}

/// Waits until the flag is set.
fn until_up(sign: &SignHandle) -> Result<(), TaskError> {
    while !sign.is_up().get()? {}
    Ok(())
}

/// Runs two tasks, each in a bundle of its own, or both in a bundle with one CPU.
#[task]
fn beside(bundles: u32, steps: u64) -> Result<u64, TaskError> {
    let group = PlacementGroup::new((0..bundles).map(|_| Bundle::cpus(1.0)), GroupStrategy::Pack);
    let both: Vec<_> = (0..2).map(|at| spins::options().placement(&group, at % bundles).submit(steps)).collect();
    get_all(&both).map(|both| both.len() as u64)
}

/// Creates a group that waits until another is removed, with a task that waits for it.
#[task]
fn takes_turns(cpus: f64, wait_ms: u64) -> Result<String, TaskError> {
    let all = || [Bundle::cpus(cpus)];
    let first = PlacementGroup::named("first", all(), GroupStrategy::StrictPack);
    first.ready()?;
    let second = PlacementGroup::named("second", all(), GroupStrategy::StrictPack);
    let task = spins::options().cpus(cpus).placement_any(&second).submit(1);
    let (there, _) = wait(&[second.object().clone()], 1, Some(Duration::from_millis(wait_ms)));
    first.remove();
    second.ready()?;
    task.get()?;
    let inside = spins::options().placement_any(&first).submit(1).get();
    let code = inside.expect_err("it is not there any more").fault.code.as_str();
    Ok(format!("{} before, then {code}", there.len()))
}

/// Removes a group: its task and its actor end, and others get its resources.
#[task]
fn removes(cpus: f64) -> Result<String, TaskError> {
    let group = PlacementGroup::new([Bundle::cpus(cpus), Bundle::default().memory(1 << 20)], GroupStrategy::Pack);
    let sign = Sign::submit();
    let task = stays::options().cpus(cpus).max_retries(5).placement(&group, 0).submit(&sign);
    let inside = Sign::options().memory(1 << 20).max_restarts(5).placement(&group, 1).submit();
    inside.raise().get()?;
    until_up(&sign)?;
    group.remove();
    let ended = [task.get().map(|_| ()), inside.is_up().get().map(|_| ())];
    let message = ended.map(|ended| ended.expect_err("it ends with its group").to_string());
    spins::options().cpus(cpus).submit(1).get()?;
    Ok(message.join("; "))
}

/// Asks for a group that no node can hold.
#[task]
fn is_infeasible(cpus: f64, strategy: String) -> Result<(), TaskError> {
    let strategy = match strategy.as_str() {
        "spread" => GroupStrategy::StrictSpread,
        _ => GroupStrategy::StrictPack,
    };
    PlacementGroup::named("wish", [Bundle::cpus(cpus), Bundle::cpus(cpus)], strategy).ready()
}

/// Runs tasks that request a custom resource.
#[task]
fn licensed(amount: f64, tasks: u64, steps: u64) -> Result<u64, TaskError> {
    let all: Vec<_> =
        (0..tasks).map(|_| spins::options().resource("license", amount).cpus(0.1).submit(steps)).collect();
    get_all(&all).map(|all| all.len() as u64)
}

/// Runs tasks with the spread strategy, or on a given node.
#[task]
fn is_on_node(node: u32, soft: bool) -> Result<u64, TaskError> {
    let all = [Strategy::Spread, Strategy::Node { node: NodeId(node), soft }];
    let all = all.map(|strategy| spins::options().strategy(strategy).submit(1));
    get_all(&all).map(|all| all.len() as u64)
}

/// Holds groups for inspection.
#[task]
fn holds(cpus: f64) -> Result<u64, TaskError> {
    let group = PlacementGroup::named("train", [Bundle::cpus(cpus)], GroupStrategy::Pack);
    let _waits = PlacementGroup::new([Bundle::cpus(cpus), Bundle::default().memory(1 << 20)], GroupStrategy::Spread);
    let sign = Sign::submit();
    let task = stays::options().cpus(1.0).placement(&group, 0).submit(&sign);
    until_up(&sign)?;
    log::info!("it holds");
    task.get()
}

/// Checks that a bundle that does not exist, and a task larger than its bundle, are rejected.
#[task]
fn requests_wrongly() -> String {
    let group = PlacementGroup::new([Bundle::cpus(1.0)], GroupStrategy::Spread);
    let beyond = spins::options().placement(&group, 1).submit(1).get();
    let too_much = spins::options().cpus(2.0).placement(&group, 0).submit(1).get();
    let codes = [beyond, too_much].map(|result| result.map_err(|error| error.fault.code));
    assert_eq!(codes, [Err(Code::BadRequest), Err(Code::Infeasible)]);
    "refused".to_owned()
}

/// Asks for an empty group.
#[task]
fn requests_nothing() -> Result<(), TaskError> {
    PlacementGroup::new([], GroupStrategy::Pack).ready()
}

/// Runs tasks on nodes that provide the resource `name`, and returns the sum of their results.
#[task]
fn needs(name: String, tasks: u64, steps: u64) -> Result<u64, TaskError> {
    let all: Vec<_> = (0..tasks).map(|_| counts::options().resource(&name, 1.0).submit(steps)).collect();
    get_all(&all).map(|all| all.iter().sum())
}

/// Computes for `steps` steps, and returns 1.
#[task]
fn counts(steps: u64) -> u64 {
    black_box(spins(steps));
    1
}

/// Creates groups with a bundle on each of three nodes, `rounds` times, with a task and an actor in each bundle.
/// Returns their number.
#[task]
fn over_nodes(rounds: u32) -> Result<u64, TaskError> {
    let mut completed = 0;
    for _ in 0..rounds {
        let group = PlacementGroup::new((1..=3).map(of_node), GroupStrategy::StrictSpread);
        let mut tasks = Vec::new();
        let mut signs = Vec::new();
        for place in 0..3 {
            let name = format!("node{}", place + 1);
            let inside = counts::options().cpus(0.0).resource(&name, 5.0).placement(&group, place);
            tasks.push(inside.submit(1000));
            signs.push(Sign::options().resource(&name, 1.0).placement(&group, place).submit());
        }
        group.ready()?;
        for sign in &signs {
            sign.raise().get()?;
            completed += u64::from(sign.is_up().get()?);
        }
        completed += get_all(&tasks)?.iter().sum::<u64>();
        // Tasks and actors in the group end with it.
        group.remove();
        let ended = signs[1].is_up().get().expect_err("it ends with its group");
        assert_eq!(ended.fault.code, Code::ActorDied, "{ended}");
    }
    Ok(completed)
}

/// More than half of the resource that only this node provides: two such bundles don't fit there.
fn of_node(number: u32) -> Bundle {
    Bundle::default().resource(format!("node{number}"), 6.0)
}
