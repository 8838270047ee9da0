//! Arguments and results of programs: numbers that JSON lacks, texts that look like numbers, and the counts of failed
//! tasks.

use sandbar_tests::{CommandOutput, Lab, component};
use serde_json::{Value, json};

fn submit(lab: &Lab, task: &str, arguments: &[&str], more: &[&str]) -> CommandOutput {
    let program = format!("{}#{task}", component("tests/programs/tasks").display());
    let arguments = arguments.iter().flat_map(|argument| ["--arg", argument]);
    let line: Vec<&str> = ["submit", &program].into_iter().chain(arguments).chain(more.iter().copied()).collect();
    lab.host(&line)
}

/// Checks what a program prints, and the JSON for it in `--json` and in the job's record.
#[track_caller]
fn check(task: &str, arguments: &[&str], printed: &str, json: Value) {
    let lab = Lab::new();
    let ended = submit(&lab, task, arguments, &[]).expect_code(0);
    assert_eq!(ended.stdout, format!("{printed}\n"), "{task} {arguments:?}");
    let ended = submit(&lab, task, arguments, &["--json"]).expect_code(0);
    assert_eq!(ended.json()["result"], json, "{task} {arguments:?}");
    let status = lab.host(&["jobs", "status", "--json"]).expect_code(0).json();
    assert_eq!(status["result"], json, "{task} {arguments:?}");
    let status = lab.host(&["jobs", "status"]).expect_code(0).stdout;
    assert!(status.contains(&format!("result     {printed}")), "{status}");
}

#[test]
fn numbers_that_json_lacks_are_printed() {
    check("number", &["name=nan"], "NaN", json!("NaN"));
    check("number", &["name=inf"], "Infinity", json!("Infinity"));
    check("number", &["name=neg"], "-Infinity", json!("-Infinity"));
    check("number", &["name=max"], "1.7976931348623157e+308", json!(f64::MAX));
    let nested = json!({ "loss": "NaN", "best": "-Infinity", "steps": ["NaN", 0.5] });
    check("within", &["loss=NaN", "best=-inf"], &nested.to_string(), nested);
    let nested = json!({ "loss": 1.5, "best": null, "steps": [1.5, 0.5] });
    check("within", &["loss=1.5"], &nested.to_string(), nested);
    let large = json!([u64::MAX, u128::MAX.to_string(), i128::MIN.to_string()]);
    check("large", &[], &large.to_string(), large);
}

#[test]
fn a_text_of_digits_is_a_text() {
    for text in ["12345", "01234", "null", "true", "\"quoted\"", "", "a=b", "NaN", "1e3"] {
        let printed = format!("{text:?} None None");
        check("texts", &[&format!("text={text}")], &printed, json!(printed));
    }
    let printed = r#""x" Some("5551234") Some("00501")"#;
    check("texts", &["text=x", "maybe=5551234", "code=00501"], printed, json!(printed));
    // The argument has a user type that is a text.
    let printed = r#""x" Some("null") Some("501")"#;
    check("texts", &["text=x", "maybe=null", "code=501"], printed, json!(printed));
}

#[test]
fn failures_are_counted_equally_everywhere() {
    let lab = Lab::new();
    let summary = submit(&lab, "minds_nothing", &["tasks=16"], &["--json"]).expect_code(0).json();
    assert_eq!((&summary["result"], &summary["tasks"]), (&json!(16), &json!(16)), "{summary}");
    assert_eq!((&summary["failed"], &summary["failed_attempts"]), (&json!(16), &json!(16)), "{summary}");
    let seen = |line: &[&str]| lab.host(&[line, &["--json"]].concat()).expect_code(0).json();
    assert_eq!(seen(&["jobs", "list"])["jobs"][0]["counts"]["failed"], json!(16));
    assert_eq!(seen(&["jobs", "status"])["counts"]["failed"], json!(16));
    assert_eq!(seen(&["list", "tasks", "--state", "failed"])["total"], json!(16));
    let failed: u64 =
        seen(&["summary", "tasks"])["names"].as_array().unwrap().iter().filter_map(|n| n["failed"].as_u64()).sum();
    assert_eq!(failed, 16);
    for counter in
        ["tasks", "succeeded", "failed", "stopped", "failed_attempts", "lost_attempts", "lost_workers", "lost_nodes"]
    {
        assert_eq!(seen(&["jobs", "status"])["counts"][counter], summary[counter], "{counter}");
    }
    let talk = submit(&lab, "minds_nothing", &["tasks=2"], &[]).expect_code(0);
    talk.expect_stderr(&["3 tasks; ran in ", "; 2 tasks failed, 2 attempts failed"]);
    let talk = submit(&lab, "minds_nothing", &["tasks=0"], &[]).expect_code(0).stderr;
    assert!(!talk.contains("failed"), "{talk}");
}
