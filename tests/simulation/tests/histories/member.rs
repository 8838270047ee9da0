//! A member of the cluster: joins, connects to other members, serves them, and runs commands.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_core::NodeId;
use sandbar_simulation::{Random, SimulatedClock, environment};
use sandbar_wire::*;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::command::Command;
use crate::identities::{LIAR, identities, name};
use crate::scenario::PROBES_MS_MAX;
use crate::store::Store;
use crate::world::{LinkGuard, SLACK_MS, World};
use crate::{fetches, requests};

/// A running node.
pub struct Member {
    pub world: World,
    pub host: usize,
    pub endpoint: Endpoint,
    pub transfers: Transfers,
    pub admission: Arc<Admission>,
    pub store: Arc<Store>,
    pub links: Links,
    pub random: RefCell<Random>,
    redial: Notify,
    is_stopping: Cell<bool>,
}

/// The newest connection to each connected host.
#[derive(Clone, Default)]
pub struct Links(Arc<Mutex<BTreeMap<usize, (u64, Connection)>>>);

impl Links {
    pub fn get(&self, peer: usize) -> Option<Connection> {
        self.lock().get(&peer).map(|(_, connection)| connection.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (u64, Connection)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a host from its start to its end.
pub async fn run(world: World, host: usize) -> turmoil::Result {
    if !world.state().hosts[host].is_on {
        return Ok(());
    }
    world.state().hosts[host].starts += 1;
    let mut random = world.random(host);
    sleep(Duration::from_millis(random.within(0, 200))).await;
    let (commands, command_queue) = mpsc::unbounded_channel();
    world.state().hosts[host].commands = Some(commands);
    let (events_to, events) = mpsc::channel(1_000);
    let member = Rc::new(start(&world, host, random, events_to).await);
    world.note(format_args!("host {host} is up"));
    let now_ms = world.now_ms();
    world.state().hosts[host].up_ms = Some(now_ms);
    work(&member, command_queue, events).await;
    stop(member).await;
    Ok(())
}

/// Returns the member whose identity a host has.
pub fn identity_of(world: &World, host: usize) -> usize {
    if Some(host) == world.scenario.twin() { world.scenario.twin_of.unwrap_or(host) } else { host }
}

async fn start(world: &World, host: usize, mut random: Random, events: mpsc::Sender<TransferEvent>) -> Member {
    let applicant = identity_of(world, host);
    let kept = world.state().hosts[applicant].identity.clone();
    let identity = match kept {
        Some(identity) => identity,
        None => {
            let identity = join_cluster(world, host, &mut random).await;
            world.state().hosts[applicant].identity = Some(identity.clone());
            identity
        }
    };
    let clock = clock(world, host);
    let environment = environment(&world.net, world.address(host), clock, random.bytes()).await.unwrap();
    let endpoint = Endpoint::bind_on(environment, &identity, world.scenario.wire).unwrap();
    if host == 0 {
        let issuer = CertificateIssuer::new(identities().authority.clone(), |_: &Applicant<'_>| Ok(()));
        endpoint.serve_joins(issuer).unwrap();
    }
    let admission = Admission::new(world.scenario.admission_bytes, world.scenario.waiting_max);
    let transfers = Transfers::new(world.scenario.transfer, admission.clone(), Some(events), Offload::Inline).unwrap();
    let member_index = (applicant == host).then_some(host);
    let store = Store::new(transfers.clone(), &world.scenario.objects, member_index);
    let (world, random) = (world.clone(), RefCell::new(random));
    let (links, redial, is_stopping) = (Links::default(), Notify::new(), Cell::new(false));
    Member { world, host, endpoint, transfers, admission, store, links, random, redial, is_stopping }
}

pub fn clock(world: &World, host: usize) -> SimulatedClock {
    SimulatedClock::new(world.net.clone(), world.scenario.clocks_s[host.min(world.scenario.members)])
}

/// Joins, and retries until it succeeds.
async fn join_cluster(world: &World, host: usize, random: &mut Random) -> Identity {
    let _pending = world.begin(format!("joining of host {host}"));
    let key = Arc::new(Key::generate().unwrap());
    loop {
        let founder_up = world.state().hosts[0].up_ms.is_some();
        let (limits, started) = (&world.scenario.wire, Instant::now());
        let address = std::net::SocketAddr::new(world.address(host).ip(), 0);
        let environment = environment(&world.net, address, clock(world, host), random.bytes()).await.unwrap();
        let (token, name) = (&identities().token, name(identity_of(world, host)));
        let joined = join(environment, world.address(0), token, key.clone(), Role::Node, &name, limits).await;
        let max_ms = limits.connect_time_ms_max + 2 * limits.join_time_ms_max + 200 + SLACK_MS;
        let duration_ms = started.elapsed().as_millis() as u64;
        assert!(duration_ms <= max_ms, "joining took {duration_ms} ms");
        let error = match joined {
            Ok(identity) => {
                world.note(format_args!("host {host} joins: ok"));
                return identity;
            }
            Err(error) => error,
        };
        world.note(format_args!("host {host} joins: {}", error.code()));
        assert!(world.is_rough() || !founder_up, "host {host} does not join: {error}");
        assert!(is_of_network(error.code()), "host {host} does not join: {error}");
        sleep(Duration::from_millis(random.within(20, 200))).await;
    }
}

/// Returns whether the error code can result from dead hosts and lost packets.
pub fn is_of_network(code: &str) -> bool {
    ["unreachable", "silent", "restarted", "stopping", "busy", "done", "slow", "closed", "stopped"].contains(&code)
}

/// Runs commands until the command to stop.
async fn work(
    member: &Rc<Member>,
    mut command_queue: mpsc::UnboundedReceiver<Command>,
    mut events: mpsc::Receiver<TransferEvent>,
) {
    let mut tasks = JoinSet::new();
    tasks.spawn_local(accept(member.clone()));
    let others = (0..identity_of(&member.world, member.host)).chain(member.world.scenario.liar());
    for peer in others {
        tasks.spawn_local(dial(member.clone(), peer));
    }
    tasks.spawn_local(watch(member.clone()));
    tasks.spawn_local({
        let member = member.clone();
        async move {
            while let Some(event) = events.recv().await {
                fetches::check_event(&member, &event);
            }
        }
    });
    while let Some(command) = command_queue.recv().await {
        let member = member.clone();
        match command {
            Command::Stop => break,
            Command::Redial => member.redial.notify_waiters(),
            Command::Fetch { .. } | Command::Small { .. } => drop(tasks.spawn_local(fetches::run(member, command))),
            _ => drop(tasks.spawn_local(requests::run(member, command))),
        }
    }
    let is_closed_first = member.random.borrow_mut().chance(1, 2);
    if is_closed_first {
        member.is_stopping.set(true);
        member.endpoint.close("it stops").await;
    }
    tasks.shutdown().await;
}

async fn accept(member: Rc<Member>) {
    let mut attended = JoinSet::new();
    while let Some(connection) = member.endpoint.accept(Role::Node).await {
        let peer: usize = connection.peer().name.as_str().trim_start_matches('n').parse().unwrap();
        attended.spawn_local(serve_peer(member.clone(), peer, connection));
        while attended.try_join_next().is_some() {}
    }
}

/// Keeps a connection to another host.
async fn dial(member: Rc<Member>, peer: usize) {
    let (world, host) = (&member.world, member.host);
    let expected = if Some(peer) == world.scenario.liar() { LIAR.parse().unwrap() } else { name(peer) };
    loop {
        let (started, is_up) = (Instant::now(), world.state().hosts[peer].up_ms.is_some());
        let connected = member.endpoint.connect(world.address(peer), &ExpectedPeer::Node(expected.clone())).await;
        if member.is_stopping.get() {
            return;
        }
        let (duration_ms, max_ms) =
            (started.elapsed().as_millis() as u64, world.scenario.wire.connect_time_ms_max + SLACK_MS);
        assert!(duration_ms <= max_ms, "connecting took {duration_ms} ms");
        let code = match connected {
            Ok(connection) => {
                let lost = serve_peer(member.clone(), peer, connection).await;
                world.note(format_args!("host {host} lost host {peer}: {}", lost.code()));
                lost.code()
            }
            Err(error) => {
                world.note(format_args!("host {host} does not connect to host {peer}: {}", error.code()));
                assert!(world.is_rough() || !is_up, "host {host} does not connect to host {peer}: {error}");
                error.code()
            }
        };
        if code == "replaced" {
            assert!(world.scenario.twin_of.is_some(), "host {host} was replaced, and there is none like it");
            member.redial.notified().await;
        } else {
            assert!(is_of_network(code), "host {host} and host {peer}: {code}");
        }
        let pause_ms = member.random.borrow_mut().within(20, 200);
        sleep(Duration::from_millis(pause_ms)).await;
    }
}

/// Serves a peer until the connection ends.
async fn serve_peer(member: Rc<Member>, peer: usize, connection: Connection) -> DisconnectReason {
    let link = member.world.track_link(member.host, connection.address().ip());
    let before = member.links.lock().insert(peer, (link.number(), connection.clone()));
    drop(before);
    let _leaves = UnlinkGuard { links: member.links.clone(), peer, link };
    let node = NodeId(peer as u32);
    let serving = async {
        tokio::join!(
            connection.serve_transfers(&member.transfers, node, member.store.clone()),
            requests::serve_requests(&member, &connection),
            requests::serve_channels(&member, &connection),
        )
    };
    tokio::select! {
        biased;
        lost = connection.closed() => lost,
        _ = serving => connection.closed().await,
    }
}

struct UnlinkGuard {
    links: Links,
    peer: usize,
    link: LinkGuard,
}

impl Drop for UnlinkGuard {
    fn drop(&mut self) {
        let mut links = self.links.lock();
        if links.get(&self.peer).is_some_and(|(number, _)| *number == self.link.number()) {
            let removed = links.remove(&self.peer);
            drop(links);
            drop(removed);
        }
    }
}

/// Checks a node's invariants periodically.
async fn watch(member: Rc<Member>) {
    let admission_bytes_max = member.world.scenario.admission_bytes;
    loop {
        sleep(Duration::from_millis(50)).await;
        assert!(member.admission.used() <= admission_bytes_max, "{} bytes are admitted", member.admission.used());
        // At most one incoming connection for each name.
        let (incoming, _) = member.endpoint.connections();
        assert!(incoming < member.world.scenario.members, "{incoming} connections to host {}", member.host);
    }
}

/// Shuts down and checks that nothing is left.
async fn stop(member: Rc<Member>) {
    let (world, host, wire) = (member.world.clone(), member.host, member.world.scenario.wire);
    let _pending = world.begin(format!("stopping of host {host}"));
    let (used, waiting) = (member.admission.used(), member.admission.waiting());
    assert_eq!((used, waiting), (0, 0), "leaked bytes of memory, leaked fetches");
    member.endpoint.close("it stops").await;
    let member = Rc::into_inner(member).expect("its tasks have ended");
    assert!(member.links.lock().is_empty(), "connections to {:?}", member.links.lock().keys());
    drop(member);
    // A failed handshake keeps its permit for the same time again; QUIC drops a connection's state after three probes.
    let probes_ms = if world.is_rough() { PROBES_MS_MAX } else { 2_000 };
    let max_ms = 2 * wire.handshake_time_ms_max.max(wire.join_time_ms_max) + probes_ms + SLACK_MS;
    let started = Instant::now();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    while tasks() > 0 {
        let duration_ms = started.elapsed().as_millis() as u64;
        assert!(duration_ms <= max_ms, "{} tasks are left of host {host}", tasks());
        sleep(Duration::from_millis(10)).await;
    }
    world.note(format_args!("host {host} is down"));
    world.state().hosts[host].up_ms = None;
}
