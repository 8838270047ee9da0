//! A tenant as an attack sees it: jobs over the tenant API, and a certificate for further connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbar_tests::component;
use sandbar_worker::Compiler;
use serde_json::{Value, json};

use crate::cluster::Nodes;
use crate::takeover::Tenant;
use crate::tenant_api::{Client, next, submission};

/// Bytes of a chunk of a component.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum time for which a request is repeated while the node asks for that.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A component to submit.
#[derive(Clone)]
pub struct Program {
    pub id: String,
    pub bytes: Arc<Vec<u8>>,
}

impl Program {
    pub fn new(bytes: Vec<u8>) -> Program {
        Program { id: Compiler::id(&bytes).to_string(), bytes: Arc::new(bytes) }
    }

    /// Returns the component of a crate of the checkout.
    pub fn of(folder: &str) -> Program {
        static READ: Mutex<BTreeMap<String, Program>> = Mutex::new(BTreeMap::new());
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || Program::new(std::fs::read(component(folder)).unwrap());
        read.entry(folder.to_owned()).or_insert_with(load).clone()
    }
}

/// A tenant with a certificate.
pub struct Account {
    pub name: String,
    pub token: String,
    /// Id of the token.
    pub token_id: String,
    pub address: SocketAddr,
    pub identity: PathBuf,
    client: Client,
}

impl Account {
    /// Adds a tenant, whose role is that of its admins, and connects.
    pub async fn new(nodes: &Nodes, name: &str) -> Account {
        let created = nodes.lab.tenant_token("1", name, &["--role", "admin", "--json"]);
        let created: Value = serde_json::from_str(&created).unwrap();
        let text = |field: &str| created[field].as_str().unwrap().to_owned();
        let client = Client::connect(nodes, &Tenant::known(nodes, name, &text("text")), "node-1").await;
        Account {
            name: name.to_owned(),
            token: text("text"),
            token_id: text("id"),
            address: nodes.address("node-1").parse().unwrap(),
            identity: nodes.lab.path(name).join("identity"),
            client,
        }
    }

    /// Opens another connection.
    pub async fn connect(&self) -> Client {
        let since = Instant::now();
        loop {
            match Client::connect_with(&self.identity, self.address).await {
                Ok(client) => return client,
                // Of connections that were closed just now, the node may not know yet.
                Err(error) => assert!(since.elapsed() < RETRY_TIME_MAX, "{error}"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    pub async fn ask(&self, request: &Value) -> Value {
        self.client.ask(request).await
    }

    /// Submits a job, and returns its id, or the refusal.
    pub async fn submit(&self, program: &Program, task: &str, arguments: &[(&str, &str)]) -> Result<String, String> {
        let since = Instant::now();
        loop {
            let mut request = submission(&program.id, program.bytes.len(), task);
            request["submit"]["arguments"] = json!(arguments);
            let response = self.send_submission(&request, &program.bytes).await;
            if let Some(id) = response["job"]["id"].as_str() {
                return Ok(id.to_owned());
            }
            if response["later"].is_null() || since.elapsed() > RETRY_TIME_MAX {
                return Err(describe(&response));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Sends a submission, with its component if the node asks for it, and returns the response.
    pub async fn send_submission(&self, request: &Value, component: &[u8]) -> Value {
        let mut frames = self.client.send(request.to_string().as_bytes()).await;
        let response = next(&mut frames).await;
        if response != json!("send") {
            return response;
        }
        for chunk in component.chunks(CHUNK_BYTES).chain([&[][..]]) {
            // A node that refuses an upload reads no more of it.
            if frames.send(chunk).await.is_err() {
                break;
            }
        }
        next(&mut frames).await
    }

    /// Waits for the end of a job, and returns it; `None` if it does not end in time.
    pub async fn ended(&self, job: &str, time: Duration) -> Option<Value> {
        let until = Instant::now() + time;
        let request = json!({ "follow": { "job": job, "taken": 1, "after": 0, "stays": true } });
        let mut frames = self.client.send(request.to_string().as_bytes()).await;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let response = tokio::time::timeout(left, next(&mut frames)).await.ok()?;
            if let Some(reason) = response["later"].as_str() {
                assert!(!left.is_zero(), "{reason}");
                tokio::time::sleep(RETRY_INTERVAL).await;
                frames = self.client.send(request.to_string().as_bytes()).await;
                continue;
            }
            let job = &response["job"];
            assert!(response["refused"].is_null() && !response.is_null(), "{response}");
            if job["state"].as_str().is_some_and(|state| !["pending", "running"].contains(&state)) {
                return Some(job.clone());
            }
        }
    }

    /// Stops a job, and waits for its end. Returns whether it ended in time.
    pub async fn stop(&self, job: &str, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let response = self.ask(&json!({ "stop": { "job": job } })).await;
            if response["later"].is_null() || Instant::now() > until {
                break;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        self.ended(job, until.saturating_duration_since(Instant::now())).await.is_some()
    }

    /// Returns the ids of the actors that outlive their jobs.
    async fn actors(&self) -> Vec<Value> {
        let response = self.ask(&json!("actors")).await;
        let actors = response["actors"].as_array().cloned().unwrap_or_default();
        actors.into_iter().filter(|actor| actor["state"] != "dead").map(|actor| actor["id"].clone()).collect()
    }

    pub async fn has_actors(&self) -> bool {
        !self.actors().await.is_empty()
    }

    pub async fn end_actors(&self) {
        for id in self.actors().await {
            self.ask(&json!({ "stop-actor": { "actor": id } })).await;
        }
    }
}

/// Returns the code and the message of a refusal, or the response.
pub fn describe(response: &Value) -> String {
    let text = |field: &str| response["refused"][field].as_str();
    match (text("code"), text("message"), response["later"].as_str()) {
        (Some(code), Some(message), _) => format!("{code}: {message}"),
        (_, _, Some(reason)) => format!("later: {reason}"),
        _ => {
            let text = response.to_string();
            text.chars().take(300).collect()
        }
    }
}
