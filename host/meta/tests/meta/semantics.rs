//! Responses of stores as tables: steps with their results, equal for all three stores.

use sandbar_meta::{CompareOp, Condition, KeyRange, MetaLimits, Predicate, Revision};

use crate::cluster::Cluster;
use crate::driver::{Driver, Op, Step, delete, key, prefix, put, test, then};

struct Case {
    name: &'static str,
    steps: Vec<(Step, &'static str)>,
}

fn case(name: &'static str, steps: Vec<(Step, &'static str)>) -> Case {
    Case { name, steps }
}

fn limits() -> MetaLimits {
    MetaLimits {
        value_bytes_max: 1000,
        operations_max: 4,
        transaction_bytes_max: 3000,
        page_bytes_max: 1500,
        watchers_max: 3,
        ..MetaLimits::default()
    }
}

async fn check(driver: &mut Driver, case: &Case, store: &str) {
    for (number, (step, expected)) in case.steps.iter().enumerate() {
        let came = driver.step(step).await;
        assert_eq!(came.trim_end(), *expected, "{store}, `{}`, step {number}: {step:?}", case.name);
    }
}

#[tokio::test]
async fn memory_answers_so() {
    for case in cases() {
        check(&mut Driver::memory(limits()), &case, "memory").await;
    }
}

#[tokio::test]
async fn redb_answers_so() {
    for case in cases() {
        check(&mut Driver::redb(limits()).await, &case, "redb").await;
    }
}

#[tokio::test]
async fn etcd_answers_so() {
    let cluster = Cluster::start(1).await;
    for (number, case) in cases().iter().enumerate() {
        let store = cluster.connect(&format!("case{number}"), limits()).await;
        check(&mut Driver::other(store).await, case, "etcd").await;
    }
}

fn cases() -> Vec<Case> {
    [entries(), conditions(), transactions(), pages(), bounds(), leases(), watches()].into_iter().flatten().collect()
}

fn get(name: &str) -> Step {
    Step::Get(key(name))
}

fn transact(when: impl Into<Vec<Condition>>, yes: impl Into<Vec<Op>>, no: impl Into<Vec<Op>>) -> Step {
    Step::Transact { when: when.into(), then: yes.into(), otherwise: no.into() }
}

/// A step that checks whether a condition holds.
fn holds(condition: Condition) -> Step {
    transact([condition], [], [])
}

fn leased(name: &str, value: &str, lease: usize) -> Op {
    Op::Put(key(name), value.into(), Some(lease))
}

fn all() -> KeyRange {
    KeyRange::all()
}

fn entries() -> Vec<Case> {
    vec![
        case(
            "an entry counts its versions until it is deleted",
            vec![
                (get("a"), "@1 -"),
                (then([put("a", "1")]), "@2 then put"),
                (get("a"), "@2 a=1(2,2,1)"),
                (then([put("b", "1")]), "@3 then put"),
                (then([put("a", "")]), "@4 then put"),
                (get("a"), "@4 a=(2,4,2)"),
                (then([delete("a")]), "@5 then deleted 1"),
                (get("a"), "@5 -"),
                (then([put("a", "3")]), "@6 then put"),
                (get("a"), "@6 a=3(6,6,1)"),
            ],
        ),
        case(
            "what changes nothing has no revision",
            vec![
                (then([]), "@1 then"),
                (then([delete("a")]), "@1 then deleted 0"),
                (then([Op::Delete(all())]), "@1 then deleted 0"),
                (then([put("a", "1")]), "@2 then put"),
                (then([put("a", "1")]), "@3 then put"),
            ],
        ),
        case(
            "any bytes are a key",
            vec![
                (then([put("\0", "1"), put("\u{7f}", "2"), put("a/b c", "3")]), "@2 then put put put"),
                (Step::Range(all(), 0), "@2 \\x00=1(2,2,1) a/b c=3(2,2,1) \\x7f=2(2,2,1)"),
                (get("\0"), "@2 \\x00=1(2,2,1)"),
                (then([Op::Delete(KeyRange::key(&key("a/b c")))]), "@3 then deleted 1"),
            ],
        ),
    ]
}

fn conditions() -> Vec<Case> {
    let a = |t: Predicate| holds(test("a", t));
    vec![
        case(
            "of what is not there numbers are zero, and no value holds",
            vec![
                (holds(Condition::absent(key("a"))), "@1 then"),
                (holds(Condition::exists(key("a"))), "@1 otherwise"),
                (holds(Condition::unchanged(key("a"), Revision(0))), "@1 then"),
                (a(Predicate::CreateRevision(CompareOp::Less, Revision(1))), "@1 then"),
                (a(Predicate::Version(CompareOp::NotEqual, 0)), "@1 otherwise"),
                (a(Predicate::Value(CompareOp::Equal, "".into())), "@1 otherwise"),
                (a(Predicate::Value(CompareOp::NotEqual, "x".into())), "@1 otherwise"),
                (a(Predicate::Value(CompareOp::Less, "x".into())), "@1 otherwise"),
            ],
        ),
        case(
            "what is there is compared",
            vec![
                (then([put("a", "m")]), "@2 then put"),
                (then([put("a", "m")]), "@3 then put"),
                (holds(Condition::absent(key("a"))), "@3 otherwise"),
                (holds(Condition::exists(key("a"))), "@3 then"),
                (holds(Condition::unchanged(key("a"), Revision(3))), "@3 then"),
                (holds(Condition::unchanged(key("a"), Revision(2))), "@3 otherwise"),
                (holds(Condition::holds_value(key("a"), "m".into())), "@3 then"),
                (a(Predicate::CreateRevision(CompareOp::Equal, Revision(2))), "@3 then"),
                (a(Predicate::CreateRevision(CompareOp::Greater, Revision(2))), "@3 otherwise"),
                (a(Predicate::ModRevision(CompareOp::Greater, Revision(2))), "@3 then"),
                (a(Predicate::Version(CompareOp::Equal, 2)), "@3 then"),
                (a(Predicate::Version(CompareOp::Less, 2)), "@3 otherwise"),
                (a(Predicate::Version(CompareOp::NotEqual, u64::MAX)), "@3 then"),
                (a(Predicate::Value(CompareOp::Less, "ma".into())), "@3 then"),
                (a(Predicate::Value(CompareOp::Greater, "l\u{7f}".into())), "@3 then"),
                (a(Predicate::Value(CompareOp::NotEqual, "m".into())), "@3 otherwise"),
            ],
        ),
    ]
}

fn transactions() -> Vec<Case> {
    let (is_a, no_b) = (Condition::exists(key("a")), Condition::absent(key("b")));
    vec![
        case(
            "all conditions or the other branch",
            vec![
                (transact([is_a.clone()], [put("x", "1")], [put("a", "1"), put("y", "1")]), "@2 otherwise put put"),
                (transact([is_a.clone(), no_b.clone()], [put("b", "1"), delete("y")], []), "@3 then put deleted 1"),
                (transact([is_a, no_b], [put("b", "2")], []), "@3 otherwise"),
                (Step::Range(all(), 0), "@3 a=1(2,2,1) b=1(3,3,1)"),
            ],
        ),
        case(
            "compare and swap succeeds once",
            vec![
                (then([put("n", "1")]), "@2 then put"),
                (transact([Condition::unchanged(key("n"), Revision(2))], [put("n", "2")], []), "@3 then put"),
                (transact([Condition::unchanged(key("n"), Revision(2))], [put("n", "2")], []), "@3 otherwise"),
            ],
        ),
        case(
            "deletes see what was deleted before them",
            vec![
                (then([put("a/1", ""), put("a/2", ""), put("b", "")]), "@2 then put put put"),
                (
                    then([delete("a/1"), Op::Delete(prefix("a/")), delete("a/2")]),
                    "@3 then deleted 1 deleted 1 deleted 0",
                ),
                (then([Op::Delete(KeyRange::between(&key("a"), &key("b")))]), "@3 then deleted 0"),
                (then([Op::Delete(all())]), "@4 then deleted 1"),
            ],
        ),
        case(
            "a key is put once or deleted",
            vec![
                (then([put("a", "1"), put("a", "2")]), "meta-duplicate-key"),
                (then([put("a", "1"), delete("a")]), "meta-duplicate-key"),
                (then([Op::Delete(prefix("a")), put("ab", "1")]), "meta-duplicate-key"),
                (transact([], [put("a", "1")], [put("a", "1"), put("a", "1")]), "meta-duplicate-key"),
                (transact([], [put("a", "1")], [delete("a")]), "@2 then put"),
            ],
        ),
    ]
}

fn pages() -> Vec<Case> {
    let three = || then([put("a", "1"), put("b", "2"), put("c", "3")]);
    let large = "x".repeat(900);
    vec![
        case(
            "a span is given page by page",
            vec![
                (three(), "@2 then put put put"),
                (Step::Range(all(), 2), "@2 a=1(2,2,1) b=2(2,2,1) ...c"),
                (Step::Range(all().starting_at(&key("c")), 2), "@2 c=3(2,2,1)"),
                (Step::Range(all(), 3), "@2 a=1(2,2,1) b=2(2,2,1) c=3(2,2,1)"),
                (Step::Range(all(), 1), "@2 a=1(2,2,1) ...b"),
                (Step::Range(KeyRange::between(&key("a"), &key("c")), 9), "@2 a=1(2,2,1) b=2(2,2,1)"),
                (Step::Range(KeyRange::between(&key("c"), &key("a")), 9), "@2"),
                (Step::Range(KeyRange::between(&key("a"), &key("a")), 9), "@2"),
                (Step::Range(prefix("b"), 0), "@2 b=2(2,2,1)"),
                (Step::Range(prefix("x"), 0), "@2"),
            ],
        ),
        case(
            "a page has a bound of bytes, too",
            vec![
                (then([put("a", &large), put("b", &large), put("c", "3")]), "@2 then put put put"),
                (Step::Range(all(), 0), "@2 a=900 bytes(2,2,1) ...b"),
                (Step::Range(prefix("b"), 0), "@2 b=900 bytes(2,2,1)"),
                (Step::Range(all().starting_at(&key("b")), 0), "@2 b=900 bytes(2,2,1) c=3(2,2,1)"),
            ],
        ),
    ]
}

fn bounds() -> Vec<Case> {
    let (fits, large) = ("x".repeat(1000), "x".repeat(1001));
    let many = |count: usize| -> Vec<Op> { (0..count).map(|i| put(&format!("k{i}"), "")).collect() };
    vec![case(
        "what is too much is refused whole",
        vec![
            (then([put("a", &fits)]), "@2 then put"),
            (then([put("a", &large)]), "meta-limit"),
            (holds(Condition::holds_value(key("a"), (&*large).into())), "meta-limit"),
            (then(many(4)), "@3 then put put put put"),
            (then(many(5)), "meta-limit"),
            (transact([], [], many(5)), "meta-limit"),
            (transact(vec![Condition::absent(key("a")); 5], [], []), "meta-limit"),
            (then([put("a", &fits), put("b", &fits), put("c", &fits)]), "meta-limit"),
            (Step::Watch(all(), 1), "watcher 0"),
            (Step::Watch(all(), 1), "watcher 1"),
            (Step::Watch(all(), 1), "watcher 2"),
            (Step::Watch(all(), 1), "meta-limit"),
            (Step::Unwatch(1), ""),
            (Step::Watch(all(), 1), "watcher 3"),
            (Step::Grant(0), "meta-limit"),
            (Step::Grant(u32::MAX), "meta-limit"),
            (get("b"), "@3 -"),
        ],
    )]
}

fn leases() -> Vec<Case> {
    vec![
        case(
            "a lease that is revoked takes its keys along, at once",
            vec![
                (Step::Grant(60), "@1 lease 0 of 60 s"),
                (then([leased("b", "1", 0), leased("a", "1", 0), put("c", "1")]), "@2 then put put put"),
                (get("a"), "@2 a=1(2,2,1)L"),
                (Step::KeepAlive(0), "@2 60 s"),
                (Step::Revoke(0), "@3"),
                (Step::Range(all(), 0), "@3 c=1(2,2,1)"),
                (Step::Watch(all(), 3), "watcher 0"),
                (Step::Changes(0, Some(2)), "a-@3 b-@3"),
                (Step::Revoke(0), "meta-lease-not-found"),
                (Step::KeepAlive(0), "meta-lease-not-found"),
                (then([leased("a", "1", 0)]), "meta-lease-not-found"),
                (then([put("d", "1"), leased("a", "1", 7)]), "meta-lease-not-found"),
                (transact([Condition::exists(key("c"))], [], [leased("a", "1", 7)]), "@3 then"),
                (get("d"), "@3 -"),
            ],
        ),
        case(
            "the last put says which lease a key has",
            vec![
                (Step::Grant(60), "@1 lease 0 of 60 s"),
                (Step::Grant(60), "@1 lease 1 of 60 s"),
                (then([leased("a", "1", 0), leased("b", "1", 0), leased("c", "1", 0)]), "@2 then put put put"),
                (then([put("a", "2"), leased("b", "2", 1), delete("c")]), "@3 then put put deleted 1"),
                (then([put("c", "2")]), "@4 then put"),
                (Step::Revoke(0), "@4"),
                (Step::Range(all(), 0), "@4 a=2(2,3,2) b=2(2,3,2)L c=2(4,4,1)"),
                (Step::Revoke(1), "@5"),
                (Step::Range(all(), 0), "@5 a=2(2,3,2) c=2(4,4,1)"),
            ],
        ),
        case(
            "a lease ends by itself, unless it is kept alive",
            vec![
                (Step::Grant(2), "@1 lease 0 of 2 s"),
                (Step::Grant(4), "@1 lease 1 of 4 s"),
                (then([leased("a", "1", 0), leased("b", "1", 1)]), "@2 then put put"),
                (Step::Watch(all(), 3), "watcher 0"),
                (Step::Advance(2), ""),
                (Step::Changes(0, Some(1)), "a-@3"),
                (Step::KeepAlive(0), "meta-lease-not-found"),
                (Step::KeepAlive(1), "@3 4 s"),
                (Step::Advance(3), ""),
                (Step::KeepAlive(1), "@3 4 s"),
                (get("b"), "@3 b=1(2,2,1)L"),
            ],
        ),
    ]
}

fn watches() -> Vec<Case> {
    vec![
        case(
            "every change comes once, in order, from a revision on",
            vec![
                (then([put("a", "1")]), "@2 then put"),
                (then([put("b", "1"), put("a", "2"), delete("c")]), "@3 then put put deleted 0"),
                (Step::Watch(all(), 1), "watcher 0"),
                (Step::Watch(all(), 3), "watcher 1"),
                (Step::Watch(prefix("b"), 1), "watcher 2"),
                (then([Op::Delete(all())]), "@4 then deleted 2"),
                (Step::Changes(0, Some(5)), "a=1(2,2,1) b=1(3,3,1) a=2(2,3,2) a-@4 b-@4"),
                (Step::Changes(1, Some(4)), "b=1(3,3,1) a=2(2,3,2) a-@4 b-@4"),
                (Step::Changes(2, Some(2)), "b=1(3,3,1) b-@4"),
                (then([put("b", "2")]), "@5 then put"),
                (Step::Changes(2, Some(1)), "b=2(5,5,1)"),
            ],
        ),
        case(
            "a watch may begin in the future, and of one key",
            vec![
                (Step::Watch(KeyRange::key(&key("a")), 4), "watcher 0"),
                (then([put("a", "1")]), "@2 then put"),
                (then([put("a", "2")]), "@3 then put"),
                (then([put("a\0", "3")]), "@4 then put"),
                (then([put("a", "4")]), "@5 then put"),
                (Step::Changes(0, Some(1)), "a=4(2,5,3)"),
            ],
        ),
    ]
}
