//! Carries packets between the TUN devices of nodes and injects the faults of each link.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use rustix::time::Timespec;

use crate::link::{Delivery, FaultSampler, LinkFaults};
use crate::nat::Flows;
use crate::packet::{self, Packet};
use crate::tun::Tun;

/// Maximum bytes of packets in flight. Packets beyond it are dropped.
const UNDER_WAY_BYTES_MAX: usize = 256 << 20;
/// Maximum wait before the thread checks whether to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum packets read from one node before the next node's turn.
const ROUND_PACKETS: usize = 32;

/// Datagrams counted so far. A packet that is not UDP counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Sent from a node to another.
    pub sent: u64,
    /// Dropped at random or by a cut link.
    pub lost: u64,
    /// Delivered twice.
    pub doubled: u64,
    /// Delivered with a flipped bit.
    pub damaged: u64,
    /// Delivered late.
    pub late: u64,
    /// Dropped because too many bytes were in flight, or because the node's device refused the packet.
    pub refused: u64,
}

/// The links between the nodes of a [`Net`](crate::Net). A test may change them at any time.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
    nodes: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Indexed by sender, then by receiver.
    links: Vec<LinkFaults>,
    /// Number of moves of each node.
    moved: Vec<u8>,
    counts: RelayCounts,
    ends: bool,
}

impl Relay {
    pub(crate) fn new(tuns: Vec<Tun>, seed: u64) -> io::Result<Relay> {
        let nodes = tuns.len();
        let links = vec![LinkFaults::default(); nodes * nodes];
        let shared = Shared { links, moved: vec![0; nodes], counts: RelayCounts::default(), ends: false };
        let shared = Arc::new(Mutex::new(shared));
        let draws = (0..(nodes * nodes) as u64).map(|link| FaultSampler::new(seed ^ link << 32)).collect();
        let (flows, under_way) = (Flows::default(), BinaryHeap::new());
        let mut carrier =
            Carrier { shared: shared.clone(), tuns, draws, flows, under_way, under_way_bytes: 0, number: 0 };
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || carrier.run())?;
        Ok(Relay { shared, nodes, thread: Some(thread) })
    }

    /// Sets the faults of the link from one node to another.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn set(&self, from: usize, to: usize, link: LinkFaults) {
        assert!(from < self.nodes && to < self.nodes, "there are {} nodes", self.nodes);
        lock(&self.shared).links[from * self.nodes + to] = link;
    }

    /// Sets the faults of all links.
    pub fn set_all(&self, link: LinkFaults) {
        lock(&self.shared).links.fill(link);
    }

    /// Changes all links from a node.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn change_from(&self, node: usize, change: impl FnMut(&mut LinkFaults)) {
        lock(&self.shared).links[node * self.nodes..][..self.nodes].iter_mut().for_each(change);
    }

    /// Changes all links to a node.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn change_to(&self, node: usize, change: impl FnMut(&mut LinkFaults)) {
        assert!(node < self.nodes, "there are {} nodes", self.nodes);
        lock(&self.shared).links.iter_mut().skip(node).step_by(self.nodes).for_each(change);
    }

    /// Changes the source address of flows that the node initiates, as if its router had lost its translation table.
    ///
    /// # Panics
    /// Panics if there is no such node.
    pub fn move_node(&self, node: usize) {
        let mut shared = lock(&self.shared);
        shared.moved[node] = shared.moved[node].wrapping_add(1);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> RelayCounts {
        lock(&self.shared).counts
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.shared).ends = true;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the relay's thread.
struct Carrier {
    shared: Arc<Mutex<Shared>>,
    tuns: Vec<Tun>,
    draws: Vec<FaultSampler>,
    flows: Flows,
    under_way: BinaryHeap<Reverse<Due>>,
    under_way_bytes: usize,
    number: u64,
}

/// A packet in flight. Packets due at the same time arrive in the order sent.
struct Due {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl Carrier {
    fn run(&mut self) {
        // Both improve timing on a machine whose processors are busy. Errors are ignored: they need privileges.
        let _ = setpriority_process(None, -20);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut buffer = vec![0; packet::BYTES_MAX];
        while !lock(&self.shared).ends {
            self.deliver();
            for from in self.wait() {
                for _ in 0..ROUND_PACKETS {
                    let Some(bytes) = self.tuns[from].read(&mut buffer) else { break };
                    self.take(from, bytes);
                }
            }
        }
    }

    /// Waits until a packet is due or a node has sent one. Returns the nodes with packets to read.
    fn wait(&self) -> Vec<usize> {
        let next = self.under_way.peek().map_or(POLL_INTERVAL, |Reverse(next)| next.at - Instant::now().min(next.at));
        let next = next.min(POLL_INTERVAL);
        let timeout = Timespec { tv_sec: 0, tv_nsec: next.subsec_nanos().into() };
        let mut polled: Vec<PollFd<'_>> =
            self.tuns.iter().map(|tun| PollFd::from_borrowed_fd(tun.as_fd(), PollFlags::IN)).collect();
        // After an error the loop polls again.
        let _ = poll(&mut polled, Some(&timeout));
        (0..polled.len()).filter(|node| polled[*node].revents().contains(PollFlags::IN)).collect()
    }

    /// Delivers the packets that are due.
    fn deliver(&mut self) {
        let now = Instant::now();
        while self.under_way.peek().is_some_and(|Reverse(next)| next.at <= now) {
            let Some(Reverse(packet)) = self.under_way.pop() else { return };
            self.under_way_bytes -= packet.bytes.len();
            if !self.tuns[packet.to].write(&packet.bytes) {
                lock(&self.shared).counts.refused += 1;
            }
        }
    }

    /// Handles a packet from a node.
    fn take(&mut self, from: usize, bytes: &[u8]) {
        let Some(to) = packet::destination(bytes).map(|ip| usize::from(ip.octets()[3]).wrapping_sub(1)) else { return };
        if to == from || to >= self.tuns.len() {
            return;
        }
        let number = from * self.tuns.len() + to;
        let (link, now) = (lock(&self.shared).links[number], Instant::now());
        let mut counts = RelayCounts::default();
        let udp = Packet::parse(bytes).map(|mut udp| {
            let arrives = self.flows.translate(&mut udp, &lock(&self.shared).moved);
            (udp, arrives)
        });
        counts.sent = udp.as_ref().map_or(1, |(udp, _)| udp.count() as u64);
        match udp {
            _ if link.cut => counts.lost += counts.sent,
            Some((_, false)) => counts.lost += counts.sent,
            Some((udp, true)) if !link.is_plain() => self.send_each(number, &link, &udp, &mut counts),
            udp => {
                let bytes = udp.map_or_else(|| bytes.to_vec(), |(udp, _)| udp.into_bytes());
                let at = self.draws[number].due(&link, now);
                self.send(at, to, bytes, &mut counts);
            }
        }
        lock(&self.shared).counts.add(&counts);
    }

    /// Draws the fate of each datagram of a packet. Consecutive datagrams without a fault stay one packet.
    fn send_each(&mut self, number: usize, link: &LinkFaults, packet: &Packet, counts: &mut RelayCounts) {
        let (to, count, now) = (number % self.tuns.len(), packet.count(), Instant::now());
        let at = self.draws[number].due(link, now);
        let mut from = 0;
        for datagram in 0..=count {
            let next_delivery = (datagram < count).then(|| self.draws[number].next_delivery(link));
            if next_delivery == Some(Delivery::OnTime) {
                continue;
            }
            if from < datagram {
                self.send(at, to, packet.part(from..datagram).into_bytes(), counts);
            }
            from = datagram + 1;
            let Some(next_delivery) = next_delivery else { return };
            let mut one = packet.part(datagram..from);
            match next_delivery {
                Delivery::OnTime => {}
                Delivery::Lost => counts.lost += 1,
                Delivery::Twice => {
                    counts.doubled += 1;
                    self.send(at, to, one.bytes().to_vec(), counts);
                    self.send(at, to, one.into_bytes(), counts);
                }
                Delivery::Damaged(bit) => {
                    counts.damaged += 1;
                    one.damage(bit);
                    self.send(at, to, one.into_bytes(), counts);
                }
                Delivery::Late => {
                    counts.late += 1;
                    self.send(at + link.reorder_by, to, one.into_bytes(), counts);
                }
            }
        }
    }

    fn send(&mut self, at: Instant, to: usize, bytes: Vec<u8>, counts: &mut RelayCounts) {
        if self.under_way_bytes + bytes.len() > UNDER_WAY_BYTES_MAX {
            counts.refused += 1;
            return;
        }
        self.under_way_bytes += bytes.len();
        self.number += 1;
        self.under_way.push(Reverse(Due { at, number: self.number, to, bytes }));
    }
}

impl RelayCounts {
    fn add(&mut self, other: &RelayCounts) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.damaged += other.damaged;
        self.late += other.late;
        self.refused += other.refused;
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}
