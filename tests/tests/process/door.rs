//! The door of a cluster: tenants, tokens and roles, and what a tenant can do to the nodes and to other tenants by its
//! requests alone.

use std::fs;
use std::time::{Duration, Instant};

use sandbar_tests::{CommandOutput, component, print_line};
use sandbar_worker::Compiler;
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::lifecycle::until;
use crate::takeover::Tenant;
use crate::tenant_api::{Client, next, submission};

fn tasks(task: &str) -> String {
    format!("{}#{task}", component("tests/programs/tasks").display())
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// Returns the code and the message of a refusal.
pub fn refusal(response: &Value) -> (&str, &str) {
    let text = |field: &str| response["refused"][field].as_str().unwrap_or_default();
    (text("code"), text("message"))
}

/// Returns a file with words of the status of a process, in KiB.
pub fn status_kib(process: u32, word: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// Returns the names of all files below a folder of a node.
pub fn files(nodes: &Nodes, folder: &str) -> Vec<String> {
    fn walk(folder: &std::path::Path, all: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                walk(&entry.path(), all);
            } else {
                all.push(entry.path().to_str().unwrap().to_owned());
            }
        }
    }
    let mut all = Vec::new();
    walk(&nodes.lab.path(folder), &mut all);
    all.sort();
    all
}

#[test]
fn tenants_are_added_changed_and_removed() {
    let nodes = Nodes::start(2);
    let host = |line: &[&str]| nodes.lab.host(line);
    for (line, code, expected_text) in [
        (&["tenant", "token", "ada", "--data", "1"][..], 1, "there is no tenant `ada`"),
        (&["tenant", "set", "ada", "--weight", "2", "--data", "1"], 1, "there is no tenant `ada`"),
        (&["tenant", "remove", "ada", "--data", "1"], 1, "there is no tenant `ada`"),
        (&["tenant", "add", "Ada", "--data", "1"], 2, "a name has `a` to `z`"),
        (&["tenant", "add", "ada", "--weight", "0", "--data", "1"], 1, "`weight` is 0, not from 1 to 1000"),
        (&["tenant", "add", "ada", "--weight", "7", "--reserved-cpus", "0.5", "--data", "2"], 0, "added tenant ada"),
        (&["tenant", "add", "ada", "--data", "1"], 1, "there is a tenant `ada` already"),
        (&["tenant", "set", "ada", "--jobs-max", "3", "--data", "2"], 0, "changed tenant ada"),
        (&["tenant", "token", "ada", "--role", "owner", "--data", "1"], 2, "viewer, submitter and admin"),
        (&["tenant", "token", "ada", "--for", "2d", "--data", "1"], 2, "not a time"),
        // Only the first node can sign.
        (&["tenant", "token", "ada", "--data", "2"], 1, "create the token on the first node"),
        (&["tenant", "revoke", "ada", "00", "--data", "1"], 2, "32 hexadecimal digits"),
        (&["tenant", "revoke", "ada", &"0".repeat(32), "--data", "1"], 1, "has no token"),
        (&["tenant", "list", "bob", "--data", "1"], 1, "there is no tenant `bob`"),
    ] {
        host(line).expect_code(code).expect_stderr(&[expected_text]);
    }
    let token = host(&["tenant", "token", "ada", "--role", "viewer", "--once", "--json", "--data", "1"]);
    let token = token.expect_code(0).json();
    let listed = host(&["tenant", "list", "--json", "--data", "2"]).expect_code(0).json();
    let tenant = &listed["tenants"][0];
    let settings = &tenant["settings"];
    assert_eq!(tenant["name"], "ada");
    assert_eq!(
        (&settings["weight"], &settings["reserved_cpus"], &settings["jobs_max"]),
        (&7.into(), &0.5.into(), &3.into())
    );
    let listed = &tenant["tokens"][0];
    assert_eq!(
        (&listed["id"], &listed["role"], &listed["use_once"], &listed["last_use"]),
        (&token["id"], &json!("viewer"), &json!(true), &Value::Null)
    );
    assert!(!tenant.to_string().contains(token["text"].as_str().unwrap()), "{tenant}");
    let table = host(&["tenant", "list", "--data", "1"]).expect_code(0).stdout;
    assert!(table.contains("ada") && table.contains("WEIGHT"), "{table}");
    let table = host(&["tenant", "list", "ada", "--data", "1"]).expect_code(0).stdout;
    assert!(table.contains(token["id"].as_str().unwrap()) && table.contains("viewer"), "{table}");
    host(&["tenant", "remove", "ada", "--data", "2"]).expect_code(0);
    assert_eq!(host(&["tenant", "list", "--json", "--data", "1"]).expect_code(0).json(), json!({ "tenants": [] }));
}

/// Runs a command of a client with its own folder.
fn run(nodes: &Nodes, node: &str, folder: &str, token: &str, line: &[&str]) -> CommandOutput {
    let address = nodes.address(node);
    nodes.lab.host(&[line, &["--node", &address, "--data", folder, "--token", token]].concat())
}

#[test]
fn tokens_and_roles_are_checked_at_every_node() {
    let nodes = Nodes::start(2);
    let token = |role: &str, more: &[&str]| nodes.lab.tenant_token("1", "ada", &[&["--role", role], more].concat());
    let [viewer, submitter, admin] = ["viewer", "submitter", "admin"].map(|role| token(role, &[]));
    let list = ["jobs", "list"];
    // Certificates come from the first node, and are accepted by all.
    for (folder, token) in [("viewer", &viewer), ("submitter", &submitter), ("admin", &admin)] {
        run(&nodes, "node-1", folder, token, &list).expect_code(0);
        run(&nodes, "node-2", folder, token, &list).expect_code(0);
    }
    let spins = tasks("spins");
    let submit = ["submit", &spins, "--no-wait"];
    let id = run(&nodes, "node-2", "submitter", &submitter, &submit).expect_code(0).stdout.trim().to_owned();
    for node in ["node-1", "node-2"] {
        // What the role allows.
        for (folder, token) in [("viewer", &viewer), ("submitter", &submitter), ("admin", &admin)] {
            run(&nodes, node, folder, token, &["jobs", "status", &id]).expect_code(0);
            run(&nodes, node, folder, token, &["summary", "tasks", "--job", &id]).expect_code(0);
        }
        // What it does not.
        let tenant_token = ["tenant", "token", "ada", "--role", "viewer"];
        let none = "0".repeat(32);
        let revoke = ["tenant", "revoke", "ada", &none];
        for (folder, token, line) in [
            ("viewer", &viewer, &submit[..]),
            ("viewer", &viewer, &["jobs", "stop", &id]),
            ("viewer", &viewer, &tenant_token),
            ("viewer", &viewer, &["tenant", "list", "ada"]),
            ("submitter", &submitter, &tenant_token),
            ("submitter", &submitter, &revoke),
            ("submitter", &submitter, &["tenant", "list", "ada"]),
        ] {
            run(&nodes, node, folder, token, line).expect_code(1).expect_stderr(&["needs the role", "[role]"]);
        }
        run(&nodes, node, "admin", &admin, &revoke).expect_code(1).expect_stderr(&["has no token", "[token]"]);
    }
    // An admin creates tokens of the own tenant at any node, and revokes them.
    let more = ["tenant", "token", "ada", "--role", "submitter", "--json"];
    let created = run(&nodes, "node-2", "admin", &admin, &more).expect_code(0).json();
    let text = created["text"].as_str().unwrap();
    run(&nodes, "node-1", "created", text, &list).expect_code(0);
    run(&nodes, "node-2", "created", text, &["jobs", "stop", &id]).expect_code(0);
    let id = created["id"].as_str().unwrap();
    let listed = run(&nodes, "node-1", "admin", &admin, &["tenant", "list", "ada", "--json"]).expect_code(0).json();
    let tokens = listed["tenants"][0]["tokens"].as_array().unwrap();
    let created = tokens.iter().find(|token| token["id"] == id).unwrap();
    assert!(created["created_by"].is_string() && created["last_use"]["certificates"] == 1, "{created}");
    run(&nodes, "node-2", "admin", &admin, &["tenant", "revoke", "ada", id]).expect_code(0);
    until("the certificates of the token are refused", || {
        let ended = run(&nodes, "node-2", "created", text, &list);
        ended.status.code() == Some(1) && ended.stderr.contains("was removed")
    });
    run(&nodes, "node-1", "late", text, &list).expect_code(1).expect_stderr(&["was revoked"]);
    let of_other = ["tenant", "token", "bob"];
    run(&nodes, "node-1", "admin", &admin, &of_other).expect_code(1).expect_stderr(&["of tenant ada, not of bob"]);
    // A token for one use is used once, by one client.
    let once = token("viewer", &["--once"]);
    run(&nodes, "node-1", "first", &once, &list).expect_code(0);
    run(&nodes, "node-2", "first", &once, &list).expect_code(0);
    run(&nodes, "node-1", "second", &once, &list).expect_code(1).expect_stderr(&["is for one use and was used"]);
    // A token of another tenant, and one that is damaged.
    let bob = nodes.lab.tenant_token("1", "bob", &[]);
    run(&nodes, "node-1", "first", &bob, &list).expect_code(1).expect_stderr(&["has the certificate of tenant `ada`"]);
    run(&nodes, "node-1", "third", &bob[..bob.len() - 3], &list).expect_code(1).expect_stderr(&["is cut off"]);
}

/// Waits until a node refuses a client, which it must do within 5 s of the change.
fn until_refused(nodes: &Nodes, node: &str, folder: &str, token: &str) {
    const TIME_MAX: Duration = Duration::from_secs(5);
    let since = Instant::now();
    loop {
        let ended = run(nodes, node, folder, token, &["jobs", "list"]);
        if ended.status.code() == Some(1) {
            ended.expect_stderr(&["was removed"]);
            return;
        }
        assert!(since.elapsed() < TIME_MAX, "{node} accepts {folder}: {ended:?}");
    }
}

/// Open connections end, on every node, and new ones are refused, until the store knows the tenant again.
#[test]
fn revocation_reaches_all_nodes() {
    let nodes = Nodes::start(3);
    let spins = tasks("spins");
    let names = ["node-1", "node-2", "node-3"];
    let revoked = nodes.lab.tenant_token("1", "ada", &["--json"]);
    let revoked: Value = serde_json::from_str(&revoked).unwrap();
    let (id, text) = (revoked["id"].as_str().unwrap(), revoked["text"].as_str().unwrap());
    let other = nodes.lab.tenant_token("1", "ada", &[]);
    let bob = Tenant::new(&nodes, "bob");
    run(&nodes, "node-1", "leaked", text, &["jobs", "list"]).expect_code(0);
    run(&nodes, "node-1", "other", &other, &["jobs", "list"]).expect_code(0);
    // A job runs on the node that receives it, so each of these connections is to another node.
    let follows = |folder: &str| {
        names.map(|name| {
            let address = nodes.address(name);
            nodes.lab.start(&["submit", &spins, "--node", &address, "--data", folder])
        })
    };
    let running = || {
        let address = nodes.address("node-1");
        let jobs = bob.host(&address, &["jobs", "list", "--json"]).expect_code(0).json();
        let of_ada = run(&nodes, "node-1", "other", &other, &["jobs", "list", "--json"]).expect_code(0).json();
        assert_eq!(jobs["jobs"], json!([]));
        of_ada["jobs"].as_array().unwrap().iter().filter(|job| job["state"] == "running").count()
    };
    let by_leaked = follows("leaked");
    until("the jobs run", || running() == 3);
    let mut by_other = follows("other");
    until("all jobs run", || running() == 6);
    nodes.lab.host(&["tenant", "revoke", "ada", id, "--data", "3"]).expect_code(0);
    let since = Instant::now();
    for client in by_leaked {
        client.wait().expect_code(1).expect_stderr(&["was removed"]);
    }
    print_line(format_args!("connections at three nodes ended {:?} after the revocation", since.elapsed()));
    for name in names {
        run(&nodes, name, "leaked", text, &["jobs", "list"]).expect_code(1).expect_stderr(&["was removed"]);
        run(&nodes, name, "other", &other, &["jobs", "list"]).expect_code(0);
    }
    assert!(by_other.iter_mut().all(|client| !client.has_ended()));
    // The tenant is removed: its jobs end, and other tenants notice nothing.
    nodes.lab.host(&["tenant", "remove", "ada", "--data", "2"]).expect_code(0);
    let since = Instant::now();
    for client in by_other {
        client.wait().expect_code(1);
    }
    print_line(format_args!("connections at three nodes ended {:?} after the removal", since.elapsed()));
    for name in names {
        until_refused(&nodes, name, "other", &other);
        // The processors are free.
        let tree = tasks("tree");
        let job = ["submit", &tree, "--arg", "depth=1", "--arg", "width=2", "--arg", "steps=1", "--json"];
        assert_eq!(bob.host(&nodes.address(name), &job).expect_code(0).json()["result"], json!(2));
    }
    until("nothing of the tenant is left on disk", || {
        ["1", "2", "3"].iter().all(|data| !nodes.lab.path(data).join("jobs/ada").exists())
    });
    // A tenant of the same name is another one.
    nodes.lab.host(&["tenant", "add", "ada", "--data", "1"]).expect_code(0);
    run(&nodes, "node-1", "other", &other, &["jobs", "list"]).expect_code(1).expect_stderr(&["was removed"]);
}

#[test]
fn nodes_choose_the_ids_of_jobs() {
    let nodes = Nodes::start(2);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    let add = tasks("add");
    let submit = |tenant: &Tenant<'_>, node: &str, key: &str| -> String {
        let line = ["submit", &add, "--arg", "a=1", "--arg", "b=2", "--json", "--key", key];
        tenant.host(node, &line).expect_code(0).json()["id"].as_str().unwrap().to_owned()
    };
    // A submission is repeated through another node, and used by another tenant.
    let id = submit(&ada, &first, "k");
    assert_eq!(submit(&ada, &second, "k"), id);
    let of_bob = submit(&bob, &first, "k");
    assert_ne!(of_bob, id);
    let wrong = ["submit", &add, "--key", "a/b"];
    ada.host(&first, &wrong).expect_code(2).expect_stderr(&["a submission key has 1 to 64"]);
    // A prefix of the id finds the job.
    assert_eq!(ada.status(&second, &id[id.len() - 6..])["id"], json!(id));
    for job in [&of_bob[..], &of_bob[of_bob.len() - 6..], "20991231-235959-999-ffffff", "zzzzzz"] {
        let unknown = ada.host(&first, &["jobs", "status", job]).expect_code(1);
        assert_eq!(unknown.stderr.trim(), format!("error: there is no job `{job}` [no-job]"));
    }
    // Ended jobs are dropped within their tenant, in the order in which they ended.
    nodes.lab.host(&["tenant", "set", "ada", "--finished-jobs-max", "3", "--data", "1"]).expect_code(0);
    std::thread::sleep(Duration::from_secs(2));
    let ids: Vec<String> =
        (0..5).map(|number| submit(&ada, [&first, &second][number % 2], &number.to_string())).collect();
    let listed = |tenant: &Tenant<'_>| -> Vec<String> {
        let jobs = tenant.host(&first, &["jobs", "list", "--json"]).expect_code(0).json();
        let ids = jobs["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        let mut ids: Vec<String> = ids.collect();
        ids.sort();
        ids
    };
    let mut last = ids[2..].to_vec();
    last.sort();
    until("the first jobs are dropped", || listed(&ada) == last);
    assert_eq!(listed(&bob), [of_bob]);
    // The key of a dropped job is free.
    assert_ne!(submit(&ada, &first, "k"), id);
}

#[test]
fn a_tenant_has_so_many_unfinished_jobs() {
    let nodes = Nodes::start(2);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    nodes.lab.host(&["tenant", "set", "ada", "--jobs-max", "3", "--data", "1"]).expect_code(0);
    std::thread::sleep(Duration::from_secs(2));
    let spins = tasks("spins");
    let submit = ["submit", &spins, "--no-wait"];
    // The first node gives the certificate.
    ada.host(&first, &["jobs", "list"]).expect_code(0);
    // At the same time, through both nodes.
    let begun: Vec<_> = (0..8).map(|number| ada.begin([&first, &second][number % 2], &submit)).collect();
    let ended: Vec<CommandOutput> = begun.into_iter().map(|running| running.wait()).collect();
    let submitted: Vec<&CommandOutput> = ended.iter().filter(|ended| ended.status.success()).collect();
    assert_eq!(submitted.len(), 3, "{:#?}", ended.iter().map(|ended| &ended.stderr).collect::<Vec<_>>());
    for ended in ended.iter().filter(|ended| !ended.status.success()) {
        let (of, ask) = ("has 3 unfinished jobs, the limit is 3", "host tenant set ada --jobs-max");
        assert!(ended.stderr.contains(of) && ended.stderr.contains(ask), "{}", ended.stderr);
    }
    bob.host(&first, &["submit", &tasks("add"), "--arg", "a=1", "--arg", "b=2"]).expect_code(0);
    ada.host(&first, &["jobs", "stop", submitted[0].stdout.trim()]).expect_code(0);
    ada.host(&second, &submit).expect_code(0);
}

/// A job whose nodes are killed again and again fails instead of taking down the next one.
#[test]
fn a_job_that_loses_its_nodes_is_not_taken_over_for_ever() {
    let mut nodes = Nodes::start(1);
    let first = nodes.address("node-1");
    let spins = tasks("spins");
    let (id, token) = {
        let ada = Tenant::new(&nodes, "ada");
        let id = ada.host(&first, &["submit", &spins, "--no-wait"]).expect_code(0).stdout.trim().to_owned();
        (id, ada.token)
    };
    let status = |nodes: &Nodes| Tenant::known(nodes, "ada", &token).status(&first, &id);
    // A node that stops in order is not lost.
    let node = nodes.running.remove(0);
    let process = rustix::process::Pid::from_raw(node.process().cast_signed()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    node.wait().expect_code(0);
    nodes.running.push(nodes.lab.start(&["serve", "--listen", &first, "--workers", "1", "--data", "1"]));
    until("the node is back", || !nodes.there().is_empty());
    until("the job runs again", || status(&nodes)["taken"] == 2);
    assert_eq!(status(&nodes)["losses"], 0);
    for losses in 1..=3 {
        nodes.kill("node-1");
        nodes.come_back("node-1", &first, &[]);
        until("the job runs again", || status(&nodes)["losses"] == losses);
        assert_eq!((&status(&nodes)["state"], &status(&nodes)["taken"]), (&json!("running"), &json!(losses + 2)));
    }
    nodes.kill("node-1");
    nodes.come_back("node-1", &first, &[]);
    until("the job has failed", || status(&nodes)["state"] == "failed");
    let job = status(&nodes);
    assert_eq!((&job["error"]["code"], &job["taken"]), (&json!("takeover-limit"), &json!(5)), "{job}");
    let message = job["error"]["message"].as_str().unwrap();
    assert!(message.contains("4 nodes were lost while they ran it, the last one was `node-1`"), "{message}");
}

/// The hash of a component is not a right to it, and does not tell whether another tenant has it.
#[test]
fn components_belong_to_their_tenants() {
    let nodes = Nodes::start(1);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let first = nodes.address("node-1");
    let path = component("tests/programs/tasks");
    let bytes = fs::read(&path).unwrap();
    let (id, unknown) = (Compiler::id(&bytes).to_string(), "12".repeat(32));
    ada.host(&first, &["submit", &tasks("add"), "--arg", "a=1", "--arg", "b=2"]).expect_code(0);
    runtime().block_on(async {
        let client = Client::connect(&nodes, &bob, "node-1").await;
        for hash in [&id, &unknown] {
            // The node asks for the component, whoever has it.
            let mut frames = client.send(submission(hash, 5, "add").to_string().as_bytes()).await;
            assert_eq!(next(&mut frames).await, json!("send"), "{hash}");
            for chunk in [&b"bytes"[..], b""] {
                frames.send(chunk).await.unwrap();
            }
            let response = next(&mut frames).await;
            assert_eq!(refusal(&response), ("component", "the sent component is not the announced one"), "{hash}");
        }
        // The tenant that has sent it need not send it again.
        let client = Client::connect(&nodes, &ada, "node-1").await;
        let mut frames = client.send(submission(&id, bytes.len(), "spins").to_string().as_bytes()).await;
        let job = next(&mut frames).await;
        assert_eq!(job["job"]["state"], "running", "{job}");
    });
    let stored = files(&nodes, "1/components");
    assert!(stored.len() == 1 && stored[0].ends_with(&format!("/ada/{id}.wasm")), "{stored:?}");
    bob.host(&first, &["submit", &tasks("add"), "--arg", "a=1", "--arg", "b=2"]).expect_code(0);
    assert_eq!(files(&nodes, "1/components").len(), 2);
    // Nor is compiled code shared, as the time of a start would tell.
    let compiled = sandbar_tests::cache().join("sandbar/compiled/tenants");
    let folders = fs::read_dir(&compiled).unwrap_or_else(|e| panic!("{}: {e}", compiled.display())).flatten();
    let has_code = |folder: &fs::DirEntry| {
        let files = fs::read_dir(folder.path()).unwrap().flatten();
        files.map(|file| file.file_name()).any(|name| name.to_str().unwrap().starts_with(&id))
    };
    assert!(folders.filter(has_code).count() >= 2);
}

/// Uploads are bounded before their first byte, and leave nothing behind.
#[test]
fn refused_uploads_cost_nothing() {
    let nodes = Nodes::start(1);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let (first, process) = (nodes.address("node-1"), nodes.process("node-1"));
    bob.host(&first, &["jobs", "list"]).expect_code(0);
    let junk = nodes.lab.write("junk.wasm", vec![7; 60 << 20]);
    let too_large = nodes.lab.write("large.wasm", vec![7; 80 << 20]);
    let before_kib = status_kib(process, "VmRSS");
    let begun: Vec<_> = (0..6)
        .map(|number| {
            let file = if number % 2 == 0 { &junk } else { &too_large };
            ada.begin(&first, &["submit", file.to_str().unwrap()])
        })
        .collect();
    // Other tenants are served meanwhile.
    for _ in 0..5 {
        bob.host(&first, &["jobs", "list"]).expect_code(0);
    }
    let ended: Vec<CommandOutput> = begun.into_iter().map(|running| running.wait().expect_code(1)).collect();
    for (number, ended) in ended.into_iter().enumerate() {
        let text = if number % 2 == 0 {
            "[not-a-component] [component]"
        } else {
            "has 83886080 bytes, the limit of the tenant is"
        };
        ended.expect_stderr(&[text]);
    }
    let peak_kib = status_kib(process, "VmHWM");
    print_line(format_args!("memory of the node before: {before_kib} KiB, at most: {peak_kib} KiB"));
    assert!(peak_kib < before_kib + (200 << 10), "{before_kib} KiB, {peak_kib} KiB");
    assert_eq!(files(&nodes, "1/components"), [""; 0]);
    // One that is given up.
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        let mut frames = client.send(submission(&"12".repeat(32), 1 << 20, "main").to_string().as_bytes()).await;
        assert_eq!(next(&mut frames).await, json!("send"));
        frames.send(&[7; 100_000]).await.unwrap();
        until("a part has arrived", || files(&nodes, "1/components").len() == 1);
    });
    until("the part is deleted", || files(&nodes, "1/components").is_empty());
    // One that takes too long.
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        let mut frames = client.send(submission(&"12".repeat(32), 2, "main").to_string().as_bytes()).await;
        assert_eq!(next(&mut frames).await, json!("send"));
        frames.send(&[7]).await.unwrap();
        let response = next(&mut frames).await;
        assert!(response["later"].as_str().is_some_and(|why| why.contains("did not arrive within 15 s")), "{response}");
    });
    assert_eq!(files(&nodes, "1/components"), [""; 0]);
}

/// Requests that are malformed, too long, too deep or of other versions.
#[test]
fn malformed_requests_are_refused() {
    let nodes = Nodes::start(1);
    let ada = Tenant::new(&nodes, "ada");
    let deep =
        |depth: usize| format!(r#"{{"status":{{"job":"x","more":{}{}}}}}"#, "[".repeat(depth), "]".repeat(depth));
    let shallow = deep(50);
    let long = format!(r#"{{"status":{{"job":"{}"}}}}"#, "x".repeat(600 << 10));
    let long_name = format!(r#"{{"status":{{"job":"{}"}}}}"#, "x".repeat(500 << 10));
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        for (request, code, text) in [
            ("", "request", "can't be decoded"),
            ("\0", "request", "can't be decoded"),
            ("{}", "request", "can't be decoded"),
            ("null", "request", "can't be decoded"),
            (r#"{"status":{"job":"x"}"#, "request", "can't be decoded"),
            (r#"{"status":{"job":7}}"#, "request", "can't be decoded"),
            (r#"{"shutdown":{}}"#, "request", "unknown variant"),
            (r#"{"list":{"limit":-1}}"#, "request", "can't be decoded"),
            (r#"{"list":{"limit":4294967296}}"#, "request", "can't be decoded"),
            (r#"{"status":{"job":"x","from_the_future":[1,{}]}}"#, "no-job", "there is no job `x`"),
            (&shallow, "no-job", "there is no job `x`"),
            (&deep(10_000), "no-job", "there is no job `x`"),
            (&long, "request", "the limit is 524288"),
            (&long_name, "no-job", "there is no job `xxx"),
            (r#"{"look":{"job":"x","question":"stop"}}"#, "query", "can't stop"),
            (r#"{"look":{"job":"x","question":{"workers":{"limit":9}}}}"#, "query", "shared with other tenants"),
            (r#"{"look":{"job":"x","question":{"nodes":{"limit":9}}}}"#, "query", "shared with other tenants"),
        ] {
            let mut frames = client.send(request.as_bytes()).await;
            let response = next(&mut frames).await;
            let (actual, message) = refusal(&response);
            let shown: String = request.chars().take(80).collect();
            assert!(actual == code && message.contains(text) && message.len() < 1000, "{shown}: {response}");
        }
        // The connection serves further requests.
        assert_eq!(client.ask(&json!({ "list": { "limit": 5 } })).await, json!({ "jobs": [] }));
    });
}

/// Whatever the spelling, a job of a tenant opens no file of a node.
#[test]
fn tenants_open_no_files_of_nodes() {
    let nodes = Nodes::start(1);
    let ada = Tenant::new(&nodes, "ada");
    let first = nodes.address("node-1");
    // The folder in which the node runs.
    nodes.lab.write("secret", "a\nb\n");
    nodes.lab.write("@secret", "a\nb\n");
    let absolute = nodes.lab.path("secret").display().to_string();
    let program = format!("{}#one", component("tests/programs/files").display());
    let many = format!("{}#many", component("tests/programs/files").display());
    let refusal_of =
        |name: &str| format!("argument `{name}`: a job of a cluster can't open files of its nodes; `host submit");
    for value in ["@@secret", "@@@secret", &format!("@@{absolute}")] {
        for (program, name) in [(&program, "data"), (&many, "files")] {
            let argument = format!("{name}={value}");
            let line = ["submit", program, "--arg", &argument, "--arg", "tasks=1"];
            let line = if name == "data" { &line[..] } else { &line[..4] };
            ada.host(&first, line).expect_code(1).expect_stderr(&[&refusal_of(name), "[arguments]"]);
        }
    }
    // A client that sends no files.
    let bytes = fs::read(component("tests/programs/files")).unwrap();
    ada.host(&first, &["submit", &format!("{}#perhaps", component("tests/programs/files").display())]).expect_code(0);
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        for value in ["@secret", "@@secret", &format!("@{absolute}"), "@*", "@./@secret"] {
            for (task, name) in [("one", "data"), ("many", "files")] {
                let mut request = submission(&Compiler::id(&bytes).to_string(), bytes.len(), task);
                request["submit"]["arguments"] = json!([[name, value]]);
                let response = client.ask(&request).await;
                let (code, message) = refusal(&response);
                assert!(code == "arguments" && message.contains(&refusal_of(name)), "{value}: {response}");
            }
        }
    });
}

/// What operators and tenants do, and what they are refused, is in the audit log, which shows any change of it.
#[test]
fn the_audit_log_has_what_was_done_and_refused() {
    let nodes = Nodes::start(1);
    let address = nodes.address("node-1");
    let host = |line: &[&str]| nodes.lab.host(line);
    let token = nodes.lab.tenant_token("1", "ada", &["--role", "viewer"]);
    host(&["tenant", "set", "ada", "--weight", "7", "--data", "1"]).expect_code(0);
    host(&["tenant", "add", "ada", "--data", "1"]).expect_code(1);
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let of_ada = ["--node", &address, "--data", "ada", "--token", &token];
    host(&[&["submit", &program][..], &of_ada].concat()).expect_code(1).expect_stderr(&["[role]"]);
    let records = host(&["audit", "tail", "--json", "--data", "1", "--limit", "100"]).expect_code(0).json();
    let records: Vec<(&str, &str, &str)> = records["records"]
        .as_array()
        .expect("records")
        .iter()
        .map(|record| {
            let text = |field: &str| record[field].as_str().expect("a text");
            let by = record["by"].as_str().or_else(|| record["by"].as_object()?.keys().next().map(String::as_str));
            (by.expect("an actor"), text("action"), text("outcome"))
        })
        .collect();
    for expected in [
        ("operator", "add-tenant", "done"),
        ("operator", "create-token", "done"),
        ("operator", "set-tenant", "done"),
        ("operator", "add-tenant", "failed"),
        ("applicant", "certify-client", "done"),
        ("tenant", "submit", "role"),
    ] {
        assert!(records.contains(&expected), "{expected:?} is not in {records:?}");
    }
    let verified = host(&["audit", "verify", "--json", "--data", "1"]).expect_code(0).json();
    let head = verified["head"].as_str().expect("a hash").to_owned();
    assert_eq!(verified["records"], records.len());
    host(&["audit", "verify", "--contains", &head, "--data", "1"]).expect_code(0);
    let path = nodes.lab.path("1").join("audit/audit-000000000001.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"failed\"", "\"done\"", 1)).unwrap();
    host(&["audit", "verify", "--data", "1"]).expect_code(1).expect_stderr(&["was written after another line"]);
}
