//! Nodes of a cluster with etcd die one after another while jobs run: each job has the result of an undisturbed run,
//! exactly once.
//!
//! `SANDBAR_SOAK_S` sets the duration, `SANDBAR_SOAK_EVERY_S` the interval of the kills. `SANDBAR_SEED` selects the
//! victims.

use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_seeds::number_from_env;
use sandbar_tests::{Lab, Model, Running, component, large_taxi_files, models, print_line, taxi_line};
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::job::{same_models, taxi_of};
use crate::takeover::{Etcd, Tenant};

/// Default duration in seconds.
const USUAL_S: u64 = 24;
const USUAL_EVERY_S: u64 = 8;
const NODES: usize = 3;
/// Maximum time until another node takes over a dead node's job. The test prints the actual time; the limit allows for
/// busy machines.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// Jobs that take longer are printed.
const LONG: Duration = Duration::from_secs(15);

fn number(name: &str, usual: u64) -> u64 {
    number_from_env(name).unwrap_or(usual)
}

/// Each node keeps the component and the code of three programs, and the code of the trainers.
const FILES_OF_PROGRAMS: usize = 7;

/// A kind of job: program, task, arguments and expected result.
type Kind = (&'static str, &'static str, &'static [&'static str], Value);

fn kinds() -> [Kind; 4] {
    [
        ("tests/programs/tasks", "tree_retried", &["depth=3", "width=8", "steps=300000"], json!(512)),
        ("tests/programs/actors", "counts", &["calls=100000"], json!(100_000)),
        ("tests/programs/actors", "keeps", &["objects=3000"], json!(2 * (0..3000).sum::<u64>())),
        ("tests/programs/objects", "passes", &["objects=100", "rows=100000"], json!(100)),
    ]
}

/// Runs a training job repeatedly, each time on a node of its own that joins for it.
struct Trainer {
    line: Vec<String>,
    running: Option<(Running, Instant)>,
    expected: Vec<Model>,
    ended: u64,
    remote: u64,
    longest: Duration,
}

impl Trainer {
    fn new(nodes: &Nodes, etcd: &Etcd) -> Trainer {
        let files = large_taxi_files();
        let (_, expected) = taxi_of(&files, &Lab::new(), &[]);
        let mut line = taxi_line(&files);
        line.extend(["--workers", "1", "--data", "trainer", "--meta", &etcd.address()].map(str::to_owned));
        line.extend(nodes.joins());
        Trainer { line, running: None, expected, ended: 0, remote: 0, longest: Duration::ZERO }
    }

    fn begin(&mut self, nodes: &Nodes) {
        let line: Vec<&str> = self.line.iter().map(String::as_str).collect();
        self.running = Some((nodes.lab.start(&line), Instant::now()));
    }

    /// If the job has ended, checks that its models equal those of a node that trains alone.
    fn check(&mut self, nodes: &Nodes) {
        let Some((job, since)) = self.running.take_if(|(job, _)| job.has_ended()) else { return };
        let ended = job.wait().expect_code(0);
        self.longest = self.longest.max(since.elapsed());
        if since.elapsed() > LONG {
            print_line(format_args!("a training job took {:?}: {}", since.elapsed(), ended.stderr));
        }
        same_models(&models(&nodes.lab.path("models.parquet")), &self.expected);
        self.remote += ended.json()["elsewhere"].as_u64().unwrap_or(0);
        self.ended += 1;
    }

    /// Kills the job with its node.
    fn die(&mut self) {
        if let Some((mut job, _)) = self.running.take() {
            job.kill();
        }
    }
}

#[test]
fn jobs_survive_the_death_of_any_node() {
    let (time, every) = (number("SANDBAR_SOAK_S", USUAL_S), number("SANDBAR_SOAK_EVERY_S", USUAL_EVERY_S));
    let seed = number("SANDBAR_SEED", u64::from(std::process::id()));
    print_line(format_args!("SANDBAR_SEED={seed}"));
    let mut random = Seed::new(seed);
    let etcd = Etcd::start();
    let mut nodes = Nodes::start_with(NODES, &["--meta", &etcd.address()]);
    let names: Vec<String> = (1..=NODES).map(|number| format!("node-{number}")).collect();
    let addresses: Vec<String> = names.iter().map(|name| nodes.address(name)).collect();
    let token = {
        let ada = Tenant::new(&nodes, "ada");
        // The founder admits the tenant.
        ada.host(&addresses[0], &["jobs", "list"]).expect_code(0);
        ada.token
    };
    let mut trainer = Trainer::new(&nodes, &etcd);
    let mut running: Vec<(Running, Value, Instant)> = Vec::new();
    let (start, mut last_kill) = (Instant::now(), Instant::now());
    let (mut ended, mut deaths, mut slowest, mut longest) = (0, 0, Duration::ZERO, Duration::ZERO);
    let mut submitted = 0;
    while start.elapsed() < Duration::from_secs(time) || !running.is_empty() || trainer.running.is_some() {
        let goes_on = start.elapsed() < Duration::from_secs(time);
        let ada = Tenant::known(&nodes, "ada", &token);
        // One job of each kind runs at a time.
        while goes_on && running.len() < kinds().len() {
            let (program, task, arguments, expected) = kinds()[submitted % kinds().len()].clone();
            let program = format!("{}#{task}", component(program).display());
            let mut line = vec!["submit", &program, "--json"];
            arguments.iter().for_each(|argument| line.extend(["--arg", argument]));
            let at = random.below(NODES as u32) as usize;
            running.push((ada.begin(&addresses[at], &line), expected, Instant::now()));
            submitted += 1;
        }
        let mut left = Vec::new();
        for (mut job, expected, since) in running {
            if !job.has_ended() {
                left.push((job, expected, since));
                continue;
            }
            let job = job.wait().expect_code(0);
            longest = longest.max(since.elapsed());
            if since.elapsed() > LONG {
                print_line(format_args!("a job took {:?}: {}", since.elapsed(), job.stderr));
            }
            assert_eq!(job.json()["result"], expected, "{}", job.stderr);
            ended += 1;
        }
        running = left;
        trainer.check(&nodes);
        if goes_on && trainer.running.is_none() {
            trainer.begin(&nodes);
        }
        if goes_on && last_kill.elapsed() > Duration::from_secs(every) {
            match random.below(NODES as u32 + 1) as usize {
                NODES => trainer.die(),
                victim => slowest = slowest.max(die(&mut nodes, &names, &addresses, victim, &token, &etcd)),
            }
            (deaths, last_kill) = (deaths + 1, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    print_line(format_args!("all had ended {:?} after the first was submitted", start.elapsed()));
    // Each job is listed once and has succeeded.
    let ada = Tenant::known(&nodes, "ada", &token);
    let listed = ada.host(&addresses[0], &["jobs", "list", "--limit", "1000", "--json"]).expect_code(0).json();
    let jobs = listed["jobs"].as_array().expect("a list");
    assert!(jobs.iter().all(|job| job["state"] == "succeeded"), "{jobs:?}");
    assert_eq!(jobs.len(), submitted, "{jobs:?}");
    let taken: u64 = jobs.iter().map(|job| job["taken"].as_u64().unwrap_or(0) - 1).sum();
    let Trainer { ended: trained, remote, longest: of_training, .. } = &trainer;
    print_line(format_args!("{trained} training jobs, the longest {of_training:?}; {remote} groups trained elsewhere"));
    assert!(*trained > 0);
    print_line(format_args!("{ended} jobs, {deaths} deaths, {taken} jobs taken over, the slowest after {slowest:?}"));
    let lasted =
        |job: &Value| job["ended_ms"].as_u64().unwrap_or(0).saturating_sub(job["submitted_ms"].as_u64().unwrap_or(0));
    let of_nodes = Duration::from_millis(jobs.iter().map(lasted).max().unwrap_or(0));
    print_line(format_args!("the longest job took its nodes {of_nodes:?}, and who submitted it {longest:?}"));
    // Only their programs' files remain.
    let left = || names.iter().map(|name| (name, files_of_objects(nodes.process(name)))).collect::<Vec<_>>();
    let since = Instant::now();
    while left().iter().any(|(_, files)| *files > FILES_OF_PROGRAMS) {
        assert!(since.elapsed() < Duration::from_secs(30), "files of objects that are left: {:?}", left());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the number of objects that a node has in memory files.
pub fn files_of_objects(process: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let objects = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    objects.filter(|link| link.to_string_lossy().contains("memfd:sandbar-object")).count()
}

/// Kills a node, waits until others have taken over its jobs, and restarts it. Returns the time until the takeover.
fn die(nodes: &mut Nodes, names: &[String], addresses: &[String], victim: usize, token: &str, etcd: &Etcd) -> Duration {
    let other = (victim + 1) % names.len();
    let list = |nodes: &Nodes| {
        let ada = Tenant::known(nodes, "ada", token);
        let listed = ada.host(&addresses[other], &["jobs", "list", "--limit", "1000", "--json"]);
        (listed.status.code() == Some(0)).then(|| listed.json()["jobs"].as_array().expect("a list").clone())
    };
    let before = list(nodes).unwrap_or_default();
    let own = before.iter().filter(|job| job["state"] == "running" && job["node"] == *names[victim]);
    let own: Vec<(Value, u64)> = own.map(|job| (job["id"].clone(), job["taken"].as_u64().unwrap_or(0))).collect();
    nodes.kill(&names[victim]);
    let since = Instant::now();
    loop {
        let is_over = list(nodes).is_some_and(|now| {
            own.iter().all(|(id, taken)| {
                let job = now.iter().find(|job| job["id"] == *id);
                job.is_some_and(|job| job["taken"].as_u64() > Some(*taken) || job["state"] == "succeeded")
            })
        });
        if is_over {
            break;
        }
        assert!(since.elapsed() < RECOVERY_MAX, "no node has taken over the jobs of {}", names[victim]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let duration = since.elapsed();
    print_line(format_args!("{} dies with {} jobs, which are others' after {duration:?}", names[victim], own.len()));
    nodes.come_back(&names[victim], &addresses[victim], &["--meta", &etcd.address()]);
    if own.is_empty() { Duration::ZERO } else { duration }
}
