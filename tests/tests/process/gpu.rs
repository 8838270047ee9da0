//! Jobs on a GPU: on lavapipe, which computes as one would.

use sandbar_tests::{Lab, Model};

use crate::job::taxi;

const LEAST_SQUARES: &[&str] = &["--set", "train.test=0"];

fn linear(lab: &Lab, arguments: &[&str]) -> Vec<Model> {
    let (_, mut rows) = taxi(lab, &[LEAST_SQUARES, arguments].concat());
    rows.retain(|model| model.model == "linear");
    rows
}

/// Models are those that trainers fit themselves, within rounding; and the processor gives the same bits each time.
#[test]
fn least_squares_are_the_same_wherever_they_are_done() {
    let alone = linear(&Lab::new(), &[]);
    let cpu = linear(&Lab::new(), &["--set", "device=\"cpu\""]);
    let gpu = linear(&Lab::new(), &["--set", "device=\"gpu\"", "--software-gpu"]);
    let auto = linear(&Lab::new(), &["--set", "device=\"auto\""]);
    assert_eq!(cpu, linear(&Lab::new(), &["--set", "device=\"cpu\"", "--workers", "1"]), "the same bits each time");
    for (device, models) in [("cpu", &cpu), ("gpu", &gpu), ("auto", &auto)] {
        assert_eq!(models.len(), alone.len());
        for (alone, model) in alone.iter().zip(models) {
            assert_eq!((&alone.key, alone.rows_train), (&model.key, model.rows_train), "{device}");
            let numbers = |model: &Model| {
                let coefficient = model.params["coefficients"][0].as_f64().expect("a number");
                [coefficient * 261.0, model.params["intercept"].as_f64().expect("a number")]
            };
            let size = numbers(alone).map(f64::abs).into_iter().fold(1.0, f64::max);
            for (alone, found) in numbers(alone).into_iter().zip(numbers(model)) {
                assert!((alone - found).abs() <= 1e-9 * size, "{device}: {:?}: {alone}, {found}", model.key);
            }
        }
    }
    assert!(gpu.iter().zip(&cpu).any(|(gpu, cpu)| gpu.bytes != cpu.bytes), "the GPU had nothing to do");
}

#[test]
fn a_job_that_wants_a_gpu_where_there_is_none() {
    let lab = Lab::new();
    let line = sandbar_tests::taxi_line(sandbar_tests::taxi_files());
    let line: Vec<&str> = line.iter().map(String::as_str).chain(["--set", "device=\"gpu\""]).collect();
    // Where the machine has one, it is used.
    let listed = lab.host(&["gpu", "list", "--json"]).expect_code(0).json();
    let has_gpu = listed["gpus"].as_array().expect("a list").iter().any(|gpu| gpu["is_used"] == true);
    if has_gpu {
        lab.host(&line).expect_code(0);
    } else {
        lab.host(&line).expect_code(2).expect_talk(&["`device` is \"gpu\"", "no GPU", "host gpu list"]);
    }
}

#[test]
fn gpus_are_listed_with_what_was_measured() {
    let lab = Lab::new();
    let listed = lab.host(&["gpu", "list", "--software-gpu", "--json"]).expect_code(0).json();
    let gpu = &listed["gpus"][0];
    assert!(gpu["is_used"] == true && gpu["kind"] == "software", "{listed}");
    for field in ["memory_bytes_s", "up_bytes_s", "down_bytes_s", "f32_operations_s", "fixed_nanos"] {
        assert!(gpu["costs"][field].as_f64().is_some_and(|value| value > 0.0), "{field} of {listed}");
    }
    let text = lab.host(&["gpu", "list", "--software-gpu"]).expect_code(0);
    assert!(text.stdout.contains("llvmpipe") && text.stdout.contains("GFLOP/s"), "{}", text.stdout);
}
