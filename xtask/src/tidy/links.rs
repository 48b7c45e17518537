//! Rule `links`: every relative link in a Markdown page leads to a file, and its anchor to a
//! heading.
//!
//! Anchors are made as GitHub makes them. Links into the web are not followed.

use std::collections::BTreeSet;

use super::{
    Violation,
    tree::{File, Kind, Tree, extension},
};

pub const REMEDY: &str = "correct the path or the anchor; an anchor is the heading in lower case \
                          with `-` for spaces and without punctuation";

pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension(&["md"]).flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, page: &File) -> Vec<Violation> {
    let mut found = Vec::new();
    for line in page.lines() {
        if matches!(line.kind, Kind::Code | Kind::Output) {
            continue;
        }
        for target in targets(&without_code(line.text)) {
            if let Some(problem) = problem(tree, page, &target) {
                found.push(Violation::at(&page.path, line.number, problem));
            }
        }
    }
    found
}

/// Why a link leads nowhere.
fn problem(tree: &Tree, page: &File, target: &str) -> Option<String> {
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    if is_elsewhere || target.is_empty() {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { Some(page.path.clone()) } else { resolved(&page.path, path) };
    let Some(path) = path.filter(|path| tree.has(path)) else {
        return Some(format!("`{target}` leads to no file"));
    };
    let is_page = extension(&path) == "md";
    let linked = tree.file(&path).filter(|_| is_page && !anchor.is_empty())?;
    let is_there = anchors(linked).contains(anchor);
    (!is_there).then(|| format!("`{target}`: `{path}` has no heading `#{anchor}`"))
}

/// A path relative to the root, from one that is relative to a page. `None` if it leaves the
/// repository.
fn resolved(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = match path.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => page.split('/').collect(),
    };
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The targets of inline links, images and reference definitions in a line.
fn targets(line: &str) -> Vec<String> {
    let inline = line.match_indices("](").filter_map(|(at, mark)| {
        let rest = &line[at + mark.len()..];
        Some(rest[..rest.find(')')?].split_whitespace().next().unwrap_or_default().to_owned())
    });
    let defined = line.trim_start().strip_prefix('[').and_then(|rest| {
        let (name, target) = rest.split_once("]:")?;
        let is_footnote = name.starts_with('^') || name.contains(']');
        (!is_footnote).then(|| target.split_whitespace().next().unwrap_or_default().to_owned())
    });
    let trimmed = |target: String| target.trim_matches(['<', '>']).to_owned();
    inline.chain(defined).map(trimmed).collect()
}

/// A line with its inline code blanked.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    let keep = |(at, part): (usize, &&str)| {
        // The text after a backtick without a partner is not code.
        if at % 2 == 0 || at == last { (*part).to_owned() } else { "x".to_owned() }
    };
    parts.iter().enumerate().map(keep).collect()
}

/// The anchors of a page: its headings, and `<a id="…">` or `<a name="…">`.
fn anchors(page: &File) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        if matches!(line.kind, Kind::Code | Kind::Output) && !line.text.starts_with("<a ") {
            continue;
        }
        let level = line.text.bytes().take_while(|byte| *byte == b'#').count();
        if (1..=6).contains(&level) && line.text[level..].starts_with(' ') {
            let slug = slug(&line.text[level..]);
            let repeated = (1..).map(|count| format!("{slug}-{count}"));
            let free =
                [slug.clone()].into_iter().chain(repeated).find(|one| !anchors.contains(one));
            anchors.extend(free);
        }
        for mark in ["<a id=\"", "<a name=\""] {
            let named = line.text.match_indices(mark).filter_map(|(at, _)| {
                line.text[at + mark.len()..].split('"').next().map(str::to_owned)
            });
            anchors.extend(named);
        }
    }
    anchors
}

/// GitHub's anchor of a heading.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim();
    // Of a link, the text alone counts.
    while let Some((before, after)) = rest.split_once("](") {
        text += &before.replace('[', "");
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text += rest;
    let kept = text.chars().filter_map(|char| match char {
        ' ' => Some('-'),
        '-' | '_' => Some(char),
        char if char.is_alphanumeric() => Some(char),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let other = "# Other\n## A `flash` tier, again\n## Twice\n## Twice\n<a id=\"here\"></a>\n";
        let tree = Tree::of(&[
            ("docs/page.md", page),
            ("docs/guide/other.md", other),
            ("src/main.rs", ""),
        ]);
        check(&tree).iter().map(|one| format!("{}: {}", one.line.unwrap(), one.message)).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_refused() {
        let page = "# Page\n[a](none.md), [b](guide/other.md#none)\n[c](#nothing)\n\n[d]: ../none";
        assert_eq!(
            found(page),
            [
                "2: `none.md` leads to no file",
                "2: `guide/other.md#none`: `docs/guide/other.md` has no heading `#none`",
                "3: `#nothing`: `docs/page.md` has no heading `#nothing`",
                "5: `../none` leads to no file",
            ]
        );
        assert_eq!(found("[out](../../secret.md)").len(), 1);
    }

    #[test]
    fn links_that_lead_somewhere_are_accepted() {
        let page = "# Page\n[a](guide/other.md#a-flash-tier-again) [b](guide/other.md#twice-1)\n\
                    [c](guide/other.md#here) [d](#page) [e](guide) [f](../src/main.rs#L3) \
                    [g](/src/main.rs)\n[h](https://example.org/none) `[i](none.md)` \
                    ![j](guide/other.md \"a title\")\n[^1]: a note\n```python\nx[0](none)\n```";
        assert_eq!(found(page), [""; 0]);
    }
}
