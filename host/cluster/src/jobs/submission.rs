//! Submission of jobs by tenants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Blame, ComponentId, Fault};
use sandbar_jobs::{JobCounts, JobName, RunState, now_ms};
use sandbar_meta::{CompareOp, Condition, Entry, MetaValue, Operation, Predicate, Revision};
use sandbar_runtime::{Program, check_sent_files};
use sandbar_wire::{Frames, Name};
use serde::{Deserialize, Serialize};

use super::job::{
    ClusterJob, JobComponent, JobFileWork, JobWork, PredictionWork, ProgramWork, WORK_BYTES_MAX, job_key,
    submission_key, submitted_key,
};
use super::leases::{acquire, start};
use super::lookup;
use super::tenant_messages::{NewClusterJob, RefusalCode, TenantResponse};
use super::tenant_responses::{Outcome, node_failed, refused, rejected, retry_later, send, while_in_progress};
use crate::files::{FileUse, NamedStoredFile, StoredFile};
use crate::state::ClusterState;
use crate::tenants::{self, TenantSettings};
use crate::uploads::UploadError;
use crate::{component_registry, components, encoding, files};

/// Number of other nodes that get a copy of a job's component.
pub(crate) const COMPONENT_COPIES: usize = 2;
/// Number of other nodes that get a copy of each file of a job.
const FILE_COPIES: usize = 1;
/// Maximum bytes of a program's text and of a task's name.
const PROGRAM_BYTES_MAX: usize = 1 << 10;
const TASK_BYTES_MAX: usize = 256;
/// Maximum arguments of a job.
const ARGUMENTS_MAX: usize = 1000;
/// Maximum bytes of a name of an input file, or of a path of a component.
const NAME_BYTES_MAX: usize = 4 << 10;
/// Time for which a submission key is remembered, in milliseconds: a day, unless the job is dropped before.
const KEY_TIME_MS: u64 = 86_400_000;
/// Maximum attempts to store a job, because the tenant submits others through other nodes at the same time.
const ATTEMPTS_MAX: usize = 20;
/// Maximum time until this node learns of the tenant's other submissions.
const INDEX_TIME_MAX: Duration = Duration::from_secs(2);

/// The stored value of a submission key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SubmissionRecord {
    pub(crate) job: JobName,
    /// When the key is forgotten, in milliseconds since 1970, by the clock of the node that received it.
    pub(crate) until_ms: u64,
}

/// Stores a job and starts it.
pub(crate) async fn submit(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    new: NewClusterJob,
    frames: &mut Frames,
) -> Outcome<TenantResponse> {
    check_submission(&new)?;
    let settings = cluster.tenants.settings(tenant).ok_or_else(|| retry_later("the tenant is unknown"))?;
    if let Submitted::Job(job) = find_submitted(cluster, tenant, &new).await? {
        // The tenant did not receive the response to its first request.
        return Ok(TenantResponse::Job(job));
    }
    check_count(cluster, tenant, &settings)?;
    component_registry::check_signed(&*cluster.store, tenant, &new.work.components()).await.map_err(rejected)?;
    let upload = Upload { cluster, tenant, settings: &settings };
    match &new.work {
        JobWork::Program(program) => {
            let component = (program.component, program.component_bytes);
            upload.component(component, &TenantResponse::SendComponent, frames).await?;
            let loaded = while_in_progress(frames, upload.load(program.component)).await?;
            check_files(&loaded, program)?;
        }
        JobWork::JobFile { job_file } => upload.components(&job_file.components, frames).await?,
        JobWork::Prediction { prediction } => upload.components(&prediction.components, frames).await?,
    }
    // Until the job is stored, this keeps its files.
    let _files = upload.files(&new.work.files(), frames).await?;
    while_in_progress(frames, upload.replicate(&new.work)).await;
    store(cluster, tenant, new, &settings).await
}

/// Checks the lengths of a submission, and that a job file has what it names.
pub(crate) fn check_submission(new: &NewClusterJob) -> Outcome<()> {
    let (code, task) = match &new.work {
        JobWork::Program(program) => (RefusalCode::Arguments, program.task.as_str()),
        JobWork::JobFile { .. } | JobWork::Prediction { .. } => (RefusalCode::JobFile, ""),
    };
    let texts = [("program", new.program.len(), PROGRAM_BYTES_MAX), ("name of the task", task.len(), TASK_BYTES_MAX)];
    for (name, bytes, max) in texts {
        if bytes > max {
            return Err(refused(RefusalCode::Request, format!("the {name} has {bytes} bytes, the limit is {max}")));
        }
    }
    let checked = match &new.work {
        JobWork::Program(_) => Ok(()),
        JobWork::JobFile { job_file } => check_job_file(job_file),
        JobWork::Prediction { prediction } => check_prediction(prediction),
    };
    checked.map_err(|message| refused(RefusalCode::JobFile, message))?;
    let count = new.work.arguments().len();
    if count > ARGUMENTS_MAX {
        return Err(refused(code, format!("the job has {count} arguments, the limit is {ARGUMENTS_MAX}")));
    }
    let bytes = serde_json::to_vec(&new.work).map_err(node_failed)?.len();
    if bytes > WORK_BYTES_MAX {
        let message = format!(
            "the arguments, the job and the names of its files have {bytes} bytes as JSON, the limit is {WORK_BYTES_MAX}"
        );
        return Err(refused(code, message));
    }
    Ok(())
}

/// Checks that a job file's job is valid, and has the components of its functions.
fn check_job_file(JobFileWork { job, inputs, components }: &JobFileWork) -> Result<(), String> {
    job.validate()?;
    if !job.output.partition_by.is_empty() {
        return Err(
            "`output.partition_by` is not supported by clusters: leave it out, or run the job locally".to_owned()
        );
    }
    check_names(inputs, components, &[])?;
    let is_sent = |path: &str| components.iter().any(|component| component.name == path);
    match job.components().find(|path| !is_sent(path)) {
        Some(path) => Err(format!("the job names the component `{path}`, and does not come with it")),
        None => Ok(()),
    }
}

/// Checks the names of a prediction. Its models are checked when it runs.
fn check_prediction(work: &PredictionWork) -> Result<(), String> {
    let PredictionWork { models, inputs, output, model, file, components } = work;
    let others: Vec<&String> = [&models.name, output].into_iter().chain(model).chain(file).collect();
    check_names(inputs, components, &others)
}

/// Checks that there is an input, that no two inputs have one name, and the lengths of these names and of `others`.
fn check_names(inputs: &[NamedStoredFile], components: &[JobComponent], others: &[&String]) -> Result<(), String> {
    if inputs.is_empty() {
        return Err("the job has no input file".to_owned());
    }
    let names = inputs.iter().map(|input| &input.name);
    let paths = components.iter().flat_map(|component| [&component.name, &component.found]);
    let mut all = names.clone().chain(paths).chain(others.iter().copied());
    if let Some(long) = all.find(|name| name.len() > NAME_BYTES_MAX) {
        return Err(format!("the name of a file has {} bytes, the limit is {NAME_BYTES_MAX}", long.len()));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = names.clone().find(|name| !seen.insert(*name)) {
        return Err(format!("two input files are called `{twice}`"));
    }
    match names.clone().find(|name| name.contains("://")) {
        Some(url) => Err(format!("`{url}` is a URL: a cluster reads none for its tenants; download the file")),
        None => Ok(()),
    }
}

/// Checks the file arguments of a program before their files are received.
fn check_files(loaded: &Program, program: &ProgramWork) -> Outcome<()> {
    let sent: Vec<_> = program.files.iter().map(|sent| (sent.argument.as_str(), sent.files.len())).collect();
    check_sent_files(loaded, &program.task, &program.arguments, &sent)
        .map_err(|message| refused(RefusalCode::Arguments, message))
}

/// Checks that the tenant may have one more unfinished job, as far as this node knows.
fn check_count(cluster: &ClusterState, tenant: &Name, settings: &TenantSettings) -> Outcome<Revision> {
    let index = cluster.jobs.index();
    let (count, max) = (index.count_unfinished(tenant), settings.jobs_max as usize);
    if count >= max {
        let message = format!(
            "tenant `{tenant}` has {count} unfinished jobs, the limit is {max}; wait for one to end, or ask the cluster's \
             operator (`host tenant set {tenant} --jobs-max N`)"
        );
        return Err(refused(RefusalCode::JobLimit, message));
    }
    Ok(index.position())
}

/// Receipt of what a job needs.
#[derive(Clone, Copy)]
pub(crate) struct Upload<'a> {
    pub(crate) cluster: &'a Arc<ClusterState>,
    pub(crate) tenant: &'a Name,
    pub(crate) settings: &'a TenantSettings,
}

impl Upload<'_> {
    /// Receives a component and its length, unless the tenant has sent it to this node before, or registered it. Whether
    /// another tenant has makes no difference.
    pub(crate) async fn component(
        self,
        (component, bytes): (ComponentId, u64),
        send_it: &TenantResponse,
        frames: &mut Frames,
    ) -> Outcome<()> {
        let Upload { cluster, tenant, settings } = self;
        if cluster.tenant_components.get(tenant, component).is_some() {
            return Ok(());
        }
        let max = settings.component_bytes_max;
        if bytes > max {
            let error = UploadError::TooLarge { item: "component", bytes, max };
            return Err(refused(RefusalCode::Component, error));
        }
        let in_use = component_registry::components_in_use(cluster, tenant).await.map_err(rejected)?;
        let is_known = in_use.contains(&component);
        if is_known && while_in_progress(frames, components::ensure_of_tenant(cluster, tenant, component)).await.is_ok()
        {
            return Ok(());
        }
        send(frames, send_it).await?;
        let received = cluster.tenant_components.receive(tenant, component, bytes, settings, &in_use, frames).await;
        received.map_err(|error| not_stored(RefusalCode::Component, error))?;
        self.count(bytes).await
    }

    /// Receives the components of a job file or a prediction like [`Upload::component`].
    async fn components(self, components: &[JobComponent], frames: &mut Frames) -> Outcome<()> {
        for component in components {
            let send = TenantResponse::SendContent(component.component.into());
            self.component((component.component, component.bytes), &send, frames).await?;
        }
        Ok(())
    }

    /// Loads a program. Reports one that can't run at once.
    async fn load(self, component: ComponentId) -> Outcome<Arc<Program>> {
        let Upload { cluster, tenant, .. } = self;
        let loaded = components::load_of_tenant(cluster, tenant, component).await;
        loaded.map_err(|fault| match cluster.tenant_components.get(tenant, component) {
            Some(_) => refuse_component(cluster, tenant, component, &fault),
            None => retry_later("the component was removed for another submission, or evicted"),
        })
    }

    /// Receives the files that the tenant has not sent to this node before.
    async fn files(self, needed: &BTreeSet<StoredFile>, frames: &mut Frames) -> Outcome<Vec<FileUse>> {
        let Upload { cluster, tenant, settings } = self;
        // Refuses before anything is sent.
        let bytes = needed.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
        if bytes > settings.files_bytes_max {
            let message = format!(
                "the files of the job have {bytes} bytes, the limit of the tenant is {}; ask the cluster's operator \
                 (`host tenant set {tenant} --files-bytes-max SIZE`)",
                settings.files_bytes_max
            );
            return Err(refused(RefusalCode::File, message));
        }
        let mut in_use = cluster.jobs.index().files_in_use(tenant);
        in_use.extend(needed.iter().map(|file| file.file));
        let mut received = Vec::new();
        for file in needed {
            if let Some(own) = cluster.tenant_files.get(tenant, file.file) {
                received.push(own);
                continue;
            }
            let max = settings.file_bytes_max;
            if file.bytes > max {
                let error = UploadError::TooLarge { item: "file", bytes: file.bytes, max };
                return Err(refused(RefusalCode::File, error));
            }
            send(frames, &TenantResponse::SendContent(file.file)).await?;
            let own = cluster.tenant_files.receive(tenant, *file, settings, &in_use, frames).await;
            received.push(own.map_err(|error| not_stored(RefusalCode::File, error))?);
            self.count(file.bytes).await?;
        }
        Ok(received)
    }

    /// Counts bytes that were received.
    async fn count(self, bytes: u64) -> Outcome<()> {
        let (state, tenant) = (self.cluster.clone(), self.tenant.clone());
        let counted = tokio::task::spawn_blocking(move || state.usage.add_upload(&tenant, bytes)).await;
        counted.map_err(node_failed)
    }

    /// Copies components and files to other nodes, so that they can take the job over.
    async fn replicate(self, work: &JobWork) {
        for component in work.components() {
            components::replicate(self.cluster, self.tenant, component, COMPONENT_COPIES).await;
        }
        let files: Vec<StoredFile> = work.files().into_iter().collect();
        files::replicate(self.cluster, self.tenant, &files, FILE_COPIES).await;
    }
}

/// Returns the response to an upload that is not stored.
fn not_stored(code: RefusalCode, error: UploadError) -> TenantResponse {
    match error {
        error @ (UploadError::File(..) | UploadError::DiskFull(_)) => node_failed(error),
        error @ (UploadError::Interrupted | UploadError::TooSlow(..)) => TenantResponse::RetryLater(error.to_string()),
        error => refused(code, error),
    }
}

/// Refuses a job because of a fault of its component, which is then removed unless the node is at fault.
fn refuse_component(cluster: &ClusterState, tenant: &Name, component: ComponentId, fault: &Fault) -> TenantResponse {
    if fault.code.blame() == Blame::Host {
        return node_failed(fault);
    }
    cluster.tenant_components.remove(tenant, component);
    refused(RefusalCode::Component, fault)
}

/// The job of a submission key.
enum Submitted {
    Job(Box<ClusterJob>),
    /// None. The key has this entry, which has expired or names a dropped job, or none.
    Nothing(Option<Entry>),
}

async fn find_submitted(cluster: &ClusterState, tenant: &Name, new: &NewClusterJob) -> Outcome<Submitted> {
    let key = submission_key(tenant, &new.key).map_err(rejected)?;
    let Some(entry) = cluster.store.get(&key).await.map_err(retry_later)?.entry else {
        return Ok(Submitted::Nothing(None));
    };
    let record: SubmissionRecord = serde_json::from_slice(entry.value.as_bytes()).map_err(node_failed)?;
    if record.until_ms < now_ms() {
        return Ok(Submitted::Nothing(Some(entry)));
    }
    let job = lookup::get(cluster, tenant, &record.job).await?;
    Ok(job.map_or(Submitted::Nothing(Some(entry)), |job| Submitted::Job(Box::new(job))))
}

/// Stores the job under a new name with this node as its owner, and starts it.
async fn store(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    new: NewClusterJob,
    settings: &TenantSettings,
) -> Outcome<TenantResponse> {
    for _ in 0..ATTEMPTS_MAX {
        let position = check_count(cluster, tenant, settings)?;
        let before = match find_submitted(cluster, tenant, &new).await? {
            Submitted::Job(job) => return Ok(TenantResponse::Job(job)),
            Submitted::Nothing(before) => before,
        };
        let job = job(tenant, &new);
        let submission = submission_key(tenant, &new.key).map_err(rejected)?;
        let submitted = submitted_key(tenant).map_err(rejected)?;
        let unused = match &before {
            Some(entry) => Condition::unchanged(submission.clone(), entry.mod_revision),
            None => Condition::absent(submission.clone()),
        };
        let job_key = job_key(&job.reference()).map_err(rejected)?;
        // Nobody has submitted another job of the tenant since this node counted them.
        let counted = Condition { key: submitted.clone(), test: Predicate::ModRevision(CompareOp::Less, position) };
        let record = SubmissionRecord { job: job.id.clone(), until_ms: now_ms().saturating_add(KEY_TIME_MS) };
        let record = encoding::json("the submission", &record).map_err(rejected)?;
        let operations = vec![
            Operation::put(submission, MetaValue::new(record)),
            Operation::put(submitted, MetaValue::new(Vec::new())),
        ];
        let exists = tenants::exists(tenant).map_err(rejected)?;
        let conditions = vec![unused, counted, exists, Condition::absent(job_key)];
        match acquire(cluster, job, conditions, operations).await.map_err(rejected)? {
            Some(owned) => {
                let job = owned.job.clone();
                start(cluster, owned);
                return Ok(TenantResponse::Job(Box::new(job)));
            }
            None if cluster.membership.lease().is_none() => {
                return Err(retry_later("the node is not a member of its cluster now"));
            }
            None => drop(tokio::time::timeout(INDEX_TIME_MAX, cluster.jobs.indexed_beyond(position)).await),
        }
    }
    Err(retry_later("the tenant submits other jobs at the same time"))
}

fn job(tenant: &Name, new: &NewClusterJob) -> ClusterJob {
    ClusterJob {
        id: JobName::generate(),
        tenant: tenant.clone(),
        key: Some(new.key.clone()),
        program: new.program.clone(),
        work: new.work.clone(),
        submitted_ms: now_ms(),
        ended_ms: None,
        state: RunState::Pending,
        runs: 1,
        losses: 0,
        handed_over: false,
        node: String::new(),
        result: serde_json::Value::Null,
        output: None,
        error: None,
        counts: JobCounts::default(),
    }
}

#[cfg(test)]
mod tests {
    use sandbar_train::Job;

    use super::*;

    #[test]
    fn submissions_are_bounded() {
        let argument = |value: &str| vec![("x".to_owned(), value.to_owned())];
        let new = |program: &str, task: &str, arguments: Vec<(String, String)>| NewClusterJob {
            key: "k".parse().unwrap(),
            program: program.to_owned(),
            work: JobWork::Program(ProgramWork {
                component: ComponentId::from_digest([0; 32]),
                component_bytes: 1,
                task: task.to_owned(),
                arguments,
                files: Vec::new(),
            }),
        };
        let long = |bytes: usize| "\u{1}".repeat(bytes);
        let many = (0..=ARGUMENTS_MAX).map(|number| (number.to_string(), String::new())).collect();
        for (new, expected) in [
            (new("p", "t", argument("5")), None),
            (new(&long(PROGRAM_BYTES_MAX), &long(TASK_BYTES_MAX), Vec::new()), None),
            (new(&long(PROGRAM_BYTES_MAX + 1), "t", Vec::new()), Some("request")),
            (new("p", &long(TASK_BYTES_MAX + 1), Vec::new()), Some("request")),
            (new("p", "t", many), Some("arguments")),
            // In JSON a control character has six bytes.
            (new("p", "t", argument(&long(WORK_BYTES_MAX / 6 - 100))), None),
            (new("p", "t", argument(&long(WORK_BYTES_MAX / 6 + 10))), Some("arguments")),
        ] {
            let code = match check_submission(&new) {
                Ok(()) => None,
                Err(TenantResponse::Refused(refusal)) => Some(refusal.code),
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(code.as_deref(), expected);
        }
    }

    #[test]
    fn job_files_come_with_all_that_they_name() {
        let text = r#"
            [input]
            paths = ["data/*.csv"]
            [[transform]]
            udf = "t#clean"
            [train]
            features = ["x"]
            target = "y"
            models = [{ udf = "m#linear" }]
            [output]
            path = "out.parquet"
        "#;
        let job = Job::parse(text, &[]).unwrap();
        let input = |name: &str| NamedStoredFile {
            name: name.to_owned(),
            content: StoredFile { file: ComponentId::from_digest([1; 32]).into(), bytes: 1 },
        };
        let component = |name: &str| JobComponent {
            name: name.to_owned(),
            found: name.to_owned(),
            component: ComponentId::from_digest([0; 32]),
            bytes: 1,
        };
        let valid = JobFileWork {
            job,
            inputs: vec![input("data/a.csv"), input("data/b.csv")],
            components: vec![component("m"), component("t")],
        };
        let check = |change: &dyn Fn(&mut JobFileWork), expected: &str| {
            let mut changed = valid.clone();
            change(&mut changed);
            let error = check_job_file(&changed).err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{error}");
        };
        check(&|_| {}, "");
        check(&|work| work.inputs.clear(), "no input file");
        check(&|work| work.inputs.push(input("data/a.csv")), "two input files are called `data/a.csv`");
        check(&|work| work.inputs.push(input("s3://bucket/a.csv")), "is a URL");
        check(&|work| work.inputs.push(input(&"x".repeat(NAME_BYTES_MAX + 1))), "has 4097 bytes");
        check(&|work| drop(work.components.pop()), "names the component `t`, and does not come with it");
        check(&|work| drop(work.components.remove(0)), "names the component `m`");
        check(&|work| work.job.output.path = "out.csv".to_owned(), "models are written as Parquet");
        check(&|work| work.job.limits.time_ms_max = 0, "time_ms_max");
        check(
            &|work| {
                work.job.train = None;
                work.job.output.partition_by = vec!["x".to_owned()];
            },
            "`output.partition_by` is not supported",
        );
        let valid = PredictionWork {
            models: input("models.parquet"),
            inputs: vec![input("data/a.csv")],
            output: "out.csv".to_owned(),
            model: None,
            file: None,
            components: vec![component("m")],
        };
        let check = |change: &dyn Fn(&mut PredictionWork), expected: &str| {
            let mut changed = valid.clone();
            change(&mut changed);
            let error = check_prediction(&changed).err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{error}");
        };
        let long = || "x".repeat(NAME_BYTES_MAX + 1);
        check(&|_| {}, "");
        check(&|work| work.inputs.clear(), "no input file");
        check(&|work| work.inputs.push(input("data/a.csv")), "two input files are called `data/a.csv`");
        check(&|work| work.models.name = long(), "has 4097 bytes");
        check(&|work| work.output = long(), "has 4097 bytes");
        check(&|work| work.file = Some(long()), "has 4097 bytes");
    }
}
