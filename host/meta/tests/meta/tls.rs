//! Encrypted connections with certificates on both sides.

use std::path::{Path, PathBuf};

use sandbar_core::Seed;
use sandbar_meta::{EtcdAddress, EtcdStore, EtcdTimeouts, EtcdTls, KeyRange, MetaError, MetaLimits, MetaStore as _};

use crate::cluster::Cluster;
use crate::driver::key;

fn file(name: &str) -> PathBuf {
    // The build may come from another checkout that shares the build folder: see `.cargo/config.toml`.
    let manifest = option_env!("SANDBAR_MANIFEST").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    Path::new(manifest).with_file_name("host").join("meta/tests/meta/tls").join(name)
}

fn tls(ca: &str, identity: bool) -> Option<EtcdTls> {
    Some(EtcdTls { ca: file(ca), identity: identity.then(|| (file("client.pem"), file("client.key"))) })
}

async fn connect(address: &EtcdAddress, tls: Option<EtcdTls>) -> Result<EtcdStore, MetaError> {
    let address = EtcdAddress { tls, ..address.clone() };
    let times = EtcdTimeouts { call_ms_max: 1500, ..EtcdTimeouts::default() };
    EtcdStore::connect(&address, MetaLimits::default(), times, Seed::new(1)).await
}

#[tokio::test]
async fn both_sides_authenticate() {
    let options = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
    let mut arguments: Vec<String> =
        options.iter().map(|(name, path)| format!("--{name}={}", file(path).display())).collect();
    arguments.push("--client-cert-auth".to_owned());
    let cluster = Cluster::start_with(1, &arguments, tls("ca.pem", true)).await;
    let address = cluster.address("tls");

    let store = connect(&address, tls("ca.pem", true)).await.unwrap();
    assert!(store.get(&key("a")).await.unwrap().entry.is_none());
    store.watch(&KeyRange::all(), store.get(&key("a")).await.unwrap().revision.next()).await.unwrap();

    for (tls, code) in [
        (tls("ca.pem", false), "meta-unavailable"),
        (tls("other.pem", true), "meta-unavailable"),
        (None, "meta-unavailable"),
        (tls("nothing.pem", true), "meta-address"),
        (tls("server.key", true), "meta-address"),
    ] {
        let error = connect(&address, tls.clone()).await.err().unwrap_or_else(|| panic!("{tls:?} is let in"));
        assert_eq!(error.code(), code, "{tls:?}: {error}");
    }
}
