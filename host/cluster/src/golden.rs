//! Golden bytes of every message between nodes, and of the values in the cluster's store.
//!
//! Nodes of different protocol versions refuse each other. A change of these bytes therefore needs a new
//! `sandbar_wire::PROTOCOL_VERSION`, once a version was released.

use std::fmt::Debug;
use std::num::NonZeroU64;

use sandbar_core::{Code, ComponentId, Fault, JobRun, Limits, NodeId, ObjectId, TenantId, UsageAmounts};
use sandbar_meta::{
    Change, Condition, Entry, EntryPage, GetResponse, GrantResponse, KeepAliveResponse, Key, KeyRange, LeaseId,
    MetaError, MetaValue, Operation, OperationResult, Revision, RevokeResponse, TransactResponse, Transaction,
};
use sandbar_runtime::{Amounts, CachedResult, CachedValue};
use sandbar_train::TrainerRef;
use sandbar_worker::{BatchLocation, Groups};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_bytes::ByteBuf;

use crate::components::COMPONENTS;
use crate::connections::TASKS;
use crate::files::StoredFile;
use crate::member::{Member, MemberState};
use crate::node_requests::{NodeRequest, ObjectDescription};
use crate::training::{TRAINING, TrainRequest, TrainResponse, TrainedModels};
use crate::usage::{PageRow, UsagePage};

/// Checks the encoded form of a message, and that it decodes to the same message. `GOLDEN=1` prints it instead.
fn check<T: Debug>(message: &T, encoded: &str, decoded: &T, expected: &str) {
    if std::env::var_os("GOLDEN").is_some() {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{message:?}\n{encoded}");
    } else {
        assert_eq!(encoded, expected, "{message:?}");
    }
    assert_eq!(format!("{decoded:?}"), format!("{message:?}"));
}

/// Checks the postcard bytes of a message, in hexadecimal.
fn check_bytes<T: Serialize + DeserializeOwned + Debug>(message: &T, expected: &str) {
    let bytes = postcard::to_stdvec(message).unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    check(message, &hex, &postcard::from_bytes(&bytes).unwrap(), expected);
}

/// Checks the JSON text of a message.
pub(crate) fn check_json<T: Serialize + DeserializeOwned + Debug>(message: &T, expected: &str) {
    let text = serde_json::to_string(message).unwrap();
    check(message, &text, &serde_json::from_str(&text).unwrap(), expected);
}

fn key() -> Key {
    Key::new(b"k".to_vec()).unwrap()
}

fn range() -> KeyRange {
    KeyRange::prefix(b"n/".as_slice()).unwrap()
}

fn component() -> ComponentId {
    ComponentId::from_digest([7; 32])
}

fn entry() -> Entry {
    Entry {
        key: key(),
        value: MetaValue::new(b"v".to_vec()),
        create_revision: Revision(1),
        mod_revision: Revision(2),
        version: 3,
        lease: Some(LeaseId(4)),
    }
}

#[test]
fn node_requests_have_golden_bytes() {
    assert_eq!(sandbar_wire::PROTOCOL_VERSION, 4);
    let transaction = Transaction::new()
        .when(Condition::absent(key()))
        .when(Condition::unchanged(key(), Revision(300)))
        .then(Operation::put_leased(key(), MetaValue::new(b"v".to_vec()), LeaseId(5)))
        .then(Operation::delete(&key()))
        .otherwise(Operation::put(key(), MetaValue::new(b"w".to_vec())));
    let job = "20260131-235959-123-4f3a9c".parse().unwrap();
    for (request, expected) in [
        (NodeRequest::Get(key()), "00016b"),
        (NodeRequest::Range(range(), 300), "01026e2f01026e30ac02"),
        (NodeRequest::Transact(transaction), "0202016b000000016b0200ac020200016b0176010501016b01026b000100016b017700"),
        (NodeRequest::Grant(4), "0304"),
        (NodeRequest::KeepAlive(LeaseId(5)), "0405"),
        (NodeRequest::Revoke(LeaseId(6)), "0506"),
        (NodeRequest::Watch(range(), Revision(7)), "06026e2f01026e3007"),
        (NodeRequest::DescribeObject(8), "0708"),
        (NodeRequest::FindHolders(9, vec![NodeId(1), NodeId(300)]), "08090201ac02"),
        (NodeRequest::FetchEnded(10, true), "090a01"),
        (NodeRequest::CachedResults(job, 11), "0a1a32303236303133312d3233353935392d3132332d3466336139630b"),
        (NodeRequest::Drain, "0b"),
        (NodeRequest::DetachedActors("ada".parse().unwrap()), "0d03616461"),
        (NodeRequest::EndDetachedActor("ada".parse().unwrap(), "a".to_owned()), "0e036164610161"),
        (NodeRequest::Usage(Some("ada".parse().unwrap()), 300), "0f0103616461ac02"),
        (
            NodeRequest::CopyFile("ada".parse().unwrap(), StoredFile { file: component().into(), bytes: 300 }),
            "10036164614030373037303730373037303730373037303730373037303730373037303730373037303730373037303730373037303730373037303730373037303730373037ac02",
        ),
        (
            NodeRequest::CopyComponent("ada".parse().unwrap(), component()),
            "0c036164610707070707070707070707070707070707070707070707070707070707070707",
        ),
    ] {
        check_bytes(&request, expected);
    }
}

#[test]
fn pages_of_usage_have_golden_bytes() {
    let amounts = UsageAmounts { cpu_ns: 300, ..UsageAmounts::default() };
    let rows = vec![PageRow { tenant: "ada".to_owned(), run: JobRun::first("id"), amounts }];
    check_bytes(&UsagePage { rows, next: Some(7) }, "01036164610269640100000000ac0200000000000000000107");
}

#[test]
fn responses_of_the_store_have_golden_bytes() {
    let revision = Revision(9);
    let unavailable = || MetaError::Unavailable { endpoints: vec!["e".to_owned()], reason: "r".to_owned() };
    type Response<T> = Result<T, MetaError>;
    let get: Response<GetResponse> = Ok(GetResponse { revision, entry: Some(entry()) });
    check_bytes(&get, "000901016b01760102030104");
    let page: Response<EntryPage> = Ok(EntryPage { revision, entries: vec![entry()], next: Some(key()) });
    check_bytes(&page, "000901016b0176010203010401016b");
    let outcomes = vec![OperationResult::Put, OperationResult::Deleted(2)];
    let transact: Response<TransactResponse> = Ok(TransactResponse { revision, succeeded: true, outcomes });
    check_bytes(&transact, "00090102000102");
    let grant: Response<GrantResponse> = Ok(GrantResponse { revision, lease: LeaseId(5), ttl_s: 4 });
    check_bytes(&grant, "00090504");
    let keep_alive: Response<KeepAliveResponse> = Ok(KeepAliveResponse { revision, ttl_s: 4 });
    check_bytes(&keep_alive, "000904");
    let revoke: Response<RevokeResponse> = Ok(RevokeResponse { revision });
    check_bytes(&revoke, "0009");
    let changes = vec![Change::Put(entry()), Change::Deleted { key: key(), revision }];
    let watch: Response<(Vec<Change>, Revision)> = Ok((changes, Revision(10)));
    check_bytes(&watch, "000200016b0176010203010401016b090a");
    let failed: Response<RevokeResponse> = Err(unavailable());
    check_bytes(&failed, "01060101650172");
    let failed: Response<RevokeResponse> = Err(MetaError::LeaseNotFound(LeaseId(5)));
    check_bytes(&failed, "010305");
}

#[test]
fn responses_of_nodes_have_golden_bytes() {
    let described: Result<ObjectDescription, String> = Ok(ObjectDescription { root: [3; 32], bytes: 300 });
    check_bytes(&described, "000303030303030303030303030303030303030303030303030303030303030303ac02");
    let failed: Result<ObjectDescription, String> = Err("why".to_owned());
    check_bytes(&failed, "0103776879");
    check_bytes(&vec![NodeId(1), NodeId(300)], "0201ac02");
    check_bytes(&(), "");
    let returned = vec![
        CachedValue::Inline(b"v".to_vec()),
        CachedValue::Remote { node: NodeId(1), object: ObjectId(2), bytes: 3 },
    ];
    check_bytes(
        &vec![(7_u64, CachedResult { lineage: NonZeroU64::MIN, nanos: 2, values: returned })],
        "010701020200017601010203",
    );
    let copied: Result<(), String> = Ok(());
    check_bytes(&copied, "00");
    let failed: Result<(), String> = Err("why".to_owned());
    check_bytes(&failed, "0103776879");
}

#[test]
fn training_has_golden_bytes() {
    // The trainer's fields: component, function, parameters, name, device.
    let trainer = [&[7; 32], b"\x01\x02{}\x04tree\x00".as_slice()].concat();
    let trainer: TrainerRef = postcard::from_bytes(&trainer).unwrap();
    let request = TrainRequest {
        tenant: TenantId(300),
        run: JobRun::first("id"),
        trainers: vec![trainer],
        limits: Limits::default(),
        seed: 300,
        groups: Groups { count: 2, first: 1, table_at: 3, extra_at: 4, extra_bytes: 5, without: [1].into() },
        batches: vec![BatchLocation { body_at: 64, body_bytes: 7, header_bytes: 8 }],
        bytes: 1000,
        shares: 2,
    };
    check_bytes(
        &request,
        "ac020269640101070707070707070707070707070707070707070707070707070707070707070701027b7d0474726565008080808004e0d403808080800480808080018080041008a09c018080804003ac02020103040501010101400708e80702",
    );
    let batches = vec![(ByteBuf::from(b"header".to_vec()), ByteBuf::from(b"body".to_vec()))];
    let models = TrainedModels { batches, faults: vec![(1, Fault::new(Code::Trap, "trap").in_function("tree"))] };
    let response: TrainResponse = Ok((vec![models], vec!["line".to_owned()]));
    check_bytes(&response, "0001010668656164657204626f647901010104747261700104747265650001046c696e65");
    let failed: TrainResponse = Err(Fault::new(Code::Host, "why"));
    check_bytes(&failed, "0120037768790000");
}

#[test]
fn members_have_golden_json() {
    let member = |state| Member {
        name: "first".to_owned(),
        number: 4,
        address: ([127, 0, 0, 1], 7410).into(),
        version: "1.0.0".to_owned(),
        resources: Amounts { cpus: 10_000, gpus: 0, memory: 3, custom: [("tpu".to_owned(), 4)].into() },
        slots: 2,
        state,
        key: "ab".to_owned(),
        has_authority: true,
    };
    check_json(
        &member(MemberState::Ready),
        r#"{"name":"first","number":4,"address":"127.0.0.1:7410","version":"1.0.0","resources":{"cpus":10000,"gpus":0,"memory":3,"custom":{"tpu":4}},"slots":2,"state":"ready","key":"ab","has_authority":true}"#,
    );
    check_json(
        &member(MemberState::Draining),
        r#"{"name":"first","number":4,"address":"127.0.0.1:7410","version":"1.0.0","resources":{"cpus":10000,"gpus":0,"memory":3,"custom":{"tpu":4}},"slots":2,"state":"draining","key":"ab","has_authority":true}"#,
    );
    // A member of a version without states and keys.
    let text = r#"{"name":"a","number":4,"address":"[::1]:1","version":"1","resources":{"cpus":1,"gpus":0,"memory":0,"custom":{}},"slots":1}"#;
    let member: Member = serde_json::from_str(text).unwrap();
    assert_eq!((member.state, member.key.as_str(), member.has_authority), (MemberState::Ready, "", false));
    // The last number that was assigned.
    check_bytes(&300_u16, "ac02");
}

#[test]
fn channels_have_fixed_numbers() {
    assert_eq!([TASKS, COMPONENTS, TRAINING].map(|channel| channel.number()), [1, 8, 10]);
}
