//! Rule `words`: words to avoid, with their replacements.
//!
//! The list is here and nowhere else. Three habits are on it: persons for processes, quantities
//! without the quantity, and archaisms. A phrase is also found across a line break and in an
//! identifier (`waits_in_vain`).

use super::{Violation, tree::Tree};

pub const REMEDY: &str = "say it in plain technical English (STYLE.md)";

/// Files that have to name the words.
const EXCEPTED: [&str; 3] = ["STYLE.md", "GLOSSARY.md", "xtask/src/tidy/words.rs"];

const PERSON: &str = "name the component: the client, the node, the caller, another job";
const QUANTITY: &str = "say the number or name the parameter";
const AGAIN: &str = "again, from scratch, or new";

const AVOIDED: [(&str, &str); 44] = [
    ("whoever", PERSON),
    ("whomever", PERSON),
    ("nobody", PERSON),
    ("somebody", PERSON),
    ("anybody", PERSON),
    ("everybody", PERSON),
    ("someone", PERSON),
    ("anyone", PERSON),
    ("everyone", PERSON),
    ("one who", PERSON),
    ("those who", PERSON),
    ("who lives", "is alive"),
    ("is told", "receives, reads, or gets"),
    ("are told", "receive, read, or get"),
    ("knows of", "has, holds, or lists"),
    ("know of", "have, hold, or list"),
    ("takes counsel", "sends cluster messages"),
    ("take counsel", "send cluster messages"),
    ("means well", "is trusted, or is correct"),
    ("mean well", "are trusted, or are correct"),
    ("so many", QUANTITY),
    ("so much", QUANTITY),
    ("so few", QUANTITY),
    ("so long", QUANTITY),
    ("so often", QUANTITY),
    ("so seldom", QUANTITY),
    ("as many as", QUANTITY),
    ("as often as", QUANTITY),
    ("nought", "zero, or nothing"),
    ("naught", "zero, or nothing"),
    ("anew", AGAIN),
    ("afresh", AGAIN),
    ("in vain", "timed out, or without effect"),
    ("of use", "useful"),
    ("the mind of", "name the state"),
    ("thus far", "so far, or up to here"),
    ("hitherto", "until now"),
    ("amidst", "during, or in"),
    ("whilst", "while"),
    ("lest", "so that … not"),
    ("whence", "from where"),
    ("to mend", "to fix"),
    ("mended", "fixed"),
    ("for all to see", "visible, or printed"),
];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let files = tree.with_extension(&["rs", "py", "md"]);
    let files = files.filter(|file| !EXCEPTED.contains(&file.path.as_str()));
    files.flat_map(|file| found(&file.path, &file.text)).collect()
}

/// A line with this marker may quote a word to avoid.
const ALLOWED_HERE: &str = "tidy: allow";

fn found(path: &str, text: &str) -> Vec<Violation> {
    let words = split(text);
    let mut violations = Vec::new();
    for at in 0..words.len() {
        // Most words are ruled out here, before any phrase is compared.
        let initial = text.as_bytes()[words[at].start].to_ascii_lowercase();
        let avoided = AVOIDED.iter().filter(|(phrase, _)| phrase.as_bytes()[0] == initial);
        for (phrase, instead) in avoided {
            let line = || text.lines().nth(words[at].line - 1).unwrap_or_default();
            if is_at(phrase, text, &words[at..]) && !line().contains(ALLOWED_HERE) {
                let message = format!("`{phrase}`: {instead}");
                violations.push(Violation::at(path, words[at].line, message));
            }
        }
    }
    violations
}

/// A run of letters.
struct Word {
    start: usize,
    end: usize,
    line: usize,
}

fn split(text: &str) -> Vec<Word> {
    let (mut words, mut line, mut start) = (Vec::new(), 1, None);
    for (at, char) in text.char_indices().chain([(text.len(), '\n')]) {
        match (char.is_alphabetic(), start) {
            (true, None) => start = Some(at),
            (false, Some(begun)) => {
                words.push(Word { start: begun, end: at, line });
                start = None;
            }
            _ => {}
        }
        line += usize::from(char == '\n');
    }
    words
}

/// Whether these words begin with the phrase.
fn is_at(phrase: &str, text: &str, words: &[Word]) -> bool {
    let mut before: Option<&Word> = None;
    for (at, wanted) in phrase.split(' ').enumerate() {
        let Some(word) = words.get(at) else { return false };
        let is_next = before.is_none_or(|before| is_gap(&text[before.end..word.start]));
        if !is_next || !text[word.start..word.end].eq_ignore_ascii_case(wanted) {
            return false;
        }
        before = Some(word);
    }
    true
}

/// Whether a phrase goes on after this: space, a line break with marks of a comment, or `_`.
fn is_gap(text: &str) -> bool {
    text.chars().all(|char| char.is_whitespace() || "_/!#*>\\".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        found("a.rs", text).into_iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn words_to_avoid_are_refused() {
        assert_eq!(lines("fine\nNobody reads it"), [2]);
        assert_eq!(lines("is nobody's"), [1]);
        assert_eq!(lines("one waits in vain"), [1]);
        let violations = found("a.rs", "made anew");
        assert_eq!(violations[0].to_string(), "a.rs:1: `anew`: again, from scratch, or new");
    }

    #[test]
    fn phrases_cross_lines_and_live_in_identifiers() {
        assert_eq!(lines("/// keeps so\n    /// many of them"), [1]);
        assert_eq!(lines("\"so \\\n many\""), [1]);
        assert_eq!(lines("metrics.waits_in_vain"), [1]);
        assert_eq!(lines("so. Many"), [0; 0]);
    }

    #[test]
    fn a_marked_line_may_quote_them() {
        assert_eq!(lines("`waits_in_vain` (tidy: allow)\nwhoever"), [2]);
    }

    #[test]
    fn other_words_that_contain_them_are_not() {
        assert_eq!(lines("of users, so longing, is toldeth, Anewton"), [0; 0]);
    }

    #[test]
    fn the_list_and_the_style_guide_may_name_them() {
        let text = "nobody";
        let tree = Tree::of(&[("STYLE.md", text), ("GLOSSARY.md", text), ("README.md", text)]);
        let paths: Vec<String> = check(&tree).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["README.md"]);
    }
}
