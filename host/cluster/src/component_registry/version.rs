//! Names and versions of components.

use std::fmt;
use std::str::FromStr;

use sandbar_wire::{Name, NameError};
use semver::Version;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum characters of a version.
const VERSION_CHARS_MAX: usize = 64;

/// Name and version of a component, written `NAME@VERSION`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComponentVersion {
    /// Name: lower-case letters, digits and dashes.
    pub name: Name,
    /// Version, by the rules of [Semantic Versioning](https://semver.org).
    #[serde(serialize_with = "write_version", deserialize_with = "read_version")]
    pub version: Version,
}

impl fmt::Display for ComponentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

impl FromStr for ComponentVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<ComponentVersion, String> {
        let Some((name, version)) = text.split_once('@') else {
            return Err("no version: write NAME@VERSION, such as fares@1.2.0".to_owned());
        };
        Ok(ComponentVersion { name: parse_name(name)?, version: parse_version(version)? })
    }
}

pub(super) fn parse_name(text: &str) -> Result<Name, String> {
    text.parse().map_err(|e: NameError| e.to_string())
}

pub(super) fn parse_version(text: &str) -> Result<Version, String> {
    if text.len() > VERSION_CHARS_MAX {
        return Err(format!("a version has at most {VERSION_CHARS_MAX} characters"));
    }
    text.parse().map_err(|e| format!("`{text}` is not a version such as 1.2.0: {e}"))
}

fn write_version<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(version)
}

fn read_version<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
    parse_version(&String::deserialize(from)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        let long = format!("a@1.0.0-{}", "x".repeat(58));
        for (text, error) in [
            ("fares@1.2.0", None),
            ("fares@1.2.0-rc.1+build.7", None),
            ("fares", Some("no version")),
            ("@1.0.0", Some("1 to 63 characters")),
            ("Fares@1.0.0", Some("'F'")),
            ("../x@1.0.0", Some("'.'")),
            ("fares@1.2", Some("not a version such as 1.2.0")),
            ("fares@", Some("not a version")),
            ("fares@01.0.0", Some("not a version")),
            ("fares@1.0.0/../../jobs", Some("not a version")),
            (&long, None),
            (&format!("{long}x"), Some("at most 64 characters")),
        ] {
            match (text.parse::<ComponentVersion>(), error) {
                (Ok(version), None) => {
                    assert_eq!(version.to_string(), text);
                    let json = serde_json::to_string(&version).unwrap();
                    assert_eq!(serde_json::from_str::<ComponentVersion>(&json).unwrap(), version);
                }
                (Err(message), Some(error)) => assert!(message.contains(error), "{text}: {message}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
    }

    /// Versions in messages follow the same rules as those of the command line.
    #[test]
    fn messages_have_valid_versions() {
        for (name, version) in [("a", "1.0"), ("A", "1.0.0"), ("a", &format!("1.0.0-{}", "x".repeat(60)))] {
            let json = serde_json::json!({ "name": name, "version": version });
            assert!(serde_json::from_value::<ComponentVersion>(json).is_err(), "{name} {version}");
        }
    }
}
