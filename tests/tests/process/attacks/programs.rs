//! Attacks by programs: what tasks and actors try.

use super::Outcome::{Either, Fails, GoesOn, Says};
use super::{Attack, Kind, Outcome};

/// Answer to the use of any object of another job.
const ABSENT: Outcome = Says("bad-request: object # does not exist in this job");

const fn program(name: &'static str, what: &'static str, outcome: Outcome) -> Kind {
    Kind { name, what, attack: Attack::Program, outcome }
}

#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    // Numbers that belong to others.
    program("gets-objects-of-others", "gets objects by numbers that it guesses", ABSENT),
    program("reads-objects-of-others", "reads bytes of objects that it has not got", Says("bad-request")),
    program("maps-objects-of-others", "maps pages of objects that it has not got", Says("bad-request")),
    program("passes-objects-of-others", "passes guessed objects to tasks", Says("bad-request")),
    program("stores-objects-of-others", "stores guessed objects within a value", Says("bad-request")),
    program("returns-objects-of-others", "returns guessed objects within a value", Says("bad-request")),
    program("releases-objects-of-others", "releases objects that it does not hold", Says("released")),
    program("cancels-tasks-of-others", "cancels tasks by guessed numbers", Says("cancelled")),
    program("takes-items-of-others", "takes items of guessed streams", Says("bad-request")),
    program("kills-actors-of-others", "kills actors by guessed numbers", Says("killed")),
    program("calls-actors-of-others", "calls actors by guessed numbers", Says("no-actor")),
    program("removes-groups-of-others", "removes placement groups by guessed numbers", Says("removed")),
    program("opens-files-of-others", "opens files by guessed numbers", Says("bad-request: file # is not a file of the task's job")),
    program("awaits-objects-of-others", "awaits guessed objects outside of a method", Says("awaited")),
    // Malformed requests.
    program("submits-garbage", "submits tasks by bytes that are no request", Says("bad-request")),
    program("reserves-by-garbage", "reserves groups by bytes that are no request", Says("bad-request")),
    program("fails-with-garbage", "fails with bytes that are no error", Says("bad-request")),
    program("submits-unknown-functions", "submits functions that do not exist, with as many results as a number holds", Says("bad-request")),
    program("returns-and-yields-wrongly", "yields in a task, returns twice, reads beyond values, maps over its data", Says("bad-request")),
    // Actors.
    program("finds-actors-of-others", "looks for the victim's actor, by names that resemble its name", Says("no-actor")),
    program("squats-names", "names actors as the victim's", Says("ok")),
    program("names-with-tricks", "names actors by control and format characters, and by a MiB", Says("ok")),
    program("holds-processors", "leaves behind actors that hold all processors", Says("ok")),
    program("spins-in-actors", "computes in many actors that hold no processor", GoesOn),
    program("restarts-for-ever", "has an actor that always panics restarted", GoesOn),
    program("creates-without-end", "creates actors up to the limit", Says("tenant-limit after some: true")),
    program("piles-calls", "makes calls of an actor that never takes them", GoesOn),
    program("calls-itself", "has an actor wait for itself", Says("deadlock")),
    // Resources.
    program("demands-what-never-fits", "demands more than any node has", Says("infeasible")),
    program("demands-no-numbers", "demands amounts that are no numbers, negative or infinite", Says("bad-request")),
    program("demands-thousands-of-resources", "demands thousands of resources at once", Says("bad-request")),
    program("reserves-all-processors", "reserves all processors and sleeps", GoesOn),
    program("reserves-groups-without-end", "reserves groups up to the limit", Says("task-limit")),
    program("reserves-what-never-fits", "reserves groups that no node can hold", Says("infeasible")),
    program("reserves-memory", "reserves the node's memory and sleeps", Either(&GoesOn, &Says("infeasible"))),
    program("spins-without-processors", "computes in many tasks that demand no processor", GoesOn),
    program("spins", "computes in more tasks than there are processors", GoesOn),
    program("urges", "submits tasks of the highest priority", GoesOn),
    program("retries-without-end", "fails and is retried, without an end", GoesOn),
    program("exceeds-its-time", "submits tasks that must be interrupted", GoesOn),
    program("does-not-stop", "cancels tasks that compute on", GoesOn),
    program("sleeps-in-thousands", "sleeps in thousands of tasks", GoesOn),
    program("grabs-the-gpu", "demands a GPU in many tasks", Either(&Says("infeasible"), &Says("ok"))),
    // Floods.
    program("calls-the-host-for-ever", "calls the host in a loop", GoesOn),
    program("finds-for-ever", "looks for actors in a loop", GoesOn),
    program("logs-for-ever", "logs in a loop", GoesOn),
    program("logs-huge-lines", "logs lines of MiB", Says("logged")),
    program("logs-tricks", "logs control and format characters, and lines that resemble those of others", Says("logged")),
    program("prints-without-lines", "prints MiB without an end of a line", Says("printed")),
    program("progresses-under-many-names", "reports progress under thousands of names", Says("reported")),
    program("fails-for-ever", "fails with long messages in a loop", GoesOn),
    program("fails-with-much", "fails with a message of 40 MiB", Says("Some(true)")),
    program("returns-much", "returns a value of 3 GiB", Says("memory-limit")),
    program("results-in-much", "ends with a result that is too long for the store", Fails("output-limit")),
    program("passes-much", "passes arguments beyond its limit", Says("tenant-limit")),
    program("leaks-handles", "stores small values and never releases them", Says("tenant-limit")),
    program("leaks-results", "submits tasks and never releases their results", Says("tenant-limit")),
    program("fills-memory", "stores values in the node's memory up to the limit", Says("tenant-limit")),
    program("fills-disk", "stores large values up to the limit", Says("tenant-limit")),
    program("nests-references", "nests fifty thousand values, and releases them at once", Says("ok")),
    program("refers-to-one-often", "refers to one object 200,000 times in a value", Says("")),
    program("submits-for-ever", "submits tasks in a loop", GoesOn),
    program("piles-tasks", "submits tasks that wait for one that never ends", GoesOn),
    program("forks", "submits a tree of tasks whose leaves never end", GoesOn),
    program("digs", "submits itself within itself", Says("task-limit")),
    program("streams-without-a-consumer", "produces items that nobody takes", GoesOn),
    program("streams-without-end", "takes items of an endless stream", GoesOn),
    // Memory.
    program("probes-fresh-memory", "searches new pages for what other tasks left", Says("0")),
    program("probes-the-stack", "searches its stack for what other tasks left", Says("0")),
    program("probes-mapped-pages", "searches pages for values that other tasks had", Says("0")),
    program("writes-to-values", "writes to the pages of shared values", Says("true true")),
    program("grows-over-maps", "grows its memory to the end while values are mapped", Says("true true")),
    program("touches-much", "holds memory in many tasks that sleep", GoesOn),
    program("allocates-without-end", "allocates up to its limit", Fails("memory-limit")),
    program("recurses", "recurses up to the end of its stack", Fails("stack-overflow")),
    program("runs-into-traps", "traps, exits and aborts", Says("trap")),
    program("polls-the-clock", "reads the clock in a loop", GoesOn),
];
