//! Fuzz targets: messages of guests, and of workers that a guest has taken over, to a program's node.

use sandbar_core::{
    ActorOptions, Argument, Bundle, Code, Fault, GroupId, GroupRequest, GroupStrategy, NodeId, ObjectId,
    RequestOptions, Strategy, TaskError, TaskKind, TaskRequest, WorkerId,
};
use sandbar_node::{Saying, hear_any};
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
pub(crate) const MAKE: u32 = 2;
pub(crate) const METHOD: u32 = 3;
/// Senders; the first two have a task of the same number.
pub(crate) const CLIENT: u8 = 0;
pub(crate) const TASKS: u8 = 2;
pub(crate) const ACTORS: u8 = 3;
const WITH_FILE: u8 = 4;
/// Bytes of the file.
const FILE_BYTES: u64 = 9000;
/// Flags of a sender byte: the message comes 50 ms later, or 3 s later (`LATE`).
const SOON: u8 = 8;
const LATE: u8 = 16;
/// Returns the first id that a worker allocates.
pub(crate) const fn first(member: u8) -> u64 {
    (member as u64 + 1) << 40
}

/// Worker messages: the sender as a byte, the message's length as two, and the message.
///
/// # Panics
/// Panics if the runtime does, or if it holds anything after all have ended.
pub fn message(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let all = std::iter::from_fn(|| {
        let (who, behind) = rest.split_first()?;
        let (length, behind) = behind.split_first_chunk()?;
        let (message, behind) = behind.split_at(behind.len().min(u16::from_le_bytes(*length).into()));
        rest = behind;
        let after_ms = u32::from(who & SOON > 0) * 50 + u32::from(who & LATE > 0) * 3000;
        Some(Saying { who: who % 4, with_file: who & WITH_FILE > 0, message, after_ms })
    });
    hear_any(&KINDS, all)
}

/// A task's request to its worker: the import as a byte, and its argument.
///
/// # Panics
/// Panics if the worker forwards a request that the runtime can't decode: that would end the worker with all its tasks.
pub fn request(bytes: &[u8]) -> bool {
    let Some(messages) = fuzz_task_request((WorkerId(1), 1, 0), &KINDS, bytes) else { return false };
    let all = messages.iter().map(|message| Saying { who: CLIENT, with_file: false, message, after_ms: 0 });
    assert!(hear_any(&KINDS, all), "a request of a task ends its worker: {messages:?}");
    true
}

/// Operations on rings in shared memory.
///
/// # Panics
/// Panics if frames differ from those written, or if a reader fails on corrupt content.
pub fn ring(bytes: &[u8]) -> bool {
    fuzz_rings(bytes)
}

/// Returns valid histories.
pub fn messages() -> Vec<Vec<u8>> {
    let plain = TaskRequest::default();
    let [a, b, c, d] = [0, 1, 2, 3].map(|place| first(CLIENT) + place);
    let item = |place| first(TASKS) + place;
    let options = |options: RequestOptions| TaskRequest { options: Some(Box::new(options)), ..TaskRequest::default() };
    let put = |object, value| WorkerMessage::Put { object, task: 0, value, refs: vec![] };
    let large = SentValue::File(FILE_BYTES, None);
    let kept = vec![7; 5000];
    let of_actor =
        ActorOptions { max_restarts: 1, max_task_retries: 1, max_pending_calls: Some(3), ..Default::default() };
    let named =
        RequestOptions { name: Some("one".into()), actor: Some(Box::new(of_actor)), ..RequestOptions::default() };
    let call = TaskRequest { actor: Some(ObjectId(a)), ..TaskRequest::default() };
    let bundle = || Bundle { cpus: 1.0, ..Bundle::default() };
    let group = GroupRequest { name: None, strategy: GroupStrategy::Spread, bundles: vec![bundle(), bundle()] };
    let group = postcard::to_stdvec(&group).expect("memory is written");
    let in_group = RequestOptions {
        strategy: Strategy::Group { group: GroupId(a), bundle: Some(0) },
        ..RequestOptions::default()
    };
    let timed = RequestOptions { timeout_ms: Some(20), max_retries: Some(0), ..RequestOptions::default() };
    let takes = TaskRequest {
        arguments: vec![Argument::Object(ObjectId(b)), Argument::Value(b"\x04")],
        refs: vec![ObjectId(c)],
        ..TaskRequest::default()
    };
    let failed = TaskError { fault: Fault::new(Code::Panic, "it panicked"), chain: vec!["task".into()] };
    vec![
        // Tasks, values and an end.
        history(&[
            (CLIENT, submit(a, TASK, 1, &plain)),
            (CLIENT, message_of(&put(b, SentValue::Inline(b"\x02")))),
            (CLIENT, message_of(&put(c, SentValue::Inline(&kept)))),
            (CLIENT | WITH_FILE, message_of(&put(d, large))),
            (CLIENT, message_of(&WorkerMessage::RequestObject(a, 0))),
            (CLIENT, message_of(&WorkerMessage::RequestRange(b, 2, 0))),
            (TASKS, message_of(&WorkerMessage::Blocked(a, true))),
            (TASKS, message_of(&WorkerMessage::RequestObject(c, a))),
            (TASKS, message_of(&WorkerMessage::Blocked(a, false))),
            (TASKS | WITH_FILE, finished(a, Ok(vec![(large, vec![b])]))),
            (CLIENT, message_of(&WorkerMessage::Release(c, 1))),
            (CLIENT, message_of(&WorkerMessage::ReleaseRange(b, 1))),
            (CLIENT, submit(d + 1, TASK, 2, &takes)),
            (TASKS, finished(d + 1, Ok(vec![(SentValue::Inline(b"x"), vec![]), (SentValue::Inline(&kept), vec![])]))),
            (CLIENT, message_of(&WorkerMessage::Cancel(a, 0, true))),
            (CLIENT, finished(0, Ok(vec![(SentValue::Inline(b"end"), vec![])]))),
        ]),
        // An actor: created, called, checkpointed, found, killed.
        history(&[
            (CLIENT, submit(a, MAKE, 1, &options(named))),
            (ACTORS, finished(a, Ok(vec![(SentValue::Inline(b"\0"), vec![])]))),
            (CLIENT, submit(b, METHOD, 1, &call)),
            (CLIENT, submit(c, METHOD, 1, &call)),
            (
                ACTORS,
                message_of(&WorkerMessage::Put {
                    object: first(ACTORS),
                    task: b,
                    value: SentValue::Inline(b"3"),
                    refs: vec![],
                }),
            ),
            (ACTORS, saved(b, first(ACTORS))),
            (ACTORS, message_of(&WorkerMessage::Retain(a, b))),
            (ACTORS, message_of(&WorkerMessage::CallDropped(c))),
            (CLIENT, message_of(&WorkerMessage::FindActor { object: d, task: 0, attempt: 0, name: "one" })),
            (CLIENT, message_of(&WorkerMessage::KillActor(a, true))),
            (CLIENT, message_of(&WorkerMessage::KillActor(a, false))),
        ]),
        // A generator.
        history(&[
            (
                CLIENT,
                submit(a, GENERATOR, 1, &options(RequestOptions { buffer: Some(1), ..RequestOptions::default() })),
            ),
            (CLIENT, message_of(&WorkerMessage::RequestObject(a, 0))),
            (TASKS, yielded(a, 0, item(0))),
            (CLIENT, message_of(&WorkerMessage::ItemsTaken(a, 1))),
            (TASKS, yielded(a, 1, item(1))),
            (TASKS, finished(a, Err(Box::new(failed.clone())))),
        ]),
        // Tasks that their submitter runs, and its other messages.
        history(&[
            (CLIENT, message_of(&WorkerMessage::StartedInline(submitted(a, TASK, 1, &bytes_of(&plain))))),
            (CLIENT, message_of(&WorkerMessage::Log(a, 1, "a line"))),
            (CLIENT, message_of(&WorkerMessage::Progress { task: a, name: "reads", done: 3, total: Some(7) })),
            (CLIENT, finished(a, Ok(vec![(SentValue::Inline(b""), vec![])]))),
            (CLIENT, ran(b, Ok(vec![(SentValue::Inline(b"1"), vec![a])]))),
            (CLIENT, ran(c, Err(Box::new(failed)))),
            (CLIENT, message_of(&WorkerMessage::OpenFile { object: d, task: 0, file: 0 })),
            (CLIENT, message_of(&WorkerMessage::FileReleased(3))),
        ]),
        // Placement groups.
        history(&[
            (CLIENT, message_of(&WorkerMessage::CreateGroup { group: a, task: 0, request: &group })),
            (CLIENT, submit(b, TASK, 1, &options(in_group))),
            (TASKS, message_of(&WorkerMessage::Blocked(b, true))),
            (CLIENT, message_of(&WorkerMessage::RemoveGroup(a, 0))),
        ]),
        // Time limits that expire.
        history(&[
            (CLIENT, submit(a, TASK, 1, &options(timed))),
            (CLIENT | SOON, message_of(&WorkerMessage::RequestObject(a, 0))),
            (TASKS | SOON, finished(a, Ok(vec![(SentValue::Inline(b"late"), vec![])]))),
        ]),
    ]
}

/// Returns valid requests of tasks.
pub fn requests() -> Vec<Vec<u8>> {
    let submit = |function: u32, returns: u32, request: &TaskRequest<'_>| {
        [&[0, function as u8][..], &returns.to_le_bytes(), &bytes_of(request)].concat()
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
    let of_actor = ActorOptions { detached: true, checkpoint_every: Some(2), ..ActorOptions::default() };
    let make = TaskRequest {
        options: Some(Box::new(RequestOptions { actor: Some(Box::new(of_actor)), ..RequestOptions::default() })),
        ..TaskRequest::default()
    };
    let group = GroupRequest { name: Some("g".into()), bundles: vec![Bundle::default()], ..GroupRequest::default() };
    let error = TaskError { fault: Fault::new(Code::Refused, "no"), chain: vec!["a".into(), "b".into()] };
    let value = [&[1][..], &(1u64 << 40).to_le_bytes(), b"a value"].concat();
    vec![
        submit(TASK, 1, &TaskRequest::default()),
        submit(TASK, 3, &with_options),
        submit(GENERATOR, 1, &with_options),
        submit(MAKE, 1, &make),
        submit(METHOD, 1, &TaskRequest { actor: Some(ObjectId(7)), ..TaskRequest::default() }),
        [&[1][..], &postcard::to_stdvec(&group).expect("memory is written")].concat(),
        [&[2][..], b"a name"].concat(),
        [&[3][..], &value].concat(),
        [&[4][..], &value].concat(),
        [&[5][..], &postcard::to_stdvec(&error).expect("memory is written")].concat(),
    ]
}

fn history(all: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let record = |(who, message): &(u8, Vec<u8>)| {
        let length = u16::try_from(message.len()).expect("seeds are short");
        [&[*who][..], &length.to_le_bytes(), message].concat()
    };
    all.iter().flat_map(record).collect()
}

pub(crate) fn message_of(message: &WorkerMessage<'_>) -> Vec<u8> {
    postcard::to_stdvec(message).expect("memory is written")
}

pub(crate) fn bytes_of(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("memory is written")
}

/// A submission by the first client's task.
fn submitted(task: u64, function: u32, returns: u32, request: &[u8]) -> SubmitTask<'_> {
    SubmitTask { task, parent: 0, attempt: 0, function, returns, seed: 7, request }
}

pub(crate) fn submit(task: u64, function: u32, returns: u32, request: &TaskRequest<'_>) -> Vec<u8> {
    message_of(&WorkerMessage::Submit(submitted(task, function, returns, &bytes_of(request))))
}

const TOOK: AttemptUsage = AttemptUsage { started: 7, nanos: 5, waited_nanos: 8, gpu_nanos: 9, memory_bytes: 6 };

fn ran(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>) -> Vec<u8> {
    let request = bytes_of(&TaskRequest::default());
    let submit = submitted(task, TASK, 1, &request);
    message_of(&WorkerMessage::FinishedInline { submit, returned, usage: TOOK })
}

pub(crate) fn finished(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>) -> Vec<u8> {
    ended(task, returned, None)
}

fn saved(task: u64, object: u64) -> Vec<u8> {
    ended(task, Ok(vec![(SentValue::Inline(b"\x02"), vec![])]), Some(object))
}

fn ended(task: u64, returned: Result<ReturnedValues<'_>, Box<TaskError>>, saved: Option<u64>) -> Vec<u8> {
    message_of(&WorkerMessage::Finished { task, attempt: 0, returned, usage: TOOK, lost: false, saved })
}

fn yielded(task: u64, index: u64, object: u64) -> Vec<u8> {
    message_of(&WorkerMessage::Yield {
        task,
        attempt: 0,
        index,
        object,
        value: SentValue::Inline(b"\x02"),
        refs: vec![],
    })
}
