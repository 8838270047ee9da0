//! Hostile guests, and other guests beside them that must not be affected.
//!
//! An attack is a component, one of its functions, and the expected outcome. Each runs in a job of its own with tight
//! limits, beside a harmless model in the same job and beside another user's taxi job.

mod batches;
pub mod components;
mod isolation;
mod polite;
mod requests;
mod trainers;

use std::cell::RefCell;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sandbar_tests::{CommandOutput, Lab, Model, component, models};

use crate::job::{self, taxi};

/// Expected outcome of an attack.
#[derive(Debug, Clone, Copy)]
pub enum Outcome {
    /// The job fails without output, and standard error contains `[code]` and these words.
    Job(&'static str, &'static str),
    /// Each group of the attacker's model fails with this code and these words.
    Groups(&'static str, &'static str),
    /// Some groups of the attacker's model fail so, the others are fitted.
    SomeGroups(&'static str, &'static str),
    /// The job succeeds.
    Harmless,
}

use Outcome::{Groups, Harmless, Job, SomeGroups};

/// Role in which an attack is called.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// As a transform of the job's rows.
    Transform,
    /// As a model beside the harmless one.
    Model,
}

/// Limits of one call of an attacker.
const LIMITS: &str =
    "memory_bytes_max = 67108864, output_bytes_max = 4194304, model_bytes_max = 1048576, log_bytes_max = 4096";
/// Time limit for attacks that end by themselves, on a busy machine, and for those that never end.
const TIME_MS: u32 = 20_000;
const SHORT_TIME_MS: u32 = 300;
/// Maximum bytes of messages of one attack, and per group.
const TALK_BYTES_MAX: usize = 64 << 10;
const TALK_BYTES_A_GROUP: usize = 200;

/// A lab with a table of rows, against which attacks run.
pub struct AttackLab {
    lab: Lab,
    groups: u32,
    /// Models of the harmless neighbour without an attack.
    undisturbed: Vec<Model>,
    /// Outcomes that differ from the expected ones.
    wrong: RefCell<Vec<String>>,
}

impl AttackLab {
    /// Creates a table of `groups` groups with `rows_each` rows; one group has a row more.
    pub fn new(groups: u32, rows_each: u32) -> AttackLab {
        let lab = Lab::new();
        let mut text = String::from("key,x,y\n");
        for row in 0..=groups * rows_each {
            let (key, x) = (row % groups, f64::from(row / groups));
            text.push_str(&format!("{key},{x:.1},{:.1}\n", f64::from(key + 1) * x + f64::from(row % 7)));
        }
        lab.write("rows.csv", text);
        lab.write("neighbour.toml", job_file("", &[]));
        lab.host(&["submit", "neighbour.toml", "--output", "undisturbed.parquet"]).expect_code(0);
        let undisturbed = models(&lab.path("undisturbed.parquet"));
        assert_eq!(undisturbed.len(), groups as usize);
        AttackLab { lab, groups, undisturbed, wrong: RefCell::default() }
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Runs `component#name`, and records an outcome that differs from the expected one.
    pub fn attack(&self, component: &Path, name: &str, called: Role, outcome: Outcome) {
        let udf = format!("{{ udf = \"{}#{name}\" }}", component.display());
        let job = match called {
            Role::Transform => job_file(&format!("transform = [{udf}]\n"), &[]),
            Role::Model => job_file("", &[udf]),
        };
        self.lab.write("attack.toml", job);
        let attacker = component.file_stem().unwrap_or_default().to_string_lossy();
        if let Err(problem) = self.check(name, called, outcome) {
            self.wrong.borrow_mut().push(format!("{attacker}#{name}: {problem}"));
        }
    }

    /// Runs the functions of a component, each with its expected outcome.
    pub fn attack_each(&self, component: &Path, called: Role, attacks: &[(&str, Outcome)]) {
        attacks.iter().for_each(|(name, outcome)| self.attack(component, name, called, *outcome));
    }

    fn check(&self, name: &str, called: Role, outcome: Outcome) -> Result<(), String> {
        let output = self.lab.path("attack.parquet");
        // Removes the previous attack's output.
        let _ = std::fs::remove_file(&output);
        let time_ms = match outcome {
            Job("time-out", _) | Groups("time-out", _) | SomeGroups("time-out", _) => SHORT_TIME_MS,
            _ => TIME_MS,
        };
        let limits = format!("limits={{ time_ms_max = {time_ms}, {LIMITS} }}");
        let ended = self.lab.host(&["submit", "attack.toml", "--json", "--output", "attack.parquet", "--set", &limits]);
        let printed = ended.stdout.len() + ended.stderr.len();
        ensure(printed < TALK_BYTES_MAX + TALK_BYTES_A_GROUP * self.groups as usize, || {
            format!("the host printed {printed} bytes of messages")
        })?;
        ensure(!ended.stderr.contains("thread '"), || format!("the host panics: {}", ended.stderr))?;
        ensure(!ended.stderr.contains(['\x1b', '\x07', '\r']), || {
            format!("it writes to the terminal: {:?}", ended.stderr)
        })?;
        let left = self.lab.names().into_iter().find(|n| n.starts_with("tmp/") || n.contains(".parquet."));
        ensure(left.is_none(), || format!("it leaves {}", left.unwrap_or_default()))?;
        match outcome {
            Job(code, expected_text) => {
                ensure(ended.status.code() == Some(1), || format!("{}, {}", ended.status, ended.stderr))?;
                let stderr = &ended.stderr;
                ensure(stderr.contains(&format!("[{code}]")) && stderr.contains(expected_text), || {
                    format!("instead of {expected_text} [{code}]: {stderr}")
                })?;
                ensure(!output.exists(), || "it failed, and something was written".into())
            }
            Groups(code, expected_text) => {
                self.check_groups(name, called, &ended, (self.groups, self.groups), code, expected_text)
            }
            SomeGroups(code, expected_text) => {
                self.check_groups(name, called, &ended, (1, self.groups - 1), code, expected_text)
            }
            Harmless => self.check_groups(name, called, &ended, (0, 0), "", ""),
        }
    }

    /// Checks the number of the attacker's failed groups, and that none of the neighbour's failed.
    fn check_groups(
        &self,
        name: &str,
        called: Role,
        ended: &CommandOutput,
        failed: (u32, u32),
        code: &str,
        expected_text: &str,
    ) -> Result<(), String> {
        let expected = i32::from(failed.0 > 0);
        ensure(ended.status.code() == Some(expected) && !ended.stdout.is_empty(), || {
            format!("{}, {}{}", ended.status, ended.stdout, ended.stderr)
        })?;
        let json = ended.json();
        let none = Vec::new();
        let failures = json["failures"].as_array().unwrap_or(&none);
        let count = failures.len() as u32;
        ensure(failed.0 <= count && count <= failed.1 && json["failed"] == count, || {
            format!("{failed:?} groups must fail: {json}")
        })?;
        for failure in failures {
            let message = failure["message"].as_str().unwrap_or_default();
            let expected = failure["model"] == name && failure["code"] == code && message.contains(expected_text);
            ensure(expected, || format!("instead of {expected_text} [{code}]: {failure}"))?;
        }
        let (mut neighbour, attacker): (Vec<_>, Vec<_>) =
            models(&self.lab.path("attack.parquet")).into_iter().partition(|m| m.model == "linear");
        // The rank depends on the other models of the group.
        neighbour.iter_mut().for_each(|m| m.rank = 1);
        ensure(neighbour == self.undisturbed, || "its neighbour's models are not what they were".into())?;
        let fitted = match called {
            Role::Transform => 0,
            Role::Model => self.groups - count,
        };
        ensure(attacker.len() == fitted as usize, || {
            format!("{} models of its own instead of {fitted}", attacker.len())
        })
    }
}

impl Drop for AttackLab {
    fn drop(&mut self) {
        let wrong = self.wrong.take();
        if !wrong.is_empty() && !std::thread::panicking() {
            panic!("{} attacks had an unexpected outcome:\n{}", wrong.len(), wrong.join("\n"));
        }
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Returns a job with the harmless model and `others`.
fn job_file(transform: &str, others: &[String]) -> String {
    let linear = format!("{{ udf = \"{}#linear\" }}", component("udfs/models").display());
    let models = std::iter::once(linear).chain(others.iter().cloned()).collect::<Vec<_>>().join(", ");
    format!(
        "{transform}[input]\npaths = [\"rows.csv\"]\n\
         [train]\ngroup_by = [\"key\"]\nfeatures = [\"x\"]\ntarget = \"y\"\nmodels = [{models}]\n\
         [output]\npath = \"models.parquet\"\n"
    )
}

/// Runs the functions of a program of hostile guests against small groups, beside a victim.
pub fn attack_beside_a_victim(program: &str, attacks: &[(Role, &[(&str, Outcome)])]) {
    beside_a_victim(|| {
        let (attack_lab, program) = (AttackLab::new(4, 10), component(program));
        attacks.iter().for_each(|(called, attacks)| attack_lab.attack_each(&program, *called, attacks));
    });
}

/// Runs `attacks` while another user's taxi job runs repeatedly, whose models must equal those of an undisturbed run.
pub fn beside_a_victim(attacks: impl FnOnce()) {
    static QUIET: OnceLock<Vec<Model>> = OnceLock::new();
    let quiet = QUIET.get_or_init(|| taxi(&Lab::new(), &[]).1);
    let over = AtomicBool::new(false);
    /// Sets a flag when dropped, also if a check panics.
    struct SetOnDrop<'a>(&'a AtomicBool);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| {
            let lab = Lab::new();
            loop {
                let (json, models) = taxi(&lab, &[]);
                assert_eq!(json["failed"], 0, "{json}");
                job::same_models(&models, quiet);
                if over.load(Relaxed) {
                    return;
                }
            }
        });
        let ended = SetOnDrop(&over);
        attacks();
        drop(ended);
        victim.join().expect("the victim's models are what they were");
    });
}
