//! What belongs to another tenant is answered as what does not exist.
//!
//! `SANDBAR_TRIES` sets the number of tries. The texts must be equal; the times are compared and printed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use sandbar_seeds::{number_from_env, one_seed, seed_of_clock};
use sandbar_tests::print_line;
use serde_json::{Value, json};

use super::client::{Program, describe};
use super::scene::Scene;
use crate::lifecycle::until;
use crate::tenant_api::{next, submission};

const TRIES: u64 = 600;
/// Objects that the victim's job holds.
const OBJECTS: u64 = 40;

/// A question about something of the victim, and about something absent that looks the same.
struct Probe {
    name: &'static str,
    present: String,
    absent: String,
    request: fn(&str) -> Value,
}

fn probe(name: &'static str, present: &str, request: fn(&str) -> Value) -> Probe {
    Probe { name, present: present.to_owned(), absent: other(present), request }
}

/// Answers to a probe, without what was asked for, and the times that they took in seconds.
#[derive(Default)]
struct Answers {
    texts: BTreeSet<String>,
    seconds: Vec<f64>,
}

/// Returns a text that differs in its last characters alone.
fn other(text: &str) -> String {
    let last = text.chars().next_back().expect("a character");
    let other = if last == '0' { '1' } else { '0' };
    text[..text.len() - last.len_utf8()].to_owned() + &other.to_string()
}

#[test]
fn others_things_are_as_absent_ones() {
    let tries = number_from_env("SANDBAR_TRIES").unwrap_or(TRIES);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(one_seed(seed_of_clock()));
    let scene = Scene::start(1, &["--workers", "2"]);
    let attacker = &scene.attackers[0];
    let tasks = Program::of("tests/programs/tasks");
    let objects = OBJECTS.to_string();
    let job = scene.runtime.block_on(scene.victim.submit(&tasks, "holds", &[("objects", &objects)])).unwrap();
    let running = || scene.runtime.block_on(scene.victim.ask(&json!({ "status": { "job": job } })));
    until("the victim's job runs", || running()["job"]["state"] == "running");
    let probes = [
        probe("state of a job", &job, |job| json!({ "status": { "job": job } })),
        probe("state of a job by its short name", &job[job.len() - 6..], |job| json!({ "status": { "job": job } })),
        probe("end of a job", &job, |job| json!({ "stop": { "job": job } })),
        probe("records of a job", &job, |job| json!({ "look": { "job": job, "question": "summary" } })),
        probe("log of a job", &job, |job| json!({ "follow": { "job": job, "taken": 1, "after": 0, "stays": true } })),
        probe("end of an actor", "honest", |actor| json!({ "stop-actor": { "actor": actor } })),
        probe("a component", &tasks.id, |hash| submission(hash, 5, "add")),
        probe("a token", &scene.victim.token_id, |token| json!({ "revoke-token": { "token": token } })),
    ];
    let mut answers: BTreeMap<(&str, bool), Answers> = BTreeMap::new();
    let client = scene.runtime.block_on(attacker.connect());
    for _ in 0..tries {
        let probe = &probes[(random.next_u64() % probes.len() as u64) as usize];
        let is_present = random.next_u64().is_multiple_of(2);
        let text = if is_present { &probe.present } else { &probe.absent };
        let request = (probe.request)(text).to_string();
        let (answer, seconds) = scene.runtime.block_on(async {
            loop {
                let since = Instant::now();
                let mut frames = client.send(request.as_bytes()).await;
                let mut answer = next(&mut frames).await;
                // The addresses of the nodes come first.
                while !answer["nodes"].is_null() {
                    answer = next(&mut frames).await;
                }
                // Of uploads that were given up just now, the node may not know yet.
                if answer["later"].is_null() {
                    return (answer, since.elapsed().as_secs_f64());
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
        let of_probe = answers.entry((probe.name, is_present)).or_default();
        of_probe.texts.insert(describe(&answer).replace(text, "ASKED"));
        of_probe.seconds.push(seconds);
    }
    for probe in &probes {
        let [absent, present] =
            [false, true].map(|is_present| answers.remove(&(probe.name, is_present)).unwrap_or_default());
        assert_eq!(absent.texts, present.texts, "{}", probe.name);
        assert_eq!(absent.texts.len(), 1, "{}: {:?}", probe.name, absent.texts);
        let (effect, z) = mann_whitney(&absent.seconds, &present.seconds);
        print_line(format_args!(
            "{}: {} and {} tries, P(absent < present) = {effect:.3}, z = {z:.2}: {:?}",
            probe.name,
            absent.seconds.len(),
            present.seconds.len(),
            absent.texts
        ));
    }
    check_numbers(&scene, &job);
    scene.runtime.block_on(scene.victim.stop(&job, std::time::Duration::from_secs(60)));
}

/// Compares answers to a program that knows the numbers of the victim's objects and of its actor.
fn check_numbers(scene: &Scene, job: &str) {
    let victim = &scene.victim;
    let list = |line: &[&str]| {
        let address = victim.address.to_string();
        scene
            .nodes
            .lab
            .host(&[line, &["--json", "--node", &address, "--data", &victim.name]].concat())
            .expect_code(0)
            .json()
    };
    // An id is the number of the process that created the object, and a number there.
    let number = |id: &Value| -> u64 {
        let (process, at) = id.as_str().and_then(|id| id.split_once('-')).unwrap_or_else(|| panic!("an id: {id}"));
        process.parse::<u64>().unwrap() << 36 | at.parse::<u64>().unwrap()
    };
    let numbers =
        |rows: &Value| -> Vec<u64> { rows.as_array().unwrap().iter().map(|row| number(&row["id"])).collect() };
    let mut present = numbers(&list(&["list", "objects", "--job", job])["objects"]);
    assert!(present.len() as u64 >= OBJECTS, "{present:?}");
    present.extend(numbers(&list(&["actors", "list"])["actors"]));
    let absent: Vec<u64> = present.iter().map(|number| number ^ 1 << 30).collect();
    let hostile = Program::of("tests/hostile/program");
    let asked = |numbers: &[u64]| {
        let numbers = json!(numbers).to_string();
        scene.runtime.block_on(async {
            let attacker = &scene.attackers[0];
            let job = attacker.submit(&hostile, "asks", &[("numbers", &numbers)]).await.unwrap();
            attacker.ended(&job, super::ENDING_TIME_MAX).await.expect("it ends")["result"].clone()
        })
    };
    let (of_present, of_absent) = (asked(&present), asked(&absent));
    assert_eq!(of_present, of_absent);
    assert!(of_present.as_str().is_some_and(|text| text.contains("does not exist")), "{of_present}");
}

/// Compares two samples. Returns the probability that one of the first is less than one of the second (one half for equal
/// distributions), and how many standard deviations that is from one half.
fn mann_whitney(first: &[f64], second: &[f64]) -> (f64, f64) {
    let mut all: Vec<(f64, bool)> =
        first.iter().map(|value| (*value, true)).chain(second.iter().map(|value| (*value, false))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Equal values share the mean of their ranks.
    let mut rank_sum = 0.0;
    let mut at = 0;
    while at < all.len() {
        let end = at + all[at..].iter().take_while(|(value, _)| *value == all[at].0).count();
        let rank = (at + end + 1) as f64 / 2.0;
        rank_sum += rank * all[at..end].iter().filter(|(_, is_first)| *is_first).count() as f64;
        at = end;
    }
    let (n, m) = (first.len() as f64, second.len() as f64);
    let greater = rank_sum - n * (n + 1.0) / 2.0;
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    (1.0 - greater / (n * m), (n * m / 2.0 - greater) / deviation)
}

#[test]
fn samples_are_compared_by_their_ranks() {
    let (low, high) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
    assert_eq!(mann_whitney(&low, &high).0, 1.0);
    assert_eq!(mann_whitney(&high, &low).0, 0.0);
    assert_eq!(mann_whitney(&low, &low), (0.5, 0.0));
    assert!((mann_whitney(&low, &high).1 - 1.964).abs() < 0.001);
}
