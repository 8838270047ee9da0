//! Trainers that break the rules of the contract.

use crate::bindings::groups::{self, Group};
use crate::{Attack, Does};

/// Row count of the group that some attacks select; all other groups have to be fitted.
const CHOSEN_ROWS: u32 = 11;

pub const ATTACKS: &[Attack] = &[
    ("honest", Does::Fit(honest_fit)),
    ("settle-nothing", Does::Fit(|| {})),
    ("settle-one", Does::Fit(|| settle(&groups::next().unwrap()))),
    ("settle-without-group", Does::Fit(|| groups::fitted(&[], "{}", &[]))),
    (
        "settle-twice",
        Does::Fit(|| {
            each(|g| {
                settle(&g);
                settle(&g)
            })
        }),
    ),
    (
        "next-without-settling",
        Does::Fit(|| {
            skip();
            skip()
        }),
    ),
    (
        "next-after-the-end",
        Does::Fit(|| {
            honest_fit();
            for _ in 0..1000 {
                assert!(groups::next().is_none())
            }
        }),
    ),
    (
        "trap-in-one-group",
        Does::Fit(|| each(|group| if is_chosen(&group) { std::process::abort() } else { settle(&group) })),
    ),
    (
        "trap-in-some-groups",
        Does::Fit(|| each(|group| if group.seed % 7 == 0 { std::process::abort() } else { settle(&group) })),
    ),
    ("loop-in-one-group", Does::Fit(|| each(|group| if is_chosen(&group) { spin() } else { settle(&group) }))),
    (
        "too-few-predictions",
        Does::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * (g.test_rows as usize - 1)]))),
    ),
    (
        "too-many-predictions",
        Does::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * (g.test_rows as usize + 1)]))),
    ),
    ("half-a-prediction", Does::Fit(|| each(|g| groups::fitted(&[], "{}", &vec![0; 8 * g.test_rows as usize - 4])))),
    ("nan-predictions", Does::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::NAN, g.test_rows))))),
    ("infinite-predictions", Does::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::INFINITY, g.test_rows))))),
    ("largest-predictions", Does::Fit(|| each(|g| groups::fitted(&[], "{}", &repeated(f64::MAX, g.test_rows))))),
    ("params-not-json", Does::Fit(|| each(|g| groups::fitted(&[], "{coefficients: ", &repeated(0.0, g.test_rows))))),
    ("params-empty", Does::Fit(|| each(|g| groups::fitted(&[], "", &repeated(0.0, g.test_rows))))),
    (
        "params-huge",
        Does::Fit(|| {
            each(|g| groups::fitted(&[], &format!("\"{}\"", "x".repeat(2 << 20)), &repeated(0.0, g.test_rows)))
        }),
    ),
    ("params-deep", Does::Fit(|| each(|g| groups::fitted(&[], &deep_json(), &repeated(0.0, g.test_rows))))),
    ("model-huge", Does::Fit(|| each(|g| groups::fitted(&vec![1; 2 << 20], "{}", &repeated(0.0, g.test_rows))))),
    ("model-while-fitting", Does::Fit(|| each(|_| drop(groups::model())))),
    ("predicted-while-fitting", Does::Fit(|| each(|g| groups::predicted(&repeated(0.0, g.test_rows))))),
    ("long-excuse", Does::Fit(|| each(|_| groups::failed(&"because ".repeat(1 << 20))))),
    (
        "long-excuse-for-all",
        Does::GiveUp(|| {
            skip();
            "because ".repeat(1 << 20)
        }),
    ),
    (
        "greedy-before-the-trap",
        Does::Fit(|| {
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
        Does::Fit(|| {
            let mut large = true;
            each(|group| {
                large = !large;
                groups::fitted(&vec![1; if large { 1 << 20 } else { 600 << 10 }], "{}", &repeated(0.0, group.test_rows))
            })
        }),
    ),
    (
        "excuse-with-escapes",
        Does::Fit(|| each(|_| groups::failed("\x1b[2J\x1b]0;owned\x07\r\nfine: all groups fitted"))),
    ),
    ("open-refuses", Does::Open(|| Err("not today".into()))),
    ("open-refuses-at-length", Does::Open(|| Err("not today ".repeat(1 << 20)))),
    ("open-loops", Does::Open(|| spin())),
    (
        "open-asks",
        Does::Open(|| {
            skip();
            skip();
            Ok(())
        }),
    ),
    ("predict-too-few", Does::Predict(|| each(|_| groups::predicted(&[])))),
    ("predict-too-many", Does::Predict(|| each(|g| groups::predicted(&repeated(0.0, g.test_rows + 1))))),
    ("predict-fits", Does::Predict(|| each(|g| groups::fitted(&[], "{}", &repeated(0.0, g.test_rows))))),
    ("predict-nothing", Does::Predict(|| {})),
    ("predict-traps", Does::Predict(|| std::process::abort())),
    ("predict-loops", Does::Predict(|| each(|_| spin()))),
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
