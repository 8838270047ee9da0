//! Recorded tasks of a finished job: the node's times of tasks, which have no clock themselves.

use std::process::Command;

use serde::Deserialize;

use crate::failure::Failure;
use crate::paths;

/// More rows than a node keeps for one task name.
const ROWS_MAX: &str = "100000";

/// A finished task. Times are in nanoseconds since the start of the job.
#[derive(Debug, Deserialize)]
pub struct Record {
    id: String,
    pub name: String,
    pub state: String,
    pub begun_ns: Option<u64>,
    pub ended_ns: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Rows {
    tasks: Vec<Record>,
}

/// Returns the recorded tasks of a job.
pub fn read(job: &str) -> Result<Vec<Record>, Failure> {
    let mut list = Command::new(paths::program("host")?);
    let output = list.args(["list", "tasks", "--json", "--limit", ROWS_MAX, "--job", job]).output()?;
    if !output.status.success() {
        return Err(format!("host list tasks failed: {}", output.status).into());
    }
    Ok(serde_json::from_slice::<Rows>(&output.stdout)?.tasks)
}

/// Returns the nanoseconds between the starts of consecutive tasks, where both are recorded. Each task must have been
/// submitted at the end of the one before.
pub fn start_intervals(records: &[Record], name: &str) -> Vec<f64> {
    let named = records.iter().filter(|record| record.name == name);
    let mut starts: Vec<(u64, u64)> =
        named.filter_map(|record| Some((record.id.rsplit_once('-')?.1.parse().ok()?, record.begun_ns?))).collect();
    starts.sort_unstable();
    let consecutive = starts.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1);
    consecutive.map(|pair| pair[1].1.saturating_sub(pair[0].1) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_between_consecutive_tasks_of_a_name() {
        let record = |id: &str, name: &str, begun_ns| Record {
            id: id.to_owned(),
            name: name.to_owned(),
            state: "succeeded".to_owned(),
            begun_ns,
            ended_ns: None,
        };
        let records = [
            record("3-9", "f", Some(900)),
            record("3-10", "f", Some(1000)),
            record("3-11", "f", Some(1300)),
            record("3-12", "g", Some(1400)),
            record("3-13", "f", Some(1500)),
            record("3-14", "f", None),
        ];
        assert_eq!(start_intervals(&records, "f"), [100.0, 300.0]);
    }
}
