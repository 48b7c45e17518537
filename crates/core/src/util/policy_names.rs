//! Policies by name. [`kinds!`] makes the type that chooses one from a list of what each is called and what it is.

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{name}`; there are {there_are}")]
pub struct PolicyKindError {
    pub(crate) name: String,
    pub(crate) there_are: String,
}

/// Defines the kinds with their names and one line each.
macro_rules! kinds {
    ($(#[doc = $about:literal] $kind:ident = $name:literal,)*) => {
        /// Which policy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PolicyKind {
            $(#[doc = $about] $kind,)*
        }

        impl PolicyKind {
            /// Every kind, the classics first and ours last.
            pub const ALL: &[PolicyKind] = &[$(PolicyKind::$kind,)*];

            /// As it is written on a command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PolicyKind::$kind => $name,)*
                }
            }

            /// What it is, in one line.
            pub const fn about(self) -> &'static str {
                let about: &'static str = match self {
                    $(PolicyKind::$kind => $about,)*
                };
                about.trim_ascii()
            }
        }

        impl std::fmt::Display for PolicyKind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for PolicyKind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl std::str::FromStr for PolicyKind {
            type Err = crate::kinds::PolicyKindError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let wanted = text.trim().to_ascii_lowercase();
                let found = Self::ALL.iter().copied().find(|kind| kind.name() == wanted);
                found.ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                    Self::Err { name: text.to_owned(), there_are: names.join(", ") }
                })
            }
        }
    };
}
pub(crate) use kinds;
