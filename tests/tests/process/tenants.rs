//! Tenants: every node knows the submitter of its work.

use std::collections::BTreeSet;

use sandbar_core::TenantId;
use sandbar_tests::component;
use serde_json::Value;

use crate::cluster::Nodes;

#[test]
fn records_and_logs_of_jobs_name_their_tenants() {
    let nodes = Nodes::start(1);
    let (lab, program) = (&nodes.lab, format!("{}#talks", component("tests/programs/tasks").display()));
    let tenants = ["ada", "bob"].map(|name| {
        let token = lab.tenant_token("1", name, &[]);
        let address = nodes.address("node-1");
        let line = ["submit", &program, "--arg", "lines=3", "--node", &address, "--data", name];
        let more = ["--no-wait", "--json", "--token", &token];
        let id = lab.host(&[&line[..], &more].concat()).expect_code(0).json()["id"].as_str().unwrap().to_owned();
        let of_job = ["jobs", "logs", "-f", &id, "--node", &address, "--data", name];
        lab.host(&of_job).expect_code(0);
        let folder = lab.path("1").join("jobs").join(name).join(&id);
        let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        let record: Value = serde_json::from_str(&text("job.json")).unwrap();
        let tenant: TenantId = record["tenant"].as_str().unwrap().parse().unwrap();
        let lines: Vec<Value> = text("log").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() >= 3, "{lines:?}");
        assert!(lines.iter().all(|line| line["tenant"] == record["tenant"]), "{record} {lines:?}");
        tenant
    });
    let all: BTreeSet<TenantId> = tenants.into_iter().chain([TenantId::DEFAULT]).collect();
    assert_eq!(all.len(), 3, "{all:?}");
}
