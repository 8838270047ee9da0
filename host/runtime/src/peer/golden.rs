//! Golden bytes of every message between nodes.
//!
//! Nodes of different protocol versions refuse each other. After the first release, a change of these bytes needs a new
//! `sandbar_wire::PROTOCOL_VERSION`.

use std::num::NonZeroU64;

use sandbar_core::{
    ActorId, ActorOptions, Attempt, Code, ComponentId, Fault, GroupId, JobId, JobRun, Limits, NodeId, ObjectId,
    RetryOn, Strategy, TaskError, TaskId, TenantId, WorkerId,
};
use sandbar_worker::program::AttemptUsage;

use super::messages::{JobRoot, PeerMessage, PeerValue, RemoteActor, RemoteTaskSpec, RemoteWork};
use super::{Amounts, CachedResult, CachedValue};

fn amounts() -> Amounts {
    Amounts { cpus: 1, gpus: 2, memory: 3, custom: [("tpu".to_owned(), 4)].into() }
}

fn spec<'a>(work: RemoteWork<'a>) -> PeerMessage<'a> {
    PeerMessage::Submit(RemoteTaskSpec {
        task: TaskId(1),
        attempt: Attempt(2),
        slot: WorkerId(3),
        job: root(),
        program: 6,
        function: 7,
        seed: 8,
        lineage: NonZeroU64::new(9),
        name: "add".into(),
        returns: 1,
        demand: amounts(),
        priority: -1,
        depth: 2,
        timeout_ms: Some(100),
        bundle: Some((GroupId(10), 11)),
        needs: vec![ObjectId(12)],
        refs: vec![ObjectId(13)],
        values: vec![(ObjectId(12), PeerValue::Value(b"v"))],
        arguments: b"a",
        work,
    })
}

fn root() -> JobRoot {
    JobRoot { node: NodeId(4), job: JobId(5) }
}

fn error() -> TaskError {
    TaskError { fault: Fault::new(Code::Trap, "trap"), chain: vec!["main".to_owned()] }
}

/// Checks the bytes of a message. `GOLDEN=1` prints them instead.
fn check(name: &str, bytes: Result<Vec<u8>, postcard::Error>, expected: &str) {
    let bytes: String = bytes.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    if std::env::var_os("GOLDEN").is_some() {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{name} {bytes}");
        return;
    }
    assert_eq!(bytes, expected, "{name}");
}

#[test]
fn messages_have_golden_bytes() {
    assert_eq!(sandbar_wire::PROTOCOL_VERSION, 4);
    let (task, attempt, slot, object) = (TaskId(1), Attempt(2), WorkerId(3), ObjectId(4));
    let remote = PeerValue::Remote { node: NodeId(5), object: ObjectId(6), bytes: 7 };
    let contains = vec![ObjectId(8)];
    let usage = AttemptUsage { started: 1, nanos: 2, waited_nanos: 3, gpu_nanos: 4, memory_bytes: 5 };
    let finished = |returned| PeerMessage::Finished { task, attempt, slot, returned, system: true, usage };
    let component = ComponentId::from_digest([7; 32]);
    let actor = RemoteActor::Hosted(task, attempt);
    let create = RemoteWork::CreateActor {
        options: ActorOptions::default(),
        actor_name: Some("a".into()),
        strategy: Strategy::Node { node: NodeId(1), soft: true },
    };
    let call = RemoteWork::Call { actor: RemoteActor::Lent(ActorId(1)), retries: Some(2), retry_on: RetryOn::System };
    let messages = [
        PeerMessage::Program { program: 1, tenant: TenantId(300), component, limits: Limits::default() },
        PeerMessage::Job {
            root: root(),
            tenant: TenantId(300),
            run: JobRun::first("id"),
            name: "main".into(),
            lasting: Some("job".into()),
        },
        spec(RemoteWork::Task),
        spec(RemoteWork::Generator(16)),
        spec(call),
        spec(RemoteWork::HostActor(ActorOptions::default(), Some(ObjectId(1)))),
        spec(create),
        PeerMessage::Recall(slot),
        PeerMessage::Recalled(slot, vec![task]),
        PeerMessage::Cancel(task, attempt, true),
        PeerMessage::JobEnded(root()),
        finished(Ok(vec![(remote, contains.clone())])),
        finished(Err(Box::new(error()))),
        PeerMessage::Blocked(task, true),
        PeerMessage::Yielded { task, attempt, slot, index: 9, object, value: remote, contains: contains.clone() },
        PeerMessage::Checkpoint { task, attempt, object, value: PeerValue::Value(b"s"), contains: contains.clone() },
        PeerMessage::ItemsTaken(task, 5),
        PeerMessage::FindActor { object, job: root(), name: "a".into() },
        PeerMessage::KillActor(actor, true),
        PeerMessage::RequestObject(object, true),
        PeerMessage::ObjectValue { object, value: PeerValue::Failed(b"e"), contains },
        PeerMessage::Release(object, 2),
        PeerMessage::Log { job: JobId(1), task, name: "add".into(), worker: slot, level: 1, line: "hello" },
        PeerMessage::Progress { job: JobId(1), task, name: "rows", done: 1, total: Some(2) },
        PeerMessage::ReserveBundles {
            group: GroupId(1),
            attempt,
            job: root(),
            program: 1,
            bundles: vec![(0, amounts())],
        },
        PeerMessage::ReserveReply(GroupId(1), attempt, true),
        PeerMessage::ReleaseBundles(GroupId(1), attempt),
        PeerMessage::Load(amounts()),
        PeerMessage::OpenFile { object, job: root(), number: 300 },
        PeerMessage::Leaving,
        PeerMessage::Released,
    ];
    assert_eq!(messages.len(), GOLDEN.len());
    for (message, golden) in messages.iter().zip(GOLDEN) {
        check(&format!("{message:?}"), postcard::to_stdvec(message), golden);
        let bytes = postcard::to_stdvec(message).unwrap();
        let decoded: PeerMessage<'_> = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{message:?}"));
    }
}

#[test]
fn cached_results_have_golden_bytes() {
    let returned = vec![
        CachedValue::Inline(b"v".to_vec()),
        CachedValue::Remote { node: NodeId(1), object: ObjectId(2), bytes: 3 },
    ];
    let result = CachedResult { lineage: NonZeroU64::MIN, nanos: 2, values: returned };
    check("cached result", postcard::to_stdvec(&result), "01020200017601010203");
}

/// Bytes of the messages above, in hexadecimal.
const GOLDEN: [&str; 31] = [
    "0001ac0207070707070707070707070707070707070707070707070707070707070707078080808004e0d40380808080048080808001808004\
     1008a09c018080804003",
    "010405ac0202696401046d61696e01036a6f62",
    "0201020304050607080109036164640101020301037470750401020164010a0b010c010d010c000176016100",
    "0201020304050607080109036164640101020301037470750401020164010a0b010c010d010c00017601610110",
    "0201020304050607080109036164640101020301037470750401020164010a0b010c010d010c0001760161020001010200",
    "0201020304050607080109036164640101020301037470750401020164010a0b010c010d010c000176016103000000000000000101",
    "0201020304050607080109036164640101020301037470750401020164010a0b010c010d010c0001760161040000000000000001016102\
     0101",
    "0303",
    "04030101",
    "05010201",
    "060405",
    "070102030001010506070108010102030405",
    "0701020301010474726170000001046d61696e010102030405",
    "080101",
    "090102030904010506070108",
    "0a0102040001730108",
    "0b0105",
    "0c0404050161",
    "0d01010201",
    "0e0401",
    "0f040201650108",
    "100402",
    "1101010361646403010568656c6c6f",
    "12010104726f7773010102",
    "1301020405010100010203010374707504",
    "14010201",
    "150102",
    "16010203010374707504",
    "17040405ac02",
    "18",
    "19",
];
