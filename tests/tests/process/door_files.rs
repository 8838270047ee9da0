//! Files and job files of tenants: what a client sends with a submission, and what comes back.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use sandbar_tests::{CommandOutput, Lab, component, print_line, taxi_files, taxi_line};
use sandbar_worker::Compiler;
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::door::{files, refusal, runtime};
use crate::lifecycle::until;
use crate::takeover::Tenant;
use crate::tenant_api::{Client, next};

fn program(task: &str) -> String {
    format!("{}#{task}", component("tests/programs/files").display())
}

/// Submits a program with these arguments, and returns the finished command.
fn submit(tenant: &Tenant<'_>, node: &str, task: &str, arguments: &[&str]) -> CommandOutput {
    let program = program(task);
    let mut line = vec!["submit", &program, "--json"];
    line.extend(arguments.iter().flat_map(|argument| ["--arg", *argument]));
    tenant.host(node, &line)
}

/// Returns the hash of bytes, as files and components have it.
fn hash(bytes: &[u8]) -> String {
    Compiler::id(bytes).to_string()
}

/// Returns the arguments that run the taxi example over these files with another seed.
fn taxi(files: &[PathBuf], output: &str, seed: u32) -> Vec<String> {
    let mut line = taxi_line(files);
    line.extend(["--output".to_owned(), output.to_owned(), "--set".to_owned(), format!("train.seed={seed}")]);
    // `taxi_line` names an output, too.
    let first = line.iter().position(|argument| argument == "--output").expect("an output");
    line.drain(first..first + 2);
    line
}

fn texts(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

#[test]
fn files_of_arguments_are_sent() {
    let nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    for bytes in [0, 5000, 3 << 20] {
        nodes.lab.write("data.bin", vec![3; bytes]);
        let job = submit(&ada, &first, "one", &["data=@./data.bin", "tasks=5"]).expect_code(0).json();
        assert_eq!(job["result"], json!(["data.bin", 3 * bytes, true]), "{job}");
    }
    (0..30).for_each(|file| drop(nodes.lab.write(&format!("in/{file:02}.csv"), vec![file; 10])));
    let sum: u32 = (0..30).map(|file| file * 10).sum();
    for files in ["files=@in/*.csv", "files=@in"] {
        let job = submit(&ada, &second, "many", &[files]).expect_code(0).json();
        assert_eq!(job["result"], json!([30, sum, []]), "{job}");
    }
    assert_eq!(submit(&ada, &first, "perhaps", &[]).expect_code(0).json()["result"], json!(null));
    // Each is on the node that ran the job and on one more, once.
    for data in ["1", "2"] {
        assert_eq!(files(&nodes, &format!("{data}/files/ada")).len(), 33, "{data}");
    }
    for (task, argument, expected_text) in [
        ("one", "data=@nothing.csv", "nothing.csv: there is no such file or folder [input]"),
        ("one", "data=@in", "`@in` matches 30 files, the argument takes one"),
        ("one", "tasks=@data.bin", "argument `tasks` has type u64: `@PATH` needs type `File` or `Files`"),
        ("texts", "text=@data.bin", "argument `text` has type String"),
        ("one", "date=@data.bin", "has no argument `date`"),
    ] {
        submit(&ada, &first, task, &[argument]).expect_code(1).expect_stderr(&[expected_text]);
    }
    let job = submit(&ada, &first, "texts", &["text=@@home", "other=5"]).expect_code(0).json();
    assert_eq!(job["result"], json!(["@home", "5"]));
}

/// Returns a request to submit the program `files#one` with these files for its argument `data`.
fn submission(component: &[u8], value: &str, sent: &[(&str, usize)]) -> Value {
    let argument = |(file, bytes): &(&str, usize)| json!({ "name": "x", "file": file, "bytes": bytes });
    let sent: Vec<Value> = sent.iter().map(argument).collect();
    let sent = if sent.is_empty() { json!([]) } else { json!([{ "argument": "data", "files": sent }]) };
    json!({ "submit": {
        "key": format!("k{}", KEYS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
        "program": "p",
        "component": hash(component),
        "component_bytes": component.len(),
        "task": "one",
        "arguments": [["data", value], ["tasks", "1"]],
        "files": sent,
    }})
}

static KEYS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The hash of a file is no right to it, and does not tell whether another tenant has it. What is refused leaves nothing.
#[test]
fn files_belong_to_their_tenants_and_have_a_quota() {
    let nodes = Nodes::start(1);
    let [ada, bob] = ["ada", "bob"].map(|name| Tenant::new(&nodes, name));
    let first = nodes.address("node-1");
    let bytes = fs::read(component("tests/programs/files")).unwrap();
    nodes.lab.write("data.bin", "abc");
    for tenant in [&ada, &bob] {
        // Both send the component.
        submit(tenant, &first, "texts", &["text=a"]).expect_code(0);
    }
    submit(&ada, &first, "one", &["data=@data.bin", "tasks=1"]).expect_code(0);
    let (known, unknown) = (hash(b"abc"), "12".repeat(32));
    let left = || files(&nodes, "1/files").len();
    runtime().block_on(async {
        let client = Client::connect(&nodes, &bob, "node-1").await;
        for file in [&known, &unknown] {
            let mut frames = client.send(submission(&bytes, "@x", &[(file, 3)]).to_string().as_bytes()).await;
            assert_eq!(next(&mut frames).await, json!({ "send-content": file }));
            for chunk in [&b"xyz"[..], b""] {
                frames.send(chunk).await.unwrap();
            }
            assert_eq!(refusal(&next(&mut frames).await), ("file", "the sent file is not the announced one"));
        }
        // More than announced, and less.
        for sent in [&b"abcd"[..], b"ab"] {
            let mut frames = client.send(submission(&bytes, "@x", &[(&known, 3)]).to_string().as_bytes()).await;
            assert_eq!(next(&mut frames).await, json!({ "send-content": known }));
            for chunk in [sent, b""] {
                frames.send(chunk).await.unwrap();
            }
            assert_eq!(refusal(&next(&mut frames).await).0, "file");
        }
        assert_eq!(left(), 1);
        // The tenant that has sent it need not send it again.
        let own = Client::connect(&nodes, &ada, "node-1").await;
        let response = own.ask(&submission(&bytes, "@x", &[(&known, 3)])).await;
        assert!(response["job"]["id"].is_string(), "{response}");
        // Files that do not fit the arguments are not asked for.
        for (value, sent, text) in [
            ("@x", &[(&*unknown, 3), (&*known, 3)][..], "`@x` matches 2 files"),
            ("x", &[(&unknown, 3)], "has files, and no `@PATH`"),
            ("@x", &[], "can't open files of its nodes"),
        ] {
            let response = client.ask(&submission(&bytes, value, sent)).await;
            let (code, message) = refusal(&response);
            assert!(code == "arguments" && message.contains(text), "{response}");
        }
        // One that is given up.
        let giving_up = Client::connect(&nodes, &bob, "node-1").await;
        let request = submission(&bytes, "@x", &[(&unknown, 1 << 20)]);
        let mut frames = giving_up.send(request.to_string().as_bytes()).await;
        assert_eq!(next(&mut frames).await, json!({ "send-content": unknown }));
        frames.send(&[7; 100_000]).await.unwrap();
        until("a part has arrived", || left() == 2);
    });
    until("the part is deleted", || left() == 1);
    let quota = ["tenant", "set", "bob", "--file-bytes-max", "1000", "--files-bytes-max", "1500", "--data", "1"];
    nodes.lab.host(&quota).expect_code(0);
    std::thread::sleep(Duration::from_secs(2));
    let sized = |name: &str, bytes: usize, content: u8| nodes.lab.write(name, vec![content; bytes]);
    sized("large", 1001, 1);
    submit(&bob, &first, "one", &["data=@large", "tasks=1"])
        .expect_code(1)
        .expect_stderr(&["the file has 1001 bytes, the limit of the tenant is 1000 [file]"]);
    (0..4).for_each(|number| drop(sized(&format!("many/{number}"), 400, number)));
    submit(&bob, &first, "many", &["files=@many"])
        .expect_code(1)
        .expect_stderr(&["the files of the job have 1600 bytes, the limit of the tenant is 1500"]);
    // The files of ended jobs are evicted.
    for content in 2..6 {
        sized("data.bin", 900, content);
        let job = submit(&bob, &first, "one", &["data=@data.bin", "tasks=1"]).expect_code(0).json();
        assert_eq!(job["result"][1], json!(900 * u32::from(content)));
        assert_eq!(files(&nodes, "1/files/bob").len(), 1);
    }
    // One that takes too long.
    runtime().block_on(async {
        let client = Client::connect(&nodes, &bob, "node-1").await;
        let request = submission(&bytes, "@x", &[(&unknown, 2)]);
        let mut frames = client.send(request.to_string().as_bytes()).await;
        assert_eq!(next(&mut frames).await, json!({ "send-content": unknown }));
        frames.send(&[7]).await.unwrap();
        let response = next(&mut frames).await;
        assert!(response["later"].as_str().is_some_and(|why| why.contains("did not arrive within 15 s")), "{response}");
    });
    assert_eq!(files(&nodes, "1/files/ada"), files(&nodes, "1/files").into_iter().take(1).collect::<Vec<_>>());
    nodes.lab.host(&["tenant", "remove", "ada", "--data", "1"]).expect_code(0);
    until("its files are removed", || files(&nodes, "1/files/ada").is_empty());
}

/// Runs a job file on this machine alone, and returns the bytes of its output.
fn alone(line: &[String], output: &str) -> Vec<u8> {
    let lab = Lab::new();
    lab.host(&texts(line)).expect_code(0);
    fs::read(lab.path(output)).expect("an output")
}

fn read(lab: &Lab, path: &str) -> Vec<u8> {
    fs::read(lab.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn job_files_run_in_a_cluster_as_on_one_machine() {
    let nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    let line = taxi(taxi_files(), "models.parquet", 7);
    let expected = alone(&line, "models.parquet");
    let ended = ada.host(&first, &texts(&line)).expect_code(0);
    let job = ended.json();
    assert_eq!(read(&nodes.lab, "models.parquet"), expected, "{job}");
    assert_eq!(
        (&job["state"], &job["result"]["failed"], &job["node"]),
        (&json!("succeeded"), &json!(0), &json!("node-1"))
    );
    assert_eq!(job["output"]["file"], json!(hash(&expected)));
    assert!(job["result"]["models"].as_u64() > Some(100), "{job}");
    // The output is there for all who may read the tenant's jobs, from any node.
    let id = job["id"].as_str().expect("an id");
    let viewer = nodes.lab.tenant_token("1", "ada", &["--role", "viewer"]);
    let download = |token: &str, folder: &str, node: &str, path: &str| {
        let line = ["jobs", "output", id, "--output", path, "--node", node, "--token", token, "--data", folder];
        nodes.lab.host(&line)
    };
    download(&viewer, "viewer", &first, "again/models.parquet").expect_code(0).expect_stderr(&["output: again/models"]);
    assert_eq!(read(&nodes.lab, "again/models.parquet"), expected);
    download(&viewer, "viewer", &second, "again/models.parquet").expect_code(0);
    let bob = Tenant::new(&nodes, "bob");
    download(&bob.token, "bob", &first, "stolen.parquet").expect_code(1).expect_stderr(&["there is no job"]);
    assert!(!nodes.lab.path("stolen.parquet").exists());
    // Rows, and the same files under other names.
    nodes.lab.write("rows/a.csv", "k,x\n1,2\n3,4\n");
    nodes.lab.write("rows/b.csv", "k,x\n1,2\n3,4\n");
    let rows = "[input]\npaths = [\"rows/*.csv\"]\nfilter = \"k > 1\"\n[output]\npath = \"out/rows.csv\"\n";
    nodes.lab.write("rows.toml", rows);
    let ended = ada.host(&second, &["submit", "rows.toml"]).expect_code(0);
    assert_eq!(ended.stdout, "2 rows\nrows: out/rows.csv (2 rows, 12 B)\n", "{}", ended.stderr);
    assert_eq!(read(&nodes.lab, "out/rows.csv"), b"k,x\n3,4\n3,4\n");
    // Mistakes have the messages of a local run.
    for (set, code, expected_text) in [
        ("input.paths=[\"nothing.csv\"]", 1, "`--set input.paths=…` names it: there is no such file"),
        ("input.paths=[\"https://127.0.0.1/a.csv\"]", 1, "a cluster reads no URLs for its tenants"),
        ("filter=\"k > 1\"", 2, "unknown field `filter`"),
        ("input.filter=\"z > 1\"", 1, "[columns]"),
        ("transform=[{udf=\"nothing#f\"}]", 1, "there is no component or crate `nothing`"),
        ("output.partition_by=[\"k\"]", 1, "`output.partition_by` is not supported by clusters"),
        ("limits.time_ms_max=0", 2, "`limits.time_ms_max` is 0"),
    ] {
        let ended = ada.host(&first, &["submit", "rows.toml", "--set", set, "--output", "none.csv"]);
        assert_eq!(ended.status.code(), Some(code), "{set}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected_text), "{set}: {}", ended.stderr);
        let own_path = nodes.lab.path("1");
        assert!(!ended.stderr.contains(own_path.to_str().expect("a path")), "{set}: {}", ended.stderr);
    }
    assert!(!nodes.lab.path("none.csv").exists());
    // What is over the limit of an output.
    let quota = ["tenant", "set", "ada", "--file-bytes-max", "10", "--data", "1"];
    nodes.lab.host(&quota).expect_code(0);
    std::thread::sleep(Duration::from_secs(2));
    nodes.lab.write("rows/b.csv", "k,x\n5,6\n");
    nodes.lab.write("rows/a.csv", "k,x\n7,8\n");
    let ended = ada.host(&first, &["submit", "rows.toml"]).expect_code(1);
    assert!(ended.stderr.contains("12 bytes"), "{}", ended.stderr);
}

#[test]
fn predictions_of_a_cluster_are_those_of_one_machine() {
    let nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let [first, second] = ["node-1", "node-2"].map(|name| nodes.address(name));
    ada.host(&first, &texts(&taxi(taxi_files(), "models.parquet", 7))).expect_code(0);
    let input = taxi_files()[0].to_str().expect("a path");
    let predict =
        |more: &[&'static str]| [&["predict", "models.parquet", "--input", input, "--output"][..], more].concat();
    let local = nodes.lab.host(&predict(&["local.csv"])).expect_code(0);
    let ended = ada.host(&second, &predict(&["out/remote.csv"])).expect_code(0);
    assert_eq!(read(&nodes.lab, "out/remote.csv"), read(&nodes.lab, "local.csv"));
    // The same words, but for times and paths.
    let counts = |text: &str| text.split_once("; ").expect("counts").1.split([';', '\n']).next().map(str::to_owned);
    assert_eq!(counts(&ended.stdout), counts(&local.stdout), "{} and {}", ended.stdout, local.stdout);
    let job = ada.host(&second, &predict(&["again.csv", "--json"])).expect_code(0).json();
    assert_eq!((&job["state"], &job["result"]["failed"]), (&json!("succeeded"), &json!(0)), "{job}");
    let expected = nodes.lab.host(&predict(&["local.csv", "--json"])).expect_code(0).json();
    for field in ["rows", "rows_written", "without_model", "bytes"] {
        assert_eq!(job["result"][field], expected[field], "{field}");
    }
    // Without waiting, the predictions are fetched later.
    let id = ada.host(&first, &predict(&["later.csv", "--no-wait"])).expect_code(0).stdout;
    until("they are there", || ada.status(&first, id.trim())["state"] == "succeeded");
    ada.host(&second, &["jobs", "output", id.trim(), "--output", "later.csv"]).expect_code(0);
    assert_eq!(read(&nodes.lab, "later.csv"), read(&nodes.lab, "local.csv"));
    // Mistakes have the messages of a local run.
    for (line, code, expected_text) in [
        (&["predict", input, "--input", input, "--output", "none.csv"][..], 2, "it lacks the metadata of a job"),
        (&["predict", "nothing.parquet", "--input", input, "--output", "none.csv"], 1, "nothing.parquet"),
        (&predict(&["none.csv", "--model", "nothing"]), 1, "it has no models `nothing`"),
        (&predict(&["none.xyz"]), 1, "xyz"),
        (&predict(&["none.csv", "--workers", "1"]), 2, "--workers can't be set with --node"),
        (&predict(&["none.csv", "--input", "nothing.csv"]), 1, "`--input` names it: there is no such file"),
    ] {
        let ended = ada.host(&first, line);
        assert_eq!(ended.status.code(), Some(code), "{line:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected_text), "{line:?}: {}", ended.stderr);
        let own_path = nodes.lab.path("1");
        assert!(!ended.stderr.contains(own_path.to_str().expect("a path")), "{line:?}: {}", ended.stderr);
    }
    assert!(!nodes.lab.path("none.csv").exists());
    // Models use no component that did not come with them, though their tenant and the node have it; nor are models what
    // their metadata's hash alone says.
    let work = ada.status(&first, job["id"].as_str().expect("an id"))["prediction"].clone();
    runtime().block_on(async {
        let client = Client::connect(&nodes, &ada, "node-1").await;
        for (change, expected_text) in [
            ("components", "did not come with the models"),
            ("models", "it is no output of `host submit`, which is a Parquet file"),
        ] {
            let mut changed = work.clone();
            match change {
                "components" => changed["components"] = json!([]),
                _ => {
                    changed["models"]["file"] = json!(hash(b"k"));
                    changed["models"]["bytes"] = json!(1);
                }
            }
            let request = json!({ "submit": { "key": change, "program": "p", "prediction": changed } });
            let mut frames = client.send(request.to_string().as_bytes()).await;
            let mut response = next(&mut frames).await;
            if response["send-content"].is_string() {
                for chunk in [&b"k"[..], b""] {
                    frames.send(chunk).await.unwrap();
                }
                response = next(&mut frames).await;
            }
            let id = response["job"]["id"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned();
            until("it has failed", || ada.status(&first, &id)["state"] == "failed");
            let error = ada.status(&first, &id)["error"].to_string();
            assert!(error.contains(expected_text), "{error}");
        }
    });
}

#[test]
fn job_files_are_stopped_and_leave_nothing() {
    let nodes = Nodes::start(1);
    let ada = Tenant::new(&nodes, "ada");
    let first = nodes.address("node-1");
    nodes.lab.write("rows.csv", "k,x\n1,2\n");
    let loops = component("tests/hostile/polite");
    let job = format!(
        "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"{}#batch_loops\"\n[output]\npath = \"out.csv\"\n",
        loops.display()
    );
    nodes.lab.write("job.toml", job);
    let submit = || {
        let line = ["submit", "job.toml", "--no-wait"];
        ada.host(&first, &line).expect_code(0).stdout.trim().to_owned()
    };
    // One runs, the other waits for its turn.
    let ids = [submit(), submit()];
    until("both are running", || ids.iter().all(|id| ada.status(&first, id)["state"] == "running"));
    ada.host(&first, &["list", "tasks", "--job", &ids[0]]).expect_code(1).expect_stderr(&["has no tasks"]);
    for id in &ids {
        ada.host(&first, &["jobs", "stop", id]).expect_code(0).expect_stderr(&["stopped"]);
    }
    let line = ["jobs", "output", &ids[0], "--output", "out.csv"];
    ada.host(&first, &line).expect_code(1).expect_stderr(&["(stopped) has no output", "[no-output]"]);
    until("only the input is left", || files(&nodes, "1/files/ada").len() == 1);
    // The workers are free.
    let identity = "[input]\npaths = [\"rows.csv\"]\n[output]\npath = \"out.csv\"\n";
    nodes.lab.write("identity.toml", identity);
    ada.host(&first, &["submit", "identity.toml"]).expect_code(0);
    assert_eq!(read(&nodes.lab, "out.csv"), b"k,x\n1,2\n");
}

/// Writes a job whose 25 batches take tens or hundreds of milliseconds each.
fn write_slow_job(lab: &Lab) {
    let rows: String =
        (0..400_000).map(|row| format!("{},{},{}\n", row % 7, row % 1000, 3 * (row % 1000) + 1)).collect();
    let job = format!(
        "[input]\npaths = [\"slow.csv\"]\n[[transform]]\nudf = \"{}#batch_dawdles\"\n[train]\ngroup_by = [\"k\"]\n\
         features = [\"x\"]\ntarget = \"y\"\nmodels = [{{ udf = \"{}#linear\" }}, {{ udf = \"{}#tree\" }}]\n\
         [output]\npath = \"slow.parquet\"\n",
        component("tests/hostile/polite").display(),
        component("udfs/models").display(),
        component("udfs/models").display(),
    );
    lab.write("slow.csv", format!("k,x,y\n{rows}"));
    lab.write("slow.toml", job);
}

#[test]
fn another_node_takes_a_job_file_over() {
    let mut nodes = Nodes::start(3);
    let [first, third] = ["node-1", "node-3"].map(|name| nodes.address(name));
    let lab = Lab::new();
    write_slow_job(&lab);
    lab.host(&["submit", "slow.toml"]).expect_code(0);
    let expected = read(&lab, "slow.parquet");
    write_slow_job(&nodes.lab);
    let (job, token) = {
        let ada = Tenant::new(&nodes, "ada");
        ada.host(&first, &["jobs", "list"]).expect_code(0);
        let job = ada.begin(&third, &["submit", "slow.toml", "--json"]);
        until("it is followed", || job.stderr_so_far().contains("reading: "));
        (job, ada.token)
    };
    nodes.kill("node-3");
    let ended = job.wait().expect_code(0).expect_stderr(&["has taken the job over"]);
    let json = ended.json();
    assert_eq!((&json["taken"], &json["counts"]["takeovers"]), (&json!(2), &json!(1)), "{json}");
    assert_eq!(read(&nodes.lab, "slow.parquet"), expected);
    let ada = Tenant::known(&nodes, "ada", &token);
    assert_ne!(ada.status(&first, json["id"].as_str().expect("an id"))["node"], "node-3");
}

/// Eight tenants train at the same time on three nodes, one of which is killed. One of the tenants is hostile.
#[test]
fn tenants_train_beside_a_hostile_one_and_the_loss_of_a_node() {
    let mut nodes = Nodes::start(3);
    let addresses = ["node-1", "node-2", "node-3"].map(|name| nodes.address(name));
    let names = ["t1", "t2", "t3", "t4", "t5", "t6", "t7"];
    let functions = ["tests/hostile/polite", "udfs/taxi"].map(|folder| component(folder).display().to_string());
    let [polite, clean] = &functions;
    let line = |number: usize| {
        let mut line = taxi(taxi_files(), &format!("models-{number}.parquet"), number as u32);
        // It takes long enough to be running when its node is killed.
        let slow = format!("transform=[{{udf=\"{polite}#batch_dawdles\"}},{{udf=\"{clean}#clean\"}}]");
        line.extend(["--set".to_owned(), slow]);
        line
    };
    let expected: Vec<Vec<u8>> =
        (0..names.len()).map(|number| alone(&line(number), &format!("models-{number}.parquet"))).collect();
    let running = {
        let all: Vec<Tenant<'_>> = names.iter().map(|name| Tenant::new(&nodes, name)).collect();
        let hostile = Tenant::new(&nodes, "mallory");
        hostile.host(&addresses[0], &["jobs", "list"]).expect_code(0);
        for tenant in &all {
            tenant.host(&addresses[0], &["jobs", "list"]).expect_code(0);
        }
        nodes.lab.write("rows.csv", "k,x\n1,2\n");
        for function in ["batch_loops", "batch_takes_memory"] {
            let rows = format!(
                "[input]\npaths = [\"rows.csv\"]\n[[transform]]\nudf = \"{polite}#{function}\"\n[output]\npath = \"x.csv\"\n"
            );
            nodes.lab.write(&format!("{function}.toml"), rows);
        }
        let spins = format!("{}#spins", component("tests/programs/tasks").display());
        for address in &addresses {
            for job in ["batch_loops.toml", "batch_takes_memory.toml", &spins, &spins] {
                hostile.host(address, &["submit", job, "--no-wait"]).expect_code(0);
            }
        }
        let begun = all.iter().enumerate().map(|(number, tenant)| {
            let line = line(number);
            tenant.begin(&addresses[number % 3], &texts(&line))
        });
        let begun: Vec<_> = begun.collect();
        until("all are submitted", || begun.iter().all(|job| job.stderr_so_far().contains("Ctrl-C detaches")));
        begun
    };
    // The clients learn of the other nodes.
    std::thread::sleep(Duration::from_secs(2));
    nodes.kill("node-3");
    for (number, job) in running.into_iter().enumerate() {
        let json = job.wait().expect_code(0).json();
        print_line(format_args!("tenant {}: {} runs, at last on {}", names[number], json["taken"], json["node"]));
        let path = format!("models-{number}.parquet");
        assert_eq!(read(&nodes.lab, &path), expected[number], "{json}");
    }
    // The nodes have survived the hostile tenant.
    assert!(nodes.running[..2].iter_mut().all(|node| !node.has_ended()));
}
