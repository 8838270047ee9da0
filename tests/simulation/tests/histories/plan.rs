//! What happens in a history, drawn from its seed.

use sandbar_simulation::{Random, Weather};
use sandbar_wire::Priority;

use crate::command::{Command, From};
use crate::shape::{Manner, Shape};

#[derive(Debug, Clone)]
pub enum Event {
    Crash(usize),
    Start(usize),
    /// It stops by itself.
    Stop(usize),
    Part(usize, usize),
    PartOneWay(usize, usize),
    Repair(usize, usize),
    Hold(usize, usize),
    Release(usize, usize),
    Weather(Weather),
    /// Of a million datagrams, how many break a link for a while.
    Breaks(u64),
    Tell(usize, Command),
    /// One object to all.
    Broadcast(usize),
}

/// Events, each with the millisecond that it happens in.
pub fn plan(shape: &Shape, random: &mut Random) -> Vec<(u64, Event)> {
    let count = random.within(6, 26);
    let mut events: Vec<(u64, Event)> = (0..count)
        .map(|_| {
            let at_ms = random.below(shape.chaos_ms);
            let is_of_network = !shape.is_calm && random.chance(2, 5);
            (at_ms, if is_of_network { trouble(shape, random) } else { work(shape, random) })
        })
        .collect();
    for _ in 0..random.below(2) {
        // All at once, for more memory than there is.
        let (at, at_ms) = (random.below(shape.members as u64) as usize, random.below(shape.chaos_ms));
        events.extend((0..random.within(3, 8)).map(|_| (at_ms, Event::Tell(at, fetch(shape, at, random)))));
    }
    if !shape.is_calm {
        events.push((0, Event::Weather(weather(shape, random))));
    }
    // Stable: what is drawn for the same moment stays in its order.
    events.sort_by_key(|(at_ms, _)| *at_ms);
    events
}

fn trouble(shape: &Shape, random: &mut Random) -> Event {
    let a = random.below(shape.hosts() as u64) as usize;
    let b = (a + random.within(1, shape.hosts() as u64 - 1) as usize) % shape.hosts();
    match random.below(14) {
        0 | 1 => Event::Crash(a),
        2 | 3 => Event::Start(a),
        4 => Event::Stop(a),
        5 => Event::Part(a, b),
        6 if !shape.is_punctual => Event::PartOneWay(a, b),
        7 | 8 => Event::Repair(a, b),
        9 if !shape.is_punctual => Event::Hold(a, b),
        10 => Event::Release(a, b),
        11 if !shape.is_punctual => Event::Breaks(random.pick(&[0, 0, 200, 2_000])),
        _ => Event::Weather(weather(shape, random)),
    }
}

fn weather(shape: &Shape, random: &mut Random) -> Weather {
    if random.chance(1, 3) {
        return Weather::FAIR;
    }
    let is_punctual = shape.is_punctual;
    Weather {
        lost: if is_punctual { 0 } else { random.pick(&[0, 20, 100, 500]) },
        doubled: random.pick(&[0, 50, 500]),
        damaged: if is_punctual { 0 } else { random.pick(&[0, 20, 200]) },
        late: random.pick(&[0, 50, 1_000]),
        late_ms_max: if is_punctual { 5 } else { random.pick(&[5, 50, 400]) },
        bytes_max: if is_punctual { 9_000 } else { random.pick(&[1_200, 1_452, 4_000, 9_000]) },
    }
}

fn work(shape: &Shape, random: &mut Random) -> Event {
    let at = random.below(shape.members as u64) as usize;
    let to = (at + random.within(1, shape.members as u64 - 1) as usize) % shape.members;
    let command = match random.below(16) {
        0..6 => fetch(shape, at, random),
        6 | 7 => {
            let objects = shape.objects.iter().filter(|made| made.bytes.len() <= 64 << 10);
            let objects = objects.map(|made| made.object).filter(|_| random.chance(3, 4)).collect();
            let holder = if random.chance(1, 5) { shape.liar().unwrap_or(to) } else { to };
            Command::Small { holder, objects, must_succeed: false }
        }
        8 | 9 => return Event::Broadcast(random.below(shape.objects.len() as u64) as usize),
        10 | 11 => Command::Request { to, bytes: random.below(60_000) as usize, must_succeed: false },
        12 | 13 => Command::Frames { to, count: random.below(30), bytes_max: random.pick(&[1, 100, 3_000]) },
        14 => Command::JoinWrongly { token: random.below(3) as usize },
        _ => Command::Renew,
    };
    Event::Tell(at, command)
}

fn fetch(shape: &Shape, at: usize, random: &mut Random) -> Command {
    let made = &shape.objects[random.below(shape.objects.len() as u64) as usize];
    let is_wrongly_announced = random.chance(1, 12);
    let mut holders: Vec<usize> = (0..shape.members)
        .filter(|peer| *peer != at && made.at[*peer].is_some_and(|m| !is_wrongly_announced || m == Manner::Honest))
        .collect();
    holders.extend(shape.liar().filter(|_| !is_wrongly_announced && random.chance(1, 2)));
    for place in (1..holders.len()).rev() {
        holders.swap(place, random.below(place as u64 + 1) as usize);
    }
    holders.truncate(random.within(1, 4) as usize);
    Command::Fetch {
        object: made.object,
        from: From::Holders(holders),
        priority: random.pick(&[Priority::Prefetch, Priority::Argument, Priority::Get]),
        cancel_ms: random.chance(1, 6).then(|| random.below(400)),
        is_wrongly_announced,
        must_succeed: false,
    }
}
