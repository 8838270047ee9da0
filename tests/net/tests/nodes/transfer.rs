//! Object transfer beside a bare QUIC stream, over links that lose and corrupt packets.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use sandbar_testnet::{LinkFaults, Net, Relay, RelayCounts, example, print_line};

use crate::alone;

/// The `transfer` example of `host/wire`, at one node of a network. Dropping it kills it.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    fn start(net: &Net, node: usize, arguments: &[&str], settings: &[(&str, &str)]) -> Process {
        let mut command = Command::new(example("transfer"));
        command.args(arguments).envs(settings.iter().copied()).env("SANDBAR_ADDRESS", net.address(node).to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        net.attach(node, &mut command);
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Process { child, to, from }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fetches an object over both in turn. Returns the output of the program.
fn fetch(net: &Net, bytes: usize, settings: &[(&str, &str)]) -> String {
    let mut holder = Process::start(net, 0, &["holder", &bytes.to_string(), "0"], settings);
    let line = holder.line();
    let mut client = Process::start(net, 1, &["object-client"], settings);
    writeln!(client.to, "{line} {bytes} {}", holder.child.id()).unwrap();
    let mut output = String::new();
    client.from.read_to_string(&mut output).unwrap();
    // The program compares the received object with the one sent.
    assert!(client.child.wait().unwrap().success(), "{output}");
    output
}

/// Returns the speed of the object transfer as a share of the bare stream's.
fn share(output: &str) -> f64 {
    let ours = output.lines().find(|line| line.starts_with("ours")).unwrap_or_else(|| panic!("{output}"));
    let before = ours.split(" of bare QUIC").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap_or_else(|e| panic!("{e}: {ours}"))
}

fn net(link: LinkFaults) -> Net {
    let net = Net::relayed(2, 31);
    if let Some(relay) = net.relay() {
        relay.set_all(link);
    }
    net
}

/// Fetches over a link with faults, and checks that faults happened.
fn check(label: &str, link: LinkFaults, bytes: usize, happened: fn(&RelayCounts) -> u64) {
    let _alone = alone();
    let net = net(link);
    let output = fetch(&net, bytes, &[("SANDBAR_ROUNDS", "2"), ("SANDBAR_ONLY", "bare,ours")]);
    let share = share(&output);
    if let Some(counts) = net.relay().map(Relay::counts) {
        print_line(format_args!("{label}, {bytes} bytes:\n{output}ours is {share} of bare, {counts:?}"));
        assert!(happened(&counts) > 0, "{counts:?}");
    }
}

/// The speed depends on congestion control, so this test does not check it.
#[test]
fn lost_packets_are_retransmitted() {
    let link = LinkFaults { loss: 0.01, ..LinkFaults::of_delay(Duration::from_millis(10)) };
    check("1% lost, 20 ms there and back", link, 1 << 20, |counts| counts.lost);
}

#[test]
fn damaged_packets_are_as_good_as_lost() {
    let link = LinkFaults { corrupt: 0.01, ..LinkFaults::of_delay(Duration::from_millis(1)) };
    check("1% damaged, 2 ms there and back", link, 4 << 20, |counts| counts.damaged);
}

/// Fetches at full speed, through a relay and through a bridge.
#[test]
fn received_bytes_equal_sent_bytes_on_any_link() {
    let _alone = alone();
    for (name, net) in [("a relay", Net::relayed(2, 37)), ("a switch", Net::switched(2))] {
        let output = fetch(&net, 64 << 20, &[("SANDBAR_ROUNDS", "2"), ("SANDBAR_ONLY", "bare,ours")]);
        print_line(format_args!("64 MiB over {name}:\n{output}"));
        assert!(share(&output) > 0.0);
    }
}
