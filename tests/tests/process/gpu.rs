//! Jobs on a GPU: lavapipe, a driver that computes on the processor.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sandbar_tests::{Lab, Model, Running, component};

use crate::cluster::Nodes;
use crate::job::taxi;
use crate::lifecycle::until;
use crate::programs::kill;
use crate::takeover::Tenant;

const LEAST_SQUARES: &[&str] = &["--set", "train.test=0"];

fn linear(lab: &Lab, arguments: &[&str]) -> Vec<Model> {
    let (_, mut rows) = taxi(lab, &[LEAST_SQUARES, arguments].concat());
    rows.retain(|model| model.model == "linear");
    rows
}

/// Models equal those that trainers fit in the sandbox within rounding; the processor gives the same bits each time.
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
    // Uses the machine's own GPU as well, if it has one.
    let listed = lab.host(&["gpu", "list", "--json"]).expect_code(0).json();
    let has_gpu = listed["gpus"].as_array().expect("a list").iter().any(|gpu| gpu["is_used"] == true);
    if has_gpu {
        lab.host(&line).expect_code(0);
    } else {
        lab.host(&line).expect_code(2).expect_stderr(&["`device` is \"gpu\"", "no usable GPU", "host gpu list"]);
    }
}

#[test]
fn gpus_are_listed_with_their_measurements() {
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

/// Runs a task of the test program with lavapipe as the GPU and a GPU time limit of `seconds`, and returns its result.
#[track_caller]
fn program(lab: &Lab, task: &str, arguments: &[&str], seconds: &str) -> serde_json::Value {
    let program = format!("{}#{task}", component("tests/programs/dense").display());
    let mut line = vec!["submit", &program, "--json", "--software-gpu", "--gpu-time", seconds];
    line.extend(arguments.iter().flat_map(|argument| ["--arg", argument]));
    lab.host(&line).expect_code(0).json()["result"].clone()
}

#[test]
fn tasks_that_request_a_gpu_have_one() {
    assert_eq!(program(&Lab::new(), "who_has_one", &[], "20"), "true / false");
}

#[test]
fn actors_keep_their_weights_on_the_gpu() {
    assert_eq!(program(&Lab::new(), "serves", &["actors=3", "calls=20"], "20"), 60);
}

/// A task's record holds its GPU time; a killed kernel counts up to its end.
#[test]
fn gpu_time_is_recorded_per_task() {
    let lab = Lab::new();
    let millis = |name: &str| {
        let summary = lab.host(&["summary", "tasks", "--json"]).expect_code(0).json();
        let names = summary["names"].as_array().expect("a list").clone();
        let summary_row = names
            .iter()
            .find(|summary_row| summary_row["name"] == name)
            .unwrap_or_else(|| panic!("{name} of {summary}"));
        summary_row["gpu_ns"].as_u64().expect("a number") / 1_000_000
    };
    let found = program(&lab, "attacked", &["kind=endless"], "1");
    assert!(found.as_str().is_some_and(|found| found.starts_with("TimeOut")), "{found}");
    assert_eq!(millis("attacked"), 0);
    assert!((900..2_000).contains(&millis("attack")), "{}", millis("attack"));
    // GPU time of an actor's calls is recorded per call.
    assert_eq!(program(&lab, "serves", &["actors=1", "calls=5"], "20"), 5);
    let listed = lab.host(&["list", "tasks", "--json"]).expect_code(0).json();
    let rows = listed["tasks"].as_array().expect("a list");
    let calls: Vec<u64> = rows
        .iter()
        .filter(|row| row["name"] == "Layer.infer")
        .map(|row| row["gpu_ns"].as_u64().expect("some"))
        .collect();
    assert!(calls.len() == 5 && calls.iter().all(|nanos| *nanos > 0), "{listed}");
}

/// Attacks on the GPU, what they observe, and that the next task is unaffected.
#[test]
fn hostile_kernels_and_shapes() {
    let lab = Lab::new();
    for (kind, seen) in [
        ("no-text", "Kernel: the kernel is invalid"),
        ("no-entry", "Kernel: the kernel is invalid"),
        ("two-entries", "Kernel: the kernel is invalid"),
        ("fragment", "Kernel: the kernel is invalid"),
        ("recursion", "Kernel: the kernel is invalid"),
        ("many-threads", "Kernel: the kernel is invalid"),
        ("much-shared", "Kernel: the kernel is invalid"),
        ("huge-array", "Kernel: the kernel is invalid"),
        ("uniform", "Kernel: the kernel does not take these tensors"),
        ("texture", "Kernel: the kernel does not take these tensors"),
        ("other-group", "Kernel: the kernel does not take these tensors"),
        ("override", "Kernel: the kernel is invalid"),
        ("not-const", "Kernel: the kernel is invalid"),
        ("endless", "TimeOut: the GPU's work took longer than its limit"),
        ("endless-barrier", "TimeOut: the GPU's work took longer than its limit"),
        ("writes-behind", "20 of 20, true"),
        ("reads-behind", "true"),
        ("reads-fresh", "true"),
        ("reads-shared", "true"),
        ("huge-index", "16"),
        ("long-text", "Kernel: a kernel of 70"),
        ("deep-text", "Kernel: the kernel is invalid"),
        ("deep-blocks", "Kernel: the kernel is invalid"),
        ("large-grid", "Kernel: a grid of"),
        ("many-bindings", "Kernel: 9 tensors, the maximum is 8"),
        ("bound-twice", "Kernel: the kernel does not take these tensors"),
        ("many-kernels", "Kernel: more than 64 kernels"),
        ("many-tensors", "Memory: not enough memory for tensors: more than 65536"),
        ("much-memory", "Memory: not enough memory for tensors"),
        ("large-shape", "Shape: "),
        ("five-directions", "Shape: "),
        ("few-values", "Shape: "),
        ("disagreeing", "Shape: `product` does not take"),
        ("large-product", "Shape: "),
        ("no-places", "[2.0, 0.0, 0.0]"),
        ("many-steps", "Shape: `map` is invalid: it has"),
        ("other-input", "Shape: `map` is invalid: step 0 takes input 3"),
        ("outside", "Shape: 8 bytes at 12 are not within"),
    ] {
        // Kernels that end by themselves get a long limit, for busy machines; so does the task after one that does not.
        let seconds = if seen.starts_with("TimeOut") { "5" } else { "30" };
        let found = program(&lab, "attacked", &[&format!("kind={kind}")], seconds);
        let found = found.as_str().expect("text");
        assert!(found.starts_with(seen) && found.ends_with(", then true"), "{kind}: {found}");
    }
}

/// A GPU lost during a job is recoverable: lost work runs again, and an actor restarts.
#[test]
fn work_lost_with_a_gpu_is_repeated() {
    let lab = Lab::new();
    let program = format!("{}#survives", component("tests/programs/dense").display());
    // On a busy machine, lavapipe takes long.
    let line =
        ["submit", &program, "--json", "--software-gpu", "--gpu-time", "60", "--arg", "tasks=6", "--arg", "turns=2000"];
    let mut host = lab.start(&line);
    let gpus = |host: u32| sandbar_tests::children(host).into_iter().filter(|child| name(*child) == "host-gpu");
    let at_work = |host: &Running| host.stderr_so_far().matches("at work").count();
    // Killed GPU processes, and for each process the log length when it was first seen.
    let (mut killed, mut seen): (Vec<u32>, HashMap<u32, usize>) = Default::default();
    while host.is_running() {
        for gpu in gpus(host.process()).filter(|gpu| is_serving(*gpu)).collect::<Vec<_>>() {
            let logged = at_work(&host);
            let before = *seen.entry(gpu).or_insert(logged);
            // Tasks have values on the GPU and are computing with them.
            if killed.len() < 3 && !killed.contains(&gpu) && logged >= before + 2 {
                kill(gpu);
                killed.push(gpu);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let summary = host.wait().expect_code(0).json();
    assert_eq!(summary["result"], 13, "{summary}");
    assert!(!killed.is_empty() && summary["failed_attempts"].as_u64() > Some(0), "{killed:?} {summary}");
}

/// Endless kernels of one tenant, one after another (`SANDBAR_TURNS` sets their number, for an otherwise idle machine):
/// each is killed within its limit and a second, another tenant's weights and work on the same GPU are unaffected, and
/// nothing is left behind.
#[test]
fn kernels_without_end_beside_another_tenant() {
    let named = std::env::var("SANDBAR_TURNS").ok().map(|rounds| rounds.parse().expect("a number"));
    let rounds: u32 = named.unwrap_or(2);
    // lavapipe compiles a kernel on its first run, which takes a second with both processors free, and over ten beside
    // other tests.
    let seconds = if named.is_some() { "3" } else { "30" };
    let nodes = Nodes::start_with(1, &["--software-gpu", "--gpus", "2", "--gpu-time", seconds]);
    let (mallory, ada) = (Tenant::new(&nodes, "mallory"), Tenant::new(&nodes, "ada"));
    let address = nodes.address("node-1");
    let program = component("tests/programs/dense").display().to_string();
    let (storm, serves) = (format!("{program}#storm"), format!("{program}#serves"));
    // Warm-up: compiles the component and the kernels.
    let line = ["submit", &serves, "--json", "--arg", "actors=1", "--arg", "calls=2"];
    ada.host(&address, &line).expect_code(0);
    let rounds_name = format!("turns={rounds}");
    let start = Instant::now();
    let mut attack =
        mallory.begin(&address, &["submit", &storm, "--json", "--arg", "kind=endless", "--arg", &rounds_name]);
    let line = ["submit", &serves, "--json", "--arg", "actors=1", "--arg", "calls=3000"];
    let mut served = 0;
    while !attack.has_ended() || served == 0 {
        let found = ada.host(&address, &line).expect_code(0).json()["result"].clone();
        assert_eq!(found, 3000, "values of the other tenant on the GPU changed");
        served += 1;
    }
    let round_time = start.elapsed() / rounds;
    let seen = attack.wait().expect_code(0).json()["result"].clone();
    let seen = seen.as_array().expect("a list");
    assert!(seen.len() == 1 && seen[0].as_str().is_some_and(|seen| seen.starts_with("TimeOut")), "{seen:?}");
    sandbar_tests::print_line(format_args!(
        "{rounds} kernels without end, {round_time:?} each; {served} jobs beside them"
    ));
    // GPU processes are kept for some seconds for further use.
    let node = nodes.process("node-1");
    let gpus = || sandbar_tests::children(node).into_iter().filter(|child| name(*child) == "host-gpu").count();
    until("its processes have ended", || gpus() == 0);
}

/// Returns whether a GPU process was started to serve: other such processes list devices.
fn is_serving(gpu: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{gpu}/cmdline")).is_ok_and(|line| line.contains("serve"))
}

fn name(process: u32) -> String {
    std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim().to_owned()
}
