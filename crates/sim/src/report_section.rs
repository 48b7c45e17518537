//! A section of a page of results.

/// Text, and the pictures that it shows.
#[derive(Debug, Default)]
pub struct Section {
    /// Markdown.
    pub text: String,
    /// Pictures that it shows, by their names.
    pub pictures: Vec<(&'static str, String)>,
}
