//! Records of tenants, tokens and names of nodes in the cluster's store, in JSON.

use std::time::Duration;

use sandbar_wire::{CLOCK_SKEW_S_MAX, KeyId, Name, TenantRole, Timestamp, TokenId};
use serde::{Deserialize, Serialize};

use super::settings::TenantSettings;
use crate::encoding::text;

/// A tenant of the cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tenant {
    /// Name of the tenant.
    pub name: Name,
    /// Time of its creation.
    #[serde(rename = "created_s")]
    pub created: Timestamp,
    /// Its settings.
    pub settings: TenantSettings,
    /// Its tokens, from which its certificates come.
    pub tokens: Vec<TenantToken>,
}

/// The stored part of a [`Tenant`], under its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TenantRecord {
    #[serde(rename = "created_s")]
    pub(super) created: Timestamp,
    pub(super) settings: TenantSettings,
}

/// A token of a tenant. Its certificates are accepted while the cluster's store has the token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantToken {
    /// Id of the token, which is not a secret.
    #[serde(with = "text")]
    pub id: TokenId,
    /// Role of its certificates.
    pub role: TenantRole,
    /// Whether only one key gets certificates.
    pub use_once: bool,
    /// Token of the client that created it; `None` for an operator.
    pub created_by: Option<String>,
    /// Time of its creation.
    #[serde(rename = "issued_s")]
    pub issued: Timestamp,
    /// End of the time in which it is exchanged for certificates.
    #[serde(rename = "expires_s")]
    pub expires: Timestamp,
    /// Its last exchange or renewal.
    pub last_use: Option<TokenUse>,
}

/// The last exchange of a token for a certificate, or the last renewal of such a certificate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenUse {
    /// Key of the certificate.
    #[serde(with = "text")]
    pub key: KeyId,
    /// Number of certificates so far.
    pub certificates: u64,
    /// End of the validity of the last certificate.
    #[serde(rename = "expires_s")]
    pub expires: Timestamp,
}

impl TenantToken {
    /// Returns whether the token can no longer be exchanged, and its certificates have expired.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        let now = now.before(Duration::from_secs(CLOCK_SKEW_S_MAX));
        now > self.expires && self.last_use.as_ref().is_none_or(|last| now > last.expires)
    }
}

/// The key to which a node's name belongs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeName {
    #[serde(with = "text")]
    pub(crate) key: KeyId,
    /// End of the validity of its last certificate. Then the name is free.
    #[serde(rename = "expires_s")]
    pub(crate) expires: Timestamp,
}

/// A token of nodes that was revoked, or that is for one use and was used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NodeTokenRecord {
    /// The key that used it; `None` for a revoked token.
    pub(crate) used_by: Option<String>,
}

/// The key of a removed node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemovedKey {
    /// Name that the node had.
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::check_json;

    #[test]
    fn stored_records_have_golden_json() {
        let key = KeyId([7; 32]);
        let last = TokenUse { key, certificates: 2, expires: Timestamp(9) };
        let token = TenantToken {
            id: TokenId([1; 16]),
            role: TenantRole::Admin,
            use_once: false,
            created_by: Some("02".repeat(16)),
            issued: Timestamp(1),
            expires: Timestamp(2),
            last_use: Some(last),
        };
        check_json(
            &token,
            r#"{"id":"01010101010101010101010101010101","role":"admin","use_once":false,"created_by":"02020202020202020202020202020202","issued_s":1,"expires_s":2,"last_use":{"key":"0707070707070707070707070707070707070707070707070707070707070707","certificates":2,"expires_s":9}}"#,
        );
        let settings = TenantSettings { weight: 7, ..TenantSettings::default() };
        check_json(
            &TenantRecord { created: Timestamp(3), settings },
            r#"{"created_s":3,"settings":{"weight":7,"reserved_cpus":0.0,"tasks_max":1000000,"actors_max":1000,"memory_bytes_max":536870912,"object_bytes_max":17179869184,"jobs_max":64,"finished_jobs_max":1000,"finished_job_bytes_max":16777216,"component_bytes_max":67108864,"components_max":64,"components_bytes_max":268435456,"file_bytes_max":4294967296,"files_bytes_max":17179869184,"cpu_seconds_per_day_max":null,"gpu_seconds_per_day_max":null,"network_bytes_per_day_max":null,"log_bytes_per_day_max":null,"job_seconds_max":null}}"#,
        );
        check_json(
            &NodeName { key, expires: Timestamp(4) },
            r#"{"key":"0707070707070707070707070707070707070707070707070707070707070707","expires_s":4}"#,
        );
        check_json(&NodeTokenRecord { used_by: None }, r#"{"used_by":null}"#);
        check_json(&RemovedKey { name: "n".to_owned() }, r#"{"name":"n"}"#);
    }

    #[test]
    fn a_token_is_over_with_its_last_certificate() {
        let skew = CLOCK_SKEW_S_MAX;
        let token = |last: Option<u64>| TenantToken {
            id: TokenId([1; 16]),
            role: TenantRole::Viewer,
            use_once: false,
            created_by: None,
            issued: Timestamp(0),
            expires: Timestamp(100),
            last_use: last.map(|end| TokenUse { key: KeyId([0; 32]), certificates: 1, expires: Timestamp(end) }),
        };
        for (last, now, expected) in [
            (None, 100 + skew, false),
            (None, 101 + skew, true),
            (Some(500), 101 + skew, false),
            (Some(500), 501 + skew, true),
            (Some(50), 100 + skew, false),
        ] {
            assert_eq!(token(last).is_over(Timestamp(now)), expected, "{last:?} {now}");
        }
    }
}
