//! The example of a native program with a client.

use std::process::Command;

use sandbar_tests::{Lab, cache, component, host};

#[test]
fn a_service_finds_pi() {
    let lab = Lab::new();
    let mut service = Command::new(host().with_file_name("pi-service"));
    service.arg(component("examples/pi")).env("XDG_CACHE_HOME", cache()).env("XDG_STATE_HOME", lab.path("state"));
    let output = service.env("TMPDIR", lab.path("tmp")).output().expect("it starts");
    let (out, talk) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{talk}");
    let pi: f64 = out.trim().parse().unwrap_or_else(|_| panic!("{out}"));
    assert!((pi - std::f64::consts::PI).abs() < 0.01, "{pi}");
    assert!(talk.contains("pi is about 3.1"), "{talk}");
}
