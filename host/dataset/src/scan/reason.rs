//! Reasons of failures, for messages.

use std::error::Error;

use crate::error::strip_bug_report_notice;

/// Maximum characters of a reader's message, which may quote a row.
const REASON_CHARS_MAX: usize = 400;

/// Prefixes with which libraries mark the origin of a message.
const PREFIXES: [&str; 15] = [
    "Arrow error: ",
    "Cast error: ",
    "Compute error: ",
    "Csv error: ",
    "Error during planning: ",
    "Execution error: ",
    "External: ",
    "Invalid argument error: ",
    "Json error: ",
    "Object Store error: ",
    "Parquet error: ",
    "Parser error: ",
    "Schema error: ",
    "SQL error: ",
    "sql parser error: ",
];

/// Returns the innermost cause of an error, in one line of limited length.
pub(super) fn reason_of(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    // The error that embeds this message states whose fault it is.
    let text = cause.to_string().replace("Internal error: ", "");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = strip_bug_report_notice(&text);
    while let Some(rest) = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)) {
        text = rest;
    }
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Describes a panic in a reader.
pub(super) fn reason_of_panic(panic: &(dyn std::any::Any + Send)) -> String {
    format!("it is damaged, and the reader gave up: {}", message_of_panic(panic))
}

/// Returns the message of a panic.
pub(super) fn message_of_panic(panic: &(dyn std::any::Any + Send)) -> &str {
    let message = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    message.unwrap_or("no reason given")
}
