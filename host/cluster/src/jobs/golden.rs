//! Golden JSON of every message of the tenant API, and of the jobs in the cluster's store.
//!
//! Clients of other versions send and read these texts. They may gain fields with defaults; nothing else may change.

use sandbar_core::ComponentId;
use sandbar_jobs::{JobCounts, JobFailure, JobName, JobQuery, LoggedLine, ProgressRow, RunState};
use sandbar_meta::Key;

use super::door::JOBS_CHANNEL;
use super::keep::owner;
use super::said::{Answered, Asked, NewClusterJob};
use super::{ClusterJob, job_key, owner_key, parse_key};
use crate::golden::check_json;
use crate::members::{Member, MemberState};

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
        taken: 3,
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

fn requests() -> Vec<Asked> {
    let job = || "4f3a9c".to_owned();
    let new = NewClusterJob {
        id: name(),
        program: "sum.wasm".to_owned(),
        component: component(),
        task: "main".to_owned(),
        arguments: arguments(),
    };
    vec![
        Asked::Submit(new),
        Asked::Follow { job: job(), taken: 1, after: 2, stays: true },
        Asked::Status { job: job() },
        Asked::Stop { job: job() },
        Asked::List { limit: 3 },
        Asked::Look { job: job(), question: JobQuery::Summary },
    ]
}

fn responses() -> Vec<Answered> {
    let line = LoggedLine {
        ms: 1,
        name: "add".to_owned(),
        task: Some("3-17".to_owned()),
        worker: Some(4),
        level: "info".to_owned(),
        line: "text".to_owned(),
    };
    let row = ProgressRow { name: "rows".to_owned(), done: 1, total: Some(2), seconds: 0.5 };
    vec![
        Answered::Send,
        Answered::Working,
        Answered::Job(Box::new(job())),
        Answered::Jobs(vec![job()]),
        Answered::Line(line),
        Answered::Progress(vec![row]),
        Answered::Elsewhere("127.0.0.1:7410".to_owned()),
        Answered::Seen,
        Answered::Nodes(vec!["127.0.0.1:7410".to_owned()]),
        Answered::Later("why".to_owned()),
        Answered::Refused("why".to_owned()),
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
    let (job, lease) = ("jobs/20260131-235959-123-4f3a9c/job", "jobs/20260131-235959-123-4f3a9c/owner");
    assert_eq!((job_key(&name()), owner_key(&name())), (Some(key(job)), Some(key(lease))));
    assert_eq!((parse_key(&key(job)), parse_key(&key(lease))), (Some((name(), false)), Some((name(), true))));
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
    assert_eq!(owner(&member).as_bytes(), b"first/4");
    assert_eq!(JOBS_CHANNEL.number(), 9);
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
    r#"{"line":{"ms":1,"name":"add","task":"3-17","worker":4,"level":"info","line":"text"}}"#,
    r#"{"progress":[{"name":"rows","done":1,"total":2,"seconds":0.5}]}"#,
    r#"{"elsewhere":"127.0.0.1:7410"}"#,
    r#""seen""#,
    r#"{"nodes":["127.0.0.1:7410"]}"#,
    r#"{"later":"why"}"#,
    r#"{"refused":"why"}"#,
];
