//! Fuzz targets: messages of guests, and of workers that a guest has taken over, to a program's node.

use sandbar_core::{
    ActorOptions, Argument, Bundle, Code, Fault, GroupId, GroupRequest, GroupStrategy, NodeId, ObjectId,
    RequestOptions, Strategy, TaskError, TaskKind, TaskRequest, WorkerId,
};
use sandbar_node::{FuzzInput, run_fuzz_inputs};
use sandbar_worker::program::{
    AttemptUsage, ReturnedValues, SentValue, SubmitTask, WorkerMessage, fuzz_rings, fuzz_task_request,
};

/// Tasks of the program, by index.
pub(crate) const KINDS: [TaskKind; 7] = [
    TaskKind::Task,
    TaskKind::Generator,
    TaskKind::Make,
    TaskKind::Method,
    TaskKind::Shared,
    TaskKind::Checkpoint,
    TaskKind::Restore,
];
pub(crate) const TASK: u32 = 0;
pub(crate) const GENERATOR: u32 = 1;
pub(crate) const CONSTRUCTOR: u32 = 2;
pub(crate) const METHOD: u32 = 3;
/// Senders. The first client's task has the id 0.
pub(crate) const CLIENT: u8 = 0;
pub(crate) const TASKS: u8 = 2;
pub(crate) const ACTORS: u8 = 3;
/// Flags of a sender byte: the message comes with a file, after 50 ms, or after 3 s.
const WITH_FILE: u8 = 4;
const AFTER_50_MS: u8 = 8;
const AFTER_3_S: u8 = 16;
/// Bytes of the file.
const FILE_BYTES: u64 = 9000;

/// Returns the first id that the worker with this sender number allocates.
pub(crate) const fn first_id(sender: u8) -> u64 {
    (sender as u64 + 1) << 40
}

/// Decodes worker messages and sends them to a runtime. Each message is a sender byte, its length as two bytes, and its
/// content.
///
/// # Panics
/// Panics if the runtime does, or if it has any state left after all jobs and workers have ended.
pub fn message(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let inputs = std::iter::from_fn(|| {
        let (sender, tail) = rest.split_first()?;
        let (length, tail) = tail.split_first_chunk()?;
        let (message, tail) = tail.split_at(tail.len().min(u16::from_le_bytes(*length).into()));
        rest = tail;
        let delay_ms = u32::from(sender & AFTER_50_MS > 0) * 50 + u32::from(sender & AFTER_3_S > 0) * 3000;
        Some(FuzzInput { sender: sender % 4, with_file: sender & WITH_FILE > 0, message, delay_ms })
    });
    run_fuzz_inputs(&KINDS, inputs)
}

/// Decodes a task's request to its worker: a byte that selects the import, and the import's argument.
///
/// # Panics
/// Panics if the worker forwards a request that the runtime can't decode: that would end the worker with all its tasks.
pub fn request(bytes: &[u8]) -> bool {
    let Some(messages) = fuzz_task_request(WorkerId(1), 1, 0, &KINDS, bytes) else { return false };
    let inputs = messages.iter().map(|message| FuzzInput { sender: CLIENT, with_file: false, message, delay_ms: 0 });
    assert!(run_fuzz_inputs(&KINDS, inputs), "the runtime rejects a forwarded request: {messages:?}");
    true
}

/// Decodes operations on rings in shared memory, and runs them.
///
/// # Panics
/// Panics if frames differ from those written, or if a reader fails on corrupt content.
pub fn ring(bytes: &[u8]) -> bool {
    fuzz_rings(bytes)
}

/// Returns valid histories of messages.
pub fn messages() -> Vec<Vec<u8>> {
    let plain = TaskRequest::default();
    let [a, b, c, d] = [0, 1, 2, 3].map(|index| first_id(CLIENT) + index);
    let item = |index| first_id(TASKS) + index;
    let options = |options: RequestOptions| TaskRequest { options: Some(Box::new(options)), ..TaskRequest::default() };
    let put = |object, value| WorkerMessage::Put { object, task: 0, value, refs: vec![] };
    let large = SentValue::File(FILE_BYTES, None);
    let medium = vec![7; 5000];
    let actor_options =
        ActorOptions { max_restarts: 1, max_task_retries: 1, max_pending_calls: Some(3), ..Default::default() };
    let named =
        RequestOptions { name: Some("one".into()), actor: Some(Box::new(actor_options)), ..RequestOptions::default() };
    let call = TaskRequest { actor: Some(ObjectId(a)), ..TaskRequest::default() };
    let bundle = || Bundle { cpus: 1.0, ..Bundle::default() };
    let group = GroupRequest { name: None, strategy: GroupStrategy::Spread, bundles: vec![bundle(), bundle()] };
    let group = encode_value(&group);
    let in_group = RequestOptions {
        strategy: Strategy::Group { group: GroupId(a), bundle: Some(0) },
        ..RequestOptions::default()
    };
    let timed = RequestOptions { timeout_ms: Some(20), max_retries: Some(0), ..RequestOptions::default() };
    let with_arguments = TaskRequest {
        arguments: vec![Argument::Object(ObjectId(b)), Argument::Value(b"\x04")],
        refs: vec![ObjectId(c)],
        ..TaskRequest::default()
    };
    let failed = TaskError { fault: Fault::new(Code::Panic, "it panicked"), chain: vec!["task".into()] };
    vec![
        // Tasks and values, until the client ends.
        history(&[
            (CLIENT, submit(a, TASK, 1, &plain)),
            (CLIENT, encode_message(&put(b, SentValue::Inline(b"\x02")))),
            (CLIENT, encode_message(&put(c, SentValue::Inline(&medium)))),
            (CLIENT | WITH_FILE, encode_message(&put(d, large))),
            (CLIENT, encode_message(&WorkerMessage::RequestObject(a, 0))),
            (CLIENT, encode_message(&WorkerMessage::RequestRange(b, 2, 0))),
            (TASKS, encode_message(&WorkerMessage::Blocked(a, true))),
            (TASKS, encode_message(&WorkerMessage::RequestObject(c, a))),
            (TASKS, encode_message(&WorkerMessage::Blocked(a, false))),
            (TASKS | WITH_FILE, finished(a, Ok(vec![(large, vec![b])]))),
            (CLIENT, encode_message(&WorkerMessage::Release(c, 1))),
            (CLIENT, encode_message(&WorkerMessage::ReleaseRange(b, 1))),
            (CLIENT, submit(d + 1, TASK, 2, &with_arguments)),
            (TASKS, finished(d + 1, Ok(vec![(SentValue::Inline(b"x"), vec![]), (SentValue::Inline(&medium), vec![])]))),
            (CLIENT, encode_message(&WorkerMessage::Cancel(a, 0, true))),
            (CLIENT, finished(0, Ok(vec![(SentValue::Inline(b"end"), vec![])]))),
        ]),
        // An actor: created, called, checkpointed, found, killed.
        history(&[
            (CLIENT, submit(a, CONSTRUCTOR, 1, &options(named))),
            (ACTORS, finished(a, Ok(vec![(SentValue::Inline(b"\0"), vec![])]))),
            (CLIENT, submit(b, METHOD, 1, &call)),
            (CLIENT, submit(c, METHOD, 1, &call)),
            (
                ACTORS,
                encode_message(&WorkerMessage::Put {
                    object: first_id(ACTORS),
                    task: b,
                    value: SentValue::Inline(b"3"),
                    refs: vec![],
                }),
            ),
            (ACTORS, checkpointed(b, first_id(ACTORS))),
            (ACTORS, encode_message(&WorkerMessage::Retain(a, b))),
            (ACTORS, encode_message(&WorkerMessage::CallDropped(c))),
            (CLIENT, encode_message(&WorkerMessage::FindActor { object: d, task: 0, attempt: 0, name: "one" })),
            (CLIENT, encode_message(&WorkerMessage::KillActor(a, 1, true))),
            (CLIENT, encode_message(&WorkerMessage::KillActor(a, 1, false))),
        ]),
        // A generator.
        history(&[
            (
                CLIENT,
                submit(a, GENERATOR, 1, &options(RequestOptions { buffer: Some(1), ..RequestOptions::default() })),
            ),
            (CLIENT, encode_message(&WorkerMessage::RequestObject(a, 0))),
            (TASKS, yielded(a, 0, item(0))),
            (CLIENT, encode_message(&WorkerMessage::ItemsTaken(a, 1))),
            (TASKS, yielded(a, 1, item(1))),
            (TASKS, finished(a, Err(Box::new(failed.clone())))),
        ]),
        // Tasks that their submitter runs inline, and its other messages.
        history(&[
            (CLIENT, encode_message(&WorkerMessage::StartedInline(submission(a, TASK, 1, &encode_value(&plain))))),
            (CLIENT, encode_message(&WorkerMessage::Log(a, 1, "a line"))),
            (CLIENT, encode_message(&WorkerMessage::Progress { task: a, name: "reads", done: 3, total: Some(7) })),
            (CLIENT, finished(a, Ok(vec![(SentValue::Inline(b""), vec![])]))),
            (CLIENT, finished_inline(b, Ok(vec![(SentValue::Inline(b"1"), vec![a])]))),
            (CLIENT, finished_inline(c, Err(Box::new(failed)))),
            (CLIENT, encode_message(&WorkerMessage::OpenFile { object: d, task: 0, file: 0 })),
            (CLIENT, encode_message(&WorkerMessage::FileReleased(3))),
        ]),
        // Placement groups.
        history(&[
            (CLIENT, encode_message(&WorkerMessage::CreateGroup { group: a, task: 0, request: &group })),
            (CLIENT, submit(b, TASK, 1, &options(in_group))),
            (TASKS, encode_message(&WorkerMessage::Blocked(b, true))),
            (CLIENT, encode_message(&WorkerMessage::RemoveGroup(a, 0))),
        ]),
        // Time limits that expire.
        history(&[
            (CLIENT, submit(a, TASK, 1, &options(timed))),
            (CLIENT | AFTER_50_MS, encode_message(&WorkerMessage::RequestObject(a, 0))),
            (TASKS | AFTER_50_MS, finished(a, Ok(vec![(SentValue::Inline(b"late"), vec![])]))),
        ]),
    ]
}

/// Returns valid requests of tasks.
pub fn requests() -> Vec<Vec<u8>> {
    let submit = |function: u32, returns: u32, request: &TaskRequest<'_>| {
        [&[0, function as u8][..], &returns.to_le_bytes(), &encode_value(request)].concat()
    };
    let options = RequestOptions {
        name: Some("a name".into()),
        cpus: Some(0.5),
        gpus: Some(1.0),
        memory: Some(1 << 20),
        resources: vec![("license".into(), 1.0)],
        max_retries: Some(1),
        retry_on: sandbar_core::RetryOn::All,
        timeout_ms: Some(1000),
        priority: -3,
        strategy: Strategy::Node { node: NodeId(0), soft: true },
        actor: None,
        buffer: Some(3),
    };
    let with_options = TaskRequest {
        options: Some(Box::new(options)),
        arguments: vec![Argument::Value(b"\x04"), Argument::Object(ObjectId(1 << 40)), Argument::Missing],
        refs: vec![ObjectId(1 << 40)],
        ..TaskRequest::default()
    };
    let actor_options = ActorOptions { detached: true, checkpoint_every: Some(2), ..ActorOptions::default() };
    let construct = TaskRequest {
        options: Some(Box::new(RequestOptions { actor: Some(Box::new(actor_options)), ..RequestOptions::default() })),
        ..TaskRequest::default()
    };
    let group = GroupRequest { name: Some("g".into()), bundles: vec![Bundle::default()], ..GroupRequest::default() };
    let error = TaskError { fault: Fault::new(Code::Refused, "no"), chain: vec!["a".into(), "b".into()] };
    let value = [&[1][..], &(1u64 << 40).to_le_bytes(), b"a value"].concat();
    vec![
        submit(TASK, 1, &TaskRequest::default()),
        submit(TASK, 3, &with_options),
        submit(GENERATOR, 1, &with_options),
        submit(CONSTRUCTOR, 1, &construct),
        submit(METHOD, 1, &TaskRequest { actor: Some(ObjectId(7)), ..TaskRequest::default() }),
        [&[1][..], &encode_value(&group)].concat(),
        [&[2][..], b"a name"].concat(),
        [&[3][..], &value].concat(),
        [&[4][..], &value].concat(),
        [&[5][..], &encode_value(&error)].concat(),
    ]
}

fn history(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let encode = |(sender, message): &(u8, Vec<u8>)| {
        let length = u16::try_from(message.len()).expect("a message of a seed is short");
        [&[*sender][..], &length.to_le_bytes(), message].concat()
    };
    messages.iter().flat_map(encode).collect()
}

pub(crate) fn encode_message(message: &WorkerMessage<'_>) -> Vec<u8> {
    postcard::to_stdvec(message).expect("writing to memory succeeds")
}

pub(crate) fn encode_value(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("writing to memory succeeds")
}

/// Returns a submission by the first client's task.
fn submission(task: u64, function: u32, returns: u32, request: &[u8]) -> SubmitTask<'_> {
    SubmitTask { task, parent: 0, attempt: 0, function, returns, seed: 7, request }
}

pub(crate) fn submit(task: u64, function: u32, returns: u32, request: &TaskRequest<'_>) -> Vec<u8> {
    encode_message(&WorkerMessage::Submit(submission(task, function, returns, &encode_value(request))))
}

const USAGE: AttemptUsage = AttemptUsage { started: 7, nanos: 5, waited_nanos: 8, gpu_nanos: 9, memory_bytes: 6 };

fn finished_inline(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>) -> Vec<u8> {
    let request = encode_value(&TaskRequest::default());
    let submit = submission(task, TASK, 1, &request);
    encode_message(&WorkerMessage::FinishedInline { submit, returned, usage: USAGE })
}

pub(crate) fn finished(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>) -> Vec<u8> {
    finish(task, returned, None)
}

fn checkpointed(task: u64, object: u64) -> Vec<u8> {
    finish(task, Ok(vec![(SentValue::Inline(b"\x02"), vec![])]), Some(object))
}

fn finish(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>, saved: Option<u64>) -> Vec<u8> {
    encode_message(&WorkerMessage::Finished { task, attempt: 0, returned, usage: USAGE, lost: false, saved })
}

fn yielded(task: u64, index: u64, object: u64) -> Vec<u8> {
    encode_message(&WorkerMessage::Yield {
        task,
        attempt: 0,
        index,
        object,
        value: SentValue::Inline(b"\x02"),
        refs: vec![],
    })
}
