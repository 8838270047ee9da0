//! What a node has kept of the tasks of a job that has ended: they have no clock, it has.

use std::process::Command;

use serde::Deserialize;

use crate::{Failure, places};

/// More than are kept of one name.
const ROWS_MAX: &str = "100000";

/// A task that has ended in a worker, if it began. Times are in nanoseconds since the job began.
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

/// Those of a job.
pub fn of(job: &str) -> Result<Vec<Record>, Failure> {
    let mut list = Command::new(places::program("host")?);
    let output = list.args(["list", "tasks", "--json", "--limit", ROWS_MAX, "--job", job]).output()?;
    if !output.status.success() {
        return Err(format!("host list tasks ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice::<Rows>(&output.stdout)?.tasks)
}

/// How long it took from the begin of each task to the begin of the next, in nanoseconds, where both are kept: of tasks of
/// which each was submitted when the one before had ended.
pub fn paces(records: &[Record], name: &str) -> Vec<f64> {
    let named = records.iter().filter(|record| record.name == name);
    let mut begun: Vec<(u64, u64)> =
        named.filter_map(|record| Some((record.id.rsplit_once('-')?.1.parse().ok()?, record.begun_ns?))).collect();
    begun.sort_unstable();
    let neighbours = begun.windows(2).filter(|pair| pair[1].0 == pair[0].0 + 1);
    neighbours.map(|pair| pair[1].1.saturating_sub(pair[0].1) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_of_neighbours_of_a_name() {
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
        assert_eq!(paces(&records, "f"), [100.0, 300.0]);
    }
}
