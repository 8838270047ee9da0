//! Text of guests, files, peers and tenants, as a terminal may show it.
//!
//! Control characters move a terminal's cursor, bidirectional ones reorder what stands beside them, and others are not
//! visible at all: each could make a name or a line look like another. All of them are shown as escapes.

use std::borrow::Cow;

/// Escapes the characters of a text that have no form of their own, except for ends of lines.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.escape_default().collect())
}

/// Escapes the same characters of encoded JSON. They occur only in its strings, so that its values stay the same.
pub(crate) fn plain_json(json: &str) -> Cow<'_, str> {
    escaped(json, |c| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    let is_shown = |c: char| c == '\n' || !is_hidden(c);
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_shown(c) {
            true => out.push(c),
            false => out.push_str(&escape(c)),
        }
    }
    Cow::Owned(out)
}

/// Returns whether a character has no form of its own: it is invisible, or changes what stands beside it.
fn is_hidden(c: char) -> bool {
    match c {
        ' '..='~' => false,
        // Letters and marks that Unicode tells programs to ignore (Default_Ignorable_Code_Point). Selectors of the
        // form of the character before them, which emoji use, are shown.
        '\u{34f}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{3164}'
        | '\u{ffa0}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        // Spaces of other widths.
        _ if c.is_whitespace() && !c.is_control() => matches!(c, '\u{2028}' | '\u{2029}'),
        // The standard library knows which characters are not printable: those of the categories Cc, Cf, Co and Cn. It
        // also escapes a mark at the start of a text.
        _ => {
            let mut text = [b'a', 0, 0, 0, 0];
            let length = 1 + c.encode_utf8(&mut text[1..]).len();
            std::str::from_utf8(&text[..length]).map_or(true, |text| text.escape_debug().count() > 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_form_is_escaped() {
        for (text, expected) in [
            ("über\n- 10 µs", "über\n- 10 µs"),
            ("it's \"quoted\" \\ so", "it's \"quoted\" \\ so"),
            ("ä a\u{308} 日本語　ﷺ 👍🏽 ✔\u{fe0f} a\u{a0}b", "ä a\u{308} 日本語　ﷺ 👍🏽 ✔\u{fe0f} a\u{a0}b"),
            ("\x1b[2Jgone", "\\u{1b}[2Jgone"),
            ("a\r\tb\x07\u{9b}", "a\\r\\tb\\u{7}\\u{9b}"),
            ("user\u{202e}gpj.exe", "user\\u{202e}gpj.exe"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{2028}\u{2029}\u{85}", "\\u{2028}\\u{2029}\\u{85}"),
            ("\u{e0041}\u{e0100}\u{3164}", "\\u{e0041}\\u{e0100}\\u{3164}"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn all_bidirectional_and_invisible_characters_are_hidden() {
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{ad}'..='\u{ad}',
            '\u{61c}'..='\u{61c}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{206f}',
            '\u{feff}'..='\u{feff}',
            '\u{fff9}'..='\u{fffb}',
            '\u{1bca0}'..='\u{1bca3}',
            '\u{1d173}'..='\u{1d17a}',
            '\u{e0000}'..='\u{e0fff}',
        ];
        for c in ranges.into_iter().flatten() {
            assert!(is_hidden(c), "{c:?}");
        }
    }

    #[test]
    fn json_keeps_its_values() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{e0041}\u{7f}", "\n\"", "日"] });
        let json = value.to_string();
        let escaped = plain_json(&json);
        assert_eq!(escaped, r#"{"a\u202e":["\udb40\udc41\u007f","\n\"","日"]}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).ok(), Some(value));
    }
}
