//! Configuration values: how each type is written in TOML.

use std::{fmt::Display, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use forebay_core::{ByteSize, NodeName, cluster::ring::Member, units::parse_duration};
use forebay_flash::io::Backend;

use super::{nodes, tenants::TenantConfig};

/// The word for a value that the node chooses.
const AUTO: &str = "auto";
/// The word for an absent value.
const NONE: &str = "none";

/// A type of configuration value. Errors for the wrong TOML type start with "should be".
pub(super) trait ConfigValue: Sized {
    /// Parses a TOML value.
    fn read(value: &toml::Value) -> anyhow::Result<Self>;

    /// The value as it is written in a file.
    fn write(&self) -> String;
}

fn text(value: &toml::Value) -> anyhow::Result<&str> {
    value.as_str().context("should be a text in quotes")
}

fn quoted(value: impl Display) -> String {
    format!("\"{value}\"")
}

/// `None` if the text is `word`, else the parsed text.
fn optional<T>(
    value: &toml::Value,
    word: &str,
    parse: impl FnOnce(&str) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let text = text(value)?;
    if text == word { Ok(None) } else { parse(text).map(Some) }
}

fn duration(text: &str) -> anyhow::Result<Duration> {
    parse_duration(text).map_err(anyhow::Error::msg)
}

/// A list of file names.
pub(super) fn paths(value: &toml::Value) -> anyhow::Result<Vec<PathBuf>> {
    let list = value.as_array().context("should be a list of file names")?;
    let names: Option<_> = list.iter().map(|value| value.as_str().map(PathBuf::from)).collect();
    names.context("should be a list of file names")
}

impl ConfigValue for PathBuf {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        text(value).map(Self::from)
    }

    fn write(&self) -> String {
        quoted(self.display())
    }
}

impl ConfigValue for Option<PathBuf> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        optional(value, NONE, |text| Ok(text.into()))
    }

    fn write(&self) -> String {
        self.as_ref().map_or_else(|| quoted(NONE), |path| quoted(path.display()))
    }
}

impl ConfigValue for Option<SocketAddr> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        optional(value, NONE, |text| {
            text.parse().with_context(|| {
                format!("`{text}` is not an address and a port, such as 127.0.0.1:9464")
            })
        })
    }

    fn write(&self) -> String {
        self.map_or_else(|| quoted(NONE), quoted)
    }
}

impl ConfigValue for ByteSize {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        Ok(text(value)?.parse()?)
    }

    fn write(&self) -> String {
        quoted(self)
    }
}

impl ConfigValue for Option<ByteSize> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        optional(value, AUTO, |text| Ok(text.parse()?))
    }

    fn write(&self) -> String {
        self.map_or_else(|| quoted(AUTO), quoted)
    }
}

impl ConfigValue for Duration {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        duration(text(value)?)
    }

    fn write(&self) -> String {
        quoted(format_args!("{}s", self.as_secs()))
    }
}

impl ConfigValue for Option<Duration> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        optional(value, NONE, duration)
    }

    fn write(&self) -> String {
        self.as_ref().map_or_else(|| quoted(NONE), ConfigValue::write)
    }
}

impl ConfigValue for usize {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
        number.context("should be a number")
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for bool {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        value.as_bool().context("should be true or false")
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl ConfigValue for String {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        text(value).map(Self::from)
    }

    fn write(&self) -> String {
        quoted(self)
    }
}

impl ConfigValue for Backend {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        backend(text(value)?)
    }

    fn write(&self) -> String {
        quoted(match self {
            Self::Auto => "auto",
            Self::Uring => "io_uring",
            Self::Threads => "threads",
        })
    }
}

/// The table `gateway`, which `forebay-gateway` parses.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewayTable(pub toml::Table);

/// No key of the table is a floating-point number.
impl Eq for GatewayTable {}

impl ConfigValue for Option<GatewayTable> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        match value {
            toml::Value::Table(table) => Ok(Some(GatewayTable(table.clone()))),
            other if other.as_str() == Some(NONE) => Ok(None),
            _ => anyhow::bail!("should be a table, under [gateway]"),
        }
    }

    fn write(&self) -> String {
        debug_assert!(self.is_none(), "only defaults are written");
        quoted(NONE)
    }
}

impl ConfigValue for Option<NodeName> {
    fn read(value: &toml::Value) -> anyhow::Result<Self> {
        optional(value, NONE, |text| Ok(text.parse()?))
    }

    fn write(&self) -> String {
        self.as_ref().map_or_else(|| quoted(NONE), quoted)
    }
}

/// Lists have an empty default; nothing writes a longer one.
macro_rules! list_value {
    ($type:ty, $read:expr) => {
        impl ConfigValue for Vec<$type> {
            fn read(value: &toml::Value) -> anyhow::Result<Self> {
                $read(value)
            }

            fn write(&self) -> String {
                debug_assert!(self.is_empty(), "only defaults are written");
                "[]".to_owned()
            }
        }
    };
}

list_value!(PathBuf, paths);
list_value!(TenantConfig, TenantConfig::all);
list_value!(Member, nodes::members);

/// Parses the value of `io`.
fn backend(text: &str) -> anyhow::Result<Backend> {
    match text {
        "auto" => Ok(Backend::Auto),
        "io_uring" => Ok(Backend::Uring),
        "threads" => Ok(Backend::Threads),
        _ => anyhow::bail!("should be \"auto\", \"io_uring\" or \"threads\""),
    }
}
