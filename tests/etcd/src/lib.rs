//! etcd clusters for tests: real processes on free ports.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid};

/// Time limit for the start of a cluster.
pub const START_TIME_MAX: Duration = Duration::from_secs(60);
const PROGRAM: &str = "etcd";

/// Member of a cluster. Dropping it kills the process.
#[derive(Debug)]
pub struct Member {
    /// Port for clients.
    pub port: u16,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Child>,
}

/// Returns members of a cluster that are not started yet, each with its own folder in `folder` and the additional arguments
/// `more`.
///
/// # Panics
/// Panics if folders can't be created.
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
    // All listeners exist at once, so that the ports differ.
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Member {
    /// Starts the member.
    ///
    /// # Panics
    /// Panics if etcd is missing.
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new(program());
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // Environment variables would conflict with the arguments.
        std::env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_"))
            .for_each(|(name, _)| _ = command.env_remove(name));
        // The member must not outlive a killed test.
        let die_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: the closure makes one system call between fork and exec, and allocates nothing.
        unsafe { command.pre_exec(die_with_parent) };
        self.process = Some(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", program().display())));
    }

    /// Returns whether the member is not running.
    ///
    /// # Panics
    /// Panics if the status can't be read.
    pub fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    /// Kills the member, which simulates a power cut.
    ///
    /// # Panics
    /// Panics if waiting for the process fails.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Fails if the process has ended already.
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// Stops the member, which simulates a partition of the network, and returns when none of its threads runs.
    ///
    /// # Panics
    /// Panics if the member is not running.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        // The signal returns at once: a thread may still answer the next request.
        waitid(WaitId::Pid(self.pid()), WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .unwrap();
    }

    /// Resumes a stopped member.
    ///
    /// # Panics
    /// Panics if the member is not running.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.process.as_ref().expect("the member runs"))
    }

    /// Returns whether the member is the leader, or `None` if it does not respond.
    pub fn leads(&self) -> Option<bool> {
        let status = self.post("/v3/maintenance/status", "{}")?;
        let field = |name: &str| status.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next().map(str::to_owned);
        Some(field("member_id")? == field("leader")?)
    }

    /// Sends a request to etcd's JSON gateway, and returns the response with its headers.
    pub fn post(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        Some(response)
    }

    /// Returns the member's log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the path of etcd: `SANDBAR_ETCD`, else the one in PATH, else the one that `cargo xtask setup` fetched.
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
            "`{PROGRAM}` is missing, and these tests need it. Do one of these:\n\
             - run `cargo xtask setup`, which fetches Debian's and installs nothing;\n\
             - install it: `apt install etcd-server`, `dnf install etcd`, `brew install etcd`;\n\
             - set SANDBAR_ETCD to the path of etcd 3.4 or newer."
        )
    })
}
