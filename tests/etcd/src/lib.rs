//! Clusters of etcd for tests: real processes on free ports.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

/// A cluster that is not there after this is not going to be.
pub const START_TIME_MAX: Duration = Duration::from_secs(60);
const PROGRAM: &str = "etcd";

/// A member of a cluster. It ends with this.
#[derive(Debug)]
pub struct Member {
    /// Where it listens for clients.
    pub port: u16,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Child>,
}

/// Members of a cluster that do not run yet, each with a folder of its own in this one and these arguments more.
///
/// # Panics
/// When folders can't be made.
pub fn plan(count: usize, more: &[String], is_tls: bool, folder: &Path) -> Vec<Member> {
    let ports = free_ports(2 * count);
    let (clients, peers) = ports.split_at(count);
    let all: Vec<String> = peers.iter().enumerate().map(|(i, port)| format!("m{i}=http://127.0.0.1:{port}")).collect();
    let scheme = if is_tls { "https" } else { "http" };
    let member = |i: usize| {
        let data = folder.join(format!("m{i}"));
        fs::create_dir_all(&data).unwrap();
        let (client, peer) = (format!("{scheme}://127.0.0.1:{}", clients[i]), format!("http://127.0.0.1:{}", peers[i]));
        let options = [
            ("name", format!("m{i}")),
            ("data-dir", data.join("data").display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", all.join(",")),
            ("initial-cluster-token", format!("sandbar-{}", std::process::id())),
            ("logger", "zap".to_owned()),
            ("log-level", "warn".to_owned()),
        ];
        let arguments =
            options.into_iter().map(|(name, value)| format!("--{name}={value}")).chain(more.to_vec()).collect();
        Member { port: clients[i], arguments, log: data.join("log"), process: None }
    };
    (0..count).map(member).collect()
}

fn free_ports(count: usize) -> Vec<u16> {
    // All are taken before the first is given up, so that they differ.
    let taken: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    taken.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Member {
    /// Starts it.
    ///
    /// # Panics
    /// When there is no etcd.
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(program());
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // What etcd is told by its environment would stand against what it is told here.
        std::env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_"))
            .for_each(|(name, _)| _ = command.env_remove(name));
        // It is not to outlive a test that is killed.
        let die_with_us = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: between fork and exec one system call is made, and nothing is allocated.
        unsafe { command.pre_exec(die_with_us) };
        self.process = Some(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", program().display())));
    }

    /// Whether it does not run.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Ends it as a power cut does.
    ///
    /// # Panics
    /// When the system does not let it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("the member runs");
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    /// Whether it leads the others; none where it does not say.
    pub fn leads(&self) -> Option<bool> {
        let status = self.post("/v3/maintenance/status", "{}")?;
        let field = |name: &str| status.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next().map(str::to_owned);
        Some(field("member_id")? == field("leader")?)
    }

    /// Asks etcd's gateway for those who speak neither HTTP/2 nor protobuf.
    pub fn post(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// etcd's program: `SANDBAR_ETCD`, else the one in PATH, else the one that `cargo xtask setup` fetched.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("SANDBAR_ETCD") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|program| program.is_file());
    let fetched = || {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("sandbar/etcd").join(PROGRAM)).filter(|program| program.is_file())
    };
    in_path.or_else(fetched).unwrap_or_else(|| {
        panic!(
            "there is no `{PROGRAM}`, which these tests run clusters of. Any one of these helps:\n\
             - `cargo xtask setup`, which fetches Debian's and installs nothing;\n\
             - install it: `apt install etcd-server`, `dnf install etcd`, `brew install etcd`;\n\
             - set SANDBAR_ETCD to the path of one, version 3.4 or newer."
        )
    })
}
