//! Trainers that break the rules of the contract.

use crate::bindings::groups::{self, Group};
use crate::{Attack, Behavior};

/// Row count of the group that some attacks select; all other groups have to be fitted.
const CHOSEN_ROWS: u32 = 11;

pub const ATTACKS: &[Attack] = &[
    ("honest", Behavior::Fit(honest_fit)),
    ("settle-nothing", Behavior::Fit(|| {})),
    ("settle-one", Behavior::Fit(|| settle(&groups::next().unwrap()))),
    ("settle-without-group", Behavior::Fit(|| groups::fitted(&[], "{}", &[]))),
    (
        "settle-twice",
        Behavior::Fit(|| {
            each(|g| {
                settle(&g);
                settle(&g)
            })
        }),
    ),
    (
        "next-without-settling",
        Behavior::Fit(|| {
            skip();
            skip()
        }),
    ),
    (
        "next-after-the-end",
        Behavior::Fit(|| {
            honest_fit();
            for _ in 0..1000 {
                assert!(groups::next().is_none())
            }
        }),
    ),
    (
        "trap-in-one-group",
        Behavior::Fit(|| each(|group| if is_chosen(&group) { std::process::abort() } else { settle(&group) })),
    ),
    (
        "trap-in-some-groups",
        Behavior::Fit(|| each(|group| if group.seed % 7 == 0 { std::process::abort() } else { settle(&group) })),
    ),
    ("loop-in-one-group", Behavior::Fit(|| each(|group| if is_chosen(&group) { spin() } else { settle(&group) }))),
    (
        "too-few-predictions",
        Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * (g.test_rows as usize - 1)]))),
    ),
    (
        "too-many-predictions",
        Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * (g.test_rows as usize + 1)]))),
    ),
    (
        "half-a-prediction",
        Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * g.test_rows as usize - 4]))),
    ),
    ("nan-predictions", Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::NAN, g.test_rows))))),
    (
        "infinite-predictions",
        Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::INFINITY, g.test_rows)))),
    ),
    ("largest-predictions", Behavior::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::MAX, g.test_rows))))),
    (
        "params-not-json",
        Behavior::Fit(|| each(|g| groups::fitted(&[], "{coefficients: ", &repeated(0.0, g.test_rows)))),
    ),
    ("params-empty", Behavior::Fit(|| each(|g| groups::fitted(&[], "", &repeated(0.0, g.test_rows))))),
    (
        "params-huge",
        Behavior::Fit(|| {
            each(|g| groups::fitted(&[], &format!("\"{}\"", "x".repeat(2 << 20)), &repeated(0.0, g.test_rows)))
        }),
    ),
    ("params-deep", Behavior::Fit(|| each(|g| groups::fitted(&[], &deep_json(), &repeated(0.0, g.test_rows))))),
    ("model-huge", Behavior::Fit(|| each(|g| groups::fitted(&vec![1; 2 << 20], "{}", &repeated(0.0, g.test_rows))))),
    ("model-while-fitting", Behavior::Fit(|| each(|_| drop(groups::model())))),
    ("predicted-while-fitting", Behavior::Fit(|| each(|g| groups::predicted(&repeated(0.0, g.test_rows))))),
    ("long-excuse", Behavior::Fit(|| each(|_| groups::failed(&"because ".repeat(1 << 20))))),
    (
        "long-excuse-for-all",
        Behavior::GiveUp(|| {
            skip();
            "because ".repeat(1 << 20)
        }),
    ),
    (
        "greedy-before-the-trap",
        Behavior::Fit(|| {
            each(|group| {
                if is_chosen(&group) {
                    std::process::abort()
                }
                assert_eq!(core::arch::wasm32::memory_grow::<0>(60_000), usize::MAX);
                settle(&group)
            })
        }),
    ),
    (
        "models-side-by-side",
        Behavior::Fit(|| {
            let mut large = true;
            each(|group| {
                large = !large;
                groups::fitted(&vec![1; if large { 1 << 20 } else { 600 << 10 }], "{}", &repeated(0.0, group.test_rows))
            })
        }),
    ),
    (
        "excuse-with-escapes",
        Behavior::Fit(|| each(|_| groups::failed("\x1b[2J\x1b]0;owned\x07\r\nfine: all groups fitted"))),
    ),
    ("open-refuses", Behavior::Open(|| Err("not today".into()))),
    ("open-refuses-at-length", Behavior::Open(|| Err("not today ".repeat(1 << 20)))),
    ("open-loops", Behavior::Open(|| spin())),
    (
        "open-asks",
        Behavior::Open(|| {
            skip();
            skip();
            Ok(())
        }),
    ),
    ("predict-too-few", Behavior::Predict(|| each(|_| groups::predicted(&[])))),
    ("predict-too-many", Behavior::Predict(|| each(|g| groups::predicted(&repeated(0.0, g.test_rows + 1))))),
    ("predict-fits", Behavior::Predict(|| each(|g| groups::fitted(&[], "{}", &repeated(0.0, g.test_rows))))),
    ("predict-nothing", Behavior::Predict(|| {})),
    ("predict-traps", Behavior::Predict(|| std::process::abort())),
    ("predict-loops", Behavior::Predict(|| each(|_| spin()))),
];

/// Fits every group.
pub fn honest_fit() {
    each(|group| settle(&group));
}

/// Fits a group: a model that predicts zero.
pub fn settle(group: &Group) {
    groups::fitted(b"zero", "{}", &repeated(0.0, group.test_rows));
}

/// Predicts zero.
pub fn honest_predict() {
    each(|group| groups::predicted(&repeated(0.0, group.test_rows)));
}

fn is_chosen(group: &Group) -> bool {
    group.train_rows + group.test_rows == CHOSEN_ROWS
}

fn each(mut attack: impl FnMut(Group)) {
    while let Some(group) = groups::next() {
        attack(group);
    }
}

fn skip() {
    let _ = groups::next();
}

fn repeated(value: f64, rows: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(rows as usize)
}

fn deep_json() -> String {
    format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}
