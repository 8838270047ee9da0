//! A node with a victim and its attackers.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_tests::children;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::client::{Account, Program};
use super::{Attack, Kind, Outcome};
use crate::cluster::Nodes;
use crate::door::status_kib;

pub const HOSTILE_PROGRAM: &str = "tests/hostile/program";
/// Program and steps of each task of the victim's job.
const VICTIM_PROGRAM: &str = "tests/programs/tasks";
const VICTIM_STEPS: u64 = 2_000_000;
/// Values of the victim's job, and numbers in each: see `honest` of the program.
const VALUES: u64 = 4;
const NUMBERS: u64 = 4096;
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The number that the victim's actor keeps.
const KEPT: u64 = 7;
/// Maximum time of the victim's job, on a busy machine.
const VICTIM_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum time until a stopped job has ended.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);
/// Limits of each attacker, so that attacks soon meet them.
pub const ATTACKER_LIMITS: [(&str, &str); 5] = [
    ("--memory-bytes-max", "32MiB"),
    ("--object-bytes-max", "64MiB"),
    ("--actors-max", "100"),
    ("--tasks-max", "200000"),
    ("--jobs-max", "8"),
];

pub struct Scene {
    pub nodes: Nodes,
    pub runtime: Runtime,
    pub victim: Account,
    pub attackers: Vec<Account>,
    /// The victim's last job.
    victim_job: Mutex<String>,
    program: Program,
}

impl Scene {
    /// Starts a node with these arguments for a victim and attackers, and has the victim's job run once.
    pub fn start(attackers: usize, node_arguments: &[&str]) -> Scene {
        let nodes = Nodes::start_with(1, node_arguments);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let victim = runtime.block_on(Account::new(&nodes, "ada"));
        let names = (0..attackers).map(|number| format!("mallory-{number}"));
        let attackers: Vec<Account> = names.map(|name| runtime.block_on(Account::new(&nodes, &name))).collect();
        for attacker in &attackers {
            let limits = ATTACKER_LIMITS.iter().flat_map(|(name, value)| [*name, *value]);
            let line: Vec<&str> = ["tenant", "set", &attacker.name, "--data", "1"].into_iter().chain(limits).collect();
            nodes.lab.host(&line).expect_code(0);
        }
        let program = Program::of(VICTIM_PROGRAM);
        let scene = Scene { nodes, runtime, victim, attackers, victim_job: Mutex::default(), program };
        scene.victim_run(0).unwrap();
        scene
    }

    /// Returns the id of the victim's last job.
    pub fn victim_job(&self) -> String {
        self.victim_job.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs the victim's job and returns the time that it took.
    ///
    /// # Errors
    /// Fails if its result is wrong, or if it takes too long.
    pub fn victim_run(&self, seed: u64) -> Result<Duration, String> {
        let since = Instant::now();
        let (text, steps) = (seed.to_string(), VICTIM_STEPS.to_string());
        let ended = self.runtime.block_on(async {
            let job = self.victim.submit(&self.program, "honest", &[("seed", &text), ("steps", &steps)]).await?;
            *self.victim_job.lock().unwrap_or_else(PoisonError::into_inner) = job.clone();
            Ok::<_, String>(self.victim.ended(&job, VICTIM_TIME_MAX).await)
        })?;
        let ended = ended.ok_or_else(|| format!("the victim's job did not end within {VICTIM_TIME_MAX:?}"))?;
        if ended["result"] == json!(expected_result(seed)) {
            Ok(since.elapsed())
        } else {
            Err(format!("the victim's job ended so: {ended}"))
        }
    }

    /// Has an attacker run a kind of attack, and returns what was observed. `meanwhile` is called during the attack, and
    /// again if it leaves actors behind.
    pub fn attack(&self, attacker: &Account, kind: &Kind, time: Duration, meanwhile: &dyn Fn()) -> Observed {
        match &kind.attack {
            Attack::Door(attack) => {
                let observed = attack(self, attacker);
                meanwhile();
                Observed::Said(observed)
            }
            Attack::Program => self.run(attacker, kind.name, time, meanwhile),
        }
    }

    fn run(&self, attacker: &Account, kind: &str, time: Duration, meanwhile: &dyn Fn()) -> Observed {
        let arguments = [("kind", kind)];
        let submitted = self.runtime.block_on(attacker.submit(&Program::of(HOSTILE_PROGRAM), "attack", &arguments));
        let job = match submitted {
            Ok(job) => job,
            Err(refusal) => return Observed::Said(refusal),
        };
        meanwhile();
        let observed = self.runtime.block_on(async {
            match attacker.ended(&job, time).await {
                Some(job) => Observed::of_job(&job),
                None if attacker.stop(&job, STOP_TIME_MAX).await => Observed::WentOn,
                None => Observed::DidNotStop,
            }
        });
        if self.runtime.block_on(attacker.has_actors()) {
            meanwhile();
            self.runtime.block_on(attacker.end_actors());
        }
        observed
    }

    /// Returns why the node is not well, if it is not.
    pub fn problem(&mut self) -> Option<String> {
        let node = &mut self.nodes.running[0];
        let log = node.stderr_so_far();
        let panics = log.lines().find(|line| line.contains("panicked at")).map(str::to_owned);
        panics.or_else(|| node.has_ended().then(|| format!("the node has ended: {log}")))
    }

    /// Returns the memory of the node.
    pub fn memory(&self) -> NodeMemory {
        let node = self.nodes.process("node-1");
        let (own, shared) = memory_bytes(node);
        let others: Vec<(u64, u64)> = children(node).into_iter().map(memory_bytes).collect();
        NodeMemory {
            own,
            others: others.iter().map(|(own, _)| own).sum(),
            shared: others.iter().fold(shared, |sum, (_, shared)| sum + shared),
        }
    }

    /// Forgets the peak memory of the node's process.
    pub fn reset_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.nodes.process("node-1")), "5");
    }

    /// Returns the peak resident memory of the node's process since it was reset, with what it shares, in bytes.
    pub fn peak_memory(&self) -> u64 {
        status_kib(self.nodes.process("node-1"), "VmHWM") << 10
    }
}

/// Resident memory of a node's processes in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeMemory {
    /// Memory of the node's process alone.
    pub own: u64,
    /// Memory that each of its children has alone.
    pub others: u64,
    /// Memory files, which processes share: objects, code, rings.
    pub shared: u64,
}

impl NodeMemory {
    /// Returns the larger of each.
    pub fn max(self, other: NodeMemory) -> NodeMemory {
        NodeMemory {
            own: self.own.max(other.own),
            others: self.others.max(other.others),
            shared: self.shared.max(other.shared),
        }
    }
}

/// Returns the resident bytes of a process, proportionally: its own, and those of memory files; zero if it has ended.
fn memory_bytes(process: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) << 10
    };
    (bytes("Pss_Anon:") + bytes("Pss_File:"), bytes("Pss_Shmem:"))
}

/// Returns the result of `honest` of the victim's program.
fn expected_result(seed: u64) -> u64 {
    let numbers = |value: u64| (0..NUMBERS).map(move |at| ((seed + value) << 16 ^ at).wrapping_mul(FACTOR));
    let sum = (0..VALUES).flat_map(numbers).fold(0, u64::wrapping_add);
    (sum >> 16) + KEPT
}

/// What came of an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// It reported a text, or was refused with one.
    Said(String),
    /// Its job failed with this code and message.
    Failed(String, String),
    /// It had not ended in time, and was stopped.
    WentOn,
    /// It could not be stopped.
    DidNotStop,
}

impl Observed {
    fn of_job(job: &Value) -> Observed {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match job["error"]["code"].as_str() {
            Some(code) => Observed::Failed(code.to_owned(), text(&job["error"]["message"])),
            None => Observed::Said(text(&job["result"])),
        }
    }

    pub fn matches(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Observed::Said(text), Outcome::Says(expected)) => text.contains(expected),
            (Observed::Failed(code, _), Outcome::Fails(expected)) => code == expected,
            (Observed::WentOn, Outcome::GoesOn) => true,
            (_, Outcome::Either(first, second)) => self.matches(first) || self.matches(second),
            _ => false,
        }
    }
}
