//! `cargo xtask bench NAME`: benchmarks that compare work in a sandbox with the same work natively or by peers.

mod boundary;
mod client;
mod dense;
mod failure;
mod gpu;
mod job;
mod job_runs;
mod jobs;
mod memory;
mod native;
mod objects;
mod paths;
mod peers;
mod programs;
mod records;
mod report;
mod sandbox;
mod served_node;
mod start;
mod tenants;
mod timing;
mod transfer;
mod udf;
mod walls;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use failure::Failure;
use peers::Peers;
use report::{Report, progress};
use sandbar_store::Heap;
use timing::Effort;

/// The host's allocator, so that native work uses the same one.
#[global_allocator]
static HEAP: Heap = Heap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Copies and mappings into and out of a sandbox by size, and the memory of many sandboxes over one object.
    Boundary,
    /// Fresh sandboxes per second, for one worker and for two.
    Start,
    /// 2 x 7M taxi trips: one linear model per zone and month, then three models.
    Training,
    /// A million groups of ten rows.
    SmallModels,
    /// Twenty forests of 8, 12, … 84 trees on California housing.
    Forest,
    /// Least squares of ten thousand small groups, by the host.
    Dense,
    /// Dense operations on a GPU, or on lavapipe without one, and a job on each device.
    Gpu,
    /// A scalar function of two integers.
    Udf,
    /// Tasks of a program: many in flight, one at a time, nested.
    Tasks,
    /// A million tasks that wait at once.
    Queue,
    /// Calls of an actor, and ten thousand live actors.
    Actors,
    /// Tasks submitted and awaited by a native client.
    Client,
    /// Large values, stored and read by many tasks; small values, stored and fetched.
    Objects,
    /// Objects between processes: one large, many small.
    Transfer,
    /// One object to eight processes.
    Broadcast,
    /// Tasks between nodes.
    Cluster,
    /// Tenants of one node: a victim beside others, fair shares, and the start of a tenant's worker.
    Tenants,
    /// Tasks and the main job in workers with their walls, and without.
    Walls,
    /// All benchmarks but `walls`, which needs a program of its own.
    All,
}

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench",
    about = "Compares work in a sandbox with the same work outside of it",
    after_help = "Examples:
  cargo xtask bench start
  cargo xtask bench training --peers
  cargo xtask bench gpu --peers
  cargo xtask bench training --runs 11 --pause 3
  cargo xtask bench forest --housing housing.csv --json
  cargo xtask bench small-models --groups 10000000

Each line compares figures of one run. --json prints one object per line:
{\"name\", \"value\", \"unit\", \"baseline\", \"baseline_value\", \"ratio\"}."
)]
struct Arguments {
    name: Name,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
    /// Also measure scikit-learn and Ray on the same data, or PyTorch on the same GPU. They are installed into separate
    /// virtual environments; PyTorch only if `python3` does not have it.
    #[arg(long)]
    peers: bool,
    /// Runs of each job; the median is reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Seconds to wait before each run of a job. Without a pause, a process finds only the memory at hand that the previous
    /// one released; after 3 s, a hypervisor that reclaims free memory has reclaimed all of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=60))]
    pause: u16,
    /// Rows of each month of `training`.
    #[arg(long, default_value_t = 7_000_000)]
    rows: u64,
    /// Groups of `small-models`.
    #[arg(long, default_value_t = 1_000_000)]
    groups: u64,
    /// Measure tiny workloads, which shows only that the benchmarks work.
    #[arg(long, conflicts_with_all = ["peers", "runs", "pause", "rows", "groups"])]
    brief: bool,
    /// California housing as CSV, for `forest`; by default, generated data of that shape.
    #[arg(long, value_name = "CSV")]
    housing: Option<PathBuf>,
}

impl Arguments {
    fn effort(&self) -> Effort {
        Effort {
            time: Duration::from_secs(1),
            rounds: 60,
            calls: 50_000,
            runs: usize::from(self.runs),
            pause: Duration::from_secs(self.pause.into()),
            rows: self.rows,
            groups: self.groups,
            forests: 20,
            fits: 10_000,
            tasks: 500_000,
            children: 1_000,
            width: 31,
            queued: 1_000_000,
            actors: 10_000,
            object_bytes: 64 << 20,
            puts: 200,
            readers: 40_000,
            moved_bytes: 1 << 30,
            broadcast_bytes: 256 << 20,
            victim_jobs: 30,
            victim_tasks: 200,
            tenants: 64,
            shared: Duration::from_secs(60),
            many_copies: true,
        }
    }
}

fn main() -> ExitCode {
    HEAP.set_up();
    let mut process_arguments = std::env::args().skip(1);
    let done = if process_arguments.next().as_deref() == Some(native::ARGUMENT) {
        run_natively(&process_arguments.next().unwrap_or_default())
    } else {
        run(&Arguments::parse())
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs a job natively and prints the number of its models.
fn run_natively(job: &str) -> Result<(), Failure> {
    let models = native::run(&serde_json::from_str(job)?)?;
    Ok(writeln!(std::io::stdout().lock(), "{models}")?)
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    std::fs::create_dir_all(paths::data()?)?;
    let report = Report::new(arguments.json);
    let effort = if arguments.brief { Effort::brief() } else { arguments.effort() };
    let selected = |name| arguments.name == name || arguments.name == Name::All;
    if gpu::is_measuring_process() {
        return gpu::run(report, effort, arguments.brief, arguments.peers);
    }
    let peers = (arguments.peers && arguments.name != Name::Gpu).then(Peers::install).transpose()?;
    if selected(Name::Boundary) {
        boundary::run(report, effort)?;
    }
    if selected(Name::Start) {
        start::run(report, effort)?;
    }
    if selected(Name::Dense) {
        dense::run(report, effort)?;
    }
    if selected(Name::Gpu) {
        gpu::run_in_process()?;
    }
    if selected(Name::Udf) {
        udf::run(report, effort)?;
    }
    if selected(Name::Tasks) {
        programs::tasks(report, effort, peers.as_ref())?;
    }
    if selected(Name::Queue) {
        programs::queue(report, effort, peers.as_ref())?;
    }
    if selected(Name::Actors) {
        programs::actors(report, effort, peers.as_ref())?;
    }
    if selected(Name::Client) {
        client::run(report, effort)?;
    }
    if selected(Name::Objects) {
        objects::run(report, effort, peers.as_ref())?;
    }
    if selected(Name::Transfer) {
        transfer::transfer(report, effort, peers.as_ref())?;
    }
    if selected(Name::Broadcast) {
        transfer::broadcast(report, effort)?;
    }
    if selected(Name::Cluster) {
        transfer::cluster(report, effort)?;
    }
    if selected(Name::Tenants) {
        tenants::run(report, effort)?;
    }
    if arguments.name == Name::Walls {
        walls::run(report, effort)?;
    }
    if selected(Name::Training) {
        jobs::training(report, effort, peers.as_ref())?;
    }
    if selected(Name::SmallModels) {
        jobs::small_models(report, effort, peers.as_ref())?;
    }
    if selected(Name::Forest) {
        jobs::forest(report, effort, arguments.housing.as_deref(), peers.as_ref())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn arguments_are_well_formed() {
        super::Arguments::command().debug_assert();
    }
}
