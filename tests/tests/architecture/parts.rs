//! Parts of the runtime's engine: each owns state, and imports none of the others. The engine alone composes them.

use std::path::Path;

use super::sources;

/// Files, and folders, of parts with state.
const PARTS: &[&str] = &[
    "backpressure",
    "deadlines",
    "deadlocks",
    "files",
    "jobs",
    "leases",
    "objects",
    "peers",
    "unmet_demands",
    "workers",
];

/// Returns imports of other parts, as `file: line`.
pub fn imports_of_other_parts(engine: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = 0;
    for path in sources(engine) {
        let relative =
            path.strip_prefix(engine).expect("it is in the folder").to_str().expect("it is UTF-8").to_owned();
        let part = relative.split(['/', '.']).next().unwrap_or_default().to_owned();
        if !PARTS.contains(&part.as_str()) {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).expect("a file");
        // Unit tests may compose.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        // Files of a folder are one level deeper, but for its `mod.rs`.
        let levels = relative.split('/').count() - usize::from(relative.ends_with("/mod.rs"));
        let prefix = "super::".repeat(levels);
        for line in text.lines() {
            let names = |path: String| line.match_indices(&path).any(|(at, _)| !line[..at].ends_with("super::"));
            let listed = line.split_once(&format!("{prefix}{{")).map_or("", |(_, listed)| listed);
            let is_listed = |other: &str| listed.split([',', '{', '}', ':', ' ']).any(|name| name == other);
            let imports = |other: &&str| {
                names(format!("{prefix}{other}::")) || names(format!("engine::{other}::")) || is_listed(other)
            };
            if PARTS.iter().filter(|other| **other != part).any(imports) {
                found.push(format!("{relative}: {}", line.trim()));
            }
        }
    }
    assert!(seen >= PARTS.len(), "parts are missing: {seen} files");
    found
}
