//! A history: events that a seed determines, then a healthy phase in which everything must succeed, then shutdown.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use sandbar_simulation::{EPOCH_S, Net, NetworkFaults, Random};
use sandbar_wire::Priority;

use crate::command::{Command, FetchSources};
use crate::plan::{Event, plan};
use crate::scenario::{CALM_MS, HolderBehavior, Scenario};
use crate::world::{STEP_MS, World};
use crate::{liar, member};

/// Maximum duration of a history, in milliseconds.
const LAST_MS: u64 = 300_000;

pub struct History {
    sim: turmoil::Sim<'static>,
    world: World,
    random: Random,
    names: Vec<String>,
}

impl History {
    pub fn new(seed: u64, keeps_lines: bool) -> History {
        let scenario = Scenario::new(seed);
        let (min_ms, max_ms) = scenario.latency_ms;
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(seed)
            .epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_S))
            .simulation_duration(Duration::from_millis(LAST_MS))
            .tick_duration(Duration::from_millis(STEP_MS))
            .min_message_latency(Duration::from_millis(min_ms))
            .max_message_latency(Duration::from_millis(max_ms))
            .udp_capacity(scenario.udp_queue)
            .repair_rate(0.05);
        let mut sim = builder.build();
        let names: Vec<String> = (0..scenario.hosts()).map(|host| format!("host{host}")).collect();
        let addresses: Vec<IpAddr> = names.iter().map(|name| sim.lookup(name.as_str())).collect();
        let net = Net::new(seed, keeps_lines);
        net.note(format_args!("{scenario:?}"));
        let world = World::new(seed, scenario, net, addresses);
        for (host, name) in names.iter().enumerate() {
            let world = world.clone();
            let is_liar = Some(host) == world.scenario.liar();
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

    /// Runs the whole history and returns the record of its events.
    pub fn run(mut self) -> Net {
        self.chaos();
        self.heal();
        self.verify_healthy();
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

    /// Steps until a condition holds.
    fn until(&mut self, condition: &str, max_ms: u64, mut holds: impl FnMut(&mut History) -> bool) {
        let until_ms = self.world.now_ms() + max_ms;
        while !holds(self) {
            assert!(self.world.now_ms() < until_ms, "after {max_ms} ms not yet: {condition}");
            self.step();
        }
    }

    fn chaos(&mut self) {
        let mut events = plan(&self.world.scenario, &mut self.random).into_iter().peekable();
        // In a calm history work starts once all members are connected.
        let begins_ms = if self.world.scenario.is_calm { self.all_connect() } else { 0 };
        while self.world.now_ms() < begins_ms + self.world.scenario.chaos_ms {
            while let Some((_, event)) = events.next_if(|(at_ms, _)| begins_ms + at_ms <= self.world.now_ms()) {
                self.apply(event);
            }
            self.step();
        }
    }

    fn apply(&mut self, event: Event) {
        let name = |host: usize| self.names[host].as_str();
        match &event {
            Event::Run(..) | Event::Broadcast(_) => {}
            event => self.world.note(format_args!("{event:?}")),
        }
        match event {
            Event::Crash(host) => self.crash(host),
            Event::Start(host) => self.start(host),
            Event::Stop(host) => {
                self.world.command(host, Command::Stop);
            }
            Event::Partition(a, b) => self.sim.partition(name(a), name(b)),
            Event::PartitionOneWay(a, b) => self.sim.partition_oneway(name(a), name(b)),
            Event::Repair(a, b) => self.sim.repair(name(a), name(b)),
            Event::Hold(a, b) => self.sim.hold(name(a), name(b)),
            Event::Release(a, b) => self.sim.release(name(a), name(b)),
            Event::Faults(faults) => self.world.net.set_faults(faults),
            Event::FailRate(of_million) => self.sim.set_fail_rate(of_million as f64 / 1e6),
            Event::Run(host, command) => {
                self.world.note(format_args!("host {host}: {command:?}"));
                self.world.command(host, command);
            }
            Event::Broadcast(number) => self.broadcast(number),
        }
    }

    fn crash(&mut self, host: usize) {
        {
            let state = &mut *self.world.state();
            let host_state = &mut state.hosts[host];
            (host_state.commands, host_state.up_ms) = (None, None);
            state.locations.remove_node(sandbar_core::NodeId(host as u32));
        }
        self.sim.crash(self.names[host].as_str());
    }

    fn start(&mut self, host: usize) {
        if !self.sim.is_host_running(self.names[host].as_str()) {
            self.crash(host);
            self.world.state().hosts[host].is_on = true;
            self.sim.bounce(self.names[host].as_str());
        }
    }

    /// Sends one object to all members that do not have it, along a tree.
    fn broadcast(&mut self, number: usize) {
        let test_object = self.world.scenario.objects[number].clone();
        let has = |behavior: &Option<HolderBehavior>| *behavior == Some(HolderBehavior::Honest);
        for (host, _) in test_object.at.iter().enumerate().filter(|(_, behavior)| has(behavior)) {
            self.world.state().locations.add_holder(test_object.object, sandbar_core::NodeId(host as u32));
        }
        // Members with a wrong copy would pass it on to others.
        for host in (0..self.world.scenario.members).filter(|host| test_object.at[*host].is_none()) {
            let (priority, cancel_ms) = (Priority::Argument, None);
            let command = Command::Fetch {
                object: test_object.object,
                from: FetchSources::Tree,
                priority,
                cancel_ms,
                is_wrongly_announced: false,
                must_succeed: false,
            };
            self.world.note(format_args!("host {host}: {command:?}"));
            self.world.command(host, command);
        }
    }

    /// Removes all faults and starts all hosts.
    fn heal(&mut self) {
        self.world.net.set_faults(NetworkFaults::NONE);
        self.sim.set_fail_rate(0.0);
        let latency_ms = self.world.scenario.latency_ms.0 + CALM_MS;
        self.sim.set_max_message_latency(Duration::from_millis(latency_ms));
        for a in 0..self.names.len() {
            for b in 0..a {
                self.sim.release(self.names[a].as_str(), self.names[b].as_str());
                self.sim.repair(self.names[a].as_str(), self.names[b].as_str());
            }
        }
        if let Some(twin) = self.world.scenario.twin() {
            self.crash(twin);
        }
        let now_ms = self.world.now_ms();
        self.world.state().healed_ms = Some(now_ms);
        self.world.note(format_args!("healed"));
        self.all_connect();
        self.until("all operations have ended", LAST_MS, |history| history.world.pending() == 0);
        // A connection may have ended meanwhile.
        self.all_connect();
    }

    /// Waits until all members are connected to each other, and returns the time.
    fn all_connect(&mut self) -> u64 {
        let wire = self.world.scenario.wire;
        // Time to give up an old connection and one being established before the next is opened; and some members join
        // late.
        let max_ms =
            self.world.scenario.silence_ms_max(0) + 4 * wire.connect_time_ms_max + 2 * wire.join_time_ms_max + 2_000;
        let mut since_ms = None;
        self.until("all are connected", max_ms, |history| {
            let members = history.world.scenario.members;
            let now_ms = history.world.now_ms();
            if now_ms.is_multiple_of(500) {
                for host in 0..members {
                    if history.world.state().healed_ms.is_some() {
                        history.start(host);
                    }
                    history.world.command(host, Command::Redial);
                }
                if let Some(liar) = history.world.scenario.liar().filter(|_| history.world.state().healed_ms.is_some())
                {
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

    /// Runs operations that must all succeed.
    fn verify_healthy(&mut self) {
        let members = self.world.scenario.members;
        for at in 0..members {
            for to in (0..members).filter(|to| *to != at) {
                self.world.command(at, Command::Request { to, bytes: 1_000, must_succeed: true });
            }
        }
        self.wait_until_idle();
        let objects = self.world.scenario.objects.clone();
        for at in 0..members {
            let test_object = &objects[self.random.below(objects.len() as u64) as usize];
            let honest = (0..members).find(|peer| *peer != at && test_object.at[*peer] == Some(HolderBehavior::Honest));
            let Some(honest) = honest.filter(|_| test_object.bytes.len() as u64 <= self.world.scenario.admission_bytes)
            else {
                continue;
            };
            let others = (0..members).filter(|peer| *peer != at && *peer != honest && test_object.at[*peer].is_some());
            let holders = self.world.scenario.liar().into_iter().chain(others).chain([honest]).collect();
            let command = Command::Fetch {
                object: test_object.object,
                from: FetchSources::Holders(holders),
                priority: Priority::Get,
                cancel_ms: None,
                is_wrongly_announced: false,
                must_succeed: true,
            };
            self.world.command(at, command);
            if test_object.bytes.len() <= 64 << 10 {
                let objects = vec![test_object.object; 3];
                self.world.command(at, Command::Small { holder: honest, objects, must_succeed: true });
            }
            self.wait_until_idle();
        }
        for at in 0..members {
            for to in (0..members).filter(|to| *to != at) {
                // QUIC returns stream credit in batches of an eighth, so both cases are covered in turn.
                for command in [
                    Command::FillStreams { to },
                    Command::Request { to, bytes: 1, must_succeed: true },
                    Command::FillStreams { to },
                ] {
                    self.world.command(at, command);
                    self.wait_until_idle();
                }
            }
        }
    }

    fn wait_until_idle(&mut self) {
        // The command arrives in the next step.
        self.step();
        self.until("all operations have ended", LAST_MS, |history| history.world.pending() == 0);
    }

    /// Stops all members and checks that nothing is left.
    fn end(&mut self) {
        (0..self.world.scenario.members).for_each(|host| {
            self.world.command(host, Command::Stop);
        });
        self.until("all have stopped", 60_000, |history| {
            (0..history.world.scenario.members).all(|host| !history.sim.is_host_running(history.names[host].as_str()))
        });
        assert_eq!(self.world.pending(), 0);
        let reserved: u64 = self.world.state().hosts.iter().map(|host_state| host_state.reserved).sum();
        assert_eq!(reserved, 0, "leaked memory");
    }
}
