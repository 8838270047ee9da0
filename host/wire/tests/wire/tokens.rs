//! Join tokens: their text form and their checks.

use std::time::Duration;

use sandbar_seeds::{PrintSeedOnPanic, seeds};
use sandbar_wire::*;

use crate::support::*;

fn token(cluster: &Cluster, grant: JoinGrant) -> JoinToken {
    cluster.authority.token(grant, false, Duration::from_secs(TOKEN_LIFETIME_S), now()).unwrap()
}

#[test]
fn a_token_survives_being_copied() {
    let cluster = Cluster::new();
    let token = token(&cluster, JoinGrant::Tenant(n("acme"), TenantRole::Submitter));
    let text = token.to_text();
    assert!(text.starts_with("sbt2-"), "{text}");
    let wrapped =
        text.as_bytes().chunks(30).map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>().join("\r\n  ");
    for copy in [text.clone(), format!("  {text}\n"), wrapped, text.to_uppercase()] {
        assert_eq!(copy.parse::<JoinToken>(), Ok(token.clone()), "{copy}");
    }
    assert!(text.len() < 400, "{} characters", text.len());
}

#[test]
fn errors_of_token_text_are_described() {
    let cluster = Cluster::new();
    let text = token(&cluster, JoinGrant::Node).to_text();
    let whole = text.len() - 5;
    let changed = |at: usize, to: &str| format!("{}{to}{}", &text[..at], &text[at + 1..]);
    let other = if &text[50..51] == "a" { "b" } else { "a" };
    for (text, expected) in [
        (String::new(), TokenError::Truncated { has: 0, whole: None }),
        ("sbt".to_owned(), TokenError::Truncated { has: 0, whole: None }),
        ("sbt2-".to_owned(), TokenError::Truncated { has: 0, whole: None }),
        ("sbt2-ab".to_owned(), TokenError::Truncated { has: 2, whole: None }),
        ("hello".to_owned(), TokenError::Prefix),
        ("sbt1-abc".to_owned(), TokenError::Prefix),
        (text[..text.len() - 1].to_owned(), TokenError::Truncated { has: whole - 1, whole: Some(whole) }),
        (text[..100].to_owned(), TokenError::Truncated { has: 95, whole: Some(whole) }),
        (format!("{text}a"), TokenError::TooLong { has: whole + 1, whole }),
        (format!("{text}{text}"), TokenError::Character { at: text.len() + 5 }),
        (changed(50, "!"), TokenError::Character { at: 51 }),
        (changed(50, "ß"), TokenError::Character { at: 51 }),
        (changed(50, other), TokenError::Damaged),
    ] {
        assert_eq!(text.parse::<JoinToken>(), Err(expected), "{text}");
    }
    let error = text[..100].parse::<JoinToken>().unwrap_err();
    let message = format!("the join token is cut off: it has 95 characters after `sbt2-`, not {whole}; copy it again");
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_token_grants_its_role_and_name() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let trust = cluster.authority.trust();
    let (node, tenant) =
        (token(&cluster, JoinGrant::Node), token(&cluster, JoinGrant::Tenant(n("acme"), TenantRole::Submitter)));
    let skew = CLOCK_SKEW_S_MAX;
    let at = |offset: i64| Timestamp(node.issued().0.saturating_add_signed(offset));
    let ends = TOKEN_LIFETIME_S as i64;
    for (token, trust, role, name, at, code) in [
        (&node, trust, Role::Node, "n1", at(0), None),
        (&node, trust, Role::Node, "n2", at(0), None),
        (&node, trust, Role::Tenant, "n1", at(0), Some("token-other-role")),
        (&tenant, trust, Role::Tenant, "acme", at(0), None),
        (&tenant, trust, Role::Tenant, "other", at(0), Some("token-other-role")),
        (&tenant, trust, Role::Node, "acme", at(0), Some("token-other-role")),
        (&node, trust, Role::Node, "n1", at(ends + skew as i64), None),
        (&node, trust, Role::Node, "n1", at(ends + skew as i64 + 1), Some("token-expired")),
        (&node, trust, Role::Node, "n1", at(-(skew as i64)), None),
        (&node, trust, Role::Node, "n1", at(-(skew as i64) - 1), Some("token-not-yet")),
        (&node, other.authority.trust(), Role::Node, "n1", at(0), Some("token-other-cluster")),
    ] {
        let checked = token.check(trust, role, &n(name), at);
        assert_eq!(checked.as_ref().err().map(|error| error.code()), code, "{checked:?}");
    }
    let late = node.check(trust, Role::Node, &n("n1"), at(2 * DAY as i64)).unwrap_err().to_string();
    assert!(late.contains(&node.expires().to_string()) && late.contains(&at(2 * DAY as i64).to_string()), "{late}");
}

#[test]
fn tokens_are_short_lived() {
    let cluster = Cluster::new();
    for (seconds, is_one) in [(0, false), (1, true), (TOKEN_LIFETIME_S_MAX, true), (TOKEN_LIFETIME_S_MAX + 1, false)] {
        assert_eq!(
            cluster.authority.token(JoinGrant::Node, false, Duration::from_secs(seconds), now()).is_ok(),
            is_one
        );
    }
}

/// The checksum does not prevent forgery; the signature does.
#[test]
fn a_token_with_a_right_sum_and_no_signature_is_forged() {
    let cluster = Cluster::new();
    let text = token(&cluster, JoinGrant::Tenant(n("acme"), TenantRole::Submitter)).to_text();
    let mut bytes = unbase32(&text[5..]);
    let at = bytes.windows(4).position(|window| window == b"acme").unwrap();
    bytes[at..at + 4].copy_from_slice(b"evil");
    let end = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..end]).to_be_bytes();
    bytes[end..].copy_from_slice(&sum);
    let forged: JoinToken = format!("sbt2-{}", base32(&bytes)).parse().unwrap();
    assert_eq!(forged.grant(), &JoinGrant::Tenant(n("evil"), TenantRole::Submitter));
    let error = forged.check(cluster.authority.trust(), Role::Tenant, &n("evil"), now()).unwrap_err();
    assert_eq!(error.code(), "token-forged", "{error}");
}

#[test]
fn errors_and_debug_output_give_no_secret_away() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let token = token(&cluster, JoinGrant::Node);
    let text = token.to_text();
    let secret = &text[text.len() - 60..];
    let errors = [
        token.check(other.authority.trust(), Role::Node, &n("n1"), now()).unwrap_err().to_string(),
        token.check(cluster.authority.trust(), Role::Node, &n("n1"), Timestamp(0)).unwrap_err().to_string(),
        text[..80].parse::<JoinToken>().unwrap_err().to_string(),
        format!("{token:?}"),
        format!("{:?}", Key::generate().unwrap()),
        format!("{:?}", cluster.authority),
    ];
    for message in errors {
        let message = message.to_lowercase();
        assert!(!message.contains(secret) && !message.contains(&text[10..40]), "{message}");
    }
}

/// Random text and randomly damaged tokens never parse as another token.
#[test]
fn damaged_tokens_are_refused() {
    use rand_xoshiro::rand_core::{RngCore, SeedableRng};
    let cluster = Cluster::new();
    let good = token(&cluster, JoinGrant::Node);
    let text: Vec<char> = good.to_text().chars().collect();
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567-ABC018 !\n\xc3";
    for seed in seeds(20_000) {
        let _seed = PrintSeedOnPanic(seed);
        let mut random = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let mut damaged = if below(4) == 0 { "sbt2-".chars().collect() } else { text.clone() };
        for _ in 0..1 + below(6) {
            let (at, letter) = (below(damaged.len() + 1), char::from(LETTERS[below(LETTERS.len())]));
            match below(4) {
                0 if at < damaged.len() => damaged[at] = letter,
                1 => damaged.truncate(at),
                2 if at < damaged.len() => drop(damaged.remove(at)),
                _ => damaged.insert(at, letter),
            }
        }
        let damaged: String = damaged.into_iter().collect();
        if let Ok(read) = damaged.parse::<JoinToken>() {
            assert!(read == good, "{damaged}");
        }
    }
}

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

fn base32(bytes: &[u8]) -> String {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let value = |bits: &[u8]| (0..5).fold(0, |value, at| value << 1 | bits.get(at).copied().unwrap_or(0));
    bits.chunks(5).map(|bits| char::from(LETTERS[usize::from(value(bits))])).collect()
}

fn unbase32(text: &str) -> Vec<u8> {
    let value = |c: char| LETTERS.iter().position(|letter| char::from(*letter) == c).unwrap();
    let bits: Vec<usize> = text.chars().flat_map(|c| (0..5).rev().map(move |bit| value(c) >> bit & 1)).collect();
    bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | *bit as u8)).collect()
}
