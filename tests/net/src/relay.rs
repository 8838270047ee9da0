//! Carries packets between the TUN devices of nodes, and does to them what their way says.

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

use crate::nat::Flows;
use crate::packet::{self, Packet};
use crate::tun::Tun;
use crate::way::{Draw, Fate, Way};

/// Bytes that are on their way at most; what is sent then is lost.
const UNDER_WAY_BYTES_MAX: usize = 256 << 20;
/// It looks whether it is to end after this at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Packets of one node that are taken before those of the next.
const TURN_PACKETS: usize = 32;

/// What a relay has done so far, in datagrams. What is not UDP counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// What nodes sent to nodes.
    pub sent: u64,
    /// What was lost, by chance or since its way was cut.
    pub lost: u64,
    /// What came twice.
    pub doubled: u64,
    /// What came damaged.
    pub damaged: u64,
    /// What came late.
    pub late: u64,
    /// What was lost since too much was under way, or since its node took nothing.
    pub refused: u64,
}

/// The way between nodes of a [`Net`](crate::Net), which a test may change at any time.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
    nodes: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// By who sends, then by who gets it.
    ways: Vec<Way>,
    /// How often each node has moved.
    moved: Vec<u8>,
    counts: Counts,
    ends: bool,
}

impl Relay {
    pub(crate) fn new(tuns: Vec<Tun>, seed: u64) -> io::Result<Relay> {
        let nodes = tuns.len();
        let ways = vec![Way::default(); nodes * nodes];
        let shared = Shared { ways, moved: vec![0; nodes], counts: Counts::default(), ends: false };
        let shared = Arc::new(Mutex::new(shared));
        let draws = (0..(nodes * nodes) as u64).map(|way| Draw::new(seed ^ way << 32)).collect();
        let (flows, under_way) = (Flows::default(), BinaryHeap::new());
        let mut carrier =
            Carrier { shared: shared.clone(), tuns, draws, flows, under_way, under_way_bytes: 0, number: 0 };
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || carrier.run())?;
        Ok(Relay { shared, nodes, thread: Some(thread) })
    }

    /// What befalls from now on what one node sends to another.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn set(&self, from: usize, to: usize, way: Way) {
        assert!(from < self.nodes && to < self.nodes, "there are {} nodes", self.nodes);
        lock(&self.shared).ways[from * self.nodes + to] = way;
    }

    /// What befalls from now on whatever is sent.
    pub fn set_all(&self, way: Way) {
        lock(&self.shared).ways.fill(way);
    }

    /// Changes all ways that lead from a node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn change_from(&self, node: usize, change: impl FnMut(&mut Way)) {
        lock(&self.shared).ways[node * self.nodes..][..self.nodes].iter_mut().for_each(change);
    }

    /// Changes all ways that lead to a node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn change_to(&self, node: usize, change: impl FnMut(&mut Way)) {
        assert!(node < self.nodes, "there are {} nodes", self.nodes);
        lock(&self.shared).ways.iter_mut().skip(node).step_by(self.nodes).for_each(change);
    }

    /// From now on a node is seen at another address by those that it spoke to first: the router that it is behind has
    /// forgotten what it knew.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn move_node(&self, node: usize) {
        let mut shared = lock(&self.shared);
        shared.moved[node] = shared.moved[node].wrapping_add(1);
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared).counts
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.shared).ends = true;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The relay's thread.
struct Carrier {
    shared: Arc<Mutex<Shared>>,
    tuns: Vec<Tun>,
    draws: Vec<Draw>,
    flows: Flows,
    under_way: BinaryHeap<Reverse<Due>>,
    under_way_bytes: usize,
    number: u64,
}

/// A packet under way. What is due at the same time comes in the order in which it was sent.
struct Due {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

impl Carrier {
    fn run(&mut self) {
        // Both make it more exact, and neither has to be allowed: nodes take all of the processors.
        let _ = setpriority_process(None, -20);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut buffer = vec![0; packet::BYTES_MAX];
        while !lock(&self.shared).ends {
            self.deliver();
            for from in self.wait() {
                for _ in 0..TURN_PACKETS {
                    let Some(bytes) = self.tuns[from].read(&mut buffer) else { break };
                    self.take(from, bytes);
                }
            }
        }
    }

    /// Waits until a packet is due, or nodes have sent some. Gives these nodes.
    fn wait(&self) -> Vec<usize> {
        let next = self.under_way.peek().map_or(LOOK_AGAIN, |Reverse(next)| next.at - Instant::now().min(next.at));
        let next = next.min(LOOK_AGAIN);
        let timeout = Timespec { tv_sec: 0, tv_nsec: next.subsec_nanos().into() };
        let mut polled: Vec<PollFd<'_>> =
            self.tuns.iter().map(|tun| PollFd::from_borrowed_fd(tun.as_fd(), PollFlags::IN)).collect();
        // After an error it is tried again.
        let _ = poll(&mut polled, Some(&timeout));
        (0..polled.len()).filter(|node| polled[*node].revents().contains(PollFlags::IN)).collect()
    }

    /// What has to arrive by now does.
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

    /// A node has sent a packet.
    fn take(&mut self, from: usize, bytes: &[u8]) {
        let Some(to) = packet::destination(bytes).map(|ip| usize::from(ip.octets()[3]).wrapping_sub(1)) else { return };
        if to == from || to >= self.tuns.len() {
            return;
        }
        let number = from * self.tuns.len() + to;
        let (way, now) = (lock(&self.shared).ways[number], Instant::now());
        let mut counts = Counts::default();
        let udp = Packet::parse(bytes).map(|mut udp| {
            let arrives = self.flows.translate(&mut udp, &lock(&self.shared).moved);
            (udp, arrives)
        });
        counts.sent = udp.as_ref().map_or(1, |(udp, _)| udp.count() as u64);
        match udp {
            _ if way.cut => counts.lost += counts.sent,
            Some((_, false)) => counts.lost += counts.sent,
            Some((udp, true)) if !way.is_plain() => self.fates(number, &way, &udp, &mut counts),
            udp => {
                let bytes = udp.map_or_else(|| bytes.to_vec(), |(udp, _)| udp.into_bytes());
                let at = self.draws[number].due(&way, now);
                self.send(at, to, bytes, &mut counts);
            }
        }
        lock(&self.shared).counts.add(&counts);
    }

    /// Each datagram of a packet has its own fate. Those that just come stay together.
    fn fates(&mut self, number: usize, way: &Way, packet: &Packet, counts: &mut Counts) {
        let (to, count, now) = (number % self.tuns.len(), packet.count(), Instant::now());
        let at = self.draws[number].due(way, now);
        let mut from = 0;
        for datagram in 0..=count {
            let fate = (datagram < count).then(|| self.draws[number].fate(way));
            if fate == Some(Fate::Comes) {
                continue;
            }
            if from < datagram {
                self.send(at, to, packet.part(from..datagram).into_bytes(), counts);
            }
            from = datagram + 1;
            let Some(fate) = fate else { return };
            let mut one = packet.part(datagram..from);
            match fate {
                Fate::Comes => {}
                Fate::Lost => counts.lost += 1,
                Fate::Twice => {
                    counts.doubled += 1;
                    self.send(at, to, one.bytes().to_vec(), counts);
                    self.send(at, to, one.into_bytes(), counts);
                }
                Fate::Damaged(bit) => {
                    counts.damaged += 1;
                    one.damage(bit);
                    self.send(at, to, one.into_bytes(), counts);
                }
                Fate::Late => {
                    counts.late += 1;
                    self.send(at + way.reorder_by, to, one.into_bytes(), counts);
                }
            }
        }
    }

    fn send(&mut self, at: Instant, to: usize, bytes: Vec<u8>, counts: &mut Counts) {
        if self.under_way_bytes + bytes.len() > UNDER_WAY_BYTES_MAX {
            counts.refused += 1;
            return;
        }
        self.under_way_bytes += bytes.len();
        self.number += 1;
        self.under_way.push(Reverse(Due { at, number: self.number, to, bytes }));
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
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
