//! Policy names: [`policy_names!`] defines an enum of policies with their names and descriptions.

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{name}`; there are {known}")]
pub struct PolicyKindError {
    pub(crate) name: String,
    pub(crate) known: String,
}

/// Defines `PolicyKind` from a list of variants, each with a one-line description and a name.
macro_rules! policy_names {
    ($(#[doc = $about:literal] $kind:ident = $name:literal,)*) => {
        /// The choice of a policy.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PolicyKind {
            $(#[doc = $about] $kind,)*
        }

        impl PolicyKind {
            /// All policies: those of the literature first, forebay's own last.
            pub const ALL: &[PolicyKind] = &[$(PolicyKind::$kind,)*];

            /// The name as written on a command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(PolicyKind::$kind => $name,)*
                }
            }

            /// A one-line description.
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
            type Err = crate::util::policy_names::PolicyKindError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let wanted = text.trim().to_ascii_lowercase();
                let found = Self::ALL.iter().copied().find(|kind| kind.name() == wanted);
                found.ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                    Self::Err { name: text.to_owned(), known: names.join(", ") }
                })
            }
        }
    };
}
pub(crate) use policy_names;
