//! A page is made of sections, each by a simulation of its own.

/// A section of the page.
#[derive(Debug)]
pub struct Section {
    /// Markdown.
    pub text: String,
    /// Pictures that it shows, by their names.
    pub pictures: Vec<(&'static str, String)>,
}
