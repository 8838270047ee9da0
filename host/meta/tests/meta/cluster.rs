//! Clusters of etcd, of real processes on free ports, in folders that go with them.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use sandbar_core::Seed;
use sandbar_meta::{Etcd, EtcdAddress, EtcdTimes, EtcdTls, MetaLimits, MetaStore};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::driver::folder;

/// A cluster that is not there after this is not going to be.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Another process may take a port between the time it was found free and the time it is used.
const STARTS_MAX: usize = 3;
const PROGRAM: &str = "etcd";

/// Clusters are started one after another: what is tested are they, not the machine.
static TURN: Mutex<()> = Mutex::const_new(());

pub struct Cluster {
    members: Vec<Member>,
    tls: Option<EtcdTls>,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

struct Member {
    port: u16,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Child>,
}

impl Cluster {
    pub async fn start(members: usize) -> Cluster {
        Cluster::start_with(members, &[], None).await
    }

    /// With more arguments for each member, and what clients need for its encryption.
    pub async fn start_with(members: usize, arguments: &[String], tls: Option<EtcdTls>) -> Cluster {
        let turn = TURN.lock().await;
        let mut cluster = Cluster { members: Vec::new(), tls, folder: folder(), _turn: turn };
        for start in 1..=STARTS_MAX {
            cluster.members =
                plan(members, arguments, cluster.tls.is_some(), &cluster.folder.path().join(start.to_string()));
            cluster.members.iter_mut().for_each(Member::start);
            if cluster.is_up().await {
                return cluster;
            }
            eprintln!("the cluster did not start, try {start}:\n{}", cluster.logs());
        }
        panic!("no cluster after {STARTS_MAX} tries");
    }

    async fn is_up(&mut self) -> bool {
        let end = Instant::now() + START_TIME_MAX;
        while Instant::now() < end {
            if self.members.iter_mut().any(Member::has_ended) {
                return false;
            }
            if Etcd::connect(&self.address("start"), MetaLimits::default(), EtcdTimes::default(), Seed::new(1))
                .await
                .is_ok()
            {
                return true;
            }
        }
        false
    }

    pub fn address(&self, prefix: &str) -> EtcdAddress {
        EtcdAddress {
            endpoints: self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect(),
            prefix: format!("{prefix}/"),
            tls: self.tls.clone(),
        }
    }

    pub async fn connect(&self, prefix: &str, limits: MetaLimits) -> Arc<dyn MetaStore> {
        self.connect_with(prefix, limits, EtcdTimes::default(), 7).await
    }

    pub async fn connect_with(
        &self,
        prefix: &str,
        limits: MetaLimits,
        times: EtcdTimes,
        seed: u64,
    ) -> Arc<dyn MetaStore> {
        let connected = Etcd::connect(&self.address(prefix), limits, times, Seed::new(seed)).await;
        Arc::new(connected.unwrap_or_else(|e| panic!("{e}\n{}", self.logs())))
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// As with a power cut.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    pub fn restart(&mut self, member: usize) {
        self.members[member].start();
    }

    /// Cut off from everybody, as by the network: its connections stay, and nothing comes of them.
    pub fn cut_off(&mut self, member: usize) {
        self.members[member].signal(Signal::STOP);
    }

    pub fn join_again(&mut self, member: usize) {
        self.members[member].signal(Signal::CONT);
    }

    /// Who leads, once somebody does.
    pub async fn leader(&self) -> usize {
        let end = Instant::now() + START_TIME_MAX;
        while Instant::now() < end {
            if let Some(leader) = (0..self.len()).find(|member| self.members[*member].leads().unwrap_or(false)) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("nobody leads\n{}", self.logs());
    }

    /// Forgets what was before a revision, as the cluster does by itself when it is set up to.
    pub fn compact(&self, revision: u64) {
        let said = self.members[0].post("/v3/kv/compaction", &format!("{{\"revision\":\"{revision}\"}}"));
        assert!(said.as_ref().is_some_and(|said| said.contains("200 OK")), "{said:?}");
    }

    fn logs(&self) -> String {
        let logs = self.members.iter().map(|member| fs::read_to_string(&member.log).unwrap_or_default());
        logs.collect::<Vec<_>>().join("\n--\n")
    }
}

/// What members are started with.
fn plan(count: usize, more: &[String], is_tls: bool, folder: &Path) -> Vec<Member> {
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
    fn start(&mut self) {
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

    fn has_ended(&mut self) -> bool {
        self.process.as_mut().is_none_or(|process| process.try_wait().unwrap().is_some())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("the member runs");
        kill_process(Pid::from_child(process), signal).unwrap();
    }

    fn leads(&self) -> Option<bool> {
        let status = self.post("/v3/maintenance/status", "{}")?;
        let field = |name: &str| status.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next().map(str::to_owned);
        Some(field("member_id")? == field("leader")?)
    }

    /// Asks etcd's gateway for those who speak neither HTTP/2 nor protobuf.
    fn post(&self, path: &str, body: &str) -> Option<String> {
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
