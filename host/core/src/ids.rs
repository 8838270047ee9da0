//! Ids: newtypes over numbers and digests.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($number:ty);)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
            pub struct $name(pub $number);

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        )*
    };
}

numbers! {
    /// A job that a user submitted.
    JobId(u32);
    /// A machine of a cluster.
    NodeId(u32);
    /// A process that runs sandboxes. Numbers are unique in a cluster, less than 2^28, and never used twice.
    WorkerId(u32);
    /// A call of a task. Its number is the number of its first result.
    TaskId(u64);
    /// An immutable value that a task returned or stored. The process that creates it allocates its number: see
    /// [`IdAllocator`].
    ObjectId(u64);
    /// A stateful object with methods. Its number is the number of the task that created it, and of the object that is
    /// its handle.
    ActorId(u64);
    /// Resources that are reserved for tasks and actors together. Its number is the number of the object that becomes
    /// ready once the group is placed.
    GroupId(u64);
    /// Number of earlier attempts of a task.
    Attempt(u32);
}

/// The submitter of jobs: the unit of accounting and isolation. Text, as in JSON, is `local` for [`TenantId::DEFAULT`],
/// and 16 hexadecimal digits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u64);

/// Text of [`TenantId::DEFAULT`].
const LOCAL: &str = "local";

impl TenantId {
    /// The machine's own user, and the node itself.
    pub const DEFAULT: TenantId = TenantId(0);

    /// Returns the id of a tenant of a cluster, from the SHA-256 of its name.
    pub fn from_digest(digest: [u8; 32]) -> TenantId {
        let (first, _) = digest.split_at(8);
        let number = first.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        // Zero is the default.
        TenantId(number.max(1))
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == TenantId::DEFAULT { f.write_str(LOCAL) } else { write!(f, "{:016x}", self.0) }
    }
}

impl FromStr for TenantId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<TenantId, Self::Err> {
        if text == LOCAL { Ok(TenantId::DEFAULT) } else { u64::from_str_radix(text, 16).map(TenantId) }
    }
}

impl Serialize for TenantId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for TenantId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TenantId, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            u64::deserialize(deserializer).map(TenantId)
        }
    }
}

impl TaskId {
    /// Returns the id of the result at `index`.
    pub fn returns(self, index: u32) -> ObjectId {
        ObjectId(self.0 + u64::from(index))
    }

    /// Returns a short form for display: the allocating process, and the sequence number there. `3-17`.
    pub fn short(self) -> String {
        short(self.0)
    }
}

impl ObjectId {
    /// Returns a short form for display, as [`TaskId::short`].
    pub fn short(self) -> String {
        short(self.0)
    }
}

impl GroupId {
    /// Returns the object that becomes ready once the group is placed.
    pub fn ready(self) -> ObjectId {
        ObjectId(self.0)
    }

    /// Returns a short form for display, as [`TaskId::short`].
    pub fn short(self) -> String {
        short(self.0)
    }
}

fn short(number: u64) -> String {
    format!("{}-{}", IdAllocator::issuer(number), number & ((1 << IDS_BITS) - 1))
}

impl ActorId {
    /// Returns the task that created the actor. Its record lives as long as the actor.
    pub fn creation_task(self) -> TaskId {
        TaskId(self.0)
    }

    /// Returns the actor's handle: the actor lives as long as references to the handle exist.
    pub fn handle(self) -> ObjectId {
        ObjectId(self.0)
    }
}

/// Allocates numbers of tasks and objects in one process: no other process allocates the same ones, so that no
/// coordination is needed.
#[derive(Debug)]
pub struct IdAllocator {
    next: u64,
    end: u64,
}

/// Bits of the sequence number within one process.
const IDS_BITS: u32 = 36;

impl IdAllocator {
    /// Creates the allocator of a process.
    pub fn for_worker(worker: WorkerId) -> IdAllocator {
        let first = u64::from(worker.0) << IDS_BITS;
        IdAllocator { next: first, end: first + (1 << IDS_BITS) }
    }

    /// Allocates `count` consecutive numbers and returns the first; `None` if fewer are left.
    pub fn take(&mut self, count: u32) -> Option<u64> {
        let first = self.next;
        let next = first.checked_add(u64::from(count)).filter(|next| *next <= self.end)?;
        self.next = next;
        Some(first)
    }

    /// Returns the process that allocated `number`.
    pub fn issuer(number: u64) -> WorkerId {
        WorkerId((number >> IDS_BITS) as u32)
    }
}

/// A component, identified by the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComponentId([u8; 32]);

impl ComponentId {
    /// Creates an id from a digest.
    pub fn from_digest(digest: [u8; 32]) -> Self {
        ComponentId(digest)
    }

    /// Returns the digest.
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first 12 hexadecimal digits, for display.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ComponentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ComponentId({self})")
    }
}

impl FromStr for ComponentId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a SHA-256 in hexadecimal");
        let mut digest = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        for (i, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(ComponentId(digest))
    }
}
