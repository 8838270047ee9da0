//! Errors of calls: a stable code, the party at fault, and a message that names the thing, the limit and the value.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The party at fault for an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The called code.
    Guest,
    /// The job: its file, its input, its choice of component.
    Job,
    /// The machine or the host program.
    Host,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $blame:ident;)*) => {
        /// An error code. The text form of a code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// Returns the stable text of the code.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)*
                }
            }

            /// Returns the party at fault.
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
    /// The guest exhausted its stack.
    StackOverflow = "stack-overflow", Guest;
    /// The guest requested more linear memory than its limit.
    MemoryLimit = "memory-limit", Guest;
    /// The guest requested a larger table than its limit.
    TableLimit = "table-limit", Guest;
    /// The call ran longer than its limit.
    TimeOut = "time-out", Guest;
    /// The guest returned more bytes than its limit.
    OutputLimit = "output-limit", Guest;
    /// The guest's output contradicts itself or the contract.
    BadOutput = "bad-output", Guest;
    /// The guest requested something that does not exist: a range outside its input, a group after the last one.
    BadRequest = "bad-request", Guest;
    /// The worker died during the call, and no retries were left.
    WorkerLost = "worker-lost", Guest;
    /// The call was cancelled, or its job was stopped.
    Cancelled = "cancelled", Job;
    /// The value of an object is lost and can't be recomputed.
    ObjectLost = "object-lost", Host;
    /// The called actor is dead: it failed, was killed, or its worker died and no restarts were left.
    ActorDied = "actor-died", Guest;
    /// No actor has that name, or the actor has another type.
    NoActor = "no-actor", Job;
    /// Another actor has that name already.
    NameTaken = "name-taken", Job;
    /// The actor has its maximum number of pending calls.
    PendingCalls = "pending-calls", Job;
    /// Neither memory nor disk has room for a value.
    StoreFull = "store-full", Job;
    /// A call of an actor would wait forever: it and the calls before it wait for each other.
    Deadlock = "deadlock", Guest;
    /// The wait for an object exceeded its time-out.
    GetTimeOut = "get-time-out", Guest;
    /// The job has its maximum number of tasks, or its tasks are nested to the maximum depth.
    TaskLimit = "task-limit", Job;
    /// The placement group of the task or actor was removed, or its job ended.
    GroupRemoved = "group-removed", Job;
    /// No node has the requested resources.
    Infeasible = "infeasible", Job;
    /// The file is not a WebAssembly component.
    NotAComponent = "not-a-component", Job;
    /// The component was built for another version of the contract, or for none.
    Contract = "contract", Job;
    /// The component imports an interface that is not granted.
    Import = "import", Job;
    /// The component has no function of the given name, or the function has another kind.
    Export = "export", Job;
    /// Input files are missing, or their contents do not match their format.
    Input = "input", Job;
    /// Columns are missing or have the wrong type.
    Columns = "columns", Job;
    /// The values can't be used: nulls, NaN or infinities where numbers are required.
    Values = "values", Job;
    /// The component could not be compiled within its limits.
    Compile = "compile", Job;
    /// The host failed: memory, files, processes.
    Host = "host", Host;
    /// Too many nodes were lost while they ran the job, so that no other node takes it over.
    TakeoverLimit = "takeover-limit", Job;
    /// The tenant has as many tasks, actors or bytes as it may.
    TenantLimit = "tenant-limit", Job;
}

/// An error of a call, with the function and group that it concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Error code.
    pub code: Code,
    /// Message that names the thing, the limit and the value.
    pub message: String,
    /// Function as `component#function`, once known.
    pub function: Option<String>,
    /// Group of rows, if the error concerns one.
    pub group: Option<String>,
}

impl Fault {
    /// Creates a fault without function and group.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Fault { code, message: message.into(), function: None, group: None }
    }

    /// Sets the function, unless it is set already.
    pub fn in_function(mut self, function: &str) -> Self {
        self.function.get_or_insert_with(|| function.to_owned());
        self
    }

    /// Sets the group, unless it is set already.
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

/// The error in place of an object's value, with the chain of tasks that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskError {
    /// Error of the failed task.
    pub fault: Fault,
    /// Names of tasks, from the job's first one down to the failed one.
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
        let fault = Fault::new(Code::TimeOut, "ran longer than 5 ms")
            .in_function("models#tree")
            .in_group("zone=7")
            .in_function("other");
        assert_eq!(fault.to_string(), "models#tree: group zone=7: ran longer than 5 ms [time-out]");
    }
}
