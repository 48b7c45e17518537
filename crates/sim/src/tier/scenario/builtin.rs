//! Built-in scenarios: the files under `scenarios/`.

/// A scenario that is part of the binary.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// Name.
    pub name: &'static str,
    /// Content of the file.
    pub text: &'static str,
}

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        /// All built-in scenarios.
        pub const BUILT_IN: &[BuiltIn] = &[$(BuiltIn {
            name: $name,
            text: include_str!(concat!("../../../../../scenarios/", $name, ".toml")),
        }),+];
    };
}

built_in!(
    "shift-synchronized",
    "shift-pipelined",
    "shift-sequential",
    "shift-write-limit",
    "shift-reinsertion",
    "shift-shuffled",
    "shift-uneven",
    "shift-false",
    "shift-days",
);
