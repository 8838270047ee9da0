//! The timeline of a job as Chrome trace events, which Perfetto opens. A process is a node; a thread is a lane of a worker.
//!
//! The format is defined in the document *Trace Event Format*: complete events (`X`), metadata events (`M`), and flow events
//! (`s`, `f`) from a task to each task that it submitted. Times are microseconds since the start of the job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use serde_json::{Value, json};

use crate::name::JobName;
use crate::rows::TaskRow;

/// Process id of all events. The timeline does not distinguish nodes.
const NODE_ID: u32 = 0;
/// Maximum lanes of a worker. Overlapping tasks of a worker are in different lanes.
const LANES_MAX: u64 = 10_000;

/// A task with its time span and its place in the timeline.
struct Slice<'a> {
    task: &'a TaskRow,
    worker: u32,
    start_ns: u64,
    end_ns: u64,
    lane: u64,
}

/// Returns the timeline of a job's tasks that finished in a worker, as a JSON object of trace events.
pub fn trace(job: &JobName, program: &str, tasks: &[TaskRow]) -> Value {
    let mut slices = slices(tasks);
    assign_lanes(&mut slices);
    let mut events = vec![metadata("process_name", 0, &format!("node {NODE_ID}: job {} {program}", job.short()))];
    let lanes: BTreeMap<u64, &Slice<'_>> = slices.iter().map(|slice| (slice.thread(), slice)).collect();
    events.extend(lanes.iter().flat_map(|(thread, slice)| {
        let name = match slice.lane {
            0 => format!("worker {}", slice.worker),
            lane => format!("worker {} ({})", slice.worker, lane + 1),
        };
        let order = json!({
            "ph": "M", "name": "thread_sort_index", "pid": NODE_ID, "tid": thread, "args": {"sort_index": thread},
        });
        [metadata("thread_name", *thread, &name), order]
    }));
    events.extend(slices.iter().map(Slice::event));
    let by_id: HashMap<&str, &Slice<'_>> = slices.iter().map(|slice| (slice.task.id.as_str(), slice)).collect();
    for (number, slice) in slices.iter().enumerate() {
        let parent = slice.task.parent.as_deref().and_then(|parent| by_id.get(parent));
        events.extend(parent.into_iter().flat_map(|parent| flow(number, parent, slice)));
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events, "otherData": { "job": job.as_str() } })
}

fn slices(tasks: &[TaskRow]) -> Vec<Slice<'_>> {
    let slice = |task: &'_ TaskRow| Some((task.worker?, task.begun_ns?, task.ended_ns?));
    let all = tasks.iter().filter_map(|task| {
        let (worker, start, end) = slice(task)?;
        Some(Slice { task, worker, start_ns: start, end_ns: end.max(start), lane: 0 })
    });
    all.collect()
}

/// Assigns each slice the first free lane of its worker. Slices of a worker overlap while tasks wait for others.
fn assign_lanes(slices: &mut [Slice<'_>]) {
    slices.sort_by_key(|slice| (slice.worker, slice.start_ns, Reverse(slice.end_ns)));
    let mut worker = None;
    let mut busy: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut lanes = 0;
    for slice in slices {
        if worker.replace(slice.worker) != Some(slice.worker) {
            (lanes, busy, free) = (0, BinaryHeap::new(), BinaryHeap::new());
        }
        while let Some(Reverse((end, lane))) = busy.peek().copied()
            && end <= slice.start_ns
        {
            busy.pop();
            free.push(Reverse(lane));
        }
        slice.lane = free.pop().map_or(lanes, |Reverse(lane)| lane).min(LANES_MAX - 1);
        lanes = lanes.max(slice.lane + 1);
        busy.push(Reverse((slice.end_ns, slice.lane)));
    }
}

impl Slice<'_> {
    fn thread(&self) -> u64 {
        u64::from(self.worker) * LANES_MAX + self.lane
    }

    fn event(&self) -> Value {
        let task = self.task;
        let mut args = json!({
            "task": task.id, "state": task.state, "attempts": task.attempts, "computed_ms": task.computed_ns.map(to_millis),
            "gpu_ms": task.gpu_ns.map(to_millis),
            "bytes_in": task.bytes_in, "bytes_out": task.bytes_out, "memory_bytes": task.memory_bytes,
        });
        if let Some(queued) = task.submitted_ns.map(|submitted| to_millis(self.start_ns.saturating_sub(submitted))) {
            args["before_it_began_ms"] = json!(queued);
        }
        if let Some(error) = &task.error {
            args["error"] = json!(format!("{} [{}]", error.message, error.code));
        }
        json!({
            "ph": "X", "cat": "task", "name": task.name, "pid": NODE_ID, "tid": self.thread(),
            "ts": to_micros(self.start_ns), "dur": to_micros(self.end_ns - self.start_ns), "args": args,
        })
    }
}

/// Returns the flow events from a task to one that it submitted.
fn flow(number: usize, parent: &Slice<'_>, child: &Slice<'_>) -> [Value; 2] {
    let submitted = child.task.submitted_ns.unwrap_or(child.start_ns).clamp(parent.start_ns, parent.end_ns);
    let common = |ph: &str, thread: u64, at: u64| json!({ "ph": ph, "cat": "task", "name": "submits", "id": number, "pid": NODE_ID, "tid": thread, "ts": to_micros(at) });
    let mut end = common("f", child.thread(), child.start_ns);
    end["bp"] = json!("e");
    [common("s", parent.thread(), submitted), end]
}

/// Returns a metadata event, which names a process or a thread.
fn metadata(kind: &str, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": kind, "pid": NODE_ID, "tid": thread, "args": { "name": name } })
}

fn to_micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

fn to_millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunState;

    fn task(id: &str, parent: Option<&str>, worker: u32, times: Option<(u64, u64)>) -> TaskRow {
        TaskRow {
            id: id.to_owned(),
            name: format!("name of {id}"),
            state: RunState::Succeeded,
            waits_for: None,
            parent: parent.map(str::to_owned),
            attempts: 1,
            worker: Some(worker),
            submitted_ns: times.map(|(start, _)| start.saturating_sub(500)),
            begun_ns: times.map(|(start, _)| start),
            ended_ns: times.map(|(_, end)| end),
            computed_ns: Some(10),
            gpu_ns: Some(0),
            bytes_in: Some(1),
            bytes_out: Some(2),
            memory_bytes: Some(3),
            error: None,
        }
    }

    fn job() -> JobName {
        "20260131-235959-123-4f3a9c".parse().unwrap()
    }

    /// Returns the worker and the lane of each task.
    fn lanes(tasks: &[TaskRow]) -> Vec<String> {
        let mut slices = slices(tasks);
        assign_lanes(&mut slices);
        slices.iter().map(|slice| format!("{} {}.{}", slice.task.id, slice.worker, slice.lane)).collect()
    }

    #[test]
    fn concurrent_tasks_get_different_lanes() {
        let tasks = [
            task("waits", None, 1, Some((0, 100))),
            task("first", None, 1, Some((10, 30))),
            task("beside", None, 1, Some((20, 50))),
            task("next", None, 1, Some((30, 40))),
            task("other", None, 2, Some((5, 6))),
            task("none", None, 2, None),
        ];
        assert_eq!(lanes(&tasks), ["waits 1.0", "first 1.1", "beside 1.2", "next 1.1", "other 2.0"]);
    }

    #[test]
    fn a_trace_has_slices_metadata_and_flows() {
        let mut failed = task("3-1", Some("0-0"), 3, Some((2000, 5000)));
        failed.error = Some(crate::ErrorRow { code: "trap".into(), message: "it trapped".into(), chain: vec![] });
        let trace = trace(&job(), "p.wasm", &[task("0-0", None, 2, Some((1000, 9000))), failed]);
        let events = trace["traceEvents"].as_array().unwrap();
        let of_phase = |ph: &str| events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        let slices = of_phase("X");
        assert_eq!(slices.len(), 2);
        assert_eq!(
            (&slices[1]["ts"], &slices[1]["dur"], &slices[1]["tid"]),
            (&json!(2.0), &json!(3.0), &json!(30_000))
        );
        assert_eq!(slices[1]["args"]["error"], "it trapped [trap]");
        assert_eq!((of_phase("M").len(), of_phase("s").len(), of_phase("f").len()), (5, 1, 1));
        // A flow starts within the slice of the submitting task.
        assert_eq!(
            (&of_phase("s")[0]["ts"], &of_phase("s")[0]["tid"], &of_phase("f")[0]["bp"]),
            (&json!(1.5), &json!(20_000), &json!("e"))
        );
        assert!(events.iter().all(|event| event["pid"].is_number() && event["tid"].is_number()));
    }
}
