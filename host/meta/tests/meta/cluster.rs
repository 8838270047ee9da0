//! etcd clusters of real processes on free ports, in temporary folders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::Seed;
use sandbar_etcd::{Member, START_TIME_MAX, plan};
use sandbar_meta::{EtcdAddress, EtcdStore, EtcdTimeouts, EtcdTls, MetaLimits, MetaStore};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::driver::folder;

/// Attempts to start: another process may take a free port before the member binds it.
const STARTS_MAX: usize = 3;

/// Serializes the start of clusters: the tests exercise them, not the machine.
static CLUSTER_LOCK: Mutex<()> = Mutex::const_new(());

pub struct Cluster {
    members: Vec<Member>,
    tls: Option<EtcdTls>,
    folder: TempDir,
    _guard: MutexGuard<'static, ()>,
}

impl Cluster {
    pub async fn start(members: usize) -> Cluster {
        Cluster::start_with(members, &[], None).await
    }

    /// Starts a cluster with extra arguments for each member, and the TLS files for clients.
    pub async fn start_with(members: usize, arguments: &[String], tls: Option<EtcdTls>) -> Cluster {
        let guard = CLUSTER_LOCK.lock().await;
        let mut cluster = Cluster { members: Vec::new(), tls, folder: folder(), _guard: guard };
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
            if EtcdStore::connect(&self.address("start"), MetaLimits::default(), EtcdTimeouts::default(), Seed::new(1))
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
        self.connect_with(prefix, limits, EtcdTimeouts::default(), 7).await
    }

    pub async fn connect_with(
        &self,
        prefix: &str,
        limits: MetaLimits,
        times: EtcdTimeouts,
        seed: u64,
    ) -> Arc<dyn MetaStore> {
        let connected = EtcdStore::connect(&self.address(prefix), limits, times, Seed::new(seed)).await;
        Arc::new(connected.unwrap_or_else(|e| panic!("{e}\n{}", self.logs())))
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Kills a member, as a power cut does.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    pub fn restart(&mut self, member: usize) {
        self.members[member].start();
    }

    /// Stops a member as a network partition does: its connections stay open but are silent.
    pub fn cut_off(&mut self, member: usize) {
        self.members[member].stop();
    }

    pub fn join_again(&mut self, member: usize) {
        self.members[member].resume();
    }

    /// Waits for a leader and returns it.
    pub async fn leader(&self) -> usize {
        let end = Instant::now() + START_TIME_MAX;
        while Instant::now() < end {
            if let Some(leader) = (0..self.len()).find(|member| self.members[*member].leads().unwrap_or(false)) {
                return leader;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("there is no leader\n{}", self.logs());
    }

    /// Compacts the history before a revision, as auto-compaction does.
    pub fn compact(&self, revision: u64) {
        let response = self.members[0].post("/v3/kv/compaction", &format!("{{\"revision\":\"{revision}\"}}"));
        assert!(response.as_ref().is_some_and(|response| response.contains("200 OK")), "{response:?}");
    }

    fn logs(&self) -> String {
        let logs = self.members.iter().map(Member::log);
        logs.collect::<Vec<_>>().join("\n--\n")
    }
}
