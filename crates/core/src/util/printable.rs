//! Printable text: text from outside, without the characters that control a terminal.
//!
//! Names of jobs and objects, labels and messages of servers come from other users. An escape
//! sequence in one can rewrite what a terminal shows, and a line feed can forge a line of a log. So
//! printers escape such characters: `\u{1b}`.

use std::borrow::Cow;

/// Whether a terminal would act on the character instead of showing it: controls, and marks that
/// reorder the text around them.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(character, '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// The text with all control characters escaped, on one line.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, is_control)
}

/// The same for a text of several lines: line feeds and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape(text, |character| is_control(character) && !matches!(character, '\n' | '\t'))
}

/// A text of JSON with the control characters in its strings escaped, as JSON does it. The ones
/// that JSON itself requires are escaped already.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let is_raw = |character| is_control(character) && character != '\n';
    if !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_raw(character) {
            // All of them are in the basic plane.
            escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_escaped(character) {
            escaped.extend(character.escape_unicode());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_left() {
        for character in (0..=0x10_ffff).filter_map(char::from_u32) {
            let text = format!("a{character}b");
            let shown = printable(&text);
            assert!(!shown.contains(is_control), "{character:?}");
            assert!(shown == text || is_control(character), "{character:?} is kept");
            assert!(!printable_json(&text).replace('\n', "").contains(is_control));
        }
        assert_eq!(printable("\u{1b}[31m\n\u{9b}"), "\\u{1b}[31m\\u{a}\\u{9b}");
        assert_eq!(printable_lines("a\n\tb\r\u{202e}"), "a\n\tb\\u{d}\\u{202e}");
        assert_eq!(printable_json("{\n\"\u{9b}\u{7f}\"}"), "{\n\"\\u009b\\u007f\"}");
        assert!(matches!(printable("größer 数据"), Cow::Borrowed(_)));
    }
}
