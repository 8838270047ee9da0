//! Structs that have become too much: many fields, and methods in many files.

use std::collections::BTreeMap;
use std::path::Path;

use super::sources;

/// Maximum fields of a struct with methods in more files than [`FILES_MAX`].
pub const FIELDS_MAX: usize = 12;
/// Maximum files with methods of a struct with more fields than [`FIELDS_MAX`].
pub const FILES_MAX: usize = 3;

/// Returns the structs of a folder that exceed both limits, with the numbers of their fields and of files.
pub fn oversized(folder: &Path) -> Vec<(String, usize, usize)> {
    let texts: Vec<String> =
        sources(folder).iter().map(|path| std::fs::read_to_string(path).expect("a file")).collect();
    let fields: BTreeMap<&str, usize> = texts.iter().flat_map(|text| structs(text)).collect();
    let many = fields.into_iter().filter(|(_, fields)| *fields > FIELDS_MAX);
    let count = |(name, fields): (&str, usize)| {
        let files = texts.iter().filter(|text| text.lines().any(|line| is_impl_of(line, name))).count();
        (name.to_owned(), fields, files)
    };
    many.map(count).filter(|(_, _, files)| *files > FILES_MAX).collect()
}

/// Returns the structs with named fields, and the numbers of their fields.
fn structs(text: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let declaration = without_visibility(line.trim_start());
        let Some(rest) = declaration.strip_prefix("struct ").filter(|_| line.ends_with('{')) else { continue };
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines.by_ref().take_while(|line| *line != end);
        let is_field = |line: &&str| {
            let field = without_visibility(line.trim_start());
            let name = field.split(':').next().unwrap_or_default();
            let of_struct = line.len() - line.trim_start().len() == indent + 4;
            of_struct
                && field.contains(':')
                && !name.is_empty()
                && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        found.push((name, body.filter(is_field).count()));
    }
    found
}

/// Returns a declaration without its visibility.
fn without_visibility(declaration: &str) -> &str {
    let Some(rest) = declaration.strip_prefix("pub") else { return declaration };
    match rest.strip_prefix('(') {
        Some(within) => within.split_once(") ").map_or(declaration, |(_, rest)| rest),
        None => rest.trim_start(),
    }
}

/// Returns whether a line begins an `impl` of a type.
fn is_impl_of(line: &str, name: &str) -> bool {
    let Some(rest) = line.trim_start().strip_prefix("impl") else { return false };
    let target = rest.rsplit_once(" for ").map_or(rest, |(_, target)| target);
    let target = without_parameters(target).trim_start();
    target.strip_prefix(name).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Returns what follows the generic parameters at the start of a text, if it has any.
fn without_parameters(text: &str) -> &str {
    let (mut depth, mut before) = (0, ' ');
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = character;
        if depth == 0 {
            return if at == 0 { text } else { &text[at + 1..] };
        }
    }
    text
}

#[test]
fn fields_and_impls_are_counted() {
    let text = "pub(crate) struct A<T> {\n    /// Text: not a field.\n    pub(crate) a: T,\n    b: Vec<(u8, u8)>,\n}\n\
                struct B(u8);\n    struct C {\n        c: u8,\n    }\n";
    assert_eq!(structs(text), [("A", 2), ("C", 1)]);
    for (line, expected) in [
        ("impl A {", true),
        ("impl<T: Fn(u8) -> u8> A<T> {", true),
        ("impl Drop for A {", true),
        ("impl<'a> From<B> for A<'a> {", true),
        ("impl From<A> for B {", false),
        ("impl AB {", false),
    ] {
        assert_eq!(is_impl_of(line, "A"), expected, "{line}");
    }
}
