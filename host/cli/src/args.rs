//! Command-line arguments of all commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use sandbar_node::{Override, PredictSpec};

use crate::logging::LogFormat;
use crate::new::Template;
use crate::shares::{Shares, workers};
use crate::view_args::{Actors, JobSelector, Jobs, List, Summary, Timeline};

/// Runs sandboxed functions next to data.
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

`host COMMAND --help` describes a command."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a job file or a program.
    Submit(Submit),
    /// Predicts rows with the models that a job trained.
    Predict(Predict),
    /// Creates a crate for functions or a program.
    #[command(
        after_help = "Examples:\n  host new fares && host build fares\n  host new --program primes && host submit primes\n  host new --trainer lines"
    )]
    New(New),
    /// Builds stale crates to components and prints the components' paths.
    #[command(after_help = "Examples:\n  host build udfs/taxi\n  host inspect $(host build -q udfs/taxi)")]
    Build {
        /// Folders of crates.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// Print only warnings and errors on standard error.
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
    /// Lists, inspects, stops and deletes program jobs, and prints their logs.
    #[command(subcommand, after_help = "Examples:\n  host jobs list\n  host jobs status\n  host jobs logs -f 4f3a9c")]
    Jobs(Jobs),
    /// Lists a program's tasks, actors, objects, workers, placement groups or nodes.
    #[command(subcommand, after_help = "Examples:\n  host list tasks --state failed\n  host list workers --json")]
    List(List),
    /// Lists and stops actors that outlive the jobs that created them.
    #[command(
        subcommand,
        after_help = "Examples:\n  host actors list --node first:7410\n  host actors stop counter --node first:7410"
    )]
    Actors(Actors),
    /// Registers a tenant's components in a cluster under names and versions, lists, signs and yanks them.
    #[command(
        subcommand,
        after_help = "Examples:\n  host component push fares fares@1.0.0 --node first:7410\n  host submit component:fares@1.0.0#main --node first:7410\n  host component list --node first:7410"
    )]
    Component(crate::component_args::ComponentCommand),
    /// Summarizes a program's tasks by name.
    #[command(subcommand, after_help = "Examples:\n  host summary tasks\n  host summary tasks --job 4f3a9c --json")]
    Summary(Summary),
    /// Writes a program's timeline as Chrome trace events, which <https://ui.perfetto.dev> opens.
    #[command(
        after_help = "Examples:\n  host timeline -o timeline.json\n  host timeline 4f3a9c | gzip > timeline.json.gz"
    )]
    Timeline(Timeline),
    /// Lists the objects of a running program, the largest first, and their holders.
    #[command(after_help = "Examples:\n  host objects\n  host objects 4f3a9c --json")]
    Objects(JobSelector),
    /// Runs a cluster node until it is stopped.
    Serve(crate::cluster_args::Serve),
    /// Creates a cluster, and creates and revokes tokens of its nodes.
    #[command(subcommand)]
    Cluster(crate::cluster_args::ClusterCommand),
    /// Lists, drains and removes the nodes of a cluster.
    #[command(subcommand)]
    Nodes(crate::cluster_args::Nodes),
    /// Adds, lists, changes and removes the tenants of a cluster, and their tokens.
    #[command(subcommand)]
    Tenant(crate::tenant_args::TenantCommand),
    /// Prints what jobs and tenants of a cluster have used: CPU and GPU time, memory, objects, network, logs.
    Usage(crate::usage_args::UsageArgs),
    /// Prints and verifies the audit log of a node: who asked for what, and what came of it.
    #[command(
        subcommand,
        after_help = "Examples:\n  host audit tail\n  host audit tail --limit 100 --json\n  host audit verify --data /var/lib/sandbar"
    )]
    Audit(crate::audit_args::AuditCommand),
    /// Prints the state of this machine's node and of its cluster.
    #[command(after_help = "Examples:\n  host status\n  host status --data /var/lib/sandbar --json")]
    Status(crate::cluster_args::NodeSelector),
    /// Lists the GPUs of this machine and their speed.
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Prints the memory of a running program by process, and its objects with their holders.
    #[command(after_help = "Examples:\n  host memory\n  host memory 4f3a9c --json")]
    Memory(JobSelector),
    /// Checks this machine's kernel, limits, folders, GPUs and compiler, and suggests fixes.
    #[command(
        after_help = "Examples:\n  host doctor\n  host doctor --json\n  host doctor | grep -v '^ok'\n\nThe command builds, fetches and leaves nothing; `host gpu list` measures GPUs.\n\nExit codes: 0 no check failed, 1 a check failed: some jobs or programs will fail."
    )]
    Doctor {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Use only software GPU drivers, which compute on the CPU.
        #[arg(long)]
        software_gpu: bool,
    },
    /// Prints the versions of Sandbar, its contract and its engines, and the worker isolation on this machine.
    #[command(after_help = "Examples:\n  host version\n  host version --json\n  host --version   (a line)")]
    Version {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Prints a shell completion script.
    #[command(
        after_help = "Examples:\n  host completion bash > ~/.local/share/bash-completion/completions/host\n  host completion zsh > ~/.zfunc/_host    (fpath+=~/.zfunc before compinit in ~/.zshrc)\n  host completion fish > ~/.config/fish/completions/host.fish\n  source <(host completion bash)          (this shell alone)"
    )]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// A supported shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Lists and measures the GPUs, including those that Sandbar does not use.
    #[command(after_help = "Examples:\n  host gpu list\n  host gpu list --json\n  host gpu list --software-gpu")]
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// List only software GPU drivers, which compute on the CPU.
        #[arg(long)]
        software_gpu: bool,
    },
}

impl Command {
    /// Returns the form of the command's log.
    pub(crate) fn log_format(&self) -> LogFormat {
        let is_quiet = match self {
            Command::Serve(serve) => return LogFormat::Node(serve.log_level),
            Command::Submit(submit) => submit.quiet || submit.json,
            Command::Predict(predict) => predict.quiet || predict.json,
            Command::Build { quiet, .. } => *quiet,
            Command::Doctor { json, .. } | Command::Version { json } => *json,
            Command::Audit(command) => command.is_json(),
            Command::Component(command) => command.is_json(),
            Command::Actors(Actors::List { json, .. })
            | Command::Jobs(Jobs::List { json, .. } | Jobs::Status(JobSelector { json, .. })) => *json,
            Command::Objects(JobSelector { json, .. }) | Command::Memory(JobSelector { json, .. }) => *json,
            Command::Summary(Summary::Tasks { json, .. }) => *json,
            Command::List(list) => list.is_json(),
            Command::Tenant(command) => command.is_json(),
            Command::Usage(arguments) => arguments.json,
            _ => false,
        };
        LogFormat::Command { is_quiet }
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
  host submit examples/pi --arg tasks=1000 --join 10.0.0.1:7410 --token sbt2-...   (on a cluster)
  host submit examples/pi --node 10.0.0.1:7410 --no-wait                           (in a cluster, without waiting)
  host submit examples/taxi.toml --node 10.0.0.1:7410                              (files are sent, the output comes back)
  host submit component:fares@1.0.0#main --node 10.0.0.1:7410                      (see `host component push --help`)
  host jobs logs -f                     (logs of the last job)

Exit codes: 0 success, 1 some groups failed or the job failed, 2 wrong usage;
129, 130 and 143 ended by a hang-up, an interrupt (Ctrl-C, or `host jobs stop`) or a request to terminate.")]
pub(crate) struct Submit {
    /// A job file (TOML), or a program as PATH or PATH#TASK: a component, the folder of a crate or, with --node,
    /// component:NAME@VERSION, and its first task [default task: main]
    pub job: PathBuf,
    /// Programs only: an argument of the first task, as JSON or text, or, as NAME=@PATH, a file, a folder or a glob.
    /// Can be repeated.
    #[arg(long = "arg", value_name = "NAME=VALUE", value_parser = argument)]
    pub args: Vec<(String, String)>,
    /// Override a setting of the job file: a dotted key and a TOML value. Can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Input that replaces the job's `input.paths`. Can be repeated.
    #[arg(long, value_name = "PATH|GLOB|URL", value_hint = ValueHint::AnyPath)]
    pub input: Vec<String>,
    /// Output path that replaces the job's `output.path`.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub output: Option<String>,
    #[command(flatten)]
    pub shares: Shares,
    #[command(flatten)]
    pub walls: crate::walls::WallArgs,
    #[command(flatten)]
    pub member: crate::cluster_args::MemberArgs,
    /// Submit to the cluster of this node as a tenant (`--token`), with the files that the job names, and follow the job.
    /// Ctrl-C detaches from the job, which continues.
    #[arg(long, value_name = "ADDRESS", value_parser = crate::cluster_args::address, conflicts_with = "join")]
    pub node: Option<sandbar_node::NodeAddress>,
    #[command(flatten)]
    pub timeouts: crate::cluster_args::TimeoutArgs,
    /// With `--node`: key of the submission, 1 to 64 letters, digits, `-` and `_`. Within a day, a submission with the
    /// same key is the same job [default: a random key]
    #[arg(long, value_name = "KEY", requires = "node", value_parser = submission_key)]
    pub key: Option<sandbar_node::SubmissionKey>,
    /// With `--node`: print the job's id and do not wait for the job.
    #[arg(long, requires = "node")]
    pub no_wait: bool,
    /// Check the job without reading rows or running tasks, print the plan, and exit. Crates are not built.
    #[arg(long, conflicts_with_all = ["join", "meta", "node"])]
    pub dry_run: bool,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Print only warnings and errors on standard error, and on standard output only a program's result and the output
    /// of --json and --dry-run.
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host predict out/models.parquet --input data/new.parquet --output predictions.parquet
  host predict out/models.parquet --input data/new.csv --output p.csv --model tree --file 2019-01.parquet
  host predict models.parquet --input new.csv --output p.csv --component udfs/models   (if the cache lacks it)
  host predict models.parquet --input new.csv --output p.csv --node 10.0.0.1:7410      (in a cluster)

Exit codes: 0 success, 1 some rows could not be predicted or the command failed, 2 wrong usage;
129, 130 and 143 ended by a hang-up, an interrupt (Ctrl-C) or a request to terminate.")]
pub(crate) struct Predict {
    /// The models file that a job wrote.
    pub models: PathBuf,
    /// Rows to predict: files, folders, globs or URLs. Can be repeated.
    #[arg(long, required = true, value_name = "PATH|GLOB|URL", value_hint = ValueHint::AnyPath)]
    pub input: Vec<String>,
    /// Output file: the rows after the job's transforms, with a column `prediction`. Its extension sets the format:
    /// .parquet, .csv, .tsv, .jsonl or .arrow.
    #[arg(long, value_name = "PATH")]
    pub output: PathBuf,
    /// A component that the models need and the cache lacks, or the folder of its crate, which is built. Can be
    /// repeated. Paths in the models file are never opened or built.
    #[arg(long = "component", value_name = "PATH")]
    pub components: Vec<PathBuf>,
    /// Use the models of this name instead of each group's best model.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// For jobs with `per_file`: use the models of the training file with this path or path suffix.
    #[arg(long, value_name = "FILE")]
    pub file: Option<String>,
    /// Number of worker processes [default: one per core]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<usize>,
    #[command(flatten)]
    pub remote: crate::cluster_args::Remote,
    /// With `--node`: print the job's id and do not wait for the predictions; `host jobs output` gets them.
    #[arg(long, requires = "node")]
    pub no_wait: bool,
    /// Print one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Print only warnings and errors on standard error, and on standard output only the output of --json.
    #[arg(long, short)]
    pub quiet: bool,
}

impl Submit {
    /// Returns all overrides of the job in the order in which they apply.
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

fn submission_key(text: &str) -> Result<sandbar_node::SubmissionKey, String> {
    text.parse()
}

/// Parses the name and the value of an argument.
fn argument(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Debug, Args)]
pub(crate) struct New {
    /// Name of the crate and of its folder.
    pub name: String,
    /// Create a program: tasks, one of which submits others.
    #[arg(long, conflicts_with = "trainer")]
    program: bool,
    /// Create a trainer with parameters, and its model [default: one function of each kind]
    #[arg(long)]
    trainer: bool,
    /// Folder of the guest SDK [default: the folder in the checkout that this program was built from]
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
