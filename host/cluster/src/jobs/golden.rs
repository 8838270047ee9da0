//! Golden JSON of every message of the tenant API, and of the jobs in the cluster's store.
//!
//! Clients of other versions send and read these texts. They may gain fields with defaults; nothing else may change.

use sandbar_core::{ComponentId, TenantId};
use sandbar_jobs::{JobCounts, JobFailure, JobName, JobQuery, LoggedLine, ProgressRow, RunState};
use sandbar_meta::Key;

use super::job::{ClusterJob, JobKey, job_key, owner_key, owner_value, parse_key};
use super::tenant_messages::{NewClusterJob, TENANT_API, TenantRequest, TenantResponse};
use crate::golden::check_json;
use crate::member::{Member, MemberState};

fn name() -> JobName {
    "20260131-235959-123-4f3a9c".parse().unwrap()
}

fn component() -> ComponentId {
    ComponentId::from_digest([7; 32])
}

fn arguments() -> Vec<(String, String)> {
    vec![("n".to_owned(), "3".to_owned())]
}

fn job() -> ClusterJob {
    ClusterJob {
        id: name(),
        tenant: "alice".to_owned(),
        program: "sum.wasm".to_owned(),
        component: component(),
        task: "main".to_owned(),
        arguments: arguments(),
        submitted_ms: 1,
        ended_ms: Some(2),
        state: RunState::Failed,
        runs: 3,
        node: "first".to_owned(),
        result: serde_json::json!({ "sum": 4 }),
        error: Some(JobFailure {
            code: Some("trap".to_owned()),
            message: "why".to_owned(),
            chain: vec!["main".to_owned()],
        }),
        counts: JobCounts { tasks: 5, succeeded: 4, takeovers: 2, ..JobCounts::default() },
    }
}

fn requests() -> Vec<TenantRequest> {
    let job = || "4f3a9c".to_owned();
    let new = NewClusterJob {
        id: name(),
        program: "sum.wasm".to_owned(),
        component: component(),
        task: "main".to_owned(),
        arguments: arguments(),
    };
    vec![
        TenantRequest::Submit(new),
        TenantRequest::Follow { job: job(), run: 1, lines: 2, without_log: true },
        TenantRequest::Status { job: job() },
        TenantRequest::Stop { job: job() },
        TenantRequest::List { limit: 3 },
        TenantRequest::Query { job: job(), query: JobQuery::Summary },
    ]
}

fn responses() -> Vec<TenantResponse> {
    let line = LoggedLine {
        ms: 1,
        tenant: TenantId(300),
        name: "add".to_owned(),
        task: Some("3-17".to_owned()),
        worker: Some(4),
        level: "info".to_owned(),
        line: "text".to_owned(),
    };
    let row = ProgressRow { name: "rows".to_owned(), done: 1, total: Some(2), seconds: 0.5 };
    vec![
        TenantResponse::SendComponent,
        TenantResponse::InProgress,
        TenantResponse::Job(Box::new(job())),
        TenantResponse::Jobs(vec![job()]),
        TenantResponse::Line(line),
        TenantResponse::Progress(vec![row]),
        TenantResponse::Redirect("127.0.0.1:7410".to_owned()),
        TenantResponse::QueryResponse,
        TenantResponse::Nodes(vec!["127.0.0.1:7410".to_owned()]),
        TenantResponse::RetryLater("why".to_owned()),
        TenantResponse::Refused("why".to_owned()),
    ]
}

#[test]
fn tenant_requests_have_golden_json() {
    let requests = requests();
    assert_eq!(requests.len(), REQUESTS.len());
    requests.iter().zip(REQUESTS).for_each(|(request, expected)| check_json(request, expected));
}

#[test]
fn tenant_responses_have_golden_json() {
    let responses = responses();
    assert_eq!(responses.len(), RESPONSES.len());
    responses.iter().zip(RESPONSES).for_each(|(response, expected)| check_json(response, expected));
}

#[test]
fn stored_jobs_have_golden_json() {
    check_json(&job(), JOB);
}

#[test]
fn keys_of_jobs_are_fixed() {
    let key = |text: &str| Key::new(text.as_bytes().to_vec()).unwrap();
    let (job, owner) = ("jobs/20260131-235959-123-4f3a9c/job", "jobs/20260131-235959-123-4f3a9c/owner");
    assert_eq!((job_key(&name()), owner_key(&name())), (Some(key(job)), Some(key(owner))));
    assert_eq!(
        (parse_key(&key(job)), parse_key(&key(owner))),
        (Some(JobKey::Job(name())), Some(JobKey::Owner(name())))
    );
    let member = Member {
        name: "first".to_owned(),
        number: 4,
        address: ([127, 0, 0, 1], 7410).into(),
        version: String::new(),
        resources: sandbar_runtime::Amounts::default(),
        slots: 1,
        state: MemberState::Ready,
        key: String::new(),
    };
    assert_eq!(owner_value(&member).as_bytes(), b"first/4");
    assert_eq!(TENANT_API.number(), 9);
}

const JOB: &str = r#"{"id":"20260131-235959-123-4f3a9c","tenant":"alice","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}"#;

const REQUESTS: [&str; 6] = [
    r#"{"submit":{"id":"20260131-235959-123-4f3a9c","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","task":"main","arguments":[["n","3"]]}}"#,
    r#"{"follow":{"job":"4f3a9c","taken":1,"after":2,"stays":true}}"#,
    r#"{"status":{"job":"4f3a9c"}}"#,
    r#"{"stop":{"job":"4f3a9c"}}"#,
    r#"{"list":{"limit":3}}"#,
    r#"{"look":{"job":"4f3a9c","question":"summary"}}"#,
];

const RESPONSES: [&str; 11] = [
    r#""send""#,
    r#""working""#,
    r#"{"job":{"id":"20260131-235959-123-4f3a9c","tenant":"alice","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}}"#,
    r#"{"jobs":[{"id":"20260131-235959-123-4f3a9c","tenant":"alice","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}]}"#,
    r#"{"line":{"ms":1,"tenant":"000000000000012c","name":"add","task":"3-17","worker":4,"level":"info","line":"text"}}"#,
    r#"{"progress":[{"name":"rows","done":1,"total":2,"seconds":0.5}]}"#,
    r#"{"elsewhere":"127.0.0.1:7410"}"#,
    r#""seen""#,
    r#"{"nodes":["127.0.0.1:7410"]}"#,
    r#"{"later":"why"}"#,
    r#"{"refused":"why"}"#,
];
