//! The registry of a tenant's components: versions, jobs that name them, signatures, and what others see of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use sandbar_tests::{CommandOutput, component};
use sandbar_worker::Compiler;
use serde_json::json;

use crate::cluster::Nodes;
use crate::door::{files, refusal, runtime};
use crate::lifecycle::until;
use crate::takeover::Tenant;
use crate::tenant_api::Client;

/// Two keys of `openssl genpkey -algorithm ed25519`.
const KEYS: [&str; 2] = [
    "MC4CAQAwBQYDK2VwBCIEIJq8KYki7c5x9fDTOnHf93bRqTygDsSkX+8yMZ+MtInd",
    "MC4CAQAwBQYDK2VwBCIEIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
];
/// The public key of the first one.
const PUBLIC: &str = "7a435441be76099947999f4b00d4a700456d87c4dc1d61138508c5818b18fdb0";

fn path(name: &str) -> String {
    component(&format!("tests/programs/{name}")).to_str().unwrap().to_owned()
}

/// Runs `host component` as a client of a tenant.
fn command(tenant: &Tenant<'_>, node: &str, line: &[&str]) -> CommandOutput {
    tenant.host(node, &[&["component"], line].concat())
}

#[test]
fn jobs_name_registered_components() {
    let nodes = Nodes::start(3);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let [first, second, third] = ["node-1", "node-2", "node-3"].map(|name| nodes.address(name));
    let (tasks, streams) = (path("tasks"), path("streams"));
    let push = |path: &str, version: &str, code: i32, text: &str| {
        command(&ada, &first, &["push", path, version]).expect_code(code).expect_stderr(&[text]);
    };
    nodes.lab.write("junk.wasm", "junk");
    let expected = command(&ada, &first, &["push", &tasks, "tasks@1.0.0", "--json"]).expect_code(0).json();
    push(&streams, "tasks@1.0.0", 1, "tasks@1.0.0 is another component already");
    push("junk.wasm", "junk@1.0.0", 1, "[not-a-component]");
    push("nothing.wasm", "junk@1.0.0", 1, "nothing.wasm");
    push(&tasks, "tasks", 2, "NAME@VERSION");
    push(&tasks, "Tasks@1.0.0", 2, "a name has");
    // Pushed again, and as another version.
    push(&tasks, "tasks@1.0.0", 0, "");
    push(&streams, "tasks@2.0.0-rc.1", 0, "");
    let functions = expected["functions"].as_array().unwrap();
    assert!(functions.contains(&json!({ "name": "add", "kind": "task" })), "{functions:?}");
    let listed = command(&ada, &second, &["list", "--json"]).expect_code(0).json();
    assert_eq!((&listed["components"][0], listed["components"].as_array().unwrap().len()), (&expected, 2));
    let table = command(&ada, &second, &["list"]).expect_code(0).stdout;
    assert!(table.contains("VERSION") && table.contains("2.0.0-rc.1"), "{table}");
    assert_eq!(command(&ada, &third, &["show", "tasks", "--json"]).expect_code(0).json(), expected);
    // Each node runs it, also one that has no copy yet, for a client that has none either.
    let submit = |tenant: &Tenant<'_>, node: &str, program: &str| {
        tenant.host(node, &["submit", program, "--arg", "ms=1", "--json"])
    };
    for node in [&first, &second, &third] {
        for program in ["component:tasks@1.0.0#sleeps", "component:tasks#sleeps"] {
            assert_eq!(submit(&ada, node, program).expect_code(0).json()["result"], json!(1));
        }
    }
    for (program, text) in [
        ("component:tasks@3.0.0#sleeps", "there is no component tasks@3.0.0"),
        ("component:other#sleeps", "there is no component `other`"),
        ("component:tasks@1.0.0#nothing", "nothing"),
    ] {
        submit(&ada, &first, program).expect_code(1).expect_stderr(&[text]);
    }
    submit(&ada, &first, "component:Tasks#sleeps").expect_code(2).expect_stderr(&["a name has"]);
    nodes.lab.host(&["submit", "component:tasks#sleeps"]).expect_code(1).expect_stderr(&["with --node"]);
    // Downloads.
    command(&ada, &second, &["pull", "tasks@1.0.0", "-o", "pulled.wasm"]).expect_code(0);
    assert_eq!(fs::read(nodes.lab.path("pulled.wasm")).unwrap(), fs::read(&tasks).unwrap());
    command(&ada, &second, &["pull", "tasks@1.5.0", "-o", "no.wasm"]).expect_code(1).expect_stderr(&["tasks@1.5.0"]);
    // A yanked version is not used, and not replaced.
    command(&ada, &third, &["yank", "tasks@1.0.0"]).expect_code(0);
    submit(&ada, &first, "component:tasks@1.0.0#sleeps").expect_code(1).expect_stderr(&["was yanked", "[yanked]"]);
    push(&streams, "tasks@1.0.0", 1, "is another component already");
    command(&ada, &third, &["yank", "tasks@1.0.0", "--undo"]).expect_code(0);
    submit(&ada, &first, "component:tasks@1.0.0#sleeps").expect_code(0);
    // Another tenant has another registry, and the hash of a component is no right to it.
    let list = command(&bob, &first, &["list", "--json"]).expect_code(0).json();
    assert_eq!(list, json!({ "components": [] }));
    for line in [&["show", "tasks@1.0.0"][..], &["pull", "tasks@1.0.0", "-o", "x"], &["yank", "tasks@1.0.0"]] {
        let failed = command(&bob, &first, line).expect_code(1);
        failed.expect_stderr(&["there is no component tasks@1.0.0", "[no-component]"]);
    }
    command(&bob, &first, &["push", &streams, "tasks@1.0.0"]).expect_code(0);
    assert_eq!(command(&ada, &first, &["show", "tasks@1.0.0", "--json"]).expect_code(0).json(), expected);
    // With the tenant, all goes.
    nodes.lab.host(&["tenant", "remove", "ada", "--data", "1"]).expect_code(0);
    until("the components are removed", || files(&nodes, "1/components/ada").is_empty());
}

/// Registered components are there whatever else the tenant sends.
#[test]
fn registered_components_are_not_evicted() {
    let nodes = Nodes::start(1);
    let ada = Tenant::new(&nodes, "ada");
    let first = nodes.address("node-1");
    let set = ["tenant", "set", "ada", "--components-max", "2", "--data", "1"];
    nodes.lab.host(&set).expect_code(0);
    let push = |name: &str, version: &str| command(&ada, &first, &["push", &path(name), version]);
    push("tasks", "a@1.0.0").expect_code(0);
    let sent = ["streams", "actors", "files"].map(path);
    for program in &sent {
        // It has no such task, which the node finds out when it has the component.
        ada.host(&first, &["submit", &format!("{program}#nothing")]).expect_code(1);
    }
    ada.host(&first, &["submit", "component:a#sleeps", "--arg", "ms=1"]).expect_code(0);
    // The announced length counts against the limit.
    let bytes = fs::read(path("tasks")).unwrap();
    let request = |version: &str, length: usize| {
        let (component, name) = (Compiler::id(&bytes).to_string(), "small");
        let new =
            json!({ "name": name, "version": version, "component": component, "bytes": length, "signature": null });
        json!({ "push-component": new })
    };
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        for (version, length, code, text) in [
            ("1.0.0", 1, "component", "bytes, not 1"),
            ("1.0", bytes.len(), "request", "not a version"),
            ("1.0.0/x", bytes.len(), "request", "not a version"),
        ] {
            let response = client.ask(&request(version, length)).await;
            let (found, message) = refusal(&response);
            assert!(found == code && message.contains(text), "{version} {length}: {response}");
        }
    });
    push("streams", "b@1.0.0").expect_code(0);
    push("actors", "c@1.0.0").expect_code(1).expect_stderr(&["would have 3 registered components, the limit is 2"]);
    command(&ada, &first, &["yank", "a@1.0.0"]).expect_code(0);
    push("actors", "c@1.0.0").expect_code(0);
    let undo = command(&ada, &first, &["yank", "a@1.0.0", "--undo"]).expect_code(1);
    undo.expect_stderr(&["[component-limit]"]);
}

#[test]
fn with_a_key_jobs_use_signed_components_only() {
    let nodes = Nodes::start(1);
    let first = nodes.address("node-1");
    let admin = nodes.lab.tenant_token("1", "ada", &["--role", "admin"]);
    let client = |token: &str, folder: &str, node: &str, line: &[&str]| {
        nodes.lab.host(&[line, &["--node", node, "--data", folder, "--token", token]].concat())
    };
    let submitter = nodes.lab.tenant_token("1", "ada", &[]);
    let as_admin = |line: &[&str]| client(&admin, "admin", &first, &[&["component"], line].concat());
    let as_submitter = |line: &[&str]| client(&submitter, "submitter", &first, line);
    for (name, key) in ["own.pem", "other.pem"].into_iter().zip(KEYS) {
        let text = format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n");
        fs::set_permissions(nodes.lab.write(name, text), Permissions::from_mode(0o600)).unwrap();
    }
    fs::set_permissions(nodes.lab.write("open.pem", "x"), Permissions::from_mode(0o644)).unwrap();
    let (tasks, streams) = (path("tasks"), path("streams"));
    let run = |program: &str| as_submitter(&["submit", &format!("{program}#sleeps"), "--arg", "ms=1"]);
    run(&tasks).expect_code(0);
    as_submitter(&["component", "push", &tasks, "a@1.0.0"]).expect_code(0);
    // Keys are an admin's.
    let denied = as_submitter(&["component", "keys", "add", PUBLIC]).expect_code(1);
    denied.expect_stderr(&["needs the role `admin`"]);
    as_admin(&["keys", "add", "own.pem"]).expect_code(0);
    as_admin(&["keys", "add", "open.pem"]).expect_code(1).expect_stderr(&["is accessible to other users"]);
    as_admin(&["keys", "add", "12"]).expect_code(2).expect_stderr(&["64 hexadecimal digits"]);
    let keys = as_submitter(&["component", "keys", "list", "--json"]).expect_code(0).json();
    assert_eq!(keys["keys"][0]["key"], json!(PUBLIC));
    // Neither what was not signed, nor what is not registered.
    run(&tasks).expect_code(1).expect_stderr(&["a@1.0.0 is not signed", "[not-signed]"]);
    run(&streams).expect_code(1).expect_stderr(&["is not in the tenant's registry", "[not-signed]"]);
    run("component:a").expect_code(1).expect_stderr(&["[not-signed]"]);
    let push = |more: &[&str]| as_submitter(&[&["component", "push", &tasks, "a@1.0.0"], more].concat());
    push(&[]).expect_code(1).expect_stderr(&["[not-signed]"]);
    push(&["--key", "other.pem"]).expect_code(1).expect_stderr(&["which the tenant does not accept", "[signature]"]);
    push(&["--key", "own.pem"]).expect_code(0);
    run("component:a").expect_code(0);
    run(&tasks).expect_code(0);
    // A key that is removed has signed nothing.
    as_admin(&["keys", "add", "other.pem"]).expect_code(0);
    as_admin(&["keys", "remove", PUBLIC]).expect_code(0);
    run("component:a").expect_code(1).expect_stderr(&["which the tenant does not accept"]);
    as_admin(&["keys", "remove", "other.pem"]).expect_code(0);
    run("component:a").expect_code(0);
    // The audit log has the changes.
    let records = nodes.lab.host(&["audit", "tail", "--limit", "200", "--json", "--data", "1"]).expect_code(0).stdout;
    for action in ["add-component-key", "remove-component-key"] {
        assert!(records.contains(action), "{action}: {records}");
    }
}

#[test]
fn job_files_name_registered_components() {
    let nodes = Nodes::start(1);
    let ada = Tenant::new(&nodes, "ada");
    let first = nodes.address("node-1");
    let udf = component("tests/hostile/polite").to_str().unwrap().to_owned();
    command(&ada, &first, &["push", &udf, "polite@1.0.0"]).expect_code(0);
    nodes.lab.write("rows.csv", "k,x,y\na,1,2\na,2,4\nb,3,6\nb,4,8\n");
    let job = |component: &str| {
        format!(
            "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"{component}#batch_sleeps\"\n[train]\n\
             group_by = [\"k\"]\nfeatures = [\"x\"]\ntarget = \"y\"\ntest = 0\nmin_rows = 1\n\
             models = [{{ udf = \"{component}#fit_sleeps\" }}]\n[output]\npath = \"out.parquet\"\n"
        )
    };
    nodes.lab.write("by-path.toml", job(&udf));
    nodes.lab.write("by-name.toml", job("component:polite"));
    nodes.lab.write("unknown.toml", job("component:polite@2.0.0"));
    let submit = |file: &str| ada.host(&first, &["submit", file, "--json"]);
    let predictions = || {
        let predict = ["predict", "out.parquet", "--input", "rows.csv", "--output", "predicted.csv"];
        nodes.lab.host(&predict).expect_code(0);
        fs::read_to_string(nodes.lab.path("predicted.csv")).unwrap()
    };
    let job = submit("by-name.toml").expect_code(0).json();
    assert_eq!(job["job_file"]["components"][0]["found"], json!("component:polite@1.0.0"), "{job}");
    // The component was kept for predictions on this machine.
    let by_name = predictions();
    submit("by-path.toml").expect_code(0);
    assert_eq!(predictions(), by_name);
    submit("unknown.toml").expect_code(1).expect_stderr(&["there is no component polite@2.0.0"]);
    nodes.lab.host(&["submit", "by-name.toml"]).expect_code(1).expect_stderr(&["submit the job to it with --node"]);
}
