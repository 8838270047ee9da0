//! Attribution of this crate's errors.

/// The party that can fix an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The peer: what it sent, what it presented, or what it failed to do.
    Peer,
    /// The operator of this machine: a folder, a clock, a token, or a limit.
    Operator,
    /// The network between the peers.
    Network,
    /// This program or this machine.
    Host,
}
