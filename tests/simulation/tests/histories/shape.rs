//! What is settled before a history begins: who there is, how patient they are, which objects there are.

use std::fmt;
use std::sync::Arc;

use sandbar_core::ObjectId;
use sandbar_simulation::Random;
use sandbar_wire::{Root, TransferLimits, WireLimits};

use crate::people::MEMBERS_MAX;

/// How a node has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Honest,
    /// It was announced, and is not there.
    Absent,
    /// Another object of the same length.
    Other,
    /// One of another length.
    Longer,
    /// The right hashes, and a wrong byte.
    Flipped,
}

/// What the liar, a node that does not run `host/wire`, does with every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Sends what is no answer.
    Garbage,
    /// Sends wrong bytes, in the right form; wrong hashes first, if they are wanted.
    Wrong,
    /// Ends in the middle.
    Cut,
    /// Goes on where the end is due.
    More,
    /// Says nothing.
    Stall,
    /// Says that it has nothing yet.
    NotYet,
    /// Gives the stream up.
    Reset,
    /// Closes the connection.
    Close,
}

pub const LIES: [Lie; 8] =
    [Lie::Garbage, Lie::Wrong, Lie::Cut, Lie::More, Lie::Stall, Lie::NotYet, Lie::Reset, Lie::Close];

/// An object that somebody made.
#[derive(Clone)]
pub struct Made {
    pub object: ObjectId,
    pub bytes: Arc<Vec<u8>>,
    pub root: Root,
    /// Who has it from the beginning, and how.
    pub at: Vec<Option<Manner>>,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes at {:?}", self.object, self.bytes.len(), self.at)
    }
}

#[derive(Debug)]
pub struct Shape {
    pub members: usize,
    pub lie: Option<Lie>,
    /// Whose identity a second process has.
    pub twin_of: Option<usize>,
    /// Nothing is done to the network, and nobody dies: so everything has to go well.
    pub is_calm: bool,
    /// Between two hosts all datagrams come soon, both ways, or none does.
    pub is_punctual: bool,
    pub wire: WireLimits,
    pub transfer: TransferLimits,
    pub admission_bytes: u64,
    pub waiting_max: usize,
    pub objects: Vec<Made>,
    /// Members that have no certificate at first.
    pub joins: Vec<bool>,
    /// By how much clocks are off.
    pub clocks_s: Vec<i64>,
    pub latency_ms: (u64, u64),
    pub udp_queue: usize,
    pub chaos_ms: u64,
}

const GROUP: u64 = 64 << 10;
/// QUIC probes no later, where answers come soon.
const PROBE_MS_MAX: u64 = 450;
/// After so many datagrams it has measured how long answers take, often enough.
const MEASURED: u64 = 40;
/// Three probes take no longer, where nothing is held back for longer than a history's trouble lasts.
pub const PROBES_MS_MAX: u64 = 20_000;
/// By how much datagrams differ in a calm network: so little that none overtakes others for long.
pub const CALM_MS: u64 = 1;

impl Shape {
    pub fn new(seed: u64) -> Shape {
        let random = &mut Random::new(seed, 2);
        let members = random.within(2, MEMBERS_MAX as u64) as usize;
        let is_calm = random.chance(1, 4);
        let is_punctual = is_calm || random.chance(1, 2);
        let least_ms = random.within(0, 20);
        let by_ms = if is_calm { CALM_MS } else { random.within(0, if is_punctual { 20 } else { 60 }) };
        let few = random.chance(1, 4);
        Shape {
            members,
            lie: random.chance(1, 2).then(|| random.pick(&LIES)),
            twin_of: (!is_calm && random.chance(1, 4)).then(|| random.within(1, members as u64 - 1) as usize),
            is_calm,
            is_punctual,
            wire: wire_limits(random),
            transfer: transfer_limits(random),
            admission_bytes: random.within(if few { 2 } else { 8 }, if few { 12 } else { 40 }) * GROUP,
            waiting_max: if few { 2 } else { 100 },
            objects: (0..random.within(1, 6)).map(|number| made(seed, number, members, random)).collect(),
            joins: (0..members).map(|member| member > 0 && random.chance(1, 3)).collect(),
            clocks_s: (0..=members).map(|_| random.within(0, 60) as i64 - 30).collect(),
            latency_ms: (least_ms, least_ms + by_ms),
            udp_queue: if is_punctual { 1 << 14 } else { random.pick(&[64, 512, 1 << 14]) },
            chaos_ms: random.within(800, 4_000),
        }
    }

    /// How long a connection on which nothing comes, after so many datagrams, may count as one: the peer is asked, and then
    /// given up. Where the network is full of what was lost, to ask takes until QUIC probes; and it gives nobody up for as
    /// long as three probes take (RFC 9000, 10.1), which is long where answers took long before, as in a handshake that had
    /// to be begun again.
    pub fn silence_ms_max(&self, after: u64) -> u64 {
        let (asks_ms, idle_ms) = (self.wire.keep_alive_ms.max(PROBE_MS_MAX), self.wire.idle_ms_max);
        let is_quick = self.is_punctual && after >= MEASURED;
        asks_ms + if is_quick { idle_ms } else { idle_ms.max(PROBES_MS_MAX) }
    }

    /// By its number.
    pub fn made(&self, object: ObjectId) -> &Made {
        self.objects.iter().find(|made| made.object == object).expect("nobody asks for other objects")
    }
}

fn wire_limits(random: &mut Random) -> WireLimits {
    if random.chance(1, 8) {
        return WireLimits { requests_waiting_max: 256, ..WireLimits::DEFAULT };
    }
    let limits = WireLimits {
        connect_time_ms_max: 2_000,
        keep_alive_ms: 300,
        idle_ms_max: 1_500,
        handshake_time_ms_max: 1_000,
        streams_max: random.within(8, 15) as u32,
        stream_head_ms_max: 1_500,
        stream_window_bytes: random.pick(&[64 << 10, 256 << 10, 4 << 20]),
        frame_bytes_max: 64 << 10,
        frame_time_ms_max: 4_000,
        send_queue_bytes_max: 128 << 10,
        channels_max: 4,
        requests_waiting_max: 64,
        request_bytes_max: 64 << 10,
        answer_bytes_max: 64 << 10,
        request_time_ms_max: 2_000,
        join_time_ms_max: 1_500,
        datagram_bytes_max: random.pick(&[1_200, 1_452, 6_500]),
        ..WireLimits::DEFAULT
    };
    limits.check().map(|()| limits).expect("these can be kept")
}

fn transfer_limits(random: &mut Random) -> TransferLimits {
    TransferLimits {
        piece_bytes_max: random.within(1, 4) * GROUP,
        pieces_in_flight_max: random.within(1, 6) as usize,
        holders_max: random.within(1, 3) as usize,
        reconnects_max: 2,
        connect_ms_max: 1_500,
        stall_ms_max: 1_500,
        stall_bytes_min: 4 << 10,
        idle_ms_max: 2_000,
        rest_ms: 10,
        request_ms_max: 1_500,
        wait_ms_max: 400,
        small_objects_max: random.within(1, 20) as usize,
        small_request_bytes_max: 128 << 10,
        ..TransferLimits::default()
    }
}

fn made(seed: u64, number: u64, members: usize, random: &mut Random) -> Made {
    let len = match random.below(5) {
        0 => random.below(4_000),
        1 => random.below(GROUP),
        2 => (random.within(0, 4) * GROUP + random.within(0, 2)).saturating_sub(1),
        3 => random.below(6 * GROUP),
        _ => random.below(24 * GROUP),
    };
    let mut bytes = Vec::with_capacity(len as usize + 32);
    let mut content = Random::new(seed, 1_000 + number);
    while bytes.len() < len as usize {
        bytes.extend(content.bytes());
    }
    bytes.truncate(len as usize);
    let mut at: Vec<Option<Manner>> = vec![None; members];
    at[random.below(members as u64) as usize] = Some(Manner::Honest);
    for place in at.iter_mut().filter(|place| place.is_none()) {
        let manners = [Manner::Honest, Manner::Honest, Manner::Absent, Manner::Other, Manner::Longer, Manner::Flipped];
        *place = random.chance(1, 2).then(|| random.pick(&manners));
    }
    Made { object: ObjectId(100 + number), root: Root::of(&bytes), bytes: Arc::new(bytes), at }
}
