//! Whose fault an error of this room is.

/// Who can do something about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The other end: what it sent, showed or did not do.
    Peer,
    /// Who runs this machine: a folder, a clock, a token, a limit.
    Operator,
    /// What lies between.
    Network,
    /// This program or this machine.
    Host,
}
