//! Folders of authorities and nodes: atomic, locked, and private.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sandbar_wire::*;

use crate::support::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn an_authority_is_kept_for_its_owner_alone() {
    let cluster = Cluster::new();
    let folder = cluster.folder("authority");
    assert_eq!(mode(&folder), 0o700);
    for file in ["authority.key", "authority.crt"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
    let again = Authority::open(&folder, now()).unwrap();
    assert_eq!(again.trust().fingerprint(), cluster.authority.trust().fingerprint());
    assert_eq!(again.trust().cluster(), cluster.authority.trust().cluster());
}

/// Damages an authority's folder and expects an error.
fn check_authority(damage: impl Fn(&Path), at: Timestamp, code: &str, text: &str) {
    let cluster = Cluster::new();
    let folder = cluster.folder("authority");
    damage(&folder);
    let error = Authority::open(&folder, at).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn an_authority_that_is_not_as_it_should_be_is_refused() {
    let set = |file: &'static str, mode: u32| {
        move |folder: &Path| fs::set_permissions(folder.join(file), Permissions::from_mode(mode)).unwrap()
    };
    let write =
        |file: &'static str, bytes: &'static [u8]| move |folder: &Path| fs::write(folder.join(file), bytes).unwrap();
    let remove = |file: &'static str| move |folder: &Path| fs::remove_file(folder.join(file)).unwrap();
    check_authority(set("", 0o750), now(), "identity-exposed", "mode 0750");
    check_authority(set("authority.key", 0o640), now(), "identity-exposed", "authority.key");
    check_authority(set("authority.crt", 0o604), now(), "identity-exposed", "chmod go=");
    check_authority(write("authority.key", b"no key"), now(), "identity-malformed", "the key");
    check_authority(write("authority.crt", b"no certificate"), now(), "identity-malformed", "certificate");
    check_authority(remove("authority.key"), now(), "identity-missing", "authority.key");
    check_authority(remove("authority.crt"), now(), "identity-missing", "authority.crt");
    check_authority(|_| (), Timestamp(now().0 + 3651 * DAY), "authority-ended", "create a new authority");
    let other_key = |folder: &Path| {
        let other = Cluster::new();
        fs::copy(other.folder("authority").join("authority.key"), folder.join("authority.key")).unwrap();
    };
    check_authority(other_key, now(), "identity-malformed", "its key does not match");
}

#[test]
fn there_is_one_authority_in_a_folder() {
    let cluster = Cluster::new();
    let error = Authority::create(&cluster.folder("authority"), now()).unwrap_err();
    assert_eq!(error.code(), "authority-exists", "{error}");
    // An interruption before the certificate was written leaves a key that was never trusted.
    fs::remove_file(cluster.folder("authority").join("authority.crt")).unwrap();
    Authority::create(&cluster.folder("authority"), now()).unwrap();
}

#[test]
fn a_node_keeps_its_key_and_certificate() {
    let cluster = Cluster::new();
    let path = cluster.folder("node");
    let folder = NodeFolder::lock(&path).unwrap();
    assert!(folder.load(now()).unwrap().is_none());
    let key = folder.key().unwrap();
    let identity = cluster.identity_for(key.clone(), Role::Node, "n1", now(), DAY);
    folder.save(&identity).unwrap();
    assert_eq!(folder.save(&cluster.node("n1")).unwrap_err().code(), "identity-malformed");
    for file in ["identity.key", "identity.crt", "authority.crt", "lock"] {
        assert_eq!(mode(&path.join(file)), 0o600, "{file}");
    }
    drop(folder);

    let folder = NodeFolder::lock(&path).unwrap();
    assert_eq!(folder.key().unwrap().id(), key.id());
    assert_eq!(folder.load(now()).unwrap().unwrap().own(), identity.own());
    let late = Timestamp(now().0 + 2 * DAY);
    assert_eq!(folder.load(late).unwrap_err().code(), "expired");
    fs::set_permissions(path.join("identity.key"), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(folder.load(now()).unwrap_err().code(), "identity-exposed");
}

#[test]
fn one_process_at_a_time_is_a_node() {
    let cluster = Cluster::new();
    let path = cluster.folder("node");
    let _first = NodeFolder::lock(&path).unwrap();
    let error = NodeFolder::lock(&path).unwrap_err();
    assert_eq!(error.code(), "identity-in-use");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
}

#[test]
fn a_tenant_s_folder_serves_several_commands() {
    let cluster = Cluster::new();
    let path = cluster.folder("tenant");
    let tenant = cluster.tenant("acme");
    tenant.save(&path).unwrap();
    for _ in 0..2 {
        assert_eq!(Identity::load(&path, now()).unwrap().own(), tenant.own());
    }
    assert_eq!(Identity::load(&cluster.folder("nobody"), now()).unwrap_err().code(), "identity-io");
}
