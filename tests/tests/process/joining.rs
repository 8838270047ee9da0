//! Joining a cluster as a node or a tenant: all addresses of a name, unique node names, and the message and timing of a
//! rejection.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbar_tests::{CommandOutput, Lab, Running, component, host, print_line};
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::lifecycle::until;
use crate::takeover::Tenant;

/// Starts the founder of a cluster with the data folder `1`, listening at `listen`.
fn founder(lab: &Lab, listen: &str) -> (Running, String) {
    lab.host(&["cluster", "init", "--data", "1"]).expect_code(0);
    let line = ["serve", "--data", "1", "--name", "first", "--workers", "1", "--listen", listen];
    let node = lab.start(&line);
    until("the founder is there", || nodes(lab, "1").len() == 1);
    let port = nodes(lab, "1")[0]["address"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    (node, port)
}

fn nodes(lab: &Lab, data: &str) -> Vec<Value> {
    let listed = lab.host(&["nodes", "list", "--json", "--data", data]);
    match listed.status.code() {
        Some(0) => listed.json()["nodes"].as_array().expect("a list").clone(),
        _ => Vec::new(),
    }
}

fn token(lab: &Lab) -> String {
    lab.host(&["cluster", "token", "--data", "1"]).expect_code(0).stdout.trim().to_owned()
}

/// Starts a node that joins, with its own data folder.
fn joins(lab: &Lab, data: &str, address: &str, more: &[&str]) -> Running {
    let line = ["serve", "--data", data, "--workers", "1", "--join", address, "--token", &token(lab)];
    lab.start(&[&line[..], more].concat())
}

/// Interrupts a node as Ctrl-C does, and returns its log.
fn log_of(node: Running) -> String {
    node.interrupt();
    node.wait().stderr
}

/// Returns whether the machine has IPv6, which may be disabled.
fn has_ipv6() -> bool {
    let has = UdpSocket::bind("[::1]:0").is_ok();
    if !has {
        print_line(format_args!("this machine has no IPv6: what is about it is left out"));
    }
    has
}

/// Returns a command of the host in its own mount namespace, where `localhost` resolves to these addresses, or `None`
/// if no namespace can be created.
fn with_localhost(lab: &Lab, addresses: &[&str], line: &[&str]) -> Option<Command> {
    let hosts: String = addresses.iter().map(|address| format!("{address} localhost\n")).collect();
    let hosts = lab.write("hosts", hosts);
    let command = lab.command(line);
    let script = format!("mount --bind '{}' /etc/hosts && exec \"$0\" \"$@\"", hosts.display());
    let can = Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|ended| ended.status.success());
    if !can {
        print_line(format_args!("no namespace of mounts can be made here: what is about names is left out"));
        return None;
    }
    let mut within = Command::new("unshare");
    within.args(["-m", "bash", "-c", &script]).arg(host()).args(line);
    within.current_dir(command.get_current_dir().unwrap());
    within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(within)
}

#[test]
fn nodes_and_tenants_meet_by_either_family() {
    if !has_ipv6() {
        return;
    }
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let job = ["submit", &program, "--arg", "depth=1", "--arg", "width=5", "--arg", "steps=1", "--json", "--node"];
    for (listen_address, others) in [
        // Other processes may use the port of the default address: the case uses a free port of the same address.
        ("[::]:0", &["[::1]", "127.0.0.1"][..]),
        ("[::1]:0", &["[::1]"]),
        ("127.0.0.1:0", &["127.0.0.1"]),
        ("localhost:0", &["localhost"]),
    ] {
        let lab = Lab::new();
        let (_founder, port) = founder(&lab, listen_address);
        for (number, other) in others.iter().enumerate() {
            let (address, data) = (format!("{other}:{port}"), format!("node-{number}"));
            // Nodes listen at all addresses of both families, and at one address of either family.
            for (which, listen) in ["[::]:0", "127.0.0.1:0", "[::1]:0"].into_iter().enumerate() {
                let data = format!("{data}-{which}");
                let node = joins(&lab, &data, &address, &["--listen", listen, "--name", &data]);
                until("the node is a member", || nodes(&lab, &data).len() == 2);
                let log = log_of(node);
                assert!(log.contains("connected to node `first`") && !log.contains("invalid"), "{log}");
                until("the node has left", || nodes(&lab, "1").len() == 1);
            }
            let token = lab.tenant_token("1", "ada", &[]);
            let ada = ["--data", "ada", "--token", &token];
            let ended = lab.host(&[&job[..], &[&address], &ada].concat()).expect_code(0);
            assert_eq!(ended.json()["result"], json!(5), "{listen_address} {address}");
        }
    }
}

/// A node listens on the second of two addresses of a name: joining tries both.
#[test]
fn all_addresses_of_a_name_are_tried() {
    if !has_ipv6() {
        return;
    }
    for (listen_address, addresses) in [("0.0.0.0:0", ["::1", "127.0.0.1"]), ("[::1]:0", ["127.0.0.1", "::1"])] {
        let lab = Lab::new();
        let (_founder, port) = founder(&lab, listen_address);
        let (address, node_token) = (format!("localhost:{port}"), token(&lab));
        let line = ["serve", "--data", "2", "--listen", "[::]:0", "--join", &address, "--token", &node_token];
        let Some(command) = with_localhost(&lab, &addresses, &line) else { return };
        let node = Running::new(command);
        until("the node is a member", || nodes(&lab, "1").len() == 2);
        drop(node);
        let token = lab.tenant_token("1", "ada", &[]);
        let line = ["jobs", "list", "--data", "ada", "--token", &token, "--node", &address];
        Running::new(with_localhost(&lab, &addresses, &line).unwrap()).wait().expect_code(0);
    }
}

/// Runs a command that has to fail, and checks that it gives the reason in `expected_texts` and ends in less than `within`.
#[track_caller]
fn gives_up(lab: &Lab, line: &[&str], within: Duration, expected_texts: &[&str]) -> CommandOutput {
    let ended = lab.host(line).expect_code(1).expect_stderr(expected_texts);
    assert!(ended.duration < within, "{}: {:?}\n{}", ended.line, ended.duration, ended.stderr);
    ended
}

#[test]
fn waiting_for_a_node_is_announced() {
    let lab = Lab::new();
    let (founder, port) = founder(&lab, "127.0.0.1:0");
    let first = format!("127.0.0.1:{port}");
    // Receives datagrams and never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let closed = {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().to_string()
    };
    let [node_token, ada] = [token(&lab), lab.tenant_token("1", "ada", &[])];
    lab.host(&["jobs", "list", "--data", "ada", "--token", &ada, "--node", &first]).expect_code(0);
    let program = component("tests/programs/tasks").display().to_string();
    let second = Duration::from_secs;
    let of_program = format!("{program}#add");
    for (address, expected_texts) in [(&silent, "no answer from"), (&closed, "refuses: nothing listens")] {
        let trying = format!("trying {address}, for up to 2 s");
        for command in [&["submit", &of_program][..], &["jobs", "list"], &["jobs", "status"], &["jobs", "stop", "x"]] {
            let line = [command, &["--data", "ada", "--node", address, "--connect-timeout", "2s"]].concat();
            gives_up(&lab, &line, second(8), &[expected_texts, &trying]);
        }
        let line = ["serve", "--data", "x", "--join", address, "--token", &node_token, "--join-timeout", "2s"];
        gives_up(
            &lab,
            &[&line[..], &["--listen", "127.0.0.1:0"]].concat(),
            second(12),
            &[expected_texts, &trying, "given up after"],
        );
    }
    let quiet = ["submit", &of_program, "-q", "--data", "ada", "--node", &closed, "--connect-timeout", "1s"];
    let talk = lab.host(&quiet).expect_code(1).stderr;
    assert!(!talk.contains("trying 1"), "{talk}");
    let unknown = ["jobs", "list", "--data", "ada", "--node", "no-such-host.invalid:7410", "--connect-timeout", "2s"];
    gives_up(&lab, &unknown, second(20), &["no-such-host.invalid:7410: the name can't be resolved"]);
    drop(founder);
}

/// Errors that can't go away are not retried, whatever time remains.
#[test]
fn members_of_another_cluster_are_rejected_at_once() {
    let (lab, other) = (Lab::new(), Lab::new());
    let (_first, port) = founder(&lab, "127.0.0.1:0");
    let (_second, other_port) = founder(&other, "127.0.0.1:0");
    let [first, second] = [port, other_port].map(|port| format!("127.0.0.1:{port}"));
    let ada = lab.tenant_token("1", "ada", &[]);
    lab.host(&["jobs", "list", "--data", "ada", "--token", &ada, "--node", &first]).expect_code(0);
    let quickly = Duration::from_secs(5);
    // A certificate, a token and a folder of another cluster.
    let program = format!("{}#add", component("tests/programs/tasks").display());
    gives_up(&lab, &["submit", &program, "--data", "ada", "--node", &second], quickly, &["join that cluster first"]);
    let foreign = other.tenant_token("1", "ada", &[]);
    let line = ["jobs", "list", "--data", "ada", "--token", &foreign, "--node", &second];
    gives_up(&lab, &line, quickly, &["ada has a certificate of cluster", "and the token is for cluster", "--data"]);
    let line = ["jobs", "list", "--data", "new", "--token", &foreign, "--node", &first];
    gives_up(&lab, &line, quickly, &["token's cluster"]);
    let node_token = token(&other);
    let line = ["serve", "--data", "2", "--listen", "127.0.0.1:0", "--join", &first, "--token", &node_token];
    gives_up(&lab, &line, quickly, &["token's cluster"]);
    // A token of the wrong kind.
    let node_token = token(&lab);
    let line = ["jobs", "list", "--data", "bob", "--token", &node_token, "--node", &first];
    gives_up(&lab, &line, quickly, &["a tenant's token is required"]);
    let line = ["serve", "--data", "2", "--listen", "127.0.0.1:0", "--join", &first, "--token", &ada];
    gives_up(&lab, &line, quickly, &["is for a tenant, not for a node"]);
    // The founder logs why it rejected a node.
    let node = joins(&lab, "2", &first, &["--listen", "127.0.0.1:0", "--name", "second"]);
    until("the node is a member", || nodes(&lab, "1").len() == 2);
    let line = ["serve", "--data", "2", "--listen", "127.0.0.1:0", "--name", "third"];
    drop(node);
    gives_up(&lab, &line, quickly, &["has the certificate of node `second`"]);
    let log = log_of(_second);
    assert!(log.contains("WARN  refused 127.0.0.1:"), "{log}");
}

#[test]
fn malformed_addresses_are_rejected_with_a_correction() {
    let lab = Lab::new();
    for (address, expected_texts) in [
        ("::1:7511", "an IPv6 address stands in brackets: [::1]:7511"),
        ("[::1]", "the port is missing"),
        ("localhost", "the port is missing"),
        ("localhost:0", "port 0"),
        ("localhost:x", "a number from 0 to 65535"),
    ] {
        for line in [&["jobs", "list", "--node"][..], &["submit", "x", "--node"], &["serve", "--join"]] {
            lab.host(&[line, &[address]].concat()).expect_code(2).expect_stderr(&[expected_texts]);
        }
    }
    lab.host(&["serve", "--listen", "localhost"]).expect_code(2).expect_stderr(&["the port is missing"]);
}

/// A token of nodes gives nobody the name of another node, whether that lives, is down or has just been restarted.
#[test]
fn a_name_belongs_to_a_node_until_it_is_removed() {
    let lab = Lab::new();
    let (founder, port) = founder(&lab, "127.0.0.1:0");
    let first = format!("127.0.0.1:{port}");
    let named = |data: &str, name: &str| joins(&lab, data, &first, &["--listen", "127.0.0.1:0", "--name", name]);
    let refused = |data: &str, name: &str| {
        let texts = [&format!("the name `{name}` is not available")[..], "belongs to another key", "--name"];
        named(data, name).wait().expect_code(1).expect_stderr(&texts);
    };
    let mut one = named("2", "twin");
    until("the node is a member", || nodes(&lab, "1").len() == 2);
    let before = nodes(&lab, "1");
    refused("3", "twin");
    refused("4", "first");
    // The living node keeps running.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!one.has_ended() && nodes(&lab, "1") == before, "{before:?}");
    // The node is down, and its lease has ended.
    drop(one);
    until("the node is no member any more", || nodes(&lab, "1").len() == 1);
    refused("3", "twin");
    // The founder has just been restarted, and knows no living node.
    founder.interrupt();
    founder.wait();
    let line = ["serve", "--data", "1", "--name", "first", "--workers", "1", "--listen", &first];
    let _founder = lab.start(&line);
    until("the founder is there", || nodes(&lab, "1").len() == 1);
    refused("3", "twin");
    // The node itself comes back.
    let back = lab.start(&["serve", "--data", "2", "--workers", "1", "--listen", "127.0.0.1:0", "--join", &first]);
    until("the node is a member again", || nodes(&lab, "1").len() == 2);
    // A removed node's name is free, and its key is not.
    lab.host(&["nodes", "remove", "twin", "--data", "1"]).expect_code(0);
    back.wait().expect_code(1).expect_stderr(&["it was removed from its cluster"]);
    let other = named("3", "twin");
    until("another node has the name", || nodes(&lab, "1").len() == 2);
    drop(other);
    lab.host(&["nodes", "remove", "nobody", "--data", "1"])
        .expect_code(1)
        .expect_stderr(&["there is no node `nobody`"]);
}

#[test]
fn a_token_of_nodes_is_used_once_or_revoked() {
    let lab = Lab::new();
    let (_founder, port) = founder(&lab, "127.0.0.1:0");
    let first = format!("127.0.0.1:{port}");
    let joins = |data: &str, token: &str| {
        let line = ["serve", "--data", data, "--workers", "1", "--join", &first, "--token", token, "--name", data];
        lab.start(&[&line[..], &["--listen", "127.0.0.1:0"]].concat())
    };
    let once = lab.host(&["cluster", "token", "--data", "1", "--once"]).expect_code(0).stdout;
    let _node = joins("a", once.trim());
    until("the node is a member", || nodes(&lab, "1").len() == 2);
    joins("b", once.trim()).wait().expect_code(1).expect_stderr(&["is for one use and was used"]);
    let leaked = lab.host(&["cluster", "token", "--data", "1"]).expect_code(0);
    let id = leaked.stderr.split_whitespace().nth(1).expect("token ID of nodes").to_owned();
    lab.host(&["cluster", "revoke", &id, "--data", "a"]).expect_code(0);
    joins("c", leaked.stdout.trim()).wait().expect_code(1).expect_stderr(&["was revoked"]);
}

/// A node that is cut off for longer than its lease ends with a message if a copy of it has taken its name.
#[test]
fn a_node_with_a_taken_name_ends() {
    let lab = Lab::new();
    let (founder, port) = founder(&lab, "127.0.0.1:0");
    let first = format!("127.0.0.1:{port}");
    let one = joins(&lab, "2", &first, &["--listen", "127.0.0.1:0", "--name", "twin"]);
    until("the node is a member", || nodes(&lab, "1").len() == 2);
    let process = Pid::from_raw(one.process().cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    until("the node is no member any more", || nodes(&lab, "1").len() == 1);
    // Moved to another machine with its key.
    std::fs::create_dir(lab.path("3")).unwrap();
    let copied = Command::new("cp").args(["-a", "2/identity", "2/joined", "3"]).current_dir(lab.path("")).status();
    assert!(copied.unwrap().success());
    let other = lab.start(&["serve", "--data", "3", "--workers", "1", "--listen", "127.0.0.1:0"]);
    until("another has its name", || nodes(&lab, "1").len() == 2);
    kill_process(process, Signal::CONT).unwrap();
    one.wait().expect_code(1).expect_stderr(&[
        "ERROR this node ends: ",
        "has its name now",
        "this node leaves its cluster",
    ]);
    let there = nodes(&lab, "1");
    assert!(there.iter().any(|node| node["name"] == "twin" && node["number"].as_u64() > Some(2)), "{there:?}");
    drop(other);
    let log = log_of(founder);
    for expected_texts in ["node `twin` (number 2, ", "has left the cluster", "is in the cluster"] {
        assert!(log.contains(expected_texts), "`{expected_texts}` is not in {log}");
    }
}

/// A removed node ends as well.
#[test]
fn a_node_that_was_removed_ends() {
    let mut nodes = Nodes::start(2);
    nodes.lab.host(&["nodes", "remove", "node-2", "--data", "1"]).expect_code(0);
    let second = nodes.running.remove(1);
    second.wait().expect_code(1).expect_stderr(&["this node ends: it was removed from its cluster"]);
}

#[test]
fn the_log_of_a_node_describes_events() {
    let mut nodes = Nodes::start(2);
    let ada = Tenant::new(&nodes, "ada");
    let program = format!("{}#tree", component("tests/programs/tasks").display());
    let line = ["submit", &program, "--arg", "depth=1", "--arg", "width=5", "--arg", "steps=1"];
    ada.host(&nodes.address("node-1"), &line).expect_code(0);
    nodes.kill("node-2");
    until("the node is no member any more", || nodes.there().len() == 1);
    // The connection times out after 4.9 s, the lease after 4 s.
    std::thread::sleep(Duration::from_secs(3));
    let log = log_of(nodes.running.remove(0));
    for expected_texts in [
        "INFO  host 0.",
        "INFO  node node-1 (number 1) of cluster ",
        "INFO  node `node-2` (number 2, 127.0.0.1:",
        "INFO  connected to node `node-2` (number 2, 127.0.0.1:",
        "INFO  tenant `ada` at 127.0.0.1:",
        " of tenant `ada` starts: ",
        " succeeded\n",
        "WARN  lost node `node-2` (number 2, ",
        "has left the cluster, or its lease of 4 s has expired",
        "INFO  this node leaves its cluster",
    ] {
        assert!(log.contains(expected_texts), "`{expected_texts}` is not in\n{log}");
    }
    // RFC 3339 in UTC with milliseconds.
    for line in log.lines() {
        let (time, rest) = line.split_at(24);
        let is_time = time.bytes().zip(b"0000-00-00T00:00:00.000Z").all(|(c, as_in)| match as_in {
            b'0' => c.is_ascii_digit(),
            other => c == *other,
        });
        assert!(is_time && [" INFO  ", " WARN  "].iter().any(|level| rest.starts_with(level)), "{line}");
    }
}
