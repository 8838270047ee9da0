//! The fixed parameters of a history: hosts, limits and objects.

use std::fmt;
use std::sync::Arc;

use sandbar_core::ObjectId;
use sandbar_simulation::Random;
use sandbar_wire::{RootHash, TransferLimits, WireLimits};

use crate::identities::MEMBERS_MAX;

/// Behavior of a member as a holder of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderBehavior {
    Honest,
    /// Announced as a holder, but has no copy.
    Absent,
    /// Has another object of the same length.
    Other,
    /// Has an object of another length.
    Longer,
    /// Has the right hashes and a wrong byte.
    Flipped,
}

/// Answer of the liar, a node that does not run `host/wire`, to every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Sends bytes that are not an answer.
    Garbage,
    /// Sends wrong bytes in the right form, after wrong hashes if requested.
    Wrong,
    /// Ends in the middle of the answer.
    Cut,
    /// Continues after the end of the answer.
    More,
    /// Never answers.
    Stall,
    /// Answers that it has nothing yet.
    NotYet,
    /// Resets the stream.
    Reset,
    /// Closes the connection.
    Close,
}

pub const LIES: [Lie; 8] =
    [Lie::Garbage, Lie::Wrong, Lie::Cut, Lie::More, Lie::Stall, Lie::NotYet, Lie::Reset, Lie::Close];

/// An object of a history.
#[derive(Clone)]
pub struct TestObject {
    pub object: ObjectId,
    pub bytes: Arc<Vec<u8>>,
    pub root: RootHash,
    /// Each member's initial copy: `None` if it is no holder.
    pub at: Vec<Option<HolderBehavior>>,
}

impl fmt::Debug for TestObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes at {:?}", self.object, self.bytes.len(), self.at)
    }
}

#[derive(Debug)]
pub struct Scenario {
    pub members: usize,
    pub lie: Option<Lie>,
    /// The member whose identity a second process has.
    pub twin_of: Option<usize>,
    /// No network faults and no dead hosts, so that everything must succeed.
    pub is_calm: bool,
    /// Between two hosts either all datagrams arrive soon, in both directions, or none.
    pub is_punctual: bool,
    pub wire: WireLimits,
    pub transfer: TransferLimits,
    pub admission_bytes: u64,
    pub waiting_max: usize,
    pub objects: Vec<TestObject>,
    /// Members that start without a certificate.
    pub joins: Vec<bool>,
    /// Offsets of the hosts' clocks, in seconds.
    pub clocks_s: Vec<i64>,
    pub latency_ms: (u64, u64),
    pub udp_queue: usize,
    pub chaos_ms: u64,
}

const GROUP: u64 = 64 << 10;
/// Maximum delay of QUIC's probe on a connection with short round trips, in milliseconds.
const PROBE_MS_MAX: u64 = 450;
/// Datagrams after which QUIC's round-trip estimate has converged.
const MEASURED: u64 = 40;
/// Maximum time of three probes, in milliseconds, if nothing is delayed for longer than a history's faults last.
pub const PROBES_MS_MAX: u64 = 20_000;
/// Maximum jitter of a calm network, in milliseconds: too little for long reordering.
pub const CALM_MS: u64 = 1;

impl Scenario {
    pub fn new(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, 2);
        let members = random.within(2, MEMBERS_MAX as u64) as usize;
        let is_calm = random.chance(1, 4);
        let is_punctual = is_calm || random.chance(1, 2);
        let least_ms = random.within(0, 20);
        let by_ms = if is_calm { CALM_MS } else { random.within(0, if is_punctual { 20 } else { 60 }) };
        let few = random.chance(1, 4);
        Scenario {
            members,
            lie: random.chance(1, 2).then(|| random.pick(&LIES)),
            twin_of: (!is_calm && random.chance(1, 4)).then(|| random.within(1, members as u64 - 1) as usize),
            is_calm,
            is_punctual,
            wire: wire_limits(random),
            transfer: transfer_limits(random),
            admission_bytes: random.within(if few { 2 } else { 8 }, if few { 12 } else { 40 }) * GROUP,
            waiting_max: if few { 2 } else { 100 },
            objects: (0..random.within(1, 6)).map(|number| test_object(seed, number, members, random)).collect(),
            joins: (0..members).map(|member| member > 0 && random.chance(1, 3)).collect(),
            clocks_s: (0..=members).map(|_| random.within(0, 60) as i64 - 30).collect(),
            latency_ms: (least_ms, least_ms + by_ms),
            udp_queue: if is_punctual { 1 << 14 } else { random.pick(&[64, 512, 1 << 14]) },
            chaos_ms: random.within(800, 4_000),
        }
    }

    /// Returns how long a connection may stay open after the last of `after` datagrams: the keep-alive interval plus
    /// the idle timeout. If the congestion window is full of lost data, the keep-alive waits for QUIC's probe. QUIC
    /// extends the idle timeout to three probe timeouts (RFC 9000, section 10.1), which are long after slow round
    /// trips, such as those of a restarted handshake.
    pub fn silence_ms_max(&self, after: u64) -> u64 {
        let (probe_ms, idle_ms) = (self.wire.keep_alive_ms.max(PROBE_MS_MAX), self.wire.idle_ms_max);
        let is_quick = self.is_punctual && after >= MEASURED;
        probe_ms + if is_quick { idle_ms } else { idle_ms.max(PROBES_MS_MAX) }
    }

    /// Returns an object by its id.
    pub fn object(&self, object: ObjectId) -> &TestObject {
        self.objects
            .iter()
            .find(|test_object| test_object.object == object)
            .expect("requests name objects of the scenario")
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
        response_bytes_max: 64 << 10,
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

fn test_object(seed: u64, number: u64, members: usize, random: &mut Random) -> TestObject {
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
    let mut at: Vec<Option<HolderBehavior>> = vec![None; members];
    at[random.below(members as u64) as usize] = Some(HolderBehavior::Honest);
    for place in at.iter_mut().filter(|place| place.is_none()) {
        let behaviors = [
            HolderBehavior::Honest,
            HolderBehavior::Honest,
            HolderBehavior::Absent,
            HolderBehavior::Other,
            HolderBehavior::Longer,
            HolderBehavior::Flipped,
        ];
        *place = random.chance(1, 2).then(|| random.pick(&behaviors));
    }
    TestObject { object: ObjectId(100 + number), root: RootHash::hash(&bytes), bytes: Arc::new(bytes), at }
}
