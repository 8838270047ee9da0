//! Tenants of a node beside each other: a victim beside others that take all they get, fair shares, and the cost of a
//! tenant's first job.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::Failure;
use crate::paths;
use crate::programs::PROGRAM;
use crate::report::{Report, progress};
use crate::served_node::ServedNode;
use crate::timing::{Effort, median};

/// Steps of a task of `mark` that take about a millisecond.
const STEPS_PER_MS: u64 = 400_000;
/// Milliseconds of tasks, and unfinished tasks at once, of tenants with unequal appetites.
const TASK_MS: [u64; 5] = [1, 3, 10, 30, 100];
const AT_ONCE: [u64; 4] = [2, 4, 8, 32];
/// Weights of tenants, and the milliseconds of their tasks.
const WEIGHTS: [u64; 3] = [100, 200, 400];
const WEIGHTED_TASK_MS: u64 = 10;
/// Time until all workers have started.
const WARM_UP: Duration = Duration::from_secs(3);
/// Number of tenants that take all they get, beside the victim.
const HOGS: [usize; 2] = [1, 4];

/// A tenant of a node.
struct Tenant<'a> {
    node: &'a ServedNode,
    program: PathBuf,
    name: String,
    token: String,
}

impl<'a> Tenant<'a> {
    fn new(node: &'a ServedNode, program: &std::path::Path, name: &str, weight: u64) -> Result<Tenant<'a>, Failure> {
        node.run(&["tenant", "add", name, "--weight", &weight.to_string(), "--data", "1"])?;
        let token = node.run(&["tenant", "token", name, "--data", "1"])?.trim().to_owned();
        Ok(Tenant { node, program: program.to_owned(), name: name.to_owned(), token })
    }

    fn run(&self, line: &[&str]) -> Result<Value, Failure> {
        let own = ["--node", &self.node.address, "--data", &self.name, "--token", &self.token, "--json"];
        let output = self.node.run(&[line, &own].concat())?;
        Ok(serde_json::from_str(&output)?)
    }

    /// Submits a task, and returns the output of the command.
    fn submit(&self, task: &str, arguments: &[(&str, u64)], more: &[&str]) -> Result<Value, Failure> {
        let program = format!("{}#{task}", self.program.display());
        let arguments: Vec<String> = arguments.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
        self.run(&["submit", &program].into_iter().chain(more.iter().copied()).chain(arguments).collect::<Vec<_>>())
    }

    /// Starts a job that runs until it is stopped, and returns its id.
    fn begin(&self, task: &str, arguments: &[(&str, u64)]) -> Result<String, Failure> {
        let job = self.submit(task, arguments, &["--no-wait"])?;
        Ok(job["id"].as_str().ok_or("the job has no id")?.to_owned())
    }

    /// Runs a job, and returns the milliseconds from its submission, with its component loaded, to its end.
    fn job_ms(&self, task: &str, arguments: &[(&str, u64)]) -> Result<f64, Failure> {
        let job = self.submit(task, arguments, &["--quiet"])?;
        let time = |field: &str| job[field].as_u64().ok_or_else(|| format!("`{field}` is missing in {job}"));
        Ok(time("ended_ms")?.saturating_sub(time("submitted_ms")?) as f64)
    }

    /// Returns the finished tasks of `mark` of a job, and when.
    fn finished(&self, job: &str) -> Result<(f64, Instant), Failure> {
        let summary = self.run(&["summary", "tasks", "--job", job])?;
        let names = summary["names"].as_array().ok_or("a summary has names")?;
        let tasks = names.iter().find(|row| row["name"] == "mark").and_then(|row| row["succeeded"].as_f64());
        Ok((tasks.unwrap_or(0.0), Instant::now()))
    }
}

/// Returns the steps per second of the jobs of tenants, whose tasks have these steps, over `time`.
fn rates(jobs: &[(&Tenant<'_>, String, u64)], time: Duration) -> Result<Vec<f64>, Failure> {
    let count = || jobs.iter().map(|(tenant, job, _)| tenant.finished(job)).collect::<Result<Vec<_>, _>>();
    let before = count()?;
    sleep(time);
    let after = count()?;
    let mut rates = Vec::with_capacity(jobs.len());
    for ((before, after), (_, _, steps)) in before.iter().zip(&after).zip(jobs) {
        rates.push((after.0 - before.0) * *steps as f64 / after.1.duration_since(before.1).as_secs_f64());
    }
    Ok(rates)
}

/// Returns Jain's index of fairness: 1 for equal values, and 1 divided by their number if one has everything.
fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (values.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

/// Measures a victim beside others, fair shares, and the start of a tenant's worker.
pub fn run(report: Report, effort: Effort) -> Result<(), Failure> {
    let program = paths::guest(PROGRAM)?;
    beside_hogs(report, effort, &program)?;
    equal_shares(report, effort, &program)?;
    weights(report, effort, &program)?;
    first_jobs(report, effort, &program)
}

fn beside_hogs(report: Report, effort: Effort, program: &std::path::Path) -> Result<(), Failure> {
    let node = ServedNode::start()?;
    let victim = Tenant::new(&node, program, "victim", 100)?;
    let arguments = [("tasks", effort.victim_tasks), ("steps", STEPS_PER_MS)];
    let measure = || -> Result<Vec<f64>, Failure> {
        (0..effort.victim_jobs).map(|_| victim.job_ms("works", &arguments)).collect()
    };
    let percentile = |times: &[f64], share: f64| {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
    };
    victim.job_ms("works", &arguments)?;
    let alone = measure()?;
    let mut hogs = Vec::new();
    for count in HOGS {
        while hogs.len() < count {
            let hog = Tenant::new(&node, program, &format!("hog-{}", hogs.len()), 100)?;
            hog.begin("hungry", &[("at_once", 32), ("steps", 100 * STEPS_PER_MS)])?;
            hogs.push(hog);
        }
        sleep(WARM_UP.min(effort.shared * 2));
        let beside = measure()?;
        let name = format!("tenants/job of {} tasks of 1 ms beside {count} hogs", effort.victim_tasks);
        for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
            let (here, before) = (percentile(&beside, share), percentile(&alone, share));
            report.compare(&format!("{name}, {label}"), here, "ms", "alone", before);
        }
    }
    Ok(())
}

fn equal_shares(report: Report, effort: Effort, program: &std::path::Path) -> Result<(), Failure> {
    let node = ServedNode::start()?;
    progress(&format!("{} tenants start, each with a component of its own to compile", effort.tenants));
    let names = (0..effort.tenants).map(|number| format!("tenant-{number}"));
    let tenants = names.map(|name| Tenant::new(&node, program, &name, 100)).collect::<Result<Vec<_>, _>>()?;
    let mut jobs = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let steps = TASK_MS[number % TASK_MS.len()] * STEPS_PER_MS;
        let at_once = AT_ONCE[number / TASK_MS.len() % AT_ONCE.len()];
        jobs.push((tenant, tenant.begin("hungry", &[("at_once", at_once), ("steps", steps)])?, steps));
    }
    sleep(WARM_UP.min(effort.shared * 2));
    let rates = rates(&jobs, effort.shared)?;
    let name = format!("tenants/Jain's index of {} with unequal appetites", effort.tenants);
    report.value(&name, jain(&rates), "");
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let (least, most) =
        rates.iter().fold((f64::INFINITY, 0f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    report.value("tenants/least share of them", least / mean, "of mean");
    report.value("tenants/largest share of them", most / mean, "of mean");
    // Which tenants get less, if any do.
    let share = |of: &dyn Fn(usize) -> bool| {
        let chosen: Vec<f64> = (0..rates.len()).filter(|number| of(*number)).map(|number| rates[number]).collect();
        chosen.iter().sum::<f64>() / chosen.len().max(1) as f64 / mean
    };
    for (index, ms) in TASK_MS.iter().enumerate() {
        let share = share(&|number| number % TASK_MS.len() == index);
        report.value(&format!("tenants/share of those with tasks of {ms} ms"), share, "of mean");
    }
    for (index, at_once) in AT_ONCE.iter().enumerate() {
        let share = share(&|number| number / TASK_MS.len() % AT_ONCE.len() == index);
        report.value(&format!("tenants/share of those with {at_once} tasks at once"), share, "of mean");
    }
    Ok(())
}

fn weights(report: Report, effort: Effort, program: &std::path::Path) -> Result<(), Failure> {
    let node = ServedNode::start()?;
    let tenants = WEIGHTS.iter().map(|weight| Tenant::new(&node, program, &format!("weight-{weight}"), *weight));
    let tenants = tenants.collect::<Result<Vec<_>, _>>()?;
    let steps = WEIGHTED_TASK_MS * STEPS_PER_MS;
    let mut jobs = Vec::new();
    for tenant in &tenants {
        jobs.push((tenant, tenant.begin("hungry", &[("at_once", 32), ("steps", steps)])?, steps));
    }
    sleep(WARM_UP.min(effort.shared * 2));
    let rates = rates(&jobs, effort.shared)?;
    for (weight, rate) in WEIGHTS.iter().zip(&rates).skip(1) {
        let name = format!("tenants/share of weight {weight}");
        report.compare(&name, rate / rates[0], "x", "its weight", *weight as f64 / WEIGHTS[0] as f64);
    }
    Ok(())
}

/// Compares the first job of a tenant, for which a worker starts, with the next one.
fn first_jobs(report: Report, effort: Effort, program: &std::path::Path) -> Result<(), Failure> {
    let node = ServedNode::start()?;
    let (mut first, mut next) = (Vec::new(), Vec::new());
    for number in 0..effort.victim_jobs {
        let tenant = Tenant::new(&node, program, &format!("new-{number}"), 100)?;
        let job = || tenant.job_ms("works", &[("tasks", 1), ("steps", 1)]);
        first.push(job()?);
        next.push(job()?);
    }
    report.compare(
        "tenants/first job of a tenant, with a worker's start",
        median(first),
        "ms",
        "next job",
        median(next),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn the_index_of_fairness_has_its_bounds() {
        assert_eq!((jain(&[2.0; 5]), jain(&[1.0, 0.0, 0.0, 0.0])), (1.0, 0.25));
        assert_eq!(jain(&[0.0; 3]), 0.0);
    }
}
