//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use sandbar_node::paths::GpuOptions;
use sandbar_node::{NodeResources, Override, PredictSpec, paths};

use crate::logging::Form;
use crate::new::Template;
use crate::view_args::{Jobs, List, OfJob, Summary, Timeline};

/// Runs other people's functions next to data, each in a sandbox.
#[derive(Debug, Parser)]
#[command(
    name = "host",
    version,
    max_term_width = 100,
    after_help = "Examples:
  host submit examples/taxi.toml
  host predict out/models.parquet --input data/new.parquet --output predictions.parquet
  host new fares
  host build fares
  host inspect fares
  host jobs list
  host summary tasks
  host cluster init && host serve
  host doctor

`host COMMAND --help` says more of each."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a job: what a job file says, or a program.
    Submit(Submit),
    /// Predicts new rows with the models of a job.
    Predict(Predict),
    /// Makes a crate to write functions or a program in.
    #[command(
        after_help = "Examples:\n  host new fares && host build fares\n  host new --program primes && host submit primes\n  host new --trainer lines"
    )]
    New(New),
    /// Compiles crates to components, when they are stale, and prints where these are.
    #[command(after_help = "Examples:\n  host build udfs/taxi\n  host inspect $(host build -q udfs/taxi)")]
    Build {
        /// Folders of crates.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Nothing on standard error but warnings and what fails.
        #[arg(long, short)]
        quiet: bool,
    },
    /// Lists a component's functions, types, imports and size.
    #[command(
        after_help = "Examples:\n  host inspect models\n  host inspect udfs/models\n  host inspect fares.wasm --json"
    )]
    Inspect {
        /// A component, the folder of a crate, or the name of a shipped one.
        component: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Programs that run or ran here: lists them, says what became of them, shows their logs, ends them.
    #[command(subcommand, after_help = "Examples:\n  host jobs list\n  host jobs status\n  host jobs logs -f 4f3a9c")]
    Jobs(Jobs),
    /// Lists what a program has: tasks, actors, objects or workers.
    #[command(subcommand, after_help = "Examples:\n  host list tasks --state failed\n  host list workers --json")]
    List(List),
    /// Sums up what a program has, by name.
    #[command(subcommand, after_help = "Examples:\n  host summary tasks\n  host summary tasks --job 4f3a9c --json")]
    Summary(Summary),
    /// Writes a program's timeline as Chrome trace events, which <https://ui.perfetto.dev> opens.
    #[command(
        after_help = "Examples:\n  host timeline -o timeline.json\n  host timeline 4f3a9c | gzip > timeline.json.gz"
    )]
    Timeline(Timeline),
    /// Lists the objects of a program that runs, the largest first, and who holds them.
    #[command(after_help = "Examples:\n  host objects\n  host objects 4f3a9c --json")]
    Objects(OfJob),
    /// Runs a node of a cluster until it is ended.
    Serve(crate::cluster_args::Serve),
    /// Begins a cluster, and lets nodes in.
    #[command(subcommand)]
    Cluster(crate::cluster_args::ClusterCommand),
    /// The nodes of a cluster: lists them, has one go, takes one out.
    #[command(subcommand)]
    Nodes(crate::cluster_args::Nodes),
    /// Says how the node of this machine and its cluster are.
    #[command(after_help = "Examples:\n  host status\n  host status --data /var/lib/sandbar --json")]
    Status(crate::cluster_args::OfNode),
    /// The GPUs of this machine: what they are, and how fast.
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Says what memory a program takes that runs: of which process, in objects, and who holds these.
    #[command(after_help = "Examples:\n  host memory\n  host memory 4f3a9c --json")]
    Memory(OfJob),
    /// Says what of this machine helps or hurts: its kernel, limits, folders, GPUs and compiler, and what to do.
    #[command(
        after_help = "Examples:\n  host doctor\n  host doctor --json\n  host doctor | grep -v '^ok'\n\nNothing is built, fetched or left behind; `host gpu list` measures GPUs.\n\nExit codes: 0 nothing is bad, 1 something is: some jobs or programs will fail."
    )]
    Doctor {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Drivers that compute on the processor count as GPUs, and no others do.
        #[arg(long)]
        software_gpu: bool,
    },
    /// Says the versions of Sandbar, its contract and its engines, and the walls that workers have here.
    #[command(after_help = "Examples:\n  host version\n  host version --json\n  host --version   (a line)")]
    Version {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Writes the script by which a shell completes this command line.
    #[command(
        after_help = "Examples:\n  host completion bash > ~/.local/share/bash-completion/completions/host\n  host completion zsh > ~/.zfunc/_host    (fpath+=~/.zfunc before compinit in ~/.zshrc)\n  host completion fish > ~/.config/fish/completions/host.fish\n  source <(host completion bash)          (this shell alone)"
    )]
    Completion {
        /// The shell.
        shell: crate::completion::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Lists them, measured, those that are not used among them.
    #[command(after_help = "Examples:\n  host gpu list\n  host gpu list --json\n  host gpu list --software-gpu")]
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Drivers that compute on the processor, and no others.
        #[arg(long)]
        software_gpu: bool,
    },
}

impl Command {
    /// What the command says of what goes on.
    pub(crate) fn log_form(&self) -> Form {
        let is_quiet = match self {
            Command::Serve(serve) => return Form::Node(serve.log_level),
            Command::Submit(submit) => submit.quiet || submit.json,
            Command::Predict(predict) => predict.quiet || predict.json,
            Command::Build { quiet, .. } => *quiet,
            Command::Doctor { json, .. } | Command::Version { json } => *json,
            Command::Jobs(Jobs::List { json, .. } | Jobs::Status(OfJob { json, .. })) => *json,
            Command::Objects(OfJob { json, .. }) | Command::Memory(OfJob { json, .. }) => *json,
            Command::Summary(Summary::Tasks { json, .. }) => *json,
            Command::List(list) => list.is_json(),
            _ => false,
        };
        Form::Command { is_quiet }
    }
}

/// What a node gives to what it runs.
#[derive(Debug, Default, Args)]
pub(crate) struct Shares {
    /// Worker processes; by default one for each core.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// Memory for grouped rows, such as `2GiB`, before they go to disk, which tasks of programs can ask for; by default two
    /// fifths of what this process may use.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory: Option<u64>,
    /// Of programs: processors that tasks share, fractions too; by default as many as there are workers.
    #[arg(long, value_name = "N", value_parser = amount)]
    pub cpus: Option<f64>,
    /// Of programs: GPUs that tasks share; by default those of this machine that can be used.
    #[arg(long, value_name = "N", value_parser = amount)]
    pub gpus: Option<f64>,
    /// Drivers that compute on the processor count as GPUs, and no others do: to try what needs one.
    #[arg(long)]
    pub software_gpu: bool,
    /// Memory of each GPU that the tensors of a job may take; by default nine tenths of it.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub gpu_memory: Option<u64>,
    /// How long a piece of work may take a GPU, in seconds, before it costs its job what is on that; by default 10.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub gpu_time: Option<Duration>,
    /// Of programs: something else that tasks can ask for, and how much there is of it. May be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = resource)]
    pub resources: Vec<(String, f64)>,
    /// Of programs: memory for objects before they go to disk; by default three tenths of what this process may use.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub object_memory: Option<u64>,
    /// Of programs: how much of the disk objects leave free; by default a twentieth of it, 8GiB at most.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub disk_reserve: Option<u64>,
}

impl Shares {
    /// Whether something is said that only programs have.
    pub fn is_of_programs(&self) -> bool {
        self.cpus.is_some()
            || self.gpus.is_some()
            || !self.resources.is_empty()
            || self.object_memory.is_some()
            || self.disk_reserve.is_some()
    }

    /// What tasks may ask for.
    /// Finds out how many GPUs there are for tasks to share, unless that was said.
    pub async fn count_gpus(&mut self) -> Result<(), String> {
        if let (None, Some(machine)) = (self.gpus, paths::gpus(self.gpu_options())?) {
            self.gpus = Some(machine.usable().await.len() as f64);
        }
        Ok(())
    }

    /// What jobs may use of GPUs.
    pub fn gpu_options(&self) -> GpuOptions {
        let usual = GpuOptions::default();
        GpuOptions {
            is_software: self.software_gpu,
            memory_bytes_max: self.gpu_memory.unwrap_or(usual.memory_bytes_max),
            time_max: self.gpu_time.unwrap_or(usual.time_max),
        }
    }

    pub fn resources(&self) -> NodeResources {
        NodeResources { cpus: self.cpus, gpus: self.gpus, custom: self.resources.clone() }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host submit examples/taxi.toml
  host submit examples/taxi.toml --input 'data/2019/*.parquet' --output best.parquet
  host submit examples/taxi.toml --set train.test=0.2 --set 'train.group_by=[\"vendor_id\"]' --json
  host submit examples/taxi.toml --dry-run
  host submit examples/pi --arg tasks=100
  host submit examples/forests --arg data=@data/housing.csv
  host submit program.wasm#other --arg name=value --json
  host submit examples/pi --cpus 4 --gpus 1 --resource license=2
  host submit examples/pi --arg tasks=1000 --join 10.0.0.1:7410 --token sbt1-...   (on a cluster)
  host submit examples/pi --node 10.0.0.1:7410 --no-wait                           (by a cluster)
  host jobs logs -f                     (of the program that was submitted last)

Exit codes: 0 all well, 1 some groups failed or the job failed, 2 wrong usage;
129, 130 and 143 ended by a hang-up, an interrupt (Ctrl-C, or `host jobs stop`) or a request to terminate.")]
pub(crate) struct Submit {
    /// The job file (TOML), which says what is read, and how models are trained or rows transformed; or a program, as PATH or PATH#TASK: a component or the folder
    /// of a crate, and the task that it begins with (`main` if none is named).
    pub job: PathBuf,
    /// Of a program: an argument of its first task, as JSON or text, or, as NAME=@PATH, a file, a folder or a glob. May be
    /// given several times.
    #[arg(long = "arg", value_name = "NAME=VALUE", value_parser = argument)]
    pub args: Vec<(String, String)>,
    /// Sets anything of the job: a dotted key and a TOML value.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Reads these instead of the job's `input.paths`. May be given several times.
    #[arg(long, value_name = "PATH|GLOB|URL", value_hint = ValueHint::AnyPath)]
    pub input: Vec<String>,
    /// Writes the models, or the rows, there instead of to the job's `output.path`.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub output: Option<String>,
    #[command(flatten)]
    pub shares: Shares,
    #[command(flatten)]
    pub place: crate::cluster_args::Place,
    /// Of a program: has a cluster run it, by this node of it, as a tenant (`--token`), and follows it. Ctrl-C lets go of it.
    #[arg(long, value_name = "ADDRESS", value_parser = crate::cluster_args::address, conflicts_with = "join")]
    pub node: Option<sandbar_node::NodeAddress>,
    #[command(flatten)]
    pub times: crate::cluster_args::Times,
    /// With `--node`: prints what the job is called, and does not wait for it.
    #[arg(long, requires = "node")]
    pub no_wait: bool,
    /// Checks all that can be checked before rows are read or a task runs, says what would be done, and stops. Crates are
    /// not built.
    #[arg(long, conflicts_with_all = ["join", "meta", "node"])]
    pub dry_run: bool,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Nothing on standard error but warnings and what fails, nothing on standard output but a program's result and what
    /// --json and --dry-run print.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host predict out/models.parquet --input data/new.parquet --output predictions.parquet
  host predict out/models.parquet --input data/new.csv --output p.csv --model tree --file 2019-01.parquet
  host predict models.parquet --input new.csv --output p.csv --component udfs/models   (the cache has it not)

Exit codes: 0 all well, 1 some rows could not be predicted or the command failed, 2 wrong usage;
129, 130 and 143 ended by a hang-up, an interrupt (Ctrl-C) or a request to terminate.")]
pub(crate) struct Predict {
    /// The output of a job.
    pub models: PathBuf,
    /// What to predict: files, folders, globs or URLs.
    #[arg(long, required = true, value_name = "PATH|GLOB|URL", value_hint = ValueHint::AnyPath)]
    pub input: Vec<String>,
    /// The file to write: the rows behind the job's transforms, with a column `prediction`. Its extension says the format:
    /// .parquet, .csv, .tsv, .jsonl or .arrow.
    #[arg(long, value_name = "PATH")]
    pub output: PathBuf,
    /// A component that the models need, or the folder of its crate, which is built: where the cache does not have it. May be
    /// given several times. Nothing is built or opened because the models' file says so.
    #[arg(long = "component", value_name = "PATH")]
    pub components: Vec<PathBuf>,
    /// Use the models of this name instead of the best of each group.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// For jobs with `per_file`: use the models of this training file, or the one whose path ends so.
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Worker processes; by default one for each core.
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Nothing on standard error but warnings and what fails, nothing on standard output but what --json prints.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Submit {
    /// All overrides of the job, in the order in which they take effect.
    pub fn overrides(&self) -> Vec<Override> {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut all: Vec<Override> = self.set.iter().map(|set| Override::new("--set", set.as_str())).collect();
        if !self.input.is_empty() {
            let paths: Vec<_> = self.input.iter().map(|p| quoted(p)).collect();
            all.push(Override::new("--input", format!("input.paths=[{}]", paths.join(", "))));
        }
        if let Some(output) = &self.output {
            all.push(Override::new("--output", format!("output.path={}", quoted(output))));
        }
        all
    }
}

impl From<Predict> for PredictSpec {
    fn from(p: Predict) -> PredictSpec {
        PredictSpec {
            models: p.models,
            input: p.input,
            output: p.output,
            model: p.model,
            file: p.file,
            components: p.components,
        }
    }
}

/// The name and the value of an argument.
fn argument(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// More of anything than this is a mistake.
const AMOUNT_MAX: f64 = 1e9;

/// How much of something there is: it counts in ten thousandths.
fn amount(text: &str) -> Result<f64, String> {
    let amount = text.parse::<f64>().ok().filter(|amount| (0.0..=AMOUNT_MAX).contains(amount));
    amount.ok_or_else(|| format!("not a number from 0 to {AMOUNT_MAX}"))
}

/// A time that something may take.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds from 0.1 to 86400".to_owned())
}

/// A resource of one's own, and how much there is of it.
fn resource(text: &str) -> Result<(String, f64), String> {
    let (name, of) = text.split_once('=').ok_or("not NAME=AMOUNT")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':');
    match name {
        "" => Err("it has no name".to_owned()),
        "cpus" | "gpus" => Err(format!("`{name}` is set by --{name}")),
        "memory" => Err("`memory` is set by --memory".to_owned()),
        _ if !name.chars().all(is_name) => {
            Err(format!("`{name}` is no name: letters, digits, and - _ . / : are allowed"))
        }
        _ => Ok((name.to_owned(), amount(of).map_err(|e| format!("`{of}` is {e}"))?)),
    }
}

/// More workers than this are a mistake.
const WORKERS_MAX: usize = 1024;

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=WORKERS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("not a number from 1 to {WORKERS_MAX}")),
    }
}

/// `512MiB`, `2GiB`, or a number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let unit = UNITS.iter().find_map(|(name, bytes)| Some((text.strip_suffix(name)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|b| *b > 0);
    bytes.ok_or_else(|| "not a size: a whole number of bytes, or of KiB, MiB, GiB or TiB".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Name of the crate and of its folder.
    pub name: String,
    /// A program: tasks, one of which submits others.
    #[arg(long, conflicts_with = "trainer")]
    program: bool,
    /// A trainer with parameters, and its model; otherwise there is a function of each kind.
    #[arg(long)]
    trainer: bool,
    /// Folder of the guest SDK; by default the one of the checkout this program was built from.
    #[arg(long)]
    pub sdk: Option<PathBuf>,
}

impl New {
    pub(crate) fn template(&self) -> Template {
        match (self.program, self.trainer) {
            (true, _) => Template::Program,
            (_, true) => Template::Trainer,
            _ => Template::Functions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, resource};

    #[test]
    fn resources() {
        for (text, expected) in [
            ("tpu=4", Ok(4.0)),
            ("room/a=0.5", Ok(0.5)),
            ("tpu", Err("not NAME=AMOUNT")),
            ("=1", Err("it has no name")),
            ("cpus=1", Err("`cpus` is set by --cpus")),
            ("a b=1", Err("`a b` is no name: letters, digits, and - _ . / : are allowed")),
            ("tpu=-1", Err("`-1` is not a number from 0 to 1000000000")),
            ("tpu=NaN", Err("`NaN` is not a number from 0 to 1000000000")),
        ] {
            assert_eq!(resource(text).map(|(_, amount)| amount), expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("2GiB", Some(2 << 30)),
            ("512 MiB", Some(512 << 20)),
            ("0", None),
            ("2GB", None),
            ("-1KiB", None),
            ("99999999999TiB", None),
            ("", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
