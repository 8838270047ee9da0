//! Components as jobs name them.

use sandbar_wire::Name;
use semver::Version;

use super::error::ComponentError;
use super::record::RegisteredComponent;
use super::version::{ComponentVersion, parse_name, parse_version};

/// A component as jobs name it: `component:NAME@VERSION`, or `component:NAME` for its last release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentReference {
    name: Name,
    version: Option<Version>,
}

impl ComponentReference {
    /// Parses `NAME@VERSION` or `NAME`.
    ///
    /// # Errors
    /// Fails if the name or the version is invalid.
    pub fn parse(text: &str) -> Result<ComponentReference, String> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        Ok(ComponentReference { name: parse_name(name)?, version: version.map(parse_version).transpose()? })
    }

    /// Finds the component among all that are registered: that of the version, or else the one with the highest version. A
    /// prerelease is chosen only if there is no release. A yanked component is found only by its version, and only if `may_be_yanked`.
    ///
    /// # Errors
    /// Fails if there is none, or that of the version was yanked.
    pub fn find(
        self,
        all: &[RegisteredComponent],
        may_be_yanked: bool,
    ) -> Result<&RegisteredComponent, ComponentError> {
        let of_name = || all.iter().filter(|each| each.pushed.version.name == self.name);
        if let Some(version) = &self.version {
            let found = of_name().find(|each| each.pushed.version.version == *version);
            return match found {
                Some(found) if found.yanked && !may_be_yanked => {
                    Err(ComponentError::Yanked(found.pushed.version.clone()))
                }
                Some(found) => Ok(found),
                None => Err(ComponentError::Unknown(ComponentVersion { name: self.name, version: version.clone() })),
            };
        }
        let usable = of_name().filter(|each| !each.yanked);
        let rank = |each: &&RegisteredComponent| {
            let version = &each.pushed.version.version;
            (version.pre.is_empty(), version.clone())
        };
        usable.max_by_key(rank).ok_or(ComponentError::UnknownName(self.name))
    }
}

#[cfg(test)]
mod tests {
    use sandbar_core::ComponentId;

    use super::super::record::NewComponent;
    use super::*;

    #[test]
    fn references_find_the_last_release() {
        let registered = |text: &str| {
            let (version, yanked) = text.strip_suffix('!').map_or((text, false), |version| (version, true));
            let (component, version) = (ComponentId::from_digest([7; 32]), version.parse().unwrap());
            let pushed = NewComponent { version, component, bytes: 1, signature: None };
            RegisteredComponent { pushed, pushed_ms: 0, functions: Vec::new(), yanked }
        };
        let all = ["a@1.9.0", "a@1.10.0", "a@2.0.0-rc.1", "a@3.0.0!", "b@1.0.0-rc.1", "b@1.0.0-rc.2", "c@1.0.0!"];
        let all = all.map(registered);
        for (reference, expected) in [
            ("a", "a@1.10.0"),
            ("a@1.9.0", "a@1.9.0"),
            ("a@2.0.0-rc.1", "a@2.0.0-rc.1"),
            ("a@3.0.0", "yanked"),
            ("a@4.0.0", "no-component"),
            ("b", "b@1.0.0-rc.2"),
            ("c", "no-component"),
            ("d", "no-component"),
        ] {
            let found = ComponentReference::parse(reference).unwrap().find(&all, false);
            let found = found.map_or_else(|error| error.code().to_owned(), |found| found.pushed.version.to_string());
            assert_eq!(found, expected, "{reference}");
        }
        let yanked = ComponentReference::parse("a@3.0.0").unwrap().find(&all, true);
        assert_eq!(yanked.unwrap().pushed.version.to_string(), "a@3.0.0");
        for invalid in ["", "A", "a@", "a@1", "a/b"] {
            assert!(ComponentReference::parse(invalid).is_err(), "{invalid}");
        }
    }
}
