//! Attacks by requests: what a client with a valid certificate, or without one, sends to a node.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::time::Duration;

use futures::future::join_all;
use sandbar_tests::CommandOutput;
use sandbar_wire::Channel;
use serde_json::{Value, json};

use super::Outcome::{self, Either, Says};
use super::client::{Account, Program, describe};
use super::scene::Scene;
use super::{Attack, Kind};
use crate::tenant_api::{Client, next, submission};

const fn door(
    name: &'static str,
    what: &'static str,
    attack: fn(&Scene, &Account) -> String,
    outcome: Outcome,
) -> Kind {
    Kind { name, what, attack: Attack::Door(attack), outcome }
}

#[rustfmt::skip]
pub const KINDS: &[Kind] = &[
    // What belongs to the victim.
    door("asks-for-jobs-of-others", "asks for the state, the records and the end of the victim's job", asks_for_the_victims_job, Says("no-job: there is no job `JOB`")),
    door("guesses-names-of-jobs", "asks for jobs by patterns and by parts of paths", guesses_names_of_jobs, Says("no-job: there is no job `JOB`")),
    door("stops-actors-of-others", "ends the victim's actor by its name", |scene, by| ask(scene, by, &json!({ "stop-actor": { "actor": "honest" } })), Says("no-actor")),
    door("revokes-tokens-of-others", "revokes the victim's token", |scene, by| ask(scene, by, &json!({ "revoke-token": { "token": scene.victim.token_id } })), Says("has no token")),
    door("names-components-of-others", "submits the victim's component by its hash", names_the_victims_component, Says("the sent component is not the announced one")),
    door("repeats-keys-of-others", "repeats submission keys that others use", repeats_keys, Says("own job")),
    door("asks-for-nodes", "asks for the nodes and workers of a job", |scene, by| each_request(scene, by, &[r#"{"look":{"job":"x","question":{"workers":{"limit":9}}}}"#, r#"{"look":{"job":"x","question":{"nodes":{"limit":4294967295}}}}"#, r#"{"look":{"job":"x","question":"stop"}}"#]), Says("query")),
    // Identity.
    door("uses-damaged-tokens", "connects with damaged, foreign and garbled tokens", uses_damaged_tokens, Says("refused 6 of 6")),
    door("reuses-a-token", "exchanges a token for one use twice", reuses_a_token, Says("is for one use and was used")),
    door("uses-a-revoked-certificate", "connects with the certificate of a revoked token", uses_a_revoked_certificate, Says("was removed")),
    door("creates-lasting-tokens", "creates a token that is valid for longer than allowed", |scene, by| ask(scene, by, &json!({ "create-token": { "role": "admin", "use_once": false, "lifetime_s": u64::MAX } })), Says("token")),
    door("joins-as-a-node", "joins the cluster as a node with a token of a tenant", joins_as_a_node, Says("is for a tenant")),
    door("opens-channels-of-nodes", "opens all channels of nodes, and sends garbage", opens_channels_of_nodes, Says("served afterwards")),
    door("sends-requests-of-nodes", "sends requests of nodes", sends_requests_of_nodes, Says("served afterwards")),
    // Uploads.
    door("announces-too-much", "announces a component of 2⁶⁴ bytes", |scene, by| announces(scene, by, u64::MAX, b"x"), Says("has 18446744073709551615 bytes, the limit of the tenant is")),
    door("announces-nothing", "announces an empty component", |scene, by| announces(scene, by, 0, b"x"), Says("component")),
    door("sends-more-than-announced", "sends more than it announced", |scene, by| announces(scene, by, 10, &[7; 300_000]), Says("component")),
    door("sends-less-than-announced", "sends less than it announced", |scene, by| announces(scene, by, 1 << 20, b"x"), Says("component")),
    door("drips-an-upload", "sends a component byte by byte", drips_an_upload, Says("dripped")),
    door("abandons-uploads", "begins uploads and abandons them", abandons_uploads, Says("abandoned")),
    door("sends-before-it-is-asked", "sends the component and further requests before the node asks", sends_before_it_is_asked, Says("component")),
    // Requests.
    door("sends-garbage", "sends requests that are no JSON", |scene, by| each_request(scene, by, GARBAGE), Says("request: the request can't be decoded")),
    door("sends-deep-json", "sends deeply nested requests", |scene, by| each_request(scene, by, &[&deep(100_000), &format!("{}1", "[".repeat(400_000))]), Says("no-job")),
    door("sends-long-requests", "sends requests beyond the limit", |scene, by| each_request(scene, by, &[&format!(r#"{{"status":{{"job":"{}"}}}}"#, "x".repeat(600 << 10))]), Says("request: the request has")),
    door("sends-long-names", "asks for jobs with long names", |scene, by| each_request(scene, by, &[&format!(r#"{{"status":{{"job":"{}"}}}}"#, "\\u202e".repeat(80_000))]), Says("no-job")),
    door("submits-with-wrong-keys", "submits with keys that are paths, empty or long", submits_with_wrong_keys, Says("request: the request can't be decoded")),
    door("submits-many-arguments", "submits arguments beyond the limits, and files of the node", submits_many_arguments, Says("arguments")),
    door("submits-names-with-tricks", "submits programs and tasks named by control and format characters", submits_names_with_tricks, Says("shown without them")),
    door("submits-unknown-tasks", "submits tasks that do not exist", submits_unknown_tasks, Says("has no task")),
    door("submits-beyond-its-limit", "submits more jobs than it may", submits_beyond_its_limit, Says("job-limit")),
    door("submits-and-stops", "submits jobs and stops them at once", submits_and_stops, Says("stopped all")),
    door("revokes-garbage", "revokes tokens that are none", |scene, by| each_request(scene, by, &[r#"{"revoke-token":{"token":"x"}}"#, r#"{"revoke-token":{"token":"00000000000000000000000000000000"}}"#]), Says("token")),
    // Floods.
    door("floods-with-connections", "opens many connections", floods_with_connections, Says("at most 16")),
    door("floods-with-requests", "sends hundreds of requests at once", floods_with_requests, Says("jobs")),
    door("opens-and-says-nothing", "opens channels and sends no request", opens_and_says_nothing, Says("served afterwards")),
    door("follows-in-hundreds", "follows a job hundreds of times", follows_in_hundreds, TOO_MANY_FOLLOWED),
    door("lists-without-a-pause", "lists jobs and actors hundreds of times", lists_without_a_pause, Says("listed")),
    door("creates-many-tokens", "creates tokens up to the limit", creates_many_tokens, Says("tokens")),
    door("sends-datagrams", "sends random datagrams to the node's port", |scene, by| sends_datagrams(scene, by, 0), Says("served afterwards")),
    door("begins-handshakes", "sends datagrams that resemble first packets of connections", |scene, by| sends_datagrams(scene, by, 0xc0), Says("served afterwards")),
    door("breaks-frames", "ends channels within a frame, and resets them", breaks_frames, Says("served afterwards")),
];

/// Outcome of many followed jobs, whose requests arrive at once: they reach one limit or the other first.
const TOO_MANY_FOLLOWED: Outcome =
    Either(&Says("later: the tenant has 64 followed jobs at once"), &Says("later: the tenant has 32 requests at once"));

/// Lines that are no requests, and requests that are damaged, on the socket for commands of the node's machine.
#[test]
fn the_control_socket_ignores_garbage() {
    const REQUESTS: [&str; 5] = [
        r#""List""#,
        r#"{"Tenants":{"only":"ada"}}"#,
        r#"{"CreateToken":{"name":"nobody","role":"admin","use_once":true,"lifetime_s":60}}"#,
        r#"{"Drain":"nobody"}"#,
        r#"{"RevokeToken":{"name":"nobody","token":"07070707070707070707070707070707"}}"#,
    ];
    let nodes = crate::cluster::Nodes::start(1);
    nodes.lab.host(&["tenant", "add", "ada", "--data", "1"]).expect_code(0);
    let tenants = || nodes.lab.host(&["tenant", "list", "--json", "--data", "1"]).expect_code(0).json();
    let (before, socket) = (tenants(), nodes.lab.path("1/identity/socket"));
    let mut next = super::components::numbers(3);
    let send = |line: &[u8]| -> Vec<u8> {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        // The node may have closed the socket, which it does after a line.
        let _ = stream.write_all(line).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    for line in GARBAGE {
        assert_eq!(send(line.as_bytes()), b"", "{line}");
    }
    assert_eq!(send(&[b'['; 100_000]), b"");
    for _ in 0..1_000 {
        let mut line = REQUESTS[(next() % REQUESTS.len() as u64) as usize].as_bytes().to_vec();
        for _ in 0..=next() % 3 {
            let at = (next() % line.len() as u64) as usize;
            line[at] ^= 1 << (next() % 8);
        }
        send(&line);
    }
    assert_eq!(tenants(), before);
}

const GARBAGE: &[&str] = &[
    "",
    "\0",
    "{}",
    "null",
    "[]",
    "{\"status\":{\"job\":7}}",
    "{\"shutdown\":{}}",
    "{\"list\":{\"limit\":-1}}",
    "\"",
    "\u{feff}{}",
];

fn deep(depth: usize) -> String {
    format!(r#"{{"status":{{"job":"x","more":{}{}}}}}"#, "[".repeat(depth), "]".repeat(depth))
}

fn distinct(texts: impl IntoIterator<Item = String>) -> String {
    let texts: BTreeSet<String> = texts.into_iter().collect();
    texts.into_iter().collect::<Vec<_>>().join("\n")
}

fn ask(scene: &Scene, by: &Account, request: &Value) -> String {
    describe(&scene.runtime.block_on(by.ask(request)))
}

/// Returns the distinct answers to requests, on a connection of their own.
fn each_request(scene: &Scene, by: &Account, requests: &[&str]) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        let mut answers = Vec::new();
        for request in requests {
            let mut frames = client.send(request.as_bytes()).await;
            answers.push(describe(&next(&mut frames).await));
        }
        distinct(answers)
    })
}

/// Returns whether the node serves the tenant.
async fn served(by: &Account) -> &'static str {
    let client = by.connect().await;
    let response = client.ask(&json!({ "list": { "limit": 1 } })).await;
    if response["jobs"].is_array() { "served afterwards" } else { "not served" }
}

fn asks_for_the_victims_job(scene: &Scene, by: &Account) -> String {
    let (job, unknown) = (scene.victim_job(), "20260131-235959-123-4f3a9c".to_owned());
    let requests = |job: &str| {
        [
            json!({ "status": { "job": job } }),
            json!({ "stop": { "job": job } }),
            json!({ "look": { "job": job, "question": "summary" } }),
            json!({ "look": { "job": job, "question": { "objects": { "limit": 9 } } } }),
            json!({ "follow": { "job": job, "taken": 1, "after": 0, "stays": true } }),
        ]
    };
    let short = &job[job.len() - 6..];
    let client = scene.runtime.block_on(by.connect());
    let all = [job.as_str(), short, unknown.as_str()].map(|job| {
        let answers = requests(job).map(|request| {
            let answer = scene.runtime.block_on(async {
                let mut frames = client.send(request.to_string().as_bytes()).await;
                loop {
                    // The addresses of the nodes come first.
                    let answer = next(&mut frames).await;
                    if answer["nodes"].is_null() {
                        return answer;
                    }
                }
            });
            describe(&answer).replace(job, "JOB")
        });
        distinct(answers)
    });
    distinct(all)
}

fn guesses_names_of_jobs(scene: &Scene, by: &Account) -> String {
    let names =
        ["*", "%", "../ada", "ada/jobs", "20", "\0", "\u{202e}", "20260131-235959-123-4f3a9c/../../../ada/jobs", "-"];
    distinct(names.map(|job| ask(scene, by, &json!({ "status": { "job": job } })).replace(job, "JOB")))
}

fn names_the_victims_component(scene: &Scene, by: &Account) -> String {
    let victims = Program::of("tests/programs/files");
    // The victim has sent it; the attacker has not.
    let sent = scene.runtime.block_on(scene.victim.submit(&victims, "nothing", &[]));
    let unknown = "12".repeat(32);
    let answer = |hash: &str| {
        let request = submission(hash, 5, "one");
        describe(&scene.runtime.block_on(by.send_submission(&request, b"bytes")))
    };
    let (of_victim, of_nobody) = (answer(&victims.id), answer(&unknown));
    if of_victim == of_nobody { of_victim } else { format!("{sent:?} {of_victim} {of_nobody}") }
}

fn repeats_keys(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    let of = |account: &Account| {
        let mut request = submission(&program.id, program.bytes.len(), "add");
        request["submit"]["key"] = json!("the-same-key");
        request["submit"]["arguments"] = json!([["a", "1"], ["b", "2"]]);
        scene.runtime.block_on(account.send_submission(&request, &program.bytes))["job"].clone()
    };
    let (victims, own) = (of(&scene.victim), of(by));
    let is_own = victims["id"].is_string() && own["id"].is_string() && own["id"] != victims["id"];
    if is_own { "own job".to_owned() } else { format!("{victims} {own}") }
}

/// Runs a command with a folder of its own.
fn command(scene: &Scene, by: &Account, folder: &str, token: &str, line: &[&str]) -> CommandOutput {
    let address = by.address.to_string();
    scene.nodes.lab.host(&[line, &["--node", &address, "--data", folder, "--token", token]].concat())
}

/// Returns the name of a folder that no other attack uses.
fn folder(by: &Account) -> String {
    static FOLDERS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    format!("{}-{}", by.name, FOLDERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

fn uses_damaged_tokens(scene: &Scene, by: &Account) -> String {
    let own = &by.token;
    let other = own.replace(&own[10..14], "AAAA");
    let tokens = [&own[..own.len() - 3], &other, "sbt2-", "", &format!("{own}{own}"), "\u{202e}x"];
    let line = ["jobs", "list"];
    let refused = tokens.iter().filter(|token| !command(scene, by, &folder(by), token, &line).status.success());
    format!("refused {} of {}", refused.count(), tokens.len())
}

/// Creates a token by the attacker's own rights. Returns its text and its id.
fn create_token(scene: &Scene, by: &Account, use_once: bool) -> Result<(String, String), String> {
    let request = json!({ "create-token": { "role": "viewer", "use_once": use_once, "lifetime_s": 600 } });
    let response = scene.runtime.block_on(by.ask(&request));
    match (response["token"][1].as_str(), response["token"][0]["id"].as_str()) {
        (Some(text), Some(id)) => Ok((text.to_owned(), id.to_owned())),
        _ => Err(describe(&response)),
    }
}

fn reuses_a_token(scene: &Scene, by: &Account) -> String {
    let (token, _) = match create_token(scene, by, true) {
        Ok(created) => created,
        Err(refusal) => return refusal,
    };
    let line = ["jobs", "list"];
    let first = command(scene, by, &folder(by), &token, &line);
    let second = command(scene, by, &folder(by), &token, &line);
    if first.status.success() && !second.status.success() { second.stderr } else { format!("{first:?} {second:?}") }
}

fn uses_a_revoked_certificate(scene: &Scene, by: &Account) -> String {
    let (token, id) = match create_token(scene, by, false) {
        Ok(created) => created,
        Err(refusal) => return refusal,
    };
    let (folder, line) = (folder(by), ["jobs", "list"]);
    let first = command(scene, by, &folder, &token, &line);
    let revoked = ask(scene, by, &json!({ "revoke-token": { "token": id } }));
    let second = command(scene, by, &folder, &token, &line);
    if first.status.success() && !second.status.success() { second.stderr } else { format!("{revoked} {second:?}") }
}

fn joins_as_a_node(scene: &Scene, by: &Account) -> String {
    let (folder, address) = (folder(by), by.address.to_string());
    let line = ["serve", "--listen", "127.0.0.1:0", "--data", &folder, "--join", &address, "--token", &by.token];
    scene.nodes.lab.host(&line).stderr
}

fn opens_channels_of_nodes(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        for number in (0..Channel::COUNT).filter(|number| *number != 9) {
            let Ok(mut frames) = client.connection.open(Channel::new(number)).await else { break };
            let _ = frames.send(b"\x01\x02garbage").await;
            if let Ok(Ok(Some(answer))) = tokio::time::timeout(Duration::from_millis(5), frames.recv()).await {
                return format!("channel {number} answers {answer:?}");
            }
        }
        served(by).await.to_owned()
    })
}

fn sends_requests_of_nodes(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        for number in 0..20u8 {
            let request = [number, 1, 2, 3];
            if let Ok(answer) = client.connection.request(&request, Duration::from_millis(20)).await {
                return format!("request {number} is answered: {answer:?}");
            }
        }
        served(by).await.to_owned()
    })
}

fn announces(scene: &Scene, by: &Account, bytes: u64, sent: &[u8]) -> String {
    let mut request = submission(&"34".repeat(32), 0, "attack");
    request["submit"]["component_bytes"] = json!(bytes);
    describe(&scene.runtime.block_on(by.send_submission(&request, sent)))
}

/// Begins an upload; `None` if the node does not ask for the component now.
async fn upload(client: &Client, bytes: usize) -> Option<sandbar_wire::Frames> {
    let mut frames = client.send(submission(&"56".repeat(32), bytes, "attack").to_string().as_bytes()).await;
    (next(&mut frames).await == json!("send")).then_some(frames)
}

fn drips_an_upload(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        let Some(frames) = upload(&client, 1 << 20).await else { return "not asked".to_owned() };
        for _ in 0..20 {
            let _ = frames.send(b"x").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        "dripped".to_owned()
    })
}

fn abandons_uploads(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        for _ in 0..10 {
            let client = by.connect().await;
            if let Some(frames) = upload(&client, 1 << 20).await {
                let _ = frames.send(&[7; 100_000]).await;
            }
        }
        "abandoned".to_owned()
    })
}

fn sends_before_it_is_asked(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        let request = submission(&"78".repeat(32), 5, "attack").to_string();
        let mut frames = client.send(request.as_bytes()).await;
        for frame in [&b"bytes"[..], b"", request.as_bytes(), b"{\"list\":{\"limit\":9}}"] {
            let _ = frames.send(frame).await;
        }
        let mut answers = Vec::new();
        for _ in 0..4 {
            match next(&mut frames).await {
                Value::Null => break,
                answer if answer["refused"].is_object() => {
                    answers.push(describe(&answer));
                    break;
                }
                answer => answers.push(describe(&answer)),
            }
        }
        answers.join("\n")
    })
}

fn submits_with_wrong_keys(scene: &Scene, by: &Account) -> String {
    let long = "k".repeat(65);
    let keys = ["", "a/b", "../ada", &long, "\u{202e}", "a\0", "kеy"];
    let requests = keys.map(|key| {
        let mut request = submission(&"12".repeat(32), 1, "add");
        request["submit"]["key"] = json!(key);
        request.to_string()
    });
    each_request(scene, by, &requests.each_ref().map(String::as_str))
}

fn submits_many_arguments(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    let many: Vec<[String; 2]> = (0..1001).map(|number| [number.to_string(), String::new()]).collect();
    let arguments =
        [json!(many), json!([["a", "x".repeat(300 << 10)]]), json!([["depth", "@/etc/passwd"], ["width", "@@x"]])];
    distinct(arguments.map(|arguments| {
        let mut request = submission(&program.id, program.bytes.len(), "tree");
        request["submit"]["arguments"] = arguments;
        describe(&scene.runtime.block_on(by.send_submission(&request, &program.bytes)))
    }))
}

fn submits_names_with_tricks(scene: &Scene, by: &Account) -> String {
    const TRICKS: &str = "\u{202e}\u{1b}[2J\u{1b}]0;x\u{7}\r\u{9b}\u{200b}\u{2028}\n";
    let program = Program::of("tests/programs/tasks");
    let mut request = submission(&program.id, program.bytes.len(), "fails");
    request["submit"]["program"] = json!(TRICKS);
    request["submit"]["arguments"] = json!([["message", TRICKS]]);
    let response = scene.runtime.block_on(by.send_submission(&request, &program.bytes));
    let Some(job) = response["job"]["id"].as_str() else { return describe(&response) };
    let _ = scene.runtime.block_on(by.ended(job, Duration::from_secs(60)));
    let address = by.address.to_string();
    let commands =
        [&["jobs", "list"][..], &["jobs", "status", job], &["jobs", "logs", job], &["list", "tasks", "--job", job]];
    for line in commands {
        let shown = scene.nodes.lab.host(&[line, &["--node", &address, "--data", &by.name]].concat());
        let text = shown.stdout.clone() + &shown.stderr;
        if !shown.status.success() || text.contains(|c: char| c != '\n' && TRICKS.contains(c) && !c.is_ascii_graphic())
        {
            return format!("{shown:?}");
        }
    }
    "shown without them".to_owned()
}

fn submits_unknown_tasks(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    let long = "t".repeat(256);
    let tasks = ["", "\0", "add\0", "Kept", "Kept.add", "new", &long, "\u{202e}", "../add"];
    let without = |text: &str, task: &str| if task.is_empty() { text.to_owned() } else { text.replace(task, "TASK") };
    distinct(tasks.map(|task| match scene.runtime.block_on(by.submit(&program, task, &[])) {
        Ok(job) => {
            let ended = scene.runtime.block_on(by.ended(&job, Duration::from_secs(60))).unwrap_or_default();
            without(ended["error"]["message"].as_str().unwrap_or("it has no error"), task)
        }
        Err(refusal) => without(&refusal, task),
    }))
}

fn submits_beyond_its_limit(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    scene.runtime.block_on(async {
        let mut jobs = Vec::new();
        let refusal = loop {
            match by.submit(&program, "spins", &[]).await {
                Ok(job) if jobs.len() < 20 => jobs.push(job),
                Ok(_) => break "no limit".to_owned(),
                Err(refusal) => break refusal,
            }
        };
        for job in jobs {
            by.stop(&job, Duration::from_secs(60)).await;
        }
        refusal
    })
}

fn submits_and_stops(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    scene.runtime.block_on(async {
        for _ in 0..5 {
            match by.submit(&program, "spins", &[]).await {
                Ok(job) if by.stop(&job, Duration::from_secs(60)).await => {}
                Ok(job) => return format!("{job} did not stop"),
                Err(refusal) => return refusal,
            }
        }
        "stopped all".to_owned()
    })
}

fn floods_with_connections(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let connect = (0..40).map(|_| Client::connect_with(&by.identity, by.address));
        let connected: Vec<Client> = join_all(connect).await.into_iter().flatten().collect();
        // A connection beyond the limit is closed when the node accepts it.
        let asked = connected.iter().map(|client| async move {
            let frames = client.connection.open(Channel::new(9)).await;
            let Ok(mut frames) = frames else { return false };
            let sent = frames.send(br#"{"list":{"limit":1}}"#).await;
            let received = tokio::time::timeout(Duration::from_secs(10), frames.recv()).await;
            sent.is_ok() && matches!(received, Ok(Ok(Some(_))))
        });
        let served = join_all(asked).await.into_iter().filter(|served| *served).count();
        if served <= 16 { format!("{served}: at most 16") } else { format!("{served} connections are served") }
    })
}

fn floods_with_requests(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        let request = json!({ "list": { "limit": 1000 } });
        let answers = join_all((0..300).map(|_| client.ask_if_free(&request))).await;
        distinct(
            // How many wait for a free channel is a matter of time.
            answers
                .iter()
                .filter(|answer| **answer != json!("busy"))
                .map(|answer| if answer["jobs"].is_array() { "jobs".to_owned() } else { describe(answer) }),
        )
    })
}

fn opens_and_says_nothing(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        let mut open = Vec::new();
        for _ in 0..60 {
            // It reaches the node with its first byte.
            let channel = client.connection.open(Channel::new(9));
            open.push(tokio::time::timeout(Duration::from_millis(100), channel).await);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let answer = served(by).await.to_owned();
        drop((open, client));
        answer
    })
}

fn follows_in_hundreds(scene: &Scene, by: &Account) -> String {
    let program = Program::of("tests/programs/tasks");
    scene.runtime.block_on(async {
        let job = match by.submit(&program, "spins", &[]).await {
            Ok(job) => job,
            Err(refusal) => return refusal,
        };
        let request = json!({ "follow": { "job": job, "taken": 1, "after": 0, "stays": true } }).to_string();
        let mut follows = Vec::new();
        // A connection has at most 16 channels.
        let clients = join_all((0..8).map(|_| by.connect())).await;
        for follow in 0..80 {
            follows.push(clients[follow % clients.len()].send(request.as_bytes()).await);
        }
        let answer = async |frames| match tokio::time::timeout(Duration::from_secs(2), next(frames)).await {
            Ok(answer) => describe(&answer),
            Err(_) => "followed".to_owned(),
        };
        let answers: BTreeSet<_> = join_all(follows.iter_mut().map(answer)).await.into_iter().collect();
        by.stop(&job, Duration::from_secs(60)).await;
        distinct(answers)
    })
}

fn lists_without_a_pause(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        for _ in 0..150 {
            for request in [json!({ "list": { "limit": u32::MAX } }), json!("actors"), json!("tenant")] {
                let answer = by.ask(&request).await;
                if !answer["refused"].is_null() {
                    return describe(&answer);
                }
            }
        }
        "listed".to_owned()
    })
}

fn creates_many_tokens(scene: &Scene, by: &Account) -> String {
    let created: Vec<_> = (0..20).map(|_| create_token(scene, by, false)).collect();
    for (_, id) in created.iter().flatten() {
        ask(scene, by, &json!({ "revoke-token": { "token": id } }));
    }
    format!(
        "{} tokens, then {:?}",
        created.iter().flatten().count(),
        created.iter().find_map(|token| token.as_ref().err())
    )
}

/// Sends datagrams of random bytes, the first of which has these bits set.
fn sends_datagrams(scene: &Scene, by: &Account, bits: u8) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 88_172_645_463_325_252u64;
    for number in 0..3_000usize {
        let mut datagram: Vec<u8> = (0..150)
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()
            })
            .collect();
        datagram[0] |= bits;
        if bits > 0 {
            // The version of QUIC, and plausible lengths of both ids.
            datagram[1..6].copy_from_slice(&[0, 0, 0, 1, 8]);
            datagram[14] = 8;
        } else {
            datagram.truncate(1 + number % datagram.len());
        }
        let _ = socket.send_to(&datagram, by.address);
    }
    scene.runtime.block_on(served(by)).to_owned()
}

fn breaks_frames(scene: &Scene, by: &Account) -> String {
    scene.runtime.block_on(async {
        let client = by.connect().await;
        for number in 0..30u64 {
            let Ok(frames) = client.connection.open(Channel::new(9)).await else { break };
            let sending = frames.send(&[b'['; 200_000]);
            // Given up before the frame is complete.
            let _ = tokio::time::timeout(Duration::from_micros(number * 20), sending).await;
        }
        served(by).await.to_owned()
    })
}
