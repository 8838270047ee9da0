//! Parses a page of documentation into labeled blocks.

use std::path::Path;

/// Labels of code blocks.
pub const LABELS: [(&str, Label); 7] = [
    ("sh", Label::Shell),
    ("console", Label::Console),
    ("rust", Label::Rust),
    ("rust,ignore", Label::Excerpt),
    ("toml", Label::Job),
    ("json", Label::Json),
    ("text", Label::Text),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    /// Commands to run; all of a page share one shell.
    Shell,
    /// Commands behind prompts (`first$ host serve`), for several machines, and their output. The test parses the
    /// host's commands and does not run them.
    Console,
    /// Items of a crate; all of a page form one file, whose tests are run.
    Rust,
    /// Rust that does not compile by itself.
    Excerpt,
    /// A job file, or a part of one.
    Job,
    /// A JSON value.
    Json,
    /// Output. Behind a block of commands: lines that these print, in this order; `…` matches any text.
    Text,
}

/// Text between two fences.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub label: Label,
    /// Line of the opening fence, from 1.
    pub line: usize,
    pub text: String,
}

/// A page of documentation.
pub struct Page {
    /// Path in the checkout.
    pub name: String,
    pub blocks: Vec<Block>,
}

impl Page {
    /// # Errors
    /// Names the page and line of a fence without a known label, with indentation or without an end.
    pub fn parse(name: &str, text: &str) -> Result<Page, String> {
        let blocks = blocks(text).map_err(|(line, reason)| format!("{name}:{line}: {reason}"))?;
        Ok(Page { name: name.to_owned(), blocks })
    }

    /// # Errors
    /// As [`Page::parse`], and if the file can't be read.
    pub fn read(checkout: &Path, name: &str) -> Result<Page, String> {
        let text = std::fs::read_to_string(checkout.join(name)).map_err(|e| format!("{name}: {e}"))?;
        Page::parse(name, &text)
    }

    pub fn blocks(&self, label: Label) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.label == label)
    }

    /// Returns the page with the blocks of one label only: `fence` replaces their opening fences, all other lines are
    /// empty. Line numbers stay those of the page, so that compilers and shells report them.
    pub fn only(&self, label: Label, fence: impl Fn(&Block) -> String) -> String {
        let mut lines: Vec<String> = Vec::new();
        for block in self.blocks(label) {
            lines.resize(block.line - 1, String::new());
            lines.push(fence(block));
            lines.extend(block.text.lines().map(str::to_owned));
        }
        lines.join("\n") + "\n"
    }
}

/// Returns the blocks of a page, or the line and reason of an error.
fn blocks(text: &str) -> Result<Vec<Block>, (usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match &mut open {
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some(block) => block.text.extend([line, "\n"]),
            None => open = opened(line, index + 1).map_err(|reason| (index + 1, reason))?,
        }
    }
    match open {
        Some(block) => Err((block.line, "this block is never closed".to_owned())),
        None => Ok(blocks),
    }
}

/// Returns the block that a line opens.
fn opened(line: &str, number: usize) -> Result<Option<Block>, String> {
    let is_fence = ["```", "~~~"].iter().any(|fence| line.trim_start().starts_with(fence));
    if !is_fence {
        return Ok(None);
    }
    let known = LABELS.map(|(name, _)| name).join(", ");
    let Some(name) = line.strip_prefix("```") else {
        return Err("a fence is ``` at the begin of its line".to_owned());
    };
    match LABELS.iter().find(|(label, _)| *label == name) {
        Some((_, label)) => Ok(Some(Block { label: *label, line: number, text: String::new() })),
        None if name.is_empty() => Err(format!("this block has no label; it is one of {known}")),
        None => Err(format!("`{name}` is no label of a block; it is one of {known}")),
    }
}

#[test]
fn blocks_are_found_by_their_labels() {
    let page = Page::parse("p.md", "a\n```sh\necho 1\n\necho 2\n```\nb\n```rust,ignore\nlet x;\n```\n").unwrap();
    let block = |label, line, text: &str| Block { label, line, text: text.to_owned() };
    assert_eq!(page.blocks, [block(Label::Shell, 2, "echo 1\n\necho 2\n"), block(Label::Excerpt, 8, "let x;\n")]);
    assert_eq!(page.only(Label::Shell, |_| "#".to_owned()), "\n#\necho 1\n\necho 2\n");
}

#[test]
fn faults_of_fences_are_named() {
    for (text, expected_text) in [
        ("```\nx\n```\n", "p.md:1: this block has no label"),
        ("a\n\n```bash\nx\n```\n", "p.md:3: `bash` is no label of a block; it is one of sh, console"),
        ("```sh \nx\n```\n", "p.md:1: `sh ` is no label"),
        ("- a\n  ```sh\n  x\n  ```\n", "p.md:2: a fence is ``` at the begin of its line"),
        ("~~~sh\nx\n~~~\n", "p.md:1: a fence is ``` at the begin of its line"),
        ("```sh\nx\n```\n```text\ny\n", "p.md:4: this block is never closed"),
    ] {
        let error = Page::parse("p.md", text).map(|_| ()).unwrap_err();
        assert!(error.starts_with(expected_text), "{text:?}: {error}");
    }
}
