//! What can go wrong with a call: whose fault it was, a code that stays, and
//! words that name the thing, the limit and the value.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The code that was called.
    Guest,
    /// The job: its file, its input, its choice of component.
    Job,
    /// This machine or this program.
    Host,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $blame:ident;)*) => {
        /// What happened. The text form of a code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The stable text of the code.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)*
                }
            }

            /// Whose fault it is.
            pub fn blame(self) -> Blame {
                match self {
                    $(Code::$name => Blame::$blame,)*
                }
            }
        }
    };
}

codes! {
    /// The function returned an error of its own.
    Refused = "refused", Guest;
    /// WebAssembly trapped: unreachable, out of bounds, division by zero.
    Trap = "trap", Guest;
    /// The function panicked.
    Panic = "panic", Guest;
    /// The function called `exit`.
    Exit = "exit", Guest;
    /// The stack is used up.
    StackOverflow = "stack-overflow", Guest;
    /// It asked for more linear memory than its limit.
    MemoryLimit = "memory-limit", Guest;
    /// It asked for a larger table than its limit.
    TableLimit = "table-limit", Guest;
    /// It ran longer than its limit.
    TimeOut = "time-out", Guest;
    /// It handed back more bytes than its limit.
    OutputLimit = "output-limit", Guest;
    /// What it handed back contradicts itself or the contract.
    BadOutput = "bad-output", Guest;
    /// It asked the host for something that is not there: a range outside its
    /// input, a group where there is none.
    BadRequest = "bad-request", Guest;
    /// The worker died while it ran, more often than is retried.
    WorkerLost = "worker-lost", Guest;
    /// It was cancelled, or its job was stopped.
    Cancelled = "cancelled", Job;
    /// The value of an object is gone, and it can't be made again.
    ObjectLost = "object-lost", Host;
    /// The actor that was called is not there any more: it failed, was killed, or its worker died more often than it is
    /// begun again.
    ActorDied = "actor-died", Guest;
    /// There is no actor of that name, or it has another type.
    NoActor = "no-actor", Job;
    /// There is an actor of that name already.
    NameTaken = "name-taken", Job;
    /// An actor has as many calls waiting as it may have.
    PendingCalls = "pending-calls", Job;
    /// There is no room for a value: not in memory, and not on disk.
    StoreFull = "store-full", Job;
    /// A call of an actor would wait for ever: it and the calls before it wait for each other.
    Deadlock = "deadlock", Guest;
    /// It waited longer for an object than it wanted to.
    GetTimeOut = "get-time-out", Guest;
    /// Its job has as many tasks as it may have, or they are nested as deep.
    TaskLimit = "task-limit", Job;
    /// The placement group that it is in was removed, or went with its job.
    GroupRemoved = "group-removed", Job;
    /// No node has what it asks for.
    Infeasible = "infeasible", Job;
    /// The file is no WebAssembly component.
    NotAComponent = "not-a-component", Job;
    /// The component was made for another version of the contract, or for none.
    Contract = "contract", Job;
    /// The component imports what is not granted.
    Import = "import", Job;
    /// The component has no function of that name, or one of another kind.
    Export = "export", Job;
    /// Input files are missing, or can't be read as what they claim to be.
    Input = "input", Job;
    /// Columns are missing or have a type that does not fit.
    Columns = "columns", Job;
    /// The values can't be used: nulls, NaN or infinities where numbers are due.
    Values = "values", Job;
    /// The component could not be compiled within its limits.
    Compile = "compile", Job;
    /// Something here failed: memory, files, processes.
    Host = "host", Host;
}

/// An error of a call, with what it was a call of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What happened.
    pub code: Code,
    /// What happened, in words: the thing, the limit, the value.
    pub message: String,
    /// `component#function`, once known.
    pub function: Option<String>,
    /// The group it happened to, where it happened to one.
    pub group: Option<String>,
}

impl Fault {
    /// A fault that does not know yet what it was a call of.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Fault { code, message: message.into(), function: None, group: None }
    }

    /// Names the function, unless it is named already.
    pub fn of(mut self, function: &str) -> Self {
        self.function.get_or_insert_with(|| function.to_owned());
        self
    }

    /// Names the group, unless it is named already.
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.group.get_or_insert_with(|| group.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "{function}: ")?;
        }
        if let Some(group) = &self.group {
            write!(f, "group {group}: ")?;
        }
        write!(f, "{} [{}]", self.message, self.code.as_str())
    }
}

impl std::error::Error for Fault {}

/// Why there is no value: what happened, and to which task it happened on behalf of which others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// What happened.
    pub fault: Fault,
    /// Names of the tasks from the job's first one down to that which it happened to.
    pub chain: Vec<String>,
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.chain.is_empty() {
            write!(f, "{}: ", self.chain.join(" > "))?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for TaskError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let mut texts: Vec<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Code::ALL.len());
    }

    #[test]
    fn a_fault_names_everything() {
        let fault = Fault::new(Code::TimeOut, "ran longer than 5 ms").of("models#tree").in_group("zone=7").of("other");
        assert_eq!(fault.to_string(), "models#tree: group zone=7: ran longer than 5 ms [time-out]");
    }
}
