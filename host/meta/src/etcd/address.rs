//! Addresses of etcd clusters, `etcd://a:2379,b:2379/prefix?ca=/etc/ca.pem`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::MetaError;

const SCHEME: &str = "etcd://";
/// Prefix of keys if the address has none. Others may use the same etcd.
const DEFAULT_PREFIX: &str = "sandbar";
const DEFAULT_PORT: u16 = 2379;

/// Maximum number of members in an address.
const ENDPOINTS_MAX: usize = 16;
const ADDRESS_BYTES_MAX: usize = 4096;
/// Maximum length of a prefix: leaves most of etcd's limit to keys.
const PREFIX_BYTES_MAX: usize = 256;

/// Address of a cluster, and the prefix of the store's keys in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    /// `HOST:PORT` of each member, at least one; IPv6 addresses in brackets.
    pub endpoints: Vec<String>,
    /// Prefix of all keys in etcd, with a trailing slash. The store's keys do not include it.
    pub prefix: String,
    /// TLS settings; `None` for unencrypted connections.
    pub tls: Option<EtcdTls>,
}

/// Paths of PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificates of the authorities that sign members.
    pub ca: PathBuf,
    /// Certificate and key of this client.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl FromStr for EtcdAddress {
    type Err = MetaError;

    fn from_str(text: &str) -> Result<EtcdAddress, MetaError> {
        parse(text).map_err(|reason| MetaError::Address { address: shown(text), reason })
    }
}

/// Hides the user part of an address: passwords are unsupported, and must not reach a log.
fn shown(text: &str) -> String {
    let text: String = text.chars().take(ADDRESS_BYTES_MAX / 16).collect();
    match (text.find("://"), text.find('@')) {
        (Some(start), Some(end)) if start + 3 < end => format!("{}...{}", &text[..start + 3], &text[end..]),
        _ => text,
    }
}

fn parse(text: &str) -> Result<EtcdAddress, String> {
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(format!("it has {} bytes, the maximum is {ADDRESS_BYTES_MAX}", text.len()));
    }
    let rest = text.strip_prefix(SCHEME).ok_or_else(|| format!("it does not start with {SCHEME}"))?;
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let endpoints: Vec<String> = hosts.split(',').map(endpoint).collect::<Result<_, _>>()?;
    if endpoints.len() > ENDPOINTS_MAX {
        return Err(format!("it names {} members, the maximum is {ENDPOINTS_MAX}", endpoints.len()));
    }
    if let Some((_, twice)) = endpoints.iter().enumerate().find(|(i, one)| endpoints[..*i].contains(one)) {
        return Err(format!("it names {twice} twice"));
    }
    Ok(EtcdAddress { endpoints, prefix: prefix(path)?, tls: tls(query.unwrap_or_default())? })
}

fn endpoint(text: &str) -> Result<String, String> {
    if text.contains('@') {
        return Err("users and passwords are not supported; use a client's certificate".to_owned());
    }
    let is_bare = text.ends_with(']') || !text.contains(':');
    let (host, port) =
        if is_bare { (text, None) } else { text.rsplit_once(':').map_or((text, None), |(h, p)| (h, Some(p))) };
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
            _ => return Err(format!("`{port}` is not a port")),
        },
    };
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(host),
    };
    if is_host { Ok(format!("{host}:{port}")) } else { Err(format!("`{host}` is not a host")) }
}

fn prefix(path: &str) -> Result<String, String> {
    let path = path.trim_end_matches('/');
    let prefix = if path.is_empty() { DEFAULT_PREFIX } else { path };
    if prefix.len() >= PREFIX_BYTES_MAX {
        return Err(format!("its prefix has {} bytes, the maximum is {}", prefix.len(), PREFIX_BYTES_MAX - 1));
    }
    // Rejects characters that would need percent-encoding, so that a prefix has one spelling.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    if prefix.split('/').any(str::is_empty) || !prefix.bytes().all(is_plain) {
        return Err(format!("its prefix `{prefix}` may contain letters, digits, -._~ and single slashes alone"));
    }
    Ok(format!("{prefix}/"))
}

fn tls(query: &str) -> Result<Option<EtcdTls>, String> {
    let (mut ca, mut cert, mut key) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "ca" => &mut ca,
            "cert" => &mut cert,
            "key" => &mut key,
            other => return Err(format!("unknown option `{other}`; the options are ca, cert and key")),
        };
        if value.is_empty() || place.replace(PathBuf::from(value)).is_some() {
            return Err(format!("`{name}` must name one file"));
        }
    }
    match (ca, cert, key) {
        (None, None, None) => Ok(None),
        (Some(ca), None, None) => Ok(Some(EtcdTls { ca, identity: None })),
        (Some(ca), Some(cert), Some(key)) => Ok(Some(EtcdTls { ca, identity: Some((cert, key)) })),
        (None, ..) => Err("`ca` is missing: the certificates of the authorities that sign members".to_owned()),
        _ => Err("`cert` and `key` require each other".to_owned()),
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoints.join(","), self.prefix.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::Seed;

    use super::*;

    fn tls_of(ca: &str, identity: Option<(&str, &str)>) -> Option<EtcdTls> {
        Some(EtcdTls { ca: ca.into(), identity: identity.map(|(cert, key)| (cert.into(), key.into())) })
    }

    #[test]
    fn addresses_are_parsed() {
        for (text, endpoints, prefix, tls) in [
            ("etcd://a:1", &["a:1"][..], "sandbar/", None),
            ("etcd://a", &["a:2379"], "sandbar/", None),
            ("etcd://a:1/", &["a:1"], "sandbar/", None),
            ("etcd://a:1,b.c-d:65535/x/y/", &["a:1", "b.c-d:65535"], "x/y/", None),
            ("etcd://[::1]:1,[::2],10.0.0.1:3/x", &["[::1]:1", "[::2]:2379", "10.0.0.1:3"], "x/", None),
            ("etcd://a:1?ca=/c.pem", &["a:1"], "sandbar/", tls_of("/c.pem", None)),
            ("etcd://a:1/x?ca=c&cert=d&key=k", &["a:1"], "x/", tls_of("c", Some(("d", "k")))),
        ] {
            let address: EtcdAddress = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((&*address.prefix, &address.tls), (prefix, &tls), "{text}");
            assert_eq!(address.endpoints, endpoints, "{text}");
            let again: EtcdAddress = address.to_string().parse().unwrap();
            assert_eq!((again.endpoints, again.prefix), (address.endpoints, address.prefix), "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_errors() {
        for (text, reason) in [
            ("", "does not start"),
            ("http://a:1", "does not start"),
            ("etcd://", "not a host"),
            ("etcd://a:1,", "not a host"),
            ("etcd://a:0", "not a port"),
            ("etcd://a:65536", "not a port"),
            ("etcd://a:+1", "not a port"),
            ("etcd://a:", "not a port"),
            ("etcd://::1:2", "not a host"),
            ("etcd://[::1:2", "not a host"),
            ("etcd://[x]:2", "not a host"),
            ("etcd://a b:2", "not a host"),
            ("etcd://u:secret@a:1", "not supported"),
            ("etcd://a:1,a:1", "twice"),
            ("etcd://a:1/x//y", "prefix"),
            ("etcd://a:1/%20", "prefix"),
            ("etcd://a:1?tls=1", "unknown option `tls`"),
            ("etcd://a:1?ca", "name one file"),
            ("etcd://a:1?ca=x&ca=y", "name one file"),
            ("etcd://a:1?cert=c&key=k", "`ca` is missing"),
            ("etcd://a:1?ca=c&key=k", "require each other"),
        ] {
            let error = text.parse::<EtcdAddress>().unwrap_err();
            assert!(error.to_string().contains(reason) && error.code() == "meta-address", "{text}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let many = format!("etcd://{}", (0..=ENDPOINTS_MAX).map(|i| format!("h{i}:1")).collect::<Vec<_>>().join(","));
        assert!(many.parse::<EtcdAddress>().is_err());
    }

    /// Random texts are rejected, or survive a round trip.
    #[test]
    fn texts_at_random_do_no_harm() {
        const PIECES: &[&str] = &[
            "etcd://", "a", "b:1", ":", ",", "/", "?", "ca=", "cert=", "key=", "&", "=", "[::1]", "[", "@", "\u{e9}",
            "0", "%2", "..",
        ];
        let mut good = 0;
        for number in 0..50_000 {
            let mut seed = Seed::new(number);
            let mut text = if seed.below(4) == 0 { String::new() } else { "etcd://a".to_owned() };
            (0..seed.below(12)).for_each(|_| text.push_str(PIECES[seed.below(PIECES.len() as u32) as usize]));
            if let Ok(address) = text.parse::<EtcdAddress>() {
                good += 1;
                let again: EtcdAddress = address.to_string().parse().unwrap_or_else(|e| panic!("seed {number}: {e}"));
                assert_eq!((again.endpoints, again.prefix), (address.endpoints, address.prefix), "seed {number}");
            }
        }
        assert!(good > 500, "{good}");
    }
}
