//! A node of a cluster that serves while benchmarks run.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::failure::Failure;
use crate::paths;

/// Time limit of a node's start.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// A node that serves, with the data folder `1`; dropping it stops the process.
pub struct ServedNode {
    folder: TempDir,
    process: Child,
    /// Address at which it listens.
    pub address: String,
}

impl ServedNode {
    /// Starts a node, and waits until it serves.
    pub fn start() -> Result<ServedNode, Failure> {
        let folder = tempfile::tempdir()?;
        run(&folder, &["cluster", "init", "--data", "1"])?;
        let mut serve = Command::new(paths::program("host")?);
        serve.args(["serve", "--data", "1", "--listen", "127.0.0.1:0", "--name", "node-1"]);
        let process = serve.current_dir(folder.path()).stderr(Stdio::null()).spawn()?;
        let mut node = ServedNode { folder, process, address: String::new() };
        let since = Instant::now();
        while node.address.is_empty() {
            if since.elapsed() > START_TIME_MAX {
                return Err(format!("the node did not start within {} s", START_TIME_MAX.as_secs()).into());
            }
            std::thread::sleep(Duration::from_millis(50));
            // Fails until the node serves.
            let listed = run(&node.folder, &["status", "--json", "--data", "1"]).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&listed).unwrap_or_default();
            if status["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty()) {
                node.address = status["node"]["address"].as_str().unwrap_or_default().to_owned();
            }
        }
        Ok(node)
    }

    /// Runs a command in the folder of the node's data folder, and returns its standard output.
    pub fn run(&self, line: &[&str]) -> Result<String, Failure> {
        run(&self.folder, line)
    }
}

fn run(folder: &TempDir, line: &[&str]) -> Result<String, Failure> {
    let output = Command::new(paths::program("host")?).args(line).current_dir(folder.path()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("host {line:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

impl Drop for ServedNode {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
