//! Report sections: parts of a generated results page.

/// Columns of a generated page; tables may be wider.
const COLUMNS: usize = 100;

/// Text and pictures of one section.
#[derive(Debug, Default)]
pub struct Section {
    /// Markdown.
    pub text: String,
    /// File names and contents of the pictures that the text shows.
    pub pictures: Vec<(&'static str, String)>,
}

impl Section {
    /// Wraps paragraphs and list items at 100 columns. Tables, headings and pictures keep their
    /// lines, and code spans are not broken.
    pub(crate) fn wrap(&mut self) {
        let text = std::mem::take(&mut self.text);
        for line in text.lines() {
            if line.starts_with(['|', '#', '!', '<']) {
                self.text.push_str(line);
            } else {
                wrap_line(&mut self.text, line);
            }
            self.text.push('\n');
        }
    }
}

fn wrap_line(text: &mut String, line: &str) {
    let content = line.trim_start();
    let spaces = line.len() - content.len();
    let hanging = spaces + if content.starts_with("- ") { 2 } else { 0 };
    text.push_str(&line[..spaces]);
    let (mut column, mut is_first) = (spaces, true);
    for word in words(content) {
        let length = word.chars().count();
        if !is_first && column + 1 + length > COLUMNS {
            text.push('\n');
            text.push_str(&" ".repeat(hanging));
            column = hanging;
        } else if !is_first {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        is_first = false;
    }
}

/// Words of a line; a code span with spaces is one word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    line.split(move |c: char| {
        in_code ^= c == '`';
        c == ' ' && !in_code
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_and_tables_are_not() {
        let long = "word ".repeat(30);
        let long = long.trim_end();
        let table = format!("| {long} |");
        let code = format!("`{long}`");
        let text = format!("### {long}\n\n{long}\n- {long}\n{table}\n{code}\n");
        let mut section = Section { text, ..Section::default() };
        section.wrap();
        let lines: Vec<&str> = section.text.lines().collect();
        assert_eq!((lines[0], lines[1]), (&*format!("### {long}"), ""));
        assert_eq!(lines[2].len(), 99, "20 words");
        assert_eq!(lines[3].len(), 49, "10 words");
        assert!(lines[4].starts_with("- word") && lines[5].starts_with("  word"));
        assert_eq!((lines[6], lines[7]), (&*table, &*code));
        let once = section.text.clone();
        section.wrap();
        assert_eq!(section.text, once);
    }
}
