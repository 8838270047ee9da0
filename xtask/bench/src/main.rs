//! `cargo xtask bench NAME`: each benchmark does the work it names, beside the same work outside a sandbox.

mod boundary;
mod client;
mod dense;
mod gpu;
mod job;
mod jobs;
mod memory;
mod native;
mod objects;
mod peers;
mod places;
mod programs;
mod records;
mod report;
mod sandbox;
mod start;
mod timing;
mod transfer;
mod udf;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use peers::Peers;
use report::{Report, say};
use sandbar_store::Heap;
use timing::Effort;

type Failure = Box<dyn std::error::Error>;

/// As in the host, so that both have the same.
#[global_allocator]
static HEAP: Heap = Heap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// The ways in and out of a sandbox by size, and what many sandboxes over one object cost.
    Boundary,
    /// Fresh sandboxes a second, for one worker and for two.
    Start,
    /// 2 x 7M taxi trips: a linear model a zone and month, then three models each.
    Training,
    /// A million groups of ten rows.
    SmallModels,
    /// Twenty forests of 8, 12, … 84 trees on California housing.
    Forest,
    /// Least squares of ten thousand small groups, in the host.
    Dense,
    /// Dense operations on a GPU, or on lavapipe where there is none, and a job on each device.
    Gpu,
    /// A scalar function of two integers.
    Udf,
    /// Tasks of a program: many in flight, one at a time, nested.
    Tasks,
    /// A million tasks that wait at once.
    Queue,
    /// Calls of an actor, and ten thousand actors that are alive.
    Actors,
    /// Tasks submitted and awaited by a native client.
    Client,
    /// Large values stored, read by many tasks; small ones stored and got.
    Objects,
    /// Objects between processes: one large one, many small ones.
    Transfer,
    /// One object to eight processes.
    Broadcast,
    /// Tasks between nodes.
    Cluster,
    /// All of them.
    All,
}

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench",
    about = "Measures in a sandbox beside the same work outside of it",
    after_help = "Examples:
  cargo xtask bench start
  cargo xtask bench training --peers
  cargo xtask bench gpu --peers
  cargo xtask bench training --runs 11 --pause 3
  cargo xtask bench forest --housing housing.csv --json
  cargo xtask bench small-models --groups 10000000

Every line compares within one run. --json prints one object a line:
{\"name\", \"value\", \"unit\", \"baseline\", \"baseline_value\", \"ratio\"}."
)]
struct Arguments {
    name: Name,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Measures scikit-learn and Ray on the same data too, or PyTorch on the same GPU; they are installed into virtual
    /// environments of their own, PyTorch unless `python3` has it.
    #[arg(long)]
    peers: bool,
    /// Runs of which the median is given, of jobs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Seconds to wait before each run of a job. Otherwise a process finds the memory that the last one gave back at
    /// hand, and no more; after 3 s the host of a virtual machine, where it takes free memory back, has all of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=60))]
    pause: u16,
    /// Rows of each month of `training`.
    #[arg(long, default_value_t = 7_000_000)]
    rows: u64,
    /// Groups of `small-models`.
    #[arg(long, default_value_t = 1_000_000)]
    groups: u64,
    /// Little of each: shows that the benchmarks work, and not how fast anything is.
    #[arg(long, conflicts_with_all = ["peers", "runs", "pause", "rows", "groups"])]
    brief: bool,
    /// California housing as CSV, for `forest`; by default made data of that shape.
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
            many_copies: true,
        }
    }
}

fn main() -> ExitCode {
    HEAP.set_up();
    let mut given = std::env::args().skip(1);
    let done = if given.next().as_deref() == Some(native::ARGUMENT) {
        run_natively(&given.next().unwrap_or_default())
    } else {
        run(&Arguments::parse())
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Does a job natively, and prints how many models it made.
fn run_natively(job: &str) -> Result<(), Failure> {
    let models = native::run(&serde_json::from_str(job)?)?;
    Ok(writeln!(std::io::stdout().lock(), "{models}")?)
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    std::fs::create_dir_all(places::data()?)?;
    let report = Report::new(arguments.json);
    let effort = if arguments.brief { Effort::brief() } else { arguments.effort() };
    let wanted = |name| arguments.name == name || arguments.name == Name::All;
    if gpu::is_apart() {
        return gpu::run(report, effort, arguments.brief, arguments.peers);
    }
    let peers = (arguments.peers && arguments.name != Name::Gpu).then(Peers::install).transpose()?;
    if wanted(Name::Boundary) {
        boundary::run(report, effort)?;
    }
    if wanted(Name::Start) {
        start::run(report, effort)?;
    }
    if wanted(Name::Dense) {
        dense::run(report, effort)?;
    }
    if wanted(Name::Gpu) {
        gpu::run_apart()?;
    }
    if wanted(Name::Udf) {
        udf::run(report, effort)?;
    }
    if wanted(Name::Tasks) {
        programs::tasks(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Queue) {
        programs::queue(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Actors) {
        programs::actors(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Client) {
        client::run(report, effort)?;
    }
    if wanted(Name::Objects) {
        objects::run(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Transfer) {
        transfer::transfer(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Broadcast) {
        transfer::broadcast(report, effort)?;
    }
    if wanted(Name::Cluster) {
        transfer::cluster(report, effort)?;
    }
    if wanted(Name::Training) {
        jobs::training(report, effort, peers.as_ref())?;
    }
    if wanted(Name::SmallModels) {
        jobs::small_models(report, effort, peers.as_ref())?;
    }
    if wanted(Name::Forest) {
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
