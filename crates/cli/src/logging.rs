//! Logging to standard error: as text, or as JSON with `FOREBAY_LOG_FORMAT=json`.
//!
//! `FOREBAY_LOG` sets the level, or levels per module. Without it, forebay's own modules log at
//! `info` and dependencies at `warn`; `forebay serve` takes the level from its configuration.

use std::{io, sync::OnceLock};

use anyhow::{Context as _, bail};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Replaces the filter of the running logger.
static RELOAD: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Starts logging. Called once.
pub fn init() -> anyhow::Result<()> {
    let filter = match std::env::var("FOREBAY_LOG").ok().filter(|text| !text.is_empty()) {
        None => default_filter("info"),
        Some(text) => parse_filter(&text)?,
    };
    let logs = tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter);
    let is_json = std::env::var("FOREBAY_LOG_FORMAT").is_ok_and(|format| format == "json");
    // A reload fails only after the logger is gone.
    let reload: Box<dyn Fn(EnvFilter) + Send + Sync> = if is_json {
        let logs = logs.json().with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    } else {
        let logs = logs.with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    };
    assert!(RELOAD.set(reload).is_ok(), "logging is started once");
    Ok(())
}

/// Changes the level, unless `FOREBAY_LOG` is set.
pub fn set_level(level: &str) {
    if std::env::var_os("FOREBAY_LOG").is_none()
        && let Some(reload) = RELOAD.get()
    {
        reload(default_filter(level));
    }
}

/// Parses `FOREBAY_LOG`: levels or `MODULE=LEVEL`, separated by commas.
///
/// The parser of the library accepts any text as the name of a module, so typos are checked here.
fn parse_filter(text: &str) -> anyhow::Result<EnvFilter> {
    let is_level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let parts = text.split(',').map(str::trim);
    let is_known =
        |part: &str| is_level(part) || part.rsplit_once('=').is_some_and(|(_, of)| is_level(of));
    if !parts.clone().all(is_known) {
        bail!(
            "FOREBAY_LOG is `{text}`; use error, warn, info, debug, trace or off, or MODULE=LEVEL,…"
        );
    }
    let filter: EnvFilter = text.parse().context("FOREBAY_LOG")?;
    if text.contains("s3s") {
        return Ok(filter);
    }
    // It logs signatures and names of objects.
    Ok(filter.add_directive("s3s=off".parse().context("FOREBAY_LOG")?))
}

/// forebay's own modules at `level`, dependencies at `warn`.
fn default_filter(level: &str) -> EnvFilter {
    EnvFilter::new(format!("warn,forebay={level},s3s=off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_levels_are_refused() {
        for good in ["debug", "WARN", "off", "info,forebay_flash=trace"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["loud", "info,loud", "forebay=loud", ","] {
            let refused = parse_filter(bad).unwrap_err().to_string();
            assert!(refused.contains("use error, warn"), "{refused}");
        }
    }
}
