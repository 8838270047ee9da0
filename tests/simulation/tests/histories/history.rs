//! A history: what a seed says happens to a cluster, then peace, in which all has to go well, then the end.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use sandbar_simulation::{EPOCH_S, Net, Random, Weather};
use sandbar_wire::Priority;

use crate::command::{Command, From};
use crate::plan::{Event, plan};
use crate::shape::{CALM_MS, Manner, Shape};
use crate::world::{STEP_MS, World};
use crate::{liar, member};

/// Nothing lasts longer.
const LAST_MS: u64 = 300_000;

pub struct History {
    sim: turmoil::Sim<'static>,
    world: World,
    random: Random,
    names: Vec<String>,
}

impl History {
    pub fn new(seed: u64, keeps_lines: bool) -> History {
        let shape = Shape::new(seed);
        let (least_ms, most_ms) = shape.latency_ms;
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(seed)
            .epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_S))
            .simulation_duration(Duration::from_millis(LAST_MS))
            .tick_duration(Duration::from_millis(STEP_MS))
            .min_message_latency(Duration::from_millis(least_ms))
            .max_message_latency(Duration::from_millis(most_ms))
            .udp_capacity(shape.udp_queue)
            .repair_rate(0.05);
        let mut sim = builder.build();
        let names: Vec<String> = (0..shape.hosts()).map(|host| format!("host{host}")).collect();
        let addresses: Vec<IpAddr> = names.iter().map(|name| sim.lookup(name.as_str())).collect();
        let net = Net::new(seed, keeps_lines);
        net.note(format_args!("{shape:?}"));
        let world = World::new(seed, shape, net, addresses);
        for (host, name) in names.iter().enumerate() {
            let world = world.clone();
            let is_liar = Some(host) == world.shape.liar();
            sim.host(name.as_str(), move || {
                let world = world.clone();
                async move {
                    match is_liar {
                        true => liar::run(world, host).await,
                        false => member::run(world, host).await,
                    }
                }
            });
        }
        History { sim, world, random: Random::new(seed, 3), names }
    }

    pub fn net(&self) -> Net {
        self.world.net.clone()
    }

    /// From the beginning to the end. What happened stands in what this gives.
    pub fn run(mut self) -> Net {
        self.chaos();
        self.heal();
        self.peace();
        self.end();
        self.net()
    }

    fn step(&mut self) {
        if let Err(error) = self.sim.step() {
            panic!("{error}");
        }
        self.world.net.set_now_ms(self.sim.elapsed().as_millis() as u64);
        self.world.check();
    }

    /// Steps until it is so.
    fn until(&mut self, what: &str, most_ms: u64, mut is_so: impl FnMut(&mut History) -> bool) {
        let until_ms = self.world.now_ms() + most_ms;
        while !is_so(self) {
            assert!(self.world.now_ms() < until_ms, "after {most_ms} ms not yet: {what}");
            self.step();
        }
    }

    fn chaos(&mut self) {
        let mut events = plan(&self.world.shape, &mut self.random).into_iter().peekable();
        // In a calm history work begins when all are connected.
        let begins_ms = if self.world.shape.is_calm { self.all_connect() } else { 0 };
        while self.world.now_ms() < begins_ms + self.world.shape.chaos_ms {
            while let Some((_, event)) = events.next_if(|(at_ms, _)| begins_ms + at_ms <= self.world.now_ms()) {
                self.happens(event);
            }
            self.step();
        }
    }

    fn happens(&mut self, event: Event) {
        let name = |host: usize| self.names[host].as_str();
        match &event {
            Event::Tell(..) | Event::Broadcast(_) => {}
            event => self.world.note(format_args!("{event:?}")),
        }
        match event {
            Event::Crash(host) => self.crash(host),
            Event::Start(host) => self.start(host),
            Event::Stop(host) => {
                self.world.command(host, Command::Stop);
            }
            Event::Part(a, b) => self.sim.partition(name(a), name(b)),
            Event::PartOneWay(a, b) => self.sim.partition_oneway(name(a), name(b)),
            Event::Repair(a, b) => self.sim.repair(name(a), name(b)),
            Event::Hold(a, b) => self.sim.hold(name(a), name(b)),
            Event::Release(a, b) => self.sim.release(name(a), name(b)),
            Event::Weather(weather) => self.world.net.set_weather(weather),
            Event::Breaks(of_million) => self.sim.set_fail_rate(of_million as f64 / 1e6),
            Event::Tell(host, command) => {
                self.world.note(format_args!("host {host}: {command:?}"));
                self.world.command(host, command);
            }
            Event::Broadcast(number) => self.broadcast(number),
        }
    }

    fn crash(&mut self, host: usize) {
        {
            let state = &mut *self.world.state();
            let seat = &mut state.seats[host];
            (seat.commands, seat.up_ms) = (None, None);
            state.locations.gone(sandbar_core::NodeId(host as u32));
        }
        self.sim.crash(self.names[host].as_str());
    }

    fn start(&mut self, host: usize) {
        if !self.sim.is_host_running(self.names[host].as_str()) {
            self.crash(host);
            self.world.state().seats[host].is_on = true;
            self.sim.bounce(self.names[host].as_str());
        }
    }

    /// One object to all who do not have it, along a tree.
    fn broadcast(&mut self, number: usize) {
        let made = self.world.shape.objects[number].clone();
        let has = |manner: &Option<Manner>| *manner == Some(Manner::Honest);
        for (host, _) in made.at.iter().enumerate().filter(|(_, manner)| has(manner)) {
            self.world.state().locations.has(made.object, sandbar_core::NodeId(host as u32));
        }
        // Who has it in another manner would give that to others.
        for host in (0..self.world.shape.members).filter(|host| made.at[*host].is_none()) {
            let (priority, cancel_ms) = (Priority::Argument, None);
            let command = Command::Fetch {
                object: made.object,
                from: From::Tree,
                priority,
                cancel_ms,
                is_wrongly_announced: false,
                must_succeed: false,
            };
            self.world.note(format_args!("host {host}: {command:?}"));
            self.world.command(host, command);
        }
    }

    /// Nothing is in anybody's way any more, and all live.
    fn heal(&mut self) {
        self.world.net.set_weather(Weather::FAIR);
        self.sim.set_fail_rate(0.0);
        let latency_ms = self.world.shape.latency_ms.0 + CALM_MS;
        self.sim.set_max_message_latency(Duration::from_millis(latency_ms));
        for a in 0..self.names.len() {
            for b in 0..a {
                self.sim.release(self.names[a].as_str(), self.names[b].as_str());
                self.sim.repair(self.names[a].as_str(), self.names[b].as_str());
            }
        }
        if let Some(twin) = self.world.shape.twin() {
            self.crash(twin);
        }
        let now_ms = self.world.now_ms();
        self.world.state().healed_ms = Some(now_ms);
        self.world.note(format_args!("healed"));
        self.all_connect();
        self.until("all that was begun has ended", LAST_MS, |history| history.world.pending() == 0);
        // What ended meanwhile may have been a connection.
        self.all_connect();
    }

    /// Waits until all members are connected with each other, and gives the moment.
    fn all_connect(&mut self) -> u64 {
        let wire = self.world.shape.wire;
        // A connection has to be given up, and one that is being made, before the next is made; and some joined late.
        let most_ms =
            self.world.shape.silence_ms_max(0) + 4 * wire.connect_time_ms_max + 2 * wire.join_time_ms_max + 2_000;
        let mut since_ms = None;
        self.until("all are connected", most_ms, |history| {
            let members = history.world.shape.members;
            let now_ms = history.world.now_ms();
            if now_ms.is_multiple_of(500) {
                for host in 0..members {
                    if history.world.state().healed_ms.is_some() {
                        history.start(host);
                    }
                    history.world.command(host, Command::Redial);
                }
                if let Some(liar) = history.world.shape.liar().filter(|_| history.world.state().healed_ms.is_some()) {
                    history.start(liar);
                }
            }
            let is_pair = |a: usize, b: usize| history.world.are_connected(a, b);
            let are_all = (0..members).all(|a| (0..a).all(|b| is_pair(a, b)));
            since_ms = since_ms.filter(|_| are_all).or(are_all.then_some(now_ms));
            since_ms.is_some_and(|since_ms| now_ms >= since_ms + 300)
        });
        self.world.now_ms()
    }

    /// Now all has to go well.
    fn peace(&mut self) {
        let members = self.world.shape.members;
        for at in 0..members {
            for to in (0..members).filter(|to| *to != at) {
                self.world.command(at, Command::Request { to, bytes: 1_000, must_succeed: true });
            }
        }
        self.quiet();
        let objects = self.world.shape.objects.clone();
        for at in 0..members {
            let made = &objects[self.random.below(objects.len() as u64) as usize];
            let honest = (0..members).find(|peer| *peer != at && made.at[*peer] == Some(Manner::Honest));
            let Some(honest) = honest.filter(|_| made.bytes.len() as u64 <= self.world.shape.admission_bytes) else {
                continue;
            };
            let others = (0..members).filter(|peer| *peer != at && *peer != honest && made.at[*peer].is_some());
            let holders = self.world.shape.liar().into_iter().chain(others).chain([honest]).collect();
            let command = Command::Fetch {
                object: made.object,
                from: From::Holders(holders),
                priority: Priority::Get,
                cancel_ms: None,
                is_wrongly_announced: false,
                must_succeed: true,
            };
            self.world.command(at, command);
            if made.bytes.len() <= 64 << 10 {
                let objects = vec![made.object; 3];
                self.world.command(at, Command::Small { holder: honest, objects, must_succeed: true });
            }
            self.quiet();
        }
        for at in 0..members {
            for to in (0..members).filter(|to| *to != at) {
                // An eighth of them is told or not, by turns.
                for command in [
                    Command::FillStreams { to },
                    Command::Request { to, bytes: 1, must_succeed: true },
                    Command::FillStreams { to },
                ] {
                    self.world.command(at, command);
                    self.quiet();
                }
            }
        }
    }

    fn quiet(&mut self) {
        // It is told in the next step.
        self.step();
        self.until("all that was begun has ended", LAST_MS, |history| history.world.pending() == 0);
    }

    /// All stop, and leave nothing behind.
    fn end(&mut self) {
        (0..self.world.shape.members).for_each(|host| {
            self.world.command(host, Command::Stop);
        });
        self.until("all have stopped", 60_000, |history| {
            (0..history.world.shape.members).all(|host| !history.sim.is_host_running(history.names[host].as_str()))
        });
        assert_eq!(self.world.pending(), 0);
        let reserved: u64 = self.world.state().seats.iter().map(|seat| seat.reserved).sum();
        assert_eq!(reserved, 0, "memory that nobody uses");
    }
}
