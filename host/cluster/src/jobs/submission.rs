//! Submission of jobs by tenants.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::{Blame, ComponentId, Fault};
use sandbar_jobs::{JobCounts, JobName, RunState, now_ms};
use sandbar_meta::{CompareOp, Condition, Entry, MetaValue, Operation, Predicate, Revision};
use sandbar_runtime::first_file_argument;
use sandbar_wire::{Frames, Name};
use serde::{Deserialize, Serialize};

use super::job::{ARGUMENTS_BYTES_MAX, ClusterJob, job_key, submission_key, submitted_key};
use super::leases::{acquire, start};
use super::lookup;
use super::tenant_messages::{NewClusterJob, RefusalCode, TenantResponse};
use super::tenant_responses::{Outcome, node_failed, refused, rejected, retry_later, send, while_in_progress};
use crate::state::ClusterState;
use crate::tenant_components::UploadError;
use crate::tenants::{self, TenantSettings};
use crate::{components, encoding};

/// Number of other nodes that get a copy of a job's component.
const COMPONENT_COPIES: usize = 2;
/// Maximum bytes of a program's text and of a task's name.
const PROGRAM_BYTES_MAX: usize = 1 << 10;
const TASK_BYTES_MAX: usize = 256;
/// Maximum arguments of a job.
const ARGUMENTS_MAX: usize = 1000;
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
    receive_component(cluster, tenant, &new, &settings, frames).await?;
    let prepared = async {
        // Reports a program that can't run at once.
        let loaded = components::load_of_tenant(cluster, tenant, new.component).await;
        let program = loaded.map_err(|fault| refuse_component(cluster, tenant, new.component, &fault))?;
        if let Some(name) = first_file_argument(&program, &new.task, &new.arguments) {
            let message = format!("argument `{name}` is a file: the cluster's nodes don't have this machine's files");
            return Err(refused(RefusalCode::Arguments, message));
        }
        components::replicate(cluster, tenant, new.component, COMPONENT_COPIES).await;
        Ok(())
    };
    while_in_progress(frames, prepared).await?;
    store(cluster, tenant, new, &settings).await
}

/// Checks the lengths of a submission.
pub(crate) fn check_submission(new: &NewClusterJob) -> Outcome<()> {
    let NewClusterJob { program, task, arguments, .. } = new;
    for (name, bytes, max) in
        [("program", program.len(), PROGRAM_BYTES_MAX), ("name of the task", task.len(), TASK_BYTES_MAX)]
    {
        if bytes > max {
            return Err(refused(RefusalCode::Request, format!("the {name} has {bytes} bytes, the limit is {max}")));
        }
    }
    let of_arguments = |message: String| refused(RefusalCode::Arguments, message);
    if arguments.len() > ARGUMENTS_MAX {
        let count = arguments.len();
        return Err(of_arguments(format!("the job has {count} arguments, the limit is {ARGUMENTS_MAX}")));
    }
    let bytes = serde_json::to_vec(arguments).map_err(node_failed)?.len();
    if bytes > ARGUMENTS_BYTES_MAX {
        return Err(of_arguments(format!("the arguments have {bytes} bytes, the limit is {ARGUMENTS_BYTES_MAX}")));
    }
    Ok(())
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

/// Receives the component, unless the tenant has sent it to this node before. Whether another tenant has makes no
/// difference.
async fn receive_component(
    cluster: &Arc<ClusterState>,
    tenant: &Name,
    new: &NewClusterJob,
    settings: &TenantSettings,
    frames: &mut Frames,
) -> Outcome<()> {
    if cluster.tenant_components.get(tenant, new.component).is_some() {
        return Ok(());
    }
    let max = settings.component_bytes_max;
    if new.component_bytes > max {
        return Err(refused(RefusalCode::Component, UploadError::TooLarge { bytes: new.component_bytes, max }));
    }
    send(frames, &TenantResponse::SendComponent).await?;
    let in_use = cluster.jobs.index().components_in_use(tenant);
    let (component, bytes) = (new.component, new.component_bytes);
    let received = cluster.tenant_components.receive(tenant, component, bytes, settings, &in_use, frames).await;
    if received.is_ok() {
        let (state, tenant) = (cluster.clone(), tenant.clone());
        let added = tokio::task::spawn_blocking(move || state.usage.add_upload(&tenant, bytes)).await;
        added.map_err(node_failed)?;
    }
    received.map_err(|error| match error {
        error @ UploadError::File(..) => node_failed(error),
        error @ (UploadError::Interrupted | UploadError::TooSlow(_)) => TenantResponse::RetryLater(error.to_string()),
        error => refused(RefusalCode::Component, error),
    })
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
        component: new.component,
        task: new.task.clone(),
        arguments: new.arguments.clone(),
        submitted_ms: now_ms(),
        ended_ms: None,
        state: RunState::Pending,
        runs: 1,
        losses: 0,
        handed_over: false,
        node: String::new(),
        result: serde_json::Value::Null,
        error: None,
        counts: JobCounts::default(),
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::ComponentId;

    use super::*;

    #[test]
    fn submissions_are_bounded() {
        let argument = |value: &str| vec![("x".to_owned(), value.to_owned())];
        let new = |program: &str, task: &str, arguments: Vec<(String, String)>| NewClusterJob {
            key: "k".parse().unwrap(),
            program: program.to_owned(),
            component: ComponentId::from_digest([0; 32]),
            component_bytes: 1,
            task: task.to_owned(),
            arguments,
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
            (new("p", "t", argument(&long(ARGUMENTS_BYTES_MAX / 6 - 10))), None),
            (new("p", "t", argument(&long(ARGUMENTS_BYTES_MAX / 6 + 10))), Some("arguments")),
        ] {
            let code = match check_submission(&new) {
                Ok(()) => None,
                Err(TenantResponse::Refused(refusal)) => Some(refusal.code),
                Err(other) => panic!("{other:?}"),
            };
            assert_eq!(code.as_deref(), expected);
        }
    }
}
