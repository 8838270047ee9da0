//! Golden JSON of every message of the tenant API, and of the jobs in the cluster's store.
//!
//! Clients of other versions send and read these texts. They may gain fields with defaults; nothing else may change.

use sandbar_core::{ComponentId, TenantId};
use sandbar_jobs::{JobCounts, JobFailure, JobName, JobQuery, LoggedLine, ProgressRow, RunState};
use sandbar_meta::Key;
use sandbar_train::Job;
use sandbar_wire::{Name, PublicKey, TenantRole, Timestamp, TokenId};

use super::job::{
    ClusterJob, FileArgument, JobComponent, JobFileWork, JobKey, JobRef, JobWork, ProgramWork, job_key, owner_key,
    owner_value, parse_key, submission_key, submitted_key,
};
use super::submission::SubmissionRecord;
use super::tenant_messages::{NewClusterJob, Refusal, TENANT_API, TenantRequest, TenantResponse};
use crate::component_registry::{ComponentKey, NewComponent, RegisteredComponent};
use crate::files::{NamedStoredFile, StoredFile};
use crate::golden::check_json;
use crate::member::{Member, MemberState};
use crate::tenants::{Tenant, TenantSettings, TenantToken};
use crate::usage::UsageBy;

fn name() -> JobName {
    "20260131-235959-123-4f3a9c".parse().unwrap()
}

fn tenant() -> Name {
    "alice".parse().unwrap()
}

fn token() -> TenantToken {
    TenantToken {
        id: TokenId([7; 16]),
        role: TenantRole::Viewer,
        use_once: true,
        created_by: None,
        issued: Timestamp(1),
        expires: Timestamp(2),
        last_use: None,
    }
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
        tenant: tenant(),
        key: Some("k-1".parse().unwrap()),
        program: "sum.wasm".to_owned(),
        work: program(Vec::new()),
        submitted_ms: 1,
        ended_ms: Some(2),
        state: RunState::Failed,
        runs: 3,
        losses: 2,
        handed_over: false,
        node: "first".to_owned(),
        result: serde_json::json!({ "sum": 4 }),
        output: None,
        error: Some(JobFailure {
            code: Some("trap".to_owned()),
            message: "why".to_owned(),
            chain: vec!["main".to_owned()],
        }),
        counts: JobCounts { tasks: 5, succeeded: 4, takeovers: 2, ..JobCounts::default() },
    }
}

fn program(files: Vec<FileArgument>) -> JobWork {
    let (component, task, arguments) = (component(), "main".to_owned(), arguments());
    JobWork::Program(ProgramWork { component, component_bytes: 8, task, arguments, files })
}

fn registered() -> RegisteredComponent {
    let version = "fares@1.2.0".parse().unwrap();
    let pushed = NewComponent { version, component: component(), bytes: 8, signature: None };
    RegisteredComponent { pushed, pushed_ms: 5, functions: Vec::new(), yanked: false }
}

fn file(byte: u8) -> StoredFile {
    StoredFile { file: ComponentId::from_digest([byte; 32]).into(), bytes: 9 }
}

fn job_file() -> JobWork {
    let text = r#"
        name = "taxi"
        [input]
        paths = ["data/*.csv"]
        [train]
        features = ["x"]
        target = "y"
        models = [{ udf = "models#linear" }]
        [output]
        path = "out.parquet"
    "#;
    let found = "/usr/share/sandbar/models.wasm".to_owned();
    let job_file = JobFileWork {
        job: Job::parse(text, &[]).unwrap(),
        inputs: vec![NamedStoredFile { name: "data/a.csv".to_owned(), content: file(8) }],
        components: vec![JobComponent { name: "models".to_owned(), found, component: component(), bytes: 8 }],
    };
    JobWork::JobFile { job_file: Box::new(job_file) }
}

fn requests() -> Vec<TenantRequest> {
    let job = || "4f3a9c".to_owned();
    let new = |program: &str, work| NewClusterJob { key: "k-1".parse().unwrap(), program: program.to_owned(), work };
    let files = vec![NamedStoredFile { name: "a.csv".to_owned(), content: file(8) }];
    let with_files = program(vec![FileArgument { argument: "n".to_owned(), files }]);
    vec![
        TenantRequest::Submit(new("sum.wasm", program(Vec::new()))),
        TenantRequest::Submit(new("sum.wasm", with_files)),
        TenantRequest::Submit(new("taxi.toml", job_file())),
        TenantRequest::Output { job: job() },
        TenantRequest::Follow { job: job(), run: 1, lines: 2, without_log: true },
        TenantRequest::Status { job: job() },
        TenantRequest::Stop { job: job() },
        TenantRequest::List { limit: 3 },
        TenantRequest::Query { job: job(), query: JobQuery::Summary },
        TenantRequest::Tenant,
        TenantRequest::CreateToken { role: TenantRole::Submitter, use_once: true, lifetime_s: 60 },
        TenantRequest::RevokeToken { token: TokenId([7; 16]) },
        TenantRequest::FindIssuer,
        TenantRequest::Actors,
        TenantRequest::StopActor { actor: "a".to_owned() },
        TenantRequest::Usage { since_ms: 5, job: Some(job()), by: UsageBy::Tenant },
        TenantRequest::PushComponent(registered().pushed),
        TenantRequest::Components,
        TenantRequest::PullComponent { component: component() },
        TenantRequest::YankComponent { version: registered().pushed.version, yanked: true },
        TenantRequest::ComponentKeys,
        TenantRequest::AddComponentKey { key: PublicKey([1; 32]) },
        TenantRequest::RemoveComponentKey { key: PublicKey([1; 32]) },
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
        TenantResponse::SendContent(file(8).file),
        TenantResponse::Output(file(8)),
        TenantResponse::InProgress,
        TenantResponse::Job(Box::new(job())),
        TenantResponse::Jobs(vec![job()]),
        TenantResponse::Line(line),
        TenantResponse::Progress(vec![row]),
        TenantResponse::Redirect("127.0.0.1:7410".to_owned()),
        TenantResponse::QueryResponse,
        TenantResponse::Nodes(vec!["127.0.0.1:7410".to_owned()]),
        TenantResponse::Tenant(Box::new(Tenant {
            name: tenant(),
            created: Timestamp(1),
            settings: TenantSettings::default(),
            tokens: Vec::new(),
        })),
        TenantResponse::Token(Box::new(token()), "sbt2-a".to_owned()),
        TenantResponse::Usage,
        TenantResponse::Component(Box::new(registered())),
        TenantResponse::Components,
        TenantResponse::ComponentKeys(vec![ComponentKey { key: PublicKey([1; 32]), added_ms: 5 }]),
        TenantResponse::Done,
        TenantResponse::RetryLater("why".to_owned()),
        TenantResponse::Refused(Refusal { code: "no-job".to_owned(), message: "why".to_owned() }),
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
    // A job of a version without the length of its component.
    let text = JOB.replace(r#""component_bytes":8,"#, "");
    assert_eq!(serde_json::from_str::<ClusterJob>(&text).unwrap().work.components(), [component()]);
    let of_file = ClusterJob { work: job_file(), output: Some(file(9)), error: None, ..job() };
    check_json(&of_file, FILE_JOB);
    let record = SubmissionRecord { job: name(), until_ms: 3 };
    check_json(&record, r#"{"job":"20260131-235959-123-4f3a9c","until_ms":3}"#);
}

#[test]
fn keys_of_jobs_are_fixed() {
    let key = |text: &str| Key::new(text.as_bytes().to_vec()).unwrap();
    let prefix = "tenants/alice/jobs/20260131-235959-123-4f3a9c";
    let [job, owner] = ["job", "owner"].map(|end| key(&format!("{prefix}/{end}")));
    let reference = JobRef { tenant: tenant(), id: name() };
    assert_eq!((job_key(&reference).unwrap(), owner_key(&reference).unwrap()), (job.clone(), owner.clone()));
    assert_eq!(
        (parse_key(&job), parse_key(&owner)),
        (Some(JobKey::Job(reference.clone())), Some(JobKey::Owner(reference)))
    );
    let submission = submission_key(&tenant(), &"k-1".parse().unwrap()).unwrap();
    assert_eq!(submission, key("tenants/alice/submissions/k-1"));
    assert_eq!(submitted_key(&tenant()).unwrap(), key("tenants/alice/submitted"));
    assert_eq!(
        [&submission, &key("tenants/alice/submitted"), &key("tenants/alice/jobs/x/job")].map(parse_key),
        [None, None, None]
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
        has_authority: false,
    };
    assert_eq!(owner_value(&member).as_bytes(), b"first/4");
    assert_eq!(TENANT_API.number(), 9);
}

const JOB: &str = r#"{"id":"20260131-235959-123-4f3a9c","tenant":"alice","key":"k-1","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","component_bytes":8,"task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"losses":2,"handed_over":false,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}"#;

const FILE_JOB: &str = r#"{"id":"20260131-235959-123-4f3a9c","tenant":"alice","key":"k-1","program":"sum.wasm","job_file":{"job":{"name":"taxi","input":{"paths":["data/*.csv"],"filter":null},"transform":[],"train":{"group_by":[],"per_file":false,"features":["x"],"target":"y","test":0.25,"seed":0,"min_rows":4,"metric":"mae","models":[{"udf":"models#linear","name":null,"params":{}}]},"output":{"path":"out.parquet"},"device":null,"limits":{"memory_bytes_max":1073741824,"time_ms_max":60000,"tensor_bytes_max":1073741824,"output_bytes_max":268435456,"log_bytes_max":65536,"instances_max":16,"tables_max":8,"table_elements_max":20000,"model_bytes_max":134217728,"retries_max":3}},"inputs":[{"name":"data/a.csv","file":"0808080808080808080808080808080808080808080808080808080808080808","bytes":9}],"components":[{"name":"models","found":"/usr/share/sandbar/models.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","bytes":8}]},"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"losses":2,"handed_over":false,"node":"first","result":{"sum":4},"output":{"file":"0909090909090909090909090909090909090909090909090909090909090909","bytes":9},"error":null,"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}"#;

const REQUESTS: [&str; 23] = [
    r#"{"submit":{"key":"k-1","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","component_bytes":8,"task":"main","arguments":[["n","3"]]}}"#,
    r#"{"submit":{"key":"k-1","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","component_bytes":8,"task":"main","arguments":[["n","3"]],"files":[{"argument":"n","files":[{"name":"a.csv","file":"0808080808080808080808080808080808080808080808080808080808080808","bytes":9}]}]}}"#,
    r#"{"submit":{"key":"k-1","program":"taxi.toml","job_file":{"job":{"name":"taxi","input":{"paths":["data/*.csv"],"filter":null},"transform":[],"train":{"group_by":[],"per_file":false,"features":["x"],"target":"y","test":0.25,"seed":0,"min_rows":4,"metric":"mae","models":[{"udf":"models#linear","name":null,"params":{}}]},"output":{"path":"out.parquet"},"device":null,"limits":{"memory_bytes_max":1073741824,"time_ms_max":60000,"tensor_bytes_max":1073741824,"output_bytes_max":268435456,"log_bytes_max":65536,"instances_max":16,"tables_max":8,"table_elements_max":20000,"model_bytes_max":134217728,"retries_max":3}},"inputs":[{"name":"data/a.csv","file":"0808080808080808080808080808080808080808080808080808080808080808","bytes":9}],"components":[{"name":"models","found":"/usr/share/sandbar/models.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","bytes":8}]}}}"#,
    r#"{"output":{"job":"4f3a9c"}}"#,
    r#"{"follow":{"job":"4f3a9c","taken":1,"after":2,"stays":true}}"#,
    r#"{"status":{"job":"4f3a9c"}}"#,
    r#"{"stop":{"job":"4f3a9c"}}"#,
    r#"{"list":{"limit":3}}"#,
    r#"{"look":{"job":"4f3a9c","question":"summary"}}"#,
    r#""tenant""#,
    r#"{"create-token":{"role":"submitter","use_once":true,"lifetime_s":60}}"#,
    r#"{"revoke-token":{"token":"07070707070707070707070707070707"}}"#,
    r#""find-issuer""#,
    r#""actors""#,
    r#"{"stop-actor":{"actor":"a"}}"#,
    r#"{"usage":{"since_ms":5,"job":"4f3a9c","by":"tenant"}}"#,
    r#"{"push-component":{"name":"fares","version":"1.2.0","component":"0707070707070707070707070707070707070707070707070707070707070707","bytes":8,"signature":null}}"#,
    r#""components""#,
    r#"{"pull-component":{"component":"0707070707070707070707070707070707070707070707070707070707070707"}}"#,
    r#"{"yank-component":{"name":"fares","version":"1.2.0","yanked":true}}"#,
    r#""component-keys""#,
    r#"{"add-component-key":{"key":"0101010101010101010101010101010101010101010101010101010101010101"}}"#,
    r#"{"remove-component-key":{"key":"0101010101010101010101010101010101010101010101010101010101010101"}}"#,
];

const RESPONSES: [&str; 20] = [
    r#""send""#,
    r#"{"send-content":"0808080808080808080808080808080808080808080808080808080808080808"}"#,
    r#"{"output":{"file":"0808080808080808080808080808080808080808080808080808080808080808","bytes":9}}"#,
    r#""working""#,
    r#"{"job":{"id":"20260131-235959-123-4f3a9c","tenant":"alice","key":"k-1","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","component_bytes":8,"task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"losses":2,"handed_over":false,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}}"#,
    r#"{"jobs":[{"id":"20260131-235959-123-4f3a9c","tenant":"alice","key":"k-1","program":"sum.wasm","component":"0707070707070707070707070707070707070707070707070707070707070707","component_bytes":8,"task":"main","arguments":[["n","3"]],"submitted_ms":1,"ended_ms":2,"state":"failed","taken":3,"losses":2,"handed_over":false,"node":"first","result":{"sum":4},"error":{"code":"trap","message":"why","chain":["main"]},"counts":{"tasks":5,"succeeded":4,"failed":0,"stopped":0,"failed_attempts":0,"lost_attempts":0,"lost_workers":0,"lost_nodes":0,"takeovers":2,"resumed":0}}]}"#,
    r#"{"line":{"ms":1,"tenant":"000000000000012c","name":"add","task":"3-17","worker":4,"level":"info","line":"text"}}"#,
    r#"{"progress":[{"name":"rows","done":1,"total":2,"seconds":0.5}]}"#,
    r#"{"elsewhere":"127.0.0.1:7410"}"#,
    r#""seen""#,
    r#"{"nodes":["127.0.0.1:7410"]}"#,
    r#"{"tenant":{"name":"alice","created_s":1,"settings":{"weight":100,"reserved_cpus":0.0,"tasks_max":1000000,"actors_max":1000,"memory_bytes_max":536870912,"object_bytes_max":17179869184,"jobs_max":64,"finished_jobs_max":1000,"finished_job_bytes_max":16777216,"component_bytes_max":67108864,"components_max":64,"components_bytes_max":268435456,"file_bytes_max":4294967296,"files_bytes_max":17179869184,"cpu_seconds_per_day_max":null,"gpu_seconds_per_day_max":null,"network_bytes_per_day_max":null,"log_bytes_per_day_max":null,"job_seconds_max":null},"tokens":[]}}"#,
    r#"{"token":[{"id":"07070707070707070707070707070707","role":"viewer","use_once":true,"created_by":null,"issued_s":1,"expires_s":2,"last_use":null},"sbt2-a"]}"#,
    r#""usage""#,
    r#"{"component":{"name":"fares","version":"1.2.0","component":"0707070707070707070707070707070707070707070707070707070707070707","bytes":8,"signature":null,"pushed_ms":5,"functions":[],"yanked":false}}"#,
    r#""components""#,
    r#"{"component-keys":[{"key":"0101010101010101010101010101010101010101010101010101010101010101","added_ms":5}]}"#,
    r#""done""#,
    r#"{"later":"why"}"#,
    r#"{"refused":{"code":"no-job","message":"why"}}"#,
];
