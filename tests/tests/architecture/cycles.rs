//! Import cycles: files of a crate that import each other.
//!
//! Imports are read from the text: `use` declarations and inline paths that begin with `crate`, `self`, `super` or a child
//! module. A name that a module re-exports counts for the file that defines it, and the re-export itself is no import.
//! Unit tests (from the first `#[cfg(test)]` module of a file on) are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::sources;

/// Path of a module within its crate; empty for the root.
type Module = Vec<String>;

/// A source file.
#[derive(Default)]
struct File {
    /// Path in the crate's `src`.
    path: String,
    /// Names that the file defines.
    defined: BTreeSet<String>,
    /// Imported paths, and whether each is re-exported.
    named: Vec<(bool, Vec<String>)>,
}

/// Returns the cycles among the files of a crate's `src` folder, each as a sorted list of paths in that folder.
pub fn cycles(src: &Path) -> Vec<Vec<String>> {
    let files = read(src);
    let imports: BTreeMap<&Module, BTreeSet<&Module>> =
        files.keys().map(|origin| (origin, imports(&files, origin))).collect();
    let mut cycles = Vec::new();
    let mut seen = BTreeSet::new();
    for origin in files.keys().filter(|origin| !files[*origin].path.is_empty()) {
        if seen.contains(origin) {
            continue;
        }
        let cycle: BTreeSet<&Module> = reachable(&imports, origin)
            .into_iter()
            .filter(|other| reachable(&imports, other).contains(origin))
            .collect();
        seen.extend(cycle.iter().copied());
        if cycle.len() > 1 {
            cycles.push(cycle.into_iter().map(|module| files[module].path.clone()).collect());
        }
    }
    cycles
}

fn reachable<'a>(imports: &BTreeMap<&'a Module, BTreeSet<&'a Module>>, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().copied().filter(|other| reached.insert(*other)));
    }
    reached
}

fn read(src: &Path) -> BTreeMap<Module, File> {
    let mut files: BTreeMap<Module, File> = BTreeMap::new();
    let mut texts = Vec::new();
    for source in sources(src) {
        let path = source.strip_prefix(src).expect("it is below the folder").to_str().expect("it is UTF-8").to_owned();
        if path.ends_with("tests.rs") || path.contains("tests/") || path.starts_with("bindings/") {
            continue;
        }
        let mut module: Module = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            module.pop();
        }
        files.insert(module.clone(), File { path, ..File::default() });
        texts.push((module, code(&std::fs::read_to_string(&source).expect("it is text"))));
    }
    for (module, text) in texts {
        let is_child = |other: &&Module| other.len() == module.len() + 1 && other.starts_with(&module);
        let children: BTreeSet<String> =
            files.keys().filter(is_child).filter_map(|other| other.last().cloned()).collect();
        let file = files.get_mut(&module).expect("it was put in");
        file.defined = defined(&text);
        file.named = named(&text, &children);
    }
    files
}

/// Returns the text without comments and test-only items. Shortens `pub(in PATH)` to `pub`: the path is no import.
fn code(text: &str) -> String {
    let is_of_tests =
        |line: &str| ["#[cfg(test)]", "#[cfg(any(test", "#[cfg(all(test"].iter().any(|start| line.starts_with(start));
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if is_of_tests(line) {
            // An item of one line, or up to a closing brace.
            let Some(item) = lines.by_ref().find(|line| !line.starts_with("#[")) else { break };
            if !item.ends_with(';') && !item.ends_with('}') {
                lines.by_ref().find(|line| line.starts_with('}'));
            }
            continue;
        }
        let line = line.split_once("//").map_or(line, |(code, _)| code);
        let mut line = line.to_owned();
        while let Some((before, after)) = line.split_once("pub(in ") {
            line = format!("{before}pub{}", after.split_once(')').map_or("", |(_, after)| after));
        }
        kept.extend([line.as_str(), "\n"]);
    }
    kept
}

fn defined(text: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "macro_rules!"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0]));
    pairs.map(|pair| pair[1].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

fn named(text: &str, children: &BTreeSet<String>) -> Vec<(bool, Vec<String>)> {
    let mut named = Vec::new();
    let mut rest = text;
    let mut body = String::new();
    while let Some((before, after)) = next_use(rest) {
        body += before;
        let is_public = before.lines().last().is_some_and(|line| line.trim_start().starts_with("pub"));
        let Some((tree, behind)) = after.split_once(';') else { break };
        let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
        named.extend(paths(&tree).into_iter().map(|path| (is_public, path)));
        rest = behind;
    }
    body += rest;
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let inline = body.split(|c: char| !is_part(c)).filter(|word| word.contains("::"));
    for word in inline {
        let mut path: Vec<String> = word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        match path.first().map(String::as_str) {
            Some("crate" | "self" | "super") => {}
            Some(first) if children.contains(first) && !word.starts_with(':') => path.insert(0, "self".to_owned()),
            _ => continue,
        }
        named.push((false, path));
    }
    named
}

/// Returns the text before the next `use` declaration, and the text after the keyword.
fn next_use(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find("use ")?;
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let before = text[line..at].trim();
        if before.is_empty() || (before.starts_with("pub") && !before.contains('=')) {
            return Some((&text[..at], &text[at + 4..]));
        }
        from = at + 4;
    }
}

/// Returns the paths of a `use` tree.
fn paths(tree: &str) -> Vec<Vec<String>> {
    let parts = |text: &str| -> Vec<String> {
        let name = text.split(" as ").next().unwrap_or_default();
        name.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, inner)) = tree.split_once('{') else { return vec![parts(tree)] };
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut items) = (0, vec![String::new()]);
    for c in inner.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => items.push(String::new()),
            _ => items.last_mut().expect("there is one").push(c),
        }
    }
    let items = items.iter().filter(|item| !item.trim().is_empty());
    items.flat_map(|item| paths(item)).map(|path| [parts(head), path].concat()).collect()
}

/// Returns the files that a file imports.
fn imports<'a>(files: &'a BTreeMap<Module, File>, origin: &'a Module) -> BTreeSet<&'a Module> {
    let named = files[origin].named.iter().filter(|(is_public, _)| !is_public);
    let found = named.filter_map(|(_, path)| resolve(files, origin, path, &mut BTreeSet::new()));
    found.filter(|found| *found != origin).collect()
}

/// Returns the file that defines the item of a path.
fn resolve<'a>(
    files: &'a BTreeMap<Module, File>,
    origin: &Module,
    path: &[String],
    seen: &mut BTreeSet<(Module, String)>,
) -> Option<&'a Module> {
    let mut rest = path;
    let mut module = match rest.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => origin.clone(),
        "super" => origin[..origin.len().checked_sub(1)?].to_vec(),
        child => {
            files.get(&[origin.as_slice(), &[child.to_owned()]].concat())?;
            origin.clone()
        }
    };
    if matches!(rest[0].as_str(), "crate" | "self" | "super") {
        rest = &rest[1..];
    }
    while let Some(part) = rest.first() {
        match part.as_str() {
            "super" => drop(module.pop()),
            part if files.contains_key(&[module.as_slice(), &[part.to_owned()]].concat()) => {
                module.push(part.to_owned())
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    let (module, file) = files.get_key_value(&module)?;
    // Without a name, the path is of the module itself.
    let Some(name) = rest.first() else { return Some(module) };
    if name == "*" || file.defined.contains(name) || !seen.insert((module.clone(), name.clone())) {
        return Some(module);
    }
    let is_it = |path: &&(bool, Vec<String>)| path.1.last() == Some(name);
    match file.named.iter().find(is_it) {
        Some((_, path)) if path.len() > 1 => match path[0].as_str() {
            "crate" | "self" | "super" => resolve(files, module, path, seen),
            first if files.contains_key(&[module.as_slice(), &[first.to_owned()]].concat()) => {
                resolve(files, module, path, seen)
            }
            // The path names another crate.
            _ => None,
        },
        _ => Some(module),
    }
}

#[test]
fn cycles_are_found_through_re_exports() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "lib.rs",
        "#[cfg(test)]\nmod a_test;\nmod a;\nmod b;\nmod c;\nmod d;\nmod e;\nmod f;\nmod g;\npub use a::A;\npub use b::{B, make as build};\n",
    );
    write("a.rs", "use crate::B;\npub struct A(B);\n");
    write("b.rs", "use super::c::C;\npub struct B(C);\npub fn make() -> crate::a::A { crate::a::A }\n");
    write("c.rs", "// crate::A\npub struct C;\n#[cfg(test)]\nmod tests { use crate::A; }\n");
    write("d.rs", "use crate::{c, e};\npub fn d() { e::e(c::C) }\n");
    write("e.rs", "pub(in crate::d) fn e(_: crate::c::C) { super::d::d() }\n");
    write("f.rs", "pub(in crate::g) struct F(pub(in crate::g) u8);\n");
    write("g.rs", "pub use crate::f::F;\npub struct G(crate::f::F);\n");
    write("a_test.rs", "use crate::A;\n");
    assert_eq!(cycles(folder.path()), [["a.rs", "b.rs"], ["d.rs", "e.rs"]]);
}
