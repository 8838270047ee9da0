//! Names of things.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
    /// Who is charged, and who is kept from others.
    TenantId(u32);
    /// What a user submitted.
    JobId(u32);
    /// A machine of a cluster.
    NodeId(u32);
    /// A process that runs sandboxes. No two of a cluster have the same number, which is less than 2^28, and none is used again.
    WorkerId(u32);
    /// A call of a task. Its number is that of its first return.
    TaskId(u64);
    /// An immutable value that a task returned or stored. Its number is one of whoever made it: see [`IdAllocator`].
    ObjectId(u64);
    /// A value with methods, which keeps its state between calls. Its number is that of the task that made it, and of the
    /// object that is its handle.
    ActorId(u64);
    /// What is set aside for tasks and actors together. Its number is that of the object that is there once it is placed.
    GroupId(u64);
    /// How often a task was begun before.
    Attempt(u32);
}

impl TenantId {
    /// The only one, until there are more.
    pub const DEFAULT: TenantId = TenantId(0);
}

impl TaskId {
    /// What it returns in place `index`.
    pub fn returns(self, index: u32) -> ObjectId {
        ObjectId(self.0 + u64::from(index))
    }

    /// For people: who gave out the number, and which of theirs it is. `3-17`.
    pub fn short(self) -> String {
        short(self.0)
    }
}

impl ObjectId {
    /// As of tasks.
    pub fn short(self) -> String {
        short(self.0)
    }
}

impl GroupId {
    /// Is there once the group is placed.
    pub fn ready(self) -> ObjectId {
        ObjectId(self.0)
    }

    /// As of tasks.
    pub fn short(self) -> String {
        short(self.0)
    }
}

fn short(number: u64) -> String {
    format!("{}-{}", IdAllocator::issuer(number), number & ((1 << IDS_BITS) - 1))
}

impl ActorId {
    /// The task that made it, which lasts as long as it does.
    pub fn creation_task(self) -> TaskId {
        TaskId(self.0)
    }

    /// Its handle: it lives as long as somebody refers to that.
    pub fn handle(self) -> ObjectId {
        ObjectId(self.0)
    }
}

/// Numbers of tasks and objects that one process gives out: nobody else gives out the same, and nobody has to be asked.
#[derive(Debug)]
pub struct IdAllocator {
    next: u64,
    end: u64,
}

/// Each process may give out so many.
const IDS_BITS: u32 = 36;

impl IdAllocator {
    /// Those of a process.
    pub fn of(worker: WorkerId) -> IdAllocator {
        let first = u64::from(worker.0) << IDS_BITS;
        IdAllocator { next: first, end: first + (1 << IDS_BITS) }
    }

    /// The first of `count` numbers; none when there are no more.
    pub fn take(&mut self, count: u32) -> Option<u64> {
        let first = self.next;
        let next = first.checked_add(u64::from(count)).filter(|next| *next <= self.end)?;
        self.next = next;
        Some(first)
    }

    /// Who gave out a number.
    pub fn issuer(number: u64) -> WorkerId {
        WorkerId((number >> IDS_BITS) as u32)
    }
}

/// A component, named by the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComponentId([u8; 32]);

impl ComponentId {
    /// From the digest itself.
    pub fn from_digest(digest: [u8; 32]) -> Self {
        ComponentId(digest)
    }

    /// The first 12 hexadecimal digits, for people.
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
