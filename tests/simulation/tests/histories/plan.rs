//! The events of a history, drawn from its seed.

use sandbar_simulation::{NetworkFaults, Random};
use sandbar_wire::Priority;

use crate::command::{Command, FetchSources};
use crate::scenario::{HolderBehavior, Scenario};

#[derive(Debug, Clone)]
pub enum Event {
    Crash(usize),
    Start(usize),
    /// The host shuts down cleanly.
    Stop(usize),
    Partition(usize, usize),
    PartitionOneWay(usize, usize),
    Repair(usize, usize),
    Hold(usize, usize),
    Release(usize, usize),
    Faults(NetworkFaults),
    /// Chance out of a million that a datagram breaks its link for a while.
    FailRate(u64),
    Run(usize, Command),
    /// Sends one object to all members.
    Broadcast(usize),
}

/// Draws the events of a history, each with its time in milliseconds.
pub fn plan(scenario: &Scenario, random: &mut Random) -> Vec<(u64, Event)> {
    let count = random.within(6, 26);
    let mut events: Vec<(u64, Event)> = (0..count)
        .map(|_| {
            let at_ms = random.below(scenario.chaos_ms);
            let is_of_network = !scenario.is_calm && random.chance(2, 5);
            (at_ms, if is_of_network { trouble(scenario, random) } else { work(scenario, random) })
        })
        .collect();
    for _ in 0..random.below(2) {
        // Several fetches at once, for more memory than available.
        let (at, at_ms) = (random.below(scenario.members as u64) as usize, random.below(scenario.chaos_ms));
        events.extend((0..random.within(3, 8)).map(|_| (at_ms, Event::Run(at, fetch(scenario, at, random)))));
    }
    if !scenario.is_calm {
        events.push((0, Event::Faults(faults(scenario, random))));
    }
    // A stable sort keeps events of the same time in the order drawn.
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

fn trouble(scenario: &Scenario, random: &mut Random) -> Event {
    let a = random.below(scenario.hosts() as u64) as usize;
    let b = (a + random.within(1, scenario.hosts() as u64 - 1) as usize) % scenario.hosts();
    match random.below(14) {
        0 | 1 => Event::Crash(a),
        2 | 3 => Event::Start(a),
        4 => Event::Stop(a),
        5 => Event::Partition(a, b),
        6 if !scenario.is_punctual => Event::PartitionOneWay(a, b),
        7 | 8 => Event::Repair(a, b),
        9 if !scenario.is_punctual => Event::Hold(a, b),
        10 => Event::Release(a, b),
        11 if !scenario.is_punctual => Event::FailRate(random.pick(&[0, 0, 200, 2_000])),
        _ => Event::Faults(faults(scenario, random)),
    }
}

fn faults(scenario: &Scenario, random: &mut Random) -> NetworkFaults {
    if random.chance(1, 3) {
        return NetworkFaults::NONE;
    }
    let is_punctual = scenario.is_punctual;
    NetworkFaults {
        lost: if is_punctual { 0 } else { random.pick(&[0, 20, 100, 500]) },
        duplicated: random.pick(&[0, 50, 500]),
        damaged: if is_punctual { 0 } else { random.pick(&[0, 20, 200]) },
        late: random.pick(&[0, 50, 1_000]),
        late_ms_max: if is_punctual { 5 } else { random.pick(&[5, 50, 400]) },
        bytes_max: if is_punctual { 9_000 } else { random.pick(&[1_200, 1_452, 4_000, 9_000]) },
    }
}

fn work(scenario: &Scenario, random: &mut Random) -> Event {
    let at = random.below(scenario.members as u64) as usize;
    let to = (at + random.within(1, scenario.members as u64 - 1) as usize) % scenario.members;
    let command = match random.below(16) {
        0..6 => fetch(scenario, at, random),
        6 | 7 => {
            let objects = scenario.objects.iter().filter(|test_object| test_object.bytes.len() <= 64 << 10);
            let objects = objects.map(|test_object| test_object.object).filter(|_| random.chance(3, 4)).collect();
            let holder = if random.chance(1, 5) { scenario.liar().unwrap_or(to) } else { to };
            Command::Small { holder, objects, must_succeed: false }
        }
        8 | 9 => return Event::Broadcast(random.below(scenario.objects.len() as u64) as usize),
        10 | 11 => Command::Request { to, bytes: random.below(60_000) as usize, must_succeed: false },
        12 | 13 => Command::Frames { to, count: random.below(30), bytes_max: random.pick(&[1, 100, 3_000]) },
        14 => Command::JoinWithBadToken { token: random.below(3) as usize },
        _ => Command::Renew,
    };
    Event::Run(at, command)
}

fn fetch(scenario: &Scenario, at: usize, random: &mut Random) -> Command {
    let test_object = &scenario.objects[random.below(scenario.objects.len() as u64) as usize];
    let is_wrongly_announced = random.chance(1, 12);
    let mut holders: Vec<usize> = (0..scenario.members)
        .filter(|peer| {
            *peer != at && test_object.at[*peer].is_some_and(|m| !is_wrongly_announced || m == HolderBehavior::Honest)
        })
        .collect();
    holders.extend(scenario.liar().filter(|_| !is_wrongly_announced && random.chance(1, 2)));
    for place in (1..holders.len()).rev() {
        holders.swap(place, random.below(place as u64 + 1) as usize);
    }
    holders.truncate(random.within(1, 4) as usize);
    Command::Fetch {
        object: test_object.object,
        from: FetchSources::Holders(holders),
        priority: random.pick(&[Priority::Prefetch, Priority::Argument, Priority::Get]),
        cancel_ms: random.chance(1, 6).then(|| random.below(400)),
        is_wrongly_announced,
        must_succeed: false,
    }
}
