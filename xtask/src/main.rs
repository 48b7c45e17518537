//! The one binary: `forebay`.
fn main() {}
